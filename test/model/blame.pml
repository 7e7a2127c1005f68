/*
 * blame.pml
 *		Whose fault a refusal is: evidence, rows of refusals, the breaker and its probes.
 *
 * Models src/relay/blame.c, and the choice of what is sent in src/relay/stream/send.c.
 * A relay sends one event at a time; a target accepts or refuses it; each verdict is one
 * step.  With "late" the answer to an event may be late (late.c): the target has decided, the
 * verdict comes at some later step, and others are sent meanwhile.  Numbers of verdicts are made
 * small after each verdict: only their order counts.
 *
 * Bounds: N keys, each with EACH events, one after the other; the event of key 0 is bad:
 * it is refused whether the target is up or not, for ever.  The target is down OUTAGES
 * times.  With CRASHES the server crashes once, and the relay forgets.  With two LANES the
 * keys 0 and 1 are of one destination, which may be down by itself, and key 2 is of another.
 * ROW and KEYS are smaller than in the code; so many lanes as KEYS are all lanes here.  The
 * row is doubled once, until the next acceptance but one.
 *
 * Abstracted:
 *	- Time: an event that was refused is due again when no other event is due, and a
 *	  probe may come at any moment.
 *	- A refusal is a definite no, or not, by chance.
 *	- Marks do not share places: sharing makes a mark only newer (sql/relay_blame.sql).
 *	- No finds, no events that are impossible, nobody who asks to wait.
 *
 * Properties: the assertions called must(), and that the other events pass.
 */
/* BOUNDS outages: three keys, two outages */
/* BOUNDS crash: three keys, an outage, a crash */
/* BOUNDS lanes: two destinations, an outage of one or of both */
/* BOUNDS late: three keys, an outage, answers that are late */
/* MUTANT own_key: an acceptance of the event's own key is evidence */
/* MUTANT other_forgotten: only the newest acceptance is kept */
/* MUTANT mark_at_count: only a counted refusal is marked */
/* MUTANT first_by_mark: a first refusal is judged by the last one of its key */
/* MUTANT first_counts: a first refusal counts */
/* MUTANT alone_unasked: a definite no counts whatever else there is */
/* MUTANT alone_retry: a refusal for now counts for an event that is alone */
/* MUTANT row_goes_on: an acceptance does not end a row of refusals */
/* MUTANT same_key_probed: the oldest event is probed, again and again */
/* MUTANT never_opens: the breaker stays closed */
/* MUTANT lanes_mixed in lanes: an acceptance of another destination is evidence */
/* MUTANT lane_holds_all in lanes: refusals of one destination open the breaker of all */
/* MUTANT late_probed in late: an event without an answer is probed, too */
/* MUTANT late_holds in late: nothing is sent while an answer is late */
/* MUTANT late_dated in late: a late refusal counts as of the moment of its event's sending */
/* REACH opened: the breaker is open */
/* REACH closed: the breaker was closed by an acceptance */
/* REACH counted_twice: two refusals of the bad event count */
/* REACH alone: the bad event is all that is left, and counts */
/* REACH first: a first refusal counts */
/* REACH remembered in crash: a refusal counts after the crash */
/* REACH one_down in lanes: one destination is down, and the other one has its events */
/* REACH all_down in lanes: the other one is refused, too, and all is held */
/* REACH late_counts in late: a refusal counts that was decided while the target was down, and came late */
/* REACH late_closes in late: a late acceptance closes the breaker */

#if defined(BOUNDS_lanes)
#define LANES 2
#define LANE(k) ((k) / 2)
#else
#define LANES 1
#define LANE(k) 0
#endif
#if defined(BOUNDS_late)
#define LATE 1
#else
#define LATE 0
#endif
#if defined(BOUNDS_lanes) || defined(BOUNDS_late)
#define OUTAGES 1
#define CRASHES 0
#elif defined(BOUNDS_crash)
#define OUTAGES 1
#define CRASHES 1
#else
#define OUTAGES 2
#define CRASHES 0
#endif
#define N 3
#define EACH 2
#define ROW 3
#define KEYS 2

