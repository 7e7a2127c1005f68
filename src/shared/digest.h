/*-------------------------------------------------------------------------
 *
 * digest.h
 *		SHA-256: fast, and by pgcrypto for SQL to see and recompute.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/shared/digest.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_DIGEST_H
#define IDEM_DIGEST_H

#include "postgres.h"

#include "common/sha2.h"

/*
 * SHA-256 of bytes that come in parts: begin, add what there is, end.  A process
 * has one such computation at a time; one that an error ends is forgotten by the next
 * begin.  Adding looks for interrupts in long parts.  Error XX000 if the library fails.
 */
extern void idem_sha256_begin(void);
extern void idem_sha256_add(const void *data, size_t len);
extern void idem_sha256_end(uint8 digest[PG_SHA256_DIGEST_LENGTH]);

/*
 * pgcrypto.digest(data, 'sha256'), palloc'd in the current context.  Error
 * 55000 if pgcrypto is not installed, 42883 if it lacks the function.
 */
extern bytea *idem_digest_sha256(bytea *data);

#endif							/* IDEM_DIGEST_H */
