/*-------------------------------------------------------------------------
 *
 * parked.c
 *		Events a relay took out of the log's order: to be retried, or dead.
 *
 * An event is parked in the same transaction in which the position passes it,
 * or in an earlier one, so that a crash finds it in the log or here, never in
 * neither.  Parked events are copies: the log may be emptied behind them.
 *
 * In key order an event may be sent while no earlier one of its aggregate is
 * parked and not yet due, or dead and blocking; the order among them is seq,
 * which for producers that lock their aggregate is the order of commit.
 *
 * This is not the hot path: rows here are updated and deleted, as many as
 * messages were refused.
 *
 * LOCKING: the relay's row in "relays" before rows here, as operators' functions
 * lock them.  A worker needs the relay's row only where a dead event halts the
 * relay, and cannot know before whether one will be: under on_dead = stop each
 * transaction that changes rows here locks the relay's row first.
 *
 * MEMORY: the index is bounded by idempotency.max_parked plus one batch.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/parked.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "common/hashfn.h"
#include "executor/spi.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"
#include "utils/xid8.h"

#include "compat.h"
#include "relay/parked.h"
#include "relay/spi.h"
#include "relay/wake.h"
#include "shared/clock.h"
#include "shared/error.h"

/*
 * The time of an event has come, by the wall clock, since other servers may
 * read it; and also if the clock was set back behind the failure that the time
 * was reckoned from.  NULL while it waits for another.
 */
#define IS_DUE(p) \
	"(" p ".next_attempt_at <= pg_catalog.statement_timestamp()" \
	" OR " p ".last_failed_at > pg_catalog.statement_timestamp())"

int			idem_max_parked = 10000;

/* Of both parts, so that where one ends counts. */
static uint64
key_hash(IdemEventText type, IdemEventText id)
{
	return hash_combine64(hash_bytes_extended((const unsigned char *) type.data, type.len, 0),
						  hash_bytes_extended((const unsigned char *) id.data, id.len, 1));
}

IdemParkedIndex *
idem_parked_index_create(MemoryContext parent)
{
	MemoryContext cxt = AllocSetContextCreate(parent, "parked events",
											  ALLOCSET_DEFAULT_SIZES);
	IdemParkedIndex *index = MemoryContextAllocZero(parent, sizeof(*index));

	index->cxt = cxt;
	return index;
}

static HTAB *
make_set(MemoryContext cxt, const char *name)
{
	HASHCTL		ctl;

	memset(&ctl, 0, sizeof(ctl));
	ctl.keysize = sizeof(uint64);
	ctl.entrysize = sizeof(uint64);
	ctl.hcxt = cxt;
	return hash_create(name, 64, &ctl, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
}

HTAB *
idem_parked_keys_create(MemoryContext cxt)
{
	return make_set(cxt, "parked keys");
}

void
idem_parked_keys_add(HTAB *keys, const IdemEvent *event)
{
	uint64		hash = key_hash(event->aggregate_type, event->aggregate_id);

	(void) hash_search(keys, &hash, HASH_ENTER, NULL);
}

bool
idem_parked_keys_have(HTAB *keys, const IdemEvent *event)
{
	uint64		hash = key_hash(event->aggregate_type, event->aggregate_id);

	return hash_search(keys, &hash, HASH_FIND, NULL) != NULL;
}

static void
add_to_index(IdemParkedIndex *index, const IdemRelayConfig *config,
			 HeapTuple tup, TupleDesc desc)
{
	uint64		seq = (uint64) DatumGetInt64(idem_spi_value(tup, desc, 1));
	char	   *state = idem_spi_text(tup, desc, 2);
	bool		dead = strcmp(state, "dead") == 0;

	(void) hash_search(index->seqs, &seq, HASH_ENTER, NULL);
	if (config->ordering == IDEM_ORDERING_KEY &&
		(!dead || config->on_dead != IDEM_ON_DEAD_SKIP))
	{
		char	   *type = idem_spi_text(tup, desc, 3);
		char	   *id = idem_spi_text(tup, desc, 4);
		IdemEventText t = {type, strlen(type)};
		IdemEventText i = {id, strlen(id)};
		uint64		hash = key_hash(t, i);

		(void) hash_search(index->keys, &hash, HASH_ENTER, NULL);
	}
	index->total++;
}

void
idem_parked_index_load(IdemParkedIndex *index, const IdemRelayConfig *config)
{
	Oid			types[3] = {INT4OID, BOOLOID, BOOLOID};
	Datum		values[3] = {Int32GetDatum(config->relay_id)};
	uint64		n;

	MemoryContextReset(index->cxt);
	index->keys = idem_parked_keys_create(index->cxt);
	index->seqs = make_set(index->cxt, "parked seqs");
	index->total = 0;
	index->next_due = 0;

	SPI_connect();
	n = idem_spi_run("SELECT seq, state::text, aggregate_type, aggregate_id FROM %s.relay_parked WHERE relay_id = $1",
					 1, types, values, NULL);
	for (uint64 i = 0; i < n; i++)
		add_to_index(index, config, SPI_tuptable->vals[i], SPI_tuptable->tupdesc);

	/*
	 * An event behind another of its key is due when that one is, or is gone;
	 * its own time, which may have come, would be looked at over and over.
	 */
	values[1] = BoolGetDatum(config->ordering == IDEM_ORDERING_KEY);
	values[2] = BoolGetDatum(config->on_dead != IDEM_ON_DEAD_SKIP);
	n = idem_spi_run("SELECT pg_catalog.min(CASE WHEN " IS_DUE("p") " THEN 0 ELSE"
					 " pg_catalog.ceil(1000 * EXTRACT(epoch FROM p.next_attempt_at -"
					 "  pg_catalog.statement_timestamp()))::bigint END) FROM %s.relay_parked p"
					 " WHERE p.relay_id = $1 AND p.state = 'retry'"
					 " AND NOT ($2 AND EXISTS (SELECT FROM %s.relay_parked q"
					 "  WHERE q.relay_id = p.relay_id AND q.aggregate_type = p.aggregate_type"
					 "  AND q.aggregate_id = p.aggregate_id AND q.seq < p.seq"
					 "  AND (q.state = 'retry' OR (q.state = 'dead' AND $3))))",
					 3, types, values, NULL);
	if (index->total > 0 && n == 1)
	{
		bool		isnull;
		Datum		due = SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc,
										1, &isnull);

		if (!isnull)
			index->next_due = idem_clock_plus_ms(idem_clock(), DatumGetInt64(due));
	}
	SPI_finish();
}

