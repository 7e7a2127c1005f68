/*-------------------------------------------------------------------------
 *
 * keyed_log_fn.c
 *		SQL functions by which tests drive a keyed log of three tables.
 *
 * The tests declare these functions.  They create the tables in the
 * extension's schema of tables: test_keyed_{0,1,2} (number bigint, digest uuid,
 * kind "char", value text), their indexes test_keyed_{0,1,2}_key, and the
 * sequence test_keyed_number.
 *
 * A key has a state, kind "s", and a note, kind "n".  A key is free while its
 * newest state is NULL, or there is none.  A note counts if it is newer than the
 * state, and the key is not free.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		test/module/keyed_log_fn.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "commands/sequence.h"
#include "fmgr.h"
#include "funcapi.h"
#include "port/pg_bswap.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/uuid.h"

#include "compat.h"
#include "shared/catalog.h"
#include "shared/guard.h"
#include "shared/keyed_log.h"
#include "shared/keyed_turn.h"

PG_FUNCTION_INFO_V1(idem_test_keyed_append_fn);
PG_FUNCTION_INFO_V1(idem_test_keyed_look_up_fn);
PG_FUNCTION_INFO_V1(idem_test_keyed_maintain_fn);
PG_FUNCTION_INFO_V1(idem_test_keyed_forget_pass_fn);

enum
{
	ATT_NUMBER, ATT_DIGEST, ATT_KIND, ATT_VALUE, NATTS
};

enum
{
	PART_STATE, PART_NOTE, NPARTS
};

static const IdemColumn columns[NATTS] = {
	[ATT_NUMBER] = {INT8OID, true},
	[ATT_DIGEST] = {UUIDOID, true},
	[ATT_KIND] = {CHAROID, true},
	[ATT_VALUE] = {TEXTOID, false}
};

static const IdemTableForm form = {
	.columns = columns, .ncolumns = NATTS, .index = &idem_keyed_index
};

static IdemRelRef tables[] = {
	IDEM_TABLEREF("test_keyed_0", &form), IDEM_TABLEREF("test_keyed_1", &form), IDEM_TABLEREF("test_keyed_2", &form)
};
static IdemRelRef indexes[] = {IDEM_RELREF("test_keyed_0_key"), IDEM_RELREF("test_keyed_1_key"),
IDEM_RELREF("test_keyed_2_key")};
static IdemRelRef sequence = IDEM_RELREF("test_keyed_number");

static IdemKeyedPass pass;

/* The digest of a key: the key in its last bytes. */
static pg_uuid_t
digest_of(int32 key)
{
	pg_uuid_t	digest = {{0}};
	uint32		big_endian = pg_hton32((uint32) key);

	memcpy(digest.data + UUID_LEN - sizeof(big_endian), &big_endian, sizeof(big_endian));
	return digest;
}

static int64
draw_number(void)
{
	return nextval_internal(idem_relref_oid(&sequence), false);
}

/* Has the key's state a value? */
static bool
is_open(TupleDesc desc, const IdemKeyedRow *rows)
{
	return rows[PART_STATE].tuple != NULL &&
		!heap_attisnull(rows[PART_STATE].tuple, ATT_VALUE + 1, desc);
}

/* The callback IdemKeyedLog.judge. */
static void
judge(TupleDesc desc, const IdemKeyedRow *rows, IdemKeyedNeed *need)
{
	bool		open = is_open(desc, rows);

	need[PART_STATE] = open ? IDEM_KEYED_NEEDED : IDEM_KEYED_TOMBSTONE;
	need[PART_NOTE] = open && rows[PART_NOTE].number > rows[PART_STATE].number ?
		IDEM_KEYED_NEEDED : IDEM_KEYED_SPENT;
}

static const IdemKeyedLog keyed_log = {
	.tables = tables,
	.indexes = indexes,
	.ntables = lengthof(tables),
	.sequence = &sequence,
	.kinds = "sn",
	.max_blocks = 1,
	.pass_blocks = 1,
	.draw = draw_number,
	.judge = judge
};

/*
 * test_keyed_append(key int, kind "char", value text, n int) -> bigint: append n
 * rows; return the number of the last row
 */
Datum
idem_test_keyed_append_fn(PG_FUNCTION_ARGS)
{
	pg_uuid_t	digest = digest_of(PG_GETARG_INT32(0));
	text	   *value = PG_ARGISNULL(2) ? NULL : PG_GETARG_TEXT_PP(2);
	IdemKeyedAccess *access = idem_keyed_access_open(&keyed_log, IDEM_KEYED_TO_WRITE);
	IdemKeyedColumns row;
	int64		number = 0;

	for (int i = 0; i < PG_GETARG_INT32(3); i++)
	{
		number = draw_number();
		idem_keyed_form_begin(&keyed_log, &row, number, &digest, PG_GETARG_CHAR(1));
		idem_keyed_form_set_pointer(&row, ATT_VALUE, value);
		(void) idem_keyed_access_append(access, &row);
	}
	idem_keyed_access_close(access);
	PG_RETURN_INT64(number);
}

/* The value of a part; false if it is NULL or there is no row. */
static bool
value_of(TupleDesc desc, const IdemKeyedRow *row, Datum *value)
{
	bool		isnull = true;

	if (row->tuple != NULL)
		*value = heap_getattr(row->tuple, ATT_VALUE + 1, desc, &isnull);
	return !isnull;
}

/*
 * test_keyed_look_up(key int) -> (state text, note text, in_snapshot bool): what
 * counts of a key, and whether the transaction's snapshot sees its state
 */
Datum
idem_test_keyed_look_up_fn(PG_FUNCTION_ARGS)
{
	pg_uuid_t	digest = digest_of(PG_GETARG_INT32(0));
	TupleDesc	desc = idem_keyed_log_desc(&keyed_log);
	IdemKeyedRow rows[NPARTS];
	TupleDesc	result;
	Datum		values[3];
	bool		nulls[3];

	if (get_call_result_type(fcinfo, NULL, &result) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	idem_keyed_log_look_up(&keyed_log, &digest, rows);
	nulls[0] = !value_of(desc, &rows[PART_STATE], &values[0]);
	nulls[1] = !(is_open(desc, rows) && rows[PART_NOTE].number > rows[PART_STATE].number &&
				 value_of(desc, &rows[PART_NOTE], &values[1]));
	nulls[2] = rows[PART_STATE].tuple == NULL;
	values[2] = BoolGetDatum(rows[PART_STATE].in_snapshot);
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(result), values, nulls)));
}

/* test_keyed_maintain() -> bool: take one step; was there one? */
Datum
idem_test_keyed_maintain_fn(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(idem_keyed_log_maintain(&keyed_log, &pass) == IDEM_KEYED_TAKEN);
}

/* test_keyed_forget_pass() -> void: what a process knows that has just started */
Datum
idem_test_keyed_forget_pass_fn(PG_FUNCTION_ARGS)
{
	memset(&pass, 0, sizeof(pass));
	PG_RETURN_VOID();
}
