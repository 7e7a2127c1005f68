/*-------------------------------------------------------------------------
 *
 * stream.c
 *		Life cycle of a relay to a sink program: its turns, start, yield and rest.
 *
 *		OFF --start--> HELLO --READY--> READY --END OF FILE, FAILED, hang--> OFF
 *
 * Every phase may go to OFF.  In OFF the relay waits for the breaker, for its
 * turn to start a program (engine/schedule.c), for the publish witness, for the
 * end of a former program that still lives, or for an operator, if the relay is
 * stopped or its configuration bars it.  Or the relay rests, because there is
 * nothing to send (position/rest.c).  A program that has had nothing to do for
 * a while is ended, so that a resting relay holds no process.
 *
 * The other files of this folder are below this one.  Those that can find a
 * fault return a verdict, whether the program can go on; end.c acts on it.
 *
 * INVARIANT: a program starts only after the relay's former one has ended, or
 * was sent BYE with nothing in flight.
 *
 * A crash leaves what the log of positions has; the relay goes on there.
 *
 * LOCKING: no lock is held between steps; a transaction never spans a wait.
 *
 * MEMORY: one context per stream.  The batch size and one message bound the
 * buffers; batch.c bounds what is in flight.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/stream/stream.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/memutils.h"

#include "relay/stream/state.h"
#include "relay/stream/stream.h"
#include "relay/worker_slots.h"
#include "shared/error.h"
#include "shared/fault.h"

/* How often the gate looks whether a standby has come far enough. */
#define GATE_POLL_MS 5

/* A program is not ended if a parked event is due within this time. */
#define MIN_REST_MS 1000

static void
create(IdemRelay *relay)
{
	IdemStream *stream = idem_stream(relay);

	idem_schedule_count_programs(1);
	relay->entry = idem_relay_entry_take(MyDatabaseId, relay->config->relay_id, false);
	stream->pipe.process = (IdemSinkProcess) IDEM_SINK_PROCESS_NONE;
	stream->look = IDEM_LOOK_WITH_ROOM;
	stream->parked_dirty = true;
	dlist_init(&stream->batches);
	idem_late_forget(stream);
}

/* Allocate what only a relay with a program needs. */
static void
make_busy(IdemStream *stream)
{
	MemoryContext cxt;

	if (stream->busy_cxt != NULL)
		return;
	cxt = AllocSetContextCreate(stream->relay.cxt, "busy", ALLOCSET_DEFAULT_SIZES);
	stream->run_cxt = AllocSetContextCreate(cxt, "in flight", ALLOCSET_DEFAULT_SIZES);
	stream->event_cxt = AllocSetContextCreate(cxt, "event", ALLOCSET_DEFAULT_SIZES);
	stream->reader = idem_reader_create(cxt);
	stream->parked = idem_parked_index_create(cxt);
	stream->parked_dirty = true;
	idem_pipe_allocate(&stream->pipe, cxt);
	stream->busy_cxt = cxt;
}

/* Parked events or the outbox may have changed: look at both. */
static void
look_again(IdemRelay *relay)
{
	IdemStream *stream = idem_stream(relay);

	stream->parked_dirty = true;
	if (stream->look == IDEM_LOOK_WHEN_WOKEN)
		stream->look = IDEM_LOOK_WITH_ROOM;

	/* Whether a parked event is alone shows only in the outbox. */
	stream->log_turn = true;
}

/*
 * Is nothing in flight, nothing to be sent, and nothing left that only a
 * program can tell?
 */
static bool
is_idle(const IdemStream *stream)
{
	return idem_stream_may_send(stream) &&
		stream->look == IDEM_LOOK_WHEN_WOKEN && !idem_stream_has_flights(stream) &&
		stream->unwritten == 0 && stream->relay.walk.read.target == NULL &&
		!idem_pipe_is_held(&stream->pipe) && idem_pipe_bytes_waiting(&stream->pipe) == 0 &&
		stream->pipe.deadline == 0 && stream->lock_retry_at == 0 &&
		!stream->parked_dirty && !stream->parked->stale &&
		!stream->found.is_set && !idem_hunt_is_on(&stream->hunt);
}

