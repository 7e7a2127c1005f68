/*-------------------------------------------------------------------------
 *
 * handler.c
 *		The SQL function of a function relay, called for one event.
 *
 * Each event is handled in a subtransaction of its own, as the relay's owner,
 * under SECURITY_RESTRICTED_OPERATION and the relay's timeout.  An error rolls
 * back this event only.  Constraints are immediate in handlers: so an error of
 * a constraint is found with the event that caused it, and nothing that was
 * queued runs later under another role.  handler_reset.c sets the session's
 * user, and resets what a handler leaves.
 *
 * The claim is made by consumer "@relay/NAME", which SQL cannot name.  So
 * nobody can make an event a duplicate for the relay by claiming it first.
 *
 * The timeout sets QueryCancelPending, and may fire after the event's last
 * check for interrupts.  So the flag is cleared when the event has ended,
 * unless the counter of SIGINT shows that somebody has sent a cancel as well.
 *
 * PostgreSQL takes no lock on a function that it calls.  One that becomes STRICT
 * in the midst of a batch is not called for events without headers, with no error;
 * one that is replaced fails each event.  So the function is checked again before
 * an event if any function has changed since, and an event is not handled if the
 * function's row changed during the call.  Check and call read the row from the same
 * cache, so a change that reached the call has set functions_changed.
 *
 * MEMORY: one event at a time, in a context that is reset by the next event; a
 * saved plan until idem_handler_forget.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/function/handler.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <signal.h>

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "parser/parse_coerce.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/regproc.h"
#include "utils/resowner.h"
#include "utils/syscache.h"
#include "utils/timeout.h"
#include "utils/timestamp.h"

#include "claim/claim.h"
#include "relay/function/function.h"
#include "relay/kind.h"
#include "shared/fault.h"

#define DEFAULT_TIMEOUT_MS 30000
#define MAX_TIMEOUTS_OF_EVENT 3 /* timeouts of one event, after which the
								 * process ends */

/*
 * The arguments that a handler may declare, in the order of the plan's
 * parameters.
 */
static const struct
{
	const char *name;
	Oid			type;
}			handler_args[] = {
	{"event_id", UUIDOID},
	{"aggregate_type", TEXTOID},
	{"aggregate_id", TEXTOID},
	{"event_type", TEXTOID},
	{"payload", JSONBOID},
	{"headers", JSONBOID},
	{"enqueued_at", TIMESTAMPTZOID},
};

#define NARGS lengthof(handler_args)
#define ARG_PAYLOAD 4

struct IdemHandler
{
	MemoryContext event_cxt;
	SPIPlanPtr	plan;			/* NULL: the plan is to be made */
	Oid			func;			/* function that the plan calls */
	TransactionId row_xmin;		/* the function's row in pg_proc when it was
								 * checked */
	ItemPointerData row_tid;
	bool		checking;		/* the function is being checked; no event is
								 * to blame for an error */
	bool		called;			/* the function was called with this event;
								 * before, the event is only claimed */
	bool		takes_payload;
	bool		payload_is_bytea;
	int			timeout_ms;
};

/* A function or a schema was changed since the last check of the handler. */
static bool functions_changed = true;

/* The id of the event whose handler runs; empty: no handler runs. */
static char event_in_hand[40] = "";

/*
 * The timeout of this process, and the signals that came since it was started.
 */
static TimeoutId handler_timeout = MAX_TIMEOUTS;
static volatile sig_atomic_t timed_out = 0; /* how often it fired for this
											 * event */
static volatile sig_atomic_t cancels = 0;
static sig_atomic_t cancels_before = 0;

/* Raise an error at the next check for interrupts; async-signal-safe. */
static void
request_cancel(void)
{
	InterruptPending = true;
	QueryCancelPending = true;
	SetLatch(MyLatch);
}

/* SIGINT: does what the server's own signal handler does, and counts. */
static void
on_cancel(SIGNAL_ARGS)
{
	int			save_errno = errno;

	cancels++;
	if (!proc_exit_inprogress)
		request_cancel();
	errno = save_errno;
}

/*
 * Runs in the timer's signal handler.  The SQL function can catch the cancel
 * and go on, but cannot catch the end of its process.  A cancel that is still
 * pending was not caught, and is not counted again.
 */
static void
on_timeout(void)
{
	if (timed_out > 0 && QueryCancelPending)
		return;
	timed_out++;
	if (timed_out >= MAX_TIMEOUTS_OF_EVENT)
		ProcDiePending = true;
	request_cancel();
}

/*
 * End the timeout.  True if it fired and nobody sent a cancel as well.  A
 * cancel that is pending only for the timeout must not hit the next event, or
 * the position.
 */
