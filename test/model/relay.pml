/*
 * relay.pml
 *		A relay to a sink that stores positions, and the histories it can have.
 *
 * Models src/relay/stream/send.c, stream/settle.c, wake.c, api/definition.c and what
 * doc/sink-protocol.md asks of a sink: begin a difference, append its row, send
 * batches ahead, COMMIT at the target of one batch or of two at once with a reply
 * that may be lost, batches done again one by one, an event that is refused,
 * parked and settled, verdicts, the wake-up at commit, starts of the program, and
 * how a stored position is held against the log.  Besides: a copy of the server (a
 * backup that is restored, a twin, a standby that lagged), of which one runs at a
 * time by turns; a target that loses its state, or goes back to an earlier one;
 * the outbox, which is emptied; relay_replay and relay_adopt.
 *
 * Abstracted: a snapshot is the number of events it sees, in order of commit
 * (ring.pml has the snapshots); a batch is one event, two are in flight; a parked
 * event is never sent again, there are no repeats; keys have no order; the end of
 * a difference waits for its batches; the log of positions loses no row.  A life
 * is a new number each time, where the code draws 64 bits at random.  The note of
 * what is emptied is a number like a snapshot, and has no place in the log: a row
 * that was sent after it, and that the target goes back to, is held against it, too.
 *
 * Bounds: EVENTS in all, two servers, FAULTS in all: kills, turns of the servers,
 * lost replies, aborted transactions, refused events, lost states of the target,
 * moves of the operator.  "histories" has one batch in flight and no refusal;
 * "batches" has one server, whose target keeps its state, and no operator;
 * "setback" has one server, an outbox that is emptied, and a target that goes back
 * to a state that it had.
 * Refusals and copies are not walked together: a copy that was made after an
 * event's row and before the event was parked passes the event, since the sink's
 * position is behind it, and the copy cannot know.
 *
 * Properties: applied_once, an event is applied twice only where an operator
 * asked for it; own history, a stored row that no row of the log is like is passed over
 * only after an adoption; quiet, a relay that streams and waits for events has nothing
 * left that the target lacks, unless an operator accepted that; loud, a sink
 * that lost what it had confirmed is a contradiction; and no false alarm, with
 * one history and a target that keeps its state the relay never diverges; and
 * not stuck, a sink that was sent a batch answers it.
 */

/* COMPILE: -DCOLLAPSE */

/* BOUNDS histories: one batch in flight; copies, targets that lose their state, operators */
/* BOUNDS batches: two batches in flight, refused events, aborted transactions */

/* BOUNDS setback: a target that goes back to an earlier state, an outbox that is emptied, operators */

/* MUTANT drained_by_older_difference: the end of an older difference counts as the end of the log; events lay for a minute */
/* MUTANT fresh_accepts_all: whatever the sink has stored is passed over until the first confirmation is in the log; relay-fresh-accepts-all */
/* MUTANT lost_row_accepted: a stored row of a history that was lost is passed over once moves have drawn numbers beyond it; relay-lost-row-accepted */
/* MUTANT confirmation_unwritten: the first confirmation is kept in memory only; relay-confirmation-unwritten */
/* MUTANT life_ignored: a stored position is found by its number alone; relay-life-ignored */
/* MUTANT own_position: the relay goes on from its own row instead of the sink's */
/* MUTANT predecessor_not_fenced: a batch of the program before commits after hello; sink-predecessor-not-fenced */
/* MUTANT lost_reply_committed: a COMMIT without an answer counts as done; sink-commit-lost-repeated in reverse */
/* MUTANT row_after_frame: the row of a difference is durable only once its batch is confirmed */
/* MUTANT stranger_after_create: a position of another incarnation is passed over without relay_adopt; relay-stranger-accepted */
/* MUTANT row_of_former_life: a program goes on under the row of the program before it */
/* MUTANT wake_before_visible: the worker is woken before the event can be seen */
/* MUTANT first_position in batches: a transaction of two batches carries the position of the first */
/* MUTANT redo_from_second in batches: of two batches whose transaction was aborted the second alone is done again */
/* MUTANT refused_together in batches: a transaction of two batches leaves a refused event out, and commits */
/* MUTANT commit_before_settle in batches: a batch with a refused event is committed at once; sink-commit-before-settle */
/* MUTANT waits_for_batch in batches: the sink waits for a second batch */
/* MUTANT emptied_unnoted in setback: the outbox is emptied without a note of what was in it */
/* MUTANT noted_after_emptying in setback: the note is written after the files are cut */
/* MUTANT set_back_accepted in setback: the note is not looked at; relay-set-back-accepted */
/* MUTANT sent_unnamed in setback: a SENT row does not name what the sink had stored */
/* MUTANT move_forgets_stored in setback: an operator's move forgets how far the sink has been; relay-move-forgets-stored */
/* MUTANT note_without_set_back in setback: a sink that was not set back is held against the note, too */
/* REACH set_back_served in setback: a target that was set back gets again what it lost */
/* REACH set_back_refused in setback: a target that was set back has lost what the outbox has not */
/* REACH shared_lost in batches: the reply to a transaction of two batches is lost */
/* REACH shared_redone in batches: two batches were aborted together, and committed one by one */
/* REACH copy_streams: the copy delivers an event of its own */
/* REACH copy_diverges: the copy finds a position that it does not know */
/* REACH replayed: an event was applied twice, as asked for */
/* REACH original_again: the original runs after its copy has sent */

