/*-------------------------------------------------------------------------
 *
 * empty.h
 *		Empties a table in place, without waiting and without catalog tuples.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/shared/empty.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_EMPTY_H
#define IDEM_EMPTY_H

#include "postgres.h"

#include "nodes/pg_list.h"

/*
 * Does anybody else hold a lock on the table that stands in the way?  To find out
 * by taking one would write WAL.
 */
extern bool idem_empty_is_held(Oid relid);

/*
 * Take AccessExclusiveLock on the table, its indexes, its TOAST table and that
 * one's indexes, each only if it is to be had at once.  Returns their OIDs; NIL if
 * some lock was not, and those that were are given back.
 */
extern List *idem_empty_lock(Oid relid);

/*
 * Lock them so and truncate them all; false if some lock was not to be had.
 * It cannot be rolled back, so it must be the transaction's last act.
 */
extern bool idem_empty_in_place(Oid relid);

/*
 * Tell all processes that the files of these are being cut, whether this
 * transaction commits or not.  To be called between the last look at them and
 * the cut.
 */
extern void idem_empty_announce(const List *locked);

#endif							/* IDEM_EMPTY_H */
