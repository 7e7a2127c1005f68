/*-------------------------------------------------------------------------
 *
 * parked_load.c
 *		Reads a relay's parked events and blocked keys into the index.
 *
 * The positions of blocked keys are mostly of a few differences.  So keys share
 * their snapshots, and the memory for 10,000 keys does not depend on how many
 * transactions were running when they were blocked.
 *
 * LOCKING: none of its own.
 *
 * MEMORY: the index's context; while the tables are read, their rows.  Dead
 * events that block nothing and are not read again are left out.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/position/parked_load.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"
#include "utils/xid8.h"

#include "relay/position/blocked.h"
#include "shared/catalog.h"
#include "shared/error.h"
#include "shared/spi.h"

const char *const idem_parked_states[IDEM_PARKED_STATES] = {"retry", "waiting", "dead", "in_flight"};

IdemParkedIndex *
idem_parked_index_create(MemoryContext parent)
{
	MemoryContext cxt = AllocSetContextCreate(parent, "parked events",
											  ALLOCSET_DEFAULT_SIZES);
	IdemParkedIndex *index = MemoryContextAllocZero(parent, sizeof(*index));

	index->cxt = cxt;
	dlist_init(&index->ready);
	dlist_init(&index->held);
	dlist_init(&index->free_keys);
	return index;
}

static IdemParkedState
state_from_text(const char *state)
{
	for (int i = 0; i < IDEM_PARKED_STATES; i++)
	{
		if (strcmp(state, idem_parked_states[i]) == 0)
			return (IdemParkedState) i;
	}
	return IDEM_PARKED_WAITING;
}

IdemEventText
idem_parked_text(HeapTuple tup, TupleDesc desc, int column)
{
	char	   *s = idem_spi_text(tup, desc, column);
	IdemEventText text = {s, s != NULL ? strlen(s) : 0};

	return text;
}

/* A timestamp of a row, or if_null. */
static TimestampTz
time_or(HeapTuple tup, TupleDesc desc, int column, TimestampTz if_null)
{
	bool		isnull;
	Datum		value = SPI_getbinval(tup, desc, column, &isnull);

	return isnull ? if_null : DatumGetTimestampTz(value);
}

void
idem_parked_report(int64 parked_id)
{
	ereport(ERROR,
			(errcode(ERRCODE_DATA_CORRUPTED),
			 errmsg("row with parked_id " INT64_FORMAT " of table \"%s.relay_parked\" is not one that the extension has written",
					parked_id, IDEM_DATA_SCHEMA_NAME),
			 errdetail("A dump that was changed, or a role that may write all data, has brought it."),
			 errhint("Delete the row if it is no event that has to arrive; until then its relay waits.")));
}

/* Add a row of the table. */
static void
add_row(IdemParkedIndex *index, HeapTuple tup, TupleDesc desc)
{
	IdemEventText type = idem_parked_text(tup, desc, 4);
	IdemEventText id = idem_parked_text(tup, desc, 5);
	char	   *state = idem_spi_text(tup, desc, 6);
	IdemParkedNote note = {0};

	if (type.data == NULL || id.data == NULL || state == NULL ||
		heap_attisnull(tup, 1, desc) || heap_attisnull(tup, 3, desc) || heap_attisnull(tup, 9, desc))
		idem_parked_report(DatumGetInt64(idem_spi_value(tup, desc, 2)));
	note.seq = DatumGetInt64(idem_spi_value(tup, desc, 1));
	note.parked_id = DatumGetInt64(idem_spi_value(tup, desc, 2));
	note.xid = DatumGetFullTransactionId(idem_spi_value(tup, desc, 3));
	note.state = state_from_text(state);
	note.due = time_or(tup, desc, 7, DT_NOEND);
	note.failed_at = time_or(tup, desc, 8, DT_NOBEGIN);
	note.refused = DatumGetBool(idem_spi_value(tup, desc, 12));
	note.lone = DatumGetBool(idem_spi_value(tup, desc, 9));
	note.asked = DatumGetBool(idem_spi_value(tup, desc, 11));
	note.deferred = DatumGetBool(idem_spi_value(tup, desc, 10));
	index->dead_loaded += note.state == IDEM_PARKED_DEAD;
	idem_parked_index_add(index, &note, idem_parked_key_hash(type, id));
	pfree(unconstify(char *, type.data));
	pfree(unconstify(char *, id.data));
}

