/*-------------------------------------------------------------------------
 *
 * consumer.h
 *		The registered properties of a consumer.
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
 * Do clients without this extension take the advisory locks of the consumer's
 * events?  False for a consumer that is not registered.
 */
extern bool idem_consumer_foreign_lockers(const char *consumer, int len);

/*
 * Are the locks of the consumer's events private, i.e. out of the reach of
 * SQL?  Always true for the extension's own consumers.  The caller has the
 * table of claims open for writing; the answer stays true as long as the
 * caller keeps that lock.
 */
extern bool idem_consumer_private_locks(const char *consumer, int len);

/*
 * Call before private_locks of a consumer changes.  Waits for the claims in
 * flight, keeps new claims out until the transaction ends, and tells all
 * processes to read the names again.  Error 55000 in a transaction that has
 * claimed.
 */
extern void idem_consumer_change_locks(void);

/* Registers for invalidations; called once per process. */
extern void idem_consumer_init(void);

#endif							/* IDEM_CLAIM_CONSUMER_H */
