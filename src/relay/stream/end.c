/*-------------------------------------------------------------------------
 *
 * end.c
 *		Ends the program of a stream, and says when the next one may start.
 *
 * A program ends because it is no longer needed (idem_stream_dismiss), because
 * of a verdict (idem_stream_goes_on), or because a step raised an error
 * (idem_stream_failed).  After a verdict or an error the relay starts its next
 * program
 *
 *		at once			the hunt for an event that kills programs goes on
 *		after a backoff	the breaker is open, and the backoff grows with the failures
 *		by an operator	the relay is stopped
 *
 * INVARIANT
 *		No state of the program's process survives the way to OFF: batches in
 *		flight are dropped, and the outbox is read again from the settled position
 *		or from the position that the sink has stored.
 *
 * A crash leaves what the log of positions has; breaker, stop and hunt are
 * forgotten, and begin anew.
 *
 * LOCKING: none; the transactions here and in idem_settle end before they return.
 *
 * MEMORY: the memory of a run is reset; the buffers stay until the relay rests.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/stream/end.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/memutils.h"

#include "relay/stream/state.h"
#include "relay/worker_slots.h"
#include "shared/error.h"
#include "shared/worker.h"

void
idem_stream_turn_off(IdemStream *stream)
{
	idem_pipe_close(&stream->pipe);
	idem_report_sink_pid(stream->relay.entry, 0);
	while (stream->nbatches > 0)
		idem_batch_free(stream, idem_batch_oldest(stream));
	idem_late_forget(stream);
	stream->accepted = stream->accepted_before = stream->overtaken = (IdemStreamPlace)
	{
		0, 0
	};
	stream->log_turn |= stream->repeats_in_flight;
	stream->repeats_in_flight = false;
	stream->exclusive = false;
	if (stream->busy_cxt != NULL)
	{
		MemoryContextReset(stream->run_cxt);
		MemoryContextReset(stream->event_cxt);
		idem_reader_reset(stream->reader);
	}
	idem_schedule_withdraw(&stream->relay.ticket);
	stream->yields = false;
	stream->phase = IDEM_STREAM_OFF;
	stream->look = IDEM_LOOK_WITH_ROOM;
	stream->stamp = stream->looked_at = stream->woken_at = 0;
	stream->row_id = 0;
	stream->lock_retry_at = 0;
}

void
idem_stream_dismiss(IdemStream *stream)
{
	(void) idem_bye_say(stream);
	idem_stream_turn_off(stream);
}

/* Try again when the backoff is over. */
static void
open_breaker(IdemStream *stream, IdemRelayState state, const char *message)
{
	stream->fell_ready = stream->phase == IDEM_STREAM_READY;
	idem_stream_turn_off(stream);
	idem_engine_open_breaker(&stream->relay, state, message, false);
}

/*
 * The program says that its target fails.  Perhaps only the events in flight
 * do: send few of them next.  A sink that stores nothing answers for each event.
 */
static void
open_breaker_for_target(IdemStream *stream, IdemRelayState state, const char *message)
{
	if (stream->relay.walk.sink_stores && stream->repeats_in_flight)
		stream->few_repeats = true;
	else if (stream->relay.walk.sink_stores && stream->nbatches > 0)
		stream->few_next = true;
	open_breaker(stream, state, message);
}

/* Try again at once. */
static void
restart(IdemStream *stream, const char *message)
{
	stream->fell_ready = stream->phase == IDEM_STREAM_READY;
	idem_stream_turn_off(stream);
	stream->relay.breaker.not_before = 0;
	stream->relay.breaker.fault = IDEM_RELAY_OUTAGE;
	idem_report_error(stream->relay.entry, message);
	idem_engine_show(&stream->relay, IDEM_RELAY_OUTAGE, IDEM_WAIT_BACKOFF);
}

/*
 * A transaction of the target has no room for the batch: what its calls do counts for a
 * budget, or takes too long.  The next one has a quarter of its events; how the size grows, settle_batch.c says.  False if the batch was
 * that small.
 */
static bool
make_room(IdemStream *stream)
{
	const IdemBatch *oldest = idem_batch_oldest(stream);

	if (!stream->relay.walk.sink_stores || oldest == NULL || oldest->n <= IDEM_STREAM_FEW_EVENTS)
		return false;
	stream->crowded_at = stream->room == 0 ? oldest->n : Min(stream->crowded_at, oldest->n);
	stream->room = Max(IDEM_STREAM_FEW_EVENTS, oldest->n / 4);
	return true;
}

/* Try again when an operator has acted. */
static void
stop(IdemStream *stream, IdemRelayState state, const char *message)
{
	idem_stream_turn_off(stream);
	idem_engine_stop(&stream->relay, state, message);
}

