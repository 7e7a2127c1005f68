/*-------------------------------------------------------------------------
 *
 * survey.h
 *		What segments and slots there are, for whoever maintains or shows them.
 *
 * Private to src/store.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/store/survey.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_STORE_SURVEY_H
#define IDEM_STORE_SURVEY_H

#include "postgres.h"

#include "access/transam.h"
#include "storage/block.h"
#include "utils/relcache.h"

#include "store/run.h"
#include "store/slot.h"
#include "store/state.h"

typedef struct IdemSegmentInfo
{
	bool		seen;			/* false: somebody's lock prevents a look, and
								 * nothing else is known */
	bool		pristine;		/* no rows, and all files are as new */
	BlockNumber blocks;			/* of the heap */
	bool		aged;			/* it is current, and has entries that it is
								 * time to pack, because they are to expire */
} IdemSegmentInfo;

/*
 * With so many remains of runs that were not finished a slot gets no more runs.  A merge that fails
 * each time, because rows are damaged, would fill the disk with them.
 */
#define IDEM_SLOT_MAX_REMAINS	4

typedef struct IdemSlotInfo
{
	bool		seen;			/* false: as above */
	bool		pristine;
	int			first;			/* of its runs, in the survey's set */
	int			nruns;
	int			nreplaced;		/* how many of them were merged into others */
	bool		finite;			/* it has entries that expire, or is
								 * "restoring" */
	int			nremains;		/* of runs that were not finished; about so
								 * many, and at most IDEM_SLOT_MAX_REMAINS */
	bool		restoring;		/* it has rows of a run that a restore has
								 * begun, and whose end mark, or other rows,
								 * may be to come */
	const IdemRun *runs;		/* in the order of their numbers */
} IdemSlotInfo;

typedef struct IdemSurvey
{
	IdemStoreState state;
	int64		time;			/* of the store: uptime.h */
	bool		finite;			/* a slot is "finite": the time has to go on */
	IdemSegmentInfo segments[IDEM_STORE_SEGMENTS];
	IdemSlotInfo slots[IDEM_STORE_SLOTS];
	IdemRunSet	runs;			/* of all slots */
	bool		complete;		/* all slots were seen, so all runs are known */
} IdemSurvey;

/*
 * Look at one segment; waits for no lock, and gives its locks back.
 */
extern void idem_survey_segment(int number, IdemSegmentInfo *info);

/*
 * Look at everything.  Waits for no lock, and gives its locks back.  Memory:
 * the current context.
 */
extern IdemSurvey *idem_survey(void);

/* Is a run of this number there? */
extern bool idem_survey_has_run(const IdemSurvey *survey, int64 number);

/* The latest transaction that wrote an end mark; 0 if there is none. */
extern FullTransactionId idem_survey_last_packer(const IdemSurvey *survey);

/*
 * Every live snapshot of the database sees the transactions before this one.  The
 * caller has no snapshot, else that snapshot counts as well.
 */
extern FullTransactionId idem_survey_horizon(void);

#endif							/* IDEM_STORE_SURVEY_H */
