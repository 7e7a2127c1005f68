/*-------------------------------------------------------------------------
 *
 * function.c
 *		A relay to a SQL function of its own database.
 *
 * Claim, effect and position commit in one transaction, so a crash anywhere
 * leaves all of them or none: exactly once.  The claim, under the relay's name
 * as consumer, also refuses what comes a second time after replay, adoption or
 * a moved position.
 *
 * Each event is handled in a subtransaction of its own, as the relay's owner,
 * under SECURITY_RESTRICTED_OPERATION and the relay's timeout.  An error rolls
 * the event back and parks it; the batch goes on.  Constraints are immediate
 * in handlers, so that their errors find the event they belong to.  What
 * makes the whole transaction fail at commit is isolated by repeating the
 * batch one event at a time; the one that fails alone is parked untried.
 *
 * A handler that takes the server down is beyond that: it runs in the server,
 * as the owner wrote it, and its event is tried again after the restart.
 *
 * MEMORY: one event at a time, in a context that is reset after each.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/function.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "executor/spi.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "parser/parse_type.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/regproc.h"
#include "utils/resowner.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
#include "utils/timeout.h"
#include "utils/timestamp.h"

#include "claim/claim.h"
#include "compat.h"
#include "outbox/reader.h"
#include "relay/function.h"
#include "relay/parked.h"
#include "relay/position.h"
#include "relay/relay.h"
#include "relay/report.h"
#include "relay/stream.h"
#include "shared/error.h"

#define MAX_REPEATS 100
#define DEFAULT_TIMEOUT_MS 30000

/* The arguments a handler may declare, in the order of the parameters. */
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

struct IdemFunctionRelay
{
	MemoryContext cxt;
	MemoryContext config_cxt;
	MemoryContext event_cxt;
	IdemRelayConfig *config;
	IdemRelayEntry *entry;
	IdemReader *reader;
	IdemPosition pos;
	bool		loaded;			/* pos is */
	bool		dirty;			/* pos is ahead of the log */
	IdemParkedIndex *parked;
	bool		parked_dirty;
	SPIPlanPtr	plan;			/* NULL: to be made */
	Oid			func;			/* that it calls */
	bool		checking;		/* the function; no event is to blame */
	bool		payload_is_bytea;
	int			timeout_ms;
	int			single;			/* so many batches of one event to come */
	int64		last_tried;		/* seq of the event handled last; 0: none */
	int64		suspect;		/* seq of one that alone made a commit fail */
	IdemFailure suspect_failure;
	bool		drained;
	bool		catching_up;	/* cut the backlog at ticks */
	int64		done_last_seq;	/* last number given out when "done" was taken */
	int			failures;
	TimestampTz not_before;
};

IdemFunctionRelay *
idem_function_create(MemoryContext parent, IdemRelayConfig *config, MemoryContext config_cxt)
{
	MemoryContext cxt = AllocSetContextCreate(parent, "function relay", ALLOCSET_DEFAULT_SIZES);
	IdemFunctionRelay *relay = MemoryContextAllocZero(cxt, sizeof(*relay));

	relay->cxt = cxt;
	relay->config = config;
	relay->config_cxt = config_cxt;
	MemoryContextSetParent(config_cxt, cxt);
	relay->event_cxt = AllocSetContextCreate(cxt, "event", ALLOCSET_DEFAULT_SIZES);
	relay->entry = idem_relay_entry_take(MyDatabaseId, config->relay_id);
	relay->reader = idem_reader_create(cxt);
	relay->parked = idem_parked_index_create(cxt);
	relay->parked_dirty = true;
	return relay;
}

static void
forget_plan(IdemFunctionRelay *relay)
{
	if (relay->plan)
		SPI_freeplan(relay->plan);
	relay->plan = NULL;
}

void
idem_function_configure(IdemFunctionRelay *relay, IdemRelayConfig *config,
						MemoryContext config_cxt, bool acted)
{
	MemoryContextDelete(relay->config_cxt);
	relay->config = config;
	relay->config_cxt = config_cxt;
	MemoryContextSetParent(config_cxt, relay->cxt);
	forget_plan(relay);
	idem_reader_reset(relay->reader);
	relay->loaded = false;
	relay->parked_dirty = true;
	relay->drained = false;
	if (acted)
	{
		relay->not_before = 0;
		relay->failures = 0;
	}
}

