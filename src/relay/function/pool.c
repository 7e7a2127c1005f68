/*-------------------------------------------------------------------------
 *
 * pool.c
 *		Function relays that have no worker now, and those that wait for one.
 *
 * A handler may take long, so a function relay with something to do has a
 * process of its own.  A database may have idempotency.max_function_workers
 * such processes, and relays take turns.  The worker of the database stands in
 * for each relay without a process: it lets the relay rest (rest.c), and asks
 * for a worker when the outbox has an event for the relay, a parked event is
 * due, or somebody has acted on the relay.
 *
 * A function relay's worker serves one relay.  It ends when the relay has had
 * nothing to do for a while.  If others wait, it ends at once if its relay has
 * nothing to do, else after a second.  A process for each turn costs about 20
 * ms, and passes nothing of one owner's handlers on to the next owner.
 *
 * Invariant: a relay is run by its worker or by nobody.  A relay has a worker
 * as long as a slot names the relay, and a slot is freed after its process has
 * ended.  Then the relay is taken back at the position in the log of positions,
 * and the outbox is looked at from there.  So an event that woke the worker at
 * its end is found.
 *
 * If the database may have more than one worker, the relays of one owner are
 * not given the last worker while other owners have function relays there.
 * Workers that the relays have already are not taken away for that reason.
 *
 * MEMORY: a context per relay.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/function/pool.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "lib/ilist.h"
#include "miscadmin.h"
#include "utils/memutils.h"

#include "relay/function/pool.h"
#include "relay/slots.h"
#include "shared/fault.h"
#include "shared/txn.h"

/* A function relay in the worker of the database. */
typedef struct IdemDelegate
{
	IdemRelay	relay;			/* away: a worker has the relay, or is to
								 * start */
	dlist_node	all_node;		/* in "delegates" */
	dlist_node	node;			/* in "waiting" or "held" */
	bool		waiting;		/* the relay waits for a worker */
} IdemDelegate;

static dlist_head delegates = DLIST_STATIC_INIT(delegates);
static dlist_head waiting = DLIST_STATIC_INIT(waiting);
static int	nwaiting = 0;

/*
 * When to ask again for workers, unless something happens before: a relay that
 * was asked to give way may be unable to.
 */
static IdemClock ask_at = 0;
static bool changed = false;	/* "waiting" or "held" changed since we asked
								 * last */

/* The relays that have a worker, or are about to have one. */
static dlist_head held = DLIST_STATIC_INIT(held);

/* Put the relay into the queue, behind those that wait already. */
static void
wait_for_worker(IdemDelegate *d)
{
	if (d->waiting)
		return;
	d->waiting = true;
	changed = true;
	dlist_push_tail(&waiting, &d->node);
	nwaiting++;
}

/*
 * Put the relay first in the queue: its slot was freed before a process had it.
 */
static void
wait_first(IdemDelegate *d)
{
	d->waiting = true;
	changed = true;
	dlist_push_head(&waiting, &d->node);
	nwaiting++;
}

/* Take the relay out of the queue: it has a worker, or needs none. */
static void
stop_waiting(IdemDelegate *d)
{
	if (!d->waiting)
		return;
	d->waiting = false;
	changed = true;
	dlist_delete(&d->node);
	nwaiting--;
}

/* A slot names the relay: its worker has it from now on. */
static void
hand_over(IdemDelegate *d)
{
	d->relay.away = true;
	dlist_push_tail(&held, &d->node);
}

/* The slot that named the relay is free again. */
static void
end_hand_over(IdemDelegate *d)
{
	if (!d->relay.away)
		return;
	d->relay.away = false;
	changed = true;
	dlist_delete(&d->node);
}

/* Make the delegate the one that writes the relay's entry. */
static void
take_entry(IdemDelegate *d)
{
	d->relay.entry = idem_relay_entry_take_function(MyDatabaseId, d->relay.config->relay_id);
}

/*
 * Has the relay failed, in its transactions or by ending its workers?  Then it
 * waits until its next try, and reports that.
 */
