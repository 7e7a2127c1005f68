/*-------------------------------------------------------------------------
 *
 * event.h
 *		An event as a message is made of it, wherever its bytes are kept.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/common/event.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_SINK_EVENT_H
#define IDEM_SINK_EVENT_H

#include "sink/common/format.h"
#include "sink/protocol/protocol.h"

/* The strings belong to whoever made the struct. */
typedef struct IdemSinkEvent
{
	char		id[IDEM_UUID_TEXT];
	uint8_t		flags;			/* flags of the EVENT frame */
	int64_t		enqueued_at;	/* us since 1970 */
	IdemProtoStr aggregate_type;
	IdemProtoStr aggregate_id;
	IdemProtoStr event_type;
	IdemProtoStr content_type;
	IdemProtoStr headers;		/* a JSON object, or empty */
	IdemProtoStr payload;
} IdemSinkEvent;

/* A string that is written into the sources. */
#define IDEM_STR(s)	((IdemProtoStr) {(s), (uint32_t) strlen(s)})

#endif							/* IDEM_SINK_EVENT_H */
