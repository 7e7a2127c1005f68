/*-------------------------------------------------------------------------
 *
 * document.h
 *		How long the text of a jsonb may be.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/shared/document.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_DOCUMENT_H
#define IDEM_DOCUMENT_H

#include "postgres.h"

#include "lib/stringinfo.h"

/*
 * Longest text of any jsonb that is stored.  COPY at most doubles it, and the row of a
 * dump has to stay below 1 GB.
 */
#define IDEM_MAX_DOCUMENT_TEXT	(256 * 1024 * 1024)

/*
 * Where the binary form of a jsonb is limited, its text may be so many times as long.
 * Strings never need more than six.
 */
#define IDEM_DOCUMENT_GROWTH	8

/*
 * Error 54000 if the text of a jsonb is longer than IDEM_MAX_DOCUMENT_TEXT, or than
 * IDEM_DOCUMENT_GROWTH times max_binary.  The message names the argument.
 */
extern void idem_check_document(const char *name, Datum jsonb, int64 max_binary);

/*
 * Append a string of the server's encoding in quotes, with its escapes: those
 * of RFC 8785, which are those of jsonb::text, too.
 */
extern void idem_json_write_string(StringInfo out, const char *s, int len);

#endif							/* IDEM_DOCUMENT_H */