/* The program died, perhaps of one of the events in flight. */
static void
end_by_death(IdemStream *stream, const IdemHuntDeath *death, const char *message)
{
	const IdemSentEvent *flight;
	IdemFound  *found = &stream->found;

	switch (death->in_flight == 0 ? IDEM_HUNT_WAIT : idem_hunt_died(&stream->hunt, death))
	{
		case IDEM_HUNT_WAIT:
			open_breaker(stream, IDEM_RELAY_OUTAGE, message);
			break;
		case IDEM_HUNT_AGAIN:
			restart(stream, message);
			break;
		case IDEM_HUNT_FOUND:

			/*
			 * The first event in flight is at fault: remember the event, to
			 * be parked at READY.  After an ABORTED later batches may be in
			 * flight as well.
			 */
			flight = idem_batch_first_in_flight(stream);
			*found = (IdemFound)
			{
				.is_set = true, .parked_id = flight->parked_id,
					.xid = flight->xid, .seq = flight->seq, .key = flight->key, .fell = !death->sure
			};
			idem_copy_error(found->message, message, sizeof(found->message));
			restart(stream, message);
			break;
	}
}

/*
 * Count the suspects.  If the sink cannot commit the oldest batch, these are
 * all events of the batch.  Verdicts come in order, so the batch is not the
 * oldest only if an earlier one is committed and could not be settled yet.
 * Then, and after a death, all events in flight are suspects.
 */
static IdemHuntDeath
describe_death(IdemStream *stream, const IdemStreamVerdict *verdict)
{
	IdemBatch  *oldest = idem_batch_oldest(stream);
	IdemHuntDeath death = {.exclusive = stream->exclusive};

	if (verdict->outcome == IDEM_STREAM_ABORTED && oldest != NULL && oldest->no == verdict->batch)
	{
		death.sure = true;
		death.in_flight = oldest->n;
	}
	else if (stream->phase == IDEM_STREAM_READY)
		death.in_flight = idem_batch_count_in_flight(stream, &death.prefix);
	return death;
}

/*
 * If the stream does not go on, end its program for the verdict; only this
 * function does so.  Results that came
 * before the verdict are settled first, or their events would be sent again
 * each time.  A sink that stores positions tells of its commits in its next
 * READY, so after anything but a death they need not be settled here.
 */
bool
idem_stream_goes_on(IdemStream *stream, IdemStreamVerdict verdict)
{
	bool		died = verdict.outcome == IDEM_STREAM_DIED ||
	verdict.outcome == IDEM_STREAM_ABORTED;
	IdemHuntDeath death;
	bool		halted;

	if (verdict.outcome == IDEM_STREAM_OK)
		return true;
	if (stream->phase == IDEM_STREAM_READY && (died || !stream->relay.walk.sink_stores))
		idem_settle(stream);
	switch (verdict.outcome)
	{
		case IDEM_STREAM_OK:
			break;
		case IDEM_STREAM_OUTAGE:
			open_breaker_for_target(stream, IDEM_RELAY_OUTAGE, verdict.message);
			break;
		case IDEM_STREAM_CROWDED:
			if (make_room(stream))
				restart(stream, verdict.message);
			else
				open_breaker_for_target(stream, IDEM_RELAY_OUTAGE, verdict.message);
			break;
		case IDEM_STREAM_MISCONFIGURED:
			open_breaker_for_target(stream, IDEM_RELAY_MISCONFIGURED, verdict.message);
			break;
		case IDEM_STREAM_UNUSABLE:
			stop(stream, IDEM_RELAY_MISCONFIGURED, verdict.message);
			break;
		case IDEM_STREAM_FENCED:
			stop(stream, IDEM_RELAY_FENCED, verdict.message);
			break;
		case IDEM_STREAM_HALTED:

			/*
			 * The target wants no more events: halt the relay until an
			 * operator acts.  If another transaction has the relay's row, the
			 * target is asked again later.
			 */
			idem_txn_begin();
			halted = idem_relay_halt(stream->relay.config->relay_id, IDEM_HALT_SINK, verdict.message, true);
			if (halted)
				idem_relay_config_changed();
			idem_txn_commit(true);
			if (halted)
				stop(stream, IDEM_RELAY_HALTED, verdict.message);
			else
				open_breaker(stream, IDEM_RELAY_HALTED, verdict.message);
			break;
		case IDEM_STREAM_DIVERGED:
			stop(stream, IDEM_RELAY_DIVERGED, verdict.message);
			break;
		case IDEM_STREAM_DIED:
		case IDEM_STREAM_ABORTED:
			death = describe_death(stream, &verdict);
			end_by_death(stream, &death, verdict.message);
			break;
	}
	return false;
}

void
idem_stream_failed(IdemRelay *relay, int sqlerrcode, const char *message)
{
	IdemStream *stream = idem_stream(relay);

	/* The rollback may have taken back what "settled" relies on. */
	stream->relay.walk.rested = false;
	idem_progress_forget_unwritten(stream);
	stream->relay.breaker.stepwise = idem_batch_stepwise(stream);
	stream->parked_dirty = true;
	open_breaker(stream, IDEM_RELAY_OUTAGE, message);
}
