/*-------------------------------------------------------------------------
 *
 * position.c
 *		The relay's row in the position table at the target.
 *
 * A program that takes over locks the row, and adds one to its epoch when it has
 * the answer.  If a predecessor has a batch in flight, the program waits for that
 * batch's row lock.  Not all goes in one message: what a killed program has sent
 * may run long after its successor took over, and must not fence it.  Each batch
 * begins with the fence: an UPDATE of the row with the program's own epoch.  A
 * predecessor's fence finds no row, and so its batch has no effect.
 *
 * What the target has stored comes back with each statement, and is compared with
 * what was sent: a trigger or a rule of the table may store something else, or
 * nothing.  Then no batch is committed, or its effects would come again and again.
 *
 * The fence also expects the position that this program read or stored last.
 * While the program is idle, the target may be restored, or fail over to a
 * standby that lagged.  It then has an older position under the same epoch,
 * and a batch applied there would pass over the events that the target lost.
 *
 * After a COMMIT whose answer is lost the program locks the row and keeps its
 * epoch.  If the row has another epoch, a successor took over meanwhile, and
 * the successor's position tells nothing of the lost COMMIT.
 *
 * INVARIANT
 *		Position and effects of a batch commit in one transaction.
 *
 * LOCKING
 *		The position row is the first lock of each transaction at the target.  A
 *		dead predecessor's lock ends with its transaction, at the latest by the
 *		timeouts that the predecessor set.
 *
 * MEMORY
 *		The statements live as long as the program.
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

/* A relay's is a UUID and a number. */
#define MAX_INCARNATION	1024

/* The statements of a program that takes over; %s is the position table. */
#define INSERT_SQL	"INSERT INTO %s (relay, epoch) VALUES ($1, 0) ON CONFLICT (relay) DO NOTHING"
#define LOCK_SQL	"SELECT t.epoch, t.incarnation, t.row_id, t.k FROM %s AS t WHERE t.relay OPERATOR(pg_catalog.=) $1 FOR UPDATE"
#define RAISE_SQL	"UPDATE %s AS t SET epoch = t.epoch OPERATOR(pg_catalog.+) 1" \
	" WHERE t.relay OPERATOR(pg_catalog.=) $1 AND t.epoch OPERATOR(pg_catalog.=) $2" \
	" RETURNING t.epoch, t.incarnation, t.row_id, t.k"

/* The types of the parameters of these statements, and of the fence */
static const uint32_t takeover_types[2] = {PGSINK_TYPE_TEXT, PGSINK_TYPE_INT8};
static const uint32_t fence_types[8] = {PGSINK_TYPE_TEXT, PGSINK_TYPE_INT8, PGSINK_TYPE_TEXT, PGSINK_TYPE_INT8,
PGSINK_TYPE_INT8, PGSINK_TYPE_TEXT, PGSINK_TYPE_INT8, PGSINK_TYPE_INT8};

/* Read an int8 from text. */
static int64_t
to_int64(const char *text)
{
	return (int64_t) strtoll(text, NULL, 10);
}

/* Write the statements that name the position table. */
static void
write_statements(PgSink *p)
{
	char	   *schema = pgsink_quote(p->config.position_schema);
	char	   *name = pgsink_quote(p->config.position_name);

	p->position_table = pgsink_format("%s.%s", schema, name);
	p->fence_sql = pgsink_format("UPDATE %s SET incarnation = $3, row_id = $4, k = $5,"
								 " updated_at = pg_catalog.clock_timestamp()"
								 " WHERE relay OPERATOR(pg_catalog.=) $1 AND epoch OPERATOR(pg_catalog.=) $2"
								 " AND COALESCE(incarnation, '') OPERATOR(pg_catalog.=) $6"
								 " AND COALESCE(row_id, 0) OPERATOR(pg_catalog.=) $7"
								 " AND COALESCE(k, 0) OPERATOR(pg_catalog.=) $8"
								 " RETURNING epoch OPERATOR(pg_catalog.=) $2 AND incarnation OPERATOR(pg_catalog.=) $3"
								 " AND row_id OPERATOR(pg_catalog.=) $4 AND k OPERATOR(pg_catalog.=) $5",
								 p->position_table);
	free(schema);
	free(name);
}

/* The target keeps the position from being stored; always false. */
static bool
fail_not_stored(PgSink *p)
{
	return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "55000",
						  "the target did not store position \"%s\" in %s as it was sent: look for triggers and rules of that table",
						  p->config.relay, p->position_table);
}

