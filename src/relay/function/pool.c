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
#include "relay/position/position.h"
#include "relay/position/rest.h"
#include "relay/report.h"
#include "relay/slots.h"
#include "relay/witness.h"
#include "shared/fault.h"
#include "shared/txn.h"

/* A function relay in the worker of the database. */
typedef struct IdemDelegate
{
	MemoryContext cxt;
	MemoryContext config_cxt;
	IdemRelayConfig *config;
	IdemRelayEntry *entry;		/* NULL: not taken yet, or stat_relay is full */
	IdemRester	rester;
	IdemWalk	walk;			/* for rows; its positions are not used */
	dlist_node	all_node;		/* in "delegates" */
	dlist_node	node;			/* in "waiting" or "held" */
	bool		waiting;		/* the relay waits for a worker */
	bool		held;			/* a worker has the relay, or is to start */
	bool		barred;			/* its configuration forbade it to run, at the
								 * last look */
	IdemClock	not_before;		/* end of the backoff after a failure */
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
	d->held = true;
	dlist_push_tail(&held, &d->node);
}

/* The slot that named the relay is free again. */
static void
end_hand_over(IdemDelegate *d)
{
	if (!d->held)
		return;
	d->held = false;
	changed = true;
	dlist_delete(&d->node);
}

/* Make the delegate the one that writes the relay's entry. */
static void
take_entry(IdemDelegate *d)
{
	d->entry = idem_relay_entry_take_function(MyDatabaseId, d->config->relay_id);
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

	if (d->entry == NULL)
		return false;
	SpinLockAcquire(&d->entry->mutex);
	kept = d->entry->kept;
	SpinLockRelease(&d->entry->mutex);
	if (kept.failures == 0 && kept.ends == 0)
		return false;
	d->not_before = kept.not_before;
	logged = d->entry->logged;
	idem_report_state(d->entry, d->config->name,
					  logged == IDEM_RELAY_MISCONFIGURED ? logged : IDEM_RELAY_OUTAGE,
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

	if (d->entry == NULL)
		return false;
	SpinLockAcquire(&d->entry->mutex);
	unserved = d->entry->kept.unserved;
	SpinLockRelease(&d->entry->mutex);
	return unserved;
}

/* Somebody has acted on the relay: its next failure counts as the first. */
static void
forget_failures(IdemDelegate *d)
{
	d->not_before = 0;
	if (d->entry == NULL)
		return;
	SpinLockAcquire(&d->entry->mutex);
	d->entry->kept.failures = d->entry->kept.ends = 0;
	SpinLockRelease(&d->entry->mutex);
}

/* Make a delegate. */
static void *
create(MemoryContext parent, IdemRelayConfig *config, MemoryContext config_cxt)
{
	MemoryContext cxt = AllocSetContextCreate(parent, "delegate", ALLOCSET_SMALL_SIZES);
	IdemDelegate *d = MemoryContextAllocZero(cxt, sizeof(*d));

	d->cxt = cxt;
	d->config = config;
	d->config_cxt = config_cxt;
	MemoryContextSetParent(config_cxt, cxt);
	d->walk.fresh = IDEM_FRESH_CONFIRMED;

	dlist_push_tail(&delegates, &d->all_node);

	/*
	 * A function relay's worker may have outlived the former worker of the
	 * database.
	 */
	if (idem_slots_have_function(config->relay_id))
		hand_over(d);
	else
	{
		take_entry(d);
		(void) recall_failures(d);
	}
	return d;
}

/* Let the relay rest no more; true if it rested. */
static bool
end_rest(IdemDelegate *d)
{
	IdemSnap   *done = idem_rest_leave(&d->rester);

	if (done != NULL)
		pfree(done);
	return done != NULL;
}

/*
 * A new configuration ends a relay's rest only if somebody acted on the relay,
 * or if it may not run any more.
 */
static void
configure(void *relay, IdemRelayConfig *config, MemoryContext config_cxt, bool acted)
{
	IdemDelegate *d = relay;
	IdemRelayState state;
	const char *message;

	if (acted || idem_relay_is_barred(config, &state, &message))
		(void) end_rest(d);
	MemoryContextDelete(d->config_cxt);
	d->config = config;
	d->config_cxt = config_cxt;
	MemoryContextSetParent(config_cxt, d->cxt);
	d->rester.config = config;
	d->barred = false;
	if (acted && !d->held)
		forget_failures(d);
}

/* idem_slots_release_functions ends the relay's worker, if it has one. */
static void
destroy(void *relay)
{
	IdemDelegate *d = relay;

	(void) end_rest(d);
	stop_waiting(d);
	end_hand_over(d);
	dlist_delete(&d->all_node);
	idem_relay_entry_forget(MyDatabaseId, d->config->relay_id);
	MemoryContextDelete(d->cxt);
}

/* Let the relay rest at the row's position.  far: see idem_rest_join. */
static void
begin_rest(IdemDelegate *d, const IdemPositionRow *row, bool far)
{
	d->rester.config = d->config;
	d->rester.walk = &d->walk;
	d->rester.due = 0;
	idem_rest_join(&d->rester, row->pos.base, far);
	idem_report_state(d->entry, d->config->name, IDEM_RELAY_IDLE, IDEM_WAIT_EVENTS);
}

/*
 * A relay that was just created or moved does not rest: its handler is tried
 * once.
 */
static void
rest_at(void *relay, const IdemPositionRow *row)
{
	IdemDelegate *d = relay;
	IdemRelayState state;
	const char *message;

	if (idem_sink_idle_timeout_ms == 0 || d->held || d->not_before != 0 || row == NULL ||
		row->kind == IDEM_POSITION_MOVED || row->pos.target != NULL ||
		idem_relay_is_barred(d->config, &state, &message))
		return;
	begin_rest(d, row, true);
}

/*
 * The relay's worker has ended: take the relay back.  The relay rests, even
 * with sink_idle_timeout = 0.  With that setting a worker ends only because
 * other relays wait, and not for want of work.  If its relay did not rest, the
 * relay would ask for a worker again at once, although it may have nothing to
 * do there.
 */
static void
take_back(IdemDelegate *d)
{
	IdemPositionRow *row;

	take_entry(d);
	end_hand_over(d);
	d->not_before = 0;
	if (recall_failures(d))
		return;
	if (was_unserved(d))
	{
		wait_first(d);
		return;
	}
	idem_txn_begin();
	row = idem_position_last(d->config->relay_id, d->config->epoch);
	IDEM_FAULT_POINT("pool-taken-back");
	if (row != NULL && row->pos.target == NULL)
	{
		begin_rest(d, row, false);
		idem_rest_look_at_parked(&d->rester);
	}
	idem_txn_commit(false);
}

/* May the relay run now?  If not, show why. */
static bool
may_run(IdemDelegate *d)
{
	IdemRelayState state;
	const char *message;
	bool		was_barred = d->barred;

	d->barred = idem_relay_is_barred(d->config, &state, &message);
	if (d->barred)
	{
		if (message && !was_barred)
			idem_report_error(d->entry, message);
		idem_report_state(d->entry, d->config->name, state, IDEM_WAIT_OPERATOR);
		return false;
	}
	if (idem_witness_allows())
		return true;
	idem_witness_report(d->entry, d->config->name);
	return false;
}

/*
 * Does a worker have the relay?  The relay goes to a worker between two steps
 * (idem_pool_serve).  The relay comes back inside a step, when its slot is free
 * (take_back).
 */
static bool
is_elsewhere(const void *relay)
{
	const IdemDelegate *d = relay;

	return d->held && idem_slots_have_function(d->config->relay_id);
}

/*
 * Take the relay back if its worker has ended; else see what the relay waits
 * for.
 */
static bool
step(void *relay)
{
	IdemDelegate *d = relay;

	if (is_elsewhere(d))
		return false;
	if (d->held)
		take_back(d);
	if (!may_run(d))
	{
		stop_waiting(d);
		return false;
	}
	if (d->rester.group != NULL)
		idem_report_state(d->entry, d->config->name, IDEM_RELAY_IDLE, IDEM_WAIT_EVENTS);
	else if (idem_clock() >= d->not_before)
		wait_for_worker(d);
	return false;
}

/*
 * A relay with a worker has a step in each turn, to see when its slot is free.
 */
static bool
is_quiet(const void *relay)
{
	const IdemDelegate *d = relay;

	return !d->held && (d->rester.group != NULL || d->barred);
}

/*
 * There is no time for what a wake-up tells: that a worker has ended or is
 * given, and that the witness allows publishing.
 */
static IdemClock
next_time(void *relay)
{
	const IdemDelegate *d = relay;

	if (d->waiting)
		return ask_at;
	if (d->held || d->barred || d->rester.group != NULL || !idem_witness_allows())
		return 0;
	return Max(d->not_before, 1);
}

/*
 * A step failed here, for example when it read the position.  A delegate does
 * not count these failures.  Each is followed by the backoff of the sixth
 * failure in a row (five doublings).
 */
static void
failed(void *relay, int sqlerrcode, const char *message)
{
	IdemDelegate *d = relay;

	stop_waiting(d);
	(void) end_rest(d);
	d->not_before = idem_clock_plus_ms(idem_clock(), idem_relay_backoff_ms(d->config, 5));
	idem_report_error(d->entry, message);
	idem_report_state(d->entry, d->config->name, IDEM_RELAY_OUTAGE, IDEM_WAIT_BACKOFF);
}

/*
 * A delegate does not read the outbox: resting relays share a look (rest.c).
 * What a worker has done shows when the relay is taken back.
 */
const IdemRunnerOps idem_delegate_ops = {
	.create = create,
	.configure = configure,
	.destroy = destroy,
	.rest_at = rest_at,
	.step = step,
	.failed = failed,
	.is_quiet = is_quiet,
	.is_elsewhere = is_elsewhere,
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

		if (d->not_before == 0)
			idem_report_state(d->entry, d->config->name, IDEM_RELAY_STARTING, what);
		else
			idem_report_waiting(d->entry, what);
	}
}

/* Count the owner's relays that have a worker, or are about to have one. */
static int
count_held_by(Oid owner)
{
	dlist_iter	iter;
	int			n = 0;

	dlist_foreach(iter, &held)
		n += dlist_container(IdemDelegate, node, iter.cur)->config->owner == owner;
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
		Oid			owner = dlist_container(IdemDelegate, all_node, iter.cur)->config->owner;

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

		if (count_held_by(d->config->owner) < limit)
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
		answer = idem_slots_give_function(d->config->relay_id, nwaiting);
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