void
idem_parked_force_flush(void)
{
	ForceSyncCommit();
}

/* With its attempts, this failure being the last of them, is the event dead? */
static bool
is_dead(const IdemRelayConfig *config, int attempts, const IdemFailure *failure)
{
	return failure->hopeless || attempts >= config->max_attempts;
}

void
idem_parked_index_add(IdemParkedIndex *index, const IdemRelayConfig *config,
					  const IdemEvent *event, const IdemFailure *failure)
{
	uint64		seq = (uint64) event->seq;
	bool		dead = is_dead(config, failure->counts ? 1 : 0, failure);

	(void) hash_search(index->seqs, &seq, HASH_ENTER, NULL);
	if (config->ordering == IDEM_ORDERING_KEY &&
		(!dead || config->on_dead != IDEM_ON_DEAD_SKIP))
		idem_parked_keys_add(index->keys, event);
	index->total++;
}

bool
idem_parked_has_seq(const IdemParkedIndex *index, int64 seq)
{
	uint64		key = (uint64) seq;

	return index->total > 0 && hash_search(index->seqs, &key, HASH_FIND, NULL) != NULL;
}

bool
idem_parked_blocks(const IdemParkedIndex *index, const IdemEvent *event)
{
	return index->total > 0 && idem_parked_keys_have(index->keys, event);
}

/* A statement whose only parameter is the relay. */
static void
run_for_relay(int relay_id, const char *sql)
{
	Oid			types[1] = {INT4OID};
	Datum		values[1] = {Int32GetDatum(relay_id)};

	SPI_connect();
	idem_spi_run(sql, 1, types, values, NULL);
	SPI_finish();
}

/* See LOCKING in the file header. */
static void
lock_relay(const IdemRelayConfig *config)
{
	if (config->on_dead == IDEM_ON_DEAD_STOP)
		run_for_relay(config->relay_id,
					  "SELECT FROM %s.relays WHERE relay_id = $1 FOR NO KEY UPDATE");
}

static Datum
text_datum(IdemEventText t)
{
	return PointerGetDatum(cstring_to_text_with_len(t.data, t.len));
}

static TimestampTz
next_attempt(const IdemRelayConfig *config, int attempts, const IdemFailure *failure)
{
	int64		ms = failure->retry_after_ms;

	if (failure->counts)
		ms = Max(ms, idem_relay_backoff_ms(config, attempts - 1));
	return TimestampTzPlusMilliseconds(GetCurrentTimestamp(), ms);
}