/* The row has what no relay writes; always false. */
static bool
fail_foreign(PgSink *p, const char *why)
{
	return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "XX001",
						  "position \"%s\" in %s at the target is not one that a relay has written: %s; if nothing else tells what it was, delete the row there, and call relay_adopt",
						  p->config.relay, p->position_table, why);
}

/*
 * Take the values of a position row into p and READY; before is the epoch that
 * the row had.  False if the row is not as it was to be stored, or if no relay has
 * written it: its incarnation is longer than a frame.
 */
static bool
read_row(PgSink *p, const PGresult *res, int64_t before, IdemProtoReady *ready)
{
	if (PQntuples(res) != 1 || to_int64(PQgetvalue(res, 0, 0)) <= before)
		return fail_not_stored(p);
	p->epoch = to_int64(PQgetvalue(res, 0, 0));
	ready->has_position = !PQgetisnull(res, 0, 1);
	p->stored_incarnation = "";
	p->stored_row_id = to_int64(PQgetvalue(res, 0, 2));
	p->stored_k = to_int64(PQgetvalue(res, 0, 3));

	/*
	 * without an incarnation it is none, whatever else somebody has left in
	 * the row
	 */
	if (!ready->has_position)
		return true;
	if (PQgetlength(res, 0, 1) > MAX_INCARNATION)
		return fail_foreign(p, "its incarnation is too long");
	ready->incarnation.len = (uint32_t) PQgetlength(res, 0, 1);
	ready->incarnation.data = idem_sink_strdup(PQgetvalue(res, 0, 1), ready->incarnation.len);
	ready->position.row_id = p->stored_row_id;
	ready->position.k = p->stored_k;
	p->stored_incarnation = ready->incarnation.data;
	return true;
}

/*
 * Would a position stay with its effects?  A crash of the target empties an unlogged table,
 * and behind a view or in a foreign table may be one of these, or another server that commits
 * by itself.  A table that is not there is left to the statements.  False: p->failure.
 */
static bool
is_kept(PgSink *p)
{
	const char *values[2] = {p->config.position_schema, p->config.position_name};
	PGresult   *res = pgsink_look_up(p, "SELECT c.relkind OPERATOR(pg_catalog.=) ANY ('{r,p}'), " PGSINK_IS_UNLOGGED
									 " FROM pg_catalog.pg_class c"
									 " JOIN pg_catalog.pg_namespace s ON s.oid OPERATOR(pg_catalog.=) c.relnamespace"
									 " WHERE s.nspname OPERATOR(pg_catalog.=) $1 AND c.relname OPERATOR(pg_catalog.=) $2",
									 2, values);
	bool		ok = res != NULL;

	if (ok && PQntuples(res) > 0 && strcmp(PQgetvalue(res, 0, 0), "t") != 0)
		ok = idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "55000",
							"position table %s at the target is no table, but a view, a foreign table or the like: nothing tells that a position stays there with its effects; name a table in the option \"position_table\"",
							p->position_table);
	else if (ok && PQntuples(res) > 0 && strcmp(PQgetvalue(res, 0, 1), "t") == 0)
		ok = idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "55000",
							"position table %s at the target, or a partition of it, is unlogged: a crash of the target would empty it, and effects that stayed would be made again; run ALTER TABLE ... SET LOGGED there",
							p->position_table);
	PQclear(res);
	return ok;
}

/* Lock the row, and make it if there is none; *row, which the caller clears.  False: an error, or p->failure. */
static bool
lock_row(PgSink *p, PGresult **row)
{
	const uint32_t types[1] = {PGSINK_TYPE_TEXT};
	const char *values[1] = {p->config.relay};
	PgSinkPending pending;
	PGresult   *res;
	char	   *insert = pgsink_format(INSERT_SQL, p->position_table);
	char	   *lock = pgsink_format(LOCK_SQL, p->position_table);

	pgsink_begin(p);
	pgsink_send(p, PGSINK_STEP_FENCE, 0, insert, 1, types, values, NULL);
	pgsink_send(p, PGSINK_STEP_FENCE, 0, lock, 1, types, values, NULL);
	pgsink_sync(p);
	while ((res = pgsink_next(p, &pending)) != NULL)
	{
		if (pending.step == PGSINK_STEP_FENCE && PQresultStatus(res) == PGRES_TUPLES_OK && PQntuples(res) == 1)
			*row = res;
		else
			PQclear(res);
	}
	free(insert);
	free(lock);
	if (p->error.set || *row == NULL)
		return !p->error.set && fail_not_stored(p);
	return to_int64(PQgetvalue(*row, 0, 0)) < INT64_MAX || fail_foreign(p, "its epoch cannot be raised");
}

