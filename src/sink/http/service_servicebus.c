/*-------------------------------------------------------------------------
 *
 * service_servicebus.c
 *		Queues and topics of Azure Service Bus: Send Message Batch of its REST API.
 *
 * The option url is the queue's or topic's,
 * https://NAMESPACE.servicebus.windows.net/NAME.  The id of a message is the
 * event's, for duplicate detection.  With key order its session is its key.  The
 * login is a shared access signature: user is the policy, password its key.
 *
 * INVARIANT
 *		Service Bus takes a batch as a whole or not at all.  So with key order a
 *		request has events of one key only, and any number of them.
 *
 * MEMORY
 *		None of its own.  LOCKING: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/http/service_servicebus.c
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "sink/http/sink.h"

#define MAX_MESSAGES	1000
#define USUAL_MESSAGES	100
#define MAX_BYTES		(192 * 1024)	/* of 256 kB for the batch */
#define MAX_SESSION		128
#define SIGNATURE_LIFE	1200	/* s */
#define TYPE			"application/vnd.microsoft.servicebus.json"

static const char *
configure(HSink *p)
{
	HSinkConfig *c = &p->config;

	if (c->resource[0] == '\0' || strchr(c->resource, '?') != NULL)
		return "option \"url\" must be a queue's or a topic's, as in https://NAMESPACE.servicebus.windows.net/NAME";
	if (strcmp(c->method, "POST") != 0)
		return "option \"method\" is for webhooks";
	if (c->user == NULL || c->password == NULL)
		return "Service Bus needs the options \"user\" (name of a policy), and \"password\" (its key) or \"secret_file\"";
	c->auth = HSINK_AUTH_SAS;
	return hsink_check_batch_options(p);
}

/* Add a member with a string as its value. */
static void
add_string(IdemText *t, const char *before, const void *value, size_t len)
{
	idem_text_puts(t, before);
	idem_text_add_json(t, value, len);
}

/* Add a property of the user, behind others. */
static void
add_property(IdemText *t, const void *name, size_t name_len, const void *value, size_t len)
{
	if (t->data[t->len - 1] != '{')
		idem_text_puts(t, ",");
	idem_text_add_json(t, name, name_len);
	add_string(t, ":", value, len);
}

/* Add the event's own headers as properties. */
static void
add_own(IdemText *t, const HSinkEvent *e)
{
	IdemText	name = {NULL, 0, 0};
	IdemText	text = {NULL, 0, 0};
	const char *value;
	size_t		len;
	size_t		at = 0;

	while (e->headers.len > 0 && idem_json_next(e->headers.data, e->headers.len, &at, &name, &value, &len))
	{
		text.len = 0;
		if (len == 4 && memcmp(value, "null", 4) == 0)
			continue;
		if (value[0] == '"')
			idem_json_unquote(&text, value, len);
		else
			idem_text_add(&text, value, len);
		add_property(t, name.data, name.len, text.data, text.len);
	}
	free(name.data);
	free(text.data);
}

/* Add the event as a message. */
static void
add_message(const HSink *p, HSinkRequest *r, const HSinkEvent *e)
{
	IdemText   *t = &r->body;
	IdemText	text = {NULL, 0, 0};
	HSinkAttribute attributes[HSINK_MAX_ATTRIBUTES];
	int			n = hsink_attributes(e, hsink_add_message(p, &text, e), attributes);
	IdemProtoStr type = hsink_content_type(p, e);

	add_string(t, r->count == 0 ? "[{\"Body\":" : ",{\"Body\":", text.data, text.len);
	add_string(t, ",\"BrokerProperties\":{\"MessageId\":", e->id, strlen(e->id));
	if (p->config.format == HSINK_PLAIN)
		add_string(t, ",\"ContentType\":", type.data, type.len);
	else
		idem_text_puts(t, ",\"ContentType\":\"application/cloudevents+json; charset=UTF-8\"");
	if (p->config.key_order)
	{
		text.len = 0;
		hsink_add_key(&text, e, MAX_SESSION);
		add_string(t, ",\"SessionId\":", text.data, text.len);
	}
	idem_text_puts(t, "},\"UserProperties\":{");
	add_own(t, e);
	for (int i = 0; i < n; i++)
		add_property(t, attributes[i].name, strlen(attributes[i].name), attributes[i].value.data, attributes[i].value.len);
	idem_text_puts(t, "}}");
	free(text.data);
}

static HSinkAdd
add(HSink *p, HSinkRequest *r, const HSinkEvent *e, HSinkProblem *problem)
{
	size_t		start;

	(void) problem;
	if (r->count == 0)
		r->body.len = 0;
	start = r->body.len;
	add_message(p, r, e);
	if (r->count > 0 && r->body.len > MAX_BYTES)
	{
		r->body.len = start;
		return HSINK_FULL;
	}
	return HSINK_ADDED;
}

/* Add the login: a signature over the URL of queue or topic and a time. */
static void
add_signature(HSinkRequest *r, const HSinkConfig *c)
{
	IdemText	uri = {NULL, 0, 0};
	IdemText	token = {NULL, 0, 0};
	IdemText	signature = {NULL, 0, 0};
	char		end[24];
	uint8_t		mac[32];

	hsink_add_encoded(&uri, c->url, strlen(c->url));
	snprintf(end, sizeof(end), "%lld", (long long) time(NULL) + SIGNATURE_LIFE);
	hsink_hmac(c->password, strlen(c->password), (const IdemProtoStr[])
			   {
				   {uri.data, (uint32_t) uri.len},
				   {"\n", 1},
				   {end, (uint32_t) strlen(end)}
			   },
			   3, mac);
	idem_text_add_base64(&signature, mac, sizeof(mac));
	idem_text_puts(&token, "SharedAccessSignature sr=");
	idem_text_add(&token, uri.data, uri.len);
	idem_text_puts(&token, "&sig=");
	hsink_add_encoded(&token, signature.data, signature.len);
	idem_text_puts(&token, "&se=");
	idem_text_puts(&token, end);
	idem_text_puts(&token, "&skn=");
	hsink_add_encoded(&token, c->user, strlen(c->user));
	hsink_add_header(r, "Authorization", token.data, token.len);
	free(uri.data);
	free(token.data);
	free(signature.data);
}

static void
finish(HSink *p, HSinkRequest *r)
{
	idem_text_puts(&r->body, "]");
	hsink_begin_request(p, r, p->config.resource);
	idem_text_puts(&r->url, "/messages");
	hsink_add_header(r, "Content-Type", TYPE, strlen(TYPE));
	add_signature(r, &p->config);
}

static HSinkBlame
blame(HSink *p, const HSinkRequest *r)
{
	(void) p;
	return r->status == 401 || r->status == 404 || r->status == 410 ? HSINK_BLAME_CONFIG : HSINK_BLAME_STATUS;
}

const HSinkService hsink_servicebus = {
	.name = "servicebus", .most = MAX_MESSAGES, .usual = USUAL_MESSAGES, .one_key = true,
	.configure = configure, .add = add, .finish = finish, .blame = blame
};