void
idem_function_destroy(IdemFunctionRelay *relay)
{
	forget_plan(relay);
	if (relay->entry)
		idem_relay_entry_release(relay->entry);
	MemoryContextDelete(relay->cxt);
}

void
idem_function_woken(IdemFunctionRelay *relay)
{
	relay->drained = false;
}

/* The function the server names: exactly one of that name. */
static Oid
find_function(const char *name, List **names)
{
	FuncCandidateList candidates;

	*names = idem_string_to_name_list(name);
	candidates = idem_funcname_candidates(*names);
	if (candidates == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_FUNCTION),
				 errmsg("function \"%s\" of the sink does not exist", name)));
	if (candidates->next != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_AMBIGUOUS_FUNCTION),
				 errmsg("function \"%s\" of the sink is not unique", name)));
	return candidates->oid;
}

/* Append "name => $n::type" for one declared argument. */
static void
append_handler_arg(IdemFunctionRelay *relay, StringInfo sql, const char *name, Oid type)
{
	for (int i = 0; i < NARGS; i++)
	{
		if (strcmp(handler_args[i].name, name) != 0)
			continue;
		if (i == ARG_PAYLOAD)
			relay->payload_is_bytea = type == BYTEAOID;
		appendStringInfo(sql, "%s%s => $%d::%s", sql->data[sql->len - 1] == '(' ? "" : ", ",
						 quote_identifier(name), i + 1, format_type_be_qualified(type));
		return;
	}
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_FUNCTION_DEFINITION),
			 errmsg("the sink's function declares an argument \"%s\", which no event has", name),
			 errhint("Arguments can be event_id, aggregate_type, aggregate_id, event_type, payload, headers, enqueued_at.")));
}

static void
append_handler_args(IdemFunctionRelay *relay, StringInfo sql, Oid func)
{
	HeapTuple	tup = SearchSysCache1(PROCOID, ObjectIdGetDatum(func));
	Oid		   *types;
	char	  **names;
	char	   *modes;
	int			n;

	if (!HeapTupleIsValid(tup))
		elog(ERROR, "cache lookup failed for function %u", func);
	n = get_func_arg_info(tup, &types, &names, &modes);
	for (int i = 0; i < n; i++)
	{
		if (modes && modes[i] != PROARGMODE_IN)
			continue;
		append_handler_arg(relay, sql, names ? names[i] : "", types[i]);
	}
	ReleaseSysCache(tup);
}

/* Prepare "SELECT schema.function(event_id => $1, ...)", as the owner. */
static void
make_plan(IdemFunctionRelay *relay)
{
	const char *name = idem_relay_option(relay->config, "function");
	const char *timeout = idem_relay_option(relay->config, "timeout");
	Oid			types[NARGS];
	StringInfoData sql;
	List	   *names;
	Oid			func;
	SPIPlanPtr	plan;

	if (name == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_FDW_OPTION_NAME_NOT_FOUND),
				 errmsg("server \"%s\" has no option \"function\"", relay->config->server)));
	func = find_function(name, &names);
	initStringInfo(&sql);
	appendStringInfo(&sql, "SELECT %s(", NameListToQuotedString(names));
	append_handler_args(relay, &sql, func);
	appendStringInfoChar(&sql, ')');
	for (int i = 0; i < NARGS; i++)
		types[i] = handler_args[i].type;
	if (relay->payload_is_bytea)
		types[ARG_PAYLOAD] = BYTEAOID;
	plan = SPI_prepare(sql.data, NARGS, types);
	if (plan == NULL)
		elog(ERROR, "could not prepare \"%s\"", sql.data);
	SPI_keepplan(plan);
	relay->plan = plan;
	relay->func = func;
	relay->timeout_ms = DEFAULT_TIMEOUT_MS;
	if (timeout)
		(void) parse_int(timeout, &relay->timeout_ms, GUC_UNIT_MS, NULL);
}

/*
 * Before any event is handled, so that none is refused because the function is
 * missing, cannot be called as declared, or may not be called.
 */