#ifdef BOUNDS_batches
#define BATCHES		1
#define IN_FLIGHT	2
#else
#define BATCHES		0
#define IN_FLIGHT	1
#endif
#ifdef BOUNDS_setback
#define SETBACK		1
#else
#define SETBACK		0
#endif
#ifdef LONG
#define EVENTS		3
#define ROWS		11
#define FAULTS		5
#else
#define EVENTS		(2 + BATCHES + SETBACK)
#define ROWS		9
#define FAULTS		(3 + BATCHES - SETBACK)
#endif

#define MOVED		1
#define SENT		2
#define NAMED		3
#define PASSED		4

#define OFF			0
#define HELLO		1
#define READY		2
#define STUCK		3		/* diverged or fenced */

#define NO			0
#define BY_MOVE		1
#define BY_ADOPTION	2

#define NO_REPLY	0
#define COMMITTED	1
#define GONE		2		/* the program ended without a verdict */
#define FENCED		3

#define REFUSED		1		/* its result is sent */
#define SETTLED		2		/* it is parked, and SETTLE is sent */

typedef Row
{
	byte kind;
	byte id;
	byte epoch;
	byte life;
	byte named;
	byte named_k;			/* in "setback": k of that */
	byte done;
	byte cur;				/* 0: no difference */
	byte k;
	byte fresh;
	bit unflushed;			/* of a mutant */
}

/* What a server has on its disk. */
typedef Server
{
	byte events[EVENTS + 1];	/* [i]: the event that committed as the i-th */
	byte committed;
	byte seq;				/* relay_log_id */
	byte epoch;
	byte incarnation;
	byte nrows;
	byte parked;				/* a bit for each event */
	bit confirmed;				/* a commit of this epoch was seen */
	byte noted;				/* events up to this may be emptied */
	byte emptied;				/* events up to this are */
	Row rows[ROWS];
}

Server server[2];
bit has_copy;
bit runs;					/* which one runs */

/* The target: what is committed there, and a transaction that is not yet. */
bit stored;
byte stored_incarnation;
byte stored_life;
byte stored_row;
byte stored_k;
byte target_epoch;
byte applied[EVENTS + 1];
#if SETBACK
bit has_saved;				/* an earlier state of the target */
bit saved_stored;
byte saved_incarnation;
byte saved_life;
byte saved_row;
byte saved_k;
byte saved_applied[EVENTS + 1];
#endif
bit pending;
byte pending_event;
byte pending_second;		/* event of a second batch; 0: there is one batch */
byte pending_epoch;
byte pending_incarnation;
byte pending_life;
byte pending_row;
byte pending_k;

/* How often an operator asked for an event besides; which need not be there. */
byte asked[EVENTS + 1];
bit waived[EVENTS + 1];

