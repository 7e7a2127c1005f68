/*-------------------------------------------------------------------------
 *
 * blocked.c
 *		Keys whose events wait in the outbox, behind a refused event.
 *
 * Copies of all events that wait behind one refused event would have no bound.  So
 * a key with IDEM_BLOCKED_COPIES waiting copies, or any key once max_parked copies
 * wait, is blocked: it has a row that says from which position on its events wait in
 * the outbox.  The relay passes these events without writing anything.  The
 * outbox keeps them as it keeps events that no relay has read (retention.c).
 *
 * Invariant: the events that a key has in the outbox are those that the relay has
 * read ("read") and that the position of its row, "from", has not passed.  None of
 * them is parked, but by relay_replay.
 *
 * When the last parked event of the key is done, the key is free, and a refill
 * reads its next events from the outbox, parks them as waiting ones, and moves
 * "from" past them, in one transaction.  From there on they are parked events
 * like others.  Once "from" has come to "read", the row goes, in the same
 * transaction, and the key's events are read in their turn again.
 *
 * A refill is one scan for all free keys that it can serve: it begins at the
 * earliest "from", goes to the next place where another key's "from" stands, and serves
 * each key on the way.  So keys come together, and 10,000 keys do not take 10,000 scans.
 *
 * What a crash leaves: a row that is older than what the worker knew says that
 * more events wait, but none of the key is in between.  If the relay's position goes
 * back to before "from", the events in between come from the outbox in their turn.
 * If the position is lost, relay_adopt forgets the rows, as it sends all that the
 * outbox has.  A dump leaves them out for the same reason.
 *
 * LOCKING: rows of relay_blocked are changed by their relay's worker, and go
 * with the relay.  The worker of a database locks a row without waiting before
 * it parks the first event of its key.  Under on_dead = stop the relay's row is
 * locked before; see parked.c.
 *
 * MEMORY: the index's context; a reader for the refills, as large as the
 * relay's own.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/position/blocked.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "relay/position/blocked.h"
#include "relay/position/parked.h"
#include "relay/position/position.h"
#include "shared/clock.h"
#include "shared/fault.h"
#include "shared/spi.h"

/* Most events that a refill reads, and how long it may take; the clock is read now and then. */
#define MAX_SCANNED 100000
#define REFILL_MS 10
#define LOOK_EVERY 256

static IdemBlockedKey *
find_key(const IdemParkedIndex *index, const IdemEvent *event)
{
	if (index->blocked == NULL || hash_get_num_entries(index->blocked) == 0)
		return NULL;
	return idem_parked_blocked_key(index, idem_parked_key_hash(event->aggregate_type, event->aggregate_id));
}

/* Is the event, which has the key's hash, one that the key has in the outbox? */
static bool
has_event(const IdemBlockedKey *key, FullTransactionId xid, int64 seq)
{
	IdemPosition from = idem_blocked_from(key);

	return !idem_position_passed(&from, xid, seq);
}

bool
idem_blocked_has(const IdemParkedIndex *index, const IdemEvent *event)
{
	IdemBlockedKey *key = find_key(index, event);

	return key != NULL && has_event(key, event->xid, event->seq);
}

bool
idem_blocked_has_at(const IdemParkedIndex *index, uint64 hash, FullTransactionId xid, int64 seq)
{
	IdemBlockedKey *key = idem_parked_blocked_key(index, hash);

	return key != NULL && has_event(key, xid, seq);
}

/*
 * Rows
 */

/* Insert the row of a key; returns its id. */
static int64
insert_row(const IdemRelayConfig *config, const IdemEvent *event, const IdemPosition *from)
{
	static IdemSpiStatement insert =
	IDEM_SPI_STATEMENT("INSERT INTO %s.relay_blocked (relay_id, aggregate_type, aggregate_id, base, target, seq)"
					   " VALUES ($1, $2, $3, $4, $5, $6) RETURNING blocked_id");
	Oid			types[6] = {INT4OID, TEXTOID, TEXTOID, PG_SNAPSHOTOID, PG_SNAPSHOTOID, INT8OID};
	Datum		values[6] = {
		Int32GetDatum(config->relay_id),
		PointerGetDatum(cstring_to_text_with_len(event->aggregate_type.data, event->aggregate_type.len)),
		PointerGetDatum(cstring_to_text_with_len(event->aggregate_id.data, event->aggregate_id.len)),
		PointerGetDatum(from->base), PointerGetDatum(from->target), Int64GetDatum(from->seq)
	};
	int64		id;

	SPI_connect();
	(void) idem_spi_run_saved(&insert, 6, types, values, NULL);
	id = DatumGetInt64(idem_spi_value(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1));
	SPI_finish();
	return id;
}

