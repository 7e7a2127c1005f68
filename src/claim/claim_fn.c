/*-------------------------------------------------------------------------
 *
 * claim_fn.c
 *		Claims for SQL: arguments in, verdicts out.
 *
 * Arguments are checked before the first lock is taken, and the caller's right to
 * use the consumer with them.  Before that, functions that write refuse a standby,
 * a read-only transaction and a parallel worker.  claim_events makes all of its
 * claims in the first call.  So a cursor that fetches one row, or is closed early,
 * has claimed all events.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/claim/claim_fn.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <limits.h>

#include "access/htup_details.h"
#include "catalog/pg_enum.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "funcapi.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "port/pg_bswap.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"
#include "utils/uuid.h"

#include "compat.h"
#include "claim/arg.h"
#include "claim/claim.h"
#include "claim/consumer.h"
#include "claim/count.h"
#include "claim/lease.h"
#include "claim/lock.h"
#include "shared/args.h"
#include "shared/digest.h"
#include "shared/document.h"
#include "shared/progress.h"

PG_FUNCTION_INFO_V1(idem_claim_events_fn);
PG_FUNCTION_INFO_V1(idem_claims_import_fn);
PG_FUNCTION_INFO_V1(idem_claims_progress_fn);
PG_FUNCTION_INFO_V1(idem_claims_renew_fn);
PG_FUNCTION_INFO_V1(idem_complete_events_fn);
PG_FUNCTION_INFO_V1(idem_verify_lock_key_fn);
PG_FUNCTION_INFO_V1(idem_interval_us_fn);
PG_FUNCTION_INFO_V1(idem_consumer_changes_fn);

/* Labels of claim_status, in the order of its C twin */
static const char *const status_labels[] = {
	"processing", "completed", "unknown", "leased", "waiting", "dead"
};

/* claim_event(event_id, consumer, wait, valid_until) */

static Datum
claim_event(FunctionCallInfo fcinfo, IdemGetId get)
{
	IdemStr		id,
				consumer;
	long		wait_ms;
	bool		has_valid_until = !PG_ARGISNULL(3);
	TimestampTz valid_until = 0;
	IdemClaimResult result;

	idem_prevent_read_only("claim_event()");
	id = get(fcinfo, 0);
	consumer = idem_arg_consumer(fcinfo, 1);
	wait_ms = idem_arg_wait(fcinfo, 2);
	if (has_valid_until)
		valid_until = PG_GETARG_TIMESTAMPTZ(3);

	result = idem_claim_event(id, consumer,
							  wait_ms, has_valid_until ? &valid_until : NULL);
	idem_count_verdicts(consumer, result, 1);
	return idem_arg_label(get_func_rettype(fcinfo->flinfo->fn_oid), idem_claim_labels[result]);
}

IDEM_EVENT_FUNCTIONS(claim_event, idem_arg_event_id);

/* complete_event(event_id, consumer, result, token) */

static Datum
complete_event(FunctionCallInfo fcinfo, IdemGetId get)
{
	IdemStr		id,
				consumer;
	bool		has_result = !PG_ARGISNULL(2);
	Datum		result;

	idem_prevent_read_only("complete_event()");
	idem_prevent_running_ahead("complete_event()", false);
	id = get(fcinfo, 0);
	consumer = idem_arg_consumer(fcinfo, 1);
	result = has_result ? PG_GETARG_DATUM(2) : (Datum) 0;
	if (has_result)
		idem_check_document("result", result, IDEM_MAX_DOCUMENT_TEXT);

	if (PG_ARGISNULL(3))
		idem_complete_event(id, consumer, result, has_result);
	else
		idem_lease_complete(id, consumer, PG_GETARG_INT64(3),
							result, has_result);
	PG_RETURN_VOID();
}

IDEM_EVENT_FUNCTIONS(complete_event, idem_arg_event_id);

/* release_event(event_id, consumer) */

static Datum
release_event(FunctionCallInfo fcinfo, IdemGetId get)
{
	IdemStr		id,
				consumer;

	idem_prevent_read_only("release_event()");
	id = get(fcinfo, 0);
	consumer = idem_arg_consumer(fcinfo, 1);

	idem_release_event(id, consumer);
	PG_RETURN_VOID();
}

IDEM_EVENT_FUNCTIONS(release_event, idem_arg_event_id);

/* forget_event(event_id, consumer) */

static Datum
forget_event(FunctionCallInfo fcinfo, IdemGetId get)
{
	IdemStr		id,
				consumer;

	idem_prevent_read_only("forget_event()");
	id = get(fcinfo, 0);
	consumer = idem_arg_any_consumer(fcinfo, 1);

	PG_RETURN_BOOL(idem_forget_event(id, consumer));
}

IDEM_EVENT_FUNCTIONS(forget_event, idem_arg_event_id);