/* The worker of the server that runs, and its shared memory. */
bit wake;
bit waking;					/* between the commit and its wake-up */
byte phase;
byte fresh;					/* NO, or what began the epoch that nothing is confirmed of */
bit drained;
byte life;
byte my_epoch;				/* of the target */
byte settled;				/* events before this are done */
byte settled_k;
byte sent_done;
byte sent_cur;
byte sent_k;
byte row_id;
byte known_row;				/* in "setback": what the sink is known to have stored */
byte known_k;
byte in_flight;				/* batches */
byte reply;
byte verdicts;				/* still to come, with reply COMMITTED */

/* The program: the batches that it was sent, oldest first. */
byte sent_event[2];
byte sent_at[2];			/* their k */
byte alone;					/* so many of them have a transaction for themselves */
byte refused;				/* the event of the oldest batch */
bit dirty;
byte ready_row;
byte ready_k;
byte ready_life;
byte ready_incarnation;
bit ready_stored;

/* Budgets. */
byte made;
byte lives;
byte incarnations;
byte faults = FAULTS;
bit copy_sent;
bit was_reset;

/* Scratch of atomic steps, zero between them. */
byte i;
byte found;
byte last;
byte naming;
byte prior;
bit own;
bit went_back;

#ifdef MUTANT_predecessor_not_fenced
#define PREDECESSOR_ENDED true
#define MAY_COMMIT true
#else
#define PREDECESSOR_ENDED (!pending)
#define MAY_COMMIT (pending_epoch == target_epoch)
#endif
#ifdef MUTANT_life_ignored
#define SAME_LIFE true
#else
#define SAME_LIFE (S.rows[i].life == ready_life)
#endif
#define SAME_INCARNATION (ready_incarnation == S.incarnation)
#ifdef MUTANT_stranger_after_create
#define STRANGER_ACCEPTED fresh
#else
#define STRANGER_ACCEPTED (fresh == BY_ADOPTION)
#endif
#ifdef MUTANT_fresh_accepts_all
#define BEFORE_MOVE true
#else
#ifdef MUTANT_lost_row_accepted
#define BEFORE_MOVE (ready_row < S.epoch)
#else
#define BEFORE_MOVE own
#endif
#endif

/* Does the set-back target, or any target, answer to the note of what was emptied? */
#ifdef MUTANT_set_back_accepted
#define HELD_AGAINST_NOTE false
#else
#ifdef MUTANT_note_without_set_back
#define HELD_AGAINST_NOTE true
#else
#define HELD_AGAINST_NOTE went_back
#endif
#endif
#if SETBACK
#define REFUSED_BACK ((HELD_AGAINST_NOTE && prior != 255 && SAME_INCARNATION && S.noted > S.rows[prior].done) || \
	(!ready_stored && fresh == BY_MOVE && naming != 255))
#define NAMED_AT S.rows[found].done
#else
#define REFUSED_BACK false
#define NAMED_AT settled
#endif
#ifdef MUTANT_sent_unnamed
#define SENT_NAMES 0
#else
#define SENT_NAMES known_row
#endif

#define S server[runs]
#define HAS_ROOM (S.nrows < ROWS)
#define IS_PARKED(EVENT) ((S.parked >> (EVENT)) & 1)

/* idem_position_append */
inline append(KIND, FRESH, LIFE, NAMED_ROW, DONE, CUR, K)
{
	S.rows[S.nrows].kind = KIND;
	S.rows[S.nrows].id = S.seq;
	S.rows[S.nrows].epoch = S.epoch;
	S.rows[S.nrows].life = LIFE;
	S.rows[S.nrows].named = NAMED_ROW;
#if SETBACK
	S.rows[S.nrows].named_k = known_k;
#endif
	S.rows[S.nrows].done = DONE;
	S.rows[S.nrows].cur = CUR;
	S.rows[S.nrows].k = K;
	S.rows[S.nrows].fresh = FRESH;
	S.seq++;
	S.nrows++
}

