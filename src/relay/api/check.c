/*-------------------------------------------------------------------------
 *
 * check.c
 *		relay_check: is a relay set up right, here and at its target?
 *
 * A row for each thing: first what holds for any relay, then the function of a
 * function relay, or what the sink program finds at the target (child/look.c), and the
 *		relay's last try if none of this tells why it fails.  "ok" is null where nobody can tell.
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
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "relay/api/api.h"
#include "relay/child/process.h"
#include "relay/function/function.h"
#include "relay/position/position.h"
#include "relay/report.h"
#include "relay/stream/pipe.h"
#include "relay/stream/stream.h"
#include "relay/witness.h"
#include "relay/worker_slots.h"

PG_FUNCTION_INFO_V1(idem_relay_check_fn);

#define COLUMNS 4

/* Where the rows go. */
typedef struct Rows
{
	ReturnSetInfo *rsinfo;
	bool		well;			/* no row of a problem, or of doubt, so far */
} Rows;

/* Return a row.  problem and remedy: NULL or empty where there is none. */
static void
put_row(Rows *rows, const char *what, bool known, bool ok, const char *problem, const char *remedy)
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
	rows->well = rows->well && known && ok;
	nulls[1] = !known;
	values[1] = BoolGetDatum(ok);
	tuplestore_putvalues(rows->rsinfo->setResult, rows->rsinfo->setDesc, values, nulls);
}

/* Return a row of a thing that is as it has to be, or else has this problem. */
static void
put(Rows *rows, const char *what, bool ok, const char *problem, const char *remedy)
{
	put_row(rows, what, true, ok, ok ? NULL : problem, ok ? NULL : remedy);
}

/* Run a check that raises an error, and return its row. */
static void
put_checked(Rows *rows, const char *what, void (*check) (const IdemRelayConfig *), const IdemRelayConfig *c)
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
	put(rows, what, error == NULL,
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
		case IDEM_RELAY_FENCED:
			return "Stop the other server that publishes as this relay, then call relay_resume.";
		case IDEM_RELAY_HALTED:
			return "Put right what the problem names, then call relay_resume.";
		default:
			return "Put right what the problem names.";
	}
}

/*
 * What the relay's worker says of it: state and last error.  False if no worker has the
 * relay, or the worker does not run.
 */
static bool
reported(const IdemRelayConfig *c, IdemRelayEntry *entry)
{
	IdemRelayEntry *entries;
	bool		found = false;
	int			n;

	if (!idem_slots_exist())
		return false;
	entries = idem_relay_entries_copy(idem_slots_state(0) == IDEM_SLOT_RUNS, &n);
	for (int i = 0; i < n && !found; i++)
	{
		found = entries[i].relay_id == c->relay_id;
		*entry = entries[i];
	}
	pfree(entries);
	return found;
}

static void
put_state(Rows *rows, const char *what, IdemRelayState state, const char *message, const char *remedy)
{
	put(rows, what, false,
		psprintf("it is %s%s%s", idem_state_names[state], message && message[0] ? ": " : "", message ? message : ""), remedy);
}

/*
 * Does anything forbid the relay to run that goes by no mend of the target: in this
 * database, or at the sink's position, of which only the worker knows?
 */
static void
look_at_relay(Rows *rows, const IdemRelayConfig *c)
{
	IdemRelayState state;
	IdemRelayEntry entry;
	const char *message = NULL;

	idem_relay_identity_refresh();
	if (idem_relay_is_barred(c, &state, &message))
		put_state(rows, "relay", state, message, remedy_of(state));
	else if (idem_position_last(c->relay_id, c->epoch) == NULL)
		put(rows, "relay", false, psprintf("the log of positions has no position of relay \"%s\"", c->name),
			IDEM_LOST_POSITION_REMEDY);
	else if (reported(c, &entry) && (entry.state == IDEM_RELAY_DIVERGED || entry.state == IDEM_RELAY_FENCED))
		put_state(rows, "relay", entry.state, entry.last_error, remedy_of(entry.state));
	else
		put(rows, "relay", true, NULL, NULL);
}

/*
 * The last word of the worker, where nothing else shows why the relay fails.  What it fails
 * for may be mended since its last try.
 */
static void
look_at_failure(Rows *rows, const IdemRelayConfig *c)
{
	IdemRelayEntry entry;

	if (rows->well && reported(c, &entry) &&
		(entry.state == IDEM_RELAY_MISCONFIGURED || entry.state == IDEM_RELAY_OUTAGE))
		put_state(rows, "last try", entry.state, entry.last_error,
				  "If that is mended, the relay finds it out at its next try, within 30 s; relay_resume makes it try at once.");
}

