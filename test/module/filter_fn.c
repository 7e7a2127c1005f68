/*-------------------------------------------------------------------------
 *
 * filter_fn.c
 *		SQL functions by which tests fill and ask the filters of a slot.
 *
 * The tests declare these functions.  A set of digests is given by a seed: the
 * i-th digest of a seed is always the same.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		test/module/filter_fn.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "fmgr.h"
#include "port/pg_bitutils.h"
#include "utils/array.h"
#include "utils/builtins.h"

#include "compat.h"
#include "store/filter.h"

/* Run numbers mean nothing to filters. */
#define RUN_NUMBER	1

PG_FUNCTION_INFO_V1(idem_test_filter_fill_fn);
PG_FUNCTION_INFO_V1(idem_test_filter_load_fn);
PG_FUNCTION_INFO_V1(idem_test_filter_ask_fn);

/* What idem_test_filter_load_fn loaded for a slot. */
static IdemFilters loaded[IDEM_STORE_SLOTS];

/* The finalizer of splitmix64. */
static uint64
mix(uint64 z)
{
	z = (z ^ (z >> 30)) * UINT64CONST(0xbf58476d1ce4e5b9);
	z = (z ^ (z >> 27)) * UINT64CONST(0x94d049bb133111eb);
	return z ^ (z >> 31);
}

/* The i-th digest of a seed. */
static pg_uuid_t
digest_of(int32 seed, int64 i)
{
	uint64		halves[2];
	pg_uuid_t	digest;

	halves[0] = mix(((uint64) seed << 40) + 2 * i);
	halves[1] = mix(((uint64) seed << 40) + 2 * i + 1);
	memcpy(digest.data, halves, UUID_LEN);
	return digest;
}

/* Order for qsort. */
static int
compare_digests(const void *a, const void *b)
{
	return idem_digest_compare(a, b);
}

/* The first n digests of a seed, in ascending order. */
static pg_uuid_t *
sorted_digests(int32 seed, int64 n)
{
	pg_uuid_t  *digests = palloc_extended(n * sizeof(pg_uuid_t) + 1, MCXT_ALLOC_HUGE);

	for (int64 i = 0; i < n; i++)
		digests[i] = digest_of(seed, i);
	qsort(digests, n, sizeof(pg_uuid_t), compare_digests);
	return digests;
}

/*
 * test_filter_fill(slot int, level int, filter_column int, seed int, n bigint,
 * expected bigint, stop_after bigint) -> text: fill a column with the first n
 * digests of a seed, as a run that expects "expected" ids.  stop_after: if not
 * NULL, the packer dies after so many of them.
 */
Datum
idem_test_filter_fill_fn(PG_FUNCTION_ARGS)
{
	int64		n = PG_GETARG_INT64(4);
	int64		stop = PG_ARGISNULL(6) ? PG_INT64_MAX : PG_GETARG_INT64(6);
	pg_uuid_t  *digests = sorted_digests(PG_GETARG_INT32(3), n);
	const char *answer = "filled";
	IdemSlot	slot;
	IdemSlotWriter *rows;
	IdemFilterWriter *writer;

	idem_slot_open(&slot, PG_GETARG_INT32(0), RowExclusiveLock);
	rows = idem_slot_begin_write(&slot, RUN_NUMBER);
	writer = idem_filter_begin(&slot, rows, PG_GETARG_INT32(1), PG_GETARG_INT32(2), PG_GETARG_INT64(5));
	for (int64 i = 0; i < n && i < stop && writer != NULL; i++)
		idem_filter_add(writer, &digests[i]);
	if (writer == NULL)
		answer = "no filter";
	else if (stop < n)
		answer = "stopped";
	else if (!idem_filter_finish(writer))
		answer = "a page is lost";
	idem_slot_end_write(rows);
	idem_slot_close(&slot, RowExclusiveLock);
	PG_RETURN_TEXT_P(cstring_to_text(answer));
}

/*
 * test_filter_load(slot int, level int) -> int[]: load the filters of a slot,
 * for later questions; the number of pages of each matrix
 */
Datum
idem_test_filter_load_fn(PG_FUNCTION_ARGS)
{
	int			number = PG_GETARG_INT32(0);
	Datum		pages[IDEM_SLOT_RUNS];
	IdemSlot	slot;

	idem_slot_open(&slot, number, AccessShareLock);
	idem_filter_load(&slot, PG_GETARG_INT32(1), &loaded[number]);
	idem_slot_close(&slot, AccessShareLock);
	for (int i = 0; i < loaded[number].nmatrices; i++)
		pages[i] = Int32GetDatum(loaded[number].matrix[i].pages);
	PG_RETURN_ARRAYTYPE_P(construct_array(pages, loaded[number].nmatrices, INT4OID, sizeof(int32), true, TYPALIGN_INT));
}

/*
 * test_filter_ask(slot int, columns int, seed int, n bigint) -> int[]: how many of the
 * first n digests of a seed does each of the columns have, by the filters
 * loaded before?  columns: bits
 */
Datum
idem_test_filter_ask_fn(PG_FUNCTION_ARGS)
{
	int			number = PG_GETARG_INT32(0);
	int64		n = PG_GETARG_INT64(3);
	int32		counts[IDEM_SLOT_RUNS] = {0};
	Datum		values[IDEM_SLOT_RUNS];
	IdemSlot	slot;

	idem_slot_open(&slot, number, AccessShareLock);
	for (int64 i = 0; i < n; i++)
	{
		pg_uuid_t	digest = digest_of(PG_GETARG_INT32(2), i);
		uint32		found = idem_filter_ask(&slot, &loaded[number], (uint32) PG_GETARG_INT32(1), &digest);

		for (; found != 0; found &= found - 1)
			counts[pg_rightmost_one_pos32(found)]++;
	}
	idem_slot_close(&slot, AccessShareLock);
	for (int c = 0; c < IDEM_SLOT_RUNS; c++)
		values[c] = Int32GetDatum(counts[c]);
	PG_RETURN_ARRAYTYPE_P(construct_array(values, IDEM_SLOT_RUNS, INT4OID, sizeof(int32), true, TYPALIGN_INT));
}