/*
 * The snapshots of positions, in the index's context.  Whoever stands there holds them; the
 * newest ones are found again.
 */
struct IdemDifference
{
	int			holders;
	IdemSnap   *base;
	IdemSnap   *target;			/* may be NULL */
};

static bool
is_target(const IdemDifference *difference, const IdemSnap *target)
{
	return (difference->target == NULL) == (target == NULL) &&
		(target == NULL || idem_snap_equal(difference->target, target));
}

/* Find the snapshots, or copy them. */
static IdemDifference *
share(IdemParkedIndex *index, const IdemPosition *pos)
{
	IdemDifference *difference = index->newest;
	MemoryContext old;

	if (difference != NULL && idem_snap_equal(difference->base, pos->base) && is_target(difference, pos->target))
		return difference;
	old = MemoryContextSwitchTo(index->cxt);
	difference = palloc0(sizeof(*difference));
	difference->base = idem_snap_copy(pos->base);
	difference->target = pos->target == NULL ? NULL : idem_snap_copy(pos->target);
	MemoryContextSwitchTo(old);
	index->newest = difference;
	return difference;
}

static void
let_go(IdemParkedIndex *index, IdemDifference *difference)
{
	if (difference == NULL || --difference->holders > 0)
		return;
	if (index->newest == difference)
		index->newest = NULL;
	pfree(difference->base);
	if (difference->target != NULL)
		pfree(difference->target);
	pfree(difference);
}

IdemPosition
idem_blocked_from(const IdemBlockedKey *key)
{
	return (IdemPosition)
	{
		key->difference->base, key->difference->target, key->seq
	};
}

void
idem_blocked_stand(IdemParkedIndex *index, IdemBlockedKey *key, const IdemPosition *from)
{
	IdemDifference *difference = share(index, from);

	difference->holders++;
	let_go(index, key->difference);
	key->difference = difference;
	key->seq = from->seq;
}

IdemBlockedKey *
idem_blocked_add(IdemParkedIndex *index, uint64 hash, int64 blocked_id, const IdemPosition *from)
{
	bool		found;
	IdemBlockedKey *key = hash_search(index->blocked, &hash, HASH_ENTER, &found);

	if (!found)
	{
		memset(key, 0, sizeof(*key));
		key->hash = hash;
	}
	key->blocked_id = blocked_id;
	idem_blocked_stand(index, key, from);
	return key;
}

void
idem_blocked_remove(IdemParkedIndex *index, IdemBlockedKey *key)
{
	if (key->is_free)
		dlist_delete(&key->node);
	let_go(index, key->difference);
	(void) hash_search(index->blocked, &key->hash, HASH_REMOVE, NULL);
}

void
idem_blocked_set_free(IdemParkedIndex *index, uint64 hash, int window)
{
	IdemBlockedKey *blocked = idem_parked_blocked_key(index, hash);

	if (blocked == NULL || blocked->is_free)
		return;
	blocked->window = window;
	blocked->is_free = true;
	dlist_push_tail(&index->free_keys, &blocked->node);
	index->refill_waits = false;
}

int
idem_blocked_set_kept(IdemParkedIndex *index, uint64 hash)
{
	IdemBlockedKey *blocked = idem_parked_blocked_key(index, hash);

	if (blocked == NULL)
		return 1;
	if (blocked->is_free)
		dlist_delete(&blocked->node);
	blocked->is_free = false;
	return Max(blocked->window, 1);
}

void
idem_blocked_free_if_alone(IdemParkedIndex *index, uint64 hash)
{
	if (idem_parked_queued(index, hash) == 0)
		idem_blocked_set_free(index, hash, 1);
}

/* A snapshot of a row, detoasted; NULL if there is none. */
static IdemSnap *
snap_of(HeapTuple tup, TupleDesc desc, int column)
{
	bool		isnull;
	Datum		value = SPI_getbinval(tup, desc, column, &isnull);

	return isnull ? NULL : (IdemSnap *) PG_DETOAST_DATUM(value);
}

