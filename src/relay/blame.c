/*-------------------------------------------------------------------------
 *
 * blame.c
 *		Whose fault a refusal is: the event's, or the target's.
 *
 * Blame the target while nothing passes, and the event only when others pass.
 * Codes do not tell: a row policy raises 42501 for one row, a function raises
 * what it likes, and a proxy says 503 for a deploy.  What becomes of other
 * events does.
 *
 * 1. Evidence.  A refusal of an event counts only if an event of another key
 *    was accepted in the same lane since the event's previous refusal.  Its
 *    first refusal counts if the last verdict on another key was acceptance.
 * 2. Clock.  A counted refusal adds to the time for which the event was tried,
 *    and only a counted refusal makes the event dead (position/parked.c).
 * 3. Alone.  If all that could be sent, to whichever lane, has one key, there can be no evidence.
 *    Then a definite no (REJECTED) counts without any, and RETRY never does.
 * 4. Breaker.  It opens after IDEM_BLAME_ROW refusals in a row from
 *    IDEM_BLAME_KEYS keys, or from all keys there are.  Then one event is sent
 *    at a time, each after a pause.  An acceptance closes it: after that so many
 *    events may be in flight as were accepted since, and one.
 *    A target that refuses many events in a row, and takes others, looks the same.  So a probe of
 *    the outbox passes over the events behind it, twice as many each time; they wait parked,
 *    and are probed as well.  And each time that the breaker closes, twice as many refusals in
 *    a row open it, until the target has accepted IDEM_BLAME_RECOVERED events.
 * 5. A find.  The program ended with one event alone in flight (stream/hunt.c).
 *    That counts if something has answered since the find before.
 * 6. Impossible: counts, and says nothing of the target.
 * 7. Lanes.  Evidence and breaker belong to a lane.  Which lane an event has shows only in
 *    the answer, so a lane that is open holds nothing back: its events are refused one by
 *    one, wait at most IDEM_BLAME_MAX_PAUSE_MS each, and are due at once when one of them is
 *    accepted.  Only the target as a whole is held, when refusals in a row come from
 *    as many lanes as keys, or from all lanes that were not open before: one missing topic
 *    does not hold the others.
 * 8. Asked to wait: ASKED is no refusal, and the target is held like that of an open
 *    breaker; but an event that is asked again while others pass waits by itself, and so do
 *    those of a lane that asks again while other lanes pass.  A RETRY
 *    that names a time never counts; it may concern its event alone, so it holds
 *    the target only as others like it do.
 * 9. What the errors of a handler are, function/handler.c says.
 *
 * INVARIANT: while nothing is accepted, no refusal counts but by rules 3, 5 and
 * 6, and one of each event whose evidence is older than that.
 *
 * For rule 1 the newest acceptance, and the newest on another key, suffice: they
 * tell for each key when another key's event was accepted last.  The caller knows the number of
 * an event's previous refusal, or of when the target asked it to wait.  If it has forgotten
 * (parked events are read again), the number stands at a place that the event's key shares with others:
 * it can be too high, and then evidence is lacking that there was; never too low.
 *
 * A crash of the server forgets all this: the next refusal of an event does not
 * count, unless it is alone.
 *
 * MEMORY: the struct, and a lane of 150 bytes per destination, at most 63, whatever the data.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/blame.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "relay/blame.h"
#include "utils/memutils.h"

/* So many events behind the one of a probe are passed over at first. */
#define UNSEEN 16

/* Longer rows are not told apart. */
#define MAX_ROW 1000000

/* Note a verdict of the trace's kind. */
static void
note(IdemBlameTrace *trace, uint64 key, int64 number)
{
	if (trace->newest != 0 && trace->key != key)
		trace->other = trace->newest;
	trace->key = key;
	trace->newest = number;
}

/* Number of the newest verdict of the trace's kind on another key than this one; 0: none. */
static int64
newest_of_others(const IdemBlameTrace *trace, uint64 key)
{
	return trace->key == key ? trace->other : trace->newest;
}

static IdemBlameLane *
lane_of(IdemBlame *blame, int lane)
{
	return lane == 0 ? &blame->whole : &blame->named[lane - 1];
}

