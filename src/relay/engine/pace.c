/*-------------------------------------------------------------------------
 *
 * pace.c
 *		How fast a relay may send to a target that asked it to wait.
 *
 * A receiver that allows so many requests a second refuses the others, and a
 * cloud's queue throttles likewise.  blame.c makes no event's fault of it, and
 * holds the lane.  But a window that grows again runs into the same limit in the
 * next second.  So the relay remembers the rate at which events were accepted,
 * and stays below it.
 *
 * - The first time, the rate is 7/8 of what passed in the last second.
 * - Each further refusal, of an event that was sent since the last change, makes it
 *   7/8 of itself, or of what was accepted since then, pauses included, if that is
 *   less; but no less than half of that.  So a target with a large reserve, which
 *   takes a thousand events before it asks for one a second, is understood in a
 *   few steps.
 * - While events wait for their pace, each that is accepted raises it.  The rate
 *   doubles in some seconds far from the one that was refused last, and takes
 *   forty seconds from 7/8 of that to all of it.  So one event of some hundred is
 *   refused, and a limit that is gone is noticed.
 * - A rate beyond MOST_RATE is no limit any more.  Nor is one below LEAST_RATE: a target that refuses
 *   an event although nothing was sent for seconds does not count them all together.  It may have a
 *   limit for each key, which lets those of others pass.
 *
 * A refusal that names a time may concern its event alone: another process has a
 * lease, or a tenant has a limit.  Three in a row, of different keys, count; if the relay has a
 * pace that it waits for, one does, but of a key that was refused so lately.
 *
 * The rate is in memory.  After a restart the target asks again.
 *
 * MEMORY: the struct.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/engine/pace.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "relay/engine/pace.h"

#define LEAST_RATE 0.25
#define MOST_RATE 10000.0

/* The part that is left of a rate that was refused. */
#define LOWERED (7.0 / 8.0)

/* From LOWERED to BEYOND times the known rate it grows e-fold in so many seconds, else in fewer. */
#define BEYOND 1.25
#define SLOW_SECONDS 300.0
#define FAST_SECONDS 10.0

/* Events are sent together for so much of a second, if the rate has as many. */
#define TOGETHER 0.05

/*
 * Of a target that accepted fewer in the last second, asking once says nothing of a rate;
 * asking again soon, with something accepted in between, does.
 */
#define FEW 3
#define FIRST_RATE 1.0
#define NOTED_MS 10000

/* Refusals in a row that name a time. */
#define NAMED_ROW 3

/* Pauses: the longest, that after a refusal of one event perhaps, that without a named time. */
#define MOST_PAUSE_MS 30000
#define NAMED_PAUSE_MS 1000
#define USUAL_PAUSE_MS 1000

/* An answer that has not come by then does not come. */
#define ANSWER_MS 60000

static double
seconds_since(IdemClock then, IdemClock now)
{
	return (now - then) / 1000000.0;
}

/* So many events are sent together. */
static double
portion(const IdemPace *pace)
{
	return Max(1.0, pace->rate * TOGETHER);
}

/* Add the tokens for the time that has passed. */
static void
fill(IdemPace *pace, IdemClock now)
{
	IdemClock	from = Max(pace->filled_at, pace->paused_until);

	if (now <= from)
		return;
	pace->tokens = Min(pace->tokens + seconds_since(from, now) * pace->rate, 2 * portion(pace));
	pace->filled_at = now;
}

int
idem_pace_room(IdemPace *pace, IdemClock now)
{
	if (pace->rate == 0)
		return PG_INT32_MAX;
	if (now < pace->paused_until)
		return 0;
	fill(pace, now);
	return pace->tokens < portion(pace) ? 0 : (int) pace->tokens;
}

IdemClock
idem_pace_next(IdemPace *pace, IdemClock now)
{
	if (idem_pace_room(pace, now) > 0)
		return 0;
	return Max(pace->filled_at, pace->paused_until) + 1000 +
		(IdemClock) ((portion(pace) - pace->tokens) / pace->rate * 1000000);
}

void
idem_pace_sent(IdemPace *pace, IdemClock now, int events)
{
	if (pace->rate == 0)
		return;
	fill(pace, now);

	/* Events that found the bucket full did not wait for their pace. */
	pace->bound = pace->tokens < 2 * portion(pace);
	pace->tokens = Max(pace->tokens - events, -portion(pace));
}

