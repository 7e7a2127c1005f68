/*-------------------------------------------------------------------------
 *
 * ops.c
 *		A stream as one of the relays of a worker.
 *
 * Defines the table through which process/runner.c calls a stream.  Each
 * function only passes the call on.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/stream/ops.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "relay/stream/end.h"
#include "relay/stream/pipe.h"
#include "relay/stream/stream.h"
#include "relay/stream/timing.h"

static void *
create(MemoryContext parent, IdemRelayConfig *config, MemoryContext config_cxt)
{
	return idem_stream_create(parent, config, config_cxt);
}

static void
configure(void *stream, IdemRelayConfig *config, MemoryContext config_cxt, bool acted)
{
	idem_stream_configure(stream, config, config_cxt, acted);
}

static void
look_again(void *stream)
{
	idem_stream_look_again(stream);
}

static void
destroy(void *stream)
{
	idem_stream_destroy(stream);
}

static void
rest_at(void *stream, const IdemPositionRow *row)
{
	idem_stream_rest_at(stream, row);
}

static void
rise(void *stream, const IdemSnap *base)
{
	idem_stream_rise(stream, base);
}

/*
 * A stream limits its own turn.  If there is more to do, idem_stream_next_time
 * says so.
 */
static bool
step(void *stream)
{
	idem_stream_step(stream);
	return false;
}

/* The SQLSTATE does not matter: a stream's breaker treats all errors alike. */
static void
failed(void *stream, int sqlerrcode, const char *message)
{
	idem_stream_failed(stream, message);
}

/* At rest; or off, with nothing to write and no leave to start a program. */
static bool
is_quiet(const void *stream)
{
	const IdemStream *s = stream;

	if (s->rester.group != NULL)
		return true;
	return s->phase == IDEM_STREAM_OFF && s->unwritten == 0 &&
		(s->leave == IDEM_STREAM_BARRED || s->stopped);
}

static void
woken(void *stream, TimestampTz stamp)
{
	idem_stream_woken(stream, stamp);
}

static IdemClock
next_time(void *stream)
{
	return idem_stream_next_time(stream);
}

static void
persist(void *stream)
{
	idem_stream_persist(stream);
}

static const IdemSinkProcess *
process(const void *stream, bool *writable)
{
	const IdemPipe *pipe = &((const IdemStream *) stream)->pipe;

	*writable = pipe->writable_wanted;
	return idem_pipe_is_open(pipe) ? &pipe->process : NULL;
}

const IdemRunnerOps idem_stream_ops = {
	.create = create,
	.configure = configure,
	.look_again = look_again,
	.destroy = destroy,
	.rest_at = rest_at,
	.rise = rise,
	.step = step,
	.failed = failed,
	.is_quiet = is_quiet,
	.woken = woken,
	.next_time = next_time,
	.persist = persist,
	.process = process
};
