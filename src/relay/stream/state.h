/*-------------------------------------------------------------------------
 *
 * state.h
 *		What the files of a stream share: the stream, its batches, and what each file does.
 *
 * Private to this folder.  Only end.c ends a program, opens the breaker and
 * stops a relay.  The other files that can find a fault return a verdict:
 * whether the program can go on, and if not, why.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/stream/state.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_RELAY_STREAM_STATE_H
#define IDEM_RELAY_STREAM_STATE_H

#include "postgres.h"

#include "lib/ilist.h"

#include "outbox/reader.h"
#include "relay/engine/engine.h"
#include "relay/position/blocked.h"
#include "relay/position/parked.h"
#include "relay/stream/hunt.h"
#include "relay/stream/pipe.h"

/*
 * The window to a sink that stores nothing: the events of so many full batches.
 * It has the events since the oldest one that is not settled, and those that are
 * settled while their position is not written yet.  A crash repeats no more.
 * Under light load a batch has one event, so batches would be no measure; their
 * number is bounded only for the memory that each takes.
 */
#define IDEM_STREAM_MAX_BATCHES 8
#define IDEM_STREAM_MOST_BATCHES 1000

/*
 * A crash repeats nothing to a sink that stores positions, and a transaction of
 * the sink may hold many batches.  So to such a sink more batches may be in
 * flight, as long as their events are few enough.
 */
#define IDEM_STREAM_MAX_STORED_BATCHES 128
#define IDEM_STREAM_MAX_EVENTS 100000

/* After one was CROWDED so many batches are in flight. */
#define IDEM_STREAM_FEW_BATCHES 4

/* A batch of few events, after the target failed over more. */
#define IDEM_STREAM_FEW_EVENTS 8

/* How a stream goes on. */
typedef enum IdemStreamOutcome
{
	IDEM_STREAM_OK,
	IDEM_STREAM_OUTAGE,			/* the target is down: try again after the
								 * backoff */
	IDEM_STREAM_CROWDED,		/* a transaction of the target has no room for
								 * a batch: try again with a small one */
	IDEM_STREAM_MISCONFIGURED,	/* something at the target has to be put
								 * right, and nothing tells us when: try again
								 * after the backoff */
	IDEM_STREAM_UNUSABLE,		/* the configuration can never work: wait for
								 * an operator */
	IDEM_STREAM_FENCED,			/* another relay took the sink over: wait for
								 * an operator */
	IDEM_STREAM_HALTED,			/* the target wants no more events: halt the
								 * relay, which outlasts a restart */
	IDEM_STREAM_DIVERGED,		/* the sink's position and the log of
								 * positions contradict each other: wait for
								 * an operator */
	IDEM_STREAM_DIED,			/* the program ended, hangs, or broke the
								 * protocol; an event in flight may be the
								 * cause */
	IDEM_STREAM_ABORTED			/* the sink cannot commit a batch because of
								 * one of its events */
} IdemStreamOutcome;

typedef struct IdemStreamVerdict
{
	IdemStreamOutcome outcome;
	const char *message;		/* static, or palloc'd in the context that the
								 * step began in; NULL with OK */
	uint64		batch;			/* ABORTED: number of the batch that the sink
								 * cannot commit */
} IdemStreamVerdict;

#define IDEM_STREAM_GOES_ON ((IdemStreamVerdict) {IDEM_STREAM_OK, NULL, 0})

static inline IdemStreamVerdict
idem_stream_verdict(IdemStreamOutcome outcome, const char *message)
{
	return (IdemStreamVerdict)
	{
		outcome, message, 0
	};
}

/*
 * The phase of a stream.  A program whose socket has ended keeps its phase until
 * its process has ended, too.
 */
typedef enum IdemStreamPhase
{
	IDEM_STREAM_OFF,			/* no program runs */
	IDEM_STREAM_HELLO,			/* HELLO is sent, READY is awaited */
	IDEM_STREAM_READY			/* READY has come, batches are sent */
} IdemStreamPhase;

/* When is the outbox to be looked at again? */
typedef enum IdemStreamLook
{
	IDEM_LOOK_AT_ONCE,			/* the turn was over before the end of the
								 * outbox */
	IDEM_LOOK_WITH_ROOM,		/* as soon as another batch may be sent */
	IDEM_LOOK_WHEN_WOKEN		/* the outbox had nothing left: wait for a
								 * commit */
} IdemStreamLook;

