/*-------------------------------------------------------------------------
 *
 * sequence_fn.c
 *		Producers and sequences for SQL: arguments in, answers out.
 *
 * Arguments are checked before the first lock is taken.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/cursor/sequence_fn.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "fmgr.h"
#include "funcapi.h"
#include "utils/builtins.h"

#include "compat.h"
#include "claim/arg.h"
#include "cursor/arg.h"
#include "cursor/producer.h"
#include "cursor/sequence.h"
#include "shared/args.h"

PG_FUNCTION_INFO_V1(idem_register_producer_fn);
PG_FUNCTION_INFO_V1(idem_claim_sequence_fn);
PG_FUNCTION_INFO_V1(idem_last_sequence_fn);
PG_FUNCTION_INFO_V1(idem_producer_drop_fn);

/* In the order of IdemSequenceResult */
static const char *const labels[] = {"accepted", "duplicate", "gap", "fenced", "busy"};

/* Get a topic, which may be empty. */
static IdemStr
get_topic(FunctionCallInfo fcinfo, int argno)
{
	IdemStr		topic;

	idem_require_arg(fcinfo, argno, "topic");
	topic = idem_arg_str(PG_GETARG_TEXT_PP(argno));
	if (topic.len > 0)
		idem_check_length("topic", topic.len, IDEM_MAX_NAME_BYTES);
	return topic;
}

/* register_producer(producer, gapless) */
Datum
idem_register_producer_fn(PG_FUNCTION_ARGS)
{
	TupleDesc	desc = idem_row_type(fcinfo, 2);
	Datum		values[2];
	bool		nulls[2] = {false, false};
	IdemStr		name;
	int64		producer_id;
	int			epoch;

	idem_prevent_read_only("register_producer()");
	name = idem_arg_str(idem_get_text_arg(fcinfo, 0, "producer", IDEM_MAX_NAME_BYTES));
	idem_require_arg(fcinfo, 1, "gapless");
	idem_producer_register(name.data, name.len, PG_GETARG_BOOL(1), &producer_id, &epoch);
	values[0] = Int64GetDatum(producer_id);
	values[1] = Int32GetDatum(epoch);
	return HeapTupleGetDatum(heap_form_tuple(desc, values, nulls));
}

/* claim_sequence(producer_id, epoch, sequence, topic, partition, count, wait) */
Datum
idem_claim_sequence_fn(PG_FUNCTION_ARGS)
{
	TupleDesc	desc = idem_row_type(fcinfo, 3);
	IdemSequenceClaim claim;
	IdemSequenceAnswer answer;
	IdemStr		topic;
	long		wait_ms;
	Datum		values[3];
	bool		nulls[3] = {false, false, false};

	idem_prevent_read_only("claim_sequence()");
	claim.producer_id = idem_cursor_arg_number(fcinfo, 0, "producer_id", PG_INT64_MAX);
	claim.epoch = idem_cursor_arg_int(fcinfo, 1, "epoch", 0, PG_INT32_MAX);
	claim.sequence = idem_cursor_arg_number(fcinfo, 2, "sequence", PG_INT64_MAX);
	topic = get_topic(fcinfo, 3);
	claim.topic = topic.data;
	claim.topiclen = topic.len;
	claim.partition = idem_cursor_arg_partition(fcinfo, 4);
	claim.count = idem_cursor_arg_int(fcinfo, 5, "count", 1, IDEM_SEQUENCE_MAX_COUNT);
	wait_ms = idem_arg_wait(fcinfo, 6);

	answer = idem_sequence_claim(&claim, wait_ms);
	values[0] = idem_arg_label(TupleDescAttr(desc, 0)->atttypid, labels[answer.result]);
	values[1] = Int64GetDatum(answer.number);
	nulls[1] = !answer.has_number;
	values[2] = Int64GetDatum(answer.expected);
	nulls[2] = answer.result == IDEM_SEQUENCE_FENCED || answer.result == IDEM_SEQUENCE_BUSY;
	return HeapTupleGetDatum(heap_form_tuple(desc, values, nulls));
}

/* last_sequence(producer_id, topic, partition) */
Datum
idem_last_sequence_fn(PG_FUNCTION_ARGS)
{
	int64		producer_id,
				last;
	IdemStr		topic;
	int32		partition;

	idem_prevent_read_only("last_sequence()");
	producer_id = idem_cursor_arg_number(fcinfo, 0, "producer_id", PG_INT64_MAX);
	topic = get_topic(fcinfo, 1);
	partition = idem_cursor_arg_partition(fcinfo, 2);
	if (!idem_sequence_last(producer_id, topic.data, topic.len, partition, &last))
		PG_RETURN_NULL();
	PG_RETURN_INT64(last);
}

/* producer_drop(producer) */
Datum
idem_producer_drop_fn(PG_FUNCTION_ARGS)
{
	IdemStr		name;

	idem_prevent_read_only("producer_drop()");
	name = idem_arg_str(idem_get_text_arg(fcinfo, 0, "producer", IDEM_MAX_NAME_BYTES));
	idem_producer_drop(name.data, name.len);
	PG_RETURN_VOID();
}
