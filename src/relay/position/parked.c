/*-------------------------------------------------------------------------
 *
 * parked.c
 *		Events a relay took out of the outbox's order: to be retried, or dead.
 *
 * An event is parked in the transaction in which the position passes it, or in
 * an earlier one.  So a crash leaves the event in the outbox, or here, or in
 * both, never in neither.  Parked events are copies: the outbox may be emptied
 * behind them.
 *
 * In key order an event may be sent unless an earlier event of its aggregate is
 * parked and not due yet, or is dead and blocks.  Events of an aggregate are
 * sent in order of seq.  For producers that lock their aggregate that is the
 * order of commit.
 *
 * This is not the hot path, so rows here are updated and deleted: as many as
 * events were refused, with one statement for each batch.  A row is found by
 * its parked_id, which is never used for another row.  So dead rows that a
 * pinned xmin horizon keeps are not in the way.
 *
 * LOCKING: the relay's row in "relays" is locked before rows here, in the order
 * in which operators' functions lock them.  A worker needs the relay's row only
 * if a dead event halts the relay, and cannot know before whether an event will
 * be dead.  So under on_dead = stop each transaction that changes rows here
 * locks the relay's row first.
 *
 * The worker of a database serves many relays and must not wait for an
 * operator's open transaction: it calls idem_parked_try_lock before it changes
 * anything.  The worker of a function relay serves one relay, and waits for rows; before that it takes
 * the relay's row FOR KEY SHARE, without a wait, against whoever changes all rows (FOR UPDATE).
 *
 * MEMORY: the events taken for a batch are in the caller's context, and bounded
 * by the batch's bytes plus one event.  The plans of the statements stay.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/position/parked.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/detoast.h"
#include "access/transam.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "storage/lmgr.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"
#include "utils/xid8.h"

#include "compat.h"
#include "relay/position/parked.h"
#include "relay/worker_slots.h"
#include "shared/args.h"
#include "shared/catalog.h"
#include "shared/error.h"
#include "shared/spi.h"

int			idem_max_parked = 10000;

static IdemRelRef relays_ref = IDEM_RELREF("relays");

void
idem_parked_force_flush(void)
{
	ForceSyncCommit();
}

/* What is stored of the tries of an event, the last failure included. */
typedef struct Tries
{
	int			attempts;		/* failures that count */
	int			deferrals;		/* failures in a row that do not, and back off */
	int			crashes;		/* attempts that ended the server or the
								 * program */
	int64		tried_us;		/* for how long the event was tried */
} Tries;

/* Is the event dead?  Only a failure that counts makes it so. */
static bool
is_dead(const IdemRelayConfig *config, const Tries *tries, const IdemFailure *failure)
{
	if (failure->hopeless || (failure->crashed && tries->crashes >= IDEM_MAX_CRASHES) ||
		(failure->fell && tries->crashes >= IDEM_MAX_FALLS))
		return true;
	return failure->counts &&
		((config->max_attempts > 0 && tries->attempts >= config->max_attempts) ||
		 (config->retry_for_ms > 0 && tries->tried_us >= config->retry_for_ms * 1000));
}

/* Run a statement, and return the number of rows, which are gone. */
static uint64
run(IdemSpiStatement *statement, int nargs, Oid *types, Datum *values)
{
	uint64		n;

	SPI_connect();
	n = idem_spi_run_saved(statement, nargs, types, values, NULL);
	SPI_finish();
	return n;
}

/* The ids as an int8[]. */
static Datum
id_array(const int64 *ids, int n)
{
	Datum	   *elems = palloc(sizeof(Datum) * n);

	for (int i = 0; i < n; i++)
		elems[i] = Int64GetDatum(ids[i]);
	return PointerGetDatum(construct_array(elems, n, INT8OID, sizeof(int64), FLOAT8PASSBYVAL,
										   TYPALIGN_DOUBLE));
}

