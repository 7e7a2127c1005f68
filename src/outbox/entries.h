/*-------------------------------------------------------------------------
 *
 * entries.h
 *		Puts the index entries of a chunk of events into leaf pages together.
 *
 * Private to src/outbox.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/outbox/entries.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_OUTBOX_ENTRIES_H
#define IDEM_OUTBOX_ENTRIES_H

#include "postgres.h"

#include "outbox/segment.h"

/* Fewer entries than these are cheaper one by one: README.md. */
#define IDEM_ENTRIES_TOGETHER	8

/*
 * Find the leaf page of the first of n entries, and put as many of them there
 * as belong there, one beside the other, and have room.  Returns how many these
 * are; 0 if index_insert has to make room.
 *
 * The entries are of one transaction, in ascending order, and not in the index
 * yet.  The index is a segment's, and the caller holds
 * RowExclusiveLock on it and on its table.
 */
extern int	idem_entries_put(Relation index, Relation heap, const IdemEntry *entries, int n);

#endif							/* IDEM_OUTBOX_ENTRIES_H */
