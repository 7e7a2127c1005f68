/*-------------------------------------------------------------------------
 *
 * setting.c
 *		The settings of claims.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/claim/setting.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <limits.h>

#include "claim/setting.h"
#include "shared/args.h"

int			idem_uncompleted_claims = IDEM_UNCOMPLETED_ERROR;
bool		idem_durable_complete = true;
int			idem_claim_retention = 0;
int			idem_dead_retention = 30 * SECS_PER_DAY;
int			idem_max_claim_locks = -1;
char	   *idem_claimed_consumer = NULL;

static const struct config_enum_entry uncompleted_options[] = {
	{"error", IDEM_UNCOMPLETED_ERROR, false},
	{"keep", IDEM_UNCOMPLETED_KEEP, false},
	{NULL, 0, false}
};

void
idem_claim_setting_init(void)
{
	DefineCustomEnumVariable("idempotency.uncompleted_claims",
							 "What COMMIT and PREPARE TRANSACTION do with a claim that was neither completed nor released.",
							 "\"error\" refuses to commit; \"keep\" remembers the event as in progress, for another claim to take over.",
							 &idem_uncompleted_claims,
							 IDEM_UNCOMPLETED_ERROR, uncompleted_options,
							 PGC_USERSET, 0, NULL, NULL, NULL);

	DefineCustomBoolVariable("idempotency.durable_complete",
							 "Makes a transaction that completed a claim commit synchronously, whatever synchronous_commit says.",
							 "Without it, an event acknowledged after an asynchronous commit may be lost with its effect.",
							 &idem_durable_complete,
							 true,
							 PGC_USERSET, 0, NULL, NULL, NULL);

	idem_define_int("idempotency.claim_retention",
					"How long completed events are remembered at least, for consumers without a retention of their own.",
					"It is rounded up to an hour, a day or 31 days; 0, and more than 31 days, means for ever.",
					&idem_claim_retention, 0, INT_MAX, PGC_SUSET, GUC_UNIT_S);

	idem_define_int("idempotency.dead_retention",
					"How long dead events and requests are kept at least, for an operator to decide on.",
					"The retention of their consumer counts where it is longer.  0 means for ever.",
					&idem_dead_retention, 0, INT_MAX, PGC_SUSET, GUC_UNIT_S);

	idem_define_int("idempotency.max_claim_locks",
					"Number of claims per transaction that keep their advisory lock until it ends.",
					"Further claims are written at once and let their lock go. -1 means max_locks_per_transaction.",
					&idem_max_claim_locks, -1, INT_MAX, PGC_USERSET, 0);

	DefineCustomStringVariable("idempotency.claimed_consumer",
							   "Consumer for which the program of a postgres sink has claimed the events that it calls a function with.",
							   "The program sets it. The function can neither claim these events for that consumer nor end the claims.",
							   &idem_claimed_consumer,
							   "",
							   PGC_USERSET, GUC_NO_SHOW_ALL | GUC_NOT_IN_SAMPLE | GUC_DISALLOW_IN_FILE,
							   NULL, NULL, NULL);
}
