/*-------------------------------------------------------------------------
 *
 * log.c
 *		The log of leases: what is open of an event.
 *
 * An event has up to three parts in the keyed log:
 *
 *	s	the state: leased, waiting, dead or free.  The number of a row that says
 *		"leased" is the token of the lease.
 *	e	another end of the lease, from a heartbeat
 *	p	another recovery point of the lease
 *
 * A row of kind e or p names the lease that it belongs to, and counts only while
 * the event is in that lease.  Each row of kind s has all that was known before,
 * so one row is left of an event when the log takes turns, or three while it is
 * leased.  A heartbeat and a phase may commit in any order: their parts differ.
 * Of two heartbeats the one that was called later counts.
 *
 * "free" is a tombstone (keyed_log.h), so nothing is left of an event that was
 * completed.  The completion in the dedup store would say it as well, but not for
 * longer than the retention; the event of a redelivery after that would find the
 * lease, the attempts and the recovery point of a former life.
 *
 * A crash leaves the committed rows.
 *
 * LOCKING: the event's lock, which the caller holds; below it, as keyed_log.c.
 *
 * MEMORY: the rows of one event, in the caller's context.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/lease/log.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <limits.h>

#include "access/htup_details.h"
#include "catalog/pg_collation.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "lease/log.h"
#include "lease/table.h"
#include "lease/token.h"
#include "shared/keyed_worker.h"
#include "shared/sound.h"
#include "shared/uptime.h"

/* In blocks: 1 GB */
static int	lease_log_dump_size = 131072;

void
idem_lease_setting_init(void)
{
	idem_define_int("idempotency.lease_log_dump_size",
					"How long the log of leases may become while a dump of the database runs.",
					"Until then no table is emptied that the dump needs. 0: a dump is not waited for.",
					&lease_log_dump_size, 0, INT_MAX / 2, PGC_SIGHUP, GUC_UNIT_BLOCKS);
}

/* The parts of an event, in the order of KINDS */
#define KINDS	"sep"
enum
{
	PART_STATE, PART_END, PART_POINT, NPARTS
};

/* Columns, from 0 */
enum
{
	COL_NUMBER, COL_DIGEST, COL_KIND, COL_STATE, COL_TOKEN, COL_ATTEMPT, COL_UNTIL, COL_AT,
	COL_EVENT_ID, COL_CONSUMER, COL_HOLDER, COL_ERROR, COL_POINT, COL_WORK,
	COL_SCOPE, COL_FINGERPRINT, COL_REQUEST, COL_WRITTEN, COL_KEPT, COL_REDRIVEN,
	COL_ORIGIN,
	NCOLS
};

StaticAssertDecl(NCOLS == IDEM_LEASE_COLUMNS, "the form of the tables has each column");

/* The newest row of each part of an event, taken apart. */
typedef struct Parts
{
	const IdemKeyedRow *rows;
	IdemKeyedColumns columns[NPARTS];	/* of the rows that exist */
} Parts;

static void
take_apart(TupleDesc desc, const IdemKeyedRow *rows, Parts *parts)
{
	parts->rows = rows;
	for (int i = 0; i < NPARTS; i++)
	{
		if (rows[i].tuple != NULL)
			idem_keyed_form_take_apart(&idem_lease_log, desc, rows[i].tuple, &parts->columns[i]);
	}
}

/* The state that counts; FREE if there is no row. */
static char
state_of(const Parts *parts)
{
	const IdemKeyedColumns *state = &parts->columns[PART_STATE];

	return parts->rows[PART_STATE].tuple == NULL || state->nulls[COL_STATE] ? IDEM_LEASE_FREE :
		DatumGetChar(state->values[COL_STATE]);
}

/* Does the part belong to the lease that the event is in? */
static bool
is_of_lease(const Parts *parts, int part)
{
	return state_of(parts) == IDEM_LEASE_LEASED && parts->rows[part].tuple != NULL &&
		DatumGetInt64(idem_keyed_column(&parts->columns[part], COL_TOKEN)) ==
		parts->rows[PART_STATE].number;
}

