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
 * Are there clients of this consumer's events that know the advisory lock
 * only?  False for a consumer that is not registered.
 */
extern bool idem_consumer_foreign_lockers(const char *consumer, int len);

#endif							/* IDEM_CLAIM_CONSUMER_H */