int
idem_blame_lane(IdemBlame *blame, MemoryContext cxt, uint64 destination)
{
	for (int i = 0; i < blame->nnamed; i++)
	{
		if (blame->named[i].destination == destination)
			return i + 1;
	}
	if (blame->nnamed == IDEM_BLAME_LANES - 1)
		return (int) (destination % (IDEM_BLAME_LANES - 1)) + 1;
	if (blame->named == NULL)
		blame->named = MemoryContextAllocZero(cxt, sizeof(IdemBlameLane) * (IDEM_BLAME_LANES - 1));
	blame->named[blame->nnamed].destination = destination;
	return ++blame->nnamed;
}

/* Where the number of a key's last refusal stands. */
static int64 *
mark_of(IdemBlame *blame, uint64 key)
{
	return &blame->marks[key % IDEM_BLAME_MARKS];
}

/* The number of the event's previous refusal; 0: it is not known. */
static int64
previous_of(IdemBlame *blame, const IdemBlameVerdict *v)
{
	return v->previous != 0 ? v->previous : *mark_of(blame, v->key);
}

/* Rule 1. */
static bool
has_evidence(IdemBlame *blame, const IdemBlameVerdict *v)
{
	const IdemBlameLane *lane = lane_of(blame, v->lane);
	int64		accepted = newest_of_others(&lane->accepted, v->key);
	int64		previous = previous_of(blame, v);

	if (v->first)
		return accepted > newest_of_others(&lane->refused, v->key);
	return previous != 0 && accepted > previous;
}

/* The lane is up: its row has ended. */
static void
end_row(IdemBlameLane *lane)
{
	lane->open = false;
	lane->row = lane->nkeys = 0;
}

/* An event was accepted: its lane is up, and so the target is. */
static void
accept(IdemBlame *blame, const IdemBlameVerdict *v)
{
	IdemBlameLane *whole = &blame->whole;
	IdemBlameLane *lane = lane_of(blame, v->lane);

	note(&whole->accepted, v->key, ++blame->verdicts);
	note(&blame->lanes_accepted, v->lane, blame->verdicts);
	blame->closed |= whole->open || whole->asked || lane->open;
	if (whole->open)
		whole->doubled = Min(whole->doubled + 1, IDEM_BLAME_DOUBLED);
	if (whole->open || whole->asked)
		whole->window = 1;
	else if (whole->window > 0 && ++whole->window >= IDEM_BLAME_RECOVERED)
		whole->window = whole->doubled = 0;
	for (int i = 0; whole->row > 0 && i < blame->nnamed; i++)
		blame->named[i].in_row = false;
	end_row(whole);
	whole->asked = false;
	whole->asks = 0;
	whole->probes = 0;
	if (v->lane == 0)
		return;
	note(&lane->accepted, v->key, blame->verdicts);
	end_row(lane);
}

/* Remember the key among those that were refused in a row. */
static void
note_key(IdemBlameLane *lane, uint64 key)
{
	for (int i = 0; i < lane->nkeys; i++)
	{
		if (lane->keys[i] == key)
			return;
	}
	if (lane->nkeys < IDEM_BLAME_KEYS)
		lane->keys[lane->nkeys++] = key;
}

/* One more in the lane's row of refusals.  Is the row long enough, and are its keys enough? */
static bool
add_to_row(IdemBlameLane *lane, const IdemBlameVerdict *v)
{
	lane->row = Min(lane->row + 1, MAX_ROW);
	note_key(lane, v->key);
	return lane->row >= IDEM_BLAME_ROW << lane->doubled && lane->nkeys >= Min(v->keys, IDEM_BLAME_KEYS);
}

/* Is the row of lane 0 made by enough lanes, or by all that were not open before? */
static bool
is_of_enough_lanes(const IdemBlame *blame)
{
	int			in_row = 0;
	int			others = 0;

	for (int i = 0; i < blame->nnamed; i++)
	{
		in_row += blame->named[i].in_row;
		others += !blame->named[i].in_row && !blame->named[i].open;
	}
	return others == 0 || in_row >= IDEM_BLAME_KEYS;
}