/* turn_off: nothing of the program's process survives it */
inline turn_off(PHASE)
{
	phase = PHASE;
	in_flight = 0;
	reply = NO_REPLY; verdicts = 0;
	sent_event[0] = 0; sent_event[1] = 0; sent_at[0] = 0; sent_at[1] = 0;
	alone = 0; refused = NO;
	drained = 0;
	known_row = 0; known_k = 0;
	life = 0; my_epoch = 0; row_id = 0;
	settled = 0; settled_k = 0; sent_done = 0; sent_cur = 0; sent_k = 0;
	fresh = 0; dirty = 0;
	ready_row = 0; ready_k = 0; ready_life = 0; ready_incarnation = 0; ready_stored = 0
}

/* The server ends; one that starts looks at the log first. */
inline end_server()
{
	turn_off(OFF);
	wake = 0;
#ifdef MUTANT_row_after_frame
	i = 0;
	do
	:: i < S.nrows && S.rows[i].unflushed -> S.nrows = i; break
	:: i < S.nrows && !S.rows[i].unflushed -> i++
	:: i >= S.nrows -> break
	od;
	i = 0
#endif
}

inline initial()
{
	i = 0;
	server[0].epoch = 1;
	server[0].incarnation = 1;
	incarnations = 1;
	server[0].seq = 2;
	append(MOVED, BY_MOVE, 0, 0, 0, 0, 0)
}

/* A producer: the commit, and then the wake-up (xact_callback). */
active proctype producer()
{
end:
	do
	:: atomic { made < EVENTS && !waking ->
#ifdef MUTANT_wake_before_visible
			wake = 1;
			waking = 1 }
		atomic { waking = 0;
			made++;
			S.committed++;
			S.events[S.committed] = made }
#else
			made++;
			S.committed++;
			S.events[S.committed] = made;
			waking = 1 }
		atomic { waking -> waking = 0; wake = 1 }
#endif
	od
}

/* load_own_position and reconcile */
inline on_ready()
{
	/* the newest row of the epoch */
	last = S.nrows - 1;
	fresh = S.rows[last].fresh;
	settled = S.rows[last].done;
	settled_k = S.rows[last].k;
	sent_cur = S.rows[last].cur;
	found = 255;
	i = 0;
	do
	:: i < S.nrows ->
		if
		:: ready_stored && S.rows[i].kind == SENT && S.rows[i].id == ready_row &&
			S.rows[i].epoch == S.epoch && SAME_LIFE && SAME_INCARNATION -> found = i
		:: else
		fi;
		if
		:: ready_stored && S.rows[i].kind == SENT && S.rows[i].id == ready_row && S.rows[i].life == ready_life -> own = 1
		:: else
		fi;
		i++
	:: else -> break
	od;
	i = 0;
#if SETBACK
	/* how far the sink has been; was_set_back */
	naming = 255;
	prior = 255;
	do
	:: i < S.nrows ->
		if
		:: S.rows[i].epoch == S.epoch && S.rows[i].named != 0 -> naming = i
		:: else
		fi;
		if
		:: ready_stored && S.rows[i].kind == SENT && S.rows[i].id == ready_row && SAME_LIFE -> prior = i
		:: else
		fi;
		i++
	:: else -> break
	od;
	i = 0;
	if
	:: naming != 255 && ready_stored && (ready_row < S.rows[naming].named ||
		(ready_row == S.rows[naming].named && ready_k < S.rows[naming].named_k)) -> went_back = 1
	:: else
	fi;
	if
	:: found != 255 -> known_row = ready_row; known_k = ready_k
	:: else
	fi;
#endif
	if
#if SETBACK
	/* find_loss, and a sink without a position after a move */
	:: HELD_AGAINST_NOTE && prior != 255 && SAME_INCARNATION && S.noted > S.rows[prior].done ->
#ifdef REACH_set_back_refused
		assert(!went_back);
#endif
		phase = STUCK
	:: !ready_stored && fresh == BY_MOVE && naming != 255 -> phase = STUCK
#endif
	:: !REFUSED_BACK && found != 255 ->
#ifdef REACH_set_back_served
		assert(!went_back);
#endif
		if
		:: (S.rows[last].id == ready_row && fresh == NO) ||
			(S.rows[last].kind == NAMED && S.rows[last].named == ready_row && S.rows[last].named_k == known_k)
		:: else -> fresh = 0; append(NAMED, 0, 0, ready_row, NAMED_AT, 0, 0)
		fi;
#ifndef MUTANT_own_position
		settled = S.rows[found].done;
		sent_cur = S.rows[found].cur;
		settled_k = ready_k;
#endif
		fresh = 0;
		phase = READY
	:: !REFUSED_BACK && found == 255 && !ready_stored && fresh -> phase = READY
	:: found == 255 && ready_stored && ready_incarnation != S.incarnation && STRANGER_ACCEPTED -> phase = READY
	:: !REFUSED_BACK && found == 255 && ready_stored && ready_incarnation == S.incarnation && fresh &&
		BEFORE_MOVE -> assert(own); phase = READY
	:: else -> phase = STUCK
	fi;
	found = 0; last = 0; naming = 0; prior = 0; own = 0; went_back = 0;
	sent_done = settled;
	sent_k = settled_k;
#ifdef MUTANT_row_of_former_life
	row_id = (sent_cur != 0 -> ready_row : 0);
#else
	row_id = 0;
#endif
	drained = 0;
	assert(phase == STUCK || ready_stored || !S.confirmed);
	assert(phase == READY || has_copy || was_reset);
	ready_row = 0; ready_k = 0; ready_life = 0; ready_incarnation = 0; ready_stored = 0;
	if
	:: phase == STUCK -> turn_off(STUCK)
#ifdef REACH_copy_diverges
		; assert(!runs)
#endif
	:: else
	fi
}

