/*-------------------------------------------------------------------------
 *
 * cursor_fn.c
 *		Offsets, producers and sequences for SQL: arguments in, answers out.
 *
 * Arguments are checked before the first lock is taken.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/cursor/cursor_fn.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "commands/trigger.h"
#include "fmgr.h"
#include "funcapi.h"
#include "utils/builtins.h"
#include "utils/rel.h"

#include "compat.h"
#include "claim/arg.h"
#include "cursor/log.h"
#include "cursor/offset.h"
#include "cursor/producer.h"
#include "cursor/sequence.h"
#include "cursor/table.h"
#include "shared/args.h"

PG_FUNCTION_INFO_V1(idem_resume_offset_fn);
PG_FUNCTION_INFO_V1(idem_claim_offset_fn);
PG_FUNCTION_INFO_V1(idem_reset_offset_fn);
PG_FUNCTION_INFO_V1(idem_cursor_restored_fn);
PG_FUNCTION_INFO_V1(idem_register_producer_fn);
PG_FUNCTION_INFO_V1(idem_claim_sequence_fn);
PG_FUNCTION_INFO_V1(idem_last_sequence_fn);
PG_FUNCTION_INFO_V1(idem_producer_drop_fn);

static void
check_range(const char *name, int64 value, int64 min, int64 max)
{
	if (value < min || value > max)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 value < min ?
				 errmsg("argument \"%s\" must be at least " INT64_FORMAT, name, min) :
				 errmsg("argument \"%s\" must be at most " INT64_FORMAT, name, max)));
}

/* Get a bigint from 0 to max; errors 22004 and 22023, which name it. */
static int64
get_number(FunctionCallInfo fcinfo, int argno, const char *name, int64 max)
{
	idem_require_arg(fcinfo, argno, name);
	check_range(name, PG_GETARG_INT64(argno), 0, max);
	return PG_GETARG_INT64(argno);
}

/* The same of any size into *value; NULL if the argument is. */
static const int64 *
get_optional(FunctionCallInfo fcinfo, int argno, const char *name, int64 *value)
{
	if (PG_ARGISNULL(argno))
		return NULL;
	*value = get_number(fcinfo, argno, name, PG_INT64_MAX);
	return value;
}

static int32
get_int(FunctionCallInfo fcinfo, int argno, const char *name, int32 min, int32 max)
{
	idem_require_arg(fcinfo, argno, name);
	check_range(name, PG_GETARG_INT32(argno), min, max);
	return PG_GETARG_INT32(argno);
}

static int32
get_partition(FunctionCallInfo fcinfo, int argno)
{
	return get_int(fcinfo, argno, "partition", 0, PG_INT32_MAX);
}

/* In the order of IdemOffsetResult */
static const char *const offset_labels[] = {"claimed", "duplicate", "gap", "fenced", "busy"};

/* Get consumer, topic and partition, the first three arguments. */
static IdemCursorKey
get_key(FunctionCallInfo fcinfo, bool any_consumer)
{
	IdemCursorKey key = {.what = IDEM_CURSOR_OFFSET};

	key.topic = idem_arg_str(idem_get_text_arg(fcinfo, 1, "topic", IDEM_MAX_NAME_BYTES));
	key.partition = get_partition(fcinfo, 2);
	key.owner = any_consumer ? idem_arg_any_consumer(fcinfo, 0) : idem_arg_consumer(fcinfo, 0);
	return key;
}

/* Carry an order out; the row of the answer: the result and an offset. */
static Datum
act(FunctionCallInfo fcinfo, const IdemOffsetOrder *order, long wait_ms)
{
	IdemCursorKey key = get_key(fcinfo, false);
	IdemOffsetAnswer answer = idem_offset_act(order, &key, wait_ms);
	TupleDesc	desc = idem_row_type(fcinfo, 2);
	Datum		values[2];
	bool		nulls[2] = {false, !answer.has_offset};

	values[0] = idem_arg_label(TupleDescAttr(desc, 0)->atttypid, offset_labels[answer.result]);
	values[1] = Int64GetDatum(answer.offset);
	return HeapTupleGetDatum(heap_form_tuple(desc, values, nulls));
}

/* resume_offset(consumer, topic, partition, generation, wait) */
Datum
idem_resume_offset_fn(PG_FUNCTION_ARGS)
{
	IdemOffsetOrder order = {false};
	int64		generation;

	idem_prevent_read_only("resume_offset()");
	order.generation = get_optional(fcinfo, 3, "generation", &generation);
	return act(fcinfo, &order, idem_arg_wait(fcinfo, 4));
}