static void
check_function(IdemFunctionRelay *relay)
{
	const char *name = idem_relay_option(relay->config, "function");
	List	   *names;
	Oid			save_userid;
	int			save_sec_context;

	relay->checking = true;
	GetUserIdAndSecContext(&save_userid, &save_sec_context);
	SetUserIdAndSecContext(relay->config->owner,
						   save_sec_context | SECURITY_RESTRICTED_OPERATION |
						   SECURITY_LOCAL_USERID_CHANGE);
	if (relay->plan != NULL && find_function(name, &names) != relay->func)
		forget_plan(relay);
	if (relay->plan == NULL)
	{
		if (SPI_connect() != SPI_OK_CONNECT)
			elog(ERROR, "could not connect to SPI");
		make_plan(relay);
		SPI_finish();
	}
	if (idem_function_execute_check(relay->func, relay->config->owner) != ACLCHECK_OK)
		aclcheck_error(ACLCHECK_NO_PRIV, OBJECT_FUNCTION,
					   idem_relay_option(relay->config, "function"));
	SetUserIdAndSecContext(save_userid, save_sec_context);
	relay->checking = false;
}

/* The payload as the handler's type wants it. */
static Datum
payload_datum(IdemFunctionRelay *relay, const IdemEvent *ev)
{
	if (ev->is_json != relay->payload_is_bytea)
		return ev->payload;
	ereport(ERROR,
			(errcode(ERRCODE_DATATYPE_MISMATCH),
			 errmsg("the event's payload is %s and the sink's function takes %s",
					ev->is_json ? "jsonb" : "bytea", ev->is_json ? "bytea" : "jsonb")));
}

static Datum
text_datum(IdemEventText t)
{
	return PointerGetDatum(cstring_to_text_with_len(t.data, t.len));
}

/* As the owner, within the timeout; errors are the caller's to catch. */
static void
call_handler(IdemFunctionRelay *relay, const IdemEvent *ev)
{
	Datum		values[NARGS];
	char		nulls[NARGS + 1] = "       ";
	int			rc;

	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "could not connect to SPI");
	values[0] = UUIDPGetDatum(&ev->event_id);
	values[1] = text_datum(ev->aggregate_type);
	values[2] = text_datum(ev->aggregate_id);
	values[3] = text_datum(ev->event_type);
	values[4] = payload_datum(relay, ev);
	values[5] = ev->headers;
	nulls[5] = ev->has_headers ? ' ' : 'n';
	values[6] = TimestampTzGetDatum(ev->enqueued_at);

	rc = SPI_execute_plan(relay->plan, values, nulls, false, 0);
	if (rc < 0)
		elog(ERROR, "could not call the sink's function: %s", SPI_result_code_string(rc));
	SPI_finish();
}

/*
 * Constraints are immediate while a handler runs, those declared deferred as
 * well: nothing that was queued may run later under another role.  What the
 * handler deferred itself is an error of the event.
 */
static void
constraints_immediate(void)
{
	ConstraintsSetStmt stmt = {.type = T_ConstraintsSetStmt, .constraints = NIL, .deferred = false};

	AfterTriggerSetState(&stmt);
}

typedef enum Handled
{
	HANDLED,
	HANDLED_DUPLICATE,
	HANDLED_BUSY,
	HANDLED_FAILED
} Handled;

/* Claim, call, complete: inside the event's subtransaction. */
static Handled
claim_and_call(IdemFunctionRelay *relay, const IdemEvent *ev)
{
	char		id[40];
	char	   *uuid = DatumGetCString(DirectFunctionCall1(uuid_out, UUIDPGetDatum(&ev->event_id)));
	const char *consumer = relay->config->name;
	Oid			save_userid;
	int			save_sec_context;
	IdemClaimResult claimed;

	strlcpy(id, uuid, sizeof(id));
	claimed = idem_claim_event(id, strlen(id), consumer, strlen(consumer), 0);
	if (claimed == IDEM_CLAIM_DUPLICATE)
		return HANDLED_DUPLICATE;
	if (claimed != IDEM_CLAIM_CLAIMED)
		return HANDLED_BUSY;

	GetUserIdAndSecContext(&save_userid, &save_sec_context);
	SetUserIdAndSecContext(relay->config->owner,
						   save_sec_context | SECURITY_RESTRICTED_OPERATION |
						   SECURITY_LOCAL_USERID_CHANGE);
	constraints_immediate();
	call_handler(relay, ev);
	constraints_immediate();
	SetUserIdAndSecContext(save_userid, save_sec_context);

	idem_complete_event(id, strlen(id), consumer, strlen(consumer), (Datum) 0, false);
	return HANDLED;
}