/* Run a statement on the rows with these ids, which are its $1. */
static uint64
run_for_ids(IdemSpiStatement *statement, const int64 *ids, int n)
{
	Oid			types[1] = {INT8ARRAYOID};
	Datum		values[1] = {id_array(ids, n)};

	return run(statement, 1, types, values);
}

/* Run a statement on the relay, which is its $1.  Was it one row? */
static bool
run_for_relay(IdemSpiStatement *statement, int relay_id)
{
	Oid			types[1] = {INT4OID};
	Datum		values[1] = {Int32GetDatum(relay_id)};

	return run(statement, 1, types, values) == 1;
}

/* See LOCKING in the file header. */
void
idem_parked_lock_relay(const IdemRelayConfig *config)
{
	static IdemSpiStatement lock =
	IDEM_SPI_STATEMENT("SELECT FROM %s.relays WHERE relay_id = $1 FOR NO KEY UPDATE");

	if (config->on_dead == IDEM_ON_DEAD_STOP)
		(void) run_for_relay(&lock, config->relay_id);
}

bool
idem_parked_share_relay(const IdemRelayConfig *config)
{
	static IdemSpiStatement lock =
	IDEM_SPI_STATEMENT("SELECT FROM %s.relays WHERE relay_id = $1 FOR KEY SHARE SKIP LOCKED");

	return run_for_relay(&lock, config->relay_id);
}

/*
 * Lock the relay's row, and the table as an update of the row does, without
 * waiting.
 */
static bool
try_lock_relay(int relay_id)
{
	static IdemSpiStatement lock =
	IDEM_SPI_STATEMENT("SELECT FROM %s.relays WHERE relay_id = $1 FOR NO KEY UPDATE SKIP LOCKED");

	return ConditionalLockRelationOid(idem_relref_oid(&relays_ref), RowExclusiveLock) &&
		run_for_relay(&lock, relay_id);
}

/*
 * Lock all of these rows that still exist, without waiting.  An operator may
 * have discarded some.
 */
static bool
try_lock_rows(const int64 *ids, int n)
{
	static IdemSpiStatement lock =
	IDEM_SPI_STATEMENT("SELECT FROM %s.relay_parked WHERE parked_id = ANY ($1) FOR UPDATE SKIP LOCKED");
	static IdemSpiStatement look =
	IDEM_SPI_STATEMENT("SELECT FROM %s.relay_parked WHERE parked_id = ANY ($1)");
	uint64		locked = run_for_ids(&lock, ids, n);

	return locked == (uint64) n || locked == run_for_ids(&look, ids, n);
}

bool
idem_parked_try_lock(const IdemRelayConfig *config, const int64 *ids, int n)
{
	if (config->on_dead == IDEM_ON_DEAD_STOP && !try_lock_relay(config->relay_id))
		return false;
	return n == 0 || try_lock_rows(ids, n);
}

static Datum
text_datum(IdemEventText t)
{
	return PointerGetDatum(cstring_to_text_with_len(t.data, t.len));
}

/* When to try an event again after this failure. */
static TimestampTz
next_attempt(const IdemRelayConfig *config, const Tries *tries, const IdemFailure *failure)
{
	int64		ms = failure->retry_after_ms;

	if (failure->counts)
		ms = Max(ms, idem_relay_backoff_ms(config, tries->attempts - 1));
	else if (failure->backs_off)
		ms = Max(ms, idem_relay_deferral_ms(config, tries->deferrals - 1));
	return TimestampTzPlusMilliseconds(GetCurrentTimestamp(), ms);
}

/* See idem_parked_is_parking. */
static bool is_parking = false;

bool
idem_parked_is_parking(void)
{
	return is_parking;
}

