/*-------------------------------------------------------------------------
 *
 * format.h
 *		Ids, times and bytes as text.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/common/format.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_SINK_FORMAT_H
#define IDEM_SINK_FORMAT_H

#include <stddef.h>
#include <stdint.h>

#include "sink/common/json.h"

#define IDEM_UUID_TEXT	37		/* with its terminator */
#define IDEM_TIME_TEXT	96

/* Write an event's id as a uuid is written. */
extern void idem_write_uuid(char *dst, const uint8_t *id);

/* Write a time, in microseconds since 1970, as RFC 3339 has it. */
extern void idem_write_time(char *dst, size_t cap, int64_t us);

/* Add bytes in base64, with padding. */
extern void idem_text_add_base64(IdemText *t, const void *data, size_t len);

/* Add bytes, percent-encoded but for the unreserved characters of RFC 3986. */
extern void idem_text_add_encoded(IdemText *t, const void *data, size_t len);

#endif							/* IDEM_SINK_FORMAT_H */