/* The numbers as an int8[]. */
static Datum
int8_array(const int64 *numbers, int n)
{
	Datum	   *elems = palloc(sizeof(Datum) * Max(n, 1));

	for (int i = 0; i < n; i++)
		elems[i] = Int64GetDatum(numbers[i]);
	return PointerGetDatum(construct_array(elems, n, INT8OID, sizeof(int64), FLOAT8PASSBYVAL,
										   TYPALIGN_DOUBLE));
}

/*
 * Let n keys' events begin after a position of this difference, each at its own seq.
 */
static void
update_rows(const int64 *ids, const int64 *seqs, int n, const IdemPosition *from)
{
	static IdemSpiStatement update =
	IDEM_SPI_STATEMENT("UPDATE %s.relay_blocked b SET base = $3, target = $4, seq = u.seq"
					   " FROM (SELECT pg_catalog.unnest($1) AS id, pg_catalog.unnest($2) AS seq) u WHERE b.blocked_id = u.id");
	Oid			types[4] = {INT8ARRAYOID, INT8ARRAYOID, PG_SNAPSHOTOID, PG_SNAPSHOTOID};
	Datum		values[4] = {int8_array(ids, n), int8_array(seqs, n), PointerGetDatum(from->base),
	PointerGetDatum(from->target)};
	char		nulls[5] = "    ";

	if (n == 0)
		return;
	nulls[3] = from->target == NULL ? 'n' : ' ';
	SPI_connect();
	(void) idem_spi_run_saved(&update, 4, types, values, nulls);
	SPI_finish();
}

/* Lock these rows.  False if another transaction has one of them locked, and nobody waits. */
static bool
lock_rows(const int64 *ids, int n, bool waits)
{
	static IdemSpiStatement lock =
	IDEM_SPI_STATEMENT("SELECT FROM %s.relay_blocked WHERE blocked_id = ANY ($1) ORDER BY blocked_id FOR UPDATE");
	static IdemSpiStatement try_lock =
	IDEM_SPI_STATEMENT("SELECT FROM %s.relay_blocked WHERE blocked_id = ANY ($1) FOR UPDATE SKIP LOCKED");
	Oid			types[1] = {INT8ARRAYOID};
	Datum		values[1] = {int8_array(ids, n)};
	uint64		locked;

	if (n == 0)
		return true;
	SPI_connect();
	locked = idem_spi_run_saved(waits ? &lock : &try_lock, 1, types, values, NULL);
	SPI_finish();
	return locked == (uint64) n;
}

/* Delete these rows, which are locked. */
static void
delete_rows(const int64 *ids, int n)
{
	static IdemSpiStatement remove_rows =
	IDEM_SPI_STATEMENT("DELETE FROM %s.relay_blocked WHERE blocked_id = ANY ($1)");
	Oid			types[1] = {INT8ARRAYOID};
	Datum		values[1] = {int8_array(ids, n)};

	if (n == 0)
		return;
	SPI_connect();
	(void) idem_spi_run_saved(&remove_rows, 1, types, values, NULL);
	SPI_finish();
}

void
idem_blocked_forget(int relay_id)
{
	Oid			types[1] = {INT4OID};
	Datum		values[1] = {Int32GetDatum(relay_id)};

	SPI_connect();
	(void) idem_spi_run("DELETE FROM %s.relay_blocked WHERE relay_id = $1", 1, types, values, NULL);
	SPI_finish();
}

typedef struct Base
{
	int			relay_id;		/* hash key */
	IdemSnap   *base;
} Base;

