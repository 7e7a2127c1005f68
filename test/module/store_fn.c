/*-------------------------------------------------------------------------
 *
 * store_fn.c
 *		SQL functions by which tests set and read the state of the dedup store, and
 *		write an entry with a digest of their choice.
 *
 * The tests declare these functions.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		test/module/store_fn.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "fmgr.h"
#include "utils/builtins.h"
#include "utils/rel.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"

#include "compat.h"
#include "shared/empty.h"
#include "store/retention.h"
#include "store/ring.h"
#include "store/state.h"
#include "store/store.h"
#include "shared/uptime.h"

PG_FUNCTION_INFO_V1(idem_test_store_set_fn);
PG_FUNCTION_INFO_V1(idem_test_store_get_fn);
PG_FUNCTION_INFO_V1(idem_test_store_empty_fn);
PG_FUNCTION_INFO_V1(idem_test_store_time_fn);
PG_FUNCTION_INFO_V1(idem_test_store_add_time_fn);
PG_FUNCTION_INFO_V1(idem_test_store_unnoted_fn);
PG_FUNCTION_INFO_V1(idem_test_store_write_fn);

/*
 * store_set(current int, unprobed int): change the state as the packer does, under
 * its lock.
 */
Datum
idem_test_store_set_fn(PG_FUNCTION_ARGS)
{
	Relation	rel = relation_open(idem_store_state_oid(), ShareUpdateExclusiveLock);

	idem_store_set_state(PG_GETARG_INT32(0), PG_GETARG_INT32(1));
	relation_close(rel, ShareUpdateExclusiveLock);
	PG_RETURN_VOID();
}

/*
 * store_empty(number int): empty a segment in place, as the packer does.  False if
 * somebody has it.  The transaction's last act.
 */
Datum
idem_test_store_empty_fn(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(idem_empty_in_place(idem_store_segment_oid(PG_GETARG_INT32(0))));
}

/* store_get(): current segment, segments that need no probe, whether it is sealed. */
Datum
idem_test_store_get_fn(PG_FUNCTION_ARGS)
{
	Relation	rel = relation_open(idem_store_state_oid(), AccessShareLock);
	IdemStoreState state = idem_store_state(rel);
	StringInfoData shown;

	initStringInfo(&shown);
	appendStringInfo(&shown, "current %d, not probed:", state.current);
	for (int i = 0; i < IDEM_STORE_SEGMENTS; i++)
	{
		if (state.unprobed & (1 << i))
			appendStringInfo(&shown, " %d", i);
	}
	appendStringInfoString(&shown, state.sealed ? ", sealed" : ", not sealed");
	relation_close(rel, AccessShareLock);
	PG_RETURN_TEXT_P(cstring_to_text(shown.data));
}

/* store_time(): the time of the store, in seconds. */
Datum
idem_test_store_time_fn(PG_FUNCTION_ARGS)
{
	PG_RETURN_INT64(idem_uptime_now());
}

/* store_add_time(seconds int): let time pass for the store, under the packer's lock. */
Datum
idem_test_store_add_time_fn(PG_FUNCTION_ARGS)
{
	Relation	rel = relation_open(idem_store_state_oid(), ShareUpdateExclusiveLock);

	idem_uptime_set(PG_GETARG_INT32(0), 0);
	relation_close(rel, ShareUpdateExclusiveLock);
	PG_RETURN_VOID();
}

/* store_unnoted(seconds int): nobody has noted the time for so long. */
Datum
idem_test_store_unnoted_fn(PG_FUNCTION_ARGS)
{
	Relation	rel = relation_open(idem_store_state_oid(), ShareUpdateExclusiveLock);

	idem_uptime_set(0, PG_GETARG_INT32(0));
	relation_close(rel, ShareUpdateExclusiveLock);
	PG_RETURN_VOID();
}

/*
 * store_write(digest uuid, event_id text, consumer text, result jsonb): write the
 * completion of an event as a claim does, but with this digest.  Nothing was
 * remembered under the digest before.  result may be NULL.
 */
Datum
idem_test_store_write_fn(PG_FUNCTION_ARGS)
{
	text	   *id = PG_GETARG_TEXT_PP(1);
	text	   *consumer = PG_GETARG_TEXT_PP(2);
	IdemStore  *store = idem_store_open(true);
	IdemNewEntry entry = {
		.digest = *PG_GETARG_UUID_P(0),
		.turn = 1,
		.state = IDEM_ENTRY_COMPLETED,
		.class = IDEM_RETENTION_FOR_EVER,
		.event_id = VARDATA_ANY(id),
		.event_id_len = VARSIZE_ANY_EXHDR(id),
		.consumer = VARDATA_ANY(consumer),
		.consumer_len = VARSIZE_ANY_EXHDR(consumer),
		.claimed_at = GetCurrentTimestamp(),
		.completed_at = GetCurrentTimestamp(),
		.has_result = !PG_ARGISNULL(3),
		.result = PG_ARGISNULL(3) ? (Datum) 0 : PG_GETARG_DATUM(3)
	};
	IdemRow		before;

	idem_store_probe(store, &entry.digest, &before);
	if (before.turn != 0)
		elog(ERROR, "the digest is in use");
	idem_store_insert(store, &entry, 1);
	idem_store_close(store);
	PG_RETURN_VOID();
}