/* Errors that come from what else goes on: other sessions, full disks. */
static bool
is_circumstance(int sqlerrcode)
{
	int			category = ERRCODE_TO_CATEGORY(sqlerrcode);

	return sqlerrcode == ERRCODE_T_R_SERIALIZATION_FAILURE ||
		sqlerrcode == ERRCODE_T_R_DEADLOCK_DETECTED ||
		category == ERRCODE_INSUFFICIENT_RESOURCES ||
		category == ERRCODE_SYSTEM_ERROR;
}

/* What went wrong, out of the caught error; in the event's context. */
static void
failure_from_error(IdemFunctionRelay *relay, IdemFailure *failure)
{
	ErrorData  *edata;

	MemoryContextSwitchTo(relay->event_cxt);
	edata = CopyErrorData();
	FlushErrorState();
	failure->counts = true;
	failure->retry_after_ms = 0;
	strlcpy(failure->sqlstate, unpack_sql_state(edata->sqlerrcode), sizeof(failure->sqlstate));
	failure->message = edata->message ? edata->message : "unknown error";

	/* Not the handler's doing, so not the event's fault: tried again. */
	if (is_circumstance(edata->sqlerrcode))
	{
		failure->counts = false;
		failure->retry_after_ms = relay->config->min_backoff_ms;
	}
}

/* One event in a subtransaction. */
static Handled
handle_event(IdemFunctionRelay *relay, const IdemEvent *ev, IdemFailure *failure)
{
	MemoryContext old = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	volatile Handled result = HANDLED_FAILED;
	int			save_nestlevel = NewGUCNestLevel();

	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(relay->event_cxt);
	PG_TRY();
	{
		enable_timeout_after(STATEMENT_TIMEOUT, relay->timeout_ms > 0 ? relay->timeout_ms : DEFAULT_TIMEOUT_MS);
		result = claim_and_call(relay, ev);
		disable_timeout(STATEMENT_TIMEOUT, false);
		ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		disable_timeout(STATEMENT_TIMEOUT, false);
		failure_from_error(relay, failure);
		RollbackAndReleaseCurrentSubTransaction();
		result = HANDLED_FAILED;
	}
	PG_END_TRY();
	/* Whatever the handler SET ends with the event. */
	AtEOXact_GUC(false, save_nestlevel);
	MemoryContextSwitchTo(old);
	CurrentResourceOwner = owner;
	if (result == HANDLED_BUSY)
	{
		failure->counts = false;
		failure->retry_after_ms = relay->config->min_backoff_ms;
		strlcpy(failure->sqlstate, "55P03", sizeof(failure->sqlstate));
		failure->message = "the event is claimed by another transaction";
	}
	return result;
}

/* One event of the log: handle, or park it. */
static void
work_event(IdemFunctionRelay *relay, const IdemEvent *ev, int64 *sent)
{
	IdemFailure failure;
	Handled		handled;

	if (idem_parked_blocks(relay->parked, ev))
	{
		idem_parked_add_waiting(relay->config, ev);
		relay->parked_dirty = true;
		return;
	}
	if (ev->seq == relay->suspect)
	{
		handled = HANDLED_FAILED;
		failure = relay->suspect_failure;
	}
	else
		handled = handle_event(relay, ev, &failure);
	if (handled == HANDLED)
		(*sent)++;
	if (handled == HANDLED || handled == HANDLED_DUPLICATE)
		return;
	idem_report_error(relay->entry, failure.message);
	idem_parked_add(relay->config, ev, &failure);

	/* Later events of its key, in this very batch, must see it. */
	idem_parked_index_add(relay->parked, relay->config, ev);
	relay->parked_dirty = true;
}

