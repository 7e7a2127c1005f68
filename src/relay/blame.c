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
 * 3. Alone.  If all that could be sent has one key, there can be no evidence.
 *    Then a definite no (REJECTED) counts without any, and RETRY never does.
 * 4. Breaker.  It opens after IDEM_BLAME_ROW refusals in a row from
 *    IDEM_BLAME_KEYS keys, or from all keys there are.  Then one event is sent
 *    at a time, each after a pause.  An acceptance closes it: after that so many
 *    events may be in flight as were accepted since, and one.
 * 5. A find.  The program ended with one event alone in flight (stream/hunt.c).
 *    That counts if something has answered since the find before.
 * 6. Impossible: counts, and says nothing of the target.
 * 7. Lanes.  Evidence and breaker belong to a lane.
 * 8. Asked to wait: ASKED is no refusal, and the lane is held like that of an open
 *    breaker; but an event that is asked again while others pass waits by itself.  A RETRY
 *    that names a time never counts; it may concern its event alone, so it holds
 *    the lane only as others like it do.
 * 9. What the errors of a handler are, function/handler.c says.
 *
 * INVARIANT: while nothing is accepted, no refusal counts but by rules 3, 5 and
 * 6, and one of each event whose evidence is older than that.
 *
 * For rule 1 the newest acceptance, and the newest on another key, suffice: they
 * tell for each key when another key's event was accepted last.  The number of
 * an event's previous refusal stands at a place that its key shares with others.
 * It can be too high, and then evidence is lacking that there was; never too
 * low.
 *
 * A crash of the server forgets all this: the next refusal of an event does not
 * count, unless it is alone.
 *
 * MEMORY: the struct, whatever the data.
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

/* A window of so many events is none any more. */
#define MAX_WINDOW 4096

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

/* Where the number of a key's last refusal stands. */
static int64 *
mark_of(IdemBlame *blame, uint64 key)
{
	return &blame->marks[key % IDEM_BLAME_MARKS];
}

/* Rule 1. */
static bool
has_evidence(IdemBlame *blame, const IdemBlameVerdict *v)
{
	const IdemBlameLane *lane = &blame->lanes[v->lane];
	int64		accepted = newest_of_others(&lane->accepted, v->key);
	int64		mark = *mark_of(blame, v->key);

	if (v->first)
		return accepted > newest_of_others(&lane->refused, v->key);
	return mark != 0 && accepted > mark;
}

/* An event was accepted: the target is up. */
static void
accept(IdemBlame *blame, const IdemBlameVerdict *v)
{
	IdemBlameLane *lane = &blame->lanes[v->lane];

	note(&lane->accepted, v->key, ++blame->verdicts);
	if (lane->open || lane->asked)
		lane->window = 1;
	else if (lane->window > 0 && ++lane->window >= MAX_WINDOW)
		lane->window = 0;
	lane->open = lane->asked = false;
	lane->row = lane->nkeys = lane->probes = 0;
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

/* An event was refused; the breaker may open. */
static void
refuse(IdemBlame *blame, const IdemBlameVerdict *v)
{
	IdemBlameLane *lane = &blame->lanes[v->lane];

	note(&lane->refused, v->key, ++blame->verdicts);
	*mark_of(blame, v->key) = blame->verdicts;
	lane->row = Min(lane->row + 1, MAX_ROW);
	note_key(lane, v->key);
	if (lane->row >= IDEM_BLAME_ROW && lane->nkeys >= Min(v->keys, IDEM_BLAME_KEYS))
		lane->open = true;
}

bool
idem_blame_judge(IdemBlame *blame, const IdemBlameVerdict *v)
{
	IdemBlameLane *lane = &blame->lanes[v->lane];
	int64	   *asked = &blame->asked[v->key % IDEM_BLAME_MARKS];
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
			if (v->first || newest_of_others(&lane->accepted, v->key) <= *asked)
			{
				lane->asked = true;
				lane->window = 1;
			}
			*asked = ++blame->verdicts;
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
idem_blame_holds(const IdemBlame *blame, int lane)
{
	return blame->lanes[lane].open || blame->lanes[lane].asked;
}

/* So one event that is refused for ever, alone as it is, holds no later event back. */
bool
idem_blame_spares(const IdemBlame *blame, int lane)
{
	const IdemBlameLane *l = &blame->lanes[lane];

	return l->open && !l->asked && l->nkeys < IDEM_BLAME_KEYS;
}

int
idem_blame_limit(const IdemBlame *blame, int lane, int most)
{
	const IdemBlameLane *l = &blame->lanes[lane];

	if (l->open || l->asked)
		return 1;
	return l->window > 0 ? Min(l->window, most) : most;
}

void
idem_blame_probed(IdemBlame *blame, int lane)
{
	blame->lanes[lane].probes = Min(blame->lanes[lane].probes + 1, MAX_ROW);
}

int
idem_blame_pause_ms(int probes)
{
	return Min(IDEM_BLAME_MIN_PAUSE_MS << Min(probes, 10), IDEM_BLAME_MAX_PAUSE_MS);
}