/* Does this process insert a row of its own, and no restore? */
static bool is_parking = false;

bool
idem_parked_is_parking(void)
{
	return is_parking;
}

static void
run_insert(int nargs, Oid *types, Datum *values, const char *nulls)
{
	is_parking = true;
	PG_TRY();
	{
		idem_spi_run("INSERT INTO %s.relay_parked (relay_id, state, attempts, next_attempt_at,"
					 " xid, seq, event_id, enqueued_at, aggregate_type, aggregate_id, event_type,"
					 " payload, payload_bytes, content_type, headers, sqlstate, error,"
					 " first_failed_at, last_failed_at, crashes)"
					 " VALUES ($1, $2::%t.parked_state, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13,"
					 " $14, $15, pg_catalog.substr($16, 1, 5), pg_catalog.substr($16, 6),"
					 " CASE WHEN $16 IS NOT NULL THEN pg_catalog.clock_timestamp() END,"
					 " CASE WHEN $16 IS NOT NULL THEN pg_catalog.clock_timestamp() END, $17)"
					 " ON CONFLICT (relay_id, event_id) DO NOTHING",
					 nargs, types, values, nulls);
	}
	PG_FINALLY();
	{
		is_parking = false;
	}
	PG_END_TRY();
}

static void
insert_parked(const IdemRelayConfig *config, const IdemEvent *ev, const char *state,
			  int attempts, const IdemFailure *failure)
{
	Oid			types[17] = {INT4OID, TEXTOID, INT4OID, TIMESTAMPTZOID, XID8OID,
		INT8OID, UUIDOID, TIMESTAMPTZOID, TEXTOID, TEXTOID, TEXTOID, JSONBOID,
	BYTEAOID, TEXTOID, JSONBOID, TEXTOID, INT4OID};
	Datum		values[17];
	char		nulls[18];

	memset(nulls, ' ', 17);
	nulls[17] = '\0';
	values[0] = Int32GetDatum(config->relay_id);
	values[1] = CStringGetTextDatum(state);
	values[2] = Int32GetDatum(attempts);
	values[3] = failure ? TimestampTzGetDatum(next_attempt(config, attempts, failure)) : (Datum) 0;
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
														failure->message)) : (Datum) 0;
	nulls[15] = failure ? ' ' : 'n';
	values[16] = Int32GetDatum(failure && failure->crashed ? 1 : 0);

	SPI_connect();
	run_insert(17, types, values, nulls);
	SPI_finish();
}

/* on_dead = stop: the relay stands until an operator has looked. */
static void
halt_relay(const IdemRelayConfig *config)
{
	if (config->on_dead != IDEM_ON_DEAD_STOP)
		return;
	run_for_relay(config->relay_id,
				  "UPDATE %s.relays SET halted = 'a dead letter' WHERE relay_id = $1");
	idem_relay_config_changed(false);
}

void
idem_parked_add(const IdemRelayConfig *config, const IdemEvent *event,
				const IdemFailure *failure)
{
	int			attempts = failure->counts ? 1 : 0;
	bool		dead = is_dead(config, attempts, failure);

	lock_relay(config);
	insert_parked(config, event, dead ? "dead" : "retry", attempts, failure);
	if (dead)
		halt_relay(config);
}

void
idem_parked_add_waiting(const IdemRelayConfig *config, const IdemEvent *event)
{
	lock_relay(config);
	insert_parked(config, event, "waiting", 0, NULL);
}

/* Pieces of a row as an event; all in the current context. */
static IdemEventText
text_of(HeapTuple tup, TupleDesc desc, int column, bool *present)
{
	IdemEventText t = {NULL, 0};
	char	   *s = idem_spi_text(tup, desc, column);

	if (present)
		*present = s != NULL;
	if (s)
	{
		t.data = s;
		t.len = strlen(s);
	}
	return t;
}

static Datum
copied_varlena(HeapTuple tup, TupleDesc desc, int column, bool *present)
{
	bool		isnull;
	Datum		d = SPI_getbinval(tup, desc, column, &isnull);

	*present = !isnull;
	return isnull ? (Datum) 0 : PointerGetDatum(PG_DETOAST_DATUM_COPY(d));
}

