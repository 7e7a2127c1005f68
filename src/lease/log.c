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
#include "lease/setting.h"
#include "lease/table.h"
#include "lease/token.h"
#include "shared/args.h"
#include "shared/keyed_log.h"
#include "shared/keyed_read.h"
#include "shared/keyed_form.h"
#include "shared/keyed_scan.h"
#include "shared/keyed_worker.h"
#include "shared/sound.h"
#include "shared/uptime.h"

/* A table that is longer loses its turn; blocks that a step copies. */
#ifdef IDEMPOTENCY_FAULT_POINTS
#define MAX_BLOCKS	2			/* turns have fault points in them */
#define PASS_BLOCKS	1
#else
#define MAX_BLOCKS	256
#define PASS_BLOCKS	32
#endif

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

/* The callback IdemKeyedLog.form_marker. */
static HeapTuple
form_marker(TupleDesc desc, int64 number)
{
	return idem_keyed_form_marker(&idem_lease_log, desc, number);
}

/* A part of an event: its newest row, taken apart. */
typedef struct Part
{
	bool		exists;			/* false: there is no row, and nothing else is
								 * set */
	bool		in_snapshot;
	int64		number;
	Datum		values[NCOLS];
	bool		nulls[NCOLS];
} Part;

static void
take_apart(TupleDesc desc, const IdemKeyedRow *rows, Part *parts)
{
	for (int i = 0; i < NPARTS; i++)
	{
		parts[i].exists = rows[i].tuple != NULL;
		if (!parts[i].exists)
			continue;
		parts[i].in_snapshot = rows[i].in_snapshot;
		parts[i].number = rows[i].number;
		idem_keyed_form_take_apart(desc, rows[i].tuple, NCOLS, parts[i].values, parts[i].nulls);
	}
}

/* The value of a column, or the default where it is NULL. */
static Datum
column_or(const Part *part, int column, Datum otherwise)
{
	return part->nulls[column] ? otherwise : part->values[column];
}

/* The state that counts; FREE if there is no row. */
static char
state_of(const Part *parts)
{
	if (!parts[PART_STATE].exists)
		return IDEM_LEASE_FREE;
	return DatumGetChar(column_or(&parts[PART_STATE], COL_STATE, CharGetDatum(IDEM_LEASE_FREE)));
}

/* Does the part belong to the lease that the event is in? */
static bool
is_of_lease(const Part *parts, int part)
{
	return state_of(parts) == IDEM_LEASE_LEASED && parts[part].exists &&
		DatumGetInt64(column_or(&parts[part], COL_TOKEN, Int64GetDatum(0))) ==
		parts[PART_STATE].number;
}

/* The part that says when the state ends: the state itself, or a later one. */
static const Part *
last_end(const Part *parts)
{
	return &parts[is_of_lease(parts, PART_END) ? PART_END : PART_STATE];
}

/* When a part expires, in seconds of uptime.h; 0: never. */
static int64
expiry_of(const Part *part)
{
	int64		kept = DatumGetInt64(column_or(part, COL_KEPT, Int64GetDatum(0)));

	return kept == 0 ? 0 :
		DatumGetInt64(column_or(part, COL_WRITTEN, Int64GetDatum(0))) + kept;
}

/*
 * Has nothing happened to the event for so long that it may be forgotten?  While a lease
 * or a pause lasts by the clock, it may not, whatever the other time says.  Nobody may
 * find afterwards that the time is not over yet, by a clock that was set back.
 */
static bool
is_expired(const Part *parts)
{
	const Part *end = last_end(parts);
	int64		expiry = expiry_of(end);
	int64		now;

	return expiry != 0 && idem_uptime_try_now(&now) && now >= expiry + IDEM_UPTIME_MAX_BACK &&
		DatumGetTimestampTz(column_or(end, COL_UNTIL, TimestampTzGetDatum(0))) <=
		GetCurrentTimestamp();
}

/*
 * The callback IdemKeyedLog.judge.  What has expired goes as a whole, and only when
 * nothing older would come to light: as a tombstone does.  Another end of the lease may
 * be written meanwhile, but not after its time is over (claim/leased.c).
 */
static void
judge(TupleDesc desc, const IdemKeyedRow *rows, IdemKeyedNeed *need)
{
	Part		parts[NPARTS];

	take_apart(desc, rows, parts);
	need[PART_STATE] = state_of(parts) == IDEM_LEASE_FREE ? IDEM_KEYED_TOMBSTONE :
		is_expired(parts) ? IDEM_KEYED_EXPIRED : IDEM_KEYED_NEEDED;
	need[PART_END] = is_of_lease(parts, PART_END) ? need[PART_STATE] : IDEM_KEYED_SPENT;
	need[PART_POINT] = is_of_lease(parts, PART_POINT) ? need[PART_STATE] : IDEM_KEYED_SPENT;
}

