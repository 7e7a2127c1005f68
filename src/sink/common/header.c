/*-------------------------------------------------------------------------
 *
 * header.c
 *		The headers that an event brings, and the rules of their names.
 *
 * INVARIANT
 *		No event sets a header that the sink sets itself, or that steers the
 *		transport: length, type and encoding of the body, conditions, logins, who
 *		sent it.  Names are compared without case, and "_" is "-": what stands in
 *		between (CGI, WSGI) may take the one for the other.
 *
 * MEMORY
 *		The caller's texts.  LOCKING: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/common/header.c
 *
 *-------------------------------------------------------------------------
 */
#include <stdlib.h>
#include <string.h>

#include "sink/common/header.h"

#define HTTP	IDEM_HEADERS_OF_HTTP
#define OPTION	IDEM_HEADERS_OF_OPTION
#define KAFKA	IDEM_HEADERS_OF_KAFKA
#define NATS	IDEM_HEADERS_OF_NATS
#define AMQP	IDEM_HEADERS_OF_AMQP
#define MQTT	IDEM_HEADERS_OF_MQTT

/* The one list for all sinks; "x-*" stands for all x-... */
static const struct
{
	const char *name;
	int			places;
}			reserved[] = {
	{"aggregate-id", NATS | AMQP | MQTT}, {"aggregate-type", NATS | AMQP | MQTT}, {"authorization", HTTP | OPTION}, {"bcc", AMQP}, {"cc", AMQP}, {"ce-*", HTTP | KAFKA | NATS},
	{"cloudevents*", AMQP}, {"connection", HTTP | OPTION}, {"content-*", HTTP}, {"content-length", OPTION}, {"content-type", OPTION | KAFKA | NATS},
	{"cookie", HTTP | OPTION}, {"event-id", NATS | MQTT}, {"event-type", NATS | MQTT}, {"expect", HTTP | OPTION},
	{"forwarded", HTTP | OPTION}, {"host", HTTP | OPTION}, {"http2-settings", HTTP | OPTION}, {"id", KAFKA},
	{"idempotency-key", HTTP | OPTION}, {"if-*", HTTP}, {"keep-alive", HTTP | OPTION}, {"nats-*", NATS},
	{"proxy-*", HTTP | OPTION}, {"range", HTTP}, {"set-cookie", HTTP}, {"te", HTTP | OPTION}, {"trailer", HTTP | OPTION},
	{"transfer-encoding", HTTP | OPTION}, {"type", KAFKA}, {"upgrade", HTTP | OPTION}, {"user-agent", HTTP}, {"via", HTTP},
	{"webhook-*", HTTP | OPTION}, {"x-death", AMQP}, {"x-delivery-count", AMQP}, {"x-first-death-*", AMQP}, {"x-forwarded-*", HTTP}, {"x-http-method-override", HTTP}, {"x-last-death-*", AMQP}, {"x-real-ip", HTTP}
};

static char
folded(char c)
{
	return c == '_' ? '-' : c >= 'A' && c <= 'Z' ? (char) (c + 32) : c;
}

/* Are the first n characters of both the same? */
static bool
begin_alike(const char *a, const char *b, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (folded(a[i]) != folded(b[i]))
			return false;
	return true;
}

bool
idem_header_is_same(const char *name, size_t len, const char *other)
{
	return strlen(other) == len && begin_alike(name, other, len);
}

bool
idem_header_is_reserved(IdemHeaderPlace place, const char *name, size_t len)
{
	for (size_t i = 0; i < sizeof(reserved) / sizeof(reserved[0]); i++)
	{
		const char *ours = reserved[i].name;
		size_t		n = strlen(ours) - 1;

		if ((reserved[i].places & (int) place) == 0)
			continue;
		if (ours[n] == '*' ? len >= n && begin_alike(name, ours, n) : idem_header_is_same(name, len, ours))
			return true;
	}
	return false;
}

bool
idem_header_is_token(const char *name, size_t len)
{
	static const char letters[] =
	"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789!#$%&'*+-.^_`|~";

	for (size_t i = 0; i < len; i++)
		if (name[i] == '\0' || strchr(letters, name[i]) == NULL)
			return false;
	return len > 0;
}

bool
idem_header_has_control(const char *text, size_t len)
{
	for (size_t i = 0; i < len; i++)
		if (((unsigned char) text[i] < ' ' && text[i] != '\t') || text[i] == 0x7F)
			return true;
	return false;
}

bool
idem_header_next(IdemHeader *h, const IdemSinkEvent *e, IdemHeaderPlace place)
{
	const char *value;
	size_t		len;

	do
	{
		if (e->headers.len == 0 || !idem_json_next(e->headers.data, e->headers.len, &h->at, &h->name, &value, &len))
			return false;
	} while (idem_header_is_reserved(place, h->name.data, h->name.len));
	h->value.len = 0;
	if (value[0] == '"')
		idem_json_unquote(&h->value, value, len);
	else
		idem_text_add(&h->value, value, len);
	h->is_null = len == 4 && memcmp(value, "null", 4) == 0;
	idem_text_terminate(&h->name);
	idem_text_terminate(&h->value);
	return true;
}

void
idem_header_end(IdemHeader *h)
{
	free(h->name.data);
	free(h->value.data);
}