static bool
end_timeout(void)
{
	disable_timeout(handler_timeout, false);
	if (timed_out == 0)
		return false;
	timed_out = 0;
	if (cancels != cancels_before)
		return false;
	QueryCancelPending = false;
	if (cancels != cancels_before)
		request_cancel();		/* the cancel came just now */
	return true;
}

/* The catalog cache drops the row of a function or of a schema. */
static void
note_change(Datum arg, int cacheid, uint32 hash)
{
	functions_changed = true;
}

IdemHandler *
idem_handler_create(MemoryContext parent)
{
	IdemHandler *handler = MemoryContextAllocZero(parent, sizeof(*handler));

	handler->event_cxt = AllocSetContextCreate(parent, "event", ALLOCSET_DEFAULT_SIZES);
	if (handler_timeout == MAX_TIMEOUTS)
	{
		handler_timeout = RegisterTimeout(USER_TIMEOUT, on_timeout);
		CacheRegisterSyscacheCallback(PROCOID, note_change, (Datum) 0);
		CacheRegisterSyscacheCallback(NAMESPACEOID, note_change, (Datum) 0);
	}
	pqsignal(SIGINT, on_cancel);
	return handler;
}

/* The plan is to be made anew. */
static void
forget_plan(IdemHandler *handler)
{
	if (handler->plan)
		SPI_freeplan(handler->plan);
	handler->plan = NULL;
}

void
idem_handler_forget(IdemHandler *handler)
{
	forget_plan(handler);
	MemoryContextReset(handler->event_cxt);
}

bool
idem_handler_was_checking(IdemHandler *handler)
{
	bool		was = handler->checking;

	handler->checking = false;
	return was;
}

/*
 * Find the function that the server names.  There must be exactly one of that
 * name.
 */
static Oid
find_function(const char *name, List **names)
{
	FuncCandidateList candidates;

	*names = idem_string_to_name_list(name);
	candidates = idem_funcname_candidates(*names);
	if (candidates == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_FUNCTION),
				 errmsg("function \"%s\" of the sink does not exist", name),
				 errhint("Create it, or name another one by ALTER SERVER ... OPTIONS (SET function '...').")));
	if (candidates->next != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_AMBIGUOUS_FUNCTION),
				 errmsg("function \"%s\" of the sink is not unique", name),
				 errhint("Drop the others of its name, and look at who may create in its schema.")));
	return candidates->oid;
}

/* Append "name => $n::type" for one declared argument. */
static void
append_handler_arg(IdemHandler *handler, StringInfo sql, const char *name, Oid type)
{
	for (int i = 0; i < NARGS; i++)
	{
		if (strcmp(handler_args[i].name, name) != 0)
			continue;
		if (i == ARG_PAYLOAD)
		{
			handler->takes_payload = true;
			handler->payload_is_bytea = type == BYTEAOID;
		}
		if (!(i == ARG_PAYLOAD && type == BYTEAOID) &&
			!can_coerce_type(1, &handler_args[i].type, &type, COERCION_EXPLICIT))
			ereport(ERROR,
					(errcode(ERRCODE_CANNOT_COERCE),
					 errmsg("argument \"%s\" of the sink's function has type %s, which the event's %s cannot become",
							name, format_type_be(type), format_type_be(handler_args[i].type)),
					 errhint("Declare it as %s.", format_type_be(handler_args[i].type))));
		appendStringInfo(sql, "%s%s => $%d::%s", sql->data[sql->len - 1] == '(' ? "" : ", ",
						 quote_identifier(name), i + 1, format_type_be_qualified(type));
		return;
	}
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_FUNCTION_DEFINITION),
			 errmsg("the sink's function declares an argument \"%s\", which no event has", name),
			 errhint("Arguments can be event_id, aggregate_type, aggregate_id, event_type, payload, headers, enqueued_at.")));
}