/* Do two rows say the same of the position? */
static bool
is_same_position(const PGresult *a, const PGresult *b)
{
	for (int i = 1; i < 4; i++)
		if (PQgetisnull(a, 0, i) != PQgetisnull(b, 0, i) || strcmp(PQgetvalue(a, 0, i), PQgetvalue(b, 0, i)) != 0)
			return false;
	return true;
}

/*
 * Raise the epoch of the locked row, and read the row into READY.  Nothing is committed if a trigger
 * makes another position of it.  False: an error, or p->failure.
 */
static bool
raise_epoch(PgSink *p, const PGresult *row, IdemProtoReady *ready)
{
	const int64_t before = to_int64(PQgetvalue(row, 0, 0));
	char		epoch[24];
	const char *values[2] = {p->config.relay, epoch};
	PgSinkPending pending;
	PGresult   *res;
	bool		sound = true;
	char	   *sql = pgsink_format(RAISE_SQL, p->position_table);

	snprintf(epoch, sizeof(epoch), "%" PRId64, before);
	pgsink_send(p, PGSINK_STEP_FENCE, 0, sql, 2, takeover_types, values, NULL);
	pgsink_sync(p);
	while ((res = pgsink_next(p, &pending)) != NULL)
	{
		if (pending.step == PGSINK_STEP_FENCE && PQresultStatus(res) == PGRES_TUPLES_OK)
			sound = read_row(p, res, before, ready) && (is_same_position(row, res) || fail_not_stored(p));
		PQclear(res);
	}
	free(sql);
	if (!sound || p->error.set)
		return false;
	pgsink_send(p, PGSINK_STEP_COMMIT, 0, "COMMIT", 0, NULL, NULL, NULL);
	pgsink_sync(p);
	while ((res = pgsink_next(p, &pending)) != NULL)
		PQclear(res);
	return !p->error.set;
}

bool
pgsink_take_position(PgSink *p, IdemProtoReady *ready)
{
	PGresult   *row = NULL;
	bool		ok;

	write_statements(p);
	if (!is_kept(p))
		return false;
	ok = lock_row(p, &row) && raise_epoch(p, row, ready);
	PQclear(row);
	if (ok)
		return true;
	if (p->error.set)
		return pgsink_fail_for_error(p, "take over the relay's position at the target");
	return false;
}

bool
pgsink_rehearse_position(PgSink *p)
{
	static const int nparams[] = {1, 1, 2};
	char	   *sql[3];
	bool		ok = true;

	write_statements(p);
	pgsink_forget_error(p);
	if (!is_kept(p))
		return false;
	sql[0] = pgsink_format(INSERT_SQL, p->position_table);
	sql[1] = pgsink_format(LOCK_SQL, p->position_table);
	sql[2] = pgsink_format(RAISE_SQL, p->position_table);
	for (size_t i = 0; i < sizeof(sql) / sizeof(sql[0]); i++)
	{
		ok = ok && pgsink_rehearse(p, PGSINK_STEP_FENCE, sql[i], nparams[i], takeover_types);
		free(sql[i]);
	}
	ok = ok && pgsink_rehearse(p, PGSINK_STEP_FENCE, p->fence_sql, 8, fence_types);
	return ok || pgsink_fail_for_error(p, "use the relay's position at the target");
}

/* Was the position stored by this incarnation of the relay?  The part behind the slash is the program's life. */
static bool
is_ours(const PgSink *p, const char *stored)
{
	size_t		len = strcspn(p->config.incarnation, "/");

	return strcspn(stored, "/") == len && strncmp(stored, p->config.incarnation, len) == 0;
}

bool
pgsink_look_at_position(PgSink *p)
{
	const char *values[1] = {p->config.relay};
	PgSinkPending pending;
	PGresult   *res;
	bool		ours = true;
	char	   *sql = pgsink_format("SELECT t.incarnation FROM %s AS t WHERE t.relay OPERATOR(pg_catalog.=) $1",
									p->position_table);

	pgsink_begin(p);
	pgsink_send(p, PGSINK_STEP_FENCE, 0, sql, 1, takeover_types, values, NULL);
	pgsink_send(p, PGSINK_STEP_FRAME, 0, "COMMIT", 0, NULL, NULL, NULL);
	pgsink_sync(p);
	while ((res = pgsink_next(p, &pending)) != NULL)
	{
		if (pending.step == PGSINK_STEP_FENCE && PQresultStatus(res) == PGRES_TUPLES_OK &&
			PQntuples(res) > 0 && !PQgetisnull(res, 0, 0))
			ours = is_ours(p, PQgetvalue(res, 0, 0));
		PQclear(res);
	}
	free(sql);
	if (p->error.set)
		return pgsink_fail_for_error(p, "read the relay's position at the target");
	return ours || idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "55000",
								  "position \"%s\" in %s at the target is that of another relay of this name, or of this one before it was adopted; two relays of one name, of two databases, need a position_table each, or another name",
								  p->config.relay, p->position_table);
}