/* The part that says when the state ends: the state itself, or a later one. */
static const IdemKeyedColumns *
last_end(const Parts *parts)
{
	return &parts->columns[is_of_lease(parts, PART_END) ? PART_END : PART_STATE];
}

/* When a row expires, in seconds of uptime.h; 0: never. */
static int64
expiry_of(const IdemKeyedColumns *row)
{
	int64		kept = DatumGetInt64(idem_keyed_column(row, COL_KEPT));

	return kept == 0 ? 0 : DatumGetInt64(idem_keyed_column(row, COL_WRITTEN)) + kept;
}

/* Until when a row says that its state lasts. */
static TimestampTz
until_of(const IdemKeyedColumns *row)
{
	return DatumGetTimestampTz(idem_keyed_column(row, COL_UNTIL));
}

/*
 * Has nothing happened to the event for so long that it may be forgotten?  While a lease
 * or a pause lasts by the clock, it may not, whatever the other time says.  Nobody may
 * find afterwards that the time is not over yet, by a clock that was set back.
 */
static bool
is_expired(const Parts *parts)
{
	const IdemKeyedColumns *end = last_end(parts);
	int64		expiry = expiry_of(end);
	int64		now;

	return expiry != 0 && idem_uptime_try_now(&now) && now >= expiry + IDEM_UPTIME_MAX_BACK &&
		until_of(end) <= GetCurrentTimestamp();
}

/*
 * The callback IdemKeyedLog.judge.  What has expired goes as a whole, and only when
 * nothing older would come to light: as a tombstone does.  Another end of the lease may
 * be written meanwhile, but not after its time is over (claim/leased.c).
 */
static void
judge(TupleDesc desc, const IdemKeyedRow *rows, IdemKeyedNeed *need)
{
	Parts		parts;

	take_apart(desc, rows, &parts);
	need[PART_STATE] = state_of(&parts) == IDEM_LEASE_FREE ? IDEM_KEYED_TOMBSTONE :
		is_expired(&parts) ? IDEM_KEYED_EXPIRED : IDEM_KEYED_NEEDED;
	need[PART_END] = is_of_lease(&parts, PART_END) ? need[PART_STATE] : IDEM_KEYED_SPENT;
	need[PART_POINT] = is_of_lease(&parts, PART_POINT) ? need[PART_STATE] : IDEM_KEYED_SPENT;
}

/* Is it the state of an event that somebody works on, or that waits or is dead? */
static bool
is_state_sound(const Datum *values, const bool *nulls)
{
	return !nulls[COL_UNTIL] && !nulls[COL_ATTEMPT] &&
		DatumGetInt32(values[COL_ATTEMPT]) >= 0 &&
		DatumGetInt32(values[COL_ATTEMPT]) < IDEM_SOUND_COUNT &&
		idem_sound_text(values[COL_EVENT_ID], nulls[COL_EVENT_ID], 1, IDEM_MAX_ID_BYTES) &&
		idem_sound_text(values[COL_CONSUMER], nulls[COL_CONSUMER], 1, IDEM_MAX_NAME_BYTES) &&
		idem_sound_text_or_null(values[COL_SCOPE], nulls[COL_SCOPE], 0, IDEM_MAX_NAME_BYTES) &&
		idem_sound_text_or_null(values[COL_FINGERPRINT], nulls[COL_FINGERPRINT], 1, IDEM_MAX_NAME_BYTES);
}

/*
 * The callback IdemKeyedLog.is_sound.  The constraint "sound" of the tables says the same, but
 * allows for texts that grow when a dump is restored into another encoding.
 */
static bool
is_sound(const Datum *values, const bool *nulls)
{
	char		kind = DatumGetChar(values[COL_KIND]);

	if (!idem_sound_expiry(values[COL_WRITTEN], nulls[COL_WRITTEN], values[COL_KEPT], nulls[COL_KEPT]) ||
		!idem_sound_time(values[COL_AT], nulls[COL_AT]))
		return false;
	if (kind == KINDS[PART_END])
		return !nulls[COL_TOKEN] && !nulls[COL_UNTIL];
	if (kind == KINDS[PART_POINT])
		return !nulls[COL_TOKEN];
	if (nulls[COL_STATE])
		return false;
	switch (DatumGetChar(values[COL_STATE]))
	{
		case IDEM_LEASE_FREE:
			return true;
		case IDEM_LEASE_LEASED:
		case IDEM_LEASE_WAITING:
		case IDEM_LEASE_DEAD:
			return is_state_sound(values, nulls);
	}
	return false;
}