/* An event in flight. */
typedef struct IdemSentEvent
{
	FullTransactionId xid;
	int64		seq;
	uint64		key;			/* see idem_parked_key */
	int64		parked_id;		/* row of the parked event; 0: the event comes
								 * from the outbox */
	uint8		outcome;		/* IdemProtoOutcome; 0: no answer yet */
	uint8		lane;			/* of its destination, by its answer */
	bool		settled;		/* acked, or on record as a parked event; of a
								 * sink that stores nothing.  Without an
								 * outcome: the event is late (late.c) */
	int			failure;		/* index into the batch's failures; -1: none */
} IdemSentEvent;

typedef struct IdemBatch
{
	dlist_node	node;
	MemoryContext cxt;			/* holds this struct and all that it points to */
	uint64		no;
	bool		repeats;		/* holds parked events, not events of the log */
	int64		row_id;			/* row id in the batch's END; 0: the sink
								 * stores no position */
	int64		k;				/* seq in the batch's END */
	bool		settle_sent;	/* the refused events are parked, and SETTLE
								 * is sent */
	bool		committed;		/* a sink that stores positions has said so */
	int			n;				/* number of flights */
	int			unanswered;
	int			unsettled;
	int			nonacks;
	int			prefix;			/* flights at the head that the relay's
								 * position has passed */
	IdemClock	sent_at;
	int			fresh_first;	/* answers to be settled are among these */
	int			fresh_end;		/* flights; 0: there are none */
	IdemSentEvent *flights;
	IdemFailure *failures;
	int			nfailures;
	int			failures_allocated;
	IdemPosition read;			/* the difference that its events are of, for
								 * a batch of the log */
	IdemPosition after;			/* the position once the batch is settled */
} IdemBatch;

/* The place of an event in the stream. */
typedef struct IdemStreamPlace
{
	uint64		batch;			/* 0: before all events */
	int			index;
} IdemStreamPlace;

/* An event that was overtaken, see late.c. */
typedef struct IdemLateEvent
{
	IdemStreamPlace place;		/* hash key */
	dlist_node	node;			/* in the stream's list of all of them */
	dlist_node	order_node;		/* among those of its key, or among those to
								 * be settled */
	bool		repeated;		/* it was parked when it was sent */
	IdemSentEvent flight;
	IdemFailure failure;		/* its answer, if it was not acked */
} IdemLateEvent;

/*
 * The event that a hunt found.  The event is parked when the next program has
 * said READY, since only then the sink's position is known.
 */
typedef struct IdemFound
{
	bool		is_set;
	int64		parked_id;		/* row of the parked event; 0: the event comes
								 * from the outbox */
	FullTransactionId xid;
	int64		seq;
	uint64		key;
	bool		fell;			/* the program ended; else it said that it
								 * could not commit the event */
	char		message[IDEM_ERROR_LEN];
} IdemFound;

