/*-------------------------------------------------------------------------
 *
 * blame_fn.c
 *		A SQL function by which tests run the rules of blame on a random world.
 *
 * The world has events of several keys, one event per key at a time, each for a
 * destination of its key, and a target that is up, down, slow to answer or asks
 * to wait, and that refuses some keys, or all of a destination, whatever it does.  The function keeps each verdict, and judges by
 * the words of the rules: by looking back at all verdicts, where the library
 * keeps a few numbers.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		test/module/blame_fn.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"

#include "compat.h"
#include "relay/blame.h"

PG_FUNCTION_INFO_V1(idem_test_blame_fn);

/* A mood that lasts for so many steps: the target recovers.  Short worlds have it not. */
#define CALM 5
#define CALM_STEPS 5000

typedef struct Past
{
	IdemBlameKind kind;
	int			key;
	bool		was_open;		/* its lane was, before */
}			Past;

typedef struct World
{
	IdemBlame	blame;
	uint64		random;
	int			nkeys;
	int			nlanes;			/* destinations; 0: they have no names */
	bool	   *known;			/* per lane: an answer named it since the
								 * restart */
	Past	   *past;
	int			n;				/* verdicts so far */
	int			began;			/* first verdict that is remembered: those
								 * before came before a restart */
	int		   *refused;		/* per key: index of its event's previous
								 * refusal, or of when it was asked to wait;
								 * -1: none */
	int64	   *previous;		/* per key: the number that the library gave
								 * that; 0: forgotten */
	bool		exact;			/* they are forgotten only with the library's */
	int			fell;			/* index of the verdict at the last find */
	bool		ready;			/* a program was ready since then */
	int			closings;		/* of the breaker, until the target has
								 * recovered */
	int			passed;			/* events accepted since the last one, or
								 * since the target asked to wait */
	int			counted;
	int			opened;
	int			alone;			/* refusals after which a lane was down, and
								 * the target was not */
	int			wrong;			/* answers that the words do not give */
}			World;

static int
choose(World * w, int n)
{
	w->random = w->random * UINT64CONST(6364136223846793005) + UINT64CONST(1442695040888963407);
	return (int) ((w->random >> 33) % n);
}

/* Different hashes, which share places of marks only if there are more keys than places. */
static uint64
hash_of(int key)
{
	return ((uint64) (key + 1) << 32) + key;
}

static bool
is_refusal(IdemBlameKind kind)
{
	return kind == IDEM_BLAME_REJECTED || kind == IDEM_BLAME_RETRY;
}

/* The destination of the key, from 1 on; 0: it has no name. */
static int
lane_of_key(const World * w, int key)
{
	return w->nlanes == 0 ? 0 : 1 + key % w->nlanes;
}

/* Is the lane of that name down?  lane 0: the target as a whole. */
static bool
is_open(const World * w, int lane)
{
	return lane == 0 ? w->blame.whole.open : lane <= w->blame.nnamed && w->blame.named[lane - 1].open;
}

/* The number that the library gave to the destination. */
static int
number_of(const World * w, int lane)
{
	for (int i = 0; i < w->blame.nnamed; i++)
	{
		if (w->blame.named[i].destination == hash_of(lane))
			return i + 1;
	}
	return 0;
}

/* Rule 1, word by word. */
static bool
others_passed(const World * w, int key)
{
	int			since = Max(w->refused[key] + 1, w->began);

	if (w->refused[key] >= 0)
	{
		/*
		 * A refusal before the restart is unknown, unless a key of the same
		 * place was refused since.
		 */
		if (w->refused[key] < w->began && w->nkeys <= IDEM_BLAME_MARKS)
			return false;
		for (int i = since; i < w->n; i++)
		{
			if (w->past[i].kind == IDEM_BLAME_ACCEPTED && w->past[i].key != key &&
				lane_of_key(w, w->past[i].key) == lane_of_key(w, key))
				return true;
		}
		return false;
	}
	for (int i = w->n - 1; i >= w->began; i--)
	{
		if (lane_of_key(w, w->past[i].key) != lane_of_key(w, key))
			continue;
		if (w->past[i].key != key && (is_refusal(w->past[i].kind) || w->past[i].kind == IDEM_BLAME_ACCEPTED))
			return w->past[i].kind == IDEM_BLAME_ACCEPTED;
	}
	return false;
}

/* Rule 5. */
static bool
answered(const World * w)
{
	for (int i = Max(w->fell + 1, w->began); i < w->n; i++)
	{
		if (w->past[i].kind != IDEM_BLAME_NOTHING && w->past[i].kind != IDEM_BLAME_FOUND &&
			w->past[i].kind != IDEM_BLAME_IMPOSSIBLE)
			return true;
	}
	return w->ready;
}