/* pgsink_begin and the like; N batches, of which the last is COUNT - 1 */
inline begin_transaction(COUNT)
{
	pending = 1;
	pending_event = (refused == NO -> sent_event[0] : 0);
	pending_second = (COUNT == 2 -> sent_event[1] : 0);
#ifdef MUTANT_first_position
	pending_k = sent_at[0];
#else
	pending_k = sent_at[COUNT - 1];
#endif
	pending_epoch = my_epoch;
	pending_incarnation = S.incarnation;
	pending_life = life;
	pending_row = row_id
}

/* send_log_batch */
inline send_log_batch()
{
	found = (sent_cur == 0);		/* begins */
	if
	:: found && S.committed == sent_done ->
		drained = 1
	:: else ->
		if
		:: found -> sent_cur = S.committed; sent_k = sent_done; row_id = 0
		:: else
		fi;
		do
		:: sent_k < sent_cur && sent_k < S.committed &&
			(IS_PARKED(S.events[sent_k + 1]) || sent_k + 1 <= S.emptied) -> sent_k++
		:: else -> break
		od;
		if
		:: sent_k < sent_cur && sent_k < S.committed ->
			if
			:: row_id == 0 ->
				row_id = S.seq;
				append(SENT, fresh, life, SENT_NAMES, sent_done, sent_cur, sent_k)
#ifdef MUTANT_row_after_frame
				; S.rows[S.nrows - 1].unflushed = 1
#endif
			:: else
			fi;
			sent_k++;
			sent_event[in_flight] = S.events[sent_k];
			sent_at[in_flight] = sent_k;
			in_flight++
#if !BATCHES
			; begin_transaction(1)
#endif
		:: in_flight > 0 && sent_k >= sent_cur -> skip	/* what was left is parked */
		:: else ->					/* the end of the difference, without a batch */
			sent_done = sent_cur;
			sent_cur = 0;
			sent_k = 0;
			settled = sent_done;
			settled_k = 0;
			dirty = 1;
#ifdef MUTANT_drained_by_older_difference
			drained = 1
#else
			drained = found
#endif
		fi
	fi;
	found = 0
}