/* event_result(event_id, consumer) */

static Datum
event_result(FunctionCallInfo fcinfo, IdemGetId get)
{
	IdemStr		id = get(fcinfo, 0);
	IdemStr		consumer = idem_arg_consumer(fcinfo, 1);
	Datum		result;

	if (!idem_claim_get_result(id, consumer,
							   &result))
		PG_RETURN_NULL();
	return result;
}

IDEM_EVENT_FUNCTIONS(event_result, idem_arg_event_id);

/*
 * event_status(event_id, consumer) -> status, claimed_at, completed_at,
 * completed_latest, retry_after.  The event was completed between completed_at and
 * completed_latest.  The two differ only where the exact time is not kept.
 */
static Datum
event_status(FunctionCallInfo fcinfo, IdemGetId get)
{
	IdemStr		id = get(fcinfo, 0);
	IdemStr		consumer = idem_arg_consumer(fcinfo, 1);
	IdemClaimInfo info;
	TupleDesc	desc;
	Datum		values[5];
	bool		nulls[5];

	desc = idem_row_type(fcinfo, lengthof(values));
	idem_claim_get_status(id, consumer, &info);
	values[0] = idem_arg_label(TupleDescAttr(desc, 0)->atttypid, status_labels[info.status]);
	values[1] = TimestampTzGetDatum(info.claimed_at);
	values[2] = TimestampTzGetDatum(info.completed_at);
	values[3] = TimestampTzGetDatum(info.completed_latest);
	values[4] = idem_interval_datum(info.retry_after);
	nulls[0] = false;
	nulls[1] = info.status == IDEM_STATUS_UNKNOWN || info.status == IDEM_STATUS_WAITING ||
		info.status == IDEM_STATUS_DEAD;
	nulls[2] = nulls[3] = info.status != IDEM_STATUS_COMPLETED;
	nulls[4] = info.retry_after < 0;
	return HeapTupleGetDatum(heap_form_tuple(desc, values, nulls));
}

IDEM_EVENT_FUNCTIONS(event_status, idem_arg_event_id);

/* The array forms */

/* claim_events(event_ids, consumer) -> setof (ord, event_id, result) */
Datum
idem_claim_events_fn(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	IdemClaimItem *items;
	IdemStr		consumer;
	Datum		labels[IDEM_CLAIM_RESULTS];
	int64		counts[IDEM_CLAIM_RESULTS] = {0};
	int			n;

	idem_prevent_read_only("claim_events()");
	items = idem_arg_event_ids(fcinfo, 0, &n);
	consumer = idem_arg_consumer(fcinfo, 1);
	InitMaterializedSRF(fcinfo, 0);
	for (int i = 0; i < IDEM_CLAIM_RESULTS; i++)
		labels[i] = idem_arg_label(TupleDescAttr(rsinfo->setDesc, 2)->atttypid, idem_claim_labels[i]);

	idem_claim_events(items, n, consumer);

	for (int i = 0; i < n; i++)
	{
		bool		nulls[3] = {false, false, false};
		Datum		values[3];
		text	   *id = cstring_to_text_with_len(items[i].id.data, items[i].id.len);

		CHECK_FOR_INTERRUPTS();
		values[0] = Int32GetDatum(i + 1);
		values[1] = PointerGetDatum(id);
		values[2] = labels[items[i].result];
		counts[items[i].result]++;
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
		pfree(id);
	}
	for (int i = 0; i < IDEM_CLAIM_RESULTS; i++)
		idem_count_verdicts(consumer, i, counts[i]);
	return (Datum) 0;
}

/* complete_events(event_ids, consumer, results) */
Datum
idem_complete_events_fn(PG_FUNCTION_ARGS)
{
	IdemClaimItem *items;
	IdemStr		consumer;
	Datum	   *results = NULL;
	bool	   *has_result = NULL;
	int			n;

	idem_prevent_read_only("complete_events()");
	idem_prevent_running_ahead("complete_events()", false);
	items = idem_arg_event_ids(fcinfo, 0, &n);
	consumer = idem_arg_consumer(fcinfo, 1);
	if (!PG_ARGISNULL(2))
	{
		int			nresults = idem_arg_array(fcinfo, 2, "results", JSONBOID,
											  &results, &has_result);

		idem_check_same_length("event_ids", n, "results", nresults);
		for (int i = 0; i < n; i++)
		{
			has_result[i] = !has_result[i];
			if (has_result[i])
				idem_check_document("results", results[i], IDEM_MAX_DOCUMENT_TEXT);
		}
	}

	idem_complete_events(items, n, consumer,
						 results, has_result);
	PG_RETURN_VOID();
}

/* claims_import(consumer, event_ids, completed_at) */