static IdemParkedEvent *
parked_from_row(HeapTuple tup, TupleDesc desc)
{
	IdemParkedEvent *p = palloc0(sizeof(*p));
	IdemEvent  *ev = &p->event;
	bool		has_bytes;
	Datum		bytes;
	char	   *state;

	p->parked_id = DatumGetInt64(idem_spi_value(tup, desc, 1));
	p->attempts = DatumGetInt32(idem_spi_value(tup, desc, 2));
	ev->xid = DatumGetFullTransactionId(idem_spi_value(tup, desc, 3));
	ev->seq = DatumGetInt64(idem_spi_value(tup, desc, 4));
	ev->event_id = *DatumGetUUIDP(idem_spi_value(tup, desc, 5));
	ev->enqueued_at = DatumGetTimestampTz(idem_spi_value(tup, desc, 6));
	ev->aggregate_type = text_of(tup, desc, 7, NULL);
	ev->aggregate_id = text_of(tup, desc, 8, NULL);
	ev->event_type = text_of(tup, desc, 9, NULL);
	ev->payload = copied_varlena(tup, desc, 10, &ev->is_json);
	bytes = copied_varlena(tup, desc, 11, &has_bytes);
	if (!ev->is_json)
		ev->payload = bytes;
	ev->content_type = text_of(tup, desc, 12, &ev->has_content_type);
	ev->headers = copied_varlena(tup, desc, 13, &ev->has_headers);
	p->crashes = DatumGetInt32(idem_spi_value(tup, desc, 14));
	state = idem_spi_text(tup, desc, 15);
	p->killer = state != NULL &&
		strcmp(state, unpack_sql_state(ERRCODE_IDEM_SINK_OUTAGE)) == 0;
	return p;
}

List *
idem_parked_due(const IdemRelayConfig *config, int limit)
{
	MemoryContext caller = CurrentMemoryContext;
	Oid			types[5] = {INT4OID, INT4OID, BOOLOID, BOOLOID, INT8OID};
	Datum		values[5];
	List	   *result = NIL;
	MemoryContext old;
	uint64		n;

	values[0] = Int32GetDatum(config->relay_id);
	values[1] = Int32GetDatum(limit);
	values[2] = BoolGetDatum(config->ordering == IDEM_ORDERING_KEY);
	values[3] = BoolGetDatum(config->on_dead != IDEM_ON_DEAD_SKIP);
	values[4] = Int64GetDatum(config->batch_bytes);

	/*
	 * One reading of the clock for all rows: an event whose time comes in the
	 * middle of the query must not be missing while one behind it is there.
	 */
	SPI_connect();
	n = idem_spi_run("SELECT p.parked_id, p.attempts, p.xid, p.seq, p.event_id, p.enqueued_at,"
					 " p.aggregate_type, p.aggregate_id, p.event_type, p.payload, p.payload_bytes,"
					 " p.content_type, p.headers, p.crashes, p.sqlstate"
					 " FROM (SELECT d.parked_id, pg_catalog.sum(d.size) OVER (ORDER BY d.seq) - d.size AS before"
					 "  FROM (SELECT p.parked_id, p.seq, COALESCE(pg_catalog.octet_length(p.payload_bytes),"
					 "   pg_catalog.octet_length(p.payload::text)) AS size"
					 " FROM %s.relay_parked p"
					 " WHERE p.relay_id = $1 AND p.state <> 'dead'"
					 " AND (p.state = 'waiting' OR " IS_DUE("p") ")"
					 " AND NOT ($3 AND EXISTS (SELECT FROM %s.relay_parked q"
					 "  WHERE q.relay_id = p.relay_id AND q.aggregate_type = p.aggregate_type"
					 "  AND q.aggregate_id = p.aggregate_id AND q.seq < p.seq"
					 "  AND ((q.state = 'retry' AND NOT " IS_DUE("q") ")"
					 "   OR (q.state = 'dead' AND $4))))"
					 " ORDER BY p.seq LIMIT $2) d) b"
					 " JOIN %s.relay_parked p USING (parked_id)"
					 " WHERE b.before < $5 ORDER BY p.seq",
					 5, types, values, NULL);
	old = MemoryContextSwitchTo(caller);
	for (uint64 i = 0; i < n; i++)
		result = lappend(result, parked_from_row(SPI_tuptable->vals[i],
												 SPI_tuptable->tupdesc));
	MemoryContextSwitchTo(old);
	SPI_finish();
	return result;
}

void
idem_parked_done(const IdemRelayConfig *config, int64 parked_id)
{
	Oid			types[1] = {INT8OID};
	Datum		values[1] = {Int64GetDatum(parked_id)};

	lock_relay(config);
	SPI_connect();
	idem_spi_run("DELETE FROM %s.relay_parked WHERE parked_id = $1", 1, types, values, NULL);
	SPI_finish();
}

