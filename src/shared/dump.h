/*-------------------------------------------------------------------------
 *
 * dump.h
 *		Does a dump of the database run?
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/shared/dump.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_DUMP_H
#define IDEM_DUMP_H

#include "postgres.h"

#include "shared/clock.h"

/* A moment from which on rows of a table are of no use to new snapshots */
typedef struct IdemDumpMark
{
	TransactionId last;			/* the latest xid */
	IdemClock	at;
} IdemDumpMark;

/* Set the mark to now. */
extern void idem_dump_mark(IdemDumpMark *mark);

/*
 * Does a dump of the database run whose snapshot may be older than the mark?  Errs to
 * the side of yes: for some seconds after the mark, each session with an older snapshot
 * counts as a dump, and then each that has read pg_extension or pg_namespace.
 */
extern bool idem_dump_is_older(const IdemDumpMark *mark);

/* Does a dump of the database run, as far as its session has shown? */
extern bool idem_dump_runs(void);

#endif							/* IDEM_DUMP_H */
