/*-------------------------------------------------------------------------
 *
 * pace.h
 *		What the packer does for others while it writes a run.
 *
 * Private to src/store.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/store/pace.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_STORE_PACE_H
#define IDEM_STORE_PACE_H

#include "postgres.h"

#include "utils/relcache.h"

/* A run begins: rows of "source", which is locked with AccessShareLock, go to "target", with RowExclusiveLock. */
extern void idem_pace_begin(Relation source, Relation target);

/*
 * Call these after each entry that was read, and after bytes were written to a
 * slot.  They serve interrupts, keep pack_max_rate, close the current segment if
 * it is due, and raise an error if the packer has to give way.  No buffer is
 * locked.
 */
extern void idem_pace_entry(void);
extern void idem_pace_wrote(Size bytes);

/*
 * Does a command need this database empty, or the extension gone, do relays need the process,
 * or was packing switched off?
 */
extern bool idem_pace_must_give_way(void);

/* Was the error of this transaction raised in order to give way? */
extern bool idem_pace_gave_way(void);

#endif							/* IDEM_STORE_PACE_H */
