/*-------------------------------------------------------------------------
 *
 * start.h
 *		Starts the process that shortens the log of leases.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/lease/start.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_LEASE_START_H
#define IDEM_LEASE_START_H

#include "postgres.h"

/*
 * Start the maintainer of the log of leases, unless one is at work, or this
 * process started one a moment ago.  Where no process is to be had the log grows
 * until the next call.
 */
extern void idem_lease_maintainer_start(void);

#endif							/* IDEM_LEASE_START_H */
