/*-------------------------------------------------------------------------
 *
 * progress.h
 *		How far a long job of this process has come, for the view stat_progress.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/shared/progress.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_SHARED_PROGRESS_H
#define IDEM_SHARED_PROGRESS_H

#include "postgres.h"

#include "datatype/timestamp.h"

typedef enum IdemJob
{
	IDEM_JOB_PACKING = 1,		/* a segment of the store into runs; entries */
	IDEM_JOB_MERGING,			/* runs of a slot into one; entries */
	IDEM_JOB_FILLING,			/* keys of a segment; pages */
	IDEM_JOB_IMPORT				/* of claims; what the importer counts */
} IdemJob;

/* Names of the jobs and of what they count, by IdemJob. */
extern const char *const idem_job_names[];
extern const char *const idem_job_units[];

/* A job of this process begins; object: the number of its table, or 0.  It ends the one before. */
extern void idem_progress_begin(IdemJob job, int64 object, int64 total);

/* So much is done.  Cheap enough for each page; for entries see ..._add. */
extern void idem_progress_set(int64 done);

/* One more entry is done; shown now and then. */
extern void idem_progress_add(void);

/*
 * An import says where it is; it begins with the first call, and ends when all is done.
 */
extern void idem_progress_import(int64 done, int64 total);

/*
 * The job has ended.  An error that ends the (sub)transaction ends it as well, and a
 * commit does not.
 */
extern void idem_progress_end(void);

/* A job of a process of this database. */
typedef struct IdemProgress
{
	int			pid;
	IdemJob		job;
	int64		object;
	int64		done;
	int64		total;
	TimestampTz since;
} IdemProgress;

/* All of them, palloc'd; *n: how many.  Takes no lock. */
extern IdemProgress *idem_progress_all(int *n);

#endif							/* IDEM_SHARED_PROGRESS_H */
