/*-------------------------------------------------------------------------
 *
 * table.h
 *		The tables of the log of leases.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/lease/table.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_LEASE_TABLE_H
#define IDEM_LEASE_TABLE_H

#include "postgres.h"

#include "shared/catalog.h"

#define IDEM_LEASE_TABLES	3
#define IDEM_LEASE_COLUMNS	21

extern IdemRelRef idem_lease_tables[IDEM_LEASE_TABLES];
extern IdemRelRef idem_lease_indexes[IDEM_LEASE_TABLES];

/* Numbers the rows, of other logs as well. */
extern IdemRelRef idem_lease_number;

/* Which history has given out the numbers (token.c); 0: none has, and there are no rows. */
extern IdemRelRef idem_lease_identity;

#endif							/* IDEM_LEASE_TABLE_H */
