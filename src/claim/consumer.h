/*-------------------------------------------------------------------------
 *
 * consumer.h
 *		What is registered about a consumer.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/claim/consumer.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_CLAIM_CONSUMER_H
#define IDEM_CLAIM_CONSUMER_H

#include "postgres.h"

/*
 * Do clients without this extension take the advisory locks of the consumer's events?
 * False for a consumer that is not registered.
 */
extern bool idem_consumer_foreign_lockers(const char *consumer, int len);

/*
 * Are the locks of the consumer's events out of the reach of SQL?  Those of the
 * extension's own consumers always are.  The caller has the table of claims open for
 * writing, which keeps the answer true as long as that lock stands.
 */
extern bool idem_consumer_private_locks(const char *consumer, int len);

/*
 * private_locks of some consumer is about to change: wait for the claims in
 * flight, keep new ones out until the transaction ends, and tell everybody.
 * Error 55000 in a transaction that has claimed.
 */
extern void idem_consumer_change_locks(void);

/* Registers for invalidations; called once per process. */
extern void idem_consumer_init(void);

#endif							/* IDEM_CLAIM_CONSUMER_H */
