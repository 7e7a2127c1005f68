/*-------------------------------------------------------------------------
 *
 * digest.h
 *		Digests by pgcrypto, found where it is installed.
 *
 * These digests are for SQL to see and recompute.  The hot paths hash by the
 * server's own routines.
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

/*
 * pgcrypto.digest(data, 'sha256'), palloc'd in the current context.  Error
 * 55000 if pgcrypto is not installed, 42883 if it lacks the function.
 */
extern bytea *idem_digest_sha256(bytea *data);

#endif							/* IDEM_DIGEST_H */
