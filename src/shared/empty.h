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

/*
 * Take AccessExclusiveLock on the table, its indexes, its TOAST table and that
 * one's index, each only if it is to be had at once, and truncate them all.
 * False if some lock was not; those that were are given back.  It cannot be
 * rolled back, so it must be the transaction's last act.
 */
extern bool idem_empty_in_place(Oid relid);

#endif							/* IDEM_EMPTY_H */
