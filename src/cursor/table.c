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

#include "cursor/table.h"

IdemRelRef	idem_cursor_tables[IDEM_CURSOR_TABLES] = {
	IDEM_RELREF("cursor_log_0"), IDEM_RELREF("cursor_log_1"), IDEM_RELREF("cursor_log_2")
};

IdemRelRef	idem_cursor_indexes[IDEM_CURSOR_TABLES] = {
	IDEM_RELREF("cursor_log_0_key"), IDEM_RELREF("cursor_log_1_key"), IDEM_RELREF("cursor_log_2_key")
};
