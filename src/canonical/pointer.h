/*-------------------------------------------------------------------------
 *
 * pointer.h
 *		JSON pointers (RFC 6901) into a jsonb document.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/canonical/pointer.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_CANONICAL_POINTER_H
#define IDEM_CANONICAL_POINTER_H

#include "postgres.h"

#include "utils/jsonb.h"

/* Is the text a JSON pointer: empty, or "/name/0/with~1slash"? */
extern bool idem_pointer_is_valid(const char *pointer, int len);

/*
 * Replace the value, a document, by its part that a valid pointer leads to.  If
 * there is no such part, return false; the value is then undefined.
 */
extern bool idem_pointer_follow(const char *pointer, int len, JsonbValue *value);

#endif							/* IDEM_CANONICAL_POINTER_H */