static IdemSpiStatement insert_row =
IDEM_SPI_STATEMENT("INSERT INTO %s.relay_parked (relay_id, state, attempts, next_attempt_at,"
				   " xid, seq, event_id, enqueued_at, aggregate_type, aggregate_id, event_type,"
				   " payload, payload_bytes, content_type, headers, sqlstate, error,"
				   " first_failed_at, last_failed_at, crashes, deferrals, relay_created_at)"
				   " VALUES ($1, $2::%t.parked_state, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13,"
				   " $14, $15, pg_catalog.substr($16, 1, 5), pg_catalog.substr($16, 6),"
				   " CASE WHEN $16 IS NOT NULL THEN pg_catalog.clock_timestamp() END,"
				   " CASE WHEN $16 IS NOT NULL THEN pg_catalog.clock_timestamp() END, $17, $18,"
				   " (SELECT r.created_at FROM %s.relays r WHERE r.relay_id = $1))"
				   " ON CONFLICT (relay_id, event_id) DO NOTHING RETURNING parked_id");

/* The new row's parked_id; 0 if the event is parked already. */
static int64
run_insert(int nargs, Oid *types, Datum *values, const char *nulls)
{
	volatile int64 parked_id = 0;

	SPI_connect();
	is_parking = true;
	PG_TRY();
	{
		if (idem_spi_run_saved(&insert_row, nargs, types, values, nulls) == 1)
			parked_id = DatumGetInt64(idem_spi_value(SPI_tuptable->vals[0],
													 SPI_tuptable->tupdesc, 1));
	}
	PG_FINALLY();
	{
		is_parking = false;
	}
	PG_END_TRY();
	SPI_finish();
	return parked_id;
}

/*
 * Did the failure take the program or the server down, or the time of others?  Then the
 * event is tried alone.
 */
static bool
is_lone(const IdemFailure *failure)
{
	return failure->crashed || failure->slow ||
		strcmp(failure->sqlstate, unpack_sql_state(ERRCODE_IDEM_SINK_OUTAGE)) == 0;
}

/*
 * The text of the failure as rows keep it, palloc'd.  A handler's error may have
 * any length, and each try of its event writes the text anew.
 */
static char *
kept_error(const IdemFailure *failure)
{
	char	   *kept = palloc(IDEM_MAX_ERROR_BYTES + 1);

	idem_copy_error(kept, failure->message, IDEM_MAX_ERROR_BYTES + 1);
	return kept;
}

/* Insert a row.  failure: NULL for an event that waits. */
static void
insert_parked(const IdemRelayConfig *config, const IdemEvent *ev, IdemParkedState state,
			  const Tries *tries, const IdemFailure *failure, IdemParkedNote *note)
{
	Oid			types[18] = {INT4OID, TEXTOID, INT4OID, TIMESTAMPTZOID, XID8OID,
		INT8OID, UUIDOID, TIMESTAMPTZOID, TEXTOID, TEXTOID, TEXTOID, JSONBOID,
	BYTEAOID, TEXTOID, JSONBOID, TEXTOID, INT4OID, INT4OID};
	Datum		values[18];
	char		nulls[19];

	memset(nulls, ' ', 18);
	nulls[18] = '\0';
	note->seq = ev->seq;
	note->xid = ev->xid;
	note->state = state;
	note->failed_at = failure ? GetCurrentTimestamp() : DT_NOBEGIN;
	note->due = failure ? next_attempt(config, tries, failure) : DT_NOEND;
	note->refused = tries->attempts > 0 || tries->deferrals > 0;
	note->lone = failure && is_lone(failure);
	note->asked = failure && failure->kind == IDEM_BLAME_ASKED;
	note->deferred = tries->deferrals > 0;
	note->lane = failure ? failure->lane : 0;
	note->verdict = failure ? failure->verdict : 0;
	values[0] = Int32GetDatum(config->relay_id);
	values[1] = CStringGetTextDatum(idem_parked_states[state]);
	values[2] = Int32GetDatum(tries->attempts);
	values[3] = TimestampTzGetDatum(note->due);
	values[4] = FullTransactionIdGetDatum(ev->xid);
	values[5] = Int64GetDatum(ev->seq);
	values[6] = UUIDPGetDatum(&ev->event_id);
	values[7] = TimestampTzGetDatum(ev->enqueued_at);
	values[8] = text_datum(ev->aggregate_type);
	values[9] = text_datum(ev->aggregate_id);
	values[10] = text_datum(ev->event_type);
	values[11] = values[12] = ev->payload;
	nulls[ev->is_json ? 12 : 11] = 'n';
	values[13] = ev->has_content_type ? text_datum(ev->content_type) : (Datum) 0;
	values[14] = ev->headers;
	nulls[13] = ev->has_content_type ? ' ' : 'n';
	nulls[14] = ev->has_headers ? ' ' : 'n';
	nulls[3] = failure ? ' ' : 'n';
	values[15] = failure ? CStringGetTextDatum(psprintf("%s%s", failure->sqlstate,
														kept_error(failure))) : (Datum) 0;
	nulls[15] = failure ? ' ' : 'n';
	values[16] = Int32GetDatum(tries->crashes);
	values[17] = Int32GetDatum(tries->deferrals);
	note->parked_id = run_insert(18, types, values, nulls);
}

