/*-------------------------------------------------------------------------
 *
 * request_fn.c
 *	Idempotency keys for SQL: arguments in, answers out.
 *
 * Arguments are checked before the first lock is taken.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/request/request_fn.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "fmgr.h"
#include "funcapi.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "claim/arg.h"
#include "request/request.h"
#include "shared/args.h"

PG_FUNCTION_INFO_V1(idem_claim_request_fn);
PG_FUNCTION_INFO_V1(idem_advance_request_fn);
PG_FUNCTION_INFO_V1(idem_complete_request_fn);
PG_FUNCTION_INFO_V1(idem_fail_request_fn);
PG_FUNCTION_INFO_V1(idem_release_request_fn);

/* In the order of IdemRequestResult */
static const char *const labels[] = {"started", "replay", "in_progress", "mismatch", "dead"};

/* Columns of an answer */
enum
{
	COL_RESULT, COL_TOKEN, COL_ATTEMPT, COL_POINT, COL_WORK, COL_STATUS, COL_HEADERS, COL_BODY,
	COL_COMPLETED_AT, COL_EXPIRES_AT, COL_RETRY_AFTER, NCOLS
};

/* Get the name of a request: its key and its scope are the first two arguments. */
static IdemRequestName
get_request_name(FunctionCallInfo fcinfo, int consumer_argno)
{
	IdemRequestName name;

	name.key = idem_arg_str(idem_get_text_arg(fcinfo, 0, "key", IDEM_MAX_ID_BYTES));
	name.scope = idem_arg_str(idem_get_text_arg(fcinfo, 1, "scope", IDEM_MAX_NAME_BYTES));
	name.consumer = idem_arg_consumer(fcinfo, consumer_argno);
	return name;
}

/* Get the token into *token; NULL if the argument is. */
static const int64 *
get_optional_token(FunctionCallInfo fcinfo, int argno, int64 *token)
{
	if (PG_ARGISNULL(argno))
		return NULL;
	*token = PG_GETARG_INT64(argno);
	return token;
}

/* The columns of an answer that is given again. */
static void
set_response(const IdemRequestAnswer *answer, Datum *values, bool *nulls)
{
	if (answer->response.status != 0)
		idem_set_column(values, nulls, COL_STATUS, Int32GetDatum(answer->response.status));
	idem_set_pointer(values, nulls, COL_HEADERS, answer->response.headers);
	idem_set_pointer(values, nulls, COL_BODY, answer->response.body);
	idem_set_column(values, nulls, COL_COMPLETED_AT, TimestampTzGetDatum(answer->completed_at));
	if (answer->expires_at != 0)
		idem_set_column(values, nulls, COL_EXPIRES_AT, TimestampTzGetDatum(answer->expires_at));
}

/* Fill in the columns of an answer. */
static void
form_answer(const IdemRequestAnswer *answer, Oid result_type, Datum *values, bool *nulls)
{
	const IdemLease *lease = &answer->lease;

	memset(nulls, true, NCOLS * sizeof(bool));
	idem_set_column(values, nulls, COL_RESULT, idem_arg_label(result_type, labels[answer->result]));
	switch (answer->result)
	{
		case IDEM_REQUEST_STARTED:
			if (lease->token != 0)
				idem_set_column(values, nulls, COL_TOKEN, Int64GetDatum(lease->token));
			idem_set_column(values, nulls, COL_ATTEMPT, Int32GetDatum(lease->attempt));
			idem_set_pointer(values, nulls, COL_POINT, lease->recovery_point);
			idem_set_pointer(values, nulls, COL_WORK, lease->work);
			break;
		case IDEM_REQUEST_REPLAY:
			set_response(answer, values, nulls);
			break;
		case IDEM_REQUEST_IN_PROGRESS:
			if (answer->retry_after >= 0)
				idem_set_column(values, nulls, COL_RETRY_AFTER, idem_interval_datum(answer->retry_after));
			break;
		case IDEM_REQUEST_DEAD:
			idem_set_column(values, nulls, COL_ATTEMPT, Int32GetDatum(lease->attempt));
			break;
		case IDEM_REQUEST_MISMATCH:
			break;
	}
}