/* Prepare "SELECT schema.function(event_id => $1, ...)", as the owner. */
static void
make_plan(IdemHandler *handler, const IdemRelayConfig *config, List *names)
{
	const char *timeout = idem_sink_option_value(config->options, "timeout");
	Oid			types[NARGS];
	StringInfoData sql;
	HeapTuple	tup;
	Oid		   *arg_types;
	char	  **arg_names;
	char	   *modes;
	int			nargs;
	SPIPlanPtr	plan;

	SPI_connect();
	initStringInfo(&sql);
	appendStringInfo(&sql, "SELECT %s(", NameListToQuotedString(names));

	/* all arguments that the function declares as IN, by name */
	tup = SearchSysCache1(PROCOID, ObjectIdGetDatum(handler->func));
	if (!HeapTupleIsValid(tup))
		elog(ERROR, "cache lookup failed for function %u", handler->func);
	nargs = get_func_arg_info(tup, &arg_types, &arg_names, &modes);
	for (int i = 0; i < nargs; i++)
	{
		if (modes == NULL || modes[i] == PROARGMODE_IN)
			append_handler_arg(handler, &sql, arg_names ? arg_names[i] : "", arg_types[i]);
	}
	ReleaseSysCache(tup);
	appendStringInfoChar(&sql, ')');
	for (int i = 0; i < NARGS; i++)
		types[i] = handler_args[i].type;
	if (handler->payload_is_bytea)
		types[ARG_PAYLOAD] = BYTEAOID;
	plan = SPI_prepare(sql.data, NARGS, types);
	if (plan == NULL)
		elog(ERROR, "could not prepare \"%s\"", sql.data);
	SPI_keepplan(plan);
	handler->plan = plan;
	if (timeout == NULL || !parse_int(timeout, &handler->timeout_ms, GUC_UNIT_MS, NULL) ||
		handler->timeout_ms <= 0)
		handler->timeout_ms = DEFAULT_TIMEOUT_MS;
	SPI_finish();
}

/* Is it the row of the function that was checked? */
static bool
is_checked_row(IdemHandler *handler, HeapTuple tup)
{
	return HeapTupleHeaderGetRawXmin(tup->t_data) == handler->row_xmin &&
		ItemPointerEquals(&tup->t_self, &handler->row_tid);
}

/*
 * Raise an error if the server might not call the function for each event, and
 * would say nothing.
 */
static void
refuse_silent(const char *name, Form_pg_proc proc)
{
	if (proc->proisstrict)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_FUNCTION_DEFINITION),
				 errmsg("function \"%s\" of the sink is STRICT", name),
				 errdetail("It would not be called for events without headers, and they would count as handled."),
				 errhint("Run ALTER FUNCTION ... CALLED ON NULL INPUT.")));
	if (proc->provolatile == PROVOLATILE_IMMUTABLE)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_FUNCTION_DEFINITION),
				 errmsg("function \"%s\" of the sink is IMMUTABLE", name),
				 errdetail("It might be called once for many events, and they would count as handled."),
				 errhint("Run ALTER FUNCTION ... VOLATILE.")));
	if (proc->prokind != PROKIND_FUNCTION)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("\"%s\" of the sink is a procedure, an aggregate or a window function", name),
				 errhint("The sink needs a function that is called by SELECT.")));
}

/* Find the function, and note the row in which it is fit to be called. */
static void
check_function(IdemHandler *handler, const char *name, List **names)
{
	Oid			func = find_function(name, names);
	HeapTuple	tup = SearchSysCache1(PROCOID, ObjectIdGetDatum(func));

	if (!HeapTupleIsValid(tup))
		elog(ERROR, "cache lookup failed for function %u", func);
	if (func != handler->func || !is_checked_row(handler, tup))
		forget_plan(handler);
	handler->func = func;
	handler->row_xmin = HeapTupleHeaderGetRawXmin(tup->t_data);
	handler->row_tid = tup->t_self;
	refuse_silent(name, (Form_pg_proc) GETSTRUCT(tup));
	ReleaseSysCache(tup);
}

/* Error 42501 if the relay's owner may not execute the function. */
static void
check_execute(const IdemHandler *handler, const IdemRelayConfig *config, const char *name)
{
	if (idem_function_execute_check(handler->func, config->owner) != ACLCHECK_OK)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied for function %s", name),
				 errhint("GRANT EXECUTE on it to role \"%s\", the relay's owner.", GetUserNameFromId(config->owner, false))));
}

void
idem_handler_verify(const IdemRelayConfig *config)
{
	const char *name = idem_sink_option_value(config->options, "function");
	IdemHandler probe = {0};
	IdemHandlerRights saved;
	List	   *names;

	idem_handler_rights_take(config->owner, &saved);
	check_function(&probe, name, &names);
	check_execute(&probe, config, name);
	make_plan(&probe, config, names);
	forget_plan(&probe);
	idem_handler_rights_return(&saved);
}

/* Check the function, and make the plan if it is not that of the function. */
static void
check_and_plan(IdemHandler *handler, const IdemRelayConfig *config)
{
	const char *name = idem_sink_option_value(config->options, "function");
	List	   *names;
	IdemHandlerRights saved;

	handler->checking = true;
	if (name == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_FDW_OPTION_NAME_NOT_FOUND),
				 errmsg("server \"%s\" has no option \"function\"", config->server)));
	functions_changed = false;
	idem_handler_rights_take(config->owner, &saved);
	check_function(handler, name, &names);
	if (handler->plan == NULL)
		make_plan(handler, config, names);
	check_execute(handler, config, name);
	idem_handler_rights_return(&saved);
	handler->checking = false;
}

