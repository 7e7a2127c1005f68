/*-------------------------------------------------------------------------
 *
 * position.c
 *		The relay's row in the position table at the target.
 *
 * Taking over adds one to the row's epoch.  The row lock makes that wait for
 * a predecessor with a batch in flight, and each batch begins by updating the
 * row under its own epoch: whoever was taken over finds no row, and has no
 * effect.  A batch also expects the position that the program has read or stored
 * last.  A target that was restored, or failed over to a standby that lagged,
 * while the program was idle has an older one with the same epoch; what it lost
 * would be passed over.  The predecessor's transaction ends by itself, at the latest by the
 * timeouts it set.
 *
 * After a lost COMMIT the row is locked under the same epoch, not a new one: if
 * somebody else took over meanwhile, this program is fenced and must not
 * judge from his position.
 *
 * INVARIANT
 *		Position and effects of a batch commit in one transaction.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/postgres/position.c
 *
 *-------------------------------------------------------------------------
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sink/postgres/sink.h"

static int64_t
to_int64(const char *text)
{
	return (int64_t) strtoll(text, NULL, 10);
}

void
pg_give_up(PgSink *p, const char *doing)
{
	const char *state = p->error.sqlstate;
	IdemProtoOutcome outcome = IDEM_PROTO_OUTAGE;

	if (p->conn != NULL && p->error.step == PG_STEP_FENCE &&
		(strcmp(state, "42P01") == 0 || strcmp(state, "3F000") == 0 || strcmp(state, "42703") == 0))
		idem_sink_failed(&p->sink, IDEM_PROTO_REJECTED, state,
						 "could not use position table %s at the target: %s; idempotency.sink_setup_sql(server) prints what to run there",
						 p->position_table, p->error.message);
	if (pg_blame(&p->error) == PG_BLAME_CONFIG)
		outcome = IDEM_PROTO_REJECTED;
	idem_sink_failed(&p->sink, outcome, state, "could not %s: %s", doing, p->error.message);
}

/* Write the names of the table into the statements. */
static void
write_statements(PgSink *p)
{
	char	   *schema = pg_quote(p->config.position_schema);
	char	   *name = pg_quote(p->config.position_name);

	p->position_table = pg_format("%s.%s", schema, name);
	p->fence_sql = pg_format("UPDATE %s SET incarnation = $3, row_id = $4, k = $5,"
							 " updated_at = pg_catalog.clock_timestamp()"
							 " WHERE relay OPERATOR(pg_catalog.=) $1 AND epoch OPERATOR(pg_catalog.=) $2"
							 " AND COALESCE(incarnation, '') OPERATOR(pg_catalog.=) $6"
							 " AND COALESCE(row_id, 0) OPERATOR(pg_catalog.=) $7"
							 " AND COALESCE(k, 0) OPERATOR(pg_catalog.=) $8",
							 p->position_table);
	free(schema);
	free(name);
}

/* Take the values of a position row into READY. */
static void
read_row(PgSink *p, const PGresult *res, IdemProtoReady *ready)
{
	p->epoch = to_int64(PQgetvalue(res, 0, 0));
	ready->has_position = !PQgetisnull(res, 0, 1);
	p->stored_incarnation = "";
	if (!ready->has_position)
		return;
	ready->incarnation.len = (uint32_t) PQgetlength(res, 0, 1);
	ready->incarnation.data = idem_sink_strdup(PQgetvalue(res, 0, 1), ready->incarnation.len);
	ready->position.row_id = to_int64(PQgetvalue(res, 0, 2));
	ready->position.k = to_int64(PQgetvalue(res, 0, 3));
	p->stored_incarnation = ready->incarnation.data;
	p->stored_row_id = ready->position.row_id;
	p->stored_k = ready->position.k;
}

void
pg_take_position(PgSink *p, IdemProtoReady *ready)
{
	const uint32_t types[1] = {PG_TEXT};
	const char *values[1] = {p->config.relay};
	PgPending	what;
	PGresult   *res;
	char	   *sql;

	write_statements(p);
	sql = pg_format("INSERT INTO %s AS t (relay, epoch) VALUES ($1, 1)"
					" ON CONFLICT (relay) DO UPDATE SET epoch = t.epoch OPERATOR(pg_catalog.+) 1"
					" RETURNING t.epoch, t.incarnation, t.row_id, t.k", p->position_table);
	pg_begin(p);
	pg_send(p, PG_STEP_FENCE, 0, sql, 1, types, values, NULL);
	pg_send(p, PG_STEP_COMMIT, 0, "COMMIT", 0, NULL, NULL, NULL);
	pg_sync(p);
	while ((res = pg_next(p, &what)) != NULL)
	{
		if (what.step == PG_STEP_FENCE && PQresultStatus(res) == PGRES_TUPLES_OK)
			read_row(p, res, ready);
		PQclear(res);
	}
	free(sql);
	if (p->error.set)
		pg_give_up(p, "take over the relay's position at the target");
}

