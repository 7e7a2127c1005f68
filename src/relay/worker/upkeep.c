/*-------------------------------------------------------------------------
 *
 * upkeep.c
 *		Work of a database's worker for all relays of the database.
 *
 * Each step is a transaction of its own.  If a step fails, e.g. for want of
 * disk space, the steps before it stay done, and the steps after it wait for
 * the next run.
 *
 * MEMORY: three lists of relay ids and a snapshot in TopMemoryContext.  All other memory is in
 * the transaction's context, or in the caller's, which each turn of its loop
 * resets.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/worker/upkeep.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/memutils.h"

#include "outbox/reader.h"
#include "outbox/segment.h"
#include "relay/config.h"
#include "relay/position/position.h"
#include "relay/position/retention.h"
#include "relay/worker/workers.h"
#include "relay/worker_slots.h"
#include "shared/catalog.h"
#include "shared/fault.h"
#include "shared/spi.h"
#include "shared/worker.h"
#include "store/pack.h"

static IdemRelRef relays_ref = IDEM_RELREF("relays");

/*
 * The worker's loop turns twice for an event that comes alone, and a look takes
 * a transaction: as much time as a tenth of sending the event.
 */
#define TICK_LOOK_MS	10

static int64 last_tick_seq = -1;
static IdemClock tick_look_at = 0;

/*
 * Relay ids, in TopMemoryContext: of the last look at the configuration, and
 * of relays dropped since.
 */
static List *known = NIL;
static List *dropped = NIL;

/*
 * Does "dropped" include the relays that were dropped before this process's
 * first look?
 */
static bool dropped_before_known = false;

/* Ids of relays whose owner was renamed since the row noted the name. */
static List *renamed = NIL;

/*
 * Each relay that can has moved past the transactions that this snapshot sees, or is
 * about to; NULL: past none.  In TopMemoryContext.
 */
static IdemSnap *woken_past = NULL;

void
idem_upkeep_note_relays(List *configs)
{
	MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);
	List	   *now = idem_relay_ids(configs);
	ListCell   *lc;

	foreach(lc, known)
	{
		if (!list_member_int(now, lfirst_int(lc)))
			dropped = list_append_unique_int(dropped, lfirst_int(lc));
	}
	list_free(known);
	known = now;
	foreach(lc, configs)
	{
		const IdemRelayConfig *c = lfirst(lc);

		if (c->renamed)
			renamed = list_append_unique_int(renamed, c->relay_id);
	}
	MemoryContextSwitchTo(old);
}

/*
 * Note the present names of renamed owners, since a dump names the owner of a
 * relay.  A row that an operator has locked is skipped; the next look at the
 * configuration brings it here again.
 */
static void
note_renamed(void)
{
	ListCell   *lc;

	if (renamed == NIL)
		return;
	idem_txn_begin();
	foreach(lc, renamed)
	{
		Oid			types[1] = {INT4OID};
		Datum		values[1] = {Int32GetDatum(lfirst_int(lc))};

		if (!ConditionalLockRelationOid(idem_relref_oid(&relays_ref), RowExclusiveLock))
			continue;
		SPI_connect();
		idem_spi_run("UPDATE %s.relays SET owner = a.rolname FROM pg_catalog.pg_roles a"
					 " WHERE a.oid = owner_oid AND relay_id ="
					 " (SELECT relay_id FROM %s.relays WHERE relay_id = $1 FOR UPDATE SKIP LOCKED)",
					 1, types, values, NULL);
		SPI_finish();
	}
	idem_txn_commit(false);
	list_free(renamed);
	renamed = NIL;
}

/*
 * The ids of all relays of the database.  Also called back under the locks of
 * the log of positions, to see relays that were created meanwhile.
 */
static List *
relay_ids(void)
{
	return idem_relay_ids(idem_relay_rows());
}

/*
 * Find relays that were dropped while no process looked.  Their rows are in
 * the log of positions until the log takes turns.  The log is searched because
 * it is never restored: parked events without a relay may belong to a restore
 * under way.
 */
static void
note_dropped_before(MemoryContext work_cxt)
{
	List	   *in_log;
	List	   *gone;
	ListCell   *lc;
	MemoryContext old;

	if (dropped_before_known)
		return;
	idem_txn_begin();
	old = MemoryContextSwitchTo(work_cxt);
	in_log = idem_position_relay_ids();
	gone = list_difference_int(in_log, relay_ids());
	MemoryContextSwitchTo(TopMemoryContext);
	foreach(lc, gone)
		dropped = list_append_unique_int(dropped, lfirst_int(lc));
	MemoryContextSwitchTo(old);
	idem_txn_commit(false);
	dropped_before_known = true;
}

/*
 * Delete rows that workers wrote for relays while those were being dropped.  A
 * relay's id is not used again, so the rows do no harm.  They are deleted once
 * no worker of the relay can write more.
 */
static void
forget_dropped(void)
{
	for (int i = list_length(dropped) - 1; i >= 0; i--)
	{
		int			relay_id = list_nth_int(dropped, i);

		if (idem_slots_state(relay_id) >= IDEM_SLOT_STARTS)
			continue;
		idem_txn_begin();
		idem_relay_forget(relay_id, false);
		idem_txn_commit(false);
		dropped = list_delete_nth_cell(dropped, i);
	}
}

