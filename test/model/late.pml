/*
 * late.pml
 *		Late events: a relay to a sink that stores nothing, and answers in any order.
 *
 * Models src/relay/stream/settle.c and late.c, what send.c reads and repeats, and what
 * doc/sink-protocol.md asks of a sink that keeps the order of keys: send an event, answer
 * it, settle each answer by itself, tell the sink by SETTLE, take an event without an answer
 * out of the window as a row in state in_flight, move the position, write it later, send
 * parked events again.  The program ends, and the server crashes, with events late, answered and
 * not settled, or settled and not passed.  relay.pml has the sinks that store positions.
 *
 * Abstracted: a batch is one event; runs have one or two events.  Time: an event may be late
 * at any moment, whether later ones were accepted or not, and parked events are always due.
 * No event is dead, the window has no limit, no event is left in the outbox behind its key.
 * An answer that the program has written may be lost with it.  The position is written when
 * it moves; a crash leaves all that was committed, or what the last flush left.
 *
 * Bounds: three events, the third of a key of its own; FAULTS ends of the program or crashes
 * at most, REFUSALS in all.
 *
 * Properties: lost, the position passes only what was applied or is on record, also after a
 * crash; unanswered, nothing counts as delivered before the sink has applied it; disorder, an
 * event is applied only when all before it of its key were; twice, an event is applied
 * once more for each fault, and no more often; and left, when nothing more can happen
 * all are applied, no row is left, and the position is at the end.
 */

/* COMPILE LONG: -DCOLLAPSE */

/* BOUNDS kills: two faults, one refusal */
/* BOUNDS refusals: one fault, two refusals */

/* MUTANT unrecorded: a late event has no row; relay-late-unrecorded */
/* MUTANT row_unflushed: the row of a late event is not flushed, and the row of the position is */
/* MUTANT acked_as_late: a late event counts as delivered */
/* MUTANT passes_unanswered: the position goes to the last event that is settled; relay-position-before-ack */
/* MUTANT settled_behind_open: an answer is settled before that of an earlier event of its key; relay-settles-behind-open */
/* MUTANT late_sent_twice: a late event is taken for one that is to be sent again; relay-late-sent-twice */
/* MUTANT key_flows: later events of a late event's key are sent */
/* MUTANT ended_is_done: rows in flight go with the program */
/* MUTANT repeat_unordered: any parked event of a key is sent again, whatever is before it */
/* MUTANT read_goes_on: after the program's end the relay reads on where it was */
/* REACH late_refused: a late event is refused */
/* REACH late_waits: an answered event becomes late, behind another one */
/* REACH late_again: an event is late for the second time, after a fault */
/* REACH passed_late: the position on disk has passed a late event, which is applied afterwards */
/* REACH out_of_order: an event is settled before one of another key that was sent before it */
/* REACH lost_answer: an event is applied twice, since its answer was lost */

#ifdef BOUNDS_refusals
#define FAULTS		1
#define REFUSALS	2
#else
#define FAULTS		2
#define REFUSALS	1
#endif
#define EVENTS		3
#define KEY(e)		((e) == 3 -> 4 : 3)	/* the bits of the events of its key */
#define BIT(e)		(1 << ((e) - 1))

/* Rows, and answers. */
#define NONE		0
#define IN_FLIGHT	1
#define RETRY		2
#define WAITING		3

#define ACKED		1
#define REFUSED		2
#define SKIPPED		3

#define WINDOW		1
#define LATE		2

/* The database, and what of it is flushed. */
byte row[EVENTS + 1];
byte position;
byte flushed_row[EVENTS + 1];
byte flushed_position;

/* The worker: bits of events. */
byte read;
byte flight[EVENTS + 1];		/* WINDOW, LATE, or 0 */
byte answer[EVENTS + 1];
byte before[EVENTS + 1];		/* of its key, in flight since before it was sent */
byte done;						/* settled, or passed over; the position has not passed it */

/* The program. */
byte said[EVENTS + 1];			/* its answer, which the worker may not have yet */
byte blocks;					/* not acked, and no SETTLE tells of it */
byte behind[EVENTS + 1];		/* those that block the event */

/* What really happened. */
byte applied[EVENTS + 1];
byte faults;
byte faults_left = FAULTS;
byte refusals = REFUSALS;
#ifdef REACH_late_again
bit was_late[EVENTS + 1];
#endif

/* Scratch of atomic steps. */
byte rows;

#define DONE(e)		((done >> ((e) - 1)) & 1)
#define SAFE(e)		(position < e || applied[e] > 0 || row[e] != NONE)
#define ALL_SAFE	(SAFE(1) && SAFE(2) && SAFE(3))

