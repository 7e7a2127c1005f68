/*-------------------------------------------------------------------------
 *
 * service_pubsub.c
 *		Topics of Google Cloud Pub/Sub: projects.topics.publish of its REST API.
 *
 * The option url is the topic's, https://pubsub.googleapis.com/v1/projects/P/topics/T.
 * With key order the ordering key of a message is its key.  The login is a
 * token for the service account of the user mapping.
 *
 * INVARIANT
 *		Pub/Sub publishes the messages of a request all or none, in their order.  So
 *		with key order a request has events of one key only, and any number of them.
 *
 * MEMORY
 *		None of its own.  LOCKING: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/http/service_pubsub.c
 *
 *-------------------------------------------------------------------------
 */
#include <stdlib.h>
#include <string.h>

#include "sink/http/sink.h"

#define MAX_MESSAGES	1000
#define USUAL_MESSAGES	100
#define MAX_BYTES		(9 * 1000 * 1000)	/* of 10 MB for the request */
#define MAX_KEY			1024

static const char *
configure(HSink *p)
{
	HSinkConfig *c = &p->config;
	const char *problem;

	if (strncmp(c->resource, "v1/projects/", 12) != 0 || strstr(c->resource, "/topics/") == NULL || strchr(c->resource, '?') != NULL)
		return "option \"url\" must be a topic's, as in https://pubsub.googleapis.com/v1/projects/P/topics/T";
	if (strcmp(c->method, "POST") != 0)
		return "option \"method\" is for webhooks";
	if (c->user != NULL || c->password != NULL || (c->token != NULL && c->n_headers == 0))
		return "Pub/Sub takes the login of the option \"service_account\" or \"service_account_file\"";
	if (c->service_account != NULL)
	{
		problem = hsink_read_account(c);
		if (problem != NULL)
			return "option \"service_account\" must be the JSON of a service account's key, with client_email, private_key (RSA) and token_uri";
		if (hsink_check_url(c->token_url, c->token_origin, sizeof(c->token_origin)) != NULL || strchr(c->token_url, '{') != NULL)
			return "the token_uri of the service account must be a URL that begins with https://";
		c->token_plain = strncmp(c->token_origin, "http:", 5) == 0;
		c->auth = HSINK_AUTH_SERVICE_ACCOUNT;
	}
	return hsink_check_batch_options(p);
}

/* Add the event as a message. */
static bool
add(HSink *p, HSinkRequest *r, const HSinkEvent *e, HSinkProblem *problem)
{
	IdemText   *t = &r->body;
	IdemText	text = {NULL, 0, 0};

	(void) problem;
	idem_text_puts(t, r->count == 0 ? "{\"messages\":[{\"data\":\"" : ",{\"data\":\"");
	if (p->config.format == HSINK_CE_STRUCTURED)
	{
		hsink_add_cloud_event(p, &text, e);
		idem_text_add_base64(t, text.data, text.len);
	}
	else
		idem_text_add_base64(t, e->payload.data, e->payload.len);
	idem_text_puts(t, "\",\"attributes\":");
	hsink_add_properties(t, e, false);
	if (p->config.key_order)
	{
		text.len = 0;
		hsink_add_key(&text, e, MAX_KEY);
		hsink_add_string(t, ",\"orderingKey\":", text.data, text.len);
	}
	idem_text_puts(t, "}");
	free(text.data);
	r->weight = t->len;
	return true;
}

static void
finish(HSink *p, HSinkRequest *r)
{
	idem_text_puts(&r->body, "]}");
	hsink_begin_request(p, r, p->config.resource);
	idem_text_puts(&r->url, ":publish");
	hsink_add_header(r, "Content-Type", "application/json", strlen("application/json"));
}

/* A success has an id for each message. */
static void
read_response(HSink *p, HSinkRequest *r)
{
	const char *list;
	const char *id;
	size_t		list_len;
	size_t		len;
	size_t		at = 0;
	uint32_t	n = 0;

	if (r->answer.len == 0 || !idem_json_is_object(r->answer.data, r->answer.len) ||
		!idem_json_member(r->answer.data, r->answer.len, "messageIds", &list, &list_len))
		return;
	while (idem_json_next_element(list, list_len, &at, &id, &len))
		n++;
	for (uint32_t i = 0; i < r->count && n == r->count; i++)
	{
		hsink_answer(p, r->events[i], IDEM_PROTO_ACKED, NULL, 0, NULL);
		r->events[i] = NULL;
	}
}

static HSinkBlame
blame(HSink *p, const HSinkRequest *r)
{
	(void) p;
	return r->status == 401 || r->status == 403 || r->status == 404 ? HSINK_BLAME_CONFIG : HSINK_BLAME_STATUS;
}

const HSinkService hsink_pubsub = {
	.name = "pubsub", .most = MAX_MESSAGES, .most_weight = MAX_BYTES, .usual = USUAL_MESSAGES, .one_key = true, .reads_answer = true,
	.configure = configure, .add = add, .finish = finish, .read = read_response, .blame = blame
};
