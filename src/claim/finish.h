/*-------------------------------------------------------------------------
 *
 * finish.h
 *		Acts on a transaction's claims at COMMIT and PREPARE TRANSACTION.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/claim/finish.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_CLAIM_FINISH_H
#define IDEM_CLAIM_FINISH_H

/*
 * Before COMMIT or PREPARE: refuse or keep undecided claims, and force a durable
 * commit if the transaction completed a claim.
 */
extern void idem_finish_claims(bool prepare);

#endif							/* IDEM_CLAIM_FINISH_H */