/* An event was refused; its lane, or the target, may be down. */
static void
refuse(IdemBlame *blame, const IdemBlameVerdict *v)
{
	IdemBlameLane *lane = lane_of(blame, v->lane);
	bool		was_open = v->lane > 0 && lane->open;

	note(&blame->whole.refused, v->key, ++blame->verdicts);
	*mark_of(blame, v->key) = blame->verdicts;
	blame->refused_lane = v->lane;
	if (v->lane > 0)
	{
		note(&lane->refused, v->key, blame->verdicts);
		lane->open |= add_to_row(lane, v);
		lane->in_row |= !was_open;
	}
	if (!was_open && add_to_row(&blame->whole, v) && is_of_enough_lanes(blame))
		blame->whole.open = true;
}

/*
 * The target asks to wait.  An event that is asked again while others pass waits by itself,
 * and so do those of a lane that asks again while others pass.
 */
static void
ask(IdemBlame *blame, const IdemBlameVerdict *v)
{
	IdemBlameLane *lane = lane_of(blame, v->lane);

	if ((v->first || newest_of_others(&lane->accepted, v->key) <= previous_of(blame, v)) &&
		(v->lane == 0 || lane->asked_at == 0 || newest_of_others(&blame->lanes_accepted, v->lane) <= lane->asked_at))
	{
		blame->whole.asked = true;
		blame->whole.asks = Min(blame->whole.asks + 1, MAX_ROW);
		blame->whole.window = 1;
	}
	*mark_of(blame, v->key) = lane->asked_at = ++blame->verdicts;
}

bool
idem_blame_judge(IdemBlame *blame, const IdemBlameVerdict *v)
{
	bool		counts = false;

	switch (v->kind)
	{
		case IDEM_BLAME_NOTHING:
			break;
		case IDEM_BLAME_IMPOSSIBLE:
			counts = true;
			break;
		case IDEM_BLAME_ACCEPTED:
			accept(blame, v);
			blame->answered = true;
			break;
		case IDEM_BLAME_REJECTED:
		case IDEM_BLAME_RETRY:
			counts = (has_evidence(blame, v) && !v->names_time) ||
				(v->kind == IDEM_BLAME_REJECTED && v->keys == 1);
			refuse(blame, v);
			blame->answered = true;
			break;
		case IDEM_BLAME_ASKED:
			ask(blame, v);
			blame->answered = true;
			break;
		case IDEM_BLAME_FOUND:
			counts = blame->answered;
			blame->answered = false;
			break;
	}
	return counts;
}

void
idem_blame_answered(IdemBlame *blame)
{
	blame->answered = true;
}

bool
idem_blame_holds(const IdemBlame *blame)
{
	return blame->whole.open || blame->whole.asked;
}

/* So one event that is refused for ever, alone as it is, holds no later event back. */
bool
idem_blame_spares(const IdemBlame *blame)
{
	const IdemBlameLane *whole = &blame->whole;

	return whole->open && !whole->asked && whole->nkeys < IDEM_BLAME_KEYS;
}

/*
 * Behind many bad events in a row, each of a key of its own, good ones would wait for a pause per
 * bad one.  So the probes of the outbox are ever farther apart.  So they are if the target asks to wait
 * again and again: it may have a limit for each key.
 */
int
idem_blame_unseen(const IdemBlame *blame)
{
	const IdemBlameLane *whole = &blame->whole;
	bool		takes_nothing = whole->asked ? whole->asks >= IDEM_BLAME_KEYS : whole->open && !idem_blame_spares(blame);

	return takes_nothing ? UNSEEN << Min(whole->probes, 10) : 0;
}

int
idem_blame_limit(const IdemBlame *blame, int most)
{
	if (idem_blame_holds(blame))
		return 1;
	return blame->whole.window > 0 ? Min(blame->whole.window, most) : most;
}

void
idem_blame_probed(IdemBlame *blame)
{
	blame->whole.probes = Min(blame->whole.probes + 1, MAX_ROW);
}

bool
idem_blame_got_up(IdemBlame *blame)
{
	bool		closed = blame->closed;

	blame->closed = false;
	return closed;
}

int
idem_blame_pause_ms(int probes)
{
	return Min(IDEM_BLAME_MIN_PAUSE_MS << Min(probes, 10), IDEM_BLAME_MAX_PAUSE_MS);
}