const IdemKeyedLog idem_lease_log = {
	.tables = idem_lease_tables,
	.indexes = idem_lease_indexes,
	.ntables = IDEM_LEASE_TABLES,
	.sequence = &idem_lease_number,
	.what = "a lease",
	.kinds = KINDS,
	.max_blocks = IDEM_KEYED_MAX_BLOCKS,
	.pass_blocks = IDEM_KEYED_PASS_BLOCKS,
	.dump_blocks = &lease_log_dump_size,
	.draw = idem_token_draw_unflushed,
	.is_sound = is_sound,
	.judge = judge,
	.at = COL_AT + 1,
	.origin = COL_ORIGIN + 1
};

/* A column of variable length, or a copy; NULL if it is. */
static void *
value_of(const IdemKeyedColumns *row, int column, bool copy)
{
	if (row->nulls[column])
		return NULL;
	return copy ? (void *) PG_DETOAST_DATUM_COPY(row->values[column]) : DatumGetPointer(row->values[column]);
}

/* Fill in a lease from the rows that have its state, its end and its recovery point. */
static void
get_lease(const IdemKeyedColumns *state, const IdemKeyedColumns *end, const IdemKeyedColumns *point,
		  bool copy, IdemLease *lease)
{
	lease->token = DatumGetInt64(idem_keyed_column(state, COL_NUMBER));
	lease->attempt = DatumGetInt32(idem_keyed_column(state, COL_ATTEMPT));
	lease->redriven = DatumGetBool(idem_keyed_column(state, COL_REDRIVEN));
	lease->until = until_of(end);
	lease->at = DatumGetTimestampTz(idem_keyed_column(state, COL_AT));
	lease->expires = expiry_of(end);
	lease->holder = value_of(state, COL_HOLDER, copy);
	lease->error = value_of(state, COL_ERROR, copy);
	lease->fingerprint = value_of(state, COL_FINGERPRINT, copy);
	lease->request = value_of(state, COL_REQUEST, copy);
	lease->recovery_point = value_of(point, COL_POINT, copy);
	lease->work = value_of(point, COL_WORK, copy);
}

void
idem_lease_none(IdemLease *lease)
{
	memset(lease, 0, sizeof(*lease));
	lease->state = IDEM_LEASE_FREE;
	lease->in_snapshot = lease->point_in_snapshot = true;
}

bool
idem_lease_find(IdemKeyedAccess *log, const pg_uuid_t *digest, IdemLease *lease)
{
	IdemKeyedAccess *open = log != NULL ? log : idem_keyed_access_open(&idem_lease_log, IDEM_KEYED_TO_READ);
	IdemKeyedRow rows[NPARTS];
	Parts		parts;

	idem_lease_none(lease);
	idem_keyed_access_look_up(open, digest, rows);
	if (rows[PART_STATE].tuple != NULL)
	{
		take_apart(idem_keyed_access_desc(open), rows, &parts);
		lease->state = state_of(&parts);
		lease->in_snapshot = rows[PART_STATE].in_snapshot;
		if (lease->state != IDEM_LEASE_FREE)
		{
			int			point = is_of_lease(&parts, PART_POINT) ? PART_POINT : PART_STATE;

			get_lease(&parts.columns[PART_STATE], last_end(&parts), &parts.columns[point], true, lease);
			lease->point_in_snapshot = rows[point].in_snapshot;
		}
	}
	if (log == NULL)
		idem_keyed_access_close(open);
	for (int i = 0; i < NPARTS; i++)
	{
		if (rows[i].tuple != NULL)
			heap_freetuple(rows[i].tuple);
	}
	return lease->state != IDEM_LEASE_FREE;
}

