/*-------------------------------------------------------------------------
 *
 * keyed_write.h
 *		Writes a row of a keyed log into a table.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/shared/keyed_write.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_KEYED_WRITE_H
#define IDEM_KEYED_WRITE_H

#include "postgres.h"

#include "access/htup.h"
#include "storage/itemptr.h"
#include "utils/relcache.h"

#include "shared/keyed.h"

/*
 * Insert a tuple into a table, which the caller has locked, and into its indexes, and
 * free the tuple.  Returns where it stands.
 */
extern ItemPointerData idem_keyed_insert(const IdemKeyedLog *log, Relation heap, HeapTuple tuple);

#endif							/* IDEM_KEYED_WRITE_H */