static bool
must_count(const World * w, const IdemBlameVerdict *v, int key)
{
	switch (v->kind)
	{
		case IDEM_BLAME_IMPOSSIBLE:
			return true;
		case IDEM_BLAME_FOUND:
			return answered(w);
		case IDEM_BLAME_REJECTED:
			return v->keys == 1 || others_passed(w, key);
		case IDEM_BLAME_RETRY:
			return others_passed(w, key);
		default:
			return false;
	}
}

/*
 * Rules 4 and 7: is the lane down, after the verdicts so far, of which the last one is v?
 * Lane 0: is all of the target?  Its row has no refusals of lanes that were down already,
 * and has to be of enough lanes, or of all others.
 */
static bool
must_be_open(const World * w, int lane, bool was_open, const IdemBlameVerdict *v)
{
	const		Past *last = &w->past[w->n - 1];
	uint64		keys[IDEM_BLAME_KEYS];
	bool	   *in_row = palloc0(sizeof(bool) * (w->nlanes + 1));
	int			nkeys = 0;
	int			row = 0;
	int			nin_row = 0;
	int			others = 0;

	if (lane > 0 && lane_of_key(w, last->key) != lane)
		return was_open;
	if (v->kind == IDEM_BLAME_ACCEPTED)
		return false;
	if (was_open || !is_refusal(v->kind) || (lane == 0 && last->was_open))
		return was_open;
	for (int i = w->n - 1; i >= w->began; i--)
	{
		const		Past *past = &w->past[i];
		bool		is_new = nkeys < IDEM_BLAME_KEYS;

		if (lane > 0 && lane_of_key(w, past->key) != lane)
			continue;
		if (past->kind == IDEM_BLAME_ACCEPTED)
			break;
		if (!is_refusal(past->kind) || (lane == 0 && past->was_open))
			continue;
		row++;
		in_row[lane_of_key(w, past->key)] = true;
		for (int k = 0; k < nkeys; k++)
			is_new = is_new && keys[k] != hash_of(past->key);
		if (is_new)
			keys[nkeys++] = hash_of(past->key);
	}
	for (int i = 1; lane == 0 && i <= w->nlanes; i++)
	{
		nin_row += in_row[i];
		others += w->known[i] && !in_row[i] && !is_open(w, number_of(w, i));
	}
	pfree(in_row);
	return row >= IDEM_BLAME_ROW << (lane == 0 ? Min(w->closings, IDEM_BLAME_DOUBLED) : 0) && nkeys >= Min(v->keys, IDEM_BLAME_KEYS) &&
		(others == 0 || nin_row >= IDEM_BLAME_KEYS);
}

/* The verdicts on the last one: has the target recovered, and has the breaker closed? */
static void
count_closings(World * w, IdemBlameKind kind, bool was_held, bool was_open)
{
	if (kind != IDEM_BLAME_ACCEPTED)
		return;
	w->closings += was_open;
	w->passed = was_held ? 0 : w->passed + 1;
	if (w->passed == IDEM_BLAME_RECOVERED - 1)
		w->closings = 0;
}

/* What the target answers, in this mood. */
static IdemBlameKind
answer(World * w, int mood, bool bad)
{
	static const IdemBlameKind odd[] = {IDEM_BLAME_NOTHING, IDEM_BLAME_ASKED, IDEM_BLAME_FOUND, IDEM_BLAME_IMPOSSIBLE};

	if (mood == CALM)
		return IDEM_BLAME_ACCEPTED;
	if (choose(w, 40) == 0)
		return odd[choose(w, lengthof(odd))];
	if (mood == 1)
		return choose(w, 2) == 0 ? IDEM_BLAME_RETRY : IDEM_BLAME_REJECTED;
	if (mood == 2)
		return choose(w, 2) == 0 ? IDEM_BLAME_NOTHING : IDEM_BLAME_RETRY;
	if (bad)
		return choose(w, 2) == 0 ? IDEM_BLAME_RETRY : IDEM_BLAME_REJECTED;
	return IDEM_BLAME_ACCEPTED;
}