/* claim_offset(consumer, topic, partition, first_offset, next_offset, generation, wait) */
Datum
idem_claim_offset_fn(PG_FUNCTION_ARGS)
{
	IdemOffsetOrder order = {true};
	int64		next,
				generation;
	long		wait_ms;

	idem_prevent_read_only("claim_offset()");
	idem_prevent_running_ahead("claim_offset()", true);
	order.first = get_number(fcinfo, 3, "first_offset", PG_INT64_MAX - 1);
	order.next = get_optional(fcinfo, 4, "next_offset", &next);
	order.generation = get_optional(fcinfo, 5, "generation", &generation);
	wait_ms = idem_arg_wait(fcinfo, 6);
	if (order.next != NULL && next < order.first)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"next_offset\" must not be less than \"first_offset\"")));
	return act(fcinfo, &order, wait_ms);
}

/* reset_offset(consumer, topic, partition, next_offset) */
Datum
idem_reset_offset_fn(PG_FUNCTION_ARGS)
{
	IdemCursorKey key;
	int64		next;
	const int64 *given;

	idem_prevent_read_only("reset_offset()");
	given = get_optional(fcinfo, 3, "next_offset", &next);
	key = get_key(fcinfo, true);
	PG_RETURN_BOOL(idem_offset_reset(&key, given));
}

/* Trigger of the log's tables, before each row that is inserted: only a restore does. */
Datum
idem_cursor_restored_fn(PG_FUNCTION_ARGS)
{
	TriggerData *trigger = idem_require_insert_trigger(fcinfo, "cursor_restored");

	(void) idem_require_table(fcinfo, "cursor_restored", idem_cursor_tables, IDEM_CURSOR_TABLES);
	return PointerGetDatum(idem_cursor_restore(trigger->tg_trigtuple,
											   RelationGetDescr(trigger->tg_relation)));
}

/* In the order of IdemSequenceResult */
static const char *const sequence_labels[] = {"accepted", "duplicate", "gap", "fenced", "busy"};

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
	idem_producer_register(name, PG_GETARG_BOOL(1), &producer_id, &epoch);
	values[0] = Int64GetDatum(producer_id);
	values[1] = Int32GetDatum(epoch);
	return HeapTupleGetDatum(heap_form_tuple(desc, values, nulls));
}

/* claim_sequence(producer_id, epoch, sequence, topic, partition, count, wait) */
Datum
idem_claim_sequence_fn(PG_FUNCTION_ARGS)
{
	TupleDesc	desc = idem_row_type(fcinfo, 3);
	IdemCursorKey key = {.what = IDEM_CURSOR_SEQUENCE};
	IdemSequenceClaim claim;
	IdemSequenceAnswer answer;
	long		wait_ms;
	Datum		values[3];
	bool		nulls[3] = {false, false, false};

	idem_prevent_read_only("claim_sequence()");
	idem_prevent_running_ahead("claim_sequence()", true);
	key.producer_id = get_number(fcinfo, 0, "producer_id", PG_INT64_MAX);
	claim.epoch = get_int(fcinfo, 1, "epoch", 0, PG_INT32_MAX);
	claim.sequence = get_number(fcinfo, 2, "sequence", PG_INT64_MAX);
	key.topic = get_topic(fcinfo, 3);
	key.partition = get_partition(fcinfo, 4);
	claim.count = get_int(fcinfo, 5, "count", 1, IDEM_SEQUENCE_MAX_COUNT);
	wait_ms = idem_arg_wait(fcinfo, 6);

	answer = idem_sequence_claim(&key, &claim, wait_ms);
	values[0] = idem_arg_label(TupleDescAttr(desc, 0)->atttypid, sequence_labels[answer.result]);
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
	IdemCursorKey key = {.what = IDEM_CURSOR_SEQUENCE};
	int64		last;

	idem_prevent_read_only("last_sequence()");
	key.producer_id = get_number(fcinfo, 0, "producer_id", PG_INT64_MAX);
	key.topic = get_topic(fcinfo, 1);
	key.partition = get_partition(fcinfo, 2);
	if (!idem_sequence_last(&key, &last))
		PG_RETURN_NULL();
	PG_RETURN_INT64(last);
}

/* producer_drop(producer) */
Datum
idem_producer_drop_fn(PG_FUNCTION_ARGS)
{
	idem_prevent_read_only("producer_drop()");
	idem_producer_drop(idem_arg_str(idem_get_text_arg(fcinfo, 0, "producer", IDEM_MAX_NAME_BYTES)));
	PG_RETURN_VOID();
}
