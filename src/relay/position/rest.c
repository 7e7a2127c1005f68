/*-------------------------------------------------------------------------
 *
 * rest.c
 *		Relays that have nothing to send: one look at the outbox for all of them.
 *
 * A resting relay has no program and no transactions of its own.  Relays that
 * stand at the same snapshot form a group.  After a wake-up the worker takes
 * one snapshot.  For each group it reads the difference between the group's
 * snapshot and the new one, and notes which of the aggregate types that members
 * want occur there.  Members that want one of these types rise, and stand where
 * the group stood.  The other members pass the difference together: the new
 * snapshot becomes the group's.  All groups of a round end at one snapshot, so
 * they become one group.
 *
 * Invariant: no group is past an event that a member wants.  Every wake-up
 * begins a round.  The snapshot of a round is taken after the flag "wake" of
 * the worker's slot was cleared (take_wakeup in worker.c).  A relay that joins
 * begins a round, too: the round looks at what committed since the relay's own
 * last look.  Members want what they want by the configuration that the round's
 * snapshot sees (difference_end.c): if the worker has not read that yet, the round ends
 * before it, and the new configuration begins another round.
 *
 * Types are compared by 64-bit hashes.  If two collide, a relay rises in vain.
 *
 * A round is done in parts, so that other relays have their turn while a large
 * difference is read.  A look that fails is repeated.  After several failures
 * in a row all members rise, so that each reads for itself, and fails in view.
 * While somebody has a table of the outbox locked, the members go on resting:
 * none of them could read it, and each would start its program in vain.
 *
 * What a crash leaves: the log of positions lacks what was passed since the
 * last upkeep.  The same differences are read once more.
 *
 * MEMORY: a snapshot per group, and a hash table of the types that members
 * want.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/position/rest.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "common/hashfn.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"

#include "outbox/reader.h"
#include "outbox/segment.h"
#include "relay/position/parked.h"
#include "relay/position/rest.h"
#include "relay/difference_end.h"
#include "shared/fault.h"
#include "shared/spi.h"
#include "shared/worker.h"

/* Events read in one part of a round. */
#define PART_EVENTS 5000

/* After so many failed looks in a row the relays look for themselves. */
#define MAX_FAILURES 3
#define RETRY_MS 1000

struct IdemRestGroup
{
	dlist_node	node;
	IdemSnap   *base;			/* the members have passed all that it sees */
	bool		written;		/* the last row of each member has this base */
	bool		pending;		/* still to be looked at in this round */
	bool		catching_up;	/* there may be ticks at which to cut the
								 * difference */
	dlist_head	members;
	int			nmembers;		/* with those that rose and were not taken yet */
};

/* An aggregate type that some member wants. */
typedef struct WantedType
{
	uint64		hash;			/* key */
	int			members;
	uint32		found;			/* number of the last look that found it */
} WantedType;

int			idem_sink_idle_timeout_ms = 60000;

static MemoryContext rest_cxt = NULL;
static dlist_head groups = DLIST_STATIC_INIT(groups);
static dlist_head risen = DLIST_STATIC_INIT(risen);
static HTAB *wanted = NULL;
static IdemReader *reader = NULL;

static bool woken = false;
static bool in_round = false;
static IdemSnap *round_target = NULL;	/* where all groups of the round end */
static IdemRestGroup *current = NULL;	/* group that is being looked at */
static IdemPosition at;			/* how far the look at that group is */
static uint32 look_no = 0;		/* number of the current look */
static bool found_any = false;	/* the current look found an event */
static bool found_new = false;	/* something new since members were asked */
static int	failures = 0;
static IdemClock retry_at = 0;
static IdemClock next_due = 0;
static int	nresters = 0;

