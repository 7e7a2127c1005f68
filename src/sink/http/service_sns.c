/*-------------------------------------------------------------------------
 *
 * service_sns.c
 *		Topics of Amazon SNS: PublishBatch, by its query protocol.
 *
 * The path of the option url is the topic's ARN.  A name that ends with ".fifo"
 * is a FIFO topic: group and deduplication id are as for SQS.
 *
 * INVARIANT
 *		SNS takes or refuses each message of a request alone.  So a request has one
 *		event of a key.
 *		The response is XML of a server that is not trusted: it is searched for
 *		elements, within the bytes that came, and nothing in it is expanded.
 *
 * MEMORY
 *		None of its own.  LOCKING: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/http/service_sns.c
 *
 *-------------------------------------------------------------------------
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE				/* memmem */
#endif

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sink/http/sink.h"

#define MAX_MESSAGES	10
#define MAX_BYTES		(256 * 1024)	/* of all messages, with attributes */
#define MAX_GROUP		128
#define MAX_FIELD		512		/* bytes of an element that are read */
#define TYPE			"application/x-www-form-urlencoded"

static const char *
configure(HSink *p)
{
	if (strncmp(p->config.resource, "arn:", 4) != 0)
		return "option \"url\" must have the topic's ARN as its path, as in https://sns.eu-central-1.amazonaws.com/arn:aws:sns:...";
	return hsink_configure_aws(p);
}

static bool
is_fifo(const HSink *p)
{
	size_t		len = strlen(p->config.resource);

	return len > 5 && strcmp(p->config.resource + len - 5, ".fifo") == 0;
}

/* Add a value to the form; its blanks become "+". */
static void
add_value(IdemText *t, const char *value, size_t len)
{
	size_t		n;

	for (size_t i = 0; i < len; i += n)
	{
		n = 1;
		if (value[i] == ' ')
			idem_text_puts(t, "+");
		else
		{
			while (i + n < len && value[i + n] != ' ')
				n++;
			idem_text_add_encoded(t, value + i, n);
		}
	}
}

/* Add a field of an entry to the form. */
static void
add_field(HSinkRequest *r, const char *name, const void *value, size_t len)
{
	char		prefix[64];

	snprintf(prefix, sizeof(prefix), "&PublishBatchRequestEntries.member.%u.", r->count + 1);
	idem_text_puts(&r->body, prefix);
	idem_text_puts(&r->body, name);
	idem_text_puts(&r->body, "=");
	add_value(&r->body, value, len);
}

/* Add an attribute.  Returns the bytes that count. */
static size_t
add_attribute(HSinkRequest *r, int n, const char *name, IdemProtoStr value)
{
	char		field[64];

	snprintf(field, sizeof(field), "MessageAttributes.entry.%d.Name", n);
	add_field(r, field, name, strlen(name));
	snprintf(field, sizeof(field), "MessageAttributes.entry.%d.Value.DataType", n);
	add_field(r, field, "String", strlen("String"));
	snprintf(field, sizeof(field), "MessageAttributes.entry.%d.Value.StringValue", n);
	add_field(r, field, value.data, value.len);
	return strlen(name) + strlen("String") + value.len;
}

/* Add the event as an entry.  Returns the bytes that count. */
static size_t
add_entry(HSink *p, HSinkRequest *r, const HSinkEvent *e)
{
	IdemText	text = {NULL, 0, 0};
	HSinkAttribute attributes[HSINK_MAX_ATTRIBUTES];
	char		id[32];
	size_t		bytes;
	int			n;

	n = hsink_attributes(e, hsink_add_message(p, &text, e), attributes);
	bytes = text.len;
	snprintf(id, sizeof(id), "%u", r->count);
	add_field(r, "Id", id, strlen(id));
	add_field(r, "Message", text.data, text.len);
	for (int i = 0; i < n; i++)
		bytes += add_attribute(r, i + 1, attributes[i].name, attributes[i].value);
	if (e->headers.len > 2)
		bytes += add_attribute(r, n + 1, "headers", e->headers);
	if (is_fifo(p))
	{
		text.len = 0;
		hsink_add_key(&text, e, MAX_GROUP);
		add_field(r, "MessageGroupId", text.data, text.len);
		add_field(r, "MessageDeduplicationId", e->id, strlen(e->id));
	}
	free(text.data);
	return bytes;
}