void
idem_lease_free_values(IdemLease *lease)
{
	void	   *values[] = {lease->holder, lease->error, lease->recovery_point, lease->work,
	lease->fingerprint, lease->request};

	for (int i = 0; i < lengthof(values); i++)
	{
		if (values[i] != NULL)
			pfree(values[i]);
	}
	lease->holder = lease->error = lease->recovery_point = NULL;
	lease->work = lease->fingerprint = lease->request = NULL;
}

/* All that is open */

/* Get the part of a kind that belongs to the lease that the scan has come to. */
static bool
get_part(IdemKeyedScan *scan, int part, const IdemOpenLease *open, IdemKeyedColumns *row)
{
	return open->lease.state == IDEM_LEASE_LEASED && idem_keyed_scan_part(scan, KINDS[part], row) &&
		DatumGetInt64(idem_keyed_column(row, COL_TOKEN)) == open->lease.token;
}

/* Fill in what the row of a state has. */
static void
get_open(const IdemKeyedColumns *row, IdemOpenLease *open)
{
	open->lease.state = row->nulls[COL_STATE] ? IDEM_LEASE_FREE : DatumGetChar(row->values[COL_STATE]);
	get_lease(row, row, row, false, &open->lease);
	open->consumer = idem_keyed_column(row, COL_CONSUMER);
	open->scope = idem_keyed_column(row, COL_SCOPE);
	open->id = idem_keyed_column(row, COL_EVENT_ID);
}

bool
idem_lease_scan_next(IdemKeyedScan *scan, IdemLeaseWants wants, void *arg, IdemOpenLease *open)
{
	IdemKeyedColumns row;

	while (idem_keyed_scan_next(scan, &row))
	{
		get_open(&row, open);
		if (open->lease.state == IDEM_LEASE_FREE || !wants(open, arg) || !idem_keyed_scan_is_newest(scan))
			continue;
		if (get_part(scan, PART_END, open, &row))
		{
			open->lease.until = until_of(&row);
			open->lease.expires = expiry_of(&row);
		}
		if (get_part(scan, PART_POINT, open, &row))
			open->lease.recovery_point = value_of(&row, COL_POINT, false);
		return true;
	}
	return false;
}

/* Is it a dead one of the consumer?  (IdemLeaseWants) */
static bool
is_dead_of(const IdemOpenLease *open, void *consumer)
{
	return open->lease.state == IDEM_LEASE_DEAD &&
		DatumGetBool(DirectFunctionCall2Coll(texteq, C_COLLATION_OID, open->consumer,
											 PointerGetDatum(consumer)));
}

void
idem_lease_scan_dead(const char *consumer, int consumerlen, IdemLeaseVisit visit, void *arg)
{
	text	   *name = cstring_to_text_with_len(consumer, consumerlen);
	IdemKeyedScan *scan = idem_keyed_scan_begin(&idem_lease_log);
	IdemOpenLease open;
	bool		more = true;

	while (more && idem_lease_scan_next(scan, is_dead_of, name, &open))
	{
		text	   *scope = open.scope == (Datum) 0 ? NULL : DatumGetTextPCopy(open.scope);
		text	   *id = DatumGetTextPCopy(open.id);

		more = visit(scope, id, arg);
		pfree(id);
		if (scope != NULL)
			pfree(scope);
	}
	idem_keyed_scan_end(scan);
}

/* Set the columns by which people know the event or the request. */
static void
set_name(IdemKeyedColumns *row, const IdemLeaseName *name)
{
	if (name->scopelen > 0)
		idem_keyed_form_set_text(row, COL_SCOPE, name->scope, name->scopelen);
	idem_keyed_form_set_text(row, COL_EVENT_ID, name->id, name->idlen);
	idem_keyed_form_set_text(row, COL_CONSUMER, name->consumer, name->consumerlen);
}

/* Have a row expire "kept" seconds after a time; 0: never. */
static void
set_expiry(IdemKeyedColumns *row, TimestampTz until, int64 kept)
{
	TimestampTz now = GetCurrentTimestamp();

	if (kept == 0)
		return;
	if (until > now)
		kept += (until - now) / USECS_PER_SEC + 1;
	idem_keyed_form_set(row, COL_WRITTEN, Int64GetDatum(idem_uptime_now()));
	idem_keyed_form_set(row, COL_KEPT, Int64GetDatum(kept));
}