/* When to end the program because it has nothing to do; 0: not to be ended. */
static IdemClock
rest_time(const IdemStream *stream)
{
	IdemClock	due;

	if (idem_sink_idle_timeout_ms == 0 || !is_idle(stream) ||
		(idem_engine_is_held(&stream->relay) && stream->parked->total > 0))
		return 0;
	due = idem_parked_index_next(stream->parked);
	if (due != 0 && due <= idem_clock_plus_ms(idem_clock(), MIN_REST_MS))
		return 0;
	return idem_clock_plus_ms(stream->busy_at, idem_sink_idle_timeout_ms);
}

bool
idem_stream_end_idle(IdemStream *stream)
{
	if (!is_idle(stream))
		return false;
	idem_walk_advance(&stream->relay.walk, &stream->relay.walk.read);
	stream->relay.rester.due = idem_parked_index_next(stream->parked);
	idem_stream_dismiss(stream);
	if (stream->busy_cxt != NULL)
		MemoryContextDelete(stream->busy_cxt);
	stream->busy_cxt = stream->run_cxt = stream->event_cxt = NULL;
	stream->reader = NULL;
	stream->parked = NULL;
	stream->pipe.in = stream->pipe.out = NULL;
	stream->pipe.out_allocated = 0;
	idem_progress_forget_unwritten(stream);
	idem_engine_rest(&stream->relay, false);
	IDEM_FAULT_POINT("relay-resting");
	return true;
}

bool
idem_stream_make_yield(IdemStream *stream)
{
	if (stream->yields)
		return true;
	if (!idem_stream_may_send(stream) ||
		idem_clock() < idem_clock_plus_ms(stream->started_at, IDEM_SLICE_MS))
		return false;
	stream->yields = true;
	stream->yield_by = idem_clock_plus_ms(idem_clock(), 2 * IDEM_SLICE_MS);
	return true;
}

IdemClock
idem_stream_idle_since(const IdemStream *stream)
{
	return is_idle(stream) ? stream->busy_at : 0;
}

IdemClock
idem_stream_ready_since(const IdemStream *stream)
{
	return idem_stream_may_send(stream) ? stream->started_at : 0;
}

bool
idem_stream_keeps_program(const IdemStream *stream)
{
	return stream->pipe.process.pid != 0 &&
		(!stream->yields || idem_clock() >= stream->yield_by);
}

bool
idem_stream_is_sending(const IdemStream *stream)
{
	return idem_stream_has_flights(stream);
}

bool
idem_stream_may_be_answered(const IdemStream *stream)
{
	return idem_stream_has_flights(stream) && !stream->relay.blame.whole.open;
}

/*
 * The relay asks again among those whose programs fail.  There its program has
 * all of idempotency.sink_timeout.
 */
bool
idem_stream_end_slow_start(IdemStream *stream)
{
	if (stream->phase != IDEM_STREAM_HELLO || stream->relay.ticket.trying ||
		idem_clock() < idem_clock_plus_ms(stream->started_at, IDEM_SLICE_MS))
		return false;
	idem_stream_turn_off(stream);
	stream->slow_start = true;
	return true;
}

static void
configure(IdemRelay *relay, const IdemRelayChange *change)
{
	IdemStream *stream = idem_stream(relay);

	if (change->moved)
	{
		idem_progress_forget_unwritten(stream);
		relay->walk.rested = false;
	}
	look_again(relay);

	/*
	 * An operator who acts on a relay may have set its target back, of which
	 * nothing tells the program: a new one compares the stored position.  A
	 * paused or halted relay settles first (hold).
	 */
	if (!change->same_sink ||
		(change->acted && (relay->stopped ||
						   (relay->walk.sink_stores && stream->phase == IDEM_STREAM_READY &&
							!relay->config->paused && relay->config->halted == IDEM_HALT_NOT))))
		idem_stream_dismiss(stream);
	if (!change->same_sink)
		stream->found.is_set = stream->proven = false;
	if (change->acted)
	{
		stream->slow_start = false;
		stream->room = 0;
	}
}

