/*-------------------------------------------------------------------------
 *
 * log.c
 *		The log of cursors: how far streams have come, and who may go on.
 *
 * A keyed log (shared/keyed.h) with one row for each state, of four sorts ("what"):
 *
 *	o	a consumer's next offset in a partition, and its generation
 *	s	a producer's last sequence in a partition, and what it has sent there
 *	p	a producer's registration, by its id: its epoch, its role, its rule
 *	n	a producer's id, by its name
 *
 * A row that has only its key says that nothing is known, and is a tombstone.
 * The rows p and n of a producer that nobody uses expire; the rows s of a producer are
 * needed as long as its row p is.  A producer's id is never given to another one, so
 * who claims under a forgotten id is fenced, whatever rows s are left.
 *
 * A crash leaves the committed rows.
 *
 * LOCKING: the key's lock, which the caller holds; below it, as keyed_log.c.
 *
 * MEMORY: the rows of one key, in the caller's context.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/cursor/log.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <limits.h>

#include "access/htup_details.h"
#include "access/transam.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "cursor/log.h"
#include "cursor/table.h"
#include "lease/table.h"
#include "lease/token.h"
#include "shared/durable.h"
#include "shared/keyed_worker.h"
#include "shared/sound.h"
#include "shared/uptime.h"
#include "shared/xid.h"

int			idem_producer_retention = 30 * SECS_PER_DAY;
static int	cursor_log_dump_size = 131072;	/* 1 GB */

void
idem_cursor_setting_init(void)
{
	idem_define_int("idempotency.producer_retention",
					"How long a producer is kept at least that neither registers nor claims a sequence.",
					"Then it is forgotten, and its claims are answered \"fenced\".  0 means for ever.",
					&idem_producer_retention, 0, INT_MAX, PGC_SUSET, GUC_UNIT_S);

	idem_define_int("idempotency.cursor_log_dump_size",
					"How long the log of cursors may become while a dump of the database runs.",
					"Until then no table is emptied that the dump needs. 0: a dump is not waited for.",
					&cursor_log_dump_size, 0, INT_MAX / 2, PGC_SIGHUP, GUC_UNIT_BLOCKS);
}

/* The only kind of rows */
#define KIND	's'
#define KINDS	"s"

/* Columns, from 0 */
enum
{
	COL_NUMBER, COL_DIGEST, COL_KIND, COL_WHAT, COL_POSITION, COL_EPOCH, COL_ACCEPTED, COL_AT,
	COL_IN_EPOCH, COL_PRODUCER_ID, COL_OWNER, COL_TOPIC, COL_PARTITION, COL_GAPLESS,
	COL_ROLE, COL_ROLE_OID, COL_ROLE_CLUSTER, COL_HISTORY, COL_WRITTEN, COL_KEPT,
	COL_ORIGIN, NCOLS
};

StaticAssertDecl(NCOLS == IDEM_CURSOR_COLUMNS, "the form of the tables has each column");

static IdemOwnerNote
get_role(const IdemKeyedColumns *row)
{
	IdemOwnerNote note = {NULL, InvalidOid, IDEM_OWNER_CLUSTER_UNNOTED};

	if (!row->nulls[COL_ROLE])
		note.role = TextDatumGetCString(row->values[COL_ROLE]);
	note.oid = DatumGetObjectId(idem_keyed_column(row, COL_ROLE_OID));
	note.cluster = DatumGetInt64(idem_keyed_column(row, COL_ROLE_CLUSTER));
	return note;
}

/* Fill in a state from its row, but the role. */
static void
get_state(const IdemKeyedColumns *row, IdemCursor *cursor)
{
	cursor->has_position = !row->nulls[COL_POSITION];
	cursor->position = DatumGetInt64(idem_keyed_column(row, COL_POSITION));
	cursor->has_epoch = !row->nulls[COL_EPOCH];
	cursor->epoch = DatumGetInt64(idem_keyed_column(row, COL_EPOCH));
	cursor->accepted = DatumGetInt64(idem_keyed_column(row, COL_ACCEPTED));
	cursor->in_epoch = DatumGetInt64(idem_keyed_column(row, COL_IN_EPOCH));
	cursor->at = DatumGetTimestampTz(idem_keyed_column(row, COL_AT));
	cursor->producer_id = DatumGetInt64(idem_keyed_column(row, COL_PRODUCER_ID));
	cursor->gapless = DatumGetBool(idem_keyed_column(row, COL_GAPLESS));
	cursor->history = DatumGetInt64(idem_keyed_column(row, COL_HISTORY));
	cursor->written = DatumGetInt64(idem_keyed_column(row, COL_WRITTEN));
	cursor->kept = DatumGetInt64(idem_keyed_column(row, COL_KEPT));
	cursor->known = cursor->has_position || cursor->has_epoch ||
		(DatumGetChar(idem_keyed_column(row, COL_WHAT)) == IDEM_CURSOR_NAME && cursor->producer_id != 0);
}

