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
#ifndef _GNU_SOURCE
#define _GNU_SOURCE				/* memmem */
#endif

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "sink/common/cloudevent.h"
#include "sink/common/hide.h"
#include "sink/http/sink.h"

#define MAX_MESSAGES	1000
#define USUAL_MESSAGES	100
#define MAX_BYTES		(192 * 1024)	/* of 256 kB for the batch */
#define MAX_SESSION		128
#define SIGNATURE_LIFE	1200	/* s */
#define USED_FOR		600000	/* ms that requests use a signature */
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

/* Add the event as a message. */
static bool
add(HSink *p, HSinkRequest *r, const HSinkEvent *e, HSinkProblem *problem)
{
	IdemText   *t = &r->body;
	IdemText	text = {NULL, 0, 0};
	bool		base64 = hsink_add_message(p, &text, e);
	IdemProtoStr type = hsink_content_type(p, e);

	(void) problem;
	hsink_add_string(t, r->count == 0 ? "[{\"Body\":" : ",{\"Body\":", text.data, text.len);
	hsink_add_string(t, ",\"BrokerProperties\":{\"MessageId\":", e->id, strlen(e->id));
	if (p->config.format == HSINK_PLAIN)
		hsink_add_string(t, ",\"ContentType\":", type.data, type.len);
	else
		idem_text_puts(t, ",\"ContentType\":\"" IDEM_CE_JSON_TYPE "\"");
	if (p->config.key_order)
	{
		text.len = 0;
		hsink_add_key(&text, e, MAX_SESSION);
		hsink_add_string(t, ",\"SessionId\":", text.data, text.len);
	}
	idem_text_puts(t, "},\"UserProperties\":");
	hsink_add_properties(t, e, base64);
	idem_text_puts(t, "}");
	free(text.data);
	r->weight = t->len;
	return true;
}

/* Make the login: a signature over the URL of queue or topic and a time. */
static void
renew_signature(HSink *p)
{
	const HSinkConfig *c = &p->config;
	IdemText	uri = {NULL, 0, 0};
	IdemText	token = {NULL, 0, 0};
	IdemText	signature = {NULL, 0, 0};
	IdemText	encoded = {NULL, 0, 0};
	char		end[24];
	uint8_t		mac[32];
	IdemProtoStr parts[3] = {{NULL, 0}, {"\n", 1}, {end, 0}};

	idem_text_add_encoded(&uri, c->url, strlen(c->url));
	snprintf(end, sizeof(end), "%lld", (long long) time(NULL) + SIGNATURE_LIFE);
	parts[0] = (IdemProtoStr)
	{
		uri.data, (uint32_t) uri.len
	};
	parts[2].len = (uint32_t) strlen(end);
	hsink_hmac(c->password, strlen(c->password), parts, 3, mac);
	idem_text_add_base64(&signature, mac, sizeof(mac));
	idem_text_add_encoded(&encoded, signature.data, signature.len);
	free(p->login);
	idem_text_puts(&token, "SharedAccessSignature sr=");
	idem_text_add(&token, uri.data, uri.len);
	idem_text_puts(&token, "&se=");
	idem_text_puts(&token, end);
	idem_text_puts(&token, "&skn=");
	idem_text_add_encoded(&token, c->user, strlen(c->user));
	idem_text_puts(&token, "&sig=");
	idem_text_add(&token, encoded.data, encoded.len);
	p->login = idem_text_terminate(&token);
	idem_sink_keep_token(idem_text_terminate(&encoded));
	p->login_until = idem_sink_clock() + USED_FOR;
	free(uri.data);
	free(signature.data);
	free(encoded.data);
}

static void
finish(HSink *p, HSinkRequest *r)
{
	idem_text_puts(&r->body, "]");
	hsink_begin_request(p, r, p->config.resource);
	idem_text_puts(&r->url, "/messages");
	hsink_add_header(r, "Content-Type", TYPE, strlen(TYPE));
	if (p->login == NULL || idem_sink_clock() >= p->login_until)
		renew_signature(p);
	hsink_add_header(r, "Authorization", p->login, strlen(p->login));
}

/* HTTP 403 is a message that is too large, or a queue that is full. */
static bool
is_full(const HSinkRequest *r)
{
	return r->status == 403 && r->answer.len > 0 && memmem(r->answer.data, r->answer.len, "uota", 4) != NULL;
}

static HSinkBlame
blame(HSink *p, const HSinkRequest *r)
{
	(void) p;
	if (is_full(r))
		return HSINK_BLAME_BUSY;
	return r->status == 401 || r->status == 404 || r->status == 410 ? HSINK_BLAME_CONFIG : HSINK_BLAME_STATUS;
}

const HSinkService hsink_servicebus = {
	.name = "servicebus", .most = MAX_MESSAGES, .most_weight = MAX_BYTES, .usual = USUAL_MESSAGES, .one_key = true,
	.configure = configure, .add = add, .finish = finish, .blame = blame
};
