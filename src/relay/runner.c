/*-------------------------------------------------------------------------
 *
 * runner.c
 *		One relay of a worker: a stream to a program, or a function.
 *
 * An error in a relay's turn rolls back what it did and opens that relay's
 * breaker; the other relays of the worker do not notice.
 *
 * MEMORY: a runner and all of its relay are in TopMemoryContext until it is
 * destroyed.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/runner.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "storage/lwlock.h"
#include "utils/memutils.h"

#include "relay/function.h"
#include "relay/runner.h"

struct IdemRunner
{
	int			relay_id;
	const IdemRelayConfig *config;	/* as taken over last; not ours */
	IdemStream *stream;			/* one of the two, */
	IdemFunctionRelay *function;	/* the other is NULL */
};

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

IdemRunner *
idem_runner_create(const IdemRelayConfig *config, bool function)
{
	IdemRunner *runner = MemoryContextAllocZero(TopMemoryContext, sizeof(*runner));
	MemoryContext cxt;
	IdemRelayConfig *copy = copy_config(config, &cxt);

	runner->relay_id = config->relay_id;
	runner->config = copy;
	if (function)
		runner->function = idem_function_create(TopMemoryContext, copy, cxt);
	else
		runner->stream = idem_stream_create(TopMemoryContext, copy, cxt);
	return runner;
}

void
idem_runner_configure(IdemRunner *runner, const IdemRelayConfig *config)
{
	MemoryContext cxt;
	IdemRelayConfig *copy = copy_config(config, &cxt);
	bool		acted = idem_relay_config_changed_from(runner->config, copy);

	runner->config = copy;
	if (runner->stream)
		idem_stream_configure(runner->stream, copy, cxt, acted);
	else
		idem_function_configure(runner->function, copy, cxt, acted);
}

void
idem_runner_destroy(IdemRunner *runner)
{
	if (runner->stream)
		idem_stream_destroy(runner->stream);
	if (runner->function)
		idem_function_destroy(runner->function);
	pfree(runner);
}

int
idem_runner_relay_id(const IdemRunner *runner)
{
	return runner->relay_id;
}

static const char *
error_text(const ErrorData *edata)
{
	return edata->message ? edata->message : "unknown error";
}

/* The error that was caught is this relay's. */
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
	if (runner->stream)
		idem_stream_failed(runner->stream, error_text(edata));
	else
		idem_function_failed(runner->function, edata->sqlerrcode, error_text(edata));
}

IdemRunnerTurn
idem_runner_turn(IdemRunner *runner, MemoryContext error_cxt)
{
	volatile IdemRunnerTurn turn = IDEM_TURN_DONE;

	PG_TRY();
	{
		if (runner->stream)
			idem_stream_step(runner->stream);
		else if (idem_function_step(runner->function))
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

void
idem_runner_woken(IdemRunner *runner, TimestampTz stamp)
{
	if (runner->stream)
		idem_stream_woken(runner->stream, stamp);
	else
		idem_function_woken(runner->function);
}

IdemClock
idem_runner_next_time(const IdemRunner *runner)
{
	return runner->stream ? idem_stream_next_time(runner->stream) :
		idem_function_next_time(runner->function);
}

void
idem_runner_persist(IdemRunner *runner)
{
	if (runner->stream)
		idem_stream_persist(runner->stream);
	else
		idem_function_persist(runner->function);
}

const IdemSinkProcess *
idem_runner_process(const IdemRunner *runner, bool *writable)
{
	if (runner->stream == NULL || runner->stream->process.fd < 0)
		return NULL;
	*writable = runner->stream->writable_wanted;
	return &runner->stream->process;
}
