/*-------------------------------------------------------------------------
 *
 * stream.c
 *		Life cycle of a relay to a sink program: start, breaker, gate, timers.
 *
 *		OFF --start--> HELLO --READY--> READY --END OF FILE, FAILED, hang--> OFF
 *
 * OFF waits for the breaker, or, "stuck", for an operator.  Nothing of the
 * program's process survives a way to OFF: batches in flight are dropped and
 * the log is read again from the settled position, or from the one the sink
 * has stored.
 *
 * Invariant 2 (no phantom) is kept by the gate: bytes of a batch are written
 * only when every transaction in it is flushed, and, where synchronous
 * standbys are configured, has reached them.
 *
 * LOCKING: none is held between steps; a transaction never spans a wait.
 *
 * MEMORY: one context per stream; the buffers are bounded by the batch size
 * and one message, what is in flight by IDEM_STREAM_MAX_BATCHES.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/stream.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <errno.h>
#include <sys/socket.h>

#include "access/xact.h"
#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "relay/children.h"
#include "relay/report.h"
#include "relay/stream.h"
#include "relay/witness.h"
#include "shared/clock.h"
#include "shared/durable.h"
#include "shared/error.h"
#include "shared/fault.h"

/* How often a standby that the gate waits for is looked at again. */
#define GATE_POLL_MS 5

int			idem_sink_timeout_ms = 30000;

IdemStream *
idem_stream_create(MemoryContext parent, IdemRelayConfig *config, MemoryContext config_cxt)
{
	MemoryContext cxt = AllocSetContextCreate(parent, "idempotency relay",
											  ALLOCSET_DEFAULT_SIZES);
	IdemStream *stream = MemoryContextAllocZero(cxt, sizeof(*stream));

	stream->cxt = cxt;
	stream->config = config;
	stream->config_cxt = config_cxt;
	MemoryContextSetParent(config_cxt, cxt);
	stream->entry = idem_relay_entry_take(MyDatabaseId, config->relay_id);
	stream->run_cxt = AllocSetContextCreate(cxt, "in flight", ALLOCSET_DEFAULT_SIZES);
	stream->event_cxt = AllocSetContextCreate(cxt, "event", ALLOCSET_DEFAULT_SIZES);
	stream->process = (IdemSinkProcess) IDEM_SINK_PROCESS_NONE;
	stream->reader = idem_reader_create(cxt);
	stream->parked = idem_parked_index_create(cxt);
	stream->parked_dirty = true;
	dlist_init(&stream->batches);
	stream->in = MemoryContextAlloc(cxt, 2 * IDEM_PROTO_MAX_FRAME);
	return stream;
}

static void
drop_batches(IdemStream *stream)
{
	while (!dlist_is_empty(&stream->batches))
		idem_batch_free(stream, dlist_head_element(IdemBatch, node, &stream->batches));
}

/* To OFF, whatever the state; the breaker and "stuck" are the caller's. */
static void
turn_off(IdemStream *stream)
{
	idem_process_kill(&stream->process);
	idem_report_sink_pid(stream->entry, 0);
	drop_batches(stream);
	stream->repeating = false;
	stream->alone = false;
	stream->log_turn = false;
	MemoryContextReset(stream->run_cxt);
	MemoryContextReset(stream->event_cxt);
	idem_reader_reset(stream->reader);
	stream->phase = IDEM_STREAM_OFF;
	stream->out_start = stream->out_end = 0;
	stream->in_start = stream->in_end = 0;
	stream->writable_wanted = false;
	stream->gate = InvalidXLogRecPtr;
	stream->deadline = 0;
	stream->drained = stream->unfinished = false;
	stream->stamp = stream->looked_at = stream->woken_at = 0;
	stream->row_id = 0;
	stream->lock_retry_at = 0;
}

/* The same where the program did nothing wrong: it may say its last words. */
static void
dismiss(IdemStream *stream)
{
	(void) idem_stream_say_bye(stream);
	turn_off(stream);
}