/* The lanes of IdemBlame, and what it has for the target as a whole. */
byte acc_key[LANES], acc_newest[LANES], acc_other[LANES];
byte ref_key[LANES], ref_newest[LANES], ref_other[LANES];
byte lrow[LANES], lkeys[LANES];
bool lopen[LANES], inrow[LANES], named[LANES];
byte mark[N];
byte verdicts;
byte row, keys;					/* keys: bits */
bool open;
bool doubled;					/* the row that opens the breaker is */

/* Events: how many of a key are done, and whether the next one is not due. */
byte ended[N];
bool resting[N];
byte last = N;					/* the key that was probed last */
byte late[N];					/* the answer that is late: 1 acceptance, 2 a definite no, 3 another refusal */

bool down;
bool lanedown;					/* lane 0 only */
bool crashed;

/* What really happened. */
bool refused[N];				/* the key's event was refused before */
bool known[N];					/* since the crash */
bool passed[N];					/* another key's event was accepted since then */
byte others[N];					/* the last verdict on another key: 0 none, 1 refusal, 2 acceptance */
byte othersknown[N];			/* the same, since the crash */
byte burnt[N];					/* refusals that counted since the last acceptance */
byte truerow, truekeys;
byte counts;					/* refusals of the bad event that counted */
bool was_closed, was_first, was_alone, was_remembered, was_late, was_closed_late;
bool answering;					/* the verdict at hand was late */
bool up[LANES];					/* the newest verdict of the lane is acceptance */

bool counts_without_evidence, evidence_ignored, blamed_twice, opened_early, not_opened, others_held, sent_twice;
#define must(name, condition) if :: !(condition) -> name = true; assert(!name) :: else fi

#define LEFT(k) (k == 0 || ended[k] < EACH)
#define ALONE(k) (k == 0 && ended[1] == EACH && ended[2] == EACH)
#if LANES == 2
#define ENOUGH ((inrow[0] || lopen[0] || !named[0]) && (inrow[1] || lopen[1] || !named[1]))
#define IN_LANE(x, k) ((x) / 2 == (k) / 2)
#else
#define ENOUGH true
#define IN_LANE(x, k) true
#endif
#define NEEDED (doubled -> 2 * ROW : ROW)
#define BIT(k) (1 << (k))
#define FEW(bits) ((bits) == 0 || (bits) == 1 || (bits) == 2 || (bits) == 4)

#define NEWEST_OF_OTHERS(which, l, k) (which##_key[l] == k -> which##_other[l] : which##_newest[l])
#if defined(MUTANT_own_key)
#define OTHERS(which, k) which##_newest[LANE(k)]
#elif defined(MUTANT_lanes_mixed)
#define OTHERS(which, k) (NEWEST_OF_OTHERS(which, 0, k) > NEWEST_OF_OTHERS(which, 1, k) -> \
	NEWEST_OF_OTHERS(which, 0, k) : NEWEST_OF_OTHERS(which, 1, k))
#else
#define OTHERS(which, k) NEWEST_OF_OTHERS(which, LANE(k), k)
#endif
#define REFOTHERS(k) NEWEST_OF_OTHERS(ref, LANE(k), k)

#if LANES == 2
#define HAS(l, x) (acc_newest[l] == x || acc_other[l] == x || ref_newest[l] == x || ref_other[l] == x)
#define HAVE(x) (HAS(0, x) || HAS(1, x))
#else
#define HAVE(x) (acc_newest[0] == x || acc_other[0] == x || ref_newest[0] == x || ref_other[0] == x)
#endif

inline lower(l)
{
	if :: acc_newest[l] > x -> acc_newest[l]-- :: else fi;
	if :: acc_other[l] > x -> acc_other[l]-- :: else fi;
	if :: ref_newest[l] > x -> ref_newest[l]-- :: else fi;
	if :: ref_other[l] > x -> ref_other[l]-- :: else fi
}