/*
 * Dead letters since the last idem_parked_take_dead, for the server log: the first ones,
 * and how many there are.  The transaction of some may have been rolled back.
 */
static IdemDeadLetter made[IDEM_DEAD_LETTERS_NAMED];
static int	nmade = 0;

int
idem_parked_take_dead(IdemDeadLetter letters[IDEM_DEAD_LETTERS_NAMED], int *more)
{
	int			n = 0;
	bool		committed = false;

	for (int i = 0; i < Min(nmade, IDEM_DEAD_LETTERS_NAMED); i++)
	{
		committed = TransactionIdDidCommit(XidFromFullTransactionId(made[i].xid));
		if (committed)
			letters[n++] = made[i];
	}
	*more = committed ? Max(nmade - IDEM_DEAD_LETTERS_NAMED, 0) : 0;
	nmade = 0;
	return n;
}

/*
 * The event is dead.  Under on_dead = stop it halts the relay until an operator has
 * looked.  event_id: NULL for an event that was parked before, and is read again.
 */
static void
note_dead(const IdemRelayConfig *config, const pg_uuid_t *event_id, const IdemFailure *failure)
{
	if (event_id != NULL && nmade < IDEM_DEAD_LETTERS_NAMED)
	{
		made[nmade].xid = GetTopFullTransactionId();
		made[nmade].event_id = *event_id;
		strlcpy(made[nmade].sqlstate, failure->sqlstate, sizeof(made[nmade].sqlstate));
	}
	nmade += event_id != NULL;
	if (config->on_dead != IDEM_ON_DEAD_STOP)
		return;
	(void) idem_relay_halt(config->relay_id, IDEM_HALT_DEAD_LETTER, NULL, false);
	idem_relay_config_changed();
}

/*
 * Tell the index of a parked event.  If an operator parked the event meanwhile,
 * the index knows only that the event blocks later ones of its key, until the
 * index is loaded again.
 */
static void
note_parked(IdemParkedIndex *index, const IdemEvent *event, const IdemParkedNote *note)
{
	if (note->parked_id == 0 && idem_parked_has_seq(index, event->seq))
		return;
	idem_parked_index_put(index, event, note);
	index->stale |= note->parked_id == 0;
}

/*
 * Dead events that are not read again need no place in memory.  Once there are many new
 * ones, the table is read again without them.
 */
static void
bound_dead(IdemParkedIndex *index)
{
	index->stale |= index->counts[IDEM_PARKED_DEAD] - index->dead_loaded > idem_max_parked;
}

