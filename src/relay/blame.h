/*-------------------------------------------------------------------------
 *
 * blame.h
 *		Whose fault a refusal is: the event's, or the target's.
 *
 * A state machine that knows only numbers, and hashes of keys.  A relay reports
 * each verdict on an event, and learns whether the refusal counts against the
 * event, whether the target is down, and how many events it may have in flight.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/blame.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_RELAY_BLAME_H
#define IDEM_RELAY_BLAME_H

/* Different keys whose refusals open the breaker, and refusals in a row. */
#define IDEM_BLAME_KEYS 3
#define IDEM_BLAME_ROW 8

/*
 * Each time that the breaker closes the row is doubled, so often at most, until so many events
 * were accepted since; and that is where the window, how many events may be in flight, ends.
 */
#define IDEM_BLAME_DOUBLED 6
#define IDEM_BLAME_RECOVERED 4096

/* The pause before a probe of a target that is down, in ms. */
#define IDEM_BLAME_MIN_PAUSE_MS 100
#define IDEM_BLAME_MAX_PAUSE_MS 30000

#define IDEM_BLAME_MARKS 64

/*
 * Lanes of a relay.  Lane 0 is all of its target.  Each other lane is a destination that the
 * program names, the first ones each by itself; later ones share these lanes.
 */
#define IDEM_BLAME_LANES 64

/* What the target, or the program, says of an event. */
typedef enum IdemBlameKind
{
	IDEM_BLAME_NOTHING,			/* nobody's word on the event: no answer, a
								 * claim of somebody else, a cancelled query */
	IDEM_BLAME_ACCEPTED,
	IDEM_BLAME_REJECTED,		/* a definite no: HTTP 4xx, a constraint, an
								 * error of a handler */
	IDEM_BLAME_RETRY,			/* not now: HTTP 503, a timeout, a lock */
	IDEM_BLAME_ASKED,			/* the target asks to wait: no refusal */
	IDEM_BLAME_FOUND,			/* the program ended with this event alone in
								 * flight */
	IDEM_BLAME_IMPOSSIBLE		/* found before the event was sent: it can
								 * never be */
} IdemBlameKind;

typedef struct IdemBlameVerdict
{
	IdemBlameKind kind;
	int			lane;			/* of its destination; 0: it has no name */
	uint64		key;			/* hash of the event's key */
	bool		first;			/* the event was never refused before */
	int64		previous;		/* number of the event's previous refusal; 0:
								 * it is not known */
	bool		names_time;		/* RETRY: the target says when to try again */
	int			keys;			/* different keys of the events that could be
								 * sent now, this event's included; as many as
								 * IDEM_BLAME_KEYS if that is not known */
} IdemBlameVerdict;

/* The newest verdict of one kind, and the newest on another key than that one's. */
typedef struct IdemBlameTrace
{
	uint64		key;
	int64		newest;			/* its number; 0: there is none */
	int64		other;			/* number of the newest of another key; 0:
								 * none */
} IdemBlameTrace;

/* A destination that fails by itself: a topic, a path; or all of a relay's target. */
typedef struct IdemBlameLane
{
	uint64		destination;	/* hash of its name; lane 0: none */
	IdemBlameTrace accepted;
	IdemBlameTrace refused;
	int			row;			/* refusals since the last acceptance */
	int			nkeys;			/* different keys of these, as far as counted */
	uint64		keys[IDEM_BLAME_KEYS];
	bool		open;			/* the destination is down */
	bool		in_row;			/* it is part of lane 0's row */
	int64		asked_at;		/* number of the verdict by which it asked to
								 * wait; 0: none */

	/* of lane 0 only: what is sent */
	bool		asked;			/* the target asked to wait */
	int			probes;			/* pauses since then that ended with a verdict */
	int			asks;			/* times in a row that it asked */
	int			window;			/* most events in flight; 0: no limit */
	int			doubled;		/* doublings of the row that opens the breaker */
} IdemBlameLane;

/* Add the key to the n different ones that are there, at most "most"; returns their number. */
static inline int
idem_blame_add_key(uint64 *keys, int n, int most, uint64 key)
{
	for (int i = 0; i < n; i++)
	{
		if (keys[i] == key)
			return n;
	}
	if (n < most)
		keys[n++] = key;
	return n;
}

/* All zero at first. */
typedef struct IdemBlame
{
	int64		verdicts;		/* numbers the verdicts */
	bool		answered;		/* something has answered since the last find */
	bool		closed;			/* a lane that was open has accepted an event */
	int			refused_lane;	/* of the newest refusal */
	IdemBlameTrace lanes_accepted;	/* acceptances by lane, in the place of
									 * the key */
	IdemBlameLane whole;		/* lane 0 */
	IdemBlameLane *named;		/* lanes 1 and on; a copy in shared memory is
								 * of a function relay, which has none */
	int			nnamed;
	int64		marks[IDEM_BLAME_MARKS];	/* by key: number of the last
											 * refusal; 0: none is known */
} IdemBlame;

/*
 * The lane of the destination whose name has this hash; the lanes are kept in cxt.
 */
extern int	idem_blame_lane(IdemBlame *blame, MemoryContext cxt, uint64 destination);

/*
 * Take a verdict.  Does it count against the event?  A refusal's number is "verdicts"
 * afterwards: the caller keeps it with the event, as "previous" of the next one.
 */
extern bool idem_blame_judge(IdemBlame *blame, const IdemBlameVerdict *verdict);

/* A new program is ready: an answer, too. */
extern void idem_blame_answered(IdemBlame *blame);

/*
 * Is the target held: is one event sent at a time, each after a pause?  ..._spares: events
 * of keys that were not refused go on, without the pause.
 */
extern bool idem_blame_holds(const IdemBlame *blame);
extern bool idem_blame_spares(const IdemBlame *blame);

/* How many events may be in flight, at most "most". */
extern int	idem_blame_limit(const IdemBlame *blame, int most);

/*
 * How many events behind that of a probe, which the target is not sent, a relay may pass over:
 * none but where the target takes nothing, and more with each probe.
 */
extern int	idem_blame_unseen(const IdemBlame *blame);

/*
 * A held target has had its pause, and a verdict.  What was in flight when it came to be
 * held is no probe.
 */
extern void idem_blame_probed(IdemBlame *blame);

/* Has a lane, or the target, got up since the last call?  Then all that it refused is due. */
extern bool idem_blame_got_up(IdemBlame *blame);

/* The pause before the next probe of a held target, without jitter. */
extern int	idem_blame_pause_ms(int probes);

#endif							/* IDEM_RELAY_BLAME_H */