typedef struct IdemStream
{
	IdemRelay	relay;
	MemoryContext busy_cxt;		/* holds what only a running program needs;
								 * NULL: no program was started since the last
								 * rest */
	MemoryContext run_cxt;		/* holds what is in flight; reset when the
								 * program ends */
	MemoryContext event_cxt;	/* holds one event while it is encoded */

	IdemStreamPhase phase;
	IdemPipe	pipe;
	bool		yields;			/* another relay needs room for a program:
								 * settle what is in flight, send nothing new */
	IdemClock	yield_by;		/* others rely on this stream's room until
								 * then */
	IdemStreamLook look;

	bool		proven;			/* a program has said READY since the server
								 * last changed */
	bool		fell_ready;		/* the last failure came after READY, which
								 * another READY does not disprove */
	bool		slow_start;		/* the last program was ended, because it was
								 * not ready within a second while others
								 * waited */
	IdemClock	busy_at;		/* when the stream last had something to do */
	IdemClock	started_at;		/* when the current program was started */

	/* what the sink said in READY */
	int64		credit_messages;
	int64		credit_bytes;
	int			max_batch_events;	/* the lower limit of the relay's and the
									 * sink's */
	int64		max_batch_bytes;

	IdemReader *reader;
	int			unwritten;		/* batches that "settled" has passed and the
								 * log of positions has not; see progress.c */
	int			unwritten_events;	/* events of these batches */
	IdemClock	write_by;		/* write "settled" then at the latest; 0: no
								 * need */
	int64		row_id;			/* SENT row of the current difference, for
								 * sinks that store positions; 0: none yet */
	int64		life;			/* life of the program; see IdemPositionRow */

	/* events of the current difference committed after this time; 0: unknown */
	TimestampTz stamp;
	TimestampTz looked_at;		/* time just before the last snapshot; 0:
								 * unknown */
	TimestampTz woken_at;		/* time of the first commit that woke us since
								 * looked_at; 0: none or unknown */
	dlist_head	batches;		/* batches in flight, oldest first */
	int			nbatches;
	int			nevents;		/* events of the batches in flight, without
								 * those that the position has passed */
	int			nunanswered;	/* those of them without an answer */

	/* events that the target took in this slice, and in the one before */
	IdemClock	slice_began;
	int			taken;
	int			taken_before;
	uint64		next_batch;

	dlist_head	late;			/* IdemLateEvent, of which late_keys has those
								 * that wait, and late_fresh those to be
								 * settled */
	int			nlate;
	HTAB	   *late_events;	/* by place; NULL: none since the program
								 * started */
	HTAB	   *late_keys;
	dlist_head	late_fresh;
	bool		news;			/* since settle.c last looked at what is in
								 * flight, answers have come, or events have
								 * become late */
	IdemClock	late_look_at;	/* look for late events then */
	IdemStreamPlace accepted;	/* the last place of an event that was acked */
	IdemStreamPlace accepted_before;	/* the same at the last look */
	IdemStreamPlace overtaken;	/* and at the look before */

	IdemParkedIndex *parked;
	bool		parked_dirty;
	bool		repeats_in_flight;	/* a batch of parked events is in flight */
	bool		log_turn;		/* the next batch is the outbox's, since
								 * parked events had the last */
	bool		few_repeats;	/* a program failed over parked events; since
								 * then not all of a batch were acked */
	bool		few_next;		/* a program failed over events of the outbox:
								 * send few of them first */
	int			room;			/* most events of a batch, since one was
								 * CROWDED; 0: none was */
	int			crowded_at;		/* so many events were */
	bool		exclusive;		/* send nothing else: an event that killed a
								 * program is in flight, or waits to be sent
								 * alone */
	IdemClock	lock_retry_at;	/* somebody holds a lock on rows that we have
								 * to change: try again then; 0: nobody does */

	pid_t		held_pid;		/* killed program that lives on, and that was
								 * logged already */
	IdemHunt	hunt;
	IdemFound	found;
} IdemStream;

/* The relay's courier, as a stream. */
static inline IdemStream *
idem_stream(const IdemRelay *relay)
{
	return (IdemStream *) relay;
}

/* Is an event at the program, with or without an answer? */
static inline bool
idem_stream_has_flights(const IdemStream *stream)
{
	return stream->nbatches > 0 || stream->nlate > 0;
}

/* May the relay send new events to its program? */
static inline bool
idem_stream_may_send(const IdemStream *stream)
{
	return stream->phase == IDEM_STREAM_READY && !stream->relay.barred && !stream->yields;
}

/* Batches in flight */

/* Begin a batch of at most "limit" events.  The batch is not in flight yet. */
extern IdemBatch *idem_batch_make(IdemStream *stream, int limit, bool repeats);

/*
 * The batch's END is in the output: the batch is in flight, behind all others.
 */
extern void idem_batch_launch(IdemStream *stream, IdemBatch *batch);

/* May another batch be in flight?  The sink's credit has its own say. */
extern bool idem_batch_has_room(const IdemStream *stream);

/* After an error of the worker: how many batches go one at a time? */
extern int	idem_batch_stepwise(const IdemStream *stream);

extern IdemBatch *idem_batch_oldest(IdemStream *stream);	/* NULL: none */

extern IdemBatch *idem_batch_find(IdemStream *stream, uint64 no);	/* NULL: none */

/*
 * The oldest batch that lacks something: the answer to an event; the settling of an event; the
 * sink's commit.  NULL: none.
 */
typedef enum IdemBatchLack
{
	IDEM_BATCH_UNANSWERED,
	IDEM_BATCH_UNSETTLED,
	IDEM_BATCH_UNCOMMITTED
} IdemBatchLack;

extern IdemBatch *idem_batch_lacking(IdemStream *stream, IdemBatchLack lack);

/*
 * The parked_ids of the batch's events with that outcome (0: of all events);
 * palloc'd.
 */
extern int64 *idem_batch_parked_ids(const IdemBatch *batch, uint8 outcome, int *n);

/*
 * Count the events in flight, which are sent again if the program ends.  *prefix: how many
 * events at the head of the oldest batch are answered; 0 if the whole batch is.
 * ..._first_in_flight: the first of them; NULL: there are none.
 */