/* The times of an array argument; now where an element is null. */
static TimestampTz *
get_times(FunctionCallInfo fcinfo, int argno, int n)
{
	Datum	   *elems;
	bool	   *nulls;
	int			ntimes = idem_arg_array(fcinfo, argno, "completed_at", TIMESTAMPTZOID, &elems, &nulls);
	TimestampTz *times = palloc_extended(sizeof(TimestampTz) * Max(n, 1), MCXT_ALLOC_HUGE);
	TimestampTz now = GetCurrentTimestamp();

	idem_check_same_length("event_ids", n, "completed_at", ntimes);
	for (int i = 0; i < n; i++)
	{
		times[i] = nulls[i] ? now : DatumGetTimestampTz(elems[i]);
		if (TIMESTAMP_NOT_FINITE(times[i]))
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("element %d of argument \"%s\" must be finite", i + 1, "completed_at"),
					 errhint("Pass null where the time is not known.")));
	}
	return times;
}

Datum
idem_claims_import_fn(PG_FUNCTION_ARGS)
{
	IdemStr		consumer;
	IdemClaimItem *items;
	int			n;

	idem_prevent_read_only("claims_import()");
	consumer = idem_arg_any_consumer(fcinfo, 0);
	items = idem_arg_event_ids(fcinfo, 1, &n);
	PG_RETURN_INT64(idem_claims_import(items, n, consumer,
									   PG_ARGISNULL(2) ? NULL : get_times(fcinfo, 2, n), false));
}

/* claims_progress(done, total): an import of this session reports how far it has come */
Datum
idem_claims_progress_fn(PG_FUNCTION_ARGS)
{
	int64		done;
	int64		total;

	idem_require_arg(fcinfo, 0, "done");
	idem_require_arg(fcinfo, 1, "total");
	done = PG_GETARG_INT64(0);
	total = PG_GETARG_INT64(1);
	if (done < 0 || total < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("arguments \"done\" and \"total\" must not be negative")));
	idem_progress_import(done, total);
	PG_RETURN_VOID();
}

/* claims_renew(event_ids, consumer) */
Datum
idem_claims_renew_fn(PG_FUNCTION_ARGS)
{
	IdemClaimItem *items;
	IdemStr		consumer;
	int			n;

	idem_prevent_read_only("claims_renew()");
	items = idem_arg_event_ids(fcinfo, 0, &n);
	consumer = idem_arg_consumer(fcinfo, 1);
	PG_RETURN_INT64(idem_claims_import(items, n, consumer, NULL, true));
}

/*
 * lock_key(event_id, consumer): accepts the empty id, as the published key
 * does
 */

/*
 * Get the id without a check of its length: a published key may belong to an
 * id that claims refuse.
 */
static IdemStr
get_any_id(FunctionCallInfo fcinfo, int argno)
{
	idem_require_arg(fcinfo, argno, "event_id");
	return idem_arg_str(PG_GETARG_TEXT_PP(argno));
}

/* The lock key of an event, as a claim computes it. */
static int64
compute_lock_key(IdemStr id, IdemStr consumer)
{
	IdemClaimKey key;

	idem_key_of_event(id, consumer, &key);
	return key.lock_key;
}

static Datum
lock_key(FunctionCallInfo fcinfo, IdemGetId get)
{
	IdemStr		id = get(fcinfo, 0);
	IdemStr		consumer = idem_arg_any_consumer(fcinfo, 1);

	PG_RETURN_INT64(compute_lock_key(id, consumer));
}

IDEM_EVENT_FUNCTIONS(lock_key, get_any_id);

/*
 * The bytes whose hash is the lock key, put together independently of lock.c.
 */
static bytea *
lock_key_input(IdemStr id, IdemStr consumer)
{
	StringInfoData buf;
	int			id_len = id.len;
	int			consumer_len = consumer.len;
	const char *utf8_id = idem_lock_utf8(id.data, &id_len);
	const char *utf8_consumer = idem_lock_utf8(consumer.data, &consumer_len);

	initStringInfo(&buf);
	appendStringInfoSpaces(&buf, VARHDRSZ);
	if (strncmp(consumer.data, IDEM_DEFAULT_CONSUMER, consumer.len) != 0 ||
		consumer.len != strlen(IDEM_DEFAULT_CONSUMER))
	{
		appendBinaryStringInfo(&buf, utf8_consumer, consumer_len);
		appendStringInfoChar(&buf, '\0');
	}
	appendBinaryStringInfo(&buf, utf8_id, id_len);
	SET_VARSIZE(buf.data, buf.len);
	return (bytea *) buf.data;
}

/*
 * verify_lock_key(event_id, consumer): error unless pgcrypto computes the same
 * key
 */
