/*-------------------------------------------------------------------------
 *
 * cell.h
 *		A number that is WAL-logged, changed in place, and sealed.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/shared/cell.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_CELL_H
#define IDEM_CELL_H

#include "postgres.h"

#include "access/xlogdefs.h"
#include "storage/buf.h"
#include "utils/relcache.h"

#include "shared/catalog.h"

typedef struct IdemCell
{
	int64		value;			/* the last number given out */
	bool		sealed;			/* false: not this subsystem but somebody else
								 * set the value */
} IdemCell;

/* Read a cell.  Here and below, rel is an open sequence. */
extern IdemCell idem_cell_read(Relation rel);

/* The same of a sequence that is not open, under a lock that is given back at once. */
extern IdemCell idem_cell_read_ref(IdemRelRef *ref);

/*
 * The same in two parts, for who reads a cell again and again: pin its page, and look.
 * The caller has a lock of the sequence that keeps it from being rewritten.
 */
extern Buffer idem_cell_pin(Relation rel);
extern IdemCell idem_cell_look(Buffer buffer);

/*
 * Pin the page in the buffer where this process found it last, without looking for it.
 * *recent: static; InvalidBuffer at first.
 */
extern Buffer idem_cell_pin_recent(Relation rel, Buffer *recent);

/* About what value the cell has, without a lock: where to look first, no more than that. */
extern int64 idem_cell_glance(Buffer buffer);

/* Set the value, WAL-logged, and seal it. */
extern void idem_cell_write(Relation rel, int64 value);

/* The same of a sequence that is not open; the lock on it is given back. */
extern void idem_cell_write_ref(IdemRelRef *ref, int64 value);

/* Break the seal, WAL-logged; the value stays. */
extern void idem_cell_unseal(Relation rel);

/*
 * Give out the n numbers after the value, and set *value to the value before
 * them.  Returns false, and changes nothing, if the cell is not sealed.  WAL has the
 * value rounded up to a multiple of ahead, which is the same in each call for a cell.
 * Once WAL is flushed up to *lsn, recovery finds every number that was given out up to now.
 * The caller seals no value near the end of bigint.
 */
extern bool idem_cell_draw(Relation rel, int n, int ahead, int64 *value, XLogRecPtr *lsn);

#endif							/* IDEM_CELL_H */