/* Numbers that nobody has are left out. */
inline squeeze()
{
	x = 1;
	do
	:: x > verdicts -> break
	:: x <= verdicts && (HAVE(x) || mark[0] == x || mark[1] == x || mark[2] == x) -> x++
	:: else ->
		lower(0);
#if LANES == 2
		lower(1);
#endif
		if :: mark[0] > x -> mark[0]-- :: else fi;
		if :: mark[1] > x -> mark[1]-- :: else fi;
		if :: mark[2] > x -> mark[2]-- :: else fi;
		verdicts--
	od;
	x = 0
}

inline for_others(k, verdict)
{
	x = 0;
	do
	:: x == N -> break
	:: x < N ->
		if
		:: x != k && IN_LANE(x, k) ->
			others[x] = verdict;
			othersknown[x] = verdict;
			if :: verdict == 2 -> passed[x] = true :: else fi
		:: else
		fi;
		burnt[x] = (verdict == 2 && IN_LANE(x, k) -> 0 : burnt[x]);
		x++
	od;
	x = 0
}

/* accept() */
inline accept(k)
{
	verdicts++;
#ifdef MUTANT_other_forgotten
	acc_other[LANE(k)] = 0;
#else
	if :: acc_newest[LANE(k)] != 0 && acc_key[LANE(k)] != k -> acc_other[LANE(k)] = acc_newest[LANE(k)] :: else fi;
#endif
	acc_key[LANE(k)] = k;
	acc_newest[LANE(k)] = verdicts;
	must(sent_twice, ended[k] < EACH);
	was_closed = was_closed || open;
	was_closed_late = was_closed_late || (open && answering);
	doubled = open;
	open = false;
	named[LANE(k)] = true;
	up[LANE(k)] = true;
#ifndef MUTANT_row_goes_on
	row = 0;
	keys = 0;
	inrow[0] = false;
	inrow[LANES - 1] = false;
#endif
	lopen[LANE(k)] = false;
	lrow[LANE(k)] = 0;
	lkeys[LANE(k)] = 0;
	truerow = 0;
	truekeys = 0;
	for_others(k, 2);
	ended[k]++;
	refused[k] = false;
	known[k] = false;
	passed[k] = false;
	resting[k] = false;
	last = N;
	squeeze()
}

