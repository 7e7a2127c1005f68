/*-------------------------------------------------------------------------
 *
 * table.h
 *		The tables of the log of cursors.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/cursor/table.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_CURSOR_TABLE_H
#define IDEM_CURSOR_TABLE_H

#include "postgres.h"

#include "shared/catalog.h"

#define IDEM_CURSOR_TABLES	3
#define IDEM_CURSOR_COLUMNS	21

extern IdemRelRef idem_cursor_tables[IDEM_CURSOR_TABLES];
extern IdemRelRef idem_cursor_indexes[IDEM_CURSOR_TABLES];

#endif							/* IDEM_CURSOR_TABLE_H */
