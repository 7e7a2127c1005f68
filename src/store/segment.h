/*-------------------------------------------------------------------------
 *
 * segment.h
 *		The tables of the open ring, and their rows as they stand on pages.
 *
 * Private to src/store.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/store/segment.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_STORE_SEGMENT_H
#define IDEM_STORE_SEGMENT_H

#include "postgres.h"

#include "access/htup.h"
#include "storage/block.h"
#include "storage/lockdefs.h"
#include "utils/relcache.h"

#include "shared/catalog.h"

/* As many as the install script makes; the store's state has a bit for each. */
#define IDEM_STORE_SEGMENTS	8

/* Columns of a segment, in the order of the install script, from 0. */
enum
{
	IDEM_RING_CLAIMED_AT,		/* timestamptz */
	IDEM_RING_COMPLETED_AT,		/* timestamptz; NULL unless completed */
	IDEM_RING_DIGEST,			/* uuid */
	IDEM_RING_TURN,				/* smallint */
	IDEM_RING_CLASS,			/* smallint: retention.h */
	IDEM_RING_STATE,			/* "char" */
	IDEM_RING_KEEP_ID,			/* boolean */
	IDEM_RING_EVENT_ID,			/* text */
	IDEM_RING_CONSUMER,			/* text */
	IDEM_RING_RESULT,			/* jsonb; nullable */
	IDEM_RING_NATTS
};

extern IdemRelRef idem_store_segments[IDEM_STORE_SEGMENTS];
extern Oid	idem_store_segment_oid(int number);

/* Has every transaction that wrote to the closed segment ended? */
extern bool idem_store_segment_is_drained(int number);

/* Open a segment's table to look at its rows; NULL if its lock is not free. */
extern Relation idem_store_segment_open_nowait(int number, LOCKMODE mode);

#endif							/* IDEM_STORE_SEGMENT_H */
