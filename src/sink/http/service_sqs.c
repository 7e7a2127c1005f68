/*-------------------------------------------------------------------------
 *
 * service_sqs.c
 *		Queues of Amazon SQS: SendMessageBatch, by its JSON protocol.
 *
 * The option url is the queue's URL.  A name that ends with ".fifo" is a FIFO
 * queue: the group of a message is its key, the deduplication id is the event's
 * id.
 *
 * INVARIANT
 *		SQS takes or refuses each message of a request alone.  So a request has one
 *		event of a key.
 *
 * MEMORY
 *		None of its own.  LOCKING: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/http/service_sqs.c
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sink/http/sink.h"

#define MAX_MESSAGES	10
#define MAX_BYTES		(256 * 1024)	/* of all messages, with attributes */
#define MAX_GROUP		128
#define TYPE			"application/x-amz-json-1.0"
#define TARGET			"AmazonSQS.SendMessageBatch"

static bool
is_fifo(const HSink *p)
{
	size_t		len = strlen(p->config.resource);

	return len > 5 && strcmp(p->config.resource + len - 5, ".fifo") == 0;
}

/* Add an attribute.  Returns the bytes that count. */
static size_t
add_attribute(IdemText *t, const char *name, IdemProtoStr value)
{
	idem_text_puts(t, t->data[t->len - 1] == '{' ? "" : ",");
	idem_text_add_json(t, name, strlen(name));
	hsink_add_string(t, ":{\"DataType\":\"String\",\"StringValue\":", value.data, value.len);
	idem_text_puts(t, "}");
	return strlen(name) + strlen("String") + value.len;
}

/* Add the event as an entry.  Returns the bytes that count. */
static size_t
add_entry(HSink *p, HSinkRequest *r, const HSinkEvent *e)
{
	IdemText	text = {NULL, 0, 0};
	HSinkAttribute attributes[HSINK_MAX_ATTRIBUTES];
	IdemText   *t = &r->body;
	char		id[32];
	size_t		bytes;
	int			n;

	n = hsink_attributes(e, hsink_add_message(p, &text, e), attributes);
	bytes = text.len;
	snprintf(id, sizeof(id), "%u", r->count);
	hsink_add_string(t, r->count == 0 ? "\"Entries\":[{\"Id\":" : ",{\"Id\":", id, strlen(id));
	hsink_add_string(t, ",\"MessageBody\":", text.data, text.len);
	idem_text_puts(t, ",\"MessageAttributes\":{");
	for (int i = 0; i < n; i++)
		bytes += add_attribute(t, attributes[i].name, attributes[i].value);
	if (e->headers.len > 2)
		bytes += add_attribute(t, "headers", e->headers);
	idem_text_puts(t, "}");
	if (is_fifo(p))
	{
		text.len = 0;
		hsink_add_key(&text, e, MAX_GROUP);
		hsink_add_string(t, ",\"MessageGroupId\":", text.data, text.len);
		hsink_add_string(t, ",\"MessageDeduplicationId\":", e->id, strlen(e->id));
	}
	idem_text_puts(t, "}");
	free(text.data);
	return bytes;
}

static bool
add(HSink *p, HSinkRequest *r, const HSinkEvent *e, HSinkProblem *problem)
{
	(void) problem;
	if (r->count == 0)
	{
		hsink_add_string(&r->body, "{\"QueueUrl\":", p->config.url, strlen(p->config.url));
		idem_text_puts(&r->body, ",");
	}
	r->weight += add_entry(p, r, e);
	return true;
}

static void
finish(HSink *p, HSinkRequest *r)
{
	idem_text_puts(&r->body, "]}");
	hsink_begin_request(p, r, "");
	hsink_add_header(r, "Content-Type", TYPE, strlen(TYPE));
	hsink_add_header(r, "X-Amz-Target", TARGET, strlen(TARGET));
}

/* Answer an event by its entry in the response. */
static void
read_entry(HSink *p, HSinkRequest *r, const char *json, size_t len, bool failed)
{
	char	   *id = idem_json_string(json, len, "Id");
	char	   *code = idem_json_string(json, len, "Code");
	char	   *message = idem_json_string(json, len, "Message");
	int			index = id != NULL ? hsink_entry_index(r, id) : -1;
	const char *sender;
	size_t		n;

	if (index >= 0 && failed)
		hsink_answer_refused(p, r, (uint32_t) index,
							 idem_json_member(json, len, "SenderFault", &sender, &n) && n == 4 && memcmp(sender, "true", 4) == 0,
							 code != NULL ? code : "refused", message != NULL ? message : "");
	else if (index >= 0)
	{
		hsink_answer(p, r->events[index], IDEM_PROTO_ACKED, NULL, 0, NULL);
		r->events[index] = NULL;
	}
	free(id);
	free(code);
	free(message);
}

static void
read_response(HSink *p, HSinkRequest *r)
{
	static const char *const lists[] = {"Failed", "Successful"};
	const char *list;
	const char *entry;
	size_t		list_len;
	size_t		len;

	for (int i = 0; i < 2; i++)
	{
		size_t		at = 0;

		if (r->answer.len == 0 || !idem_json_is_object(r->answer.data, r->answer.len) ||
			!idem_json_member(r->answer.data, r->answer.len, lists[i], &list, &list_len))
			continue;
		while (idem_json_next_element(list, list_len, &at, &entry, &len))
			read_entry(p, r, entry, len, i == 0);
	}
}

const HSinkService hsink_sqs = {
	.name = "sqs", .most = MAX_MESSAGES, .most_weight = MAX_BYTES, .usual = MAX_MESSAGES, .reads_answer = true, .aws = "sqs",
	.configure = hsink_configure_aws, .add = add, .finish = finish, .read = read_response, .blame = hsink_blame_aws
};