extern int	idem_batch_count_in_flight(IdemStream *stream, int *prefix);
extern const IdemSentEvent *idem_batch_first_in_flight(IdemStream *stream);

/* Free a batch that is settled or given up. */
extern void idem_batch_free(IdemStream *stream, IdemBatch *batch);

/* Events that are late */

/* The event at this place was acked. */
extern void idem_late_note_accepted(IdemStream *stream, uint64 batch, int index);

/*
 * Is it time to look for late events, and may there be some?  ..._is: is the event late, by the
 * last look?  ..._next_at: when it is time; 0: something else comes first.
 */
extern bool idem_late_look(IdemStream *stream);
extern bool idem_late_is(const IdemStream *stream, const IdemBatch *batch, int index);
extern IdemClock idem_late_next_at(IdemStream *stream);

/*
 * The event is late, and stands parked: take it out of the window.  ..._forget: the stream
 * has no program any more, and frees run_cxt.  ..._find: NULL, it is not
 * late.  ..._blocks: is an event of the key late that is before this place and has no answer?
 * ..._retake: the index was loaded anew.
 */
extern void idem_late_add(IdemStream *stream, IdemBatch *batch, int index);
extern void idem_late_forget(IdemStream *stream);
extern IdemLateEvent *idem_late_find(IdemStream *stream, uint64 batch, int index);
extern bool idem_late_blocks(const IdemStream *stream, uint64 key, uint64 batch, int index);
extern void idem_late_retake(IdemStream *stream);

/*
 * The late event has its answer.  late_fresh gets it, and those that waited for it, as soon as no
 * earlier event of their key lacks one.  ..._remove: an event of late_fresh is settled.
 */
extern void idem_late_answered(IdemStream *stream, IdemLateEvent *late);
extern void idem_late_remove(IdemStream *stream, IdemLateEvent *late);

/* How far the relay has come: rows of the log of positions */

/* "settled" has passed a batch of so many events: write it soon. */
extern void idem_progress_note_unwritten(IdemStream *stream, int events);

/* Is the window to a sink that stores nothing too full for another batch? */
extern bool idem_progress_fills_window(const IdemStream *stream);

/* Must "settled" be written now? */
extern bool idem_progress_must_write(const IdemStream *stream);

/*
 * "settled" needs no row any more: the log of positions has it, or the stream
 * goes back to the last row of the log.
 */
extern void idem_progress_forget_unwritten(IdemStream *stream);

/*
 * Append "settled".  In a transaction; after its commit the caller calls
 * idem_progress_forget_unwritten.
 */
extern void idem_progress_append_settled(IdemStream *stream);

/*
 * Append a NAMED, REPEATED or PASSED row at "settled": the sink has stored the
 * row that was noted last, and none that came after it in the log of positions.
 * In a transaction.  Maintenance then keeps that row however often programs
 * fail.
 */
extern void idem_progress_append_stored(IdemStream *stream, IdemPositionKind kind);

/*
 * Append the cursor as a SENT row.  The batches of the current difference carry
 * its id to a sink that stores positions.  In a transaction, whose commit must
 * be flushed.
 */
extern void idem_progress_append_sent(IdemStream *stream);

/*
 * Note in memory that the sink has stored the row, and of its difference all up
 * to k.
 */
extern void idem_progress_note_stored(IdemStream *stream, int64 row_id, int64 k);

/*
 * For a sink that stores positions: "settled" has moved, write it later.
 * ..._write_if_time writes it if the time has come and nothing is in flight.
 */
extern void idem_progress_write_later(IdemStream *stream);
extern void idem_progress_write_if_time(IdemStream *stream);

/*
 * Write "settled" if the log of positions does not have it and nothing is in
 * flight; ..._stored: of a sink that stores positions, within a difference, too.
 */
extern void idem_progress_persist(IdemRelay *relay);
extern void idem_progress_persist_stored(IdemStream *stream);

/* Frames for the program */

/*
 * Begin a life of the program and append HELLO, which names the relay's
 * incarnation and the life.  The sink stores both with each position.  OK, or
 * UNUSABLE.
 */
extern IdemStreamVerdict idem_encode_hello(IdemStream *stream);

/*
 * Read the life from a sink's position; false if the position is of another
 * incarnation of the relay.
 */
extern bool idem_encode_life_of(const IdemStream *stream, IdemProtoStr incarnation, int64 *life);

/*
 * Append the frames of the batch's next event.  In a transaction.  Returns
 * false, and appends nothing, if the event cannot be converted to UTF-8.
 */
