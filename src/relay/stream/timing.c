/*-------------------------------------------------------------------------
 *
 * timing.c
 *		When a stream has something to do.
 *
 * Looks at the stream and changes nothing.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/stream/timing.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "relay/program/children.h"
#include "relay/stream/send.h"
#include "relay/stream/timing.h"
#include "shared/clock.h"

/* How often the gate looks whether a standby has come far enough. */
#define GATE_POLL_MS 5

/* A program is not ended if a parked event is due within this time. */
#define MIN_REST_MS 1000

bool
idem_stream_is_idle(const IdemStream *stream)
{
	return idem_stream_may_send(stream) &&
		stream->look == IDEM_LOOK_WHEN_WOKEN && stream->nbatches == 0 &&
		stream->unwritten == 0 && stream->relay.walk.read.target == NULL &&
		!idem_pipe_is_held(&stream->pipe) && idem_pipe_bytes_waiting(&stream->pipe) == 0 &&
		stream->pipe.deadline == 0 && stream->lock_retry_at == 0 &&
		!stream->parked_dirty && !stream->parked->stale &&
		!stream->found.is_set && !idem_hunt_is_on(&stream->hunt);
}

IdemClock
idem_stream_rest_time(const IdemStream *stream)
{
	IdemClock	due;

	if (idem_sink_idle_timeout_ms == 0 || !idem_stream_is_idle(stream))
		return 0;
	due = idem_parked_index_next(stream->parked);
	if (due != 0 && due <= idem_clock_plus_ms(idem_clock(), MIN_REST_MS))
		return 0;
	return idem_clock_plus_ms(stream->busy_at, idem_sink_idle_timeout_ms);
}

/* The earlier of two times; 0 is no time. */
static IdemClock
earlier(IdemClock a, IdemClock b)
{
	if (a == 0 || b == 0)
		return a == 0 ? b : a;
	return Min(a, b);
}

/*
 * When to start the program; 0: something that wakes us has to come first.
 * schedule.c wakes a relay whose turn to start has come; SIGCHLD tells the end of
 * a former program.
 */
static IdemClock
start_time(const IdemStream *stream)
{
	bool		overdue;

	if (idem_children_dying(stream->relay.config->name, &overdue) != 0)
		return 0;
	return idem_engine_run_time(&stream->relay);
}

IdemClock
idem_stream_next_time(IdemRelay *relay)
{
	IdemStream *stream = idem_stream(relay);
	IdemClock	t = 0;

	if (stream->phase == IDEM_STREAM_OFF)
		return start_time(stream);
	if (!idem_pipe_is_open(&stream->pipe))
		return stream->pipe.deadline;
	if (idem_pipe_is_held(&stream->pipe))
		t = idem_clock_plus_ms(idem_clock(), GATE_POLL_MS);
	t = earlier(t, stream->pipe.deadline);
	t = earlier(t, stream->write_by);
	t = earlier(t, stream->lock_retry_at);
	if (stream->phase != IDEM_STREAM_READY)
		return t;
	if (stream->pipe.deadline == 0)
		t = earlier(t, stream->pipe.next_ping);
	if (!stream->relay.barred)
	{
		t = earlier(t, idem_send_repeats_at(stream));
		t = earlier(t, idem_stream_rest_time(stream));
	}
	if (stream->look == IDEM_LOOK_AT_ONCE && idem_stream_may_send(stream) &&
		stream->lock_retry_at == 0)
		t = 1;
	return t;
}