bool
idem_cursor_is_expired(const IdemCursor *cursor, int64 now)
{
	return cursor->kept != 0 && now >= cursor->written + cursor->kept;
}

/*
 * The callback IdemKeyedLog.judge.  Nobody may find afterwards that the time is not over
 * yet, by a clock that was set back.
 */
static void
judge(TupleDesc desc, const IdemKeyedRow *rows, IdemKeyedNeed *need)
{
	IdemCursor	cursor = {0};
	IdemKeyedColumns row;
	int64		now;

	need[0] = IDEM_KEYED_TOMBSTONE;
	if (rows[0].tuple == NULL)
		return;
	idem_keyed_form_take_apart(&idem_cursor_log, desc, rows[0].tuple, &row);
	get_state(&row, &cursor);
	if (cursor.known)
		need[0] = idem_uptime_try_now(&now) &&
			idem_cursor_is_expired(&cursor, now - IDEM_UPTIME_MAX_BACK) ?
			IDEM_KEYED_EXPIRED : IDEM_KEYED_NEEDED;
}

/* The callback IdemKeyedLog.master: a sequence is needed as long as its producer is. */
static bool
master(TupleDesc desc, const IdemKeyedRow *rows, pg_uuid_t *digest)
{
	IdemKeyedColumns row;

	idem_keyed_form_take_apart(&idem_cursor_log, desc, rows[0].tuple, &row);
	if (DatumGetChar(idem_keyed_column(&row, COL_WHAT)) != IDEM_CURSOR_SEQUENCE)
		return false;
	*digest = idem_cursor_producer_digest(DatumGetInt64(idem_keyed_column(&row, COL_PRODUCER_ID)));
	return true;
}

/* Does the row say which partition it is of? */
static bool
has_partition(const Datum *values, const bool *nulls)
{
	return !nulls[COL_PARTITION] && idem_sound_text(values[COL_TOPIC], nulls[COL_TOPIC], 0, IDEM_MAX_NAME_BYTES);
}

/* Are a registration's role and rule there? */
static bool
has_registration(const Datum *values, const bool *nulls)
{
	return nulls[COL_EPOCH] ||
		(!nulls[COL_GAPLESS] && !nulls[COL_HISTORY] &&
		 idem_sound_text(values[COL_OWNER], nulls[COL_OWNER], 1, IDEM_MAX_NAME_BYTES) &&
		 idem_sound_text(values[COL_ROLE], nulls[COL_ROLE], 1, NAMEDATALEN - 1) &&
		 DatumGetInt64(values[COL_EPOCH]) <= PG_INT32_MAX);
}

/* Are the columns there that a row of its kind has? */
static bool
is_kind_sound(const Datum *values, const bool *nulls)
{
	switch (nulls[COL_WHAT] ? '\0' : DatumGetChar(values[COL_WHAT]))
	{
		case IDEM_CURSOR_OFFSET:
			return has_partition(values, nulls) &&
				idem_sound_text(values[COL_OWNER], nulls[COL_OWNER], 1, IDEM_MAX_NAME_BYTES);
		case IDEM_CURSOR_SEQUENCE:
			return has_partition(values, nulls) && !nulls[COL_PRODUCER_ID] &&
				(nulls[COL_POSITION] || DatumGetInt64(values[COL_POSITION]) < PG_INT64_MAX);
		case IDEM_CURSOR_PRODUCER:
			return has_registration(values, nulls) && !nulls[COL_PRODUCER_ID];
		case IDEM_CURSOR_NAME:
			return idem_sound_text(values[COL_OWNER], nulls[COL_OWNER], 1, IDEM_MAX_NAME_BYTES);
	}
	return false;
}

/*
 * The callback IdemKeyedLog.is_sound.  The constraint "sound" of the tables says the same, but
 * allows for texts that grow when a dump is restored into another encoding.
 */
static bool
is_sound(const Datum *values, const bool *nulls)
{
	return idem_sound_time(values[COL_AT], nulls[COL_AT]) &&
		idem_sound_number_or_null(values[COL_POSITION], nulls[COL_POSITION], 0, PG_INT64_MAX) &&
		idem_sound_number_or_null(values[COL_EPOCH], nulls[COL_EPOCH], 0, PG_INT64_MAX) &&
		idem_sound_number_or_null(values[COL_ACCEPTED], nulls[COL_ACCEPTED], 0, IDEM_SOUND_NUMBER) &&
		idem_sound_number_or_null(values[COL_IN_EPOCH], nulls[COL_IN_EPOCH], 0, IDEM_SOUND_NUMBER) &&
		idem_sound_number_or_null(values[COL_PRODUCER_ID], nulls[COL_PRODUCER_ID], 1, PG_INT64_MAX) &&
		idem_sound_expiry(values[COL_WRITTEN], nulls[COL_WRITTEN], values[COL_KEPT], nulls[COL_KEPT]) &&
		is_kind_sound(values, nulls);
}