/* Is there a process for the relays of this database, and does it take its turns? */
static void
look_at_worker(Rows *rows, const IdemRelayConfig *c)
{
	IdemSlotState state = idem_slots_state(0);
	TimestampTz hung = idem_slots_hung_since(idem_relay_is_function(c) ? c->relay_id : 0);

	if (state == IDEM_SLOT_NOT_THERE)
		put(rows, "worker", false, "the launcher has no slot for this database",
			"Wait a second. If it stays: raise idempotency.max_workers, or see the server log.");
	else if (hung != 0)
		put(rows, "worker", false, psprintf("the worker has taken no turn since %s", timestamptz_to_str(hung)),
			IDEM_HUNG_REMEDY);
	else
		put(rows, "worker", state == IDEM_SLOT_RUNS,
			idem_slots_lack_process() ? "max_worker_processes are used up" : "the worker of this database is not running yet",
			"Wait a second. If it stays: raise max_worker_processes, or see the server log.");
}

/* What holds for any relay. */
static void
look_here(Rows *rows, const IdemRelayConfig *c)
{
	bool		preloaded = idem_slots_exist();

	put(rows, "preload", preloaded, "the library \"idempotency\" is not preloaded, so no relay runs",
		"Add idempotency to shared_preload_libraries and restart the server.");
	put(rows, "primary", !RecoveryInProgress(), "this server is a standby, on which no relay runs",
		"Look at the primary, or promote this server.");
	look_at_relay(rows, c);
	if (!preloaded || RecoveryInProgress())
		return;
	look_at_worker(rows, c);
	if (idem_publish_witness != NULL && idem_publish_witness[0] != '\0')
		put(rows, "publish witness", idem_witness_allows(), "there is no valid yes of idempotency.publish_witness",
			"See that the witness says yes; stat_relay shows what it said.");
}

/* Return a row for a frame of the program. */
static void
take_frame(const IdemProtoFrame *frame, void *arg)
{
	Rows	   *rows = arg;

	if (frame->type == IDEM_PROTO_FOUND)
		put_row(rows, idem_receive_text(frame->u.found.what), true, frame->u.found.ok,
				idem_receive_text(frame->u.found.problem), idem_receive_text(frame->u.found.remedy));
	else if (frame->type == IDEM_PROTO_FAILED)
		put_row(rows, "sink program", true, false, idem_receive_text(frame->u.failed.message),
				"Put right what the problem names.");
}

/* Let the relay's program look at the target. */
static void
look_there(Rows *rows, const IdemRelayConfig *c)
{
	uint8	   *look = palloc(IDEM_PROTO_MAX_FRAME);
	size_t		len = idem_encode_look(c, look);
	char	   *how;

	if (len == 0 || len > IDEM_PROTO_MAX_FRAME)
	{
		put(rows, "sink program", false, "the options of server and user mapping do not fit into a frame in UTF-8",
			"Shorten them.");
		return;
	}
	switch (idem_child_look(c->program, look, len, idem_sink_timeout_ms, take_frame, rows, &how))
	{
		case IDEM_LOOK_DONE:
			break;
		case IDEM_LOOK_UNKNOWN:
			put_row(rows, "sink program", false, false, "not supported: the program cannot look at its target",
					"See stat_relay when the relay has run. Programs of this release can look.");
			break;
		case IDEM_LOOK_MISSING:
			put(rows, "sink program", false, how, idem_process_missing_remedy(c->program));
			break;
		case IDEM_LOOK_FAILED:
			put(rows, "sink program", false, how, "See the server log, and whether the target answers.");
			break;
	}
}

Datum
idem_relay_check_fn(PG_FUNCTION_ARGS)
{
	Rows		rows = {(ReturnSetInfo *) fcinfo->resultinfo, true};
	IdemRelayConfig *c = idem_relay_get(idem_relay_args_name(fcinfo));

	InitMaterializedSRF(fcinfo, 0);
	look_here(&rows, c);
	put_checked(&rows, "server", idem_target_check_options, c);
	if (c->problem == NULL)
	{
		if (idem_relay_is_function(c))
			put_checked(&rows, "function", idem_handler_verify, c);
		else
			look_there(&rows, c);
	}
	look_at_failure(&rows, c);
	PG_RETURN_NULL();
}
