/*-------------------------------------------------------------------------
 *
 * keyed_turn.h
 *		The tables of a keyed log (keyed.h) take turns.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/shared/keyed_turn.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_KEYED_TURN_H
#define IDEM_KEYED_TURN_H

#include "postgres.h"

#include "access/transam.h"

#include "access/xlogdefs.h"

#include "shared/dump.h"
#include "shared/keyed.h"
#include "shared/keyed_read.h"

/*
 * How far the copying out of a table has come.  A process that maintains a log
 * keeps one, zeroed at first.  Another process, or the same after a restart,
 * begins anew, which does no harm.
 */
typedef struct IdemKeyedPass
{
	bool		active;
	int			from;
	int			to;
	int64		marker;			/* of table "to" when the pass began */
	BlockNumber next;			/* the next block of "from" */
	XLogRecPtr	since;			/* every row of "from" was or will be looked
								 * at, unless WAL behind this brought it */
	IdemKeyedHints newest;		/* committed rows of "from" */
	FullTransactionId copier;	/* the last transaction that copied rows;
								 * invalid: none did */
	bool		ended;			/* all pages are copied */
	IdemDumpMark mark;			/* the end of the pass */
} IdemKeyedPass;

/* What came of a step. */
typedef enum IdemKeyedStep
{
	IDEM_KEYED_NONE,			/* there was no step to take, or another
								 * process takes one */
	IDEM_KEYED_TAKEN,
	IDEM_KEYED_BUSY,			/* somebody has a table that the next step
								 * needs; ask again */
	IDEM_KEYED_WAITS,			/* the next step waits for a dump; ask again */

	/* private to keyed_turn.c: left to do after the tables are unlocked */
	IDEM_KEYED_TO_EMPTY,
	IDEM_KEYED_TO_MARK			/* put a marker into a table */
} IdemKeyedStep;

#define IDEM_KEYED_STEPS	(IDEM_KEYED_WAITS + 1)

/*
 * Take one step of taking turns.  Must be the only act of its transaction.  Waits for
 * no lock that DDL does not hold.
 */
extern IdemKeyedStep idem_keyed_log_maintain(const IdemKeyedLog *log, IdemKeyedPass *pass);

#endif							/* IDEM_KEYED_TURN_H */
