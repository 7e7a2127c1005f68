/*-------------------------------------------------------------------------
 *
 * state_log_fn.c
 *		SQL functions by which tests drive a state log of three tables.
 *
 * The tests declare these functions.  They create the tables in the
 * extension's schema of tables: test_state_{0,1,2} (id bigint, key int, value
 * text) and the sequence test_state_id.  A key is open while its newest value
 * is not NULL; the newest row of an open key is needed.  Key 0 is the key of
 * markers.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		test/module/state_log_fn.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "catalog/storage.h"
#include "fmgr.h"
#include "utils/builtins.h"

#include "compat.h"
#include "shared/catalog.h"
#include "shared/state_log.h"
#include "shared/table.h"

/* Tests hold this advisory lock to stop a reader at its first row. */
#define READER_LOCK		42

PG_FUNCTION_INFO_V1(idem_test_state_append_fn);
PG_FUNCTION_INFO_V1(idem_test_state_value_fn);
PG_FUNCTION_INFO_V1(idem_test_state_maintain_fn);
PG_FUNCTION_INFO_V1(idem_test_state_remains_fn);
PG_FUNCTION_INFO_V1(idem_test_cut_index_fn);

PGDLLEXPORT void _PG_init(void);
extern void idem_test_take_trees(void);

/*
 * The module needs the invalidations, because tests drop the tables and create
 * them anew.  hold_fn.c has a hook.
 */
void
_PG_init(void)
{
	idem_catalog_init();
	idem_test_take_trees();
}

enum
{
	ATT_ID, ATT_KEY, ATT_VALUE, NATTS
};

typedef struct Row
{
	int			key;
	text	   *value;
}			Row;

typedef struct Entry
{
	IdemStateRow row;
	int			key;
	bool		open;
} Entry;

static IdemRelRef tables[] = {IDEM_RELREF("test_state_0"), IDEM_RELREF("test_state_1"),
IDEM_RELREF("test_state_2")};
static IdemRelRef sequence = IDEM_RELREF("test_state_id");

/* Make the tuple of a row (IdemStateLog.form). */
static HeapTuple
form_row(TupleDesc desc, const void *rows, int i, int64 id)
{
	const		Row *row = &((const Row *) rows)[i];
	Datum		values[NATTS];
	bool		nulls[NATTS] = {false};

	values[ATT_ID] = Int64GetDatum(id);
	values[ATT_KEY] = Int32GetDatum(row->key);
	values[ATT_VALUE] = PointerGetDatum(row->value);
	nulls[ATT_VALUE] = row->value == NULL;
	return idem_table_form_row(desc, NATTS, values, nulls);
}

/* Make the row of key 0 (IdemStateLog.form_marker). */
static HeapTuple
form_marker(TupleDesc desc, int64 id)
{
	Row			marker = {0, NULL};

	return form_row(desc, &marker, 0, id);
}

/* The key of a tuple. */
static int
key_of(HeapTuple tup, TupleDesc desc)
{
	bool		isnull;

	return DatumGetInt32(heap_getattr(tup, ATT_KEY + 1, desc, &isnull));
}

/* Fill an entry (IdemStateLog.read). */
static void
read_entry(HeapTuple tup, TupleDesc desc, IdemStateRow *row, void *arg)
{
	Entry	   *entry = (Entry *) row;

	entry->key = key_of(tup, desc);
	entry->open = !heap_attisnull(tup, ATT_VALUE + 1, desc);
}

/* Order by key (IdemStateLog.compare). */
static int
compare_entries(const IdemStateRow *a, const IdemStateRow *b)
{
	int			x = ((const Entry *) a)->key;
	int			y = ((const Entry *) b)->key;

	return x < y ? -1 : x > y ? 1 : 0;
}

/* Is the row the newest of an open key?  arg: the key of the row before. */
static bool
is_needed(const IdemStateRow *row, void *arg)
{
	const Entry *entry = (const Entry *) row;
	int		   *last_key = arg;
	bool		newest = entry->key != *last_key;

	*last_key = entry->key;
	return newest && entry->open;
}

static const IdemStateLog state_log = {
	.tables = tables,
	.ntables = lengthof(tables),
	.sequence = &sequence,
	.id_column = ATT_ID + 1,
	.max_blocks = 1,
	.form = form_row,
	.form_marker = form_marker,
	.entry_size = sizeof(Entry),
	.read = read_entry,
	.compare = compare_entries,
	.is_needed = is_needed
};

/*
 * test_state_append(key int, value text, n int) -> bigint: append n rows;
 * return the number of the last row
 */
Datum
idem_test_state_append_fn(PG_FUNCTION_ARGS)
{
	int			n = PG_GETARG_INT32(2);
	Row		   *rows = palloc(sizeof(Row) * n);
	int64	   *ids = palloc(sizeof(int64) * n);

	for (int i = 0; i < n; i++)
	{
		rows[i].key = PG_GETARG_INT32(0);
		rows[i].value = PG_ARGISNULL(1) ? NULL : PG_GETARG_TEXT_PP(1);
	}
	idem_state_log_append(&state_log, rows, n, ids);
	PG_RETURN_INT64(ids[n - 1]);
}

typedef struct Newest
{
	int			key;
	bool		waits;
	int64		id;
	text	   *value;
}			Newest;

/* At its first row, a reader that waits takes the lock and gives it back. */
static void
wait_once(Newest * newest)
{
	Datum		lock = Int64GetDatum(READER_LOCK);

	if (!newest->waits)
		return;
	newest->waits = false;
	DirectFunctionCall1(pg_advisory_lock_int8, lock);
	DirectFunctionCall1(pg_advisory_unlock_int8, lock);
}

/* Keep the value of the row if it is the newest of the key so far. */
static void
visit_newest(HeapTuple tup, TupleDesc desc, int table, void *arg)
{
	Newest	   *newest = arg;
	bool		isnull;
	Datum		value;
	int64		id = DatumGetInt64(heap_getattr(tup, ATT_ID + 1, desc, &isnull));

	wait_once(newest);
	if (key_of(tup, desc) != newest->key || id <= newest->id)
		return;
	newest->id = id;
	value = heap_getattr(tup, ATT_VALUE + 1, desc, &isnull);
	newest->value = isnull ? NULL : DatumGetTextPCopy(value);
}

/* test_state_value(key int, waits bool) -> text */
Datum
idem_test_state_value_fn(PG_FUNCTION_ARGS)
{
	Newest		newest = {.key = PG_GETARG_INT32(0), .waits = PG_GETARG_BOOL(1)};

	idem_state_log_scan(&state_log, visit_newest, &newest);
	if (newest.value == NULL)
		PG_RETURN_NULL();
	PG_RETURN_TEXT_P(newest.value);
}

/* test_state_maintain() -> void */
Datum
idem_test_state_maintain_fn(PG_FUNCTION_ARGS)
{
	int			last_key = -1;

	idem_state_log_maintain(&state_log, &last_key);
	PG_RETURN_VOID();
}

/* test_state_remains() -> bool */
Datum
idem_test_state_remains_fn(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(idem_state_log_has_remains(&state_log));
}

/* test_cut_index(index regclass) -> void: what a crash leaves that cuts an emptying short */
Datum
idem_test_cut_index_fn(PG_FUNCTION_ARGS)
{
	Relation	index = index_open(PG_GETARG_OID(0), AccessExclusiveLock);

	RelationTruncate(index, 0);
	index_close(index, NoLock);
	PG_RETURN_VOID();
}
