/*-------------------------------------------------------------------------
 *
 * table.c
 *		The tables of the log of leases.
 *
 * LOCKING: none.
 *
 * MEMORY: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/lease/table.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type_d.h"

#include "lease/table.h"
#include "shared/guard.h"
#include "shared/keyed_log.h"

/* In the order of the install script; log.c names their places. */
static const IdemColumn columns[IDEM_LEASE_COLUMNS] = {
	{INT8OID, true},			/* number */
	{UUIDOID, true},			/* digest */
	{CHAROID, true},			/* kind */
	{CHAROID, false},			/* state */
	{INT8OID, false},			/* token */
	{INT4OID, false},			/* attempt */
	{TIMESTAMPTZOID, false},	/* until */
	{TIMESTAMPTZOID, true},		/* at */
	{TEXTOID, false},			/* event_id */
	{TEXTOID, false},			/* consumer */
	{TEXTOID, false},			/* holder */
	{TEXTOID, false},			/* error */
	{TEXTOID, false},			/* recovery_point */
	{JSONBOID, false},			/* work */
	{TEXTOID, false},			/* scope */
	{BYTEAOID, false},			/* fingerprint */
	{JSONBOID, false},			/* request */
	{INT8OID, false},			/* written */
	{INT8OID, false},			/* kept */
	{BOOLOID, false},			/* redriven */
	{XID8OID, false}			/* origin */
};

static const IdemTableForm form = {
	.columns = columns, .ncolumns = IDEM_LEASE_COLUMNS, .triggers = 2, .index = &idem_keyed_index
};

IdemRelRef	idem_lease_tables[IDEM_LEASE_TABLES] = {
	IDEM_TABLEREF("lease_log_0", &form), IDEM_TABLEREF("lease_log_1", &form),
	IDEM_TABLEREF("lease_log_2", &form)
};

IdemRelRef	idem_lease_indexes[IDEM_LEASE_TABLES] = {
	IDEM_RELREF("lease_log_0_key"), IDEM_RELREF("lease_log_1_key"), IDEM_RELREF("lease_log_2_key")
};

IdemRelRef	idem_lease_number = IDEM_RELREF("lease_number");

IdemRelRef	idem_lease_identity = IDEM_RELREF("lease_identity");
