/*-------------------------------------------------------------------------
 *
 * json_text.h
 *		A jsonb document as text.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/stream/json_text.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_RELAY_STREAM_JSON_TEXT_H
#define IDEM_RELAY_STREAM_JSON_TEXT_H

#include "postgres.h"

#include "lib/stringinfo.h"
#include "utils/jsonb.h"

/*
 * Append the document, in the server encoding and byte for byte as jsonb::text
 * has it.  Raises an error if the text would have 1 GB.
 */
extern void idem_json_text(StringInfo out, const Jsonb *document);

#endif							/* IDEM_RELAY_STREAM_JSON_TEXT_H */