/* Is a row's time of expiry one that can be computed with? */
static bool
is_expiry_sound(const Datum *values, const bool *nulls)
{
	return nulls[COL_WRITTEN] == nulls[COL_KEPT] &&
		idem_sound_number_or_null(values[COL_WRITTEN], nulls[COL_WRITTEN], 0, IDEM_SOUND_SECONDS) &&
		idem_sound_number_or_null(values[COL_KEPT], nulls[COL_KEPT], 0, IDEM_SOUND_SECONDS);
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

	if (!is_expiry_sound(values, nulls) || !idem_sound_time(values[COL_AT], nulls[COL_AT]))
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

/* The callback IdemKeyedLog.dump_blocks. */
static BlockNumber
dump_blocks(void)
{
	return idem_lease_log_dump_size;
}

const IdemKeyedLog idem_lease_log = {
	.tables = idem_lease_tables,
	.indexes = idem_lease_indexes,
	.ntables = IDEM_LEASE_TABLES,
	.sequence = &idem_lease_number,
	.kinds = KINDS,
	.max_blocks = MAX_BLOCKS,
	.pass_blocks = PASS_BLOCKS,
	.dump_blocks = dump_blocks,
	.draw = idem_token_draw_unflushed,
	.is_sound = is_sound,
	.form_marker = form_marker,
	.judge = judge,
	.at = COL_AT + 1,
	.origin = COL_ORIGIN + 1
};

/* A copy of a column of variable length; NULL if it is. */
static void *
copy_varlena(const Part *part, int column)
{
	return part->nulls[column] ? NULL : PG_DETOAST_DATUM_COPY(part->values[column]);
}

/* Fill in the recovery point and its work from a part. */
static void
get_point(const Part *part, IdemLease *lease)
{
	lease->recovery_point = copy_varlena(part, COL_POINT);
	lease->work = copy_varlena(part, COL_WORK);
	lease->point_in_snapshot = part->in_snapshot;
}

/* Fill in a lease from the parts of its event. */
static void
get_lease(const Part *parts, IdemLease *lease)
{
	const Part *state = &parts[PART_STATE];
	const Part *end = last_end(parts);

	lease->token = state->number;
	lease->attempt = DatumGetInt32(column_or(state, COL_ATTEMPT, Int32GetDatum(0)));
	lease->redriven = DatumGetBool(column_or(state, COL_REDRIVEN, BoolGetDatum(false)));
	lease->until = DatumGetTimestampTz(column_or(end, COL_UNTIL, TimestampTzGetDatum(0)));
	lease->at = DatumGetTimestampTz(column_or(state, COL_AT, TimestampTzGetDatum(0)));
	lease->expires = expiry_of(end);
	lease->holder = copy_varlena(state, COL_HOLDER);
	lease->error = copy_varlena(state, COL_ERROR);
	lease->fingerprint = copy_varlena(state, COL_FINGERPRINT);
	lease->request = copy_varlena(state, COL_REQUEST);
	get_point(&parts[is_of_lease(parts, PART_POINT) ? PART_POINT : PART_STATE], lease);
}

IdemKeyedAccess *
idem_lease_open(void)
{
	return idem_keyed_access_open(&idem_lease_log);
}

IdemKeyedAccess *
idem_lease_open_to_look(void)
{
	return idem_keyed_access_open_to_read(&idem_lease_log);
}

void
idem_lease_close(IdemKeyedAccess *log)
{
	idem_keyed_access_close(log);
}

/* Fill in a lease from the rows of its event, if it has a state. */
static void
get_state(TupleDesc desc, const IdemKeyedRow *rows, IdemLease *lease)
{
	Part		parts[NPARTS];

	take_apart(desc, rows, parts);
	lease->state = state_of(parts);
	lease->in_snapshot = rows[PART_STATE].in_snapshot;
	if (lease->state != IDEM_LEASE_FREE)
		get_lease(parts, lease);
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
	IdemKeyedRow rows[NPARTS];
	TupleDesc	desc;

	idem_lease_none(lease);
	if (log != NULL)
		idem_keyed_access_look_up(log, digest, rows);
	else
	{
		idem_keyed_log_look_up(&idem_lease_log, digest, rows);
		idem_keyed_refuse_unsound(&idem_lease_log, rows);
	}
	if (rows[PART_STATE].tuple == NULL)
		return false;
	if (log != NULL)
		get_state(idem_keyed_access_desc(log), rows, lease);
	else
	{
		desc = idem_keyed_log_desc(&idem_lease_log);
		get_state(desc, rows, lease);
		FreeTupleDesc(desc);
	}
	for (int i = 0; i < NPARTS; i++)
	{
		if (rows[i].tuple != NULL)
			heap_freetuple(rows[i].tuple);
	}
	return lease->state != IDEM_LEASE_FREE;
}

/* Give a value back, if there is one. */
static void
free_value(void *value)
{
	if (value != NULL)
		pfree(value);
}

void
idem_lease_free_values(IdemLease *lease)
{
	free_value(lease->holder);
	free_value(lease->error);
	free_value(lease->recovery_point);
	free_value(lease->work);
	free_value(lease->fingerprint);
	free_value(lease->request);
	lease->holder = lease->error = lease->recovery_point = NULL;
	lease->work = lease->fingerprint = lease->request = NULL;
}

/* All that is open */

struct IdemLeaseScan
{
	IdemKeyedScan *keys;
};

IdemLeaseScan *
idem_lease_scan_begin(void)
{
	IdemLeaseScan *scan = palloc(sizeof(IdemLeaseScan));

	scan->keys = idem_keyed_scan_begin(&idem_lease_log);
	return scan;
}

void
idem_lease_scan_end(IdemLeaseScan *scan)
{
	idem_keyed_scan_end(scan->keys);
	pfree(scan);
}

/* The value of a column of the row in a slot, or the default where it is NULL. */
static Datum
slot_column_or(TupleTableSlot *slot, int column, Datum otherwise)
{
	bool		isnull;
	Datum		value = slot_getattr(slot, column + 1, &isnull);

	return isnull ? otherwise : value;
}

/* Get the part of a kind that belongs to the lease that the scan has come to; or NULL. */
static TupleTableSlot *
part_of_lease(IdemLeaseScan *scan, int part, const IdemOpenLease *open)
{
	TupleTableSlot *slot;

	if (open->state != IDEM_LEASE_LEASED)
		return NULL;
	slot = idem_keyed_scan_part(scan->keys, KINDS[part]);
	return slot != NULL &&
		DatumGetInt64(slot_column_or(slot, COL_TOKEN, Int64GetDatum(0))) == open->token ? slot : NULL;
}

/* When the row in a slot expires, in seconds of uptime.h; 0: never. */
static int64
slot_expiry(TupleTableSlot *slot)
{
	int64		kept = DatumGetInt64(slot_column_or(slot, COL_KEPT, Int64GetDatum(0)));

	return kept == 0 ? 0 :
		DatumGetInt64(slot_column_or(slot, COL_WRITTEN, Int64GetDatum(0))) + kept;
}

/* Fill in what the row of a state has. */
static void
get_open(TupleTableSlot *slot, IdemOpenLease *open)
{
	open->state = DatumGetChar(slot_column_or(slot, COL_STATE, CharGetDatum(IDEM_LEASE_FREE)));
	open->token = DatumGetInt64(slot_column_or(slot, COL_NUMBER, Int64GetDatum(0)));
	open->attempt = DatumGetInt32(slot_column_or(slot, COL_ATTEMPT, Int32GetDatum(0)));
	open->until = DatumGetTimestampTz(slot_column_or(slot, COL_UNTIL, TimestampTzGetDatum(0)));
	open->at = DatumGetTimestampTz(slot_column_or(slot, COL_AT, TimestampTzGetDatum(0)));
	open->expires = slot_expiry(slot);
	open->consumer = slot_column_or(slot, COL_CONSUMER, (Datum) 0);
	open->scope = slot_column_or(slot, COL_SCOPE, (Datum) 0);
	open->id = slot_column_or(slot, COL_EVENT_ID, (Datum) 0);
	open->holder = slot_column_or(slot, COL_HOLDER, (Datum) 0);
	open->error = slot_column_or(slot, COL_ERROR, (Datum) 0);
	open->recovery_point = slot_column_or(slot, COL_POINT, (Datum) 0);
	open->request = slot_column_or(slot, COL_REQUEST, (Datum) 0);
}

/*
 * Fill in what later rows of the lease say.  The slot of a part is used for the next
 * one again.
 */
static void
get_parts(IdemLeaseScan *scan, IdemOpenLease *open)
{
	TupleTableSlot *later = part_of_lease(scan, PART_END, open);

	if (later != NULL)
	{
		open->until = DatumGetTimestampTz(slot_column_or(later, COL_UNTIL, TimestampTzGetDatum(0)));
		open->expires = slot_expiry(later);
	}
	later = part_of_lease(scan, PART_POINT, open);
	if (later != NULL)
		open->recovery_point = slot_column_or(later, COL_POINT, (Datum) 0);
}

bool
idem_lease_scan_next(IdemLeaseScan *scan, IdemLeaseWants wants, void *arg, IdemOpenLease *open)
{
	TupleTableSlot *slot;

	while ((slot = idem_keyed_scan_next(scan->keys)) != NULL)
	{
		get_open(slot, open);
		if (open->state == IDEM_LEASE_FREE || (wants != NULL && !wants(open, arg)) ||
			!idem_keyed_scan_is_newest(scan->keys))
			continue;
		get_parts(scan, open);
		return true;
	}
	return false;
}

/* Is it a dead one of the consumer?  (IdemLeaseWants) */
static bool
is_dead_of(const IdemOpenLease *open, void *consumer)
{
	return open->state == IDEM_LEASE_DEAD &&
		DatumGetBool(DirectFunctionCall2Coll(texteq, C_COLLATION_OID, open->consumer,
											 PointerGetDatum(consumer)));
}

void
idem_lease_scan_dead(const char *consumer, int consumerlen, IdemLeaseVisit visit, void *arg)
{
	text	   *name = cstring_to_text_with_len(consumer, consumerlen);
	IdemLeaseScan *scan = idem_lease_scan_begin();
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
	idem_lease_scan_end(scan);
}

/* Append a row; have the log maintained if it has become long. */
static void
append(IdemKeyedAccess *log, IdemKeyedNewRow *row)
{
	if (idem_keyed_access_append(log, idem_keyed_form_end(idem_keyed_access_desc(log), row)))
		idem_keyed_worker_start();
}

/* Set the columns by which people know the event or the request. */
static void
set_name(IdemKeyedNewRow *row, const IdemLeaseName *name)
{
	if (name->scopelen > 0)
		idem_keyed_form_set_pointer(row, COL_SCOPE, cstring_to_text_with_len(name->scope, name->scopelen));
	idem_keyed_form_set_pointer(row, COL_EVENT_ID, cstring_to_text_with_len(name->id, name->idlen));
	idem_keyed_form_set_pointer(row, COL_CONSUMER, cstring_to_text_with_len(name->consumer, name->consumerlen));
}

/* Have a row expire "kept" seconds after a time; 0: never. */
static void
set_expiry(IdemKeyedNewRow *row, TimestampTz until, int64 kept)
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
	IdemKeyedNewRow row;

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
	append(log, &row);
}