Datum
idem_verify_lock_key_fn(PG_FUNCTION_ARGS)
{
	IdemStr		id = get_any_id(fcinfo, 0);
	IdemStr		consumer = idem_arg_any_consumer(fcinfo, 1);
	bytea	   *digest = idem_digest_sha256(lock_key_input(id, consumer));
	uint64		first;

	memcpy(&first, VARDATA_ANY(digest), sizeof(first));
	if (compute_lock_key(id, consumer) != (int64) pg_ntoh64(first))
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("lock key of event \"%s\" differs from pgcrypto's SHA-256",
						pnstrdup(id.data, id.len)),
				 errhint("Claims of this server would not exclude other clients of the published key; do not use it.")));
	PG_RETURN_VOID();
}

/* interval_us(length): how long an interval is, for consumer_check */
Datum
idem_interval_us_fn(PG_FUNCTION_ARGS)
{
	if (PG_ARGISNULL(0))
		PG_RETURN_NULL();
	PG_RETURN_INT64(idem_interval_us(PG_GETARG_INTERVAL_P(0)));
}

/*
 * consumer_changes(): trigger before each change of a row of the table
 * "consumers"
 */

/* Is the boolean column true in the row? tup may be NULL: no row. */
static bool
is_set(HeapTuple tup, TupleDesc desc, const char *name)
{
	bool		isnull;
	int			column = SPI_fnumber(desc, name);

	return tup != NULL && DatumGetBool(SPI_getbinval(tup, desc, column, &isnull)) && !isnull;
}

/* Are two versions of a row about one consumer?  Somebody may have renamed it. */
static bool
is_same_consumer(HeapTuple before, HeapTuple after, TupleDesc desc)
{
	char	   *one = SPI_getvalue(before, desc, SPI_fnumber(desc, "consumer"));
	char	   *other = SPI_getvalue(after, desc, SPI_fnumber(desc, "consumer"));

	return one != NULL && other != NULL && strcmp(one, other) == 0;
}

/*
 * Tell what a change of one consumer's row changes for claims; before, after: NULL if there
 * is no such row.  A change of the owner is none: the owner is asked for at each call, and
 * a claim that was let in before stands.
 *
 * Claims in flight may have given their locks back.  The locks of a consumer
 * with foreign lockers must be held to the end, so a change to that waits for
 * these claims.  A change from that changes nothing for them.
 */
static void
change_consumer(HeapTuple before, HeapTuple after, TupleDesc desc)
{
	char	   *name = SPI_getvalue(after != NULL ? after : before, desc,
									SPI_fnumber(desc, "consumer"));
	IdemChange	change = {
		.locks = is_set(before, desc, "private_locks") != is_set(after, desc, "private_locks"),
		.foreign_lockers = is_set(after, desc, "foreign_lockers") &&
		!is_set(before, desc, "foreign_lockers")
	};

	if (name != NULL && (change.locks || change.foreign_lockers))
		idem_consumer_change_locks(name, strlen(name), change);
	else
		idem_consumer_change_policy();
}

Datum
idem_consumer_changes_fn(PG_FUNCTION_ARGS)
{
	TriggerData *trigger = (TriggerData *) fcinfo->context;
	TupleDesc	desc;
	HeapTuple	before;
	HeapTuple	after;
	HeapTuple	result;

	(void) idem_require_table(fcinfo, "consumer_changes", &idem_consumers, 1);
	if (!TRIGGER_FIRED_BEFORE(trigger->tg_event) ||
		TRIGGER_FIRED_FOR_STATEMENT(trigger->tg_event) != TRIGGER_FIRED_BY_TRUNCATE(trigger->tg_event))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("function \"%s\" must be fired before insert, update or delete for each row, or before truncate",
						"consumer_changes")));
	if (TRIGGER_FIRED_FOR_STATEMENT(trigger->tg_event))
	{
		idem_consumer_change_all(); /* TRUNCATE */
		return PointerGetDatum(NULL);
	}
	desc = RelationGetDescr(trigger->tg_relation);
	before = TRIGGER_FIRED_BY_INSERT(trigger->tg_event) ? NULL : trigger->tg_trigtuple;
	after = TRIGGER_FIRED_BY_DELETE(trigger->tg_event) ? NULL :
		TRIGGER_FIRED_BY_UPDATE(trigger->tg_event) ? trigger->tg_newtuple : trigger->tg_trigtuple;
	result = after != NULL ? after : before;
	if (before == NULL)
		idem_check_no_script("a consumer");

	if (before != NULL && after != NULL && !is_same_consumer(before, after, desc))
	{
		change_consumer(before, NULL, desc);
		change_consumer(NULL, after, desc);
	}
	else
		change_consumer(before, after, desc);
	if (!TRIGGER_FIRED_BY_DELETE(trigger->tg_event))
		result = idem_owner_localize(result, desc, TRIGGER_FIRED_BY_INSERT(trigger->tg_event));
	return PointerGetDatum(result);
}
