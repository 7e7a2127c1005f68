/*-------------------------------------------------------------------------
 *
 * token.h
 *		Fencing tokens: numbers that rise across crashes, failovers and restores.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/lease/token.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_LEASE_TOKEN_H
#define IDEM_LEASE_TOKEN_H

#include "postgres.h"

#include "storage/buf.h"
#include "utils/relcache.h"

/*
 * Draw a number that may be given out before the transaction commits.  It is
 * greater than any number that this database, or a database that it is a copy of,
 * has given out before.  The caller holds the event's lock exclusively, so that
 * the tokens of one event rise in the order of its leases.  Flushes WAL now and
 * then.
 */
extern int64 idem_token_draw(void);

/*
 * Draw a number for a row of the log whose number nobody outside learns.  It is
 * greater than that of each row that is in the log, and may be drawn again after
 * a crash that loses the row.
 */
extern int64 idem_token_draw_unflushed(void);

/*
 * What tells this history of this database from others: another timeline, system or
 * database has another number.
 */
extern int64 idem_token_history(void);

/*
 * Rows came in whose numbers were not drawn here: have the next draw look for the greatest
 * number that is in use, and claims look whether there are rows.
 */
extern void idem_token_distrust(void);

/* The cell that tells whether the log of leases may have rows, open. */
typedef struct IdemLeaseUse
{
	Relation	rel;			/* NULL: not open */
	Buffer		page;
} IdemLeaseUse;

/* Has this session seen that the log may have rows?  It stays so. */
extern bool idem_lease_use_is_known(void);

extern void idem_lease_use_open(IdemLeaseUse *use);
extern void idem_lease_use_close(IdemLeaseUse *use);

/*
 * May the log have a row of the event whose lock is held?  Ask anew for each event.  True
 * if it is not known.
 */
extern bool idem_lease_use_look(const IdemLeaseUse *use);

#endif							/* IDEM_LEASE_TOKEN_H */