static bool
recall_failures(IdemDelegate *d)
{
	IdemFunctionKept kept;
	IdemRelayState logged;

	if (d->relay.entry == NULL)
		return false;
	SpinLockAcquire(&d->relay.entry->mutex);
	kept = d->relay.entry->kept;
	SpinLockRelease(&d->relay.entry->mutex);
	if (kept.failures == 0 && kept.ends == 0)
		return false;
	d->relay.not_before = kept.not_before;
	logged = d->relay.entry->logged;
	idem_engine_show(&d->relay, logged == IDEM_RELAY_MISCONFIGURED ? logged : IDEM_RELAY_OUTAGE,
					 IDEM_WAIT_BACKOFF);
	return true;
}

/*
 * Was the relay's slot freed before a process had it?  Then the relay waits for
 * the next slot.
 */
static bool
was_unserved(IdemDelegate *d)
{
	bool		unserved;

	if (d->relay.entry == NULL)
		return false;
	SpinLockAcquire(&d->relay.entry->mutex);
	unserved = d->relay.entry->kept.unserved;
	SpinLockRelease(&d->relay.entry->mutex);
	return unserved;
}

/* Make a delegate. */
static void
create(IdemRelay *relay)
{
	IdemDelegate *d = (IdemDelegate *) relay;

	dlist_push_tail(&delegates, &d->all_node);

	/*
	 * A function relay's worker may have outlived the former worker of the
	 * database.
	 */
	if (idem_slots_have_function(relay->config->relay_id))
		hand_over(d);
	else
	{
		take_entry(d);
		(void) recall_failures(d);
	}
}

/* Somebody has acted on the relay: its next failure counts as the first. */
static void
configure(IdemRelay *relay, const IdemRelayChange *change)
{
	if (!change->acted || relay->away || relay->entry == NULL)
		return;
	SpinLockAcquire(&relay->entry->mutex);
	relay->entry->kept.failures = relay->entry->kept.ends = 0;
	SpinLockRelease(&relay->entry->mutex);
}

/* idem_slots_release_functions ends the relay's worker, if it has one. */
static void
destroy(IdemRelay *relay)
{
	IdemDelegate *d = (IdemDelegate *) relay;

	stop_waiting(d);
	end_hand_over(d);
	dlist_delete(&d->all_node);
	idem_relay_entry_forget(MyDatabaseId, relay->config->relay_id);
}

/*
 * The relay's worker has ended: take the relay back.  The relay rests, even
 * with sink_idle_timeout = 0.  With that setting a worker ends only because
 * other relays wait, and not for want of work.  If its relay did not rest, the
 * relay would ask for a worker again at once, although it may have nothing to
 * do there.
 */
static void
take_back(IdemRelay *relay)
{
	IdemDelegate *d = (IdemDelegate *) relay;
	IdemPositionRow *row;

	take_entry(d);
	end_hand_over(d);
	d->relay.not_before = 0;
	if (recall_failures(d))
		return;
	if (was_unserved(d))
	{
		wait_first(d);
		return;
	}
	idem_txn_begin();
	row = idem_position_last(d->relay.config->relay_id, d->relay.config->epoch);
	IDEM_FAULT_POINT("pool-taken-back");
	if (row != NULL && row->pos.target == NULL)
	{
		relay->rester.due = 0;
		idem_walk_stand(&relay->walk, &row->pos);
		idem_engine_rest(relay, false);
		idem_rest_look_at_parked(&relay->rester);
	}
	idem_txn_commit(false);
}

/* The relay must not run, so it waits for no worker. */
static bool
hold(IdemRelay *relay, IdemRelayState state)
{
	stop_waiting((IdemDelegate *) relay);
	return true;
}

/* The relay has something to do: wait for a worker. */
static bool
step(IdemRelay *relay)
{
	if (idem_clock() >= relay->not_before)
		wait_for_worker((IdemDelegate *) relay);
	return false;
}

/*
 * There is no time for what a wake-up tells: that a worker has ended or is
 * given, and that the witness allows publishing.
 */
static IdemClock
next_time(IdemRelay *relay)
{
	return ((const IdemDelegate *) relay)->waiting ? ask_at : idem_engine_run_time(relay);
}

/*
 * A turn failed here, for example when it read the position.  A delegate does
 * not count these failures.  Each is followed by the backoff of the sixth
 * failure in a row (five doublings).
 */