static void
destroy(IdemRelay *relay)
{
	idem_stream_dismiss(idem_stream(relay));
	idem_schedule_count_programs(-1);
}

static void
woken(IdemRelay *relay, TimestampTz stamp)
{
	IdemStream *stream = idem_stream(relay);

	if (stream->woken_at == 0)
		stream->woken_at = stamp;
	if (stream->look == IDEM_LOOK_WHEN_WOKEN)
		stream->look = IDEM_LOOK_WITH_ROOM;
}

/* What each turn begins with, also one in which the relay may not run. */
static void
begin_turn(IdemStream *stream)
{
	idem_process_log_output(&stream->pipe.process);
	if (idem_clock() >= stream->lock_retry_at)
		stream->lock_retry_at = 0;
}

/*
 * Does the target take nothing, while more is in flight than the event of a probe and those beside it?
 * Each of these may take the sink's whole timeout.  They are sent again in any case.
 */
static bool
is_hopeless(const IdemStream *stream)
{
	return stream->relay.blame.whole.open && stream->nunanswered + stream->nlate > IDEM_STREAM_FEW_EVENTS;
}

/*
 * End the program.  Before a pause or a halt, what is in flight is settled.
 * Without the witness's yes, results that have arrived are settled, so that
 * their events are not sent again.  The program is sent BYE if nothing is in
 * flight.  Otherwise it is killed at once, since it may still hold events that
 * it was sent.  The position is written, so that a later start repeats nothing, nor does
 * another server that relay_alter leads a paused relay to.
 */
static bool
hold(IdemRelay *relay, IdemRelayState state)
{
	IdemStream *stream = idem_stream(relay);

	begin_turn(stream);
	stream->yields = false;
	if ((state == IDEM_RELAY_PAUSED || state == IDEM_RELAY_HALTED) &&
		stream->phase == IDEM_STREAM_READY && idem_stream_has_flights(stream) && !is_hopeless(stream))
		return false;
	if (state == IDEM_RELAY_UNWITNESSED && stream->phase == IDEM_STREAM_READY &&
		idem_stream_goes_on(stream, idem_receive(stream)))
		idem_settle(stream);
	if (state == IDEM_RELAY_PAUSED || state == IDEM_RELAY_HALTED)
		idem_progress_persist_stored(stream);
	if (stream->phase != IDEM_STREAM_OFF)
		idem_stream_dismiss(stream);
	idem_progress_persist(relay);
	return true;
}

/*
 * Does a former program of the relay still live?  A killed program may live as
 * long as the kernel holds it.  Its last system call may still take effect: a
 * write to a file system that answers late, or a transaction whose connection
 * is open.  So the next program starts only after the former one has ended.
 * Otherwise events of one key could change their order.
 */
static bool
former_program_lives(IdemStream *stream)
{
	bool		overdue;
	pid_t		pid = idem_children_dying(stream->relay.config->name, &overdue);

	if (pid == 0)
		return false;

	/* Leave the queue of starts: the former program may live for ever. */
	idem_schedule_withdraw(&stream->relay.ticket);
	idem_report_sink_pid(stream->relay.entry, pid);
	if (overdue && stream->held_pid != pid)
	{
		idem_report_error(stream->relay.entry,
						  psprintf("sink program %d was killed and has not ended", (int) pid));
		ereport(LOG,
				(errcode(ERRCODE_IDEM_SINK_OUTAGE),
				 errmsg("relay \"%s\" waits for the end of its former sink program, process %d, which was killed",
						stream->relay.config->name, (int) pid),
				 errhint("The kernel holds the process, for example for a file system that does not answer.")));
		stream->held_pid = pid;
	}
	if (overdue)
		stream->relay.breaker.fault = IDEM_RELAY_OUTAGE;
	idem_engine_show_trying(&stream->relay, IDEM_RELAY_STARTING, IDEM_WAIT_PROGRAM_END);
	return true;
}