void
idem_parked_failed(const IdemRelayConfig *config, int64 parked_id, const IdemFailure *failure)
{
	Oid			types[7] = {INT8OID, INT4OID, BOOLOID, TEXTOID, TEXTOID, TIMESTAMPTZOID, INT4OID};
	Datum		values[7];

	values[0] = Int64GetDatum(parked_id);
	values[3] = CStringGetTextDatum(failure->sqlstate);
	values[4] = CStringGetTextDatum(failure->message);

	lock_relay(config);
	SPI_connect();
	if (idem_spi_run("SELECT attempts, crashes FROM %s.relay_parked WHERE parked_id = $1 FOR UPDATE",
					 1, types, values, NULL) == 1)
	{
		HeapTuple	tup = SPI_tuptable->vals[0];
		TupleDesc	desc = SPI_tuptable->tupdesc;
		int			attempts = DatumGetInt32(idem_spi_value(tup, desc, 1));
		int			crashes = DatumGetInt32(idem_spi_value(tup, desc, 2));
		bool		dead;

		attempts += failure->counts ? 1 : 0;
		crashes += failure->crashed ? 1 : 0;
		dead = is_dead(config, attempts, failure) || crashes >= IDEM_MAX_CRASHES;
		values[1] = Int32GetDatum(crashes);
		values[2] = BoolGetDatum(dead);
		values[5] = TimestampTzGetDatum(next_attempt(config, attempts, failure));
		values[6] = Int32GetDatum(attempts);
		idem_spi_run("UPDATE %s.relay_parked SET attempts = $7, crashes = $2, batch_row = NULL,"
					 " state = CASE WHEN $3 THEN 'dead' ELSE 'retry' END::%t.parked_state,"
					 " next_attempt_at = $6, sqlstate = $4, error = $5,"
					 " first_failed_at = COALESCE(first_failed_at, pg_catalog.clock_timestamp()),"
					 " last_failed_at = pg_catalog.clock_timestamp() WHERE parked_id = $1",
					 7, types, values, NULL);
		if (dead)
			halt_relay(config);
	}
	SPI_finish();
}

/* Not sent for one before it: it waits on, and its own time does not count. */
void
idem_parked_skipped(const IdemRelayConfig *config, int64 parked_id)
{
	Oid			types[1] = {INT8OID};
	Datum		values[1] = {Int64GetDatum(parked_id)};

	lock_relay(config);
	SPI_connect();
	idem_spi_run("UPDATE %s.relay_parked SET state = 'waiting', next_attempt_at = NULL,"
				 " batch_row = NULL WHERE parked_id = $1", 1, types, values, NULL);
	SPI_finish();
}

void
idem_parked_mark(List *parked_events, int64 batch_row, int64 life)
{
	Oid			types[3] = {INT8OID, INT8OID, INT8OID};
	ListCell   *lc;

	SPI_connect();
	foreach(lc, parked_events)
	{
		IdemParkedEvent *p = lfirst(lc);
		Datum		values[3] = {Int64GetDatum(p->parked_id), Int64GetDatum(batch_row),
		Int64GetDatum(life)};

		idem_spi_run("UPDATE %s.relay_parked SET batch_row = $2, batch_life = $3 WHERE parked_id = $1",
					 3, types, values, NULL);
	}
	SPI_finish();
}

bool
idem_parked_resolve(const IdemRelayConfig *config, int64 stored_row, int64 life)
{
	Oid			types[3] = {INT4OID, INT8OID, INT8OID};
	Datum		values[3] = {Int32GetDatum(config->relay_id), Int64GetDatum(stored_row),
	Int64GetDatum(life)};
	uint64		n;

	lock_relay(config);
	SPI_connect();
	n = idem_spi_run("DELETE FROM %s.relay_parked WHERE relay_id = $1 AND batch_row <= $2 AND batch_life = $3",
					 3, types, values, NULL);
	SPI_finish();
	return n > 0;
}

void
idem_parked_restamp(int relay_id)
{
	run_for_relay(relay_id, "UPDATE %s.relay_parked SET xid = pg_catalog.pg_current_xact_id()"
				  " WHERE relay_id = $1");
}

void
idem_parked_forget(int relay_id)
{
	run_for_relay(relay_id, "DELETE FROM %s.relay_parked WHERE relay_id = $1"
				  " AND NOT EXISTS (SELECT FROM %s.relays r WHERE r.relay_id = $1)");
	run_for_relay(relay_id, "DELETE FROM %s.relay_attempts WHERE relay_id = $1"
				  " AND NOT EXISTS (SELECT FROM %s.relays r WHERE r.relay_id = $1)");
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