static void
init(void)
{
	HASHCTL		ctl = {.keysize = sizeof(uint64), .entrysize = sizeof(WantedType)};

	if (rest_cxt != NULL)
		return;
	rest_cxt = AllocSetContextCreate(TopMemoryContext, "resting relays", ALLOCSET_DEFAULT_SIZES);
	ctl.hcxt = rest_cxt;
	wanted = hash_create("wanted types", 256, &ctl, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	reader = idem_reader_create(rest_cxt);
}

static uint64
type_hash(const char *type, int len)
{
	return hash_bytes_extended((const unsigned char *) type, len, 0);
}

/* Count the relay's types in (1) or out (-1). */
static void
count_types(const IdemRelayConfig *config, int change)
{
	ListCell   *lc;

	foreach(lc, config->aggregate_types)
	{
		const char *type = lfirst(lc);
		uint64		hash = type_hash(type, strlen(type));
		bool		found;
		WantedType *w = hash_search(wanted, &hash, HASH_ENTER, &found);

		if (!found)
		{
			w->members = 0;
			w->found = 0;
		}
		w->members += change;
		if (w->members == 0)
			(void) hash_search(wanted, &hash, HASH_REMOVE, NULL);
	}
}

static IdemRestGroup *
make_group(const IdemSnap *base)
{
	IdemRestGroup *group = MemoryContextAllocZero(rest_cxt, sizeof(*group));

	idem_snap_assign(rest_cxt, &group->base, base);
	dlist_init(&group->members);
	dlist_push_tail(&groups, &group->node);
	return group;
}

/*
 * Find or make a group at the snapshot.  In a round, an existing group may
 * have been looked at in part, so a new group is made.
 */
static IdemRestGroup *
group_at(const IdemSnap *base)
{
	dlist_iter	iter;

	if (!in_round)
	{
		dlist_foreach(iter, &groups)
		{
			IdemRestGroup *group = dlist_container(IdemRestGroup, node, iter.cur);

			if (idem_snap_equal(group->base, base))
				return group;
		}
	}
	return make_group(base);
}

void
idem_rest_join(IdemRester *rester, const IdemSnap *base, bool far)
{
	IdemRestGroup *group;

	Assert(rester->group == NULL);
	init();
	group = group_at(base);
	group->written = false;
	group->catching_up |= far;
	dlist_push_tail(&group->members, &rester->node);
	group->nmembers++;
	rester->group = group;
	count_types(rester->config, 1);
	next_due = idem_clock_earlier(next_due, rester->due);
	nresters++;
	woken = true;
}

static void
free_group(IdemRestGroup *group)
{
	if (current == group)
		current = NULL;
	dlist_delete(&group->node);
	pfree(group->base);
	pfree(group);
}

IdemSnap *
idem_rest_leave(IdemRester *rester)
{
	IdemRestGroup *group = rester->group;
	IdemSnap   *base;

	if (group == NULL)
		return NULL;
	base = idem_snap_copy(group->base);
	dlist_delete(&rester->node);
	rester->group = NULL;
	count_types(rester->config, -1);
	nresters--;
	if (--group->nmembers == 0)
		free_group(group);
	return base;
}

/*
 * The relay rises: it leaves the list of members, and belongs to its group
 * until taken.
 */
static void
rise(IdemRester *rester)
{
	dlist_delete(&rester->node);
	dlist_push_tail(&risen, &rester->node);
}

IdemRester *
idem_rest_take_risen(IdemSnap **base)
{
	IdemRester *rester;

	if (dlist_is_empty(&risen))
		return NULL;
	rester = dlist_head_element(IdemRester, node, &risen);
	*base = idem_rest_leave(rester);
	return rester;
}

void
idem_rest_woken(void)
{
	woken = true;
}

/* Does the relay want a type that the current look has found? */
static bool
wants_found(const IdemRelayConfig *config)
{
	ListCell   *lc;

	if (config->aggregate_types == NIL)
		return found_any;
	foreach(lc, config->aggregate_types)
	{
		const char *type = lfirst(lc);
		uint64		hash = type_hash(type, strlen(type));
		const WantedType *w = hash_search(wanted, &hash, HASH_FIND, NULL);

		if (w != NULL && w->found == look_no)
			return true;
	}
	return false;
}

/* Let the members rise that want a type which the look has found. */
static void
ask_members(IdemRestGroup *group)
{
	dlist_mutable_iter iter;

	if (!found_new)
		return;
	found_new = false;
	dlist_foreach_modify(iter, &group->members)
	{
		IdemRester *rester = dlist_container(IdemRester, node, iter.cur);

		if (wants_found(rester->config))
			rise(rester);
	}
}

/* Move the members, but those that rose, to another group. */
static void
move_members(IdemRestGroup *from, IdemRestGroup *to)
{
	while (!dlist_is_empty(&from->members))
	{
		IdemRester *rester = dlist_head_element(IdemRester, node, &from->members);

		dlist_delete(&rester->node);
		dlist_push_tail(&to->members, &rester->node);
		rester->group = to;
		to->nmembers++;
		from->nmembers--;
	}
}

/*
 * Relays that rose stand where the group stood before, and may still have to be
 * taken.  So the other members move to a group of their own, which is returned;
 * NULL: all rose.
 */
static IdemRestGroup *
split_risen(IdemRestGroup *group)
{
	IdemRestGroup *rest;
	dlist_iter	iter;
	int			n = 0;

	dlist_foreach(iter, &risen)
	{
		if (dlist_container(IdemRester, node, iter.cur)->group == group)
			n++;
	}
	if (n == 0)
		return group;
	if (n == group->nmembers)
		return NULL;
	rest = make_group(group->base);
	rest->written = group->written;
	move_members(group, rest);
	return rest;
}

/* Merge the group with another one at the same snapshot, if there is one. */
static void
merge(IdemRestGroup *group)
{
	dlist_iter	giter;

	dlist_foreach(giter, &groups)
	{
		IdemRestGroup *other = dlist_container(IdemRestGroup, node, giter.cur);

		if (other == group || other == current || other->pending ||
			!idem_snap_equal(other->base, group->base))
			continue;
		if (other->nmembers > group->nmembers)
		{
			IdemRestGroup *larger = other;

			other = group;
			group = larger;
		}
		move_members(other, group);
		group->written &= other->written;
		group->catching_up |= other->catching_up;

		/* The last member that rose frees its group when it is taken. */
		if (other->nmembers == 0)
			free_group(other);
		return;
	}
}

/*
 * The group has passed the difference up to "to".  whole: that is the end of
 * the round.
 */
static void
finish_look(IdemRestGroup *group, const IdemSnap *to, bool whole)
{
	bool		catching_up = group->catching_up;

	current = NULL;
	group->pending = false;
	group = split_risen(group);
	if (group == NULL)
		return;
	if (!idem_snap_equal(group->base, to))
	{
		idem_snap_assign(rest_cxt, &group->base, to);
		group->written = false;
	}
	group->catching_up = catching_up && !whole;
	group->pending = !whole;
	if (whole)
		merge(group);
}

/*
 * "woken" is cleared last, so that it outlives an error.  Only this process
 * sets "woken", so nothing is lost between the snapshot and here.
 */
static void
begin_round(void)
{
	bool		newest;
	const IdemSnap *target = idem_difference_take(&newest);
	dlist_iter	iter;

	IDEM_FAULT_POINT("rest-round");
	idem_snap_assign(rest_cxt, &round_target, target);
	dlist_foreach(iter, &groups)
	{
		IdemRestGroup *group = dlist_container(IdemRestGroup, node, iter.cur);

		group->pending = !idem_position_sees_more(group->base, round_target);
	}
	in_round = true;
	woken = false;
}

/* The next group to look at; NULL: the round is over. */
static IdemRestGroup *
next_group(void)
{
	dlist_iter	iter;

	if (current != NULL)
		return current;
	dlist_foreach(iter, &groups)
	{
		IdemRestGroup *group = dlist_container(IdemRestGroup, node, iter.cur);

		if (group->pending && group->nmembers > 0)
			return group;
	}
	return NULL;
}

/*
 * Begin to look at what follows the group's snapshot.  A long backlog is cut at
 * the ticks that were taken while it grew, so that its events need no sorting.
 */
static void
begin_look(IdemRestGroup *group)
{
	const IdemSnap *target = round_target;

	if (group->catching_up)
	{
		IdemPositionRow *tick = idem_position_tick_after(group->base);

		if (tick != NULL && idem_position_sees_more(round_target, tick->pos.base))
			target = tick->pos.base;
	}
	idem_snap_assign(rest_cxt, &at.target, target);
	at.base = group->base;
	at.seq = 0;
	look_no++;
	found_any = found_new = false;
	current = group;
}

/* Note that an event was found, and its type if a member wants that type. */
static void
note_event(const IdemEvent *event)
{
	uint64		hash = type_hash(event->aggregate_type.data, event->aggregate_type.len);
	WantedType *w = hash_search(wanted, &hash, HASH_FIND, NULL);

	if (!found_any)
		found_any = found_new = true;
	if (w != NULL && w->found != look_no)
	{
		w->found = look_no;
		found_new = true;
	}
}

/* Read a part of the difference; true at its end. */
static bool
read_part(int *budget)
{
	IdemEvent	event;
	bool		ended = false;

	if (idem_snap_equal(at.base, at.target))
		return true;
	idem_reader_seek(reader, &at);
	while (*budget > 0 && !ended)
	{
		CHECK_FOR_INTERRUPTS();
		(*budget)--;
		ended = !idem_reader_next(reader, &event);
		if (!ended)
		{
			at.seq = event.seq;
			note_event(&event);
		}
	}
	idem_reader_suspend(reader);
	return ended;
}

/* Do a part of the round.  In a transaction. */
static void
look(void)
{
	int			budget = PART_EVENTS;
	IdemRestGroup *group;

	while (budget > 0 && (group = next_group()) != NULL)
	{
		bool		ended;

		if (group != current)
		{
			begin_look(group);
			budget -= 100;		/* a price for opening what is read */
		}
		ended = read_part(&budget);
		ask_members(group);
		if (ended)
			finish_look(group, at.target, idem_snap_equal(at.target, round_target));
	}
	in_round = next_group() != NULL;
}

/* Let the relays rise whose parked events are due; or all, since nobody can look for them. */
static void
wake(bool all)
{
	IdemClock	now = idem_clock();
	dlist_iter	giter;
	dlist_mutable_iter iter;

	next_due = 0;
	dlist_foreach(giter, &groups)
	{
		IdemRestGroup *group = dlist_container(IdemRestGroup, node, giter.cur);

		dlist_foreach_modify(iter, &group->members)
		{
			IdemRester *rester = dlist_container(IdemRester, node, iter.cur);

			if (all || (rester->due != 0 && rester->due <= now))
				rise(rester);
			else
				next_due = idem_clock_earlier(next_due, rester->due);
		}
	}
}

bool
idem_rest_look(void)
{
	if (nresters == 0)
		return false;
	if (next_due != 0 && idem_clock() >= next_due)
		wake(false);
	if ((!woken && !in_round) || idem_clock() < retry_at)
		return false;
	idem_txn_begin();
	if (!in_round)
		begin_round();
	look();
	idem_txn_commit(false);
	failures = 0;
	retry_at = 0;
	return in_round;
}

void
idem_rest_reset(int sqlerrcode)
{
	if (reader != NULL)
		idem_reader_reset(reader);
	if (!in_round && !woken)
		return;

	/* The group being looked at has not moved: look at it again. */
	current = NULL;
	in_round = false;
	woken = true;
	retry_at = idem_clock_plus_ms(idem_clock(), RETRY_MS);

	/*
	 * A locked table is locked for each relay, too: to rise would not help.
	 */
	if (sqlerrcode != ERRCODE_LOCK_NOT_AVAILABLE && ++failures >= MAX_FAILURES)
		wake(true);
}

/* List the one relay, or all that rest. */
static int
list_resters(IdemRester *only, IdemRester **resters)
{
	int			n = 0;
	dlist_iter	giter;
	dlist_iter	iter;

	resters[0] = only;
	if (only != NULL)
		return 1;
	dlist_foreach(giter, &groups)
	{
		dlist_foreach(iter, &dlist_container(IdemRestGroup, node, giter.cur)->members)
			resters[n++] = dlist_container(IdemRester, node, iter.cur);
	}
	return n;
}

/*
 * One statement for all that rest.  An event behind another event of its key
 * waits for that event (parked_index.c), so only the first event of a key
 * counts.  A first event whose state is "waiting" waits for nothing any more:
 * it has no time, and is due now.  So is a blocked key without a parked event.  Each table
 * is read once or twice, however many keys there are.  The old times count until the
 * statement has succeeded.
 */
void
idem_rest_look_at_parked(IdemRester *only)
{
	Oid			types[1] = {INT4ARRAYOID};
	Datum		values[1];
	Datum	   *ids = palloc(sizeof(Datum) * (nresters + 1));
	IdemRester **resters = palloc(sizeof(IdemRester *) * (nresters + 1));
	int			n = list_resters(only, resters);
	uint64		found;

	if (n == 0)
		return;
	for (int i = 0; i < n; i++)
		ids[i] = Int32GetDatum(resters[i]->config->relay_id);
	values[0] = PointerGetDatum(construct_array(ids, n, INT4OID, sizeof(int32), true, TYPALIGN_INT));
	SPI_connect();
	found = idem_spi_run("SELECT p.relay_id, pg_catalog.min(GREATEST(0, pg_catalog.ceil(1000 *"
						 "  EXTRACT(epoch FROM CASE WHEN p.next_attempt_at > pg_catalog.statement_timestamp()"
						 "   THEN LEAST(p.next_attempt_at, pg_catalog.statement_timestamp() + '366 days')"
						 "   - pg_catalog.statement_timestamp() END)))::bigint)"
						 " FROM (SELECT p.relay_id, p.state, p.next_attempt_at, r.ordering = 'key' AND p.seq >"
						 "   pg_catalog.min(p.seq) OVER (PARTITION BY p.relay_id, p.aggregate_type, p.aggregate_id) AS waits"
						 "  FROM %s.relay_parked p JOIN %s.relays r USING (relay_id)"
						 "  WHERE p.relay_id = ANY ($1) AND (p.state <> 'dead' OR r.on_dead <> 'skip')) p"
						 " WHERE p.state <> 'dead' AND NOT p.waits GROUP BY p.relay_id"
						 " UNION ALL SELECT DISTINCT f.relay_id, 0 FROM ("
						 "  SELECT relay_id, aggregate_type, aggregate_id FROM %s.relay_blocked WHERE relay_id = ANY ($1)"
						 "  EXCEPT SELECT q.relay_id, q.aggregate_type, q.aggregate_id"
						 "   FROM %s.relay_parked q JOIN %s.relays r USING (relay_id)"
						 "   WHERE q.relay_id = ANY ($1) AND r.ordering = 'key' AND (q.state <> 'dead' OR r.on_dead <> 'skip')) f",
						 1, types, values, NULL);
	for (int i = 0; i < n; i++)
		resters[i]->due = 0;
	if (only == NULL)
		next_due = 0;
	for (uint64 i = 0; i < found; i++)
	{
		int			relay_id = DatumGetInt32(idem_spi_value(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 1));
		int64		ms = DatumGetInt64(idem_spi_value(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 2));

		for (int j = 0; j < n; j++)
		{
			if (resters[j]->config->relay_id != relay_id)
				continue;
			resters[j]->due = idem_clock_plus_ms(idem_clock(), ms);
			next_due = idem_clock_earlier(next_due, resters[j]->due);
		}
	}
	SPI_finish();
}

IdemClock
idem_rest_next_time(void)
{
	IdemClock	t = woken || in_round ? Max(retry_at, 1) : 0;

	if (nresters == 0)
		return 0;
	if (!dlist_is_empty(&risen))
		return 1;
	return idem_clock_earlier(t, next_due);
}

void
idem_rest_persist(void)
{
	IdemPositionRow *rows = palloc(sizeof(*rows) * (nresters + 1));
	IdemRester **resters = palloc(sizeof(IdemRester *) * (nresters + 1));
	int			nlisted = list_resters(NULL, resters);
	int			n = 0;

	for (int i = 0; i < nlisted; i++)
	{
		const IdemRester *r = resters[i];
		IdemPosition pos = {r->group->base, NULL, 0};

		if (!r->group->written)
			rows[n++] = idem_walk_row(r->walk, r->config, idem_walk_kind(r->walk), &pos);
	}
	if (n > 0)
	{
		idem_txn_begin();
		idem_position_append_all(rows, n);
		IDEM_FAULT_POINT("rest-persist");
		idem_txn_commit(true);
		for (int i = 0; i < nlisted; i++)
			resters[i]->group->written = true;
	}
	pfree(resters);
	pfree(rows);
}