/* Has the relay's turn to start come?  If not, report that it waits. */
static bool
may_start(IdemStream *stream)
{
	if (idem_schedule_ask_program(&stream->relay.ticket, stream->relay.breaker.failures > 0 || stream->slow_start,
								  !stream->relay.walk.rested && !stream->proven))
		return true;
	if (stream->relay.breaker.failures == 0)
		idem_engine_show_trying(&stream->relay, IDEM_RELAY_STARTING, IDEM_WAIT_PROGRAM);
	return false;
}

/* Start the program and send HELLO; opens the breaker if the start fails. */
static void
start_program(IdemStream *stream, IdemClock now)
{
	char	   *problem = NULL;

	make_busy(stream);
	stream->busy_at = stream->started_at = now;
	idem_engine_show_trying(&stream->relay, IDEM_RELAY_STARTING, IDEM_WAIT_ANSWER);
	if (!idem_process_start(&stream->pipe.process, stream->relay.config->name,
							stream->relay.config->program, &problem))
	{
		(void) idem_stream_goes_on(stream, idem_stream_verdict(IDEM_STREAM_OUTAGE, problem));
		return;
	}
	idem_report_sink_pid(stream->relay.entry, stream->pipe.process.pid);
	stream->phase = IDEM_STREAM_HELLO;
	idem_hunt_started(&stream->hunt);
	stream->pipe.deadline = idem_clock_plus_ms(idem_clock(), idem_sink_timeout_ms);
	stream->pipe.next_ping = 0;
	if (idem_stream_goes_on(stream, idem_encode_hello(stream)))
		IDEM_FAULT_POINT("relay-hello-sent");
}

/*
 * Report what a relay with a ready program waits for.  A failure is over when an event was
 * accepted (settle.c), or when there is nothing left that the sink could be sent: an event
 * that it refused may be to be tried again.
 */
static void
report_running(IdemStream *stream)
{
	IdemRelayWait waiting = IDEM_WAIT_EVENTS;
	uint64		key;

	if (stream->phase != IDEM_STREAM_READY)
		return;
	if (!idem_stream_has_flights(stream) && stream->look == IDEM_LOOK_WHEN_WOKEN && stream->lock_retry_at == 0 &&
		(!idem_engine_is_held(&stream->relay) || idem_parked_keys(stream->parked, &key, 0, 1) == 0))
		idem_engine_disprove(&stream->relay);
	if (stream->lock_retry_at != 0)
		waiting = IDEM_WAIT_LOCK;
	else if (idem_pipe_is_held(&stream->pipe))
		waiting = IDEM_WAIT_SYNC_STANDBY;
	else if (idem_stream_has_flights(stream))
		waiting = IDEM_WAIT_ANSWER;
	else if (idem_parked_is_full(stream->parked))
		waiting = IDEM_WAIT_PARKED_ROOM;
	else if (idem_send_paced_until(stream) != 0)
		waiting = IDEM_WAIT_BACKOFF;
	else if (idem_parked_index_next(stream->parked) != 0)
		waiting = idem_engine_is_held(&stream->relay) ? IDEM_WAIT_BACKOFF : IDEM_WAIT_RETRY;
	idem_engine_show_trying(&stream->relay, IDEM_RELAY_STREAMING, waiting);
}

/* Settle, send and rest; the program's frames have been handled. */
static void
work(IdemStream *stream, IdemClock now)
{
	IdemRelay  *relay = &stream->relay;
	IdemClock	rest_at;

	idem_settle(stream);

	/* A program that does not answer HELLO or a PING in time hangs. */
	if (!idem_pipe_serve_timers(&stream->pipe, stream->phase == IDEM_STREAM_READY, now))
	{
		(void) idem_stream_goes_on(stream, idem_stream_verdict(IDEM_STREAM_DIED,
															   psprintf("the sink program did not answer within %d ms",
																		idem_sink_timeout_ms)));
		return;
	}
	if (stream->yields && (!idem_stream_has_flights(stream) || is_hopeless(stream)))
	{
		/*
		 * End the program for others; ask for a new one if there is more to
		 * send.
		 */
		stream->yields = false;
		if (idem_stream_end_idle(stream))
			return;
		idem_stream_dismiss(stream);
		idem_progress_persist(relay);
		IDEM_FAULT_POINT("relay-yielded");
		return;
	}
	if (idem_stream_may_send(stream))
		idem_send(stream);
	idem_pipe_flush(&stream->pipe);
	report_running(stream);
	if (stream->relay.barred)
	{
		(void) idem_engine_may_run(relay);
		return;
	}

	/* Rest after idempotency.sink_idle_timeout with nothing to do. */
	if (idem_stream_has_flights(stream))
		stream->busy_at = now;
	rest_at = rest_time(stream);
	if (rest_at != 0 && now >= rest_at)
		(void) idem_stream_end_idle(stream);
}