HTAB *
idem_blocked_bases(void)
{
	MemoryContext caller = CurrentMemoryContext;
	HASHCTL		ctl = {.keysize = sizeof(int), .entrysize = sizeof(Base), .hcxt = caller};
	HTAB	   *bases = hash_create("blocked keys", 16, &ctl, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	uint64		n;

	/*
	 * Not older than the positions, which the caller has read from the log as
	 * it was then.
	 */
	SPI_connect();
	PushActiveSnapshot(GetLatestSnapshot());
	n = idem_spi_read("SELECT relay_id, base::pg_catalog.pg_snapshot FROM"
					  " (SELECT DISTINCT relay_id, base::pg_catalog.text AS base FROM %s.relay_blocked"
					  "   WHERE relay_id IS NOT NULL AND base IS NOT NULL) d", 0, NULL, NULL);
	PopActiveSnapshot();
	for (uint64 i = 0; i < n; i++)
	{
		int			relay_id = DatumGetInt32(idem_spi_value(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 1));
		IdemSnap   *snap = (IdemSnap *) PG_DETOAST_DATUM(idem_spi_value(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 2));
		bool		found;
		Base	   *base = hash_search(bases, &relay_id, HASH_ENTER, &found);

		CHECK_FOR_INTERRUPTS();
		if (!found)
			base->base = NULL;
		if (base->base == NULL || idem_position_sees_more(base->base, snap))
			idem_snap_assign(caller, &base->base, snap);
	}
	SPI_finish();
	return bases;
}

IdemSnap *
idem_blocked_base(HTAB *bases, int relay_id)
{
	Base	   *base = hash_search(bases, &relay_id, HASH_FIND, NULL);

	return base == NULL ? NULL : base->base;
}

bool
idem_blocked_keeps(int relay_id, const IdemEvent *event)
{
	Oid			types[3] = {INT4OID, TEXTOID, TEXTOID};
	Datum		values[3] = {
		Int32GetDatum(relay_id),
		PointerGetDatum(cstring_to_text_with_len(event->aggregate_type.data, event->aggregate_type.len)),
		PointerGetDatum(cstring_to_text_with_len(event->aggregate_id.data, event->aggregate_id.len))
	};
	bool		keeps = false;

	SPI_connect();
	if (idem_spi_run("SELECT base, target, seq FROM %s.relay_blocked"
					 " WHERE relay_id = $1 AND aggregate_type = $2 AND aggregate_id = $3", 3, types, values, NULL) > 0)
	{
		HeapTuple	tup = SPI_tuptable->vals[0];
		TupleDesc	desc = SPI_tuptable->tupdesc;
		bool		isnull;
		Datum		target = SPI_getbinval(tup, desc, 2, &isnull);
		IdemPosition from = {(IdemSnap *) PG_DETOAST_DATUM(idem_spi_value(tup, desc, 1)),
			isnull ? NULL : (IdemSnap *) PG_DETOAST_DATUM(target),
		DatumGetInt64(idem_spi_value(tup, desc, 3))};

		keeps = !idem_position_passed(&from, event->xid, event->seq);
	}
	SPI_finish();
	return keeps;
}

/*
 * Reading
 */

static IdemReader *
reader_of(IdemParkedIndex *index)
{
	if (index->reader == NULL)
		index->reader = idem_reader_create(GetMemoryChunkContext(index));
	return index->reader;
}

/*
 * The copies of the key that are after the position, which a refill will bring again from the
 * outbox.  NULL: one of them was tried, or its event is not in the outbox as it was (relay_adopt).
 */
static IdemParkedNote *
list_copies_after(IdemParkedIndex *index, uint64 hash, const IdemPosition *from, int *n)
{
	IdemReader *reader = reader_of(index);
	IdemParkedNote *notes = idem_parked_after(index, hash, from, n);
	IdemEvent	event;

	for (int i = 0; notes != NULL && i < *n; i++)
	{
		CHECK_FOR_INTERRUPTS();
		if (!idem_reader_fetch(reader, notes[i].xid, notes[i].seq, &event))
		{
			pfree(notes);
			notes = NULL;
		}
	}
	idem_reader_suspend(reader);
	return notes;
}

/*
 * Let the event, and all of its key that the relay reads later, wait in the outbox.  False
 * if it cannot: another transaction has locked a row, or a later event was tried already.
 *
 * Copies of later events may be there: events that the sink passed over for an earlier
 * one of their key come here after events that the relay has read since; and an
 * operator, or a crash, may have moved the relay's position back.  The copies are given up.
 */
static bool
block_key(IdemParkedIndex *index, const IdemRelayConfig *config, uint64 hash,
		  const IdemEvent *event, const IdemPosition *from)
{
	IdemBlockedKey *key = find_key(index, event);
	int			n;
	IdemParkedNote *copies = list_copies_after(index, hash, from, &n);
	int64	   *ids;

	if (copies == NULL)
		return false;
	ids = palloc(sizeof(int64) * Max(n, 1));
	for (int i = 0; i < n; i++)
		ids[i] = copies[i].parked_id;
	if (!idem_parked_try_lock(config, ids, n) || (key != NULL && !lock_rows(&key->blocked_id, 1, false)))
		return false;
	for (int i = 0; i < n; i++)
		idem_parked_index_drop(index, copies[i].seq);
	idem_parked_done(config, ids, n);
	if (key == NULL)
		(void) idem_blocked_add(index, hash, insert_row(config, event, from), from);
	else
	{
		update_rows(&key->blocked_id, &from->seq, 1, from);
		idem_blocked_stand(index, key, from);
	}

	/*
	 * Nothing else would free a key without parked events: the event before
	 * may be dead already and block nothing, and all others may be copies
	 * that were given up.
	 */
	idem_blocked_free_if_alone(index, hash);
	IDEM_FAULT_POINT("relay-key-blocked");
	return true;
}

void
idem_blocked_wait(IdemParkedIndex *index, const IdemRelayConfig *config,
				  const IdemEvent *event, const IdemPosition *read)
{
	uint64		hash = idem_parked_key_hash(event->aggregate_type, event->aggregate_id);
	IdemPosition from = {read->base, read->target, event->seq - 1};

	if ((idem_parked_queued(index, hash) <= IDEM_BLOCKED_COPIES &&
		 index->counts[IDEM_PARKED_WAITING] < idem_max_parked) ||
		!index->by_key || !block_key(index, config, hash, event, &from))
		idem_parked_wait(index, config, event);
}

/*
 * Refills
 */

typedef struct Refill
{
	IdemParkedIndex *index;
	const IdemRelayConfig *config;
	const IdemPosition *read;
	bool		waits;
	IdemPosition pos;			/* the refill has come so far */
	int			joined;			/* keys that it still serves */
	int64		room;			/* copies that may be added */
	bool		ended;			/* the difference has no more events */
	bool		at_read;		/* the next event is one that the relay has
								 * not read */
	bool		locked;			/* a row is another transaction's */
	int64	   *ids;			/* rows of keys with copies, and the numbers
								 * up to which their events are parked */
	int64	   *seqs;
	int			nids;
} Refill;

/* Does the snapshot see all that "than" sees?  Snapshots of one log are ordered. */
static bool
sees_all(const IdemSnap *snap, const IdemSnap *than)
{
	return !idem_position_sees_more(than, snap);
}

/* Is position a before b, in the order in which refills begin? */
static bool
is_before(const IdemPosition *a, const IdemPosition *b)
{
	if (!sees_all(a->base, b->base))
		return true;
	if (!sees_all(b->base, a->base))
		return false;
	return a->target == NULL ? b->target != NULL : b->target != NULL && a->seq < b->seq;
}

/* The end of the difference after "base", as far as the relay has read; NULL: it has read no more. */
static IdemSnap *
next_target(const IdemPosition *read, const IdemSnap *base)
{
	IdemPositionRow *tick;

	if (!idem_position_sees_more(read->base, base))
		return read->target != NULL && idem_position_sees_more(read->target, base) ? read->target : NULL;
	tick = idem_position_tick_after(base);
	return tick != NULL && idem_position_sees_more(read->base, tick->pos.base) ? tick->pos.base : read->base;
}

/*
 * Where the difference of a refill that begins at "base" ends: no further than the next place
 * where another key's position has a snapshot.  So each key is in the difference with its
 * own position, or behind it.
 */
static IdemSnap *
common_target(const Refill *r, const IdemSnap *base)
{
	IdemSnap   *target = next_target(r->read, base);
	dlist_iter	iter;

	if (target == NULL)
		return NULL;
	dlist_foreach(iter, &r->index->free_keys)
	{
		IdemPosition from = idem_blocked_from(dlist_container(IdemBlockedKey, node, iter.cur));

		if (idem_position_sees_more(from.base, base) && idem_position_sees_more(target, from.base))
			target = from.base;
		if (from.target != NULL && idem_position_sees_more(from.target, base) &&
			idem_position_sees_more(target, from.target))
			target = from.target;
	}
	return idem_snap_copy(target);
}

/* Does the key stand in the refill's difference, or at its beginning? */
static bool
can_join(const IdemPosition *from, const IdemPosition *start)
{
	if (!idem_snap_equal(from->base, start->base))
		return false;
	if (from->target == NULL || start->target == NULL)
		return from->target == NULL && start->seq == 0;
	return idem_snap_equal(from->target, start->target) && from->seq >= start->seq;
}

/* Find the start, and the keys that join. */
static void
begin_refill(Refill *r)
{
	IdemBlockedKey *first = NULL;
	dlist_iter	iter;

	dlist_foreach(iter, &r->index->free_keys)
	{
		IdemBlockedKey *key = dlist_container(IdemBlockedKey, node, iter.cur);
		IdemPosition from = idem_blocked_from(key);

		CHECK_FOR_INTERRUPTS();
		if (first == NULL || is_before(&from, &r->pos))
		{
			first = key;
			r->pos = from;
		}
	}
	/* The keys may let the snapshots go before the refill ends. */
	r->pos.base = idem_snap_copy(r->pos.base);
	r->pos.target = r->pos.target == NULL ? NULL : idem_snap_copy(r->pos.target);
	if (r->pos.target == NULL)
	{
		r->pos.target = common_target(r, r->pos.base);
		r->pos.seq = 0;
	}
	dlist_foreach(iter, &r->index->free_keys)
	{
		IdemBlockedKey *key = dlist_container(IdemBlockedKey, node, iter.cur);
		IdemPosition from = idem_blocked_from(key);

		CHECK_FOR_INTERRUPTS();
		key->joins = can_join(&from, &r->pos);
		key->copied = 0;
		r->joined += key->joins;
	}
}

/* How many events of a key are parked at a time? */
static int
run_of(const Refill *r, const IdemBlockedKey *key)
{
	return r->index->by_key ? Min(Max(key->window, 1), r->config->batch_events) : r->config->batch_events;
}

/* Park the event, if a key that joins has it.  False if a lock is in the way. */
static bool
take_event(Refill *r, const IdemEvent *event)
{
	IdemBlockedKey *key = find_key(r->index, event);

	if (key == NULL || !key->joins || !has_event(key, event->xid, event->seq) || !idem_relay_wants(r->config, event) ||
		idem_parked_has_seq(r->index, event->seq))
		return true;
	if (key->copied == 0)
	{
		if (!lock_rows(&key->blocked_id, 1, r->waits))
			return false;
		r->ids[r->nids++] = key->blocked_id;
	}
	idem_parked_wait(r->index, r->config, event);
	IDEM_FAULT_POINT("relay-refilled-event");
	r->room--;
	if (++key->copied == run_of(r, key))
	{
		IdemPosition from = {r->pos.base, r->pos.target, event->seq};

		idem_blocked_stand(r->index, key, &from);
		key->joins = false;
		r->joined--;
	}
	return true;
}

/* Read events of the difference, to its end, or as long as it may take. */
static void
scan(Refill *r)
{
	IdemClock	until = idem_clock_plus_ms(idem_clock(), REFILL_MS);
	IdemEvent	event;

	idem_reader_seek(reader_of(r->index), &r->pos);
	for (int scanned = 1; r->joined > 0 && r->room > 0 && scanned <= MAX_SCANNED; scanned++)
	{
		CHECK_FOR_INTERRUPTS();
		if (scanned % LOOK_EVERY == 0 && idem_clock() >= until)
			break;
		r->ended = !idem_reader_next(r->index->reader, &event);
		if (r->ended)
			break;
		r->at_read = !idem_position_passed(r->read, event.xid, event.seq);
		if (r->at_read)
			break;
		r->locked = !take_event(r, &event);
		if (r->locked)
			break;
		r->pos.seq = event.seq;
	}
	idem_reader_suspend(r->index->reader);
}

/*
 * Is nothing between pos and "read"?  In the difference that the relay reads, events that
 * it has not read come after those that it has.
 */
static bool
has_caught_up(const Refill *r, const IdemPosition *pos)
{
	if (pos->target == NULL)
		return next_target(r->read, pos->base) == NULL;
	return r->at_read && r->read->target != NULL && idem_snap_equal(pos->base, r->read->base) &&
		idem_snap_equal(pos->target, r->read->target);
}

/* List the keys that the refill served to its end. */
static IdemBlockedKey **
list_joined(Refill *r, int *n)
{
	IdemBlockedKey **keys = palloc(sizeof(*keys) * Max(r->joined, 1));
	HASH_SEQ_STATUS status;
	IdemBlockedKey *key;

	*n = 0;
	hash_seq_init(&status, r->index->blocked);
	while ((key = hash_seq_search(&status)) != NULL)
	{
		if (key->joins)
			keys[(*n)++] = key;
	}
	return keys;
}

/*
 * Move the rows of the keys with copies, in the difference that was read.  The rows of
 * other keys stay: an older position says the same of them.
 */
static void
write_rows(Refill *r)
{
	HASH_SEQ_STATUS status;
	IdemBlockedKey *key;
	int			n = 0;

	if (r->nids == 0)
		return;
	hash_seq_init(&status, r->index->blocked);
	while ((key = hash_seq_search(&status)) != NULL)
	{
		if (key->copied == 0)
			continue;
		r->ids[n] = key->blocked_id;
		r->seqs[n++] = idem_blocked_from(key).target != NULL ? key->seq : r->pos.seq;
		key->copied = 0;
	}
	update_rows(r->ids, r->seqs, n, &r->pos);
}

/*
 * The keys that joined stand where the refill has come.  If that is where the relay reads,
 * they are not blocked any more.
 */
static void
end_refill(Refill *r)
{
	IdemPosition whole = {r->pos.target, NULL, 0};
	IdemPosition at = r->ended ? whole : r->pos;
	int			n;
	IdemBlockedKey **keys = list_joined(r, &n);
	int64	   *gone = palloc(sizeof(int64) * Max(n, 1));
	bool		done;

	for (int i = 0; i < n; i++)
	{
		keys[i]->joins = false;
		gone[i] = keys[i]->blocked_id;
	}
	done = has_caught_up(r, &at) && !r->locked;
	if (done && !lock_rows(gone, n, r->waits))
	{
		r->locked = true;
		done = false;
	}
	for (int i = 0; i < n; i++)
	{
		IdemPosition stand = at;

		/* A key may stand further on in the difference. */
		if (keys[i]->difference != NULL && at.target != NULL && idem_blocked_from(keys[i]).target != NULL)
			stand.seq = Max(at.seq, keys[i]->seq);
		if (!done)
			idem_blocked_stand(r->index, keys[i], &stand);
		else
			idem_blocked_remove(r->index, keys[i]);
	}
	if (done)
		delete_rows(gone, n);
	r->index->refill_waits = r->at_read && !done && !r->locked;

	/* The row may be gone; a new look tells. */
	r->index->stale |= r->locked;
}

bool
idem_blocked_refill(IdemParkedIndex *index, const IdemRelayConfig *config,
					const IdemPosition *read, bool waits, bool *wrote)
{
	Refill		r = {.index = index, .config = config, .read = read, .waits = waits};
	long		nfree = hash_get_num_entries(index->blocked);

	r.room = Max(idem_max_parked - index->counts[IDEM_PARKED_WAITING], 1);
	r.ids = palloc(sizeof(int64) * nfree);
	r.seqs = palloc(sizeof(int64) * nfree);
	idem_parked_lock_relay(config);
	begin_refill(&r);
	if (r.pos.target != NULL)
		scan(&r);
	IDEM_FAULT_POINT("relay-refill-read");
	end_refill(&r);
	write_rows(&r);
	IDEM_FAULT_POINT("relay-refilled");
	*wrote = true;
	return !r.locked;
}