void
idem_stream_configure(IdemStream *stream, IdemRelayConfig *config,
					  MemoryContext config_cxt, bool acted)
{
	bool		same = config->problem == NULL && stream->config->problem == NULL &&
	idem_relay_config_same_sink(stream->config, config);

	/* The position was moved, or bound to another cluster. */
	if (stream->config->epoch != config->epoch ||
		strcmp(stream->config->incarnation, config->incarnation) != 0)
		idem_stream_forget_unwritten(stream);
	MemoryContextDelete(stream->config_cxt);
	stream->config = config;
	stream->config_cxt = config_cxt;
	MemoryContextSetParent(config_cxt, stream->cxt);
	stream->parked_dirty = true;
	stream->drained = false;
	stream->barred = false;
	if (!same || (acted && stream->stuck))
		dismiss(stream);
	if (!same)
		stream->found.is_set = false;
	if (!same || acted)
	{
		stream->stuck = false;
		stream->failures = 0;
		stream->not_before = 0;
	}
}

void
idem_stream_destroy(IdemStream *stream)
{
	dismiss(stream);
	if (stream->entry)
		idem_relay_entry_release(stream->entry);
	MemoryContextDelete(stream->cxt);
}

static void
open_breaker(IdemStream *stream)
{
	int64		ms = idem_relay_backoff_ms(stream->config, stream->failures++);

	stream->not_before = idem_clock_plus_ms(idem_clock(), ms);
}

void
idem_stream_break_as(IdemStream *stream, IdemRelayState state, const char *message)
{
	turn_off(stream);
	open_breaker(stream);
	idem_report_error(stream->entry, message);
	idem_report_state(stream->entry, stream->config->name, state, IDEM_WAIT_BACKOFF);
}

void
idem_stream_break(IdemStream *stream, const char *message)
{
	idem_stream_break_as(stream, IDEM_RELAY_OUTAGE, message);
}

void
idem_stream_restart(IdemStream *stream, const char *message)
{
	turn_off(stream);
	stream->not_before = 0;
	idem_report_error(stream->entry, message);
	idem_report_state(stream->entry, stream->config->name, IDEM_RELAY_OUTAGE, IDEM_WAIT_BACKOFF);
}

void
idem_stream_stick(IdemStream *stream, IdemRelayState state, const char *message)
{
	turn_off(stream);
	stream->stuck = true;
	stream->stuck_state = state;
	idem_report_error(stream->entry, message);
	idem_report_state(stream->entry, stream->config->name, state, IDEM_WAIT_OPERATOR);
}

void
idem_stream_failed(IdemStream *stream, const char *message)
{
	/* Its transaction may have taken back what "settled" has passed. */
	idem_stream_forget_unwritten(stream);
	stream->stepwise = IDEM_STREAM_MAX_BATCHES;
	stream->parked_dirty = true;
	idem_stream_break(stream, message);
}

void
idem_stream_woken(IdemStream *stream, TimestampTz stamp)
{
	if (stream->woken_at == 0)
		stream->woken_at = stamp;
	stream->drained = false;
}

/* Why it must not run at all now; reports the state.  True if it may. */
static bool
may_run(IdemStream *stream)
{
	IdemRelayConfig *c = stream->config;
	IdemRelayState state;
	const char *message;
	bool		was_barred = stream->barred;

	stream->barred = idem_relay_is_barred(c, &state, &message);
	if (!stream->barred)
		return !stream->stuck;

	/* What is in flight is settled before a pause, or a halt. */
	if ((state == IDEM_RELAY_PAUSED || state == IDEM_RELAY_HALTED) && stream->phase == IDEM_STREAM_READY &&
		stream->nbatches > 0)
		return true;
	if (stream->phase != IDEM_STREAM_OFF)
		dismiss(stream);
	/* Paused means that nothing of it is to be repeated later. */
	idem_stream_persist(stream);
	if (message && !was_barred)
		idem_report_error(stream->entry, message);
	idem_report_state(stream->entry, c->name, state, IDEM_WAIT_OPERATOR);
	return false;
}

/*
 * May this server publish?  If not, the program goes at once, for it may still
 * hold what it was sent.  What it has answered already is not sent again.
 */
static bool
is_witnessed(IdemStream *stream)
{
	if (idem_witness_allows())
		return true;
	if (stream->phase == IDEM_STREAM_READY && idem_stream_receive(stream) &&
		stream->phase == IDEM_STREAM_READY)
		idem_stream_settle(stream);
	if (stream->phase != IDEM_STREAM_OFF)
		dismiss(stream);
	idem_stream_persist(stream);
	idem_witness_report(stream->entry, stream->config->name);
	return false;
}

