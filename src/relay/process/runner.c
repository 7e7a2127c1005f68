/*-------------------------------------------------------------------------
 *
 * runner.c
 *		One relay of a worker, of whichever kind: its errors end here.
 *
 * Each kind of relay has a table of functions (runner_ops.h).  An error in a
 * relay's turn rolls back the turn's work and opens that relay's breaker.  The
 * other relays of the worker do not notice.
 *
 * MEMORY: the caller owns the runner.  The runner's relay is in contexts below
 * TopMemoryContext, from idem_runner_init to idem_runner_clear.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/process/runner.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "storage/lwlock.h"
#include "utils/memutils.h"

#include "relay/process/runner.h"

/* Copy a configuration into a new context, which the relay will own. */
static IdemRelayConfig *
copy_config(const IdemRelayConfig *config, MemoryContext *cxt)
{
	MemoryContext old;
	IdemRelayConfig *copy;

	*cxt = AllocSetContextCreate(TopMemoryContext, "relay configuration",
								 ALLOCSET_SMALL_SIZES);
	old = MemoryContextSwitchTo(*cxt);
	copy = idem_relay_config_copy(config);
	MemoryContextSwitchTo(old);
	return copy;
}

void
idem_runner_init(IdemRunner *runner, const IdemRelayConfig *config, const IdemRunnerOps *ops)
{
	MemoryContext cxt;
	IdemRelayConfig *copy = copy_config(config, &cxt);

	runner->config = copy;
	runner->ops = ops;
	runner->active = runner->outdated = false;
	runner->relay = ops->create(TopMemoryContext, copy, cxt);
}

/* True if the two name the same server, or both none. */
static bool
same_server(const IdemRelayConfig *a, const IdemRelayConfig *b)
{
	return strcmp(a->server ? a->server : "", b->server ? b->server : "") == 0;
}

/*
 * Each look at the catalog passes all relays through here, and perhaps one in
 * a thousand has changed.  So a configuration that says nothing new is not
 * copied.
 */
void
idem_runner_configure(IdemRunner *runner, const IdemRelayConfig *config)
{
	bool		acted = idem_relay_config_changed_from(runner->config, config);
	MemoryContext cxt;
	IdemRelayConfig *copy;

	if (runner->ops->look_again != NULL && !acted &&
		strcmp(runner->config->identity, config->identity) == 0 &&
		same_server(runner->config, config))
	{
		runner->ops->look_again(runner->relay);
		return;
	}
	copy = copy_config(config, &cxt);
	runner->config = copy;
	runner->ops->configure(runner->relay, copy, cxt, acted);
}

void
idem_runner_clear(IdemRunner *runner)
{
	runner->ops->destroy(runner->relay);
}

void
idem_runner_rest_at(IdemRunner *runner, const IdemPositionRow *row)
{
	if (runner->ops->rest_at != NULL)
		runner->ops->rest_at(runner->relay, row);
}

void
idem_runner_rise(IdemRunner *runner, const IdemSnap *base)
{
	if (runner->ops->rise != NULL)
		runner->ops->rise(runner->relay, base);
}

/*
 * The message of an error.  It is missing if memory ran out while the error
 * was made.
 */
static const char *
error_text(const ErrorData *edata)
{
	return edata->message ? edata->message : "unknown error";
}

/* In PG_CATCH: roll back, and pass the error to the relay's "failed". */
static void
fail(IdemRunner *runner, MemoryContext error_cxt)
{
	ErrorData  *edata;

	MemoryContextSwitchTo(error_cxt);
	edata = CopyErrorData();
	FlushErrorState();
	AbortCurrentTransaction();
	MemoryContextSwitchTo(error_cxt);
	LWLockReleaseAll();
	runner->ops->failed(runner->relay, edata->sqlerrcode, error_text(edata));
}

IdemRunnerTurn
idem_runner_turn(IdemRunner *runner, MemoryContext error_cxt)
{
	volatile IdemRunnerTurn turn = IDEM_TURN_DONE;

	PG_TRY();
	{
		if (runner->ops->step(runner->relay))
			turn = IDEM_TURN_AGAIN;
	}
	PG_CATCH();
	{
		fail(runner, error_cxt);
		turn = IDEM_TURN_FAILED;
	}
	PG_END_TRY();
	return turn;
}

bool
idem_runner_is_quiet(const IdemRunner *runner)
{
	return runner->ops->is_quiet != NULL && runner->ops->is_quiet(runner->relay);
}

bool
idem_runner_is_elsewhere(const IdemRunner *runner)
{
	return runner->ops->is_elsewhere != NULL && runner->ops->is_elsewhere(runner->relay);
}

void
idem_runner_woken(IdemRunner *runner, TimestampTz stamp)
{
	if (runner->ops->woken != NULL)
		runner->ops->woken(runner->relay, stamp);
}

IdemClock
idem_runner_next_time(const IdemRunner *runner)
{
	return runner->ops->next_time(runner->relay);
}

void
idem_runner_persist(IdemRunner *runner)
{
	if (runner->ops->persist != NULL)
		runner->ops->persist(runner->relay);
}

const IdemSinkProcess *
idem_runner_process(const IdemRunner *runner, bool *writable)
{
	if (runner->ops->process == NULL)
		return NULL;
	return runner->ops->process(runner->relay, writable);
}

bool
idem_runner_may_leave(const IdemRunner *runner, bool *idle)
{
	*idle = true;
	return runner->ops->may_leave == NULL || runner->ops->may_leave(runner->relay, idle);
}

struct IdemStream *
idem_runner_stream(const IdemRunner *runner)
{
	return runner->ops == &idem_stream_ops ? runner->relay : NULL;
}
