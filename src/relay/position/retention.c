/*-------------------------------------------------------------------------
 *
 * retention.c
 *		Which part of the outbox the relays still need, and for how long.
 *
 * A relay, running or not, holds in the outbox every event that its last
 * durable position has not passed, so that nothing is skipped silently; and what
 * follows the first event that a blocked key has there (blocked.c).  A
 * relay with max_lag_size gives that up when it holds more: it is
 * halted, which is loud, and holds nothing any more.  relay_resume lets it go
 * on with what is still there.
 *
 * A relay whose position is ahead of the cluster's transaction ids holds
 * everything, and does not run until relay_adopt.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/position/retention.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/lmgr.h"

#include "outbox/reader.h"
#include "relay/config.h"
#include "relay/position/blocked.h"
#include "relay/position/position.h"
#include "relay/position/retention.h"
#include "relay/worker_slots.h"
#include "shared/catalog.h"
#include "shared/worker.h"

static IdemRelRef relays_ref = IDEM_RELREF("relays");

const IdemPosition *
idem_retention_position(const IdemRelayConfig *relay, const IdemPositionRow *row)
{
	IdemPosition *nothing;

	if (row != NULL && relay->halted != IDEM_HALT_HISTORY && idem_position_is_possible(&row->pos))
		return &row->pos;
	nothing = palloc0(sizeof(*nothing));
	nothing->base = idem_snap_empty();
	return nothing;
}

IdemPosition
idem_retention_held(const IdemPosition *pos, HTAB *bases, int relay_id)
{
	IdemSnap   *base = idem_blocked_base(bases, relay_id);

	if (base == NULL || idem_position_sees_more(base, pos->base))
		return *pos;
	return (IdemPosition)
	{
		base, NULL, 0
	};
}

List *
idem_retention_positions(void)
{
	HTAB	   *rows = idem_position_all_last();
	HTAB	   *bases = idem_blocked_bases();
	List	   *result = NIL;
	const IdemSnap *before = NULL;
	bool		given_up = false;
	ListCell   *lc;

	foreach(lc, idem_relay_rows())
	{
		const IdemRelayConfig *relay = lfirst(lc);
		const IdemPositionRow *row = idem_position_of(rows, relay->relay_id, relay->epoch);
		IdemSnap   *done;

		if (relay->halted == IDEM_HALT_LAG)
		{
			given_up = true;
			continue;
		}

		/*
		 * A relay without a credible position waits to be adopted, and holds
		 * everything.
		 */
		done = idem_retention_held(idem_retention_position(relay, row), bases, relay->relay_id).base;

		/*
		 * Resting relays stand at the same snapshot, perhaps a thousand of
		 * them: list it once.
		 */
		if (before != NULL && idem_snap_equal(before, done))
			continue;
		result = lappend(result, done);
		before = done;
	}

	/*
	 * Without a relay all events wait for one.  Relays that are all halted
	 * for their lag hold none.
	 */
	if (result == NIL && given_up)
		result = list_make1(idem_snap_current());
	return result;
}

/*
 * Halt the relay, unless an operator has its row locked; then the next
 * maintenance looks again.
 */
static bool
halt(int relay_id, IdemHalt reason)
{
	return ConditionalLockRelationOid(idem_relref_oid(&relays_ref), RowExclusiveLock) &&
		idem_relay_halt(relay_id, reason, NULL, true);
}

bool
idem_retention_check_history(List *configs)
{
	HTAB	   *rows = idem_position_all_last();
	bool		noted = true;
	ListCell   *lc;

	foreach(lc, configs)
	{
		IdemRelayConfig *c = lfirst(lc);
		const IdemPositionRow *row = idem_position_of(rows, c->relay_id, c->epoch);

		if (c->halted == IDEM_HALT_HISTORY || row == NULL || idem_position_is_possible(&row->pos))
			continue;
		c->halted = IDEM_HALT_HISTORY;
		c->halt_message = NULL;
		noted &= halt(c->relay_id, IDEM_HALT_HISTORY);
	}
	return noted;
}

void
idem_retention_check_move(const IdemRelayConfig *relay, const IdemPosition *to)
{
	IdemLag		lag;

	if (relay->max_lag_bytes == 0)
		return;
	idem_reader_lags(&to, &lag, 1);
	if (lag.bytes <= relay->max_lag_bytes)
		return;
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("relay \"%s\" would be halted by its max_lag_size, with " INT64_FORMAT " kB of events to send",
					relay->name, lag.bytes / 1024),
			 errhint("Raise it first: relay_alter(..., max_lag_size => '" INT64_FORMAT " kB'). Set it back when the relay has no lag.",
					 lag.bytes / 1024 * 2)));
}

void
idem_retention_check_lag(void)
{
	HTAB	   *rows = NULL;
	HTAB	   *bases = NULL;
	ListCell   *lc;
	bool		halted = false;

	idem_txn_begin();
	foreach(lc, idem_relay_rows())
	{
		const IdemRelayConfig *relay = lfirst(lc);
		const IdemPositionRow *row;
		const IdemPosition *pos;
		IdemPosition held;
		IdemLag		lag;

		if (relay->max_lag_bytes == 0 || relay->halted != IDEM_HALT_NOT)
			continue;
		if (rows == NULL)
		{
			rows = idem_position_all_last();
			bases = idem_blocked_bases();
		}
		row = idem_position_of(rows, relay->relay_id, relay->epoch);
		if (row == NULL || !idem_position_is_possible(&row->pos))
			continue;
		held = idem_retention_held(&row->pos, bases, relay->relay_id);
		pos = &held;
		idem_reader_lags(&pos, &lag, 1);
		if (lag.bytes > relay->max_lag_bytes)
			halted |= halt(relay->relay_id, IDEM_HALT_LAG);
	}
	if (halted)
		idem_relay_config_changed();
	idem_txn_commit(false);
}