/*
 * A program that was killed may live as long as the kernel holds it.  What it had
 * in hand may still take effect then: a write to a file system that answers late, a
 * transaction whose connection is open.  So the next program begins after its end,
 * or events of one key would change their order.
 */
static bool
former_program_lives(IdemStream *stream)
{
	bool		overdue;
	pid_t		pid = idem_children_dying(stream->config->name, &overdue);

	if (pid == 0)
		return false;
	idem_report_sink_pid(stream->entry, pid);
	if (overdue && stream->held_pid != pid)
	{
		idem_report_error(stream->entry,
						  psprintf("sink program %d was killed and has not ended", (int) pid));
		ereport(LOG,
				(errcode(ERRCODE_IDEM_SINK_OUTAGE),
				 errmsg("relay \"%s\" waits for the end of its former sink program, process %d, which was killed",
						stream->config->name, (int) pid),
				 errhint("The kernel holds the process, for example for a file system that does not answer.")));
		stream->held_pid = pid;
	}
	idem_report_state(stream->entry, stream->config->name,
					  overdue ? IDEM_RELAY_OUTAGE : IDEM_RELAY_STARTING,
					  IDEM_WAIT_PROGRAM_END);
	return true;
}

static void
start_program(IdemStream *stream, IdemClock now)
{
	char	   *problem = NULL;

	idem_report_state(stream->entry, stream->config->name,
					  IDEM_RELAY_STARTING, IDEM_WAIT_SINK);
	if (!idem_process_start(&stream->process, stream->config->name, stream->config->program, &problem))
	{
		idem_stream_break(stream, problem);
		return;
	}
	idem_report_sink_pid(stream->entry, stream->process.pid);
	stream->phase = IDEM_STREAM_HELLO;
	stream->progressed = false;
	stream->deadline = idem_clock_plus_ms(now, idem_sink_timeout_ms);
	stream->next_ping = 0;
	idem_stream_send_hello(stream);
	IDEM_FAULT_POINT("relay-hello-sent");
}

/* Room for n more bytes at the end of the output. */
uint8 *
idem_stream_reserve(IdemStream *stream, size_t n)
{
	if (stream->out_start > 0 && stream->out_start == stream->out_end)
		stream->out_start = stream->out_end = 0;
	if (stream->out_end + n > stream->out_allocated && stream->out_start > 0)
	{
		memmove(stream->out, stream->out + stream->out_start,
				stream->out_end - stream->out_start);
		stream->out_end -= stream->out_start;
		stream->out_start = 0;
	}
	if (stream->out_end + n > stream->out_allocated)
	{
		size_t		size = Max(stream->out_allocated * 2, stream->out_end + n);

		size = Max(size, 2 * IDEM_PROTO_MAX_FRAME);
		if (stream->out == NULL)
			stream->out = MemoryContextAllocHuge(stream->cxt, size);
		else
			stream->out = repalloc_huge(stream->out, size);
		stream->out_allocated = size;
	}
	return stream->out + stream->out_end;
}

/* Nothing is written before all of it is safe to be seen outside. */
static bool
gate_is_open(IdemStream *stream)
{
	if (stream->gate == InvalidXLogRecPtr)
		return true;
	if (!idem_durable_reached(stream->gate))
		return false;
	stream->gate = InvalidXLogRecPtr;
	return true;
}

void
idem_stream_flush(IdemStream *stream)
{
	stream->writable_wanted = false;
	if (!gate_is_open(stream) || !idem_witness_allows())
		return;
	while (stream->out_start < stream->out_end)
	{
		ssize_t		n = send(stream->process.fd, stream->out + stream->out_start,
							 stream->out_end - stream->out_start,
							 MSG_DONTWAIT | MSG_NOSIGNAL);

		if (n > 0)
		{
			stream->out_start += n;
			if (stream->out_start < stream->out_end)
				IDEM_FAULT_POINT("relay-half-written");
		}
		else if (n < 0 && errno == EINTR)
			continue;
		else if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
		{
			stream->writable_wanted = true;
			return;
		}
		else
			return;				/* the end of file tells what happened */
	}
}