/* One verdict on the event of this key. */
static void
try_event(World * w, int key, IdemBlameKind kind, int keys)
{
	int			name = lane_of_key(w, key);
	int			lane = name == 0 ? 0 : idem_blame_lane(&w->blame, CurrentMemoryContext, hash_of(name));
	IdemBlameVerdict v = {.kind = kind, .lane = lane, .key = hash_of(key), .first = w->refused[key] < 0,
	.previous = w->previous[key], .keys = keys};
	bool		was_open = w->blame.whole.open;
	bool		was_held = idem_blame_holds(&w->blame);
	bool		lane_was_open = lane > 0 && is_open(w, lane);
	bool		wanted = must_count(w, &v, key);
	bool		counts = idem_blame_judge(&w->blame, &v);

	w->known[name] = true;
	w->past[w->n++] = (Past)
	{
		kind, key, lane_was_open
	};
	w->counted += counts;
	count_closings(w, kind, was_held, was_open);

	/*
	 * Keys that share a place may lack evidence, and never have too much, as
	 * long as nobody knows the number of the event's previous refusal.
	 */
	if (w->nkeys <= IDEM_BLAME_MARKS || (w->exact && (w->refused[key] < 0 || w->refused[key] >= w->began)) ? counts != wanted : counts && !wanted)
		w->wrong++;
	if (w->blame.whole.open != must_be_open(w, 0, was_open, &v) ||
		(lane > 0 && is_open(w, lane) != must_be_open(w, name, lane_was_open, &v)))
		w->wrong++;
	w->opened += (!was_open && w->blame.whole.open) || (!lane_was_open && lane > 0 && is_open(w, lane));
	w->alone += lane > 0 && is_open(w, lane) && !w->blame.whole.open;
	if (kind == IDEM_BLAME_FOUND)
	{
		w->fell = w->n - 1;
		w->ready = false;
	}
	if (is_refusal(kind) || kind == IDEM_BLAME_ASKED)
	{
		w->refused[key] = w->n - 1;
		w->previous[key] = w->exact ? w->blame.verdicts : 0;
	}
	if (kind == IDEM_BLAME_ACCEPTED || kind == IDEM_BLAME_IMPOSSIBLE)
	{
		w->refused[key] = -1;
		w->previous[key] = 0;
	}
}

/* A crash of the server: the relay forgets, the events have been refused all the same. */
static void
forget(World * w)
{
	memset(&w->blame, 0, sizeof(w->blame));
	memset(w->known, 0, sizeof(bool) * (w->nlanes + 1));
	memset(w->previous, 0, sizeof(int64) * w->nkeys);
	w->began = w->n;
	w->closings = w->passed = 0;
	w->fell = w->n - 1;
	w->ready = false;
}

/*
 * test_blame(seed, steps, keys, bad keys, lanes, exact, OUT counted, OUT opened, OUT alone, OUT wrong)
 *
 * The last lane, of several, is down by itself in one mood of the target.
 */
Datum
idem_test_blame_fn(PG_FUNCTION_ARGS)
{
	int			steps = PG_GETARG_INT32(1);
	int			bad = PG_GETARG_INT32(3);
	int			mood = 0;
	int			calm_until = 0;
	World		w = {.random = PG_GETARG_INT32(0), .nkeys = PG_GETARG_INT32(2), .nlanes = PG_GETARG_INT32(4), .exact = PG_GETARG_BOOL(5), .fell = -1};
	TupleDesc	desc;
	Datum		values[4];
	bool		nulls[4] = {false, false, false, false};

	w.past = palloc(sizeof(Past) * steps);
	w.refused = palloc(sizeof(int) * w.nkeys);
	w.previous = palloc0(sizeof(int64) * w.nkeys);
	w.known = palloc0(sizeof(bool) * (w.nlanes + 1));
	for (int i = 0; i < w.nkeys; i++)
		w.refused[i] = -1;
	while (w.n < steps)
	{
		int			key = choose(&w, w.nkeys);

		CHECK_FOR_INTERRUPTS();
		if (mood != CALM ? choose(&w, 30) == 0 : w.n >= calm_until)
			mood = choose(&w, 5);
		if (mood != CALM && w.n > CALM_STEPS && choose(&w, CALM_STEPS) == 0)
		{
			mood = CALM;
			calm_until = w.n + CALM_STEPS;
		}
		if (mood != CALM && choose(&w, 300) == 0)
			forget(&w);
		if (choose(&w, 20) == 0)
		{
			idem_blame_answered(&w.blame);
			w.ready = true;
		}
		try_event(&w, key, answer(&w, mood, key < bad || (mood == 4 && w.nlanes > 1 && lane_of_key(&w, key) == w.nlanes)),
				  Min(w.nkeys, 1 + choose(&w, IDEM_BLAME_KEYS)));
	}
	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "a row is expected");
	values[0] = Int32GetDatum(w.counted);
	values[1] = Int32GetDatum(w.opened);
	values[2] = Int32GetDatum(w.alone);
	values[3] = Int32GetDatum(w.wrong);
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls)));
}
