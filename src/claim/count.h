/*-------------------------------------------------------------------------
 *
 * count.h
 *		How often each consumer was given which verdict.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/claim/count.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_CLAIM_COUNT_H
#define IDEM_CLAIM_COUNT_H

#include "postgres.h"

#include "claim/arg.h"
#include "claim/claim.h"
#include "shared/args.h"

/* The GUC idempotency.max_counted_consumers: the number of consumers with counters. */
extern int	idem_max_counted_consumers;

extern void idem_count_init(void);

extern Size idem_count_shmem_size(void);
extern void idem_count_shmem_attach(void *segment, bool found);

/* Count n verdicts.  Nothing happens where the library is not preloaded. */
extern void idem_count_verdicts(IdemStr consumer, IdemClaimResult verdict, int64 n);

/* A database was dropped: its consumers give up their counters. */
extern void idem_count_database_dropped(Oid dboid);

/* The counters of a consumer. */
typedef struct IdemCounts
{
	int			len;
	char		consumer[IDEM_MAX_NAME_BYTES];
	int64		verdicts[IDEM_CLAIM_RESULTS];
} IdemCounts;

/* Those of this database, palloc'd; *n: how many.  NULL: the library is not preloaded. */
extern IdemCounts *idem_counts(int *n);

/*
 * Verdicts of all databases that were not counted, since max_counted_consumers others have
 * the counters.
 */
extern int64 idem_count_uncounted(void);

#endif							/* IDEM_CLAIM_COUNT_H */
