/*-------------------------------------------------------------------------
 *
 * consumers.h
 *		The columns of the table of consumers.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/claim/consumers.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_CLAIM_CONSUMERS_H
#define IDEM_CLAIM_CONSUMERS_H

/* Columns of the table idempotency_data.consumers */
#define IDEM_CONSUMERS_CONSUMER			1
#define IDEM_CONSUMERS_FOREIGN_LOCKERS	2
#define IDEM_CONSUMERS_PRIVATE_LOCKS	3
#define IDEM_CONSUMERS_RETENTION		4
#define IDEM_CONSUMERS_KEEP_IDS			5
#define IDEM_CONSUMERS_EXPIRE_BY_ID_AGE	6
#define IDEM_CONSUMERS_LEASE_DURATION	7
#define IDEM_CONSUMERS_MAX_ATTEMPTS		8
#define IDEM_CONSUMERS_MIN_BACKOFF		9
#define IDEM_CONSUMERS_MAX_BACKOFF		10
#define IDEM_CONSUMERS_OWNER			11
#define IDEM_CONSUMERS_OWNER_OID		12
#define IDEM_CONSUMERS_OWNER_CLUSTER	13
#define IDEM_CONSUMERS_NATTS			13

#endif							/* IDEM_CLAIM_CONSUMERS_H */
