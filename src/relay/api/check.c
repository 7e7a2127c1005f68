/*-------------------------------------------------------------------------
 *
 * check.c
 *		relay_check: is a relay set up right, here and at its target?
 *
 * A row for each thing: first what holds for any relay, then the function of a
 * function relay, or what the sink program finds at the target (child/look.c).  "ok"
 * is null where nobody can tell.
 *
 * The checks of this database are those of relay_create (target.c), which raise
 * errors.  Each runs in a subtransaction, and its error becomes a row: message and
 * detail the problem, the hint the remedy.
 *
 * INVARIANT
 *		Nothing is changed, here or at the target, and no event is sent.  A relay that
 *		runs goes on with its own program, and is not fenced.
 *
 * LOCKING: the lock of a reader on "relays", to the end of the transaction.  While the
 * program looks, the caller's statement keeps its snapshot, for idempotency.sink_timeout
 * at most.
 *
 * MEMORY: rows go to the function's tuplestore.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/api/check.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "fmgr.h"
#include "funcapi.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/resowner.h"
#include "utils/tuplestore.h"

#include "relay/api/api.h"
#include "relay/child/process.h"
#include "relay/function/function.h"
#include "relay/stream/pipe.h"
#include "relay/stream/stream.h"
#include "relay/witness.h"
#include "relay/worker_slots.h"

PG_FUNCTION_INFO_V1(idem_relay_check_fn);

#define COLUMNS 4

/* Return a row.  problem and remedy: NULL or empty where there is none. */
static void
put_row(ReturnSetInfo *rsinfo, const char *what, bool known, bool ok, const char *problem, const char *remedy)
{
	const char *texts[] = {what, NULL, problem, remedy};
	Datum		values[COLUMNS] = {0};
	bool		nulls[COLUMNS];

	for (int i = 0; i < COLUMNS; i++)
	{
		nulls[i] = texts[i] == NULL || texts[i][0] == '\0';
		if (!nulls[i])
			values[i] = CStringGetTextDatum(texts[i]);
	}
	nulls[1] = !known;
	values[1] = BoolGetDatum(ok);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

/* Return a row of a thing that is as it has to be, or else has this problem. */
static void
put(ReturnSetInfo *rsinfo, const char *what, bool ok, const char *problem, const char *remedy)
{
	put_row(rsinfo, what, true, ok, ok ? NULL : problem, ok ? NULL : remedy);
}

/* Run a check that raises an error, and return its row. */
static void
put_checked(ReturnSetInfo *rsinfo, const char *what, void (*check) (const IdemRelayConfig *), const IdemRelayConfig *c)
{
	MemoryContext cxt = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	ErrorData  *volatile error = NULL;

	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(cxt);
	PG_TRY();
	{
		check(c);
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(cxt);
		error = CopyErrorData();
		FlushErrorState();
	}
	PG_END_TRY();
	RollbackAndReleaseCurrentSubTransaction();
	MemoryContextSwitchTo(cxt);
	CurrentResourceOwner = owner;
	if (error != NULL && error->sqlerrcode == ERRCODE_QUERY_CANCELED)
		ReThrowError(error);
	put(rsinfo, what, error == NULL,
		error == NULL ? NULL : psprintf("%s%s%s", error->message, error->detail ? ": " : "", error->detail ? error->detail : ""),
		error == NULL ? NULL : error->hint);
}

/* What to do about a state that keeps the relay from running. */
static const char *
remedy_of(IdemRelayState state)
{
	switch (state)
	{
		case IDEM_RELAY_PAUSED:
			return "Call relay_resume.";
		case IDEM_RELAY_UNADOPTED:
			return "Make sure that the original does not publish any more, then call relay_adopt.";
		case IDEM_RELAY_DIVERGED:
			return "Find out why, put it right, then call relay_adopt.";
		case IDEM_RELAY_HALTED:
			return "Put right what the problem names, then call relay_resume.";
		default:
			return "Put right what the problem names.";
	}
}

/* Does anything in this database forbid the relay to run? */
static void
look_at_relay(ReturnSetInfo *rsinfo, const IdemRelayConfig *c)
{
	IdemRelayState state;
	const char *message = NULL;

	idem_relay_identity_refresh();
	if (idem_relay_is_barred(c, &state, &message))
		put(rsinfo, "relay", false,
			psprintf("it is %s%s%s", idem_state_names[state], message ? ": " : "", message ? message : ""), remedy_of(state));
	else
		put(rsinfo, "relay", true, NULL, NULL);
}

/* Is there a process for the relays of this database? */
static void
look_at_worker(ReturnSetInfo *rsinfo)
{
	IdemSlotState state = idem_slots_state(0);

	if (state == IDEM_SLOT_NOT_THERE)
		put(rsinfo, "worker", false, "the launcher has no slot for this database",
			"Wait a second. If it stays: raise idempotency.max_workers, or see the server log.");
	else
		put(rsinfo, "worker", state == IDEM_SLOT_RUNS,
			idem_slots_lack_process() ? "max_worker_processes are used up" : "the worker of this database is not running yet",
			"Wait a second. If it stays: raise max_worker_processes, or see the server log.");
}

/* What holds for any relay. */
static void
look_here(ReturnSetInfo *rsinfo, const IdemRelayConfig *c)
{
	bool		preloaded = idem_slots_exist();

	put(rsinfo, "preload", preloaded, "the library \"idempotency\" is not preloaded, so no relay runs",
		"Add idempotency to shared_preload_libraries and restart the server.");
	put(rsinfo, "primary", !RecoveryInProgress(), "this server is a standby, on which no relay runs",
		"Look at the primary, or promote this server.");
	look_at_relay(rsinfo, c);
	if (!preloaded || RecoveryInProgress())
		return;
	look_at_worker(rsinfo);
	if (idem_publish_witness != NULL && idem_publish_witness[0] != '\0')
		put(rsinfo, "publish witness", idem_witness_allows(), "there is no valid yes of idempotency.publish_witness",
			"See that the witness says yes; stat_relay shows what it said.");
}

/* Return a row for a frame of the program. */
static void
take_frame(const IdemProtoFrame *frame, void *arg)
{
	ReturnSetInfo *rsinfo = arg;

	if (frame->type == IDEM_PROTO_FOUND)
		put_row(rsinfo, idem_receive_text(frame->u.found.what), true, frame->u.found.ok,
				idem_receive_text(frame->u.found.problem), idem_receive_text(frame->u.found.remedy));
	else if (frame->type == IDEM_PROTO_FAILED)
		put_row(rsinfo, "sink program", true, false, idem_receive_text(frame->u.failed.message),
				"Put right what the problem names.");
}

/* Let the relay's program look at the target. */
static void
look_there(ReturnSetInfo *rsinfo, const IdemRelayConfig *c)
{
	uint8	   *look = palloc(IDEM_PROTO_MAX_FRAME);
	size_t		len = idem_encode_look(c, look);
	char	   *how;

	if (len == 0 || len > IDEM_PROTO_MAX_FRAME)
	{
		put(rsinfo, "sink program", false, "the options of server and user mapping do not fit into a frame in UTF-8",
			"Shorten them.");
		return;
	}
	switch (idem_child_look(c->program, look, len, idem_sink_timeout_ms, take_frame, rsinfo, &how))
	{
		case IDEM_LOOK_DONE:
			break;
		case IDEM_LOOK_UNKNOWN:
			put_row(rsinfo, "sink program", false, false, "not supported: the program cannot look at its target",
					"See stat_relay when the relay has run. Programs of this release can look.");
			break;
		case IDEM_LOOK_MISSING:
			put(rsinfo, "sink program", false, how, idem_process_missing_remedy(c->program));
			break;
		case IDEM_LOOK_FAILED:
			put(rsinfo, "sink program", false, how, "See the server log, and whether the target answers.");
			break;
	}
}

Datum
idem_relay_check_fn(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	IdemRelayConfig *c = idem_relay_get(idem_relay_args_name(fcinfo));

	InitMaterializedSRF(fcinfo, 0);
	look_here(rsinfo, c);
	put_checked(rsinfo, "server", idem_target_check_options, c);
	if (c->problem == NULL)
	{
		if (idem_relay_is_function(c))
			put_checked(rsinfo, "function", idem_handler_verify, c);
		else
			look_there(rsinfo, c);
	}
	PG_RETURN_NULL();
}