/* A stream limits its own turn.  If there is more to do, next_time says so. */
static bool
step(IdemRelay *relay)
{
	IdemStream *stream = idem_stream(relay);
	IdemClock	now = idem_clock();

	begin_turn(stream);
	if (stream->phase == IDEM_STREAM_OFF)
	{
		if (now < relay->breaker.not_before || former_program_lives(stream) || !may_start(stream))
			return false;
		start_program(stream, now);
		if (stream->phase == IDEM_STREAM_OFF)
			return false;
	}
	if (!idem_pipe_is_open(&stream->pipe))
		(void) idem_stream_goes_on(stream, idem_receive_end(stream));
	else if (idem_stream_goes_on(stream, idem_receive(stream)) && idem_pipe_is_open(&stream->pipe))
		work(stream, now);

	/*
	 * A program that ends while the relay is to be held has nothing in flight
	 * any more, and nothing else wakes such a relay.
	 */
	if (relay->barred && stream->phase == IDEM_STREAM_OFF)
		(void) idem_engine_may_run(relay);
	return false;
}

static IdemClock
next_time(IdemRelay *relay)
{
	IdemStream *stream = idem_stream(relay);
	IdemClock	t = 0;
	bool		overdue;

	/*
	 * When to start the program.  schedule.c wakes a relay whose turn to
	 * start has come; SIGCHLD tells the end of a former program.
	 */
	if (stream->phase == IDEM_STREAM_OFF)
		return idem_children_dying(relay->config->name, &overdue) != 0 ? 0 : idem_engine_run_time(relay);
	if (!idem_pipe_is_open(&stream->pipe))
		return stream->pipe.deadline;
	if (idem_pipe_is_held(&stream->pipe))
		t = idem_clock_plus_ms(idem_clock(), GATE_POLL_MS);
	t = idem_clock_earlier(t, stream->pipe.deadline);
	t = idem_clock_earlier(t, stream->write_by);
	t = idem_clock_earlier(t, stream->lock_retry_at);
	if (stream->phase != IDEM_STREAM_READY)
		return t;
	if (stream->pipe.deadline == 0)
		t = idem_clock_earlier(t, stream->pipe.next_ping);
	if (!stream->relay.barred)
	{
		t = idem_clock_earlier(t, idem_send_next_at(stream));
		t = idem_clock_earlier(t, idem_send_paced_until(stream));
		t = idem_clock_earlier(t, idem_late_next_at(stream));
		t = idem_clock_earlier(t, rest_time(stream));
	}
	if (stream->look == IDEM_LOOK_AT_ONCE && idem_stream_may_send(stream) &&
		stream->lock_retry_at == 0)
		t = 1;
	return t;
}

static bool
holds_nothing(const IdemRelay *relay)
{
	const IdemStream *stream = idem_stream(relay);

	return stream->phase == IDEM_STREAM_OFF && stream->unwritten == 0;
}

static const IdemSinkProcess *
process(const IdemRelay *relay, bool *writable)
{
	const IdemPipe *pipe = &idem_stream(relay)->pipe;

	*writable = pipe->writable_wanted;
	return idem_pipe_is_open(pipe) ? &pipe->process : NULL;
}

const IdemCourier idem_program_courier = {
	.size = sizeof(IdemStream),
	.create = create,
	.configure = configure,
	.destroy = destroy,
	.hold = hold,
	.step = step,
	.failed = idem_stream_failed,
	.holds_nothing = holds_nothing,
	.rise = look_again,
	.woken = woken,
	.next_time = next_time,
	.persist = idem_progress_persist,
	.process = process
};