/* claim_request(key, scope, fingerprint, consumer, lease, wait, request) */
Datum
idem_claim_request_fn(PG_FUNCTION_ARGS)
{
	IdemRequestName name;
	IdemRequestOrder order;
	IdemRequestAnswer answer;
	TupleDesc	desc;
	Datum		values[NCOLS];
	bool		nulls[NCOLS];

	desc = idem_row_type(fcinfo, NCOLS);
	idem_prevent_read_only("claim_request()");
	name = get_request_name(fcinfo, 3);
	order.fingerprint = PG_ARGISNULL(2) ? NULL : PG_GETARG_BYTEA_PP(2);
	if (order.fingerprint != NULL)
		idem_check_length("fingerprint", VARSIZE_ANY_EXHDR(order.fingerprint), IDEM_MAX_NAME_BYTES);
	order.has_lease = !PG_ARGISNULL(4);
	order.lease = idem_arg_interval(fcinfo, 4, "lease", false, 0);
	order.wait_ms = idem_arg_wait(fcinfo, 5);
	order.request = (Jsonb *) idem_arg_work(fcinfo, 6, "request");
	if (order.request != NULL && !order.has_lease)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"request\" needs the argument \"lease\""),
				 errdetail("Without a lease nobody but this transaction executes the request.")));

	idem_request_claim(&name, &order, &answer);
	form_answer(&answer, TupleDescAttr(desc, COL_RESULT)->atttypid, values, nulls);
	return HeapTupleGetDatum(heap_form_tuple(desc, values, nulls));
}

/* advance_request(key, scope, token, recovery_point, consumer, state, lease) */
Datum
idem_advance_request_fn(PG_FUNCTION_ARGS)
{
	IdemRequestName name;
	int64		token,
				duration;
	text	   *recovery_point;
	Jsonb	   *work;

	idem_prevent_read_only("advance_request()");
	name = get_request_name(fcinfo, 4);
	token = idem_arg_token(fcinfo, 2);
	recovery_point = idem_get_text_arg(fcinfo, 3, "recovery_point", IDEM_MAX_NAME_BYTES);
	work = (Jsonb *) idem_arg_work(fcinfo, 5, "state");
	duration = idem_arg_interval(fcinfo, 6, "lease", false, 0);
	PG_RETURN_TIMESTAMPTZ(idem_request_advance(&name, token, duration, recovery_point, work));
}

/* complete_request(key, scope, status, headers, body, consumer, token) */
Datum
idem_complete_request_fn(PG_FUNCTION_ARGS)
{
	IdemRequestName name;
	IdemResponse response = {0};
	int64		token;

	idem_prevent_read_only("complete_request()");
	idem_prevent_running_ahead("complete_request()", false);
	name = get_request_name(fcinfo, 5);
	idem_require_arg(fcinfo, 2, "status");
	response.status = PG_GETARG_INT32(2);
	response.headers = PG_ARGISNULL(3) ? NULL : PG_GETARG_JSONB_P(3);
	response.body = PG_ARGISNULL(4) ? NULL : PG_GETARG_BYTEA_PP(4);
	idem_response_check(&response);
	idem_request_complete(&name, get_optional_token(fcinfo, 6, &token), &response);
	PG_RETURN_VOID();
}

/* fail_request(key, scope, error, consumer, token, retry_after) */
Datum
idem_fail_request_fn(PG_FUNCTION_ARGS)
{
	IdemRequestName name;
	IdemLeaseRelease failure = {0};
	IdemLeaseState state;
	int64		token;

	idem_prevent_read_only("fail_request()");
	name = get_request_name(fcinfo, 3);
	idem_require_arg(fcinfo, 2, "error");
	failure.error = idem_arg_error(fcinfo, 2);
	failure.retry_after = idem_arg_interval(fcinfo, 5, "retry_after", true, -1);
	state = idem_request_fail(&name, get_optional_token(fcinfo, 4, &token), &failure);
	return idem_arg_label(get_func_rettype(fcinfo->flinfo->fn_oid), idem_lease_labels[state]);
}

/* release_request(key, scope, consumer, token) */
Datum
idem_release_request_fn(PG_FUNCTION_ARGS)
{
	IdemRequestName name;
	int64		token;

	idem_prevent_read_only("release_request()");
	name = get_request_name(fcinfo, 2);
	idem_request_release(&name, get_optional_token(fcinfo, 3, &token));
	PG_RETURN_VOID();
}