void
pgsink_send_fence(PgSink *p)
{
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
	pgsink_send(p, PGSINK_STEP_FENCE, 0, p->fence_sql, 8, fence_types, values, NULL);
}

bool
pgsink_read_fence(PgSink *p, const PGresult *res)
{
	if (PQntuples(res) == 0)
		return false;
	if (PQntuples(res) > 1 || strcmp(PQgetvalue(res, 0, 0), "t") != 0)
		fail_not_stored(p);
	return true;
}

void
pgsink_position_stored(PgSink *p)
{
	p->stored_incarnation = p->config.incarnation;
	p->stored_row_id = p->batch.position.row_id;
	p->stored_k = p->batch.position.k;
}

/* Does the locked row have the position of the lost COMMIT? */
static PgSinkFate
compare_row(const PgSink *p, const PGresult *res)
{
	if (PQntuples(res) == 0 || to_int64(PQgetvalue(res, 0, 0)) != p->epoch)
		return PGSINK_FATE_FENCED;
	if (!PQgetisnull(res, 0, 1) &&
		strcmp(PQgetvalue(res, 0, 1), p->config.incarnation) == 0 &&
		to_int64(PQgetvalue(res, 0, 2)) == p->batch.position.row_id &&
		to_int64(PQgetvalue(res, 0, 3)) == p->batch.position.k)
		return PGSINK_FATE_COMMITTED;
	return PGSINK_FATE_ABORTED;
}

/* Lock the row and call judge with the result; UNKNOWN after an error. */
static PgSinkFate
judge_row(PgSink *p, PgSinkFate (*judge) (const PgSink *p, const PGresult *res))
{
	const uint32_t types[1] = {PGSINK_TYPE_TEXT};
	const char *values[1] = {p->config.relay};
	PgSinkFate	fate = PGSINK_FATE_UNKNOWN;
	PgSinkPending pending;
	PGresult   *res;
	char	   *sql = pgsink_format("SELECT t.epoch, t.incarnation, t.row_id, t.k FROM %s AS t"
									" WHERE t.relay OPERATOR(pg_catalog.=) $1 FOR UPDATE", p->position_table);

	pgsink_begin(p);
	pgsink_send(p, PGSINK_STEP_FENCE, 0, sql, 1, types, values, NULL);
	pgsink_send(p, PGSINK_STEP_COMMIT, 0, "COMMIT", 0, NULL, NULL, NULL);
	pgsink_sync(p);
	while ((res = pgsink_next(p, &pending)) != NULL)
	{
		if (pending.step == PGSINK_STEP_FENCE && PQresultStatus(res) == PGRES_TUPLES_OK)
			fate = judge(p, res);
		PQclear(res);
	}
	free(sql);
	return p->error.set ? PGSINK_FATE_UNKNOWN : fate;
}

PgSinkFate
pgsink_ask_fate(PgSink *p)
{
	return judge_row(p, compare_row);
}

/* Does the locked row have a successor's epoch? */
static PgSinkFate
compare_epoch(const PgSink *p, const PGresult *res)
{
	/*
	 * Epochs only rise.  A lower epoch, or no row, means that the target was
	 * set back to before this program's hello.
	 */
	if (PQntuples(res) > 0 && to_int64(PQgetvalue(res, 0, 0)) > p->epoch)
		return PGSINK_FATE_FENCED;

	/* The fence ought to have found this row. */
	if (PQntuples(res) == 1 && to_int64(PQgetvalue(res, 0, 0)) == p->epoch &&
		strcmp(PQgetvalue(res, 0, 1), p->stored_incarnation) == 0 &&
		to_int64(PQgetvalue(res, 0, 2)) == p->stored_row_id &&
		to_int64(PQgetvalue(res, 0, 3)) == p->stored_k)
		return PGSINK_FATE_NOT_STORED;
	return PGSINK_FATE_ABORTED;
}

PgSinkFate
pgsink_ask_takeover(PgSink *p)
{
	PgSinkFate	fate = judge_row(p, compare_epoch);

	if (fate == PGSINK_FATE_NOT_STORED)
		fail_not_stored(p);
	return fate;
}