static void
failed(IdemRelay *relay, int sqlerrcode, const char *message)
{
	stop_waiting((IdemDelegate *) relay);
	idem_engine_end_rest(relay);
	relay->failures = 5;
	idem_engine_open_breaker(relay, IDEM_RELAY_OUTAGE, message);
}

/*
 * A delegate does not read the outbox: resting relays share a look (rest.c).
 * What a worker has done shows when the relay is taken back.
 */
const IdemCourier idem_delegate_courier = {
	.size = sizeof(IdemDelegate),
	.create = create,
	.configure = configure,
	.destroy = destroy,
	.hold = hold,
	.step = step,
	.failed = failed,
	.take_back = take_back,
	.next_time = next_time
};

/*
 * Report what the waiting relays wait for; a relay that failed stays in outage.
 */
static void
report_waiting(IdemRelayWait what)
{
	dlist_iter	iter;

	dlist_foreach(iter, &waiting)
	{
		IdemDelegate *d = dlist_container(IdemDelegate, node, iter.cur);

		if (d->relay.not_before == 0)
			idem_engine_show(&d->relay, IDEM_RELAY_STARTING, what);
		else
			idem_report_waiting(d->relay.entry, what);
	}
}

/* Count the owner's relays that have a worker, or are about to have one. */
static int
count_held_by(Oid owner)
{
	dlist_iter	iter;
	int			n = 0;

	dlist_foreach(iter, &held)
		n += dlist_container(IdemDelegate, node, iter.cur)->relay.config->owner == owner;
	return n;
}

/* Do the function relays of this database have different owners? */
static bool
owners_differ(void)
{
	dlist_iter	iter;
	Oid			first = InvalidOid;

	dlist_foreach(iter, &delegates)
	{
		Oid			owner = dlist_container(IdemDelegate, all_node, iter.cur)->relay.config->owner;

		if (!OidIsValid(first))
			first = owner;
		else if (owner != first)
			return true;
	}
	return false;
}

/*
 * Choose the relay that has waited longest.  An owner does not get the last
 * worker while other owners have relays: handlers that take hours would stop
 * all of those.
 */
static IdemDelegate *
choose_next(void)
{
	int			limit = idem_max_function_workers;
	dlist_iter	iter;

	if (limit > 1 && owners_differ())
		limit--;
	dlist_foreach(iter, &waiting)
	{
		IdemDelegate *d = dlist_container(IdemDelegate, node, iter.cur);

		if (count_held_by(d->relay.config->owner) < limit)
			return d;
	}
	return NULL;
}

/*
 * Is there a reason to ask again for workers?  Asking looks at all slots, under
 * the lock that all workers take; a turn of the loop alone is no reason.
 */
static bool
must_ask(void)
{
	static uint32 news_seen = 0;
	uint32		news = pg_atomic_read_u32(&idem_relay_shmem->news);
	bool		must = changed || news != news_seen || idem_clock() >= ask_at;

	news_seen = news;
	changed = false;
	return must;
}

void
idem_pool_serve(void)
{
	static bool told = false;	/* other databases know that relays wait here */
	IdemSlotAnswer answer = IDEM_SLOT_GIVEN;
	IdemDelegate *d = NULL;

	if (!must_ask())
		return;
	while (nwaiting > 0)
	{
		d = choose_next();
		if (d == NULL)
		{
			idem_slots_ask_functions_to_yield(nwaiting);
			break;
		}
		told = true;
		answer = idem_slots_give_function(d->relay.config->relay_id, nwaiting);
		if (answer != IDEM_SLOT_GIVEN)
			break;
		stop_waiting(d);
		hand_over(d);
		IDEM_FAULT_POINT("pool-given");
	}
	if (told && (nwaiting == 0 || d == NULL))
	{
		idem_slots_wait_no_more();
		told = false;
	}
	ask_at = idem_clock_plus_ms(idem_clock(), IDEM_SLICE_MS);
	if (nwaiting > 0)
		report_waiting(answer == IDEM_SLOT_NO_PROCESS ? IDEM_WAIT_PROCESS :
					   answer == IDEM_SLOT_NONE_LEFT ? IDEM_WAIT_SLOT : IDEM_WAIT_WORKER);
}
