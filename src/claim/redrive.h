/*-------------------------------------------------------------------------
 *
 * redrive.h
 *		What an operator does about dead events.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/claim/redrive.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_CLAIM_REDRIVE_H
#define IDEM_CLAIM_REDRIVE_H

#include "postgres.h"

#include "claim/claim.h"

/*
 * Have dead events of a consumer tried again, with all their attempts; discard:
 * remember them as completed instead.  scope: of requests, whose keys the items are;
 * NULL: events.  n < 0: all dead ones of that scope, or with scope NULL all events and
 * all requests, up to the budget of locks; call it again until it returns 0.  What is
 * not dead is passed over.  Returns how many were dead.
 *
 * Errors: 53400 past the budget of locks, if the events are named; 40001 as of
 * idem_claim_event.
 */
extern int64 idem_redrive(const IdemClaimItem *items, int n, const char *consumer,
						  int consumerlen, const text *scope, bool discard);

#endif							/* IDEM_CLAIM_REDRIVE_H */