void
idem_handler_check(IdemHandler *handler, const IdemRelayConfig *config)
{
	handler->checking = true;
	idem_handler_session_begin(config->owner);
	check_and_plan(handler, config);
}

/*
 * Has somebody changed the function since it was checked?  A handler that changes
 * itself was called, and the next event is checked again.
 */
static bool
was_changed(IdemHandler *handler)
{
	HeapTuple	tup;
	bool		changed = true;

	if (!functions_changed)
		return false;
	tup = SearchSysCache1(PROCOID, ObjectIdGetDatum(handler->func));
	if (HeapTupleIsValid(tup))
	{
		changed = !is_checked_row(handler, tup) &&
			!TransactionIdIsCurrentTransactionId(HeapTupleHeaderGetRawXmin(tup->t_data));
		ReleaseSysCache(tup);
	}
	return changed;
}

/*
 * Copy the text into the current context: the reader's text has no varlena
 * header.
 */
static Datum
text_datum(IdemEventText t)
{
	return PointerGetDatum(cstring_to_text_with_len(t.data, t.len));
}

/*
 * Call the function, as the owner and within the timeout.  The caller catches
 * errors.
 */
static void
call_handler(IdemHandler *handler, const IdemEvent *ev)
{
	Datum		values[NARGS];
	char		nulls[NARGS + 1] = "       ";
	int			rc;

	SPI_connect();
	if (handler->takes_payload && ev->is_json == handler->payload_is_bytea)
		ereport(ERROR,
				(errcode(ERRCODE_DATATYPE_MISMATCH),
				 errmsg("the event's payload is %s and the sink's function takes %s",
						ev->is_json ? "jsonb" : "bytea", ev->is_json ? "bytea" : "jsonb")));
	values[0] = UUIDPGetDatum(&ev->event_id);
	values[1] = text_datum(ev->aggregate_type);
	values[2] = text_datum(ev->aggregate_id);
	values[3] = text_datum(ev->event_type);
	values[ARG_PAYLOAD] = ev->payload;
	nulls[ARG_PAYLOAD] = handler->takes_payload ? ' ' : 'n';
	values[5] = ev->headers;
	nulls[5] = ev->has_headers ? ' ' : 'n';
	values[6] = TimestampTzGetDatum(ev->enqueued_at);

	rc = SPI_execute_plan(handler->plan, values, nulls, false, 0);
	if (rc < 0)
		elog(ERROR, "could not call the sink's function: %s", SPI_result_code_string(rc));
	SPI_finish();
}

/*
 * Claim the event, call the function and complete the claim, inside the event's
 * subtransaction.
 */
static IdemHandled
claim_and_call(IdemHandler *handler, const IdemRelayConfig *config, const IdemEvent *ev)
{
	char		id[40];
	char	   *uuid = DatumGetCString(DirectFunctionCall1(uuid_out, UUIDPGetDatum(&ev->event_id)));
	char	   *consumer = psprintf("@relay/%s", config->name);
	IdemHandlerRights saved;
	IdemClaimResult claimed;

	strlcpy(id, uuid, sizeof(id));
	IDEM_FAULT_POINT("function-claim");
	claimed = idem_claim_event(idem_str(id, strlen(id)), idem_str(consumer, strlen(consumer)), 0, NULL);
	if (claimed == IDEM_CLAIM_DUPLICATE)
		return IDEM_HANDLED_DUPLICATE;
	if (claimed != IDEM_CLAIM_CLAIMED)
		return IDEM_HANDLED_BUSY;
	IDEM_FAULT_POINT("function-claimed");

	/*
	 * The claim may have waited, for example for a standby.  That time does
	 * not count for the handler's timeout.
	 */
	handler->called = true;
	strlcpy(event_in_hand, id, sizeof(event_in_hand));
	timed_out = 0;
	cancels_before = cancels;

	/* It fires repeatedly, in case the function catches the first cancel. */
	enable_timeout_every(handler_timeout,
						 TimestampTzPlusMilliseconds(GetCurrentTimestamp(), handler->timeout_ms),
						 handler->timeout_ms);
	idem_handler_rights_take(config->owner, &saved);
	idem_handler_constraints_immediate();
	call_handler(handler, ev);
	IDEM_FAULT_POINT("function-handled");
	if (was_changed(handler))
		ereport(ERROR,
				(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
				 errmsg("function \"%s\" of the sink was changed while it had the event",
						idem_sink_option_value(config->options, "function"))));
	idem_handler_event_end();
	idem_handler_rights_return(&saved);

	idem_complete_event(idem_str(id, strlen(id)), idem_str(consumer, strlen(consumer)), (Datum) 0, false);
	IDEM_FAULT_POINT("function-completed");
	return IDEM_HANDLED;
}

