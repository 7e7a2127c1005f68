/*-------------------------------------------------------------------------
 *
 * table.c
 *		The tables of the log of cursors.
 *
 * LOCKING: none.
 *
 * MEMORY: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/cursor/table.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type_d.h"

#include "cursor/table.h"
#include "shared/guard.h"
#include "shared/keyed_log.h"

/* In the order of the install script; log.c names their places. */
static const IdemColumn columns[IDEM_CURSOR_COLUMNS] = {
	{INT8OID, true},			/* number */
	{UUIDOID, true},			/* digest */
	{CHAROID, true},			/* kind */
	{CHAROID, false},			/* what */
	{INT8OID, false},			/* position */
	{INT8OID, false},			/* epoch */
	{INT8OID, false},			/* accepted */
	{TIMESTAMPTZOID, true},		/* at */
	{INT8OID, false},			/* in_epoch */
	{INT8OID, false},			/* producer_id */
	{TEXTOID, false},			/* owner */
	{TEXTOID, false},			/* topic */
	{INT4OID, false},			/* partition */
	{BOOLOID, false},			/* gapless */
	{TEXTOID, false},			/* role */
	{OIDOID, false},			/* role_oid */
	{INT8OID, false},			/* role_cluster */
	{INT8OID, false},			/* history */
	{INT8OID, false},			/* written */
	{INT8OID, false},			/* kept */
	{XID8OID, false}			/* origin */
};

static const IdemTableForm form = {
	.columns = columns, .ncolumns = IDEM_CURSOR_COLUMNS, .triggers = 2, .index = &idem_keyed_index
};

IdemRelRef	idem_cursor_tables[IDEM_CURSOR_TABLES] = {
	IDEM_TABLEREF("cursor_log_0", &form), IDEM_TABLEREF("cursor_log_1", &form),
	IDEM_TABLEREF("cursor_log_2", &form)
};

IdemRelRef	idem_cursor_indexes[IDEM_CURSOR_TABLES] = {
	IDEM_RELREF("cursor_log_0_key"), IDEM_RELREF("cursor_log_1_key"), IDEM_RELREF("cursor_log_2_key")
};