/* Parked events that are due; in the transaction of the batch. */
static int64
work_repeats(IdemFunctionRelay *relay, int limit)
{
	List	   *due = idem_parked_due(relay->config, limit);
	List	   *failed_keys = NIL;
	int64		n = 0;
	ListCell   *lc;

	foreach(lc, due)
	{
		IdemParkedEvent *p = lfirst(lc);
		IdemFailure failure;
		char	   *key = psprintf("%.*s/%.*s", p->event.aggregate_type.len, p->event.aggregate_type.data,
								   p->event.aggregate_id.len, p->event.aggregate_id.data);
		ListCell   *fk;
		bool		behind = false;
		Handled		handled;

		foreach(fk, failed_keys)
			behind |= strcmp(lfirst(fk), key) == 0;
		if (behind && relay->config->ordering == IDEM_ORDERING_KEY)
			continue;
		handled = handle_event(relay, &p->event, &failure);
		if (handled == HANDLED || handled == HANDLED_DUPLICATE)
			idem_parked_done(p->parked_id);
		else
		{
			idem_report_error(relay->entry, failure.message);
			idem_parked_failed(relay->config, p->parked_id, &failure);
			failed_keys = lappend(failed_keys, key);
		}
		n++;
		relay->parked_dirty = true;
	}
	return n;
}

/* The log's events of this batch; true if the difference came to its end. */
static bool
work_log(IdemFunctionRelay *relay, int limit, int64 *last_seq, int64 *sent, int *n)
{
	IdemEvent	ev;

	for (*n = 0; *n < limit;)
	{
		CHECK_FOR_INTERRUPTS();
		if (!idem_reader_next(relay->reader, &ev))
			return true;
		*last_seq = ev.seq;
		if (!idem_relay_wants(relay->config, &ev) ||
			idem_parked_has_seq(relay->parked, ev.seq))
			continue;
		relay->last_tried = ev.seq;
		work_event(relay, &ev, sent);
		(*n)++;
		MemoryContextReset(relay->event_cxt);
	}
	return false;
}

/* Neither the log nor parked events have anything for it, as far as it knows. */
static bool
is_idle(IdemFunctionRelay *relay)
{
	TimestampTz due = relay->parked->next_due;

	return relay->drained && relay->loaded && !relay->parked_dirty &&
		(due == 0 || due > GetCurrentTimestamp());
}

/* Why it must not run; reports the state.  True if it may. */
static bool
may_run(IdemFunctionRelay *relay)
{
	IdemRelayState state;
	const char *message;

	if (!idem_relay_is_barred(relay->config, &state, &message))
		return GetCurrentTimestamp() >= relay->not_before;
	if (message)
		idem_report_error(relay->entry, message);
	idem_report_state(relay->entry, relay->config->name, state, IDEM_WAIT_OPERATOR);
	return false;
}

static void
load_position(IdemFunctionRelay *relay)
{
	IdemPositionRow *row = idem_position_last(relay->config->relay_id, relay->config->epoch);

	if (row == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_IDEM_RELAY_DIVERGED),
				 errmsg("the log of positions has no position of relay \"%s\"",
						relay->config->name),
				 errhint("Use relay_adopt.")));
	idem_position_assign(relay->cxt, &relay->pos, &row->pos);
	relay->pos.k = Max(relay->pos.k, 0);
	relay->catching_up = true;
	relay->loaded = true;
}

/* The next difference; false if nothing is new. */
static bool
begin_difference(IdemFunctionRelay *relay)
{
	IdemSnap   *cur = idem_snap_current();
	IdemPosition next = {relay->pos.done, cur, 0};
	int64		last_seq = idem_outbox_last_seq();

	if (idem_snap_equal(cur, relay->pos.done))
		return false;
	if (relay->catching_up || last_seq - relay->done_last_seq > IDEM_TICK_EVENTS)
	{
		IdemPositionRow *tick = idem_position_tick_after(relay->pos.done);

		relay->catching_up = tick != NULL;
		if (tick != NULL)
			next.cur = tick->pos.done;
	}
	relay->done_last_seq = last_seq;
	idem_position_assign(relay->cxt, &relay->pos, &next);
	return true;
}

static void
advance(IdemFunctionRelay *relay, bool ended, int64 last_seq)
{
	IdemPosition after;

	after.done = ended ? relay->pos.cur : relay->pos.done;
	after.cur = ended ? NULL : relay->pos.cur;
	after.k = ended ? 0 : last_seq;
	idem_position_assign(relay->cxt, &relay->pos, &after);
}

