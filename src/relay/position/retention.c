/*-------------------------------------------------------------------------
 *
 * retention.c
 *		Which part of the log the relays still need, and for how long.
 *
 * A relay holds everything its last durable position has not passed, running
 * or not, so that nothing is skipped silently.  One with max_lag_size gives
 * that up once it is further behind: it is halted, which is loud, and holds no
 * longer; relay_resume lets it go on with what is still there.
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
#include "relay/position/position.h"
#include "relay/position/retention.h"
#include "relay/wake.h"
#include "shared/catalog.h"
#include "shared/txn.h"

static IdemRelRef relays_ref = IDEM_RELREF("relays");

static bool
holds(const IdemRelayBrief *relay)
{
	return relay->halted != IDEM_HALT_LAG;
}

List *
idem_retention_positions(void)
{
	HTAB	   *rows = idem_position_all_last();
	List	   *result = NIL;
	const IdemSnap *before = NULL;
	ListCell   *lc;

	foreach(lc, idem_relay_briefs())
	{
		const IdemRelayBrief *relay = lfirst(lc);
		const IdemPositionRow *row = idem_position_of(rows, relay->relay_id, relay->epoch);
		IdemSnap   *done;

		if (!holds(relay))
			continue;

		/* A relay without a position is to be adopted: it holds everything. */
		done = row ? row->pos.base : idem_snap_empty();

		/*
		 * Relays that rest stand at the same place, a thousand of them at
		 * one.
		 */
		if (before != NULL && idem_snap_equal(before, done))
			continue;
		result = lappend(result, done);
		before = done;
	}
	return result;
}

/* Not while an operator has the row: the next maintenance looks again. */
static bool
halt(const IdemRelayBrief *relay)
{
	return ConditionalLockRelationOid(idem_relref_oid(&relays_ref), RowExclusiveLock) &&
		idem_relay_halt(relay->relay_id, IDEM_HALT_LAG, true);
}

void
idem_retention_check_lag(void)
{
	HTAB	   *rows = NULL;
	ListCell   *lc;
	bool		halted = false;

	idem_txn_begin();
	foreach(lc, idem_relay_briefs())
	{
		const IdemRelayBrief *relay = lfirst(lc);
		const IdemPositionRow *row;
		IdemLag		lag;

		if (relay->max_lag_bytes == 0 || relay->halted != IDEM_HALT_NOT)
			continue;
		if (rows == NULL)
			rows = idem_position_all_last();
		row = idem_position_of(rows, relay->relay_id, relay->epoch);
		if (row == NULL)
			continue;
		idem_reader_lag(&row->pos, &lag);
		if (lag.bytes > relay->max_lag_bytes)
			halted |= halt(relay);
	}
	if (halted)
		idem_relay_config_changed();
	idem_txn_commit(false);
}