/* A program that does not answer a PING in time hangs. */
static bool
serve_timers(IdemStream *stream, IdemClock now)
{
	/* What the gate holds back cannot have been answered. */
	if (stream->deadline != 0 && stream->gate != InvalidXLogRecPtr)
		stream->deadline = idem_clock_plus_ms(now, idem_sink_timeout_ms);
	if (stream->deadline != 0 && now >= stream->deadline)
	{
		idem_stream_died(stream, psprintf("the sink program did not answer within %d ms",
										  idem_sink_timeout_ms));
		return false;
	}
	if (stream->phase == IDEM_STREAM_READY && stream->deadline == 0 &&
		now >= stream->next_ping && stream->gate == InvalidXLogRecPtr)
	{
		uint8	   *buf = idem_stream_reserve(stream, 32);

		stream->out_end += idem_proto_encode_ping(buf, 32, ++stream->ping_nonce);
		stream->deadline = idem_clock_plus_ms(now, idem_sink_timeout_ms);
	}
	return true;
}

static void
report_running(IdemStream *stream)
{
	IdemRelayWait waiting = IDEM_WAIT_EVENTS;

	if (stream->phase != IDEM_STREAM_READY)
		return;
	if (stream->lock_retry_at != 0)
		waiting = IDEM_WAIT_LOCK;
	else if (stream->gate != InvalidXLogRecPtr)
		waiting = IDEM_WAIT_SYNC_STANDBY;
	else if (stream->nbatches > 0)
		waiting = IDEM_WAIT_SINK;
	else if (stream->parked->total >= idem_max_parked)
		waiting = IDEM_WAIT_PARKED_ROOM;
	else if (idem_parked_index_next(stream->parked) != 0)
		waiting = IDEM_WAIT_RETRY;
	idem_report_state(stream->entry, stream->config->name,
					  IDEM_RELAY_STREAMING, waiting);
}

void
idem_stream_step(IdemStream *stream)
{
	IdemClock	now = idem_clock();

	idem_process_log_output(&stream->process);
	if (now >= stream->lock_retry_at)
		stream->lock_retry_at = 0;
	if (!may_run(stream) || !is_witnessed(stream))
		return;
	if (stream->phase == IDEM_STREAM_OFF)
	{
		if (now < stream->not_before || former_program_lives(stream))
			return;
		start_program(stream, now);
		if (stream->phase == IDEM_STREAM_OFF)
			return;
	}
	if (stream->process.fd < 0)
	{
		(void) idem_stream_await_end(stream);
		return;
	}
	if (!idem_stream_receive(stream) || stream->phase == IDEM_STREAM_OFF)
		return;
	idem_stream_settle(stream);
	if (stream->phase == IDEM_STREAM_OFF || !serve_timers(stream, now))
		return;
	if (stream->phase == IDEM_STREAM_READY && !stream->barred)
		idem_stream_fill(stream);
	if (stream->phase == IDEM_STREAM_OFF)
		return;
	idem_stream_flush(stream);
	report_running(stream);
	if (stream->barred)
		(void) may_run(stream);
}

static IdemClock
earlier(IdemClock a, IdemClock b)
{
	if (a == 0 || b == 0)
		return a == 0 ? b : a;
	return Min(a, b);
}

/* When to start the program; 0: something that wakes us comes before. */
static IdemClock
start_time(const IdemStream *stream)
{
	bool		overdue;

	if (stream->stuck || stream->barred || !idem_witness_allows() ||
		idem_children_dying(stream->config->name, &overdue) != 0)
		return 0;
	return Max(stream->not_before, 1);
}

IdemClock
idem_stream_next_time(IdemStream *stream)
{
	IdemClock	t = 0;

	if (stream->phase == IDEM_STREAM_OFF)
		return start_time(stream);
	if (stream->process.fd < 0)
		return stream->deadline;
	if (stream->gate != InvalidXLogRecPtr)
		t = idem_clock_plus_ms(idem_clock(), GATE_POLL_MS);
	t = earlier(t, stream->deadline);
	t = earlier(t, stream->write_by);
	t = earlier(t, stream->lock_retry_at);
	if (stream->phase == IDEM_STREAM_READY)
	{
		if (stream->deadline == 0)
			t = earlier(t, stream->next_ping);
		if (!stream->barred)
			t = earlier(t, idem_stream_repeats_at(stream));
		if (stream->unfinished && !stream->barred && stream->lock_retry_at == 0)
			t = 1;
	}
	return t;
}
