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

#include "datatype/timestamp.h"

#include "shared/catalog.h"

#define IDEM_LEASE_TABLES	3

/* The column that says when a row was written */
#define IDEM_LEASE_AT		8

extern IdemRelRef idem_lease_tables[IDEM_LEASE_TABLES];
extern IdemRelRef idem_lease_indexes[IDEM_LEASE_TABLES];

/* Numbers the rows. */
extern IdemRelRef idem_lease_number;

/*
 * The greatest number in the tables, of committed and other rows, and when its row was
 * written; 0 if there is none.  Reads all of them.
 */
extern int64 idem_lease_greatest(TimestampTz *at);

#endif							/* IDEM_LEASE_TABLE_H */