/* has_evidence() and refuse() */
inline refuse(k, rejected)
{
	alone = ALONE(k);
#ifdef MUTANT_first_by_mark
	evidence = mark[k] != 0 && OTHERS(acc, k) > mark[k];
#else
	if
#ifdef MUTANT_first_counts
	:: !refused[k] -> evidence = true
#else
	:: !refused[k] -> evidence = OTHERS(acc, k) > REFOTHERS(k)
#endif
	:: refused[k] -> evidence = mark[k] != 0 && OTHERS(acc, k) > mark[k]
	fi;
#endif
#if defined(MUTANT_alone_unasked)
	counted = evidence || rejected;
#elif defined(MUTANT_alone_retry)
	counted = evidence || alone;
#else
	counted = evidence || (rejected && alone);
#endif

	/* what the words of the rules say */
	truth = (refused[k] -> passed[k] : others[k] == 2);
	must(counts_without_evidence, !counted || truth || (rejected && alone));
	must(evidence_ignored, counted || !(refused[k] -> passed[k] && known[k] : othersknown[k] == 2));
	burnt[k] = (counted && !(rejected && alone) -> burnt[k] + 1 : burnt[k]);
	must(blamed_twice, burnt[k] <= 1);
	was_first = was_first || (counted && !refused[k]);
	was_alone = was_alone || (counted && alone && !truth);
	was_remembered = was_remembered || (counted && crashed && refused[k]);
	was_late = was_late || (counted && answering && k > 0 && !down);
	counts = (counted && k == 0 && counts < 2 -> counts + 1 : counts);

	verdicts++;
	if :: ref_newest[LANE(k)] != 0 && ref_key[LANE(k)] != k -> ref_other[LANE(k)] = ref_newest[LANE(k)] :: else fi;
	ref_key[LANE(k)] = k;
	ref_newest[LANE(k)] = verdicts;
	named[LANE(k)] = true;
	up[LANE(k)] = false;
#ifdef MUTANT_mark_at_count
	if :: counted || mark[k] == 0 -> mark[k] = verdicts :: else fi;
#else
	mark[k] = verdicts;
#endif
#if LANES == 2
	was_lopen = lopen[LANE(k)];
	lrow[LANE(k)] = (lrow[LANE(k)] < ROW -> lrow[LANE(k)] + 1 : lrow[LANE(k)]);
	lkeys[LANE(k)] = lkeys[LANE(k)] | BIT(k);
	lopen[LANE(k)] = lopen[LANE(k)] || (lrow[LANE(k)] == ROW && (alone || !FEW(lkeys[LANE(k)])));
#endif
	if
	:: !was_lopen ->
		row = (row < NEEDED -> row + 1 : row);
		keys = keys | BIT(k);
		inrow[LANE(k)] = true
	:: else
	fi;
	truerow = (truerow < NEEDED && !was_lopen -> truerow + 1 : truerow);
	truekeys = (was_lopen -> truekeys : truekeys | BIT(k));
#ifndef MUTANT_never_opens
	if
#ifdef MUTANT_lane_holds_all
	:: !open && row >= NEEDED && (alone || !FEW(keys)) ->
#else
	:: !open && !was_lopen && row >= NEEDED && (alone || !FEW(keys)) && ENOUGH ->
#endif
		open = true;
		must(others_held, !up[0] && !up[LANES - 1])
	:: else
	fi;
#endif
	must(opened_early, !open || truerow == NEEDED || crashed);
	must(not_opened, open || crashed || was_lopen || !(truerow == NEEDED && (alone || !FEW(truekeys)) && ENOUGH));
	for_others(k, 1);
	refused[k] = true;
	known[k] = true;
	passed[k] = false;
	resting[k] = true;
	last = k;
	squeeze()
}

/* Does the relay send the key's event now? */
#ifdef MUTANT_late_probed
#define IS_LATE(k) false
#else
#define IS_LATE(k) (late[k] != 0)
#endif
#define DUE(k) (LEFT(k) && !resting[k] && late[k] == 0)
#define ANY_DUE (DUE(0) || DUE(1) || DUE(2))
#define CAN_BE_SENT(k) (LEFT(k) && !IS_LATE(k))
#define ANOTHER(k) ((k != 0 && CAN_BE_SENT(0)) || (k != 1 && CAN_BE_SENT(1)) || (k != 2 && CAN_BE_SENT(2)))
#ifdef MUTANT_same_key_probed
#define PROBED(k) (k == 0)
#else
#define PROBED(k) (CAN_BE_SENT(k) && (k != last || !ANOTHER(k)))
#endif
#define FRESH(k) (FEW(keys) && DUE(k) && !refused[k])
#ifdef MUTANT_late_holds
#define MAY_SEND (late[0] == 0 && late[1] == 0 && late[2] == 0)
#else
#define MAY_SEND true
#endif
#define SENT(k) (MAY_SEND && (open -> (FRESH(k) || PROBED(k)) : DUE(k)))

#define IS_UP(k) (k > 0 && !down && !(lanedown && LANE(k) == 0))

/* Nothing is late that is sent to a target that is held. */
#define MAY_BE_LATE(k) (LATE && k < N && !open)
#ifdef MUTANT_late_dated
#define note_sending(k) mark[k] = verdicts
#else
#define note_sending(k) skip
#endif