void
idem_upkeep_tick(IdemClock now)
{
	int64		seq;
	IdemPositionRow tick = {.relay_id = IDEM_TICK_RELAY, .kind = IDEM_POSITION_TICK,
	.fresh = IDEM_FRESH_CONFIRMED};

	if (now < tick_look_at)
		return;
	tick_look_at = idem_clock_plus_ms(now, TICK_LOOK_MS);
	idem_txn_begin();
	seq = idem_outbox_last_seq();
	if (last_tick_seq < 0)
		last_tick_seq = seq;
	if (seq - last_tick_seq >= IDEM_TICK_EVENTS)
	{
		tick.pos.base = idem_snap_current();
		(void) idem_position_append(&tick);
		IDEM_FAULT_POINT("worker-tick");
		last_tick_seq = seq;
	}
	idem_txn_commit(false);
}

/*
 * The positions of the relays that hold the outbox, as an array with room for
 * one more.
 */
static IdemSnap **
list_positions(int *n)
{
	List	   *rows = idem_retention_positions();
	IdemSnap  **done = palloc(sizeof(IdemSnap *) * (list_length(rows) + 1));
	ListCell   *lc;

	*n = 0;
	foreach(lc, rows)
		done[(*n)++] = lfirst(lc);
	return done;
}

/*
 * Note in the log of positions which transactions' events are about to be
 * emptied.  The note has to be durable before the first file is cut: a sink
 * that is set back may need these events (stream/resume.c).  Returns what was
 * noted, now and before; NULL: nothing can be emptied.
 */
static IdemSnap *
note_what_goes(MemoryContext work_cxt)
{
	IdemSnap  **done;
	IdemSnap   *going;
	int			n;

	idem_txn_begin();
	MemoryContextSwitchTo(work_cxt);
	done = list_positions(&n);
	going = idem_outbox_survey(done, n);
	if (going != NULL)
		going = idem_position_note_emptied(going);
	idem_txn_commit(true);
	return going;
}

/*
 * Transactions that were rolled back have woken nobody.  If positions keep a closed
 * segment that have not moved past its transactions, let the relays look: the next
 * upkeep finds the positions moved.  Once per transaction: a relay that is stopped
 * would otherwise make all others look for as long as it stands.
 */
static void
wake_past_rollbacks(void)
{
	IdemSnap   *now;
	IdemSnap   *copy;
	MemoryContext old;

	idem_txn_begin();
	now = idem_snap_current();
	if (woken_past == NULL || idem_outbox_has_ended_since(woken_past, now))
	{
		old = MemoryContextSwitchTo(TopMemoryContext);
		copy = idem_snap_copy(now);
		if (woken_past != NULL)
			pfree(woken_past);
		woken_past = copy;
		MemoryContextSwitchTo(old);
		idem_wake_database(MyDatabaseId, false);
	}
	idem_txn_commit(false);
}

/*
 * Empty segments whose events every relay has durably passed, after the
 * retention, and close the current segment if it is due.
 */
static void
empty_outbox(MemoryContext work_cxt)
{
	IdemSnap  **done;
	IdemSnap   *noted;
	int			n;

	idem_txn_begin();
	(void) idem_outbox_maintain(NULL, 0);
	idem_txn_commit(false);
	wake_past_rollbacks();
	noted = note_what_goes(work_cxt);
	if (noted == NULL)
		return;
	IDEM_FAULT_POINT("worker-emptying-noted");
	idem_txn_begin();
	MemoryContextSwitchTo(work_cxt);
	done = list_positions(&n);
	if (n > 0)
		done[n++] = noted;
	IDEM_FAULT_POINT("worker-maintain");
	(void) idem_outbox_maintain(done, n);
	IDEM_FAULT_POINT("worker-maintained");
	idem_txn_commit(false);
}

void
idem_upkeep_run(MemoryContext work_cxt)
{
	note_dropped_before(work_cxt);

	/*
	 * Shorten the log of positions to the rows that are still needed,
	 * durably.
	 */
	idem_txn_begin();
	MemoryContextSwitchTo(work_cxt);
	idem_position_maintain(relay_ids);
	idem_txn_commit(true);
	idem_retention_check_lag();
	note_renamed();
	forget_dropped();
	empty_outbox(work_cxt);

	/*
	 * Look after the store of claims: what could not be packed or emptied
	 * before may be possible now, and perhaps no claim comes that would
	 * notice.
	 */
	idem_txn_begin();
	MemoryContextSwitchTo(work_cxt);
	idem_store_look_after();
	idem_txn_commit(false);
}

bool
idem_upkeep_finish_emptying(void)
{
	bool		finished;

	idem_txn_begin();
	(void) idem_outbox_maintain(NULL, 0);
	idem_txn_commit(false);
	idem_txn_begin();
	if (idem_position_has_remains())
		idem_position_maintain(relay_ids);
	idem_txn_commit(false);
	idem_txn_begin();
	finished = !idem_outbox_has_remains() && !idem_position_has_remains();
	idem_txn_commit(false);
	return finished;
}
