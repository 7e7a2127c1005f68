/*-------------------------------------------------------------------------
 *
 * utf8.h
 *		Text of the server in UTF-8, which sink programs speak.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/stream/utf8.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_RELAY_STREAM_UTF8_H
#define IDEM_RELAY_STREAM_UTF8_H

#include "postgres.h"

#include "outbox/reader.h"
#include "sink/protocol/protocol.h"

/*
 * The text in UTF-8: the text itself, or palloc'd.  Returns false, and raises
 * no error, if UTF-8 lacks a character of the text, or some bytes are no
 * character.  In a transaction, since looking up a conversion needs one.
 */
extern bool idem_utf8_text(IdemEventText text, IdemProtoStr *out);
extern bool idem_utf8_cstring(const char *s, IdemProtoStr *out);
extern bool idem_utf8_jsonb(Datum jsonb, IdemProtoStr *out);

#endif							/* IDEM_RELAY_STREAM_UTF8_H */