extern bool idem_encode_event(IdemStream *stream, const IdemBatch *batch, const IdemEvent *ev);

/* The batch is complete: append its END. */
extern void idem_encode_end(IdemStream *stream, const IdemBatch *batch);

/* Events of the outbox, and parked ones that are due -> batches */

/* Send batches while there is room for them and the relay's turn lasts. */
extern void idem_send(IdemStream *stream);

/*
 * When a parked event is due or the next probe is; 0: neither, or something that will wake us
 * comes first.
 */
extern IdemClock idem_send_next_at(IdemStream *stream);

/* When the relay's pace lets it send what there is; 0: now, or there is nothing. */
extern IdemClock idem_send_paced_until(IdemStream *stream);

/* Results of batches -> the position, and the events that are parked */

/*
 * Settle what is answered: of a sink that stores positions the oldest batches (..._batches), of
 * others each event.
 */
extern void idem_settle(IdemStream *stream);
extern void idem_settle_batches(IdemStream *stream);

/* An event was accepted: that says something of the target. */
extern void idem_settle_judge_ack(IdemStream *stream, const IdemSentEvent *flight);

/*
 * Whose fault is it that the event was not accepted?  keys: how many keys have the events that
 * could be sent now, or are in flight (..._count_keys).
 */
extern int	idem_settle_count_keys(IdemStream *stream);
extern IdemFailure idem_settle_judge(IdemStream *stream, const IdemSentEvent *flight,
									 const IdemFailure *answer, int keys);

/* Park an event of the outbox that was not accepted.  In a transaction. */
extern void idem_settle_park(IdemStream *stream, const IdemBatch *batch, const IdemSentEvent *flight,
							 const IdemFailure *failure);

/* The rows of events that were not acked are written; those of events that were acked are to go. */
extern void idem_settle_parked(void);
extern void idem_settle_unpark(IdemStream *stream, int64 *ids, int n);

/* Tell the sink, by SETTLE, that the events of the range that were not acked are on record. */
extern void idem_settle_tell(IdemStream *stream, uint64 batch, int first, int last);

/* How often a lock is tried while somebody else has it. */
#define IDEM_LOCK_RETRY_MS 50

/*
 * Try to lock the relay's parked events, and those named by parked_ids, so that
 * the transaction may change them.  If that fails, the relay tries again at
 * lock_retry_at, which is set here.
 */
extern bool idem_settle_try_lock(IdemStream *stream, const int64 *parked_ids, int n);

/* Where the relay goes on when its program is ready */

/*
 * The program has said READY: compare the position that the sink has stored
 * with our log of positions, and set the stream to where it goes on.  OK, or
 * DIVERGED if the two contradict each other.
 */
extern IdemStreamVerdict idem_resume(IdemStream *stream, const IdemProtoReady *ready);

/* Frames of the program -> results of the batches in flight */

/*
 * Read and handle the frames that have arrived.  Even if the verdict is OK the
 * socket may have ended; then the next step calls idem_receive_end.
 */
extern IdemStreamVerdict idem_receive(IdemStream *stream);

/*
 * The socket has ended.  Has the program ended, too, or has its second without
 * a socket run out?  OK: neither yet.
 */
extern IdemStreamVerdict idem_receive_end(IdemStream *stream);

/* Log a LOG frame of a program as a line of the server log. */
extern void idem_receive_log(IdemPrinted *printed, const IdemProtoLog *log);

/* The program's end */

/*
 * Go to OFF from any state.  The caller sets what keeps the stream off, if
 * anything does.
 */
extern void idem_stream_turn_off(IdemStream *stream);

/*
 * Go to OFF where the program did nothing wrong.  If nothing is in flight, the
 * program may end by itself after BYE.
 */
extern void idem_stream_dismiss(IdemStream *stream);

/* Does the stream go on after the verdict?  If not, end its program. */
extern bool idem_stream_goes_on(IdemStream *stream, IdemStreamVerdict verdict);

/*
 * A step raised an error: end the program, and go on from the settled position
 * after the backoff.
 */
extern void idem_stream_failed(IdemRelay *relay, int sqlerrcode, const char *message);

/*
 * If nothing is in flight, send the program BYE, take the program away from the
 * stream, and return true; idem_stream_serve_byes sees to the end.  Else return
 * false.
 */
extern bool idem_bye_say(IdemStream *stream);

#endif							/* IDEM_RELAY_STREAM_STATE_H */
