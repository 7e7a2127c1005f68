/*-------------------------------------------------------------------------
 *
 * lease_fn.c
 *		Leases for SQL: arguments in, verdicts out.
 *
 * Arguments are checked before the first lock is taken.  lease_events takes all of
 * its leases in the first call, as claim_events does.
 *
 * MEMORY: of lease_events, what the events that it has leased, or found dead, have
 * with them, and the result of one duplicate at a time.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/claim/lease_fn.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "compat.h"
#include "claim/arg.h"
#include "claim/claim.h"
#include "claim/consumer.h"
#include "claim/count.h"
#include "claim/lease.h"
#include "lease/log.h"
#include "shared/args.h"

PG_FUNCTION_INFO_V1(idem_lease_events_fn);
PG_FUNCTION_INFO_V1(idem_consumer_redrive_fn);
PG_FUNCTION_INFO_V1(idem_consumer_discard_fn);

/* Columns of an answer */
enum
{
	COL_RESULT, COL_TOKEN, COL_ATTEMPT, COL_UNTIL, COL_POINT, COL_WORK, COL_EVENT_RESULT,
	COL_RETRY_AFTER, COL_ERROR, NCOLS
};

/* Fill in the columns of an answer. */
static void
form_answer(const IdemLeaseAnswer *answer, IdemStr id, IdemStr consumer, Oid result_type,
			Datum *values, bool *nulls)
{
	const IdemLease *lease = &answer->lease;
	Datum		result;

	memset(nulls, true, NCOLS * sizeof(bool));
	idem_set_column(values, nulls, COL_RESULT, idem_arg_label(result_type, idem_claim_labels[answer->result]));
	if (answer->result == IDEM_CLAIM_CLAIMED)
	{
		idem_set_column(values, nulls, COL_TOKEN, Int64GetDatum(lease->token));
		idem_set_column(values, nulls, COL_UNTIL, TimestampTzGetDatum(lease->until));
		idem_set_pointer(values, nulls, COL_POINT, lease->recovery_point);
		idem_set_pointer(values, nulls, COL_WORK, lease->work);
	}
	if (answer->result == IDEM_CLAIM_CLAIMED || answer->result == IDEM_CLAIM_DEAD)
	{
		idem_set_column(values, nulls, COL_ATTEMPT, Int32GetDatum(lease->attempt));
		idem_set_pointer(values, nulls, COL_ERROR, lease->error);
	}
	if (answer->result == IDEM_CLAIM_DUPLICATE &&
		idem_claim_get_result(id, consumer, &result))
		idem_set_column(values, nulls, COL_EVENT_RESULT, result);
	if (answer->result == IDEM_CLAIM_BUSY && answer->retry_after >= 0)
		idem_set_column(values, nulls, COL_RETRY_AFTER, idem_interval_datum(answer->retry_after));
}

/* lease_event(event_id, consumer, duration, holder, wait, valid_until) */

static Datum
lease_event(FunctionCallInfo fcinfo, IdemGetId get)
{
	IdemStr		id,
				consumer;
	IdemLeaseOrder order;
	IdemLeaseAnswer answer;
	TimestampTz valid_until;
	long		wait_ms;
	TupleDesc	desc;
	Datum		values[NCOLS];
	bool		nulls[NCOLS];

	desc = idem_row_type(fcinfo, NCOLS);
	idem_prevent_read_only("lease_event()");
	id = get(fcinfo, 0);
	consumer = idem_arg_consumer(fcinfo, 1);
	order.duration = idem_arg_interval(fcinfo, 2, "duration", false, 0);
	order.holder = idem_arg_name(fcinfo, 3, "holder");
	wait_ms = idem_arg_wait(fcinfo, 4);
	valid_until = PG_ARGISNULL(5) ? 0 : PG_GETARG_TIMESTAMPTZ(5);
	order.valid_until = PG_ARGISNULL(5) ? NULL : &valid_until;

	idem_lease_event(id, consumer, &order, wait_ms, &answer);
	idem_count_verdicts(consumer, answer.result, 1);
	form_answer(&answer, id, consumer, TupleDescAttr(desc, COL_RESULT)->atttypid, values, nulls);
	return HeapTupleGetDatum(heap_form_tuple(desc, values, nulls));
}

IDEM_EVENT_FUNCTIONS(lease_event, idem_arg_event_id);

