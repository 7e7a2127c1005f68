/*-------------------------------------------------------------------------
 *
 * expiry.h
 *		Is an event too old to be claimed?
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/claim/expiry.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_CLAIM_EXPIRY_H
#define IDEM_CLAIM_EXPIRY_H

#include "postgres.h"

#include "datatype/timestamp.h"

#include "claim/consumer.h"

/*
 * Is the event too old at the time now?  valid_until: what the caller said, or
 * NULL, and then the consumer's policy decides by the id's age.  The answer is
 * about events of which no completion is remembered.
 */
extern bool idem_expiry_passed(const TimestampTz *valid_until, const IdemConsumerPolicy *policy,
							   const char *id, int idlen, TimestampTz now);

#endif							/* IDEM_CLAIM_EXPIRY_H */