void
idem_parked_refuse(IdemParkedIndex *index, const IdemRelayConfig *config,
				   const IdemEvent *event, const IdemFailure *failure)
{
	Tries		tries = {.attempts = failure->counts, .deferrals = !failure->counts && failure->backs_off,
	.crashes = failure->crashed || failure->fell};
	bool		dead = is_dead(config, &tries, failure);
	IdemParkedNote note;

	idem_parked_lock_relay(config);
	insert_parked(config, event, dead ? IDEM_PARKED_DEAD : IDEM_PARKED_RETRY, &tries, failure, &note);
	if (dead)
		note_dead(config, note.parked_id != 0 ? &event->event_id : NULL, failure);
	if (index == NULL)
		return;
	note_parked(index, event, &note);
	bound_dead(index);
}

void
idem_parked_wait(IdemParkedIndex *index, const IdemRelayConfig *config, const IdemEvent *event)
{
	Tries		tries = {0};
	IdemParkedNote note;

	idem_parked_lock_relay(config);
	insert_parked(config, event, IDEM_PARKED_WAITING, &tries, NULL, &note);
	note_parked(index, event, &note);
}

int64
idem_parked_in_flight(IdemParkedIndex *index, const IdemRelayConfig *config, const IdemEvent *event)
{
	Tries		tries = {0};
	IdemParkedNote note;

	idem_parked_lock_relay(config);
	insert_parked(config, event, IDEM_PARKED_IN_FLIGHT, &tries, NULL, &note);
	if (note.parked_id == 0)
	{
		index->stale = true;
		return 0;
	}
	note_parked(index, event, &note);
	idem_parked_index_retake(index, event->seq);
	return note.parked_id;
}

/* A copy of a value of a row that is not a text, in the current context. */
static Datum
copied_varlena(HeapTuple tup, TupleDesc desc, int column, bool *present)
{
	bool		isnull;
	Datum		d = SPI_getbinval(tup, desc, column, &isnull);

	*present = !isnull;
	return isnull ? (Datum) 0 : PointerGetDatum(PG_DETOAST_DATUM_COPY(d));
}

/* Has the row of fetch_rows what each parked event has?  The table's constraint says the same. */
static bool
is_sound(HeapTuple tup, TupleDesc desc)
{
	for (int column = 2; column <= 9; column++)
	{
		if (heap_attisnull(tup, column, desc))
			return false;
	}
	return !heap_attisnull(tup, 14, desc) && heap_attisnull(tup, 10, desc) != heap_attisnull(tup, 11, desc);
}

/* A row of fetch_rows as a parked event, in the current context. */
static IdemParkedEvent *
parked_from_row(HeapTuple tup, TupleDesc desc)
{
	IdemParkedEvent *p = palloc0(sizeof(*p));
	IdemEvent  *ev = &p->event;
	bool		has_bytes;
	Datum		bytes;

	p->parked_id = DatumGetInt64(idem_spi_value(tup, desc, 1));
	if (!is_sound(tup, desc))
		idem_parked_report(p->parked_id);
	p->attempts = DatumGetInt32(idem_spi_value(tup, desc, 2));
	ev->xid = DatumGetFullTransactionId(idem_spi_value(tup, desc, 3));
	ev->seq = DatumGetInt64(idem_spi_value(tup, desc, 4));
	ev->event_id = *DatumGetUUIDP(idem_spi_value(tup, desc, 5));
	ev->enqueued_at = DatumGetTimestampTz(idem_spi_value(tup, desc, 6));
	ev->aggregate_type = idem_parked_text(tup, desc, 7);
	ev->aggregate_id = idem_parked_text(tup, desc, 8);
	ev->event_type = idem_parked_text(tup, desc, 9);
	ev->payload = copied_varlena(tup, desc, 10, &ev->is_json);
	bytes = copied_varlena(tup, desc, 11, &has_bytes);
	if (!ev->is_json)
		ev->payload = bytes;
	ev->content_type = idem_parked_text(tup, desc, 12);
	ev->has_content_type = ev->content_type.data != NULL;
	ev->headers = copied_varlena(tup, desc, 13, &ev->has_headers);
	p->crashes = DatumGetInt32(idem_spi_value(tup, desc, 14));
	return p;
}