/* settle_storing */
inline settle_storing()
{
#if SETBACK
	known_row = row_id;
	known_k = sent_at[0];
#endif
	if
	:: fresh ->
		fresh = 0;
#ifndef MUTANT_confirmation_unwritten
		append(NAMED, 0, 0, row_id, settled, 0, 0)
#endif
	:: else
	fi;
#ifdef MUTANT_row_after_frame
	i = 0;
	do
	:: i < S.nrows -> S.rows[i].unflushed = 0; i++
	:: else -> break
	od;
	i = 0;
#endif
	S.confirmed = 1;
	in_flight--;
	sent_event[0] = sent_event[1]; sent_at[0] = sent_at[1];
	sent_event[1] = 0; sent_at[1] = 0;
	refused = NO;
	alone = (alone > 0 -> alone - 1 : 0);
	verdicts--;
	if
	:: verdicts == 0 -> reply = NO_REPLY
	:: else
	fi;
#ifdef REACH_copy_streams
	assert(!runs || applied[S.events[S.committed]] == 0);
#endif
#ifdef REACH_original_again
	assert(runs || !copy_sent);
#endif
	copy_sent = copy_sent | runs
}

active proctype worker()
{
	atomic { initial() };
end:
	do
	/* take_wakeup */
	:: atomic { wake -> wake = 0; drained = 0 }

	/* start_program, and the sink's READY: it fences its predecessor */
	:: atomic { phase == OFF && PREDECESSOR_ENDED && HAS_ROOM ->
			lives++;
			life = lives;
			target_epoch++;
			my_epoch = target_epoch;
			ready_stored = stored;
			ready_incarnation = stored_incarnation;
			ready_life = stored_life;
			ready_row = stored_row;
			ready_k = stored_k;
			phase = HELLO }
	:: atomic { phase == HELLO && HAS_ROOM -> on_ready() }
	:: atomic { phase == READY && !drained && HAS_ROOM && (BATCHES || !pending) &&
		(in_flight == 0 || (in_flight < IN_FLIGHT && sent_cur != 0 && sent_k < sent_cur)) -> send_log_batch() }
	:: atomic { refused == REFUSED ->
			S.parked = S.parked | (1 << sent_event[0]);
			refused = SETTLED }
	:: atomic { reply == COMMITTED && HAS_ROOM -> settle_storing() }
	:: atomic { reply == GONE ->
#ifdef MUTANT_lost_reply_committed
			verdicts = in_flight;
			reply = COMMITTED
#else
			turn_off(OFF)
#endif
		}
	:: atomic { reply == FENCED -> turn_off(STUCK) }

	/* idem_stream_persist */
	:: atomic { phase == READY && !in_flight && sent_cur == 0 && dirty && S.nrows < ROWS - 2 ->
			dirty = 0;
			append(PASSED, fresh, 0, known_row, settled, 0, 0) }
	od
}

#define answers(WHAT) if \
	:: in_flight && pending_life == life -> reply = WHAT; \
		verdicts = (WHAT == COMMITTED -> 1 + (pending_second != 0) : 0) \
	:: else \
	fi

inline no_transaction()
{
	pending = 0; pending_event = 0; pending_second = 0; pending_epoch = 0; pending_incarnation = 0;
	pending_life = 0; pending_row = 0; pending_k = 0
}

#define CAN_BEGIN (BATCHES && phase == READY && !pending && in_flight > 0 && reply == NO_REPLY)
#ifdef MUTANT_commit_before_settle
#define IS_RECORDED true
#else
#define IS_RECORDED (refused != REFUSED)
#endif
#ifdef MUTANT_waits_for_batch
#define ENOUGH (in_flight == 2)
#else
#define ENOUGH true
#endif

