/*-------------------------------------------------------------------------
 *
 * header.h
 *		The headers that an event brings, and the rules of their names.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/common/header.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_SINK_HEADER_H
#define IDEM_SINK_HEADER_H

#include "sink/common/event.h"
#include "sink/common/json.h"

/* Where headers go; each place has names of its own that no event may bring. */
typedef enum IdemHeaderPlace
{
	IDEM_HEADERS_ANY = 0,		/* no name is reserved */
	IDEM_HEADERS_OF_HTTP = 0x01,	/* of an event, in a request */
	IDEM_HEADERS_OF_OPTION = 0x02,	/* of the http sink's option "headers" */
	IDEM_HEADERS_OF_KAFKA = 0x04,
	IDEM_HEADERS_OF_NATS = 0x08,
	IDEM_HEADERS_OF_AMQP = 0x10,
	IDEM_HEADERS_OF_MQTT = 0x20
} IdemHeaderPlace;

/* Walks over the headers of an event; at is 0 at first. */
typedef struct IdemHeader
{
	IdemText	name;			/* terminated */
	IdemText	value;			/* the content of a string, the JSON text of
								 * another value; terminated */
	bool		is_null;
	size_t		at;
} IdemHeader;

/* Take the next header that may go there; false at the end. */
extern bool idem_header_next(IdemHeader *h, const IdemSinkEvent *e, IdemHeaderPlace place);

/* Free the texts of h. */
extern void idem_header_end(IdemHeader *h);

/* Is the name one that only the sink, or the transport, sets there? */
extern bool idem_header_is_reserved(IdemHeaderPlace place, const char *name, size_t len);

/* Are both names the same, to somebody who ignores case and takes "_" for "-"? */
extern bool idem_header_is_same(const char *name, size_t len, const char *other);

/* Is the name a token of RFC 9110? */
extern bool idem_header_is_token(const char *name, size_t len);

/* Has the text a control character that could end the line? */
extern bool idem_header_has_control(const char *text, size_t len);

#endif							/* IDEM_SINK_HEADER_H */