/*
 * The size of a row's payload, content type and headers, without detoasting
 * them.
 */
static int64
size_of_row(HeapTuple tup, TupleDesc desc)
{
	int64		size = 0;

	for (int column = 10; column <= 13; column++)
	{
		bool		isnull;
		Datum		d = SPI_getbinval(tup, desc, column, &isnull);

		if (!isnull)
			size += toast_raw_datum_size(d);
	}
	return size;
}

static IdemSpiStatement fetch_rows =
IDEM_SPI_STATEMENT("SELECT parked_id, attempts, xid, seq, event_id, enqueued_at, aggregate_type,"
				   " aggregate_id, event_type, payload, payload_bytes, content_type, headers, crashes"
				   " FROM %s.relay_parked WHERE parked_id = ANY ($1) ORDER BY seq");

/*
 * Read the rows of the notes, as many as fit into the batch.  Give the others
 * back to the index.
 */
static List *
fetch_taken(IdemParkedIndex *index, const IdemParkedTaking *taking,
			const IdemParkedNote *notes, const int64 *ids, int n)
{
	MemoryContext caller = CurrentMemoryContext;
	Oid			types[1] = {INT8ARRAYOID};
	Datum		values[1] = {id_array(ids, n)};
	List	   *result = NIL;
	uint64		row = 0;
	uint64		nrows;
	int64		bytes = 0;

	SPI_connect();
	nrows = idem_spi_run_saved(&fetch_rows, 1, types, values, NULL);
	for (int i = 0; i < n; i++)
	{
		HeapTuple	tup = row < nrows ? SPI_tuptable->vals[row] : NULL;
		TupleDesc	desc = SPI_tuptable->tupdesc;
		MemoryContext old;

		/* Somebody deleted the row. */
		if (tup == NULL || DatumGetInt64(idem_spi_value(tup, desc, 1)) != notes[i].parked_id)
		{
			idem_parked_index_drop(index, notes[i].seq);
			continue;
		}
		row++;
		if (result != NIL && bytes >= taking->max_bytes)
		{
			idem_parked_index_give_back(index, notes[i].seq, false);
			continue;
		}
		bytes += size_of_row(tup, desc);
		old = MemoryContextSwitchTo(caller);
		result = lappend(result, parked_from_row(tup, desc));
		MemoryContextSwitchTo(old);
	}
	SPI_finish();
	return result;
}

List *
idem_parked_take(IdemParkedIndex *index, IdemParkedTaking *taking)
{
	int			n;
	IdemParkedNote *notes = idem_parked_index_take(index, taking, &n);
	int64	   *ids = palloc(sizeof(int64) * Max(1, n));
	List	   *result;

	for (int i = 0; i < n; i++)
		ids[i] = notes[i].parked_id;
	result = n == 0 ? NIL : fetch_taken(index, taking, notes, ids, n);
	pfree(ids);
	pfree(notes);
	return result;
}

void
idem_parked_done(const IdemRelayConfig *config, const int64 *parked_ids, int n)
{
	static IdemSpiStatement delete_rows =
	IDEM_SPI_STATEMENT("DELETE FROM %s.relay_parked WHERE parked_id = ANY ($1)");

	if (n == 0)
		return;
	idem_parked_lock_relay(config);
	(void) run_for_ids(&delete_rows, parked_ids, n);
}

static IdemSpiStatement read_attempts =
IDEM_SPI_STATEMENT("SELECT COALESCE(attempts, 0), COALESCE(crashes, 0), COALESCE(deferrals, 0), event_id,"
				   " COALESCE(tried_for, '0'), last_failed_at, next_attempt_at"
				   " FROM %s.relay_parked WHERE parked_id = $1 FOR UPDATE");

