/*-------------------------------------------------------------------------
 *
 * json_string.h
 *		A string as JSON has it.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/shared/json_string.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_SHARED_JSON_STRING_H
#define IDEM_SHARED_JSON_STRING_H

#include "postgres.h"

#include "lib/stringinfo.h"

/*
 * Append a string of the server's encoding in quotes, with its escapes: those
 * of RFC 8785, which are those of jsonb::text, too.
 */
extern void idem_json_write_string(StringInfo out, const char *s, int len);

#endif							/* IDEM_SHARED_JSON_STRING_H */
