/*-------------------------------------------------------------------------
 *
 * pool.c
 *		Function relays that have no worker now, and those that wait for one.
 *
 * A handler may take its time, so a function relay with something to do has a
 * process of its own.  A database may have idempotency.max_function_workers of
 * them, and relays take turns.  The worker of the database stands in for each
 * relay without a process: it lets the relay rest (rest.c), and asks for a worker
 * when there is something in the log, a parked event is due, or somebody has
 * acted on the relay.
 *
 * A worker serves one relay, and ends when the relay has had nothing to do for a
 * while, or when others wait: at once if it has nothing to do, else after a second.
 * A process for each turn costs some ten milliseconds, and leaves nothing of one
 * owner's handlers to the next.
 *
 * Invariant: a relay is run by its worker or by none.  It has a worker as long as
 * a slot names it, and a slot is freed after its process has ended.  The relay is
 * then taken back at the position that the log has, and the log is looked at from
 * there: whatever woke the worker at its end is found.
 *
 * Where the database may have more than one worker, an owner's relays never have
 * all of them while other owners have function relays there.
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

/* What the worker of a database has of a function relay. */
typedef struct IdemDelegate
{
	MemoryContext cxt;
	MemoryContext config_cxt;
	IdemRelayConfig *config;
	IdemRelayEntry *entry;		/* NULL: stat_relay is full */
	IdemRester	rester;
	dlist_node	all_node;		/* of all */
	dlist_node	node;			/* of those that wait, or are held */
	bool		waiting;		/* for a worker */
	bool		held;			/* a worker has the relay, or is to start */
	bool		barred;			/* at the last look */
	IdemClock	not_before;		/* its transaction failed: backoff */
} IdemDelegate;

static dlist_head delegates = DLIST_STATIC_INIT(delegates);
static dlist_head waiting = DLIST_STATIC_INIT(waiting);
static int	nwaiting = 0;

/*
 * When to ask again for those that wait, unless something happens before: a relay
 * that was asked to give way may be unable to.
 */
static IdemClock ask_at = 0;
static bool changed = false;	/* who waits or is held, since the last time */

/* Those that a worker has, or is about to have. */
static dlist_head held = DLIST_STATIC_INIT(held);

/* Queue up, behind those that wait already. */
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

/* Its place was taken from it before it had anything of it. */
static void
wait_first(IdemDelegate *d)
{
	d->waiting = true;
	changed = true;
	dlist_push_head(&waiting, &d->node);
	nwaiting++;
}

/* Leave the queue, given a worker or not in need of one. */
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

/* The slot is free again. */
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
 * Has the relay failed, in its transactions or by ending its workers?  Then it waits
 * until its next try, and says so.
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

/* Was its slot freed before a process had it?  Then it waits for the next one. */
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

/* Somebody has acted on it: the next failure is the first. */
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

/* Find the relay's worker, if it outlived the former worker of the database. */
static void *
create(MemoryContext parent, IdemRelayConfig *config, MemoryContext config_cxt)
{
	MemoryContext cxt = AllocSetContextCreate(parent, "delegate", ALLOCSET_SMALL_SIZES);
	IdemDelegate *d = MemoryContextAllocZero(cxt, sizeof(*d));

	d->cxt = cxt;
	d->config = config;
	d->config_cxt = config_cxt;
	MemoryContextSetParent(config_cxt, cxt);

	dlist_push_tail(&delegates, &d->all_node);

	/* A worker may have outlived the one of the database. */
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

/* A relay that rests is not woken by a configuration that nobody acted on. */
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

/* The relay's worker, if any, ends by itself: idem_slots_release_functions. */
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

/* Let the relay rest at the row; far: much may have come since. */
static void
begin_rest(IdemDelegate *d, const IdemPositionRow *row, bool far)
{
	d->rester.config = d->config;
	d->rester.kind = IDEM_POSITION_REACHED;
	d->rester.fresh = IDEM_FRESH_NOT;
	d->rester.due = 0;
	idem_rest_join(&d->rester, row->pos.base, far);
	idem_report_state(d->entry, d->config->name, IDEM_RELAY_IDLE, IDEM_WAIT_EVENTS);
}

/* A relay that was just made or moved does not rest: it is tried once. */
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
 * Its worker is gone: what is the relay to do next?  It rests, whatever
 * sink_idle_timeout says: with 0 a worker does not end by time, and one that ended
 * for others would ask for their place at once, with nothing to do there.
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

/* A relay is given to a worker, and taken from one, between two steps only. */
static bool
is_elsewhere(const void *relay)
{
	const IdemDelegate *d = relay;

	return d->held && idem_slots_have_function(d->config->relay_id);
}

/* Take the relay back if its worker is gone; else see what it waits for. */
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

/* One that is held is looked at in each turn, to see that its slot is free. */
static bool
is_quiet(const void *relay)
{
	const IdemDelegate *d = relay;

	return !d->held && (d->rester.group != NULL || d->barred);
}

/* No time where a wake-up comes: when a worker ends or is given, and at a yes. */
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

/* The relay's turn failed here, e.g. when its position was read. */
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
 * It reads no log of its own: those that rest share a look (rest.c), and what
 * its worker did is read when the relay is taken back.
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

/* Show all that wait as waiting for that; a failed one stays in outage. */
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

/* Relays of the owner that have a worker, or are about to. */
static int
count_held_by(Oid owner)
{
	dlist_iter	iter;
	int			n = 0;

	dlist_foreach(iter, &held)
		n += dlist_container(IdemDelegate, node, iter.cur)->config->owner == owner;
	return n;
}

/* Have relays of this database different owners? */
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
 * The relay that has waited longest.  An owner does not get the last worker while
 * there are relays of others: handlers that take hours would stop all of those.
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
 * Is there a reason to ask again?  To ask is to look at all slots under the lock that
 * all workers take; a turn of the loop is none.
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
	static bool told = false;	/* other databases that some wait here */
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
