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

extern void idem_finish_init(void);

#endif							/* IDEM_CLAIM_FINISH_H */