/* The sink program, and its transaction at the target. */
active proctype target()
{
end:
	do
	/* the batches that are there, or the oldest */
	:: atomic { CAN_BEGIN && IS_RECORDED && ENOUGH -> begin_transaction(1) }
	:: atomic { CAN_BEGIN && refused == NO && in_flight == 2 && alone == 0 -> begin_transaction(2) }
	:: atomic { pending && MAY_COMMIT ->
			applied[pending_event]++;
			applied[pending_second]++;
			applied[0] = 0;
			stored = 1;
			stored_incarnation = pending_incarnation;
			stored_life = pending_life;
			stored_row = pending_row;
			stored_k = pending_k;
			if
			:: answers(COMMITTED)
			:: faults > 0 -> faults--; answers(GONE)
#ifdef REACH_shared_lost
				; assert(pending_second == 0)
#endif
			fi;
			assert(applied[pending_event] <= 1 + asked[pending_event]);
			assert(applied[pending_second] <= 1 + asked[pending_second]);
#ifdef REACH_replayed
			assert(applied[pending_event] <= 1);
#endif
#ifdef REACH_shared_redone
			assert(pending_event == 0 || alone != 1 || reply != COMMITTED);
#endif
			no_transaction() }
	:: atomic { pending && faults > 0 -> faults--; answers(GONE); no_transaction() }

	/* the target refuses an event: all of the transaction is gone */
	:: atomic { BATCHES && pending && faults > 0 && pending_life == life && in_flight > 0 && pending_event != 0 ->
			faults--;
			if
			:: pending_second == 0 -> refused = REFUSED; no_transaction()
			:: pending_second != 0 ->
#ifdef MUTANT_refused_together
				pending_event = 0
#else
				alone = 2;
				no_transaction();
#ifdef MUTANT_redo_from_second
				in_flight = 1;
				alone = 1;
				sent_event[0] = sent_event[1]; sent_at[0] = sent_at[1];
				sent_event[1] = 0; sent_at[1] = 0
#endif
#endif
			fi }
#ifndef MUTANT_predecessor_not_fenced
	:: atomic { pending && pending_epoch != target_epoch -> answers(FENCED); no_transaction() }
#endif
	od
}

/* raise_epoch and append_fresh_position; the worker reads its configuration anew */
inline move_to(DONE, HOW)
{
#if SETBACK
	naming = 255;
	i = 0;
	do
	:: i < S.nrows ->
		if
		:: S.rows[i].epoch == S.epoch && S.rows[i].named != 0 -> naming = i
		:: else
		fi;
		i++
	:: else -> break
	od;
	i = 0;
	known_row = 0;
	known_k = 0;
#ifndef MUTANT_move_forgets_stored
	if
	:: naming != 255 && HOW != BY_ADOPTION ->
		known_row = S.rows[naming].named;
		known_k = S.rows[naming].named_k
	:: else
	fi;
#endif
	naming = 0;
#endif
	S.epoch = S.seq;
	S.confirmed = 0;
	S.seq++;
	append(MOVED, HOW, 0, known_row, DONE, 0, 0);
	turn_off(OFF)
}

