/*-------------------------------------------------------------------------
 *
 * stream_hunt.c
 *		Finds the event that a sink program dies of, or cannot commit.
 *
 * A program that dies, or hangs past the deadline, with events in flight may die
 * of one of them.  The first death may be anyone's doing and is an outage; from
 * the second one on without a batch settled in between, the events that were in
 * flight are suspects, and are sent again in small batches, one at a time: first
 * those of the oldest batch that were answered; then the next event alone, which
 * is the one for programs that answer in order; then the rest by the 32nd part of
 * what was in flight.  When the program dies again, what was in flight then are
 * the suspects.  When it dies of one event alone, that is parked as refused: it
 * counts as an attempt, and its later attempts are made alone, so that each costs
 * one death and nobody else.
 *
 * As long as the suspects become fewer the program starts again at once: of N
 * events the killer is found in about log32(N) deaths.  Otherwise, and for the
 * first two deaths, the breaker opens as for any outage.  So a program that dies
 * of everything parks one event per two openings of the breaker, no more.
 * When the suspects have passed, the hunt is over without a find.
 *
 * A program may also say that a batch cannot be committed for one of its events,
 * it does not know which.  Then there is no doubt, and the hunt begins at once.
 *
 * What was found is parked when the program has started again and said where
 * it stands: one that stores positions may have committed the event and died
 * then.  A crash before that forgets the hunt; the event is still in the log.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/stream_hunt.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "mb/pg_wchar.h"

#include "relay/stream.h"
#include "shared/error.h"
#include "shared/fault.h"

/* Each death leaves at most so small a part of the suspects, and one event. */
#define HUNT_PARTS 32

/* Events in flight, and how many of the oldest batch were answered in order. */
static int
count_in_flight(IdemStream *stream, int *prefix)
{
	dlist_iter	iter;
	int			n = 0;

	*prefix = 0;
	dlist_foreach(iter, &stream->batches)
	{
		IdemBatch  *batch = dlist_container(IdemBatch, node, iter.cur);

		if (n == 0)
		{
			while (*prefix < batch->n && batch->flights[*prefix].outcome != 0)
				(*prefix)++;

			/* Answered, and not committed: that narrows nothing down. */
			if (*prefix == batch->n)
				*prefix = 0;
		}
		n += batch->n;
	}
	return n;
}

/* The only event in flight killed the program. */
static void
note_found(IdemStream *stream, const char *message)
{
	IdemBatch  *batch = dlist_head_element(IdemBatch, node, &stream->batches);
	IdemFound  *found = &stream->found;
	int			len = pg_mbcliplen(message, strlen(message), IDEM_ERROR_LEN - 1);

	found->is_set = true;
	found->parked_id = batch->flights[0].parked_id;
	found->xid = batch->flights[0].xid;
	found->seq = batch->flights[0].seq;
	memcpy(found->message, message, len);
	found->message[len] = '\0';
}

static bool
has_passed(const IdemPosition *pos, const IdemFound *found)
{
	return idem_snap_sees(pos->done, found->xid) ||
		(pos->cur != NULL && found->seq <= pos->k && idem_snap_sees(pos->cur, found->xid));
}

void
idem_stream_park_found(IdemStream *stream)
{
	IdemFound  *found = &stream->found;
	IdemFailure failure = {.counts = true, .message = found->message};
	IdemEvent	event;

	strlcpy(failure.sqlstate, unpack_sql_state(ERRCODE_IDEM_SINK_OUTAGE), sizeof(failure.sqlstate));
	if (found->parked_id != 0)
		(void) idem_parked_failed(stream->config, found->parked_id, &failure, NULL);
	else if (!has_passed(&stream->settled, found) &&
			 idem_reader_fetch(stream->reader, found->xid, found->seq, &event))
		idem_parked_add(stream->config, &event, &failure, NULL);
	idem_reader_suspend(stream->reader);
	IDEM_FAULT_POINT("relay-suspect-parked");
}

static void
end_hunt(IdemStream *stream)
{
	stream->suspects = 0;
	stream->deaths = 0;
}

/*
 * It ended for one of the first n events in flight, if that is sure; the oldest
 * batch had answers for "prefix" of its own.
 */
static void
suspect(IdemStream *stream, int n, int prefix, bool sure, const char *message)
{
	bool		fewer;

	if (n == 1 && (sure || stream->suspects > 0 || stream->alone))
	{
		note_found(stream, message);
		end_hunt(stream);
		idem_stream_restart(stream, message);
		return;
	}
	stream->deaths = stream->progressed ? 1 : stream->deaths + 1;
	if (stream->suspects == 0 && stream->deaths < 2 && !sure)
	{
		idem_stream_break(stream, message);
		return;
	}

	/* The second death has not brought us anything yet. */
	IDEM_FAULT_POINT("relay-bisect");
	fewer = stream->suspects > 0 && n < stream->hunt_range;
	stream->suspects = stream->hunt_range = n;
	stream->hunt_prefix = prefix;
	stream->hunt_step = prefix > 0 ? 0 : 1;
	if (fewer)
		idem_stream_restart(stream, message);
	else
		idem_stream_break(stream, message);
}

void
idem_stream_died(IdemStream *stream, const char *message)
{
	int			prefix = 0;
	int			in_flight = 0;

	/* What it answered before counts, or it would be sent again for ever. */
	if (stream->phase == IDEM_STREAM_READY)
	{
		idem_stream_settle(stream);
		in_flight = count_in_flight(stream, &prefix);
	}
	if (in_flight == 0)
		idem_stream_break(stream, message);
	else
		suspect(stream, in_flight, prefix, false, message);
}

void
idem_stream_aborted(IdemStream *stream, const IdemBatch *batch, const char *message)
{
	/* Sinks that store positions commit in order, so it becomes the oldest. */
	idem_stream_settle(stream);
	if (batch == dlist_head_element(IdemBatch, node, &stream->batches))
		suspect(stream, batch->n, 0, true, message);
	else
		idem_stream_died(stream, message);
}

void
idem_stream_hunt_settled(IdemStream *stream, int n)
{
	stream->progressed = true;
	stream->deaths = 0;
	if (stream->suspects == 0)
		return;
	stream->hunt_step++;
	stream->suspects -= n;
	if (stream->suspects <= 0)
		end_hunt(stream);
}

int
idem_stream_batch_limit(const IdemStream *stream)
{
	int			limit;

	if (stream->suspects == 0)
		return stream->max_batch_events;
	if (stream->hunt_step == 0)
		limit = stream->hunt_prefix;
	else if (stream->hunt_step == 1)
		limit = 1;
	else
		limit = Max(1, stream->hunt_range / HUNT_PARTS);
	return Min(limit, stream->max_batch_events);
}

bool
idem_stream_may_pipeline(const IdemStream *stream)
{
	return stream->suspects == 0 && !stream->alone && stream->stepwise == 0;
}