const IdemKeyedLog idem_cursor_log = {
	.tables = idem_cursor_tables,
	.indexes = idem_cursor_indexes,
	.ntables = IDEM_CURSOR_TABLES,
	.sequence = &idem_lease_number,
	.what = "an offset or a sequence",
	.kinds = KINDS,
	.max_blocks = IDEM_KEYED_MAX_BLOCKS,
	.pass_blocks = IDEM_KEYED_PASS_BLOCKS,
	.dump_blocks = &cursor_log_dump_size,
	.draw = idem_token_draw_unflushed,
	.is_sound = is_sound,
	.judge = judge,
	.master = master,
	.at = COL_AT + 1,
	.origin = COL_ORIGIN + 1
};

void
idem_cursor_find(IdemKeyedAccess *log, const IdemCursorKey *key, IdemCursor *cursor)
{
	IdemKeyedRow found;
	IdemKeyedColumns row;

	memset(cursor, 0, sizeof(*cursor));
	cursor->in_snapshot = true;
	idem_keyed_access_look_up(log, &key->lock.digest, &found);
	if (found.tuple == NULL)
		return;
	idem_keyed_form_take_apart(&idem_cursor_log, idem_keyed_access_desc(log), found.tuple, &row);
	get_state(&row, cursor);
	cursor->role = get_role(&row);
	if (key->what == IDEM_CURSOR_PRODUCER && !row.nulls[COL_OWNER])
		cursor->name = TextDatumGetCString(row.values[COL_OWNER]);
	cursor->writer = HeapTupleHeaderGetXmin(found.tuple->t_data);
	cursor->in_snapshot = found.in_snapshot;
	heap_freetuple(found.tuple);
}

/* Begin a row about a key; producer_id: of the row of a name. */
static void
begin_row(IdemKeyedColumns *row, const IdemCursorKey *key, int64 producer_id)
{
	idem_keyed_form_begin(&idem_cursor_log, row, idem_token_draw_unflushed(), &key->lock.digest, KIND);
	idem_keyed_form_set(row, COL_WHAT, CharGetDatum(key->what));
	idem_keyed_form_set_text(row, COL_OWNER, key->owner.data, key->owner.len);
	if (key->producer_id != 0)
		producer_id = key->producer_id;
	if (producer_id != 0)
		idem_keyed_form_set(row, COL_PRODUCER_ID, Int64GetDatum(producer_id));
	if (key->topic.data == NULL)
		return;
	idem_keyed_form_set_text(row, COL_TOPIC, key->topic.data, key->topic.len);
	idem_keyed_form_set(row, COL_PARTITION, Int32GetDatum(key->partition));
}

void
idem_cursor_write(IdemKeyedAccess *log, const IdemCursorKey *key, const IdemCursor *cursor)
{
	IdemKeyedColumns row;

	begin_row(&row, key, cursor->producer_id);
	if (cursor->has_position)
		idem_keyed_form_set(&row, COL_POSITION, Int64GetDatum(cursor->position));
	if (cursor->has_epoch)
		idem_keyed_form_set(&row, COL_EPOCH, Int64GetDatum(cursor->epoch));
	if (key->what == IDEM_CURSOR_SEQUENCE)
	{
		idem_keyed_form_set(&row, COL_ACCEPTED, Int64GetDatum(cursor->accepted));
		idem_keyed_form_set(&row, COL_IN_EPOCH, Int64GetDatum(cursor->in_epoch));
	}
	if (key->what == IDEM_CURSOR_PRODUCER)
	{
		idem_keyed_form_set(&row, COL_GAPLESS, BoolGetDatum(cursor->gapless));
		idem_keyed_form_set(&row, COL_HISTORY, Int64GetDatum(cursor->history));
		idem_keyed_form_set(&row, COL_ROLE_OID, ObjectIdGetDatum(cursor->role.oid));
		idem_keyed_form_set(&row, COL_ROLE_CLUSTER, Int64GetDatum(cursor->role.cluster));
		idem_keyed_form_set_text(&row, COL_ROLE, cursor->role.role, strlen(cursor->role.role));
	}
	if (cursor->kept != 0)
	{
		idem_keyed_form_set(&row, COL_WRITTEN, Int64GetDatum(idem_uptime_now()));
		idem_keyed_form_set(&row, COL_KEPT, Int64GetDatum(cursor->kept));
	}
	idem_keyed_worker_append(log, &row);
}

void
idem_cursor_write_gone(IdemKeyedAccess *log, const IdemCursorKey *key)
{
	IdemKeyedColumns row;

	begin_row(&row, key, 0);
	idem_keyed_worker_append(log, &row);
}