/* Count an accepted event. */
static void
count(IdemPace *pace, IdemClock now)
{
	IdemClock	seconds = (now - pace->second) / 1000000;

	if (seconds > 0)
	{
		pace->last = seconds == 1 ? pace->now : 0;
		pace->now = 0;
		pace->second += seconds * 1000000;
	}
	pace->now++;
	pace->accepted++;
}

/* Events accepted in the last second, about. */
static double
passed(const IdemPace *pace, IdemClock now)
{
	double		age = seconds_since(pace->second, now);

	if (age >= 2)
		return 0;
	return age >= 1 ? pace->now * (2 - age) : pace->now + pace->last * (1 - age);
}

/* The target accepted an event that waited for its pace: a little faster. */
static void
speed_up(IdemPace *pace)
{
	bool		slow = pace->rate >= pace->known * LOWERED && pace->rate < pace->known * BEYOND;
	double		step = 1 / ((slow ? SLOW_SECONDS : FAST_SECONDS) * pace->rate);

	pace->rate *= 1 + Min(step, 1.0);
	if (pace->rate > MOST_RATE)
		pace->rate = pace->known = 0;
}

/* The target refused an event because of the rate. */
static void
slow_down(IdemPace *pace, IdemClock now, int in_flight)
{
	double		since = seconds_since(pace->changed_at, now);
	double		rate = pace->rate;

	if (rate == 0)
		rate = Max(passed(pace, now), FIRST_RATE);
	else
	{
		pace->known = rate;
		if (since >= 1)
			rate = Min(rate, Max(pace->accepted / since, rate / 2));
	}
	pace->rate = rate * LOWERED;
	if (pace->rate < LEAST_RATE)
		pace->rate = pace->known = 0;
	pace->tokens = 0;
	pace->filled_at = pace->changed_at = now;
	pace->accepted = 0;
	pace->before = in_flight;
}

/* Was the key refused with a time lately?  Then it may have a limit of its own. */
static bool
was_named_lately(IdemPace *pace, uint64 key)
{
	for (int i = 0; i < Min(pace->nlately, IDEM_PACE_LATELY); i++)
	{
		if (pace->named_lately[i] == key)
			return true;
	}
	pace->named_lately[pace->nlately++ % IDEM_PACE_LATELY] = key;
	if (pace->nlately == 2 * IDEM_PACE_LATELY)
		pace->nlately = IDEM_PACE_LATELY;
	return false;
}

/* Is this refusal one of the target's, and not of the event alone? */
static bool
concerns_rate(IdemPace *pace, IdemClock now, IdemPaceAnswer answer, uint64 key)
{
	if (answer == IDEM_PACE_NAMED)
	{
		bool		again = was_named_lately(pace, key);

		if (pace->named == 0 || pace->named_key != key)
			pace->named++;
		pace->named_key = key;
		if (pace->named < NAMED_ROW && (again || !(pace->rate > 0 && pace->bound)))
			return false;
	}
	if (pace->rate > 0 || passed(pace, now) >= FEW ||
		(pace->noted_at != 0 && pace->accepted > 0 && now < idem_clock_plus_ms(pace->noted_at, NOTED_MS)))
		return true;
	pace->noted_at = now;
	pace->accepted = 0;
	return false;
}

void
idem_pace_answered(IdemPace *pace, IdemClock now, IdemPaceAnswer answer, uint64 key, int wait_ms, int in_flight)
{
	bool		is_old = pace->before > 0 && now < idem_clock_plus_ms(pace->changed_at, ANSWER_MS);

	pace->before = is_old ? pace->before - 1 : 0;
	if (answer == IDEM_PACE_ACCEPTED)
	{
		count(pace, now);
		pace->named = 0;
		if (pace->rate > 0 && pace->bound && !is_old)
			speed_up(pace);
	}
	else if (answer != IDEM_PACE_OTHER && concerns_rate(pace, now, answer, key))
	{
		int			most = answer == IDEM_PACE_NAMED ? NAMED_PAUSE_MS : MOST_PAUSE_MS;

		if (!is_old)
			slow_down(pace, now, in_flight);
		pace->paused_until = Max(pace->paused_until,
								 idem_clock_plus_ms(now, Min(wait_ms > 0 ? wait_ms : USUAL_PAUSE_MS, most)));
	}
}