/* Those with a row, those in flight, and those in flight without an answer. */
#define ROW_BIT(e)	(row[e] != NONE -> BIT(e) : 0)
#define FLY_BIT(e)	(flight[e] != 0 -> BIT(e) : 0)
#define OPEN_BIT(e)	(flight[e] != 0 && answer[e] == 0 -> BIT(e) : 0)
#define WAIT_BIT(e)	(flight[e] == WINDOW && answer[e] == 0 -> BIT(e) : 0)
#define ROWS		(ROW_BIT(1) | ROW_BIT(2) | ROW_BIT(3))
#define FLYING		(FLY_BIT(1) | FLY_BIT(2) | FLY_BIT(3))
#define OPEN		(OPEN_BIT(1) | OPEN_BIT(2) | OPEN_BIT(3))
#define WAITING_OPEN (WAIT_BIT(1) | WAIT_BIT(2) | WAIT_BIT(3))

inline flush()
{
	flushed_row[1] = row[1];
	flushed_row[2] = row[2];
	flushed_row[3] = row[3];
	flushed_position = position
}

/* The frames of the event are in the output. */
inline send(e)
{
	before[e] = FLYING & KEY(e) & ~BIT(e);
	behind[e] = blocks & KEY(e) & ~BIT(e);
	blocks = blocks | BIT(e);
	flight[e] = WINDOW;
	answer[e] = 0;
	said[e] = 0
}

/* The relay reads an event of the outbox. */
inline read_event(e)
{
	rows = ROWS & KEY(e);
#ifdef MUTANT_key_flows
	rows = rows & ~((row[1] == IN_FLIGHT -> 1 : 0) | (row[2] == IN_FLIGHT -> 2 : 0));
#endif
	if
	:: row[e] != NONE -> done = done | BIT(e)
	:: row[e] == NONE && rows != 0 ->
		row[e] = WAITING;
		flush();
		done = done | BIT(e)
	:: else -> send(e)
	fi;
	rows = 0;
	read++
}

inline leave_flight(e)
{
	flight[e] = 0;
	answer[e] = 0;
	before[e] = 0;
	before[1] = before[1] & ~BIT(e);
	before[2] = before[2] & ~BIT(e);
	before[3] = before[3] & ~BIT(e);
	said[e] = 0;
	behind[e] = 0
}

/* settle_ack */
inline settle_acked(e)
{
	assert(applied[e] > 0);		/* unanswered */
#ifdef REACH_out_of_order
	assert((WAITING_OPEN & ~KEY(e) & (BIT(e) - 1)) == 0);
#endif
	row[e] = NONE;
	done = (position < e -> done | BIT(e) : done);
	leave_flight(e)
}

/* settle_other, and SETTLE: it tells of the event, and of those of its key before it */
inline settle_other(e)
{
#ifdef REACH_late_refused
	assert(flight[e] != LATE || answer[e] != REFUSED);
#endif
	row[e] = (answer[e] == REFUSED -> RETRY : WAITING);
	flush();
	done = (position < e -> done | BIT(e) : done);
	blocks = blocks & ~(BIT(e) | (before[e] & KEY(e)));
	leave_flight(e)
}

/* is_behind_open; a turn settles the answers that have come in the order of the events */
#ifdef MUTANT_settled_behind_open
#define BEHIND_OPEN(e) false
#else
#define BEHIND_OPEN(e) ((before[e] & FLYING) != 0)
#endif
#define CAN_SETTLE(e) (answer[e] == REFUSED || answer[e] == SKIPPED) && !BEHIND_OPEN(e)

/* idem_late_is, without its clock: the earlier events of the key are late before it */
#define MAY_WAIT(e) ((before[e] & OPEN) != 0)
#define CAN_BE_LATE(e) (flight[e] == WINDOW && (before[e] & WAITING_OPEN) == 0 && (answer[e] == 0 || MAY_WAIT(e)))

/* park_late_event, idem_late_add */
inline be_late(e)
{
#ifdef REACH_late_waits
	assert(answer[e] == 0);
#endif
#ifdef REACH_late_again
	assert(!was_late[e]);
	was_late[e] = 1;
#endif
#ifndef MUTANT_unrecorded
	row[e] = (row[e] == NONE -> IN_FLIGHT : row[e]);
#ifndef MUTANT_row_unflushed
	flush();
#endif
#endif
	done = (position < e -> done | BIT(e) : done);
	flight[e] = LATE
#ifdef MUTANT_acked_as_late
	; settle_acked(e)
#endif
}

