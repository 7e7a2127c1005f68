/*-------------------------------------------------------------------------
 *
 * plan.h
 *		Which step is there for a packer to take?
 *
 * Private to src/store.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/store/plan.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_STORE_PLAN_H
#define IDEM_STORE_PLAN_H

#include "postgres.h"

#include "access/transam.h"

#include "store/survey.h"

typedef enum IdemStepKind
{
	IDEM_STEP_SEAL,
	IDEM_STEP_CLOSE,
	IDEM_STEP_CUT_SEGMENT,
	IDEM_STEP_CUT_SLOT,
	IDEM_STEP_COPY,
	IDEM_STEP_MERGE,
	IDEM_STEP_KINDS
} IdemStepKind;

typedef struct IdemStep
{
	IdemStepKind kind;
	int			number;			/* of the segment or slot; else 0 */
	int			target;			/* merge: slot of the new run */
	int			class;			/* merge: of the runs */
	int			level;			/* merge: of one of them */
} IdemStep;

/* Steps that were tried and could not be taken: bits by segment or slot. */
typedef struct IdemTried
{
	uint64		steps[IDEM_STEP_KINDS];
} IdemTried;

#define IDEM_STEP_BIT(n) ((uint64) 1 << (n))

/*
 * Find a step that has not been tried; false if there is none.  Every live
 * snapshot sees the transactions before the horizon.  A step may turn out to be
 * impossible after all, e.g. for want of a lock.
 */
extern bool idem_plan_step(const IdemSurvey *survey, FullTransactionId horizon,
						   const IdemTried *tried, IdemStep *step);

/* Is run i of the slot one of those that the step merges? */
extern bool idem_plan_merges(const IdemSurvey *survey, const IdemStep *step, int i);

/*
 * A slot for a run of a class that is being packed now, not one of those in
 * *taken, to which it is added; -1: there is none.
 */
extern int	idem_plan_target(const IdemSurvey *survey, int class, uint64 *taken);

#endif							/* IDEM_STORE_PLAN_H */
