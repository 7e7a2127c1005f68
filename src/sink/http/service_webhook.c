/*-------------------------------------------------------------------------
 *
 * service_webhook.c
 *		Requests to any HTTP server: the payload, or CloudEvents.
 *
 * Each request has the headers of Standard Webhooks, and is signed if there are
 * secrets.
 *
 * INVARIANT
 *		A request has an id that is the same at each try.  It is the event's id; of
 *		a request with several events it is made of all their ids, since a receiver
 *		that knows the id may drop the request as a whole.
 *
 * MEMORY
 *		The body of a plain request is the event's payload in place.  LOCKING: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/http/service_webhook.c
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <string.h>

#include "sink/common/cloudevent.h"
#include "sink/http/sink.h"

#define BATCH_TYPE		"application/cloudevents-batch+json; charset=UTF-8"
#define MAX_BATCH_BYTES	(1024 * 1024)

static const char *
configure(HSink *p)
{
	(void) p;
	return NULL;
}

/* Add the type of the body.  False: the event has one that HTTP does not take. */
static bool
add_type(const HSink *p, HSinkRequest *r, const HSinkEvent *e, HSinkProblem *problem)
{
	IdemProtoStr type = hsink_content_type(p, e);

	if (p->config.format == HSINK_CE_STRUCTURED)
	{
		hsink_add_header(r, "Content-Type", IDEM_CE_JSON_TYPE, strlen(IDEM_CE_JSON_TYPE));
		return true;
	}
	for (uint32_t i = 0; i < type.len; i++)
		if ((unsigned char) type.data[i] < ' ' || type.data[i] == 0x7F)
		{
			snprintf(problem->text, sizeof(problem->text), "event has a control character in its content type");
			return false;
		}
	hsink_add_header(r, "Content-Type", type.data, type.len);
	return true;
}

static bool
add(HSink *p, HSinkRequest *r, const HSinkEvent *e, HSinkProblem *problem)
{
	hsink_free_headers(r);
	if (!hsink_make_url(p, e, &r->url, problem) || !add_type(p, r, e, problem) ||
		!hsink_add_option_headers(p, r, e, problem) || !hsink_add_event_headers(r, e, problem))
		return false;
	if (p->config.format == HSINK_CE_BINARY)
		hsink_add_ce_headers(p, r, e);
	if (p->config.format != HSINK_CE_STRUCTURED)
	{
		r->payload = e->payload.data;
		r->payload_len = e->payload.len;
		return true;
	}
	hsink_add_cloud_event(p, &r->body, e);
	return true;
}

static void
finish(HSink *p, HSinkRequest *r)
{
	if (r->payload == NULL)
	{
		r->payload = r->body.data;
		r->payload_len = r->body.len;
	}
	hsink_add_webhook_headers(p, r, r->events[0]->id);
	hsink_add_login(p, r);
}

const HSinkService hsink_webhook = {
	.name = "webhook", .most = 1, .usual = 1,
	.configure = configure, .add = add, .finish = finish
};

static const char *
configure_batch(HSink *p)
{
	return hsink_check_batch_options(p);
}

static bool
add_to_batch(HSink *p, HSinkRequest *r, const HSinkEvent *e, HSinkProblem *problem)
{
	if (r->count == 0)
	{
		hsink_free_headers(r);
		if (!hsink_make_url(p, e, &r->url, problem) || !hsink_add_option_headers(p, r, e, problem))
			return false;
	}
	idem_text_puts(&r->body, r->count == 0 ? "[" : ",");
	hsink_add_cloud_event(p, &r->body, e);
	r->weight = r->body.len;
	return true;
}

static void
finish_batch(HSink *p, HSinkRequest *r)
{
	char		id[HSINK_HASH_TEXT];

	idem_text_puts(&r->body, "]");
	r->payload = r->body.data;
	r->payload_len = r->body.len;
	if (r->count == 1)
		snprintf(id, sizeof(id), "%s", r->events[0]->id);
	else
		hsink_hash_ids(r, id);
	hsink_add_header(r, "Content-Type", BATCH_TYPE, strlen(BATCH_TYPE));
	hsink_add_webhook_headers(p, r, id);
	hsink_add_login(p, r);
}

const HSinkService hsink_webhook_batch = {
	.name = "webhook with batches", .most = 1000, .most_weight = MAX_BATCH_BYTES, .usual = 100,
	.configure = configure_batch, .add = add_to_batch, .finish = finish_batch
};