static IdemSpiStatement note_failure =
IDEM_SPI_STATEMENT("UPDATE %s.relay_parked SET attempts = $7, crashes = $2, deferrals = $8, batch_row = NULL,"
				   " state = CASE WHEN $3 THEN 'dead' ELSE 'retry' END::%t.parked_state,"
				   " next_attempt_at = $6, sqlstate = $4, error = $5, tried_for = $9,"
				   " first_failed_at = COALESCE(first_failed_at, pg_catalog.clock_timestamp()),"
				   " last_failed_at = pg_catalog.clock_timestamp() WHERE parked_id = $1");

/* A time of read_attempts' row; 0 if it is NULL. */
static TimestampTz
time_of(HeapTuple tup, TupleDesc desc, int column)
{
	bool		isnull;
	Datum		value = SPI_getbinval(tup, desc, column, &isnull);

	return isnull ? 0 : DatumGetTimestampTz(value);
}

/*
 * What read_attempts' row says of the event's tries, with this failure.  A failure that
 * counts adds the time since the one before, but at most twice the backoff that was set
 * then: an outage, a pause or a jump of the clock adds nothing.  The first failure after a
 * redrive has none before it.
 */
static Tries
count_failure(HeapTuple tup, TupleDesc desc, const IdemFailure *failure)
{
	Tries		tries = {
		.attempts = DatumGetInt32(idem_spi_value(tup, desc, 1)),
		.crashes = DatumGetInt32(idem_spi_value(tup, desc, 2)),
		.deferrals = DatumGetInt32(idem_spi_value(tup, desc, 3)),
		.tried_us = Max(idem_interval_us(DatumGetIntervalP(idem_spi_value(tup, desc, 5))), 0)
	};
	TimestampTz failed_at = time_of(tup, desc, 6);
	TimestampTz due = time_of(tup, desc, 7);

	tries.crashes += (failure->crashed || failure->fell) && tries.crashes < PG_INT32_MAX;
	if (!failure->counts)
	{
		tries.deferrals = failure->backs_off ? Min(tries.deferrals, PG_INT16_MAX) + 1 : 0;
		return tries;
	}
	if ((tries.attempts > 0 || tries.deferrals > 0) && failed_at != 0 && due > failed_at)
		tries.tried_us += Max(Min(GetCurrentTimestamp() - failed_at, 2 * (due - failed_at)), 0);
	tries.attempts += tries.attempts < PG_INT32_MAX;
	tries.deferrals = 0;
	return tries;
}

/* Update the row that read_attempts has just read and locked. */
static void
run_note_failure(const IdemRelayConfig *config, int64 parked_id, const IdemFailure *failure,
				 IdemParkedNote *note)
{
	Oid			types[9] = {INT8OID, INT4OID, BOOLOID, TEXTOID, TEXTOID, TIMESTAMPTZOID, INT4OID, INT4OID, INTERVALOID};
	Datum		values[9];
	HeapTuple	tup = SPI_tuptable->vals[0];
	TupleDesc	desc = SPI_tuptable->tupdesc;
	Tries		tries = count_failure(tup, desc, failure);
	pg_uuid_t	event_id = *DatumGetUUIDP(idem_spi_value(tup, desc, 4));
	Interval	tried_for = {.time = tries.tried_us};
	bool		dead = is_dead(config, &tries, failure);

	note->parked_id = parked_id;
	note->state = dead ? IDEM_PARKED_DEAD : IDEM_PARKED_RETRY;
	note->failed_at = GetCurrentTimestamp();
	note->due = next_attempt(config, &tries, failure);
	note->refused = tries.attempts > 0 || tries.deferrals > 0;
	note->lone = tries.crashes > 0 || is_lone(failure);
	note->asked = failure->kind == IDEM_BLAME_ASKED;
	note->deferred = tries.deferrals > 0;
	note->lane = failure->lane;
	note->verdict = failure->verdict;
	values[0] = Int64GetDatum(parked_id);
	values[1] = Int32GetDatum(tries.crashes);
	values[2] = BoolGetDatum(dead);
	values[3] = CStringGetTextDatum(failure->sqlstate);
	values[4] = CStringGetTextDatum(kept_error(failure));
	values[5] = TimestampTzGetDatum(note->due);
	values[6] = Int32GetDatum(tries.attempts);
	values[7] = Int32GetDatum(tries.deferrals);
	values[8] = IntervalPGetDatum(&tried_for);
	idem_spi_run_saved(&note_failure, 9, types, values, NULL);
	if (dead)
		note_dead(config, &event_id, failure);
}