active proctype relay()
{
	byte k, x;
	bool alone, evidence, counted, truth, was_lopen;

	do
	:: atomic {
		if
		:: SENT(0) -> k = 0
		:: SENT(1) -> k = 1
		:: SENT(2) -> k = 2
		:: !open && !ANY_DUE -> k = N
		fi;
		if
		:: k == N -> d_step { resting[0] = false; resting[1] = false; resting[2] = false }
		:: k < N && IS_UP(k) -> d_step { accept(k) }
		:: k < N && !IS_UP(k) ->
			if
			:: d_step { refuse(k, true) }
			:: d_step { refuse(k, false) }
			fi
		:: MAY_BE_LATE(k) ->
			note_sending(k);
			if
			:: IS_UP(k) -> late[k] = 1
			:: !IS_UP(k) -> late[k] = 2
			:: !IS_UP(k) -> late[k] = 3
			fi
		fi;
		k = 0;
		alone = false;
		evidence = false;
		counted = false;
		truth = false;
		was_lopen = false
	}
	od
}

#if LATE
#define comes(k) late[k] != 0 -> d_step { \
	answering = true; \
	x = late[k]; \
	late[k] = 0; \
	if \
	:: x == 1 -> x = 0; accept(k) \
	:: x == 2 -> x = 0; refuse(k, true) \
	:: x == 3 -> x = 0; refuse(k, false) \
	fi; \
	answering = false; \
	alone = false; evidence = false; counted = false; truth = false; was_lopen = false }

/* Answers that are late come at last, but those of the bad event, which may hang for ever. */
active proctype receiver()
{
	byte x;
	bool alone, evidence, counted, truth, was_lopen;

	do
	:: atomic { comes(1) }
	:: atomic { comes(2) }
	od
}

active proctype bad_receiver()
{
	byte x;
	bool alone, evidence, counted, truth, was_lopen;

	do
	:: atomic { comes(0) }
	:: break
	od
}
#endif

active proctype target()
{
	byte left = OUTAGES;

	do
	:: left > 0 -> down = true; left--; down = false
#if LANES == 2
	:: left > 0 -> lanedown = true; left--; lanedown = false
#endif
	:: left > 0 -> left = 0
	:: left == 0 -> break
	od
}

/* A crash of the server forgets what is in memory. */
active proctype server()
{
#if CRASHES
	if
	:: d_step {
		crashed = true;
		acc_key[0] = 0; acc_newest[0] = 0; acc_other[0] = 0;
		ref_key[0] = 0; ref_newest[0] = 0; ref_other[0] = 0;
		lrow[0] = 0; lkeys[0] = 0; inrow[0] = false; named[0] = false;
		mark[0] = 0; mark[1] = 0; mark[2] = 0;
		verdicts = 0; row = 0; keys = 0; open = false; doubled = false; last = N;
		known[0] = false; known[1] = false; known[2] = false;
		othersknown[0] = 0; othersknown[1] = 0; othersknown[2] = 0;
		others[0] = 0; others[1] = 0; others[2] = 0
	}
	:: true
	fi
#endif
	true
}

#ifdef REACH_opened
#define REACHED open
#elif defined(REACH_closed)
#define REACHED was_closed
#elif defined(REACH_counted_twice)
#define REACHED (counts == 2)
#elif defined(REACH_alone)
#define REACHED was_alone
#elif defined(REACH_first)
#define REACHED was_first
#elif defined(REACH_remembered)
#define REACHED was_remembered
#elif defined(REACH_one_down)
#define REACHED (lopen[0] && !open && ended[LANES] == EACH)
#elif defined(REACH_all_down)
#define REACHED (lopen[0] && inrow[LANES - 1] && open)
#elif defined(REACH_late_counts)
#define REACHED was_late
#elif defined(REACH_late_closes)
#define REACHED was_closed_late
#endif
#ifdef REACHED
active proctype reach()
{
	atomic { REACHED -> assert(false) }
}
#endif

/* One bad event, and outages that end, do not stop the others. */
ltl others_pass { <> (ended[1] == EACH && ended[2] == EACH) }