/* lease_events(event_ids, consumer, duration, holder) -> setof (ord, event_id, ...) */
Datum
idem_lease_events_fn(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	IdemClaimItem *items;
	IdemStr		consumer;
	IdemLeaseOrder order = {0};
	IdemLeaseAnswer *answers;
	Oid			result_type;
	MemoryContext row_context;
	int			n;

	idem_prevent_read_only("lease_events()");
	items = idem_arg_event_ids(fcinfo, 0, &n);
	consumer = idem_arg_consumer(fcinfo, 1);
	order.duration = idem_arg_interval(fcinfo, 2, "duration", false, 0);
	order.holder = idem_arg_name(fcinfo, 3, "holder");
	InitMaterializedSRF(fcinfo, 0);
	result_type = TupleDescAttr(rsinfo->setDesc, 2 + COL_RESULT)->atttypid;

	answers = palloc_extended(sizeof(IdemLeaseAnswer) * Max(n, 1), MCXT_ALLOC_HUGE);
	row_context = AllocSetContextCreate(CurrentMemoryContext, "idempotency answers", ALLOCSET_DEFAULT_SIZES);
	idem_lease_events(items, n, consumer, &order, answers);
	for (int i = 0; i < n; i++)
	{
		IdemStr		id = items[i].id;
		Datum		values[2 + NCOLS];
		bool		nulls[2 + NCOLS] = {false};
		MemoryContext old = MemoryContextSwitchTo(row_context);

		CHECK_FOR_INTERRUPTS();
		idem_count_verdicts(consumer, answers[i].result, 1);
		values[0] = Int32GetDatum(i + 1);
		values[1] = PointerGetDatum(cstring_to_text_with_len(id.data, id.len));
		form_answer(&answers[i], id, consumer, result_type, values + 2, nulls + 2);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
		MemoryContextSwitchTo(old);
		MemoryContextReset(row_context);
		answers[i].lease.holder = NULL; /* the caller's argument */
		idem_lease_free_values(&answers[i].lease);
	}
	return (Datum) 0;
}

/* extend_lease(event_id, token, consumer, duration, recovery_point, state) */

static Datum
extend_lease(FunctionCallInfo fcinfo, IdemGetId get)
{
	IdemStr		id,
				consumer;
	int64		token,
				duration;
	text	   *recovery_point;
	struct varlena *work;

	idem_prevent_read_only("extend_lease()");
	id = get(fcinfo, 0);
	token = idem_arg_token(fcinfo, 1);
	consumer = idem_arg_consumer(fcinfo, 2);
	duration = idem_arg_interval(fcinfo, 3, "duration", false, 0);
	recovery_point = idem_arg_name(fcinfo, 4, "recovery_point");
	work = idem_arg_work(fcinfo, 5, "state");
	PG_RETURN_TIMESTAMPTZ(idem_lease_extend(id, consumer, token,
											duration, recovery_point, work));
}

IDEM_EVENT_FUNCTIONS(extend_lease, idem_arg_event_id);

/* assert_lease(event_id, token, consumer) */

static Datum
assert_lease(FunctionCallInfo fcinfo, IdemGetId get)
{
	IdemStr		id,
				consumer;
	int64		token;

	idem_prevent_read_only("assert_lease()");
	id = get(fcinfo, 0);
	token = idem_arg_token(fcinfo, 1);
	consumer = idem_arg_consumer(fcinfo, 2);
	idem_lease_assert(id, consumer, token);
	PG_RETURN_VOID();
}

IDEM_EVENT_FUNCTIONS(assert_lease, idem_arg_event_id);

/* release_lease(event_id, token, consumer, error, retry_after, park) */

static Datum
release_lease(FunctionCallInfo fcinfo, IdemGetId get)
{
	IdemStr		id,
				consumer;
	int64		token;
	IdemLeaseRelease release;
	IdemLeaseState state;

	idem_prevent_read_only("release_lease()");
	id = get(fcinfo, 0);
	token = idem_arg_token(fcinfo, 1);
	consumer = idem_arg_consumer(fcinfo, 2);
	release.error = idem_arg_error(fcinfo, 3);
	release.retry_after = idem_arg_interval(fcinfo, 4, "retry_after", true, -1);
	idem_require_arg(fcinfo, 5, "park");
	release.park = PG_GETARG_BOOL(5);
	if (release.park && release.retry_after >= 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("arguments \"retry_after\" and \"park\" exclude each other"),
				 errdetail("A parked event is not tried again by itself.")));

	state = idem_lease_release(id, consumer, token, &release);
	return idem_arg_label(get_func_rettype(fcinfo->flinfo->fn_oid), idem_lease_labels[state]);
}

IDEM_EVENT_FUNCTIONS(release_lease, idem_arg_event_id);

/* consumer_redrive(consumer, event_ids, scope), consumer_discard(the same) */

static Datum
redrive(FunctionCallInfo fcinfo, const char *function, bool discard)
{
	IdemStr		consumer;
	IdemClaimItem *items = NULL;
	text	   *scope = NULL;
	int			n = -1;

	idem_prevent_read_only(function);
	consumer = idem_arg_any_consumer(fcinfo, 0);
	if (!PG_ARGISNULL(1))
		items = idem_arg_event_ids(fcinfo, 1, &n);
	if (!PG_ARGISNULL(2))
		scope = idem_get_text_arg(fcinfo, 2, "scope", IDEM_MAX_NAME_BYTES);
	PG_RETURN_INT64(idem_redrive(items, n, consumer, scope, discard));
}

Datum
idem_consumer_redrive_fn(PG_FUNCTION_ARGS)
{
	return redrive(fcinfo, "consumer_redrive()", false);
}

Datum
idem_consumer_discard_fn(PG_FUNCTION_ARGS)
{
	return redrive(fcinfo, "consumer_discard()", true);
}