void
pg_send_fence(PgSink *p)
{
	const uint32_t types[8] = {PG_TEXT, PG_INT8, PG_TEXT, PG_INT8, PG_INT8, PG_TEXT, PG_INT8, PG_INT8};
	char		epoch[24];
	char		row_id[24];
	char		k[24];
	char		stored_row_id[24];
	char		stored_k[24];
	const char *values[8] = {p->config.relay, epoch, p->config.incarnation, row_id, k,
	p->stored_incarnation, stored_row_id, stored_k};

	snprintf(epoch, sizeof(epoch), "%" PRId64, p->epoch);
	snprintf(row_id, sizeof(row_id), "%" PRId64, p->batch.position.row_id);
	snprintf(k, sizeof(k), "%" PRId64, p->batch.position.k);
	snprintf(stored_row_id, sizeof(stored_row_id), "%" PRId64, p->stored_row_id);
	snprintf(stored_k, sizeof(stored_k), "%" PRId64, p->stored_k);
	pg_send(p, PG_STEP_FENCE, 0, p->fence_sql, 8, types, values, NULL);
}

void
pg_position_stored(PgSink *p)
{
	p->stored_incarnation = p->config.incarnation;
	p->stored_row_id = p->batch.position.row_id;
	p->stored_k = p->batch.position.k;
}

/* Compare the locked row with what the lost COMMIT would have left. */
static PgFate
compare_row(const PgSink *p, const PGresult *res)
{
	if (PQntuples(res) == 0 || to_int64(PQgetvalue(res, 0, 0)) != p->epoch)
		return PG_FATE_FENCED;
	if (!PQgetisnull(res, 0, 1) &&
		strcmp(PQgetvalue(res, 0, 1), p->config.incarnation) == 0 &&
		to_int64(PQgetvalue(res, 0, 2)) == p->batch.position.row_id &&
		to_int64(PQgetvalue(res, 0, 3)) == p->batch.position.k)
		return PG_FATE_COMMITTED;
	return PG_FATE_ABORTED;
}

/* The row as it is, locked, for what "look" makes of it; PG_FATE_UNKNOWN after an error. */
static PgFate
look_at_row(PgSink *p, PgFate (*look) (const PgSink *p, const PGresult *res))
{
	const uint32_t types[1] = {PG_TEXT};
	const char *values[1] = {p->config.relay};
	PgFate		fate = PG_FATE_UNKNOWN;
	PgPending	what;
	PGresult   *res;
	char	   *sql = pg_format("SELECT t.epoch, t.incarnation, t.row_id, t.k FROM %s AS t"
								" WHERE t.relay OPERATOR(pg_catalog.=) $1 FOR UPDATE", p->position_table);

	pg_begin(p);
	pg_send(p, PG_STEP_FENCE, 0, sql, 1, types, values, NULL);
	pg_send(p, PG_STEP_COMMIT, 0, "COMMIT", 0, NULL, NULL, NULL);
	pg_sync(p);
	while ((res = pg_next(p, &what)) != NULL)
	{
		if (what.step == PG_STEP_FENCE && PQresultStatus(res) == PGRES_TUPLES_OK)
			fate = look(p, res);
		PQclear(res);
	}
	free(sql);
	return p->error.set ? PG_FATE_UNKNOWN : fate;
}

PgFate
pg_ask_fate(PgSink *p)
{
	return look_at_row(p, compare_row);
}

static PgFate
compare_epoch(const PgSink *p, const PGresult *res)
{
	/*
	 * Epochs only rise: a lower one is older than our hello, the target was
	 * set back.
	 */
	if (PQntuples(res) > 0 && to_int64(PQgetvalue(res, 0, 0)) > p->epoch)
		return PG_FATE_FENCED;
	return PG_FATE_ABORTED;
}

bool
pg_taken_over(PgSink *p)
{
	PgFate		fate = look_at_row(p, compare_epoch);

	if (fate == PG_FATE_UNKNOWN)
		pg_give_up(p, "look at the relay's position at the target");
	return fate == PG_FATE_FENCED;
}