void
idem_parked_refuse_again(IdemParkedIndex *index, const IdemRelayConfig *config, int64 seq,
						 FullTransactionId xid, int64 parked_id, const IdemFailure *failure)
{
	Oid			types[1] = {INT8OID};
	Datum		values[1] = {Int64GetDatum(parked_id)};
	IdemParkedNote note = {.seq = seq, .xid = xid};
	bool		found;

	idem_parked_lock_relay(config);
	SPI_connect();
	found = idem_spi_run_saved(&read_attempts, 1, types, values, NULL) == 1;
	if (found)
		run_note_failure(config, parked_id, failure, &note);
	SPI_finish();
	if (index == NULL)
		return;
	if (found)
	{
		idem_parked_index_failed(index, &note);
		bound_dead(index);
	}
	else
		idem_parked_index_drop(index, seq);
}

void
idem_parked_skipped(const IdemRelayConfig *config, const int64 *parked_ids, int n)
{
	static IdemSpiStatement let_wait =
	IDEM_SPI_STATEMENT("UPDATE %s.relay_parked SET state = 'waiting', next_attempt_at = NULL,"
					   " batch_row = NULL WHERE parked_id = ANY ($1)");

	if (n == 0)
		return;
	idem_parked_lock_relay(config);
	(void) run_for_ids(&let_wait, parked_ids, n);
}

void
idem_parked_mark(const int64 *parked_ids, int n, int64 batch_row, int64 life)
{
	static IdemSpiStatement mark_rows =
	IDEM_SPI_STATEMENT("UPDATE %s.relay_parked SET batch_row = $2, batch_life = $3"
					   " WHERE parked_id = ANY ($1)");
	Oid			types[3] = {INT8ARRAYOID, INT8OID, INT8OID};
	Datum		values[3] = {id_array(parked_ids, n), Int64GetDatum(batch_row), Int64GetDatum(life)};

	(void) run(&mark_rows, 3, types, values);
}

bool
idem_parked_resolve(const IdemRelayConfig *config, int64 stored_row, int64 life)
{
	static IdemSpiStatement delete_stored =
	IDEM_SPI_STATEMENT("DELETE FROM %s.relay_parked WHERE relay_id = $1 AND batch_row <= $2 AND batch_life = $3");
	Oid			types[3] = {INT4OID, INT8OID, INT8OID};
	Datum		values[3] = {Int32GetDatum(config->relay_id), Int64GetDatum(stored_row),
	Int64GetDatum(life)};

	idem_parked_lock_relay(config);
	return run(&delete_stored, 3, types, values) > 0;
}

void
idem_parked_restamp(int relay_id)
{
	static IdemSpiStatement restamp =
	IDEM_SPI_STATEMENT("UPDATE %s.relay_parked SET xid = pg_catalog.pg_current_xact_id() WHERE relay_id = $1");

	(void) run_for_relay(&restamp, relay_id);
}

int64
idem_parked_greatest_seq(void)
{
	int64		greatest;

	SPI_connect();
	idem_spi_run_latest("SELECT COALESCE(pg_catalog.max(seq), 0) FROM %s.relay_parked", 0, NULL, NULL);
	greatest = DatumGetInt64(idem_spi_value(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1));
	SPI_finish();
	return greatest;
}