bool
idem_function_step(IdemFunctionRelay *relay)
{
	int64		sent = 0;
	int64		last_seq;
	int64		repeated = 0;
	int			n = 0;
	int			limit = relay->single > 0 ? 1 : relay->config->batch_events;
	bool		ended;

	if (!may_run(relay) || is_idle(relay))
		return false;
	relay->last_tried = 0;
	idem_stream_begin();
	if (!relay->loaded)
		load_position(relay);
	check_function(relay);
	if (relay->parked_dirty)
	{
		idem_parked_index_load(relay->parked, relay->config);
		relay->parked_dirty = false;
	}
	if (relay->parked->total > 0)
		repeated = work_repeats(relay, Min(limit, MAX_REPEATS));
	if ((relay->pos.cur == NULL && !begin_difference(relay)) ||
		relay->parked->total >= idem_max_parked)
	{
		idem_stream_commit(false);
		relay->drained = true;
		idem_report_counts(relay->entry, 0, repeated);
		idem_report_state(relay->entry, relay->config->name, IDEM_RELAY_STREAMING,
						  relay->parked->total >= idem_max_parked ?
						  IDEM_WAIT_PARKED_ROOM : IDEM_WAIT_EVENTS);
		return repeated > 0;
	}
	last_seq = relay->pos.k;
	relay->last_tried = 0;
	idem_reader_seek(relay->reader, &relay->pos);
	ended = work_log(relay, limit, &last_seq, &sent, &n);
	idem_reader_suspend(relay->reader);
	advance(relay, ended, last_seq);
	relay->dirty = true;
	if (n > 0)
	{
		(void) idem_position_append(relay->config->relay_id, relay->config->epoch, &relay->pos);
		relay->dirty = false;
	}
	idem_stream_commit(false);
	relay->failures = 0;
	if (relay->single > 0)
		relay->single--;
	idem_report_counts(relay->entry, sent, repeated);
	idem_report_state(relay->entry, relay->config->name, IDEM_RELAY_STREAMING, IDEM_WAIT_EVENTS);

	/*
	 * The next snapshot differs whenever any transaction of the cluster came
	 * to an end in between.  One that enqueued wakes us: others are no reason
	 * to look again.
	 */
	return n > 0 || repeated > 0 || !ended || relay->catching_up;
}

void
idem_function_failed(IdemFunctionRelay *relay, const char *sqlstate, const char *message)
{
	int64		ms = idem_relay_backoff_ms(relay->config, relay->failures++);

	/* Nothing of the transaction happened: read the position again. */
	forget_plan(relay);
	idem_reader_reset(relay->reader);
	relay->loaded = false;
	relay->parked_dirty = true;
	MemoryContextReset(relay->event_cxt);
	idem_report_error(relay->entry, message);

	/* Alone, and the commit fails still: it is this event's doing. */
	if (relay->single > 0 && relay->last_tried != 0)
	{
		relay->suspect = relay->last_tried;
		relay->suspect_failure.counts = true;
		strlcpy(relay->suspect_failure.sqlstate, sqlstate,
				sizeof(relay->suspect_failure.sqlstate));
		relay->suspect_failure.message = MemoryContextStrdup(relay->cxt, message);
	}
	relay->last_tried = 0;
	if (!relay->checking)
		relay->single = relay->config->batch_events;
	relay->not_before = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), ms);
	if (relay->checking)
		idem_report_state(relay->entry, relay->config->name, IDEM_RELAY_MISCONFIGURED, IDEM_WAIT_BACKOFF);
	else
		idem_report_state(relay->entry, relay->config->name, IDEM_RELAY_OUTAGE, IDEM_WAIT_BACKOFF);
	relay->checking = false;
}

TimestampTz
idem_function_next_time(IdemFunctionRelay *relay)
{
	if (relay->config->problem || relay->config->halted || relay->config->paused)
		return 0;
	if (relay->not_before > GetCurrentTimestamp())
		return relay->not_before;
	return relay->parked->next_due;
}

void
idem_function_persist(IdemFunctionRelay *relay)
{
	if (!relay->dirty || !relay->loaded || relay->pos.cur != NULL)
		return;
	idem_stream_begin();
	(void) idem_position_append(relay->config->relay_id, relay->config->epoch, &relay->pos);
	idem_stream_commit(true);
	relay->dirty = false;
}