void
idem_cursor_conflict(const IdemCursorKey *key)
{
	ereport(ERROR,
			(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
			 errmsg("could not serialize access due to concurrent claim in %s", idem_cursor_title(key)),
			 errdetail("Another transaction committed it after this one took its snapshot."),
			 errhint("Retry the transaction.")));
}

void
idem_cursor_await_durable(const IdemCursor *cursor)
{
	XLogRecPtr	commit_lsn = InvalidXLogRecPtr;

	if (TransactionIdIsCurrentTransactionId(cursor->writer))
		return;
	if (TransactionIdIsNormal(cursor->writer))
		commit_lsn = idem_durable_commit_lsn(idem_xid_widen(cursor->writer,
															ReadNextFullTransactionId()));
	idem_durable_wait(idem_durable_target(commit_lsn));
}

HeapTuple
idem_cursor_restore(HeapTuple tuple, TupleDesc desc)
{
	int			columns[] = {
		COL_WRITTEN + 1, COL_ROLE_OID + 1, COL_ROLE_CLUSTER + 1, COL_ORIGIN + 1, COL_HISTORY + 1
	};
	Datum		values[lengthof(columns)] = {0};
	bool		nulls[lengthof(columns)] = {true, true, true, true, true};
	IdemKeyedColumns row;

	idem_keyed_form_take_apart(&idem_cursor_log, desc, tuple, &row);
	/* the constraint, which comes after the trigger, refuses other times */
	if (idem_sound_number(row.values[COL_KEPT], row.nulls[COL_KEPT], 0, IDEM_SOUND_SECONDS))
	{
		int64		now = idem_uptime_now();

		idem_uptime_need(now, DatumGetInt64(row.values[COL_KEPT]));
		values[0] = Int64GetDatum(now);
		nulls[0] = false;
	}
	if (!row.nulls[COL_ROLE])
	{
		values[1] = ObjectIdGetDatum(get_role_oid(TextDatumGetCString(row.values[COL_ROLE]), true));
		values[2] = Int64GetDatum((int64) GetSystemIdentifier());
		nulls[1] = nulls[2] = false;
	}
	if (!row.nulls[COL_HISTORY])
	{
		values[4] = Int64GetDatum(IDEM_CURSOR_RESTORED);
		nulls[4] = false;
	}
	return heap_modify_tuple_by_cols(tuple, desc, lengthof(columns), columns, values, nulls);
}

/* All cursors and registrations */

/* Fill in what a row has, but the role. */
static void
get_open(const IdemKeyedColumns *row, IdemOpenCursor *open)
{
	memset(open, 0, sizeof(*open));
	get_state(row, &open->state);
	open->what = DatumGetChar(idem_keyed_column(row, COL_WHAT));
	open->owner = idem_keyed_column(row, COL_OWNER);
	open->topic = idem_keyed_column(row, COL_TOPIC);
	open->partition = DatumGetInt32(idem_keyed_column(row, COL_PARTITION));
}

/* Is the producer of a sequence registered, as far as it is known now?  Fills in its role. */
static bool
has_producer(IdemOpenCursor *open, int64 now)
{
	pg_uuid_t	digest = idem_cursor_producer_digest(open->state.producer_id);
	IdemCursor	producer = {0};
	IdemKeyedRow found;
	IdemKeyedColumns row;

	idem_keyed_log_look_up(&idem_cursor_log, &digest, &found);
	if (found.tuple == NULL || found.unsound)
		return false;
	idem_keyed_form_take_apart(&idem_cursor_log, idem_keyed_log_desc(&idem_cursor_log), found.tuple, &row);
	get_state(&row, &producer);
	open->state.role = get_role(&row);
	return producer.known && !idem_cursor_is_expired(&producer, now);
}

/* Is the state one that still counts?  Fills in the role. */
static bool
is_live(const IdemKeyedColumns *row, IdemOpenCursor *open)
{
	int64		now = idem_uptime_now();

	if (open->what == IDEM_CURSOR_SEQUENCE)
		return has_producer(open, now);
	open->state.role = get_role(row);
	return !idem_cursor_is_expired(&open->state, now);
}

bool
idem_cursor_scan_next(IdemKeyedScan *scan, MemoryContext context, IdemCursorWants wants, IdemOpenCursor *open)
{
	MemoryContext old;
	IdemKeyedColumns row;
	bool		live;

	while (idem_keyed_scan_next(scan, &row))
	{
		get_open(&row, open);
		if (!open->state.known || !wants(open) || !idem_keyed_scan_is_newest(scan))
			continue;
		MemoryContextReset(context);
		old = MemoryContextSwitchTo(context);
		live = is_live(&row, open);
		MemoryContextSwitchTo(old);
		if (live)
			return true;
	}
	return false;
}
