/*-------------------------------------------------------------------------
 *
 * blame_fn.c
 *		A SQL function by which tests run the rules of blame on a random world.
 *
 * The world has events of several keys, one event per key at a time, and a
 * target that is up, down, slow to answer or asks to wait, and that refuses
 * some keys whatever it does.  The function keeps each verdict, and judges by
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

typedef struct Past
{
	IdemBlameKind kind;
	int			key;
}			Past;

typedef struct World
{
	IdemBlame	blame;
	uint64		random;
	int			nkeys;
	Past	   *past;
	int			n;				/* verdicts so far */
	int			began;			/* first verdict that is remembered: those
								 * before came before a restart */
	int		   *refused;		/* per key: index of its event's previous
								 * refusal; -1: none */
	int			fell;			/* index of the verdict at the last find */
	bool		ready;			/* a program was ready since then */
	int			counted;
	int			opened;
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
			if (w->past[i].kind == IDEM_BLAME_ACCEPTED && w->past[i].key != key)
				return true;
		}
		return false;
	}
	for (int i = w->n - 1; i >= w->began; i--)
	{
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

/* Rule 4: is the target down, after the verdicts so far? */
static bool
must_be_open(const World * w, bool was_open, const IdemBlameVerdict *v)
{
	uint64		keys[IDEM_BLAME_KEYS];
	int			nkeys = 0;
	int			row = 0;

	if (v->kind == IDEM_BLAME_ACCEPTED)
		return false;
	if (was_open || !is_refusal(v->kind))
		return was_open;
	for (int i = w->n - 1; i >= w->began && w->past[i].kind != IDEM_BLAME_ACCEPTED; i--)
	{
		bool		is_new = is_refusal(w->past[i].kind) && nkeys < IDEM_BLAME_KEYS;

		row += is_refusal(w->past[i].kind);
		for (int k = 0; k < nkeys; k++)
			is_new = is_new && keys[k] != hash_of(w->past[i].key);
		if (is_new)
			keys[nkeys++] = hash_of(w->past[i].key);
	}
	return row >= IDEM_BLAME_ROW && nkeys >= Min(v->keys, IDEM_BLAME_KEYS);
}

/* What the target answers, in this mood. */
static IdemBlameKind
answer(World * w, int mood, bool bad)
{
	static const IdemBlameKind odd[] = {IDEM_BLAME_NOTHING, IDEM_BLAME_ASKED, IDEM_BLAME_FOUND, IDEM_BLAME_IMPOSSIBLE};

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
	IdemBlameVerdict v = {.kind = kind, .key = hash_of(key), .first = w->refused[key] < 0, .keys = keys};
	bool		was_open = w->blame.lanes[0].open;
	bool		wanted = must_count(w, &v, key);
	bool		counts = idem_blame_judge(&w->blame, &v);

	w->past[w->n++] = (Past)
	{
		kind, key
	};
	w->counted += counts;

	/* Keys that share a place may lack evidence, and never have too much. */
	if (w->nkeys <= IDEM_BLAME_MARKS ? counts != wanted : counts && !wanted)
		w->wrong++;
	if (w->blame.lanes[0].open != must_be_open(w, was_open, &v))
		w->wrong++;
	w->opened += !was_open && w->blame.lanes[0].open;
	if (kind == IDEM_BLAME_FOUND)
	{
		w->fell = w->n - 1;
		w->ready = false;
	}
	if (is_refusal(kind))
		w->refused[key] = w->n - 1;
	if (kind == IDEM_BLAME_ACCEPTED || kind == IDEM_BLAME_IMPOSSIBLE)
		w->refused[key] = -1;
}

/* A crash of the server: the relay forgets, the events have been refused all the same. */
static void
forget(World * w)
{
	memset(&w->blame, 0, sizeof(w->blame));
	w->began = w->n;
	w->fell = w->n - 1;
	w->ready = false;
}

/*
 * test_blame(seed, steps, keys, bad keys, OUT counted, OUT opened, OUT wrong)
 */
Datum
idem_test_blame_fn(PG_FUNCTION_ARGS)
{
	int			steps = PG_GETARG_INT32(1);
	int			bad = PG_GETARG_INT32(3);
	int			mood = 0;
	World		w = {.random = PG_GETARG_INT32(0), .nkeys = PG_GETARG_INT32(2), .fell = -1};
	TupleDesc	desc;
	Datum		values[3];
	bool		nulls[3] = {false, false, false};

	w.past = palloc(sizeof(Past) * steps);
	w.refused = palloc(sizeof(int) * w.nkeys);
	for (int i = 0; i < w.nkeys; i++)
		w.refused[i] = -1;
	while (w.n < steps)
	{
		int			key = choose(&w, w.nkeys);

		CHECK_FOR_INTERRUPTS();
		if (choose(&w, 30) == 0)
			mood = choose(&w, 4);
		if (choose(&w, 300) == 0)
			forget(&w);
		if (choose(&w, 20) == 0)
		{
			idem_blame_answered(&w.blame);
			w.ready = true;
		}
		try_event(&w, key, answer(&w, mood, key < bad), Min(w.nkeys, 1 + choose(&w, IDEM_BLAME_KEYS)));
	}
	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "a row is expected");
	values[0] = Int32GetDatum(w.counted);
	values[1] = Int32GetDatum(w.opened);
	values[2] = Int32GetDatum(w.wrong);
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls)));
}
