/*-------------------------------------------------------------------------
 *
 * offset_fn.c
 *		Offsets for SQL: arguments in, answers out.
 *
 * Arguments are checked before the first lock is taken.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/cursor/offset_fn.c
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
#include "cursor/arg.h"
#include "cursor/log.h"
#include "cursor/offset.h"
#include "cursor/table.h"
#include "shared/args.h"

PG_FUNCTION_INFO_V1(idem_resume_offset_fn);
PG_FUNCTION_INFO_V1(idem_claim_offset_fn);
PG_FUNCTION_INFO_V1(idem_reset_offset_fn);
PG_FUNCTION_INFO_V1(idem_cursor_restored_fn);

/* In the order of IdemOffsetResult */
static const char *const labels[] = {"claimed", "duplicate", "gap", "fenced", "busy"};

/* Get consumer, topic and partition, the first three arguments. */
static IdemOffsetName
get_name(FunctionCallInfo fcinfo, bool any_consumer)
{
	IdemStr		topic = idem_arg_str(idem_get_text_arg(fcinfo, 1, "topic", IDEM_MAX_NAME_BYTES));
	int32		partition = idem_cursor_arg_partition(fcinfo, 2);
	IdemStr		consumer = any_consumer ? idem_arg_any_consumer(fcinfo, 0) :
	idem_arg_consumer(fcinfo, 0);
	IdemOffsetName name = {consumer.data, consumer.len, topic.data, topic.len, partition};

	return name;
}

/* The row of an answer: the result and an offset. */
static Datum
form_answer(FunctionCallInfo fcinfo, const IdemOffsetAnswer *answer)
{
	TupleDesc	desc = idem_row_type(fcinfo, 2);
	Datum		values[2];
	bool		nulls[2] = {false, !answer->has_offset};

	values[0] = idem_arg_label(TupleDescAttr(desc, 0)->atttypid, labels[answer->result]);
	values[1] = Int64GetDatum(answer->offset);
	return HeapTupleGetDatum(heap_form_tuple(desc, values, nulls));
}

/* resume_offset(consumer, topic, partition, generation, wait) */
Datum
idem_resume_offset_fn(PG_FUNCTION_ARGS)
{
	IdemOffsetName name;
	IdemOffsetAnswer answer;
	int64		generation;
	const int64 *given;
	long		wait_ms;

	idem_prevent_read_only("resume_offset()");
	given = idem_cursor_arg_optional(fcinfo, 3, "generation", &generation);
	wait_ms = idem_arg_wait(fcinfo, 4);
	name = get_name(fcinfo, false);
	answer = idem_offset_resume(&name, given, wait_ms);
	return form_answer(fcinfo, &answer);
}

/* claim_offset(consumer, topic, partition, first_offset, next_offset, generation, wait) */
Datum
idem_claim_offset_fn(PG_FUNCTION_ARGS)
{
	IdemOffsetName name;
	IdemOffsetAnswer answer;
	int64		first,
				next,
				generation;
	const int64 *given_next,
			   *given_generation;
	long		wait_ms;

	idem_prevent_read_only("claim_offset()");
	first = idem_cursor_arg_number(fcinfo, 3, "first_offset", PG_INT64_MAX - 1);
	given_next = idem_cursor_arg_optional(fcinfo, 4, "next_offset", &next);
	given_generation = idem_cursor_arg_optional(fcinfo, 5, "generation", &generation);
	wait_ms = idem_arg_wait(fcinfo, 6);
	if (given_next != NULL && next < first)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"next_offset\" must not be less than \"first_offset\"")));
	name = get_name(fcinfo, false);
	answer = idem_offset_claim(&name, first, given_next, given_generation, wait_ms);
	return form_answer(fcinfo, &answer);
}

/* reset_offset(consumer, topic, partition, next_offset) */
Datum
idem_reset_offset_fn(PG_FUNCTION_ARGS)
{
	IdemOffsetName name;
	int64		next;
	const int64 *given;

	idem_prevent_read_only("reset_offset()");
	given = idem_cursor_arg_optional(fcinfo, 3, "next_offset", &next);
	name = get_name(fcinfo, true);
	PG_RETURN_BOOL(idem_offset_reset(&name, given));
}

/* Table n of the log. */
static IdemRelRef *
table(int number)
{
	return &idem_cursor_tables[number];
}

/* Trigger of the log's tables, before each row that is inserted: only a restore does. */
Datum
idem_cursor_restored_fn(PG_FUNCTION_ARGS)
{
	TriggerData *trigger = idem_require_insert_trigger(fcinfo, "cursor_restored");

	idem_require_table(fcinfo, "cursor_restored", table, IDEM_CURSOR_TABLES);
	return PointerGetDatum(idem_cursor_restore(trigger->tg_trigtuple,
											   RelationGetDescr(trigger->tg_relation)));
}
