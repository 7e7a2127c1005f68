/*-------------------------------------------------------------------------
 *
 * change.h
 *		Changes of the locks that guard a consumer's events.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/claim/change.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_CLAIM_CHANGE_H
#define IDEM_CLAIM_CHANGE_H

#include "postgres.h"

/* What a transaction that has not ended changes about a consumer. */
typedef struct IdemChange
{
	bool		locks;			/* private locks become published ones, or the
								 * other way round */
	bool		foreign_lockers;	/* it gets foreign lockers */
} IdemChange;

/*
 * What is being changed about a consumer.  The caller has the store open for writing, and
 * reads the policy after this call.  If there is no change, none begins to count before
 * the caller gives the store's lock back.
 */
extern IdemChange idem_change_look(const char *consumer, int len);

/* An invalidation of the table of consumers has arrived: somebody may be at a change. */
extern void idem_change_note(void);

/*
 * Announce a change of a consumer, until the (sub)transaction ends, and wait for the
 * transactions that may not have heard of it.  consumers: OID of the table of consumers.
 * Error 55P03 if one of them does not end in the time of lock_timeout, or in a minute
 * where that is 0.
 */
extern void idem_change_announce(Oid consumers, const char *consumer, int len, IdemChange change);

#endif							/* IDEM_CLAIM_CHANGE_H */
