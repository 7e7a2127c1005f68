/*-------------------------------------------------------------------------
 *
 * use.h
 *		May the log of leases have rows?
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/lease/use.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_LEASE_USE_H
#define IDEM_LEASE_USE_H

#include "postgres.h"

#include "storage/buf.h"
#include "utils/relcache.h"

/* The cell that tells, open. */
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

#endif							/* IDEM_LEASE_USE_H */