active proctype outside()
{
	byte n;
end:
	do
	/* the server, its worker or the program is killed; pause and resume look the same */
	:: atomic { faults > 0 && !waking && S.nrows > 0 -> faults--; end_server() }

	/* a backup, and either of the two runs by turns, from where it was */
	:: atomic { !BATCHES && !SETBACK && !has_copy && !waking && S.nrows > 0 ->
			has_copy = 1;
			n = 0;
			do
			:: n <= EVENTS -> server[1].events[n] = server[0].events[n]; n++
			:: else -> break
			od;
			n = 0;
			do
			:: n < ROWS ->
				server[1].rows[n].kind = server[0].rows[n].kind;
				server[1].rows[n].id = server[0].rows[n].id;
				server[1].rows[n].epoch = server[0].rows[n].epoch;
				server[1].rows[n].life = server[0].rows[n].life;
				server[1].rows[n].named = server[0].rows[n].named;
				server[1].rows[n].done = server[0].rows[n].done;
				server[1].rows[n].cur = server[0].rows[n].cur;
				server[1].rows[n].k = server[0].rows[n].k;
				server[1].rows[n].fresh = server[0].rows[n].fresh;
				n++
			:: else -> break
			od;
			n = 0;
			server[1].committed = server[0].committed;
			server[1].seq = server[0].seq;
			server[1].epoch = server[0].epoch;
			server[1].incarnation = server[0].incarnation;
			server[1].nrows = server[0].nrows;
			server[1].parked = server[0].parked;
			server[1].confirmed = server[0].confirmed }
	:: atomic { has_copy && faults > 0 && !waking ->
			faults--;
			end_server();
			runs = 1 - runs }

#if SETBACK
	/* note_what_goes, and then empty_outbox: what the last row of the log has passed */
#ifdef MUTANT_emptied_unnoted
	:: atomic { S.nrows > 0 && S.rows[S.nrows - 1].done > S.emptied -> S.emptied = S.rows[S.nrows - 1].done }
#else
#ifdef MUTANT_noted_after_emptying
	:: atomic { S.nrows > 0 && S.rows[S.nrows - 1].done > S.emptied -> S.emptied = S.rows[S.nrows - 1].done }
	:: atomic { S.emptied > S.noted -> S.noted = S.emptied }
#else
	:: atomic { S.nrows > 0 && S.rows[S.nrows - 1].done > S.noted -> S.noted = S.rows[S.nrows - 1].done }
	:: atomic { S.noted > S.emptied && S.rows[S.nrows - 1].done >= S.noted -> S.emptied = S.noted }
#endif
#endif

	/* a backup of the target, or a standby of it that lags; and what it is set back to */
	:: atomic { !has_saved && stored ->
			has_saved = 1;
			saved_stored = stored; saved_incarnation = stored_incarnation; saved_life = stored_life;
			saved_row = stored_row; saved_k = stored_k;
			n = 0;
			do
			:: n <= EVENTS -> saved_applied[n] = applied[n]; n++
			:: else -> break
			od;
			n = 0 }
	:: atomic { has_saved && faults > 0 ->
			faults--;
			was_reset = 1;
			if
			:: phase != STUCK -> turn_off(OFF)
			:: else
			fi;
			stored = saved_stored; stored_incarnation = saved_incarnation; stored_life = saved_life;
			stored_row = saved_row; stored_k = saved_k;
			no_transaction();
			n = 0;
			do
			:: n <= EVENTS -> applied[n] = saved_applied[n]; n++
			:: else -> break
			od;
			n = 0 }
#endif

	/* the target is restored without what it had, which ends its sessions */
	:: atomic { !BATCHES && faults > 0 && stored ->
			faults--;
			was_reset = 1;
			if
			:: phase != STUCK -> turn_off(OFF)
			:: else
			fi;
			stored = 0; stored_incarnation = 0; stored_life = 0; stored_row = 0; stored_k = 0;
			no_transaction();
			n = 0;
			do
			:: n <= EVENTS -> applied[n] = 0; n++
			:: else -> break
			od;
			n = 0 }

	/* relay_replay: all that is in the outbox may come again */
	:: atomic { !BATCHES && faults > 0 && S.nrows > 0 && HAS_ROOM && !waking && phase != HELLO ->
			faults--;
			n = 1;
			do
			:: n <= S.committed -> asked[S.events[n]]++; n++
			:: else -> break
			od;
			n = 0;
			move_to(0, (S.rows[S.nrows - 1].fresh == BY_ADOPTION -> BY_ADOPTION : BY_MOVE)) }

	/* relay_adopt: go on from the last position; what is behind it was looked at */
	:: atomic { !BATCHES && faults > 0 && phase == STUCK && HAS_ROOM && !waking ->
			faults--;
			incarnations++;
			S.incarnation = incarnations;
			n = 1;
			do
			:: n <= S.committed ->
				if
				:: n <= S.rows[S.nrows - 1].done -> waived[S.events[n]] = 1
				:: else -> asked[S.events[n]]++
				fi;
				n++
			:: else -> break
			od;
			n = 0;
			move_to(S.rows[S.nrows - 1].done, BY_ADOPTION) }
	od
}

/* What an idle relay says: nothing is left. */
#define QUIET (phase == READY && drained && !in_flight && !pending && !wake && !waking)

active proctype quiet()
{
	byte n;
end:
	atomic { QUIET ->
		n = 1;
		do
		:: n <= S.committed ->
			assert(applied[S.events[n]] > 0 || waived[S.events[n]] || IS_PARKED(S.events[n]));
			n++
		:: else -> break
		od }
}

/* When nothing else can happen, the sink owes no answer. */
active proctype not_stuck()
{
end:
	atomic { timeout -> assert(phase != READY || in_flight == 0 || reply != NO_REPLY) }
}