/* The first parked event of a key, none of which is at the program as a parked event. */
#ifdef MUTANT_late_sent_twice
#define IS_TAKEN(e) ((ROWS & FLYING & KEY(e)) != 0 && row[e] != IN_FLIGHT)
#else
#define IS_TAKEN(e) ((ROWS & FLYING & KEY(e)) != 0)
#endif
#ifdef MUTANT_repeat_unordered
#define IS_FIRST(e) true
#else
#define IS_FIRST(e) ((ROWS & KEY(e) & (BIT(e) - 1)) == 0)
#endif
#define CAN_REPEAT(e) (row[e] != NONE && e <= read && !IS_TAKEN(e) && IS_FIRST(e))

/* The parked event behind e of its key is sent with it, or not. */
inline repeat_run(e)
{
	rows = ROWS & KEY(e) & ~(2 * BIT(e) - 1);
	send(e);
	if
	:: rows & 2 && read >= 2 -> send(2)
	:: true
	fi;
	rows = 0
}

/* Nothing of the program's is left; the relay reads again from the position in memory. */
inline end_program()
{
#ifdef MUTANT_ended_is_done
	row[1] = (row[1] == IN_FLIGHT -> NONE : row[1]);
	row[2] = (row[2] == IN_FLIGHT -> NONE : row[2]);
	row[3] = (row[3] == IN_FLIGHT -> NONE : row[3]);
#endif
	leave_flight(1);
	leave_flight(2);
	leave_flight(3);
	done = 0;
	blocks = 0;
#ifndef MUTANT_read_goes_on
	read = position
#endif
}

#define for_each(STEP) \
	:: atomic { STEP(1) } \
	:: atomic { STEP(2) } \
	:: atomic { STEP(3) }

#define receive_acked(e)	flight[e] != 0 && said[e] == ACKED -> settle_acked(e)
#define receive(e)	flight[e] != 0 && answer[e] == 0 && said[e] > ACKED -> answer[e] = said[e]
#define settle(e)	flight[e] != 0 && CAN_SETTLE(e) -> settle_other(e)
#define late(e)		CAN_BE_LATE(e) -> be_late(e)
#define repeat(e)	CAN_REPEAT(e) -> repeat_run(e)

active proctype worker()
{
end:
	do
	:: atomic { read < EVENTS -> read_event(read + 1) }
	for_each(receive_acked)
	for_each(receive)
	for_each(settle)
	for_each(late)
	for_each(repeat)

	/* pass_prefix, and the row of the position, which is flushed or not */
#ifdef MUTANT_passes_unanswered
	:: atomic { done != 0 ->
			position = (done & 4 -> 3 : (done & 2 -> 2 : 1));
			done = 0;
#else
	:: atomic { position < read && DONE(position + 1) ->
			position++;
			done = done & ~BIT(position);
#endif
			if
			:: true
#ifdef MUTANT_row_unflushed
			:: flushed_position = position
#else
			:: flush()
#endif
			fi;
			assert(ALL_SAFE) }					/* lost */
	od
}

/* A sink that keeps the order of keys. */
#define accept(e) flight[e] != 0 && said[e] == 0 && behind[e] == 0 -> \
	assert(e != 2 || applied[1]);	/* disorder */ \
	applied[e]++; \
	assert(applied[e] <= 1 + faults);	/* twice */ \
	said[e] = ACKED; \
	blocks = blocks & ~BIT(e); \
	behind[1] = behind[1] & ~BIT(e); behind[2] = behind[2] & ~BIT(e); \
	behind[3] = behind[3] & ~BIT(e); \
	reached(e)
#define refuse(e) flight[e] != 0 && said[e] == 0 && behind[e] == 0 && refusals > 0 -> refusals--; said[e] = REFUSED
#define skip_it(e) flight[e] != 0 && said[e] == 0 && behind[e] != 0 -> said[e] = SKIPPED

#if defined(REACH_passed_late)
#define reached(e) assert(!(flight[e] == LATE && position >= e))
#elif defined(REACH_lost_answer)
#define reached(e) assert(applied[e] < 2)
#else
#define reached(e) skip
#endif

active proctype program()
{
end:
	do
	for_each(accept)
	for_each(refuse)
	for_each(skip_it)
	od
}

active proctype outside()
{
end:
	do
	:: atomic { faults_left > 0 -> faults_left--; faults++; end_program() }
	:: atomic { faults_left > 0 -> faults_left = 0 }

	/* a crash of the server: all that was committed, or what the last flush left */
	:: atomic { faults_left > 0 ->
			faults_left--;
			faults++;
			if
			:: true
			:: row[1] = flushed_row[1];
				row[2] = flushed_row[2];
				row[3] = flushed_row[3];
				position = flushed_position
			fi;
			flush();
			read = position;
			end_program();
			assert(ALL_SAFE) }					/* lost */
	od
}

/* When nothing more can happen, all is done. */
active proctype left()
{
end:
	atomic { timeout ->
		assert(applied[1] && applied[2] && applied[3] && ROWS == 0 && position == EVENTS) }
}
