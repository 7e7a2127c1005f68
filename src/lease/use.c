/*-------------------------------------------------------------------------
 *
 * use.c
 *		May the log of leases have rows?
 *
 * A claim has to look into the log.  Most databases never lease an event, and to open
 * three empty tables costs as much as to look into the store.  So a claim looks at one
 * page before: as long as the cell lease_identity is 0 and sealed, nobody has drawn a
 * number in this database, and the log is empty.  The log of cursors has the same numbers,
 * so offsets and sequences set the cell as well.
 *
 * Every row gets its number from a draw (token.c), which sets the cell before; a restore
 * breaks the seal of a cell that is 0.  A cell that nobody has sealed, as that of a new
 * extension, is settled by the first claim: as 0 if the tables are as new, as
 * ROWS_FROM_ELSEWHERE if they have rows.
 *
 * Once the cell is set, it stays so, and a session remembers it.
 *
 * INVARIANT: while the cell is 0 and sealed, the tables have no row that is committed, nor
 * one of a lease that is being taken.  Rows that a statement of a restore is writing may be
 * there.
 *
 * A crash leaves a cell that was settled, or one that is not.  The WAL of a cell that a
 * draw has set is before that of the row.
 *
 * LOCKING: the event's lock makes a claim see the cell that was set for an earlier lease
 * of the event.  To settle the cell: the lock of token.c, then AccessShareLock on the
 * tables; each only if it is free, and given back at once.  A restore that has rows in
 * files that were empty just now waits for the lock of token.c with the end of its
 * statement, and breaks the seal then.
 *
 * MEMORY: an OID; an open cell is a relation and a pin, which an error gives back.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/lease/use.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "access/table.h"
#include "storage/bufmgr.h"
#include "utils/rel.h"

#include "lease/table.h"
#include "lease/token.h"
#include "lease/use.h"
#include "shared/catalog.h"
#include "shared/cell.h"

/*
 * The value of the cell when rows are there, and nobody has drawn a number here.  The next
 * draw finds another identity.
 */
#define ROWS_FROM_ELSEWHERE	1

/* The cell that this session has seen set; one of a new extension has another OID. */
static Oid	used_cell = InvalidOid;

bool
idem_lease_use_is_known(void)
{
	return used_cell == idem_relref_oid(&idem_lease_identity);
}

/* Has nobody said yet whether there are rows? */
static bool
is_unsettled(IdemCell cell)
{
	return cell.value == 0 && !cell.sealed;
}

void
idem_lease_use_open(IdemLeaseUse *use)
{
	use->rel = relation_open(idem_relref_oid(&idem_lease_identity), AccessShareLock);
	use->page = idem_cell_pin(use->rel);
}

void
idem_lease_use_close(IdemLeaseUse *use)
{
	ReleaseBuffer(use->page);
	relation_close(use->rel, AccessShareLock);
	use->rel = NULL;
}

/*
 * Settle the cell that nobody has sealed, unless somebody has a table or sets the cell
 * just now.
 */
static void
settle(const IdemLeaseUse *use)
{
	Relation	heaps[IDEM_LEASE_TABLES];
	BlockNumber blocks = 0;
	int			n = 0;

	if (!idem_token_try_hold())
		return;
	while (n < IDEM_LEASE_TABLES &&
		   (heaps[n] = idem_table_open_nowait(idem_relref_oid(&idem_lease_tables[n]), AccessShareLock)) != NULL)
		blocks += RelationGetNumberOfBlocks(heaps[n++]);
	if (n == IDEM_LEASE_TABLES && is_unsettled(idem_cell_look(use->page)))
		idem_cell_write(use->rel, blocks == 0 ? 0 : ROWS_FROM_ELSEWHERE);
	while (n > 0)
		table_close(heaps[--n], AccessShareLock);
	idem_token_unhold();
}

bool
idem_lease_use_look(const IdemLeaseUse *use)
{
	IdemCell	cell = idem_cell_look(use->page);

	if (is_unsettled(cell))
	{
		settle(use);
		cell = idem_cell_look(use->page);
	}
	if (cell.value != 0)
		used_cell = RelationGetRelid(use->rel);
	return cell.value != 0 || !cell.sealed;
}