/* Add a row of relay_blocked. */
static void
add_blocked(IdemParkedIndex *index, HeapTuple tup, TupleDesc desc)
{
	IdemEventText type = idem_parked_text(tup, desc, 2);
	IdemEventText id = idem_parked_text(tup, desc, 3);
	IdemPosition from = {snap_of(tup, desc, 4), snap_of(tup, desc, 5)};

	if (type.data == NULL || id.data == NULL || from.base == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("row with blocked_id " INT64_FORMAT " of table \"%s.relay_blocked\" is not one that the extension has written",
						DatumGetInt64(idem_spi_value(tup, desc, 1)), IDEM_DATA_SCHEMA_NAME)));
	from.seq = DatumGetInt64(idem_spi_value(tup, desc, 6));
	(void) idem_blocked_add(index, idem_parked_key_hash(type, id), DatumGetInt64(idem_spi_value(tup, desc, 1)), &from);
}

/*
 * Read the blocked keys, before the events: those that have no event are free then.
 */
static void
load_blocked(IdemParkedIndex *index, const IdemRelayConfig *config)
{
	Oid			types[1] = {INT4OID};
	Datum		values[1] = {Int32GetDatum(config->relay_id)};
	uint64		n;

	n = idem_spi_run("SELECT blocked_id, aggregate_type, aggregate_id, base, target, seq"
					 " FROM %s.relay_blocked WHERE relay_id = $1 ORDER BY seq", 1, types, values, NULL);
	for (uint64 i = 0; i < n; i++)
	{
		CHECK_FOR_INTERRUPTS();
		add_blocked(index, SPI_tuptable->vals[i], SPI_tuptable->tupdesc);
	}
}

/* Find the blocked keys that have no parked event. */
static void
free_keys(IdemParkedIndex *index)
{
	HASH_SEQ_STATUS status;
	IdemBlockedKey *blocked;

	hash_seq_init(&status, index->blocked);
	while ((blocked = hash_seq_search(&status)) != NULL)
		idem_blocked_free_if_alone(index, blocked->hash);
}

void
idem_parked_index_load(IdemParkedIndex *index, const IdemRelayConfig *config, const IdemSnap *passed)
{
	Oid			types[5] = {INT4OID, TEXTOID, BOOLOID, PG_SNAPSHOTOID, TEXTOID};
	Datum		values[5] = {Int32GetDatum(config->relay_id),
	CStringGetTextDatum(unpack_sql_state(ERRCODE_IDEM_SINK_OUTAGE))};
	char		nulls[6] = "     ";
	uint64		n;

	values[2] = BoolGetDatum(passed == NULL || (config->ordering == IDEM_ORDERING_KEY && config->on_dead != IDEM_ON_DEAD_SKIP));
	values[3] = PointerGetDatum(passed);
	nulls[3] = passed == NULL ? 'n' : ' ';

	/*
	 * An event that was refused with this took all the time of its batch, and
	 * one that was put off with 53400 had no room beside others
	 * (stream/judge.c).
	 */
	values[4] = CStringGetTextDatum(unpack_sql_state(ERRCODE_QUERY_CANCELED));
	nulls[4] = idem_relay_is_function(config) ? 'n' : ' ';
	idem_parked_index_clear(index, config);
	SPI_connect();
	load_blocked(index, config);
	n = idem_spi_run("SELECT seq, parked_id, xid, aggregate_type, aggregate_id, state::text,"
					 " next_attempt_at, last_failed_at,"
					 " crashes > 0 OR COALESCE(sqlstate = $2 OR (sqlstate = $5 AND (attempts > 0 OR deferrals > 0))"
					 " OR ($5 IS NOT NULL AND sqlstate = '53400' AND attempts = 0 AND deferrals = 0), false),"
					 " COALESCE(deferrals > 0, false), COALESCE(sqlstate = '53400' AND (attempts > 0 OR deferrals > 0), false),"
					 " COALESCE((attempts > 0 OR deferrals > 0), false)"
					 " FROM %s.relay_parked WHERE relay_id = $1"
					 " AND (state <> 'dead' OR $3 OR NOT pg_catalog.pg_visible_in_snapshot(xid, $4)) ORDER BY seq",
					 5, types, values, nulls);
	for (uint64 i = 0; i < n; i++)
	{
		CHECK_FOR_INTERRUPTS();
		add_row(index, SPI_tuptable->vals[i], SPI_tuptable->tupdesc);
	}
	SPI_finish();
	free_keys(index);

	/*
	 * In order of seq refused ones, which may take longer, one by one, than
	 * it takes until the next load, would have each turn.
	 */
	idem_parked_index_order(index, false);
}