static bool
add(HSink *p, HSinkRequest *r, const HSinkEvent *e, HSinkProblem *problem)
{
	(void) problem;
	if (r->count == 0)
	{
		idem_text_puts(&r->body, "Action=PublishBatch&Version=2010-03-31&TopicArn=");
		idem_text_add_encoded(&r->body, p->config.resource, strlen(p->config.resource));
	}
	r->weight += add_entry(p, r, e);
	return true;
}

static void
finish(HSink *p, HSinkRequest *r)
{
	hsink_begin_request(p, r, "");
	hsink_add_header(r, "Content-Type", TYPE, strlen(TYPE));
}

/*
 * The content of the first element of that name, from *at on, which moves behind
 * it.  False: there is none.
 */
static bool
next_element(IdemProtoStr xml, const char *name, size_t *at, IdemProtoStr *content)
{
	char		tag[32];
	const char *start;
	const char *end;

	if (xml.len == 0)
		return false;
	snprintf(tag, sizeof(tag), "<%s>", name);
	start = memmem(xml.data + *at, xml.len - *at, tag, strlen(tag));
	if (start == NULL)
		return false;
	start += strlen(tag);
	snprintf(tag, sizeof(tag), "</%s>", name);
	end = memmem(start, (size_t) (xml.data + xml.len - start), tag, strlen(tag));
	if (end == NULL)
		return false;
	*content = (IdemProtoStr)
	{
		start, (uint32_t) (end - start)
	};
	*at = (size_t) (end - xml.data) + strlen(tag);
	return true;
}

/* The text of an element of a member; "" if there is none. */
static void
read_text(IdemProtoStr member, const char *name, char *text)
{
	IdemProtoStr content = {"", 0};
	size_t		at = 0;

	(void) next_element(member, name, &at, &content);
	snprintf(text, MAX_FIELD, "%.*s", (int) (content.len < MAX_FIELD ? content.len : MAX_FIELD), content.data);
}

/* Answer the events that a list of the response names. */
static void
read_list(HSink *p, HSinkRequest *r, IdemProtoStr list, bool failed)
{
	IdemProtoStr member;
	size_t		at = 0;
	char		id[MAX_FIELD];
	char		code[MAX_FIELD];
	char		message[MAX_FIELD];
	char		sender[MAX_FIELD];
	int			index;

	while (next_element(list, "member", &at, &member))
	{
		read_text(member, "Id", id);
		read_text(member, "Code", code);
		read_text(member, "Message", message);
		read_text(member, "SenderFault", sender);
		index = hsink_entry_index(r, id);
		if (index >= 0 && failed)
			hsink_answer_refused(p, r, (uint32_t) index, strcmp(sender, "true") == 0, code, message);
		else if (index >= 0)
		{
			hsink_answer(p, r->events[index], IDEM_PROTO_ACKED, NULL, 0, NULL);
			r->events[index] = NULL;
		}
	}
}

static void
read_response(HSink *p, HSinkRequest *r)
{
	IdemProtoStr xml = {r->answer.data, (uint32_t) r->answer.len};
	IdemProtoStr list;
	size_t		at = 0;

	if (next_element(xml, "Failed", &at, &list))
		read_list(p, r, list, true);
	at = 0;
	if (next_element(xml, "Successful", &at, &list))
		read_list(p, r, list, false);
}

const HSinkService hsink_sns = {
	.name = "sns", .most = MAX_MESSAGES, .most_weight = MAX_BYTES, .usual = MAX_MESSAGES, .reads_answer = true, .aws = "sns",
	.configure = configure, .add = add, .finish = finish, .read = read_response, .blame = hsink_blame_aws
};
