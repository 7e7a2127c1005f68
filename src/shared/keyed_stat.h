/*-------------------------------------------------------------------------
 *
 * keyed_stat.h
 *		What a keyed log costs, and what keeps it from being shortened.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/shared/keyed_stat.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_KEYED_STAT_H
#define IDEM_KEYED_STAT_H

#include "postgres.h"

#include "fmgr.h"

#include "shared/keyed.h"

/* Body of a function that returns one row: table_bytes, index_bytes, held_by. */
extern Datum idem_keyed_stat(FunctionCallInfo fcinfo, const IdemKeyedLog *log);

#endif							/* IDEM_KEYED_STAT_H */
