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
 * What the text is in UTF-8: itself, or palloc'd.  False, and no error, if it
 * has a character that UTF-8 has not, or bytes that are no character.  In a
 * transaction, which the conversion is looked up in.
 */
extern bool idem_utf8_text(IdemEventText text, IdemProtoStr *out);
extern bool idem_utf8_cstring(const char *s, IdemProtoStr *out);
extern bool idem_utf8_jsonb(Datum jsonb, IdemProtoStr *out);

#endif							/* IDEM_RELAY_STREAM_UTF8_H */