void
idem_lease_free(IdemKeyedAccess *log, const IdemLeaseName *name)
{
	IdemKeyedNewRow row;

	idem_keyed_form_begin(&idem_lease_log, &row, idem_token_draw_unflushed(), &name->digest, KINDS[PART_STATE]);
	idem_keyed_form_set(&row, COL_STATE, CharGetDatum(IDEM_LEASE_FREE));
	append(log, &row);
}

void
idem_lease_write_end(IdemKeyedAccess *log, const IdemLeaseName *name, int64 token, TimestampTz until,
					 int64 kept)
{
	IdemKeyedNewRow row;

	idem_keyed_form_begin(&idem_lease_log, &row, idem_token_draw_unflushed(), &name->digest, KINDS[PART_END]);
	idem_keyed_form_set(&row, COL_TOKEN, Int64GetDatum(token));
	idem_keyed_form_set(&row, COL_UNTIL, TimestampTzGetDatum(until));
	set_expiry(&row, until, kept);
	append(log, &row);
}

void
idem_lease_write_point(IdemKeyedAccess *log, const IdemLeaseName *name, int64 token,
					   text *recovery_point, struct varlena *work)
{
	IdemKeyedNewRow row;

	idem_keyed_form_begin(&idem_lease_log, &row, idem_token_draw_unflushed(), &name->digest, KINDS[PART_POINT]);
	idem_keyed_form_set(&row, COL_TOKEN, Int64GetDatum(token));
	idem_keyed_form_set_pointer(&row, COL_POINT, recovery_point);
	idem_keyed_form_set_pointer(&row, COL_WORK, work);
	append(log, &row);
}