HeapTuple
idem_lease_restamp(HeapTuple tuple, TupleDesc desc)
{
	int64		now = idem_uptime_now();
	int			columns[] = {COL_ORIGIN + 1, COL_WRITTEN + 1};
	Datum		values[lengthof(columns)] = {0, Int64GetDatum(now)};
	bool		nulls[lengthof(columns)] = {true, false};
	bool		is_null;
	int64		kept = DatumGetInt64(heap_getattr(tuple, COL_KEPT + 1, desc, &is_null));

	/* the constraint, which comes after the trigger, refuses other times */
	if (is_null || kept <= 0 || kept > IDEM_SOUND_SECONDS)
		return heap_modify_tuple_by_cols(tuple, desc, 1, columns, values, nulls);
	idem_uptime_need(now, kept);
	return heap_modify_tuple_by_cols(tuple, desc, lengthof(columns), columns, values, nulls);
}

void
idem_lease_write(IdemKeyedAccess *log, const IdemLeaseName *name, const IdemLease *lease)
{
	IdemKeyedColumns row;

	idem_keyed_form_begin(&idem_lease_log, &row, lease->token, &name->digest, KINDS[PART_STATE]);
	set_name(&row, name);
	idem_keyed_form_set(&row, COL_STATE, CharGetDatum(lease->state));
	idem_keyed_form_set(&row, COL_ATTEMPT, Int32GetDatum(lease->attempt));
	if (lease->redriven)
		idem_keyed_form_set(&row, COL_REDRIVEN, BoolGetDatum(true));
	idem_keyed_form_set(&row, COL_UNTIL, TimestampTzGetDatum(lease->until));
	set_expiry(&row, lease->until, lease->kept);
	idem_keyed_form_set_pointer(&row, COL_HOLDER, lease->holder);
	idem_keyed_form_set_pointer(&row, COL_ERROR, lease->error);
	idem_keyed_form_set_pointer(&row, COL_POINT, lease->recovery_point);
	idem_keyed_form_set_pointer(&row, COL_WORK, lease->work);
	idem_keyed_form_set_pointer(&row, COL_FINGERPRINT, lease->fingerprint);
	idem_keyed_form_set_pointer(&row, COL_REQUEST, lease->request);
	idem_keyed_worker_append(log, &row);
}

void
idem_lease_free(IdemKeyedAccess *log, const IdemLeaseName *name)
{
	IdemKeyedColumns row;

	idem_keyed_form_begin(&idem_lease_log, &row, idem_token_draw_unflushed(), &name->digest, KINDS[PART_STATE]);
	idem_keyed_form_set(&row, COL_STATE, CharGetDatum(IDEM_LEASE_FREE));
	idem_keyed_worker_append(log, &row);
}

void
idem_lease_write_end(IdemKeyedAccess *log, const IdemLeaseName *name, int64 token, TimestampTz until,
					 int64 kept)
{
	IdemKeyedColumns row;

	idem_keyed_form_begin(&idem_lease_log, &row, idem_token_draw_unflushed(), &name->digest, KINDS[PART_END]);
	idem_keyed_form_set(&row, COL_TOKEN, Int64GetDatum(token));
	idem_keyed_form_set(&row, COL_UNTIL, TimestampTzGetDatum(until));
	set_expiry(&row, until, kept);
	idem_keyed_worker_append(log, &row);
}

void
idem_lease_write_point(IdemKeyedAccess *log, const IdemLeaseName *name, int64 token,
					   text *recovery_point, struct varlena *work)
{
	IdemKeyedColumns row;

	idem_keyed_form_begin(&idem_lease_log, &row, idem_token_draw_unflushed(), &name->digest, KINDS[PART_POINT]);
	idem_keyed_form_set(&row, COL_TOKEN, Int64GetDatum(token));
	idem_keyed_form_set_pointer(&row, COL_POINT, recovery_point);
	idem_keyed_form_set_pointer(&row, COL_WORK, work);
	idem_keyed_worker_append(log, &row);
}
