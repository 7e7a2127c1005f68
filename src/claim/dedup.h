/*-------------------------------------------------------------------------
 *
 * dedup.h
 *		Remembers a value per id for a while: the first one counts.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/claim/dedup.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_CLAIM_DEDUP_H
#define IDEM_CLAIM_DEDUP_H

#include "postgres.h"

#include "claim/lock.h"

/* A window without an end, in microseconds. */
#define IDEM_DEDUP_FOR_EVER		PG_INT64_MAX

typedef struct IdemDedupItem
{
	IdemStr		id;				/* 1 to IDEM_MAX_ID_BYTES */
	pg_uuid_t	value;			/* in: to be remembered if the id is new; out:
								 * the value that counts */
	bool		is_repeat;		/* out: the value is of an earlier item, call
								 * or transaction */
} IdemDedupItem;

/*
 * Decide which of n ids are new, and remember their values in this
 * transaction.  An id is a repeat while the window runs that was given with
 * its first occurrence; the window begins at that call.  window is in
 * microseconds, > 0, and applies to the ids that are new.  Of ids that occur
 * more than once among the items, the first item decides.  Ids of different
 * scopes have nothing to do with each other; a scope is any text of at most
 * IDEM_MAX_NAME_BYTES.
 *
 * Waits for the end of transactions that have written one of the ids, and
 * until the transactions that wrote the values of repeats are durable.
 *
 * Errors: 40001 if an id was written after the transaction snapshot of a
 * REPEATABLE READ or SERIALIZABLE transaction; 40P01 and 55P03 as any wait for
 * a lock.
 */
extern void idem_dedup(IdemDedupItem *items, int n, const char *scope, int scopelen,
					   int64 window);

#endif							/* IDEM_CLAIM_DEDUP_H */
