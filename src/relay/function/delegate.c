/*-------------------------------------------------------------------------
 *
 * delegate.c
 *		A function relay in the worker of its database: it has no worker of its own now.
 *
 * A handler may take long, so a function relay with something to do has a
 * process of its own.  The worker of the database stands in for each relay
 * without a process: it lets the relay rest (rest.c), and asks for a worker
 * (schedule.c) when the outbox has an event for the relay, a parked event is
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
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/function/delegate.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"

#include "relay/function/function.h"
#include "relay/worker_slots.h"
#include "shared/fault.h"
#include "shared/worker.h"

/*
 * Has the relay failed, in its transactions or by ending its workers?  Then it
 * waits until its next try, and reports that.
 */
static bool
recall_failures(IdemRelay *relay, const IdemFunctionKept *kept)
{
	relay->breaker.fault = kept->breaker.fault;
	if (kept->breaker.failures == 0 && kept->ends.ends == 0)
		return false;
	relay->breaker.not_before = kept->breaker.not_before;
	idem_engine_show_trying(relay, IDEM_RELAY_OUTAGE, IDEM_WAIT_BACKOFF);
	return true;
}

/*
 * Make a delegate.  A function relay's worker may have outlived the former
 * worker of the database.
 */
static void
create(IdemRelay *relay)
{
	IdemFunctionKept kept;

	idem_schedule_add_function(relay);
	if (idem_slots_state(relay->config->relay_id) != IDEM_SLOT_NOT_THERE)
	{
		idem_schedule_worker_given(relay);
		return;
	}
	relay->entry = idem_relay_entry_take(MyDatabaseId, relay->config->relay_id, true);
	kept = idem_relay_entry_kept(relay->entry);
	(void) recall_failures(relay, &kept);
}

/* Somebody has acted on the relay: its next failure counts as the first. */
static void
configure(IdemRelay *relay, const IdemRelayChange *change)
{
	if (change->acted && !relay->away)
		idem_relay_entry_forget_failures(relay->entry);
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
	IdemFunctionKept kept;
	IdemPositionRow *row;

	relay->entry = idem_relay_entry_take(MyDatabaseId, relay->config->relay_id, true);
	idem_schedule_worker_ended(relay);
	relay->breaker.not_before = 0;
	kept = idem_relay_entry_kept(relay->entry);
	if (recall_failures(relay, &kept))
		return;
	if (kept.ends.unserved)
	{
		idem_schedule_ask_worker(relay, true);
		return;
	}
	idem_txn_begin();
	row = idem_position_last(relay->config->relay_id, relay->config->epoch);
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

/* The relay has something to do: wait for a worker. */
static bool
step(IdemRelay *relay)
{
	if (idem_clock() >= relay->breaker.not_before)
		idem_schedule_ask_worker(relay, false);
	return false;
}

/*
 * A turn failed here, for example when it read the position.  A delegate does
 * not count these failures.  Each is followed by the backoff of the sixth
 * failure in a row (five doublings).
 */
static void
failed(IdemRelay *relay, int sqlerrcode, const char *message)
{
	idem_schedule_withdraw(&relay->ticket);
	idem_engine_end_rest(relay);
	relay->breaker.failures = 5;
	idem_engine_open_breaker(relay, IDEM_RELAY_OUTAGE, message, false);
}

/*
 * A delegate does not read the outbox: resting relays share a look (rest.c).
 * What a worker has done shows when the relay is taken back.
 */
const IdemCourier idem_delegate_courier = {
	.size = sizeof(IdemRelay),
	.create = create,
	.configure = configure,
	.step = step,
	.failed = failed,
	.take_back = take_back
};
