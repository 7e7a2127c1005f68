/*-------------------------------------------------------------------------
 *
 * number.h
 *		Numbers of a document in canonical form.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/canonical/number.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_CANONICAL_NUMBER_H
#define IDEM_CANONICAL_NUMBER_H

#include "postgres.h"

#include "lib/stringinfo.h"
#include "utils/numeric.h"

/*
 * Append the canonical form of a number.  Error 22023 if it is not finite,
 * which JSON has no form for.
 */
extern void idem_canonical_write_number(StringInfo out, Numeric number);

#endif							/* IDEM_CANONICAL_NUMBER_H */
