/*-------------------------------------------------------------------------
 *
 * keys_fn.c
 *		SQL functions by which tests ask the keys of a segment.
 *
 * The tests declare these functions.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		test/module/keys_fn.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/table.h"
#include "access/tableam.h"
#include "executor/spi.h"
#include "executor/tuptable.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/uuid.h"

#include "compat.h"
#include "store/keys.h"
#include "store/ring.h"
#include "store/store.h"

PG_FUNCTION_INFO_V1(idem_test_keys_named_fn);
PG_FUNCTION_INFO_V1(idem_test_keys_missing_fn);
PG_FUNCTION_INFO_V1(idem_test_keys_probed_fn);

/* Commands that run when keys of segment 0 were asked, one each time; NULL: none. */
static char *commands[2];

extern int	__real_idem_keys_find(IdemKeys *keys, const pg_uuid_t *digest, ItemPointerData *tids, bool *thinned);
extern int	__wrap_idem_keys_find(IdemKeys *keys, const pg_uuid_t *digest, ItemPointerData *tids, bool *thinned);

/* The linker has the module's calls of idem_keys_find come here. */
int
__wrap_idem_keys_find(IdemKeys *keys, const pg_uuid_t *digest, ItemPointerData *tids, bool *thinned)
{
	int			n = __real_idem_keys_find(keys, digest, tids, thinned);
	char	   *command = commands[0];

	if (keys->number != 0 || command == NULL)
		return n;
	commands[0] = commands[1];
	commands[1] = NULL;
	SPI_connect();
	SPI_execute(command, false, 0);
	SPI_finish();
	return n;
}

/*
 * keys_probed(digest uuid, first text, second text): the turn that a probe finds, while the
 * commands run between its looks at the keys and at the rows
 */
Datum
idem_test_keys_probed_fn(PG_FUNCTION_ARGS)
{
	IdemStore  *store = idem_store_open(false);
	IdemRow		row;

	commands[0] = text_to_cstring(PG_GETARG_TEXT_PP(1));
	commands[1] = text_to_cstring(PG_GETARG_TEXT_PP(2));
	PG_TRY();
	{
		idem_store_probe(store, PG_GETARG_UUID_P(0), &row);
	}
	PG_FINALLY();
	{
		commands[0] = commands[1] = NULL;
	}
	PG_END_TRY();
	idem_store_close(store);
	PG_RETURN_INT32(row.turn);
}

static Relation
open_keys(IdemKeys *keys, int number)
{
	Relation	heap = table_open(idem_store_segment_oid(number), AccessShareLock);

	idem_keys_open(keys, number, heap);
	return heap;
}

static void
close_keys(IdemKeys *keys)
{
	idem_keys_close(keys);
	table_close(keys->heap, AccessShareLock);
}

/* keys_named(number int, digest uuid): how many places are named; -1: read the segment */
Datum
idem_test_keys_named_fn(PG_FUNCTION_ARGS)
{
	ItemPointerData tids[IDEM_KEYS_MOST];
	IdemKeys	keys;
	bool		thinned;
	int			n;

	open_keys(&keys, PG_GETARG_INT32(0));
	n = idem_keys_find(&keys, PG_GETARG_UUID_P(1), tids, &thinned);
	close_keys(&keys);
	PG_RETURN_INT32(n);
}

/* Is the row named, or need not be? */
static bool
is_named(IdemKeys *keys, TupleTableSlot *row)
{
	ItemPointerData tids[IDEM_KEYS_MOST];
	const pg_uuid_t *digest = DatumGetUUIDP(row->tts_values[IDEM_RING_DIGEST]);
	TupleTableSlot *other = table_slot_create(keys->heap, NULL);
	bool		thinned;
	int			n = idem_keys_find(keys, digest, tids, &thinned);
	bool		named = n < 0 || idem_keys_is_needless(keys, digest, &row->tts_tid);
	SnapshotData dirty;

	for (int i = 0; i < n && !named; i++)
	{
		named = ItemPointerEquals(&tids[i], &row->tts_tid);
		InitDirtySnapshot(dirty);
		if (named || !thinned || !table_tuple_fetch_row_version(keys->heap, &tids[i], &dirty, other))
			continue;
		slot_getsomeattrs(other, IDEM_RING_TURN + 1);
		named = memcmp(DatumGetUUIDP(other->tts_values[IDEM_RING_DIGEST]), digest, UUID_LEN) == 0 &&
			DatumGetInt16(other->tts_values[IDEM_RING_TURN]) > DatumGetInt16(row->tts_values[IDEM_RING_TURN]);
	}
	ExecDropSingleTupleTableSlot(other);
	return named;
}

/*
 * keys_missing(number int): how many rows of a segment that anybody may see have no
 * key, nor has a newer row of the event one
 */
Datum
idem_test_keys_missing_fn(PG_FUNCTION_ARGS)
{
	IdemKeys	keys;
	Relation	heap = open_keys(&keys, PG_GETARG_INT32(0));
	TupleTableSlot *row = table_slot_create(heap, NULL);
	TableScanDesc scan = idem_compat_table_beginscan(heap, SnapshotAny);
	int64		missing = 0;

	while (table_scan_getnextslot(scan, ForwardScanDirection, row))
	{
		CHECK_FOR_INTERRUPTS();
		slot_getsomeattrs(row, IDEM_RING_TURN + 1);
		missing += !row->tts_isnull[IDEM_RING_DIGEST] && !is_named(&keys, row);
	}
	table_endscan(scan);
	ExecDropSingleTupleTableSlot(row);
	close_keys(&keys);
	PG_RETURN_INT64(missing);
}