bool
idem_handler_is_circumstance(int sqlerrcode)
{
	int			category = ERRCODE_TO_CATEGORY(sqlerrcode);

	return category == ERRCODE_TRANSACTION_ROLLBACK ||
		category == ERRCODE_INSUFFICIENT_RESOURCES ||
		category == ERRCODE_SYSTEM_ERROR;
}

/*
 * What the error says of the event (blame.h).  An error before the call, and a query or a
 * session that somebody ended, say nothing; the timeout is ours.  Where circumstances may
 * be to blame, only what becomes of other events tells.  A full lock table counts for the
 * event that filled it.
 */
static IdemBlameKind
kind_of_error(const IdemHandler *handler, int sqlerrcode, bool too_slow)
{
	if (!handler->called)
		return IDEM_BLAME_NOTHING;
	if (ERRCODE_TO_CATEGORY(sqlerrcode) == ERRCODE_OPERATOR_INTERVENTION)
		return too_slow ? IDEM_BLAME_RETRY : IDEM_BLAME_NOTHING;
	if (idem_handler_is_circumstance(sqlerrcode) &&
		!(sqlerrcode == ERRCODE_OUT_OF_MEMORY && idem_handler_event_filled_table()))
		return IDEM_BLAME_RETRY;
	return IDEM_BLAME_REJECTED;
}

/* Describe the caught error as a failure, in the event's context. */
static void
failure_from_error(IdemHandler *handler, const IdemRelayConfig *config, bool too_slow,
				   IdemFailure *failure)
{
	ErrorData  *edata;

	MemoryContextSwitchTo(handler->event_cxt);
	edata = CopyErrorData();
	FlushErrorState();
	failure->kind = kind_of_error(handler, edata->sqlerrcode, too_slow && edata->sqlerrcode == ERRCODE_QUERY_CANCELED);
	failure->backs_off = failure->kind == IDEM_BLAME_NOTHING;
	failure->retry_after_ms = 0;
	strlcpy(failure->sqlstate, unpack_sql_state(edata->sqlerrcode), sizeof(failure->sqlstate));
	failure->message = edata->message ? edata->message : "unknown error";
	if (too_slow && edata->sqlerrcode == ERRCODE_QUERY_CANCELED)
		failure->message = psprintf("the handler did not end within its timeout of %d ms",
									handler->timeout_ms);
}

const char *
idem_handler_event_in_hand(void)
{
	return event_in_hand[0] ? event_in_hand : NULL;
}

IdemHandled
idem_handler_run(IdemHandler *handler, const IdemRelayConfig *config, const IdemEvent *ev,
				 IdemFailure *failure)
{
	MemoryContext old = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	volatile IdemHandled result = IDEM_HANDLED_FAILED;
	int			save_nestlevel = NewGUCNestLevel();

	memset(failure, 0, sizeof(*failure));
	MemoryContextReset(handler->event_cxt);
	handler->called = false;
	MemoryContextSwitchTo(handler->event_cxt);
	if (functions_changed)
		check_and_plan(handler, config);
	MemoryContextSwitchTo(old);
	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(handler->event_cxt);
	PG_TRY();
	{
		result = claim_and_call(handler, config, ev);
		(void) end_timeout();
		ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		failure_from_error(handler, config, end_timeout(), failure);
		RollbackAndReleaseCurrentSubTransaction();
		result = IDEM_HANDLED_FAILED;
	}
	PG_END_TRY();
	event_in_hand[0] = '\0';
	/* Settings that the handler has SET end with the event. */
	AtEOXact_GUC(false, save_nestlevel);
	MemoryContextSwitchTo(old);
	CurrentResourceOwner = owner;
	if (result == IDEM_HANDLED_FAILED && was_changed(handler))
	{
		failure->kind = IDEM_BLAME_NOTHING; /* the next check tells what is
											 * wrong */
		failure->backs_off = true;
	}
	if (result == IDEM_HANDLED_BUSY)
	{
		failure->kind = IDEM_BLAME_NOTHING;
		failure->retry_after_ms = idem_relay_min_backoff_ms(config);
		strlcpy(failure->sqlstate, "55P03", sizeof(failure->sqlstate));
		failure->message = "the event is claimed by another transaction";
	}
	return result;
}
