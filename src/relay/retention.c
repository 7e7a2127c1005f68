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
 *		src/relay/retention.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"

#include "outbox/reader.h"
#include "relay/config.h"
#include "relay/position.h"
#include "relay/retention.h"
#include "relay/spi.h"
#include "relay/txn.h"
#include "relay/wake.h"
#include "shared/catalog.h"

#define LAG_HALT "max_lag_size was exceeded"

static IdemRelRef relays_ref = IDEM_RELREF("relays");

static IdemPositionRow *
row_of(List *rows, const IdemRelayConfig *c)
{
	ListCell   *lc;

	foreach(lc, rows)
	{
		IdemPositionRow *row = lfirst(lc);

		if (row->relay_id == c->relay_id && row->epoch == c->epoch)
			return row;
	}
	return NULL;
}

static bool
holds(const IdemRelayConfig *c)
{
	return c->halted == NULL || strcmp(c->halted, LAG_HALT) != 0;
}

List *
idem_retention_positions(void)
{
	List	   *rows = idem_position_all_last();
	List	   *result = NIL;
	ListCell   *lc;

	foreach(lc, idem_relay_configs())
	{
		IdemRelayConfig *c = lfirst(lc);
		IdemPositionRow *row = row_of(rows, c);

		/* A relay without a position is to be adopted: it holds everything. */
		if (holds(c))
			result = lappend(result, row ? row->pos.done : idem_snap_empty());
	}
	return result;
}

/* Not while an operator has the row: the next maintenance looks again. */
static bool
halt(const IdemRelayConfig *c)
{
	Oid			types[2] = {INT4OID, TEXTOID};
	Datum		values[2] = {Int32GetDatum(c->relay_id), CStringGetTextDatum(LAG_HALT)};
	uint64		n;

	if (!ConditionalLockRelationOid(idem_relref_oid(&relays_ref), RowExclusiveLock))
		return false;
	SPI_connect();
	n = idem_spi_run("UPDATE %s.relays SET halted = $2 WHERE relay_id ="
					 " (SELECT relay_id FROM %s.relays WHERE relay_id = $1 FOR UPDATE SKIP LOCKED)",
					 2, types, values, NULL);
	SPI_finish();
	return n > 0;
}

void
idem_retention_check_lag(void)
{
	List	   *rows = NIL;
	ListCell   *lc;
	bool		halted = false;

	idem_txn_begin();
	foreach(lc, idem_relay_configs())
	{
		IdemRelayConfig *c = lfirst(lc);
		IdemPositionRow *row;
		IdemLag		lag;

		if (c->max_lag_bytes == 0 || c->halted != NULL)
			continue;
		if (rows == NIL)
			rows = idem_position_all_last();
		row = row_of(rows, c);
		if (row == NULL)
			continue;
		idem_reader_lag(&row->pos, &lag);
		if (lag.bytes > c->max_lag_bytes)
			halted |= halt(c);
	}
	if (halted)
		idem_relay_config_changed(false);
	idem_txn_commit(false);
}
