/*-------------------------------------------------------------------------
 *
 * entry.c
 *		Makes an entry of a stream of an event: the stream's name, the fields.
 *
 * INVARIANT
 *		A payload is never changed.  The event's own headers are the text of one
 *		field, so no header can be taken for a field of ours, and an entry has a
 *		bounded number of fields.
 *
 * MEMORY
 *		Streams belong to p until rsink_forget_streams.  LOCKING: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/redis/entry.c
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sink/common/cloudevent.h"
#include "sink/common/template.h"
#include "sink/redis/sink.h"

#define MAX_FIELDS	8			/* event_id and seven more */

/*
 * Add what a placeholder stands for.  The first braces of a key name its slot, so no
 * other value than the relay's tag may have braces.
 */
static bool
add_value(void *arg, IdemText *t, const char *value, size_t len)
{
	const RSink *p = arg;

	if (len == strlen(p->config.tag) && memcmp(value, p->config.tag, len) == 0)
	{
		idem_text_add(t, value, len);
		return true;
	}
	for (size_t i = 0; i < len; i++)
		if (value[i] == '{' || value[i] == '}' || (unsigned char) value[i] < ' ')
			return false;
	idem_text_add(t, value, len);
	return true;
}

/* The stream of that name, which is taken over. */
static RSinkStream *
find_stream(RSink *p, IdemText *name, RSinkStream *last)
{
	RSinkStream *s;

	if (last != NULL && last->len == name->len && memcmp(last->key, name->data, name->len) == 0)
	{
		free(name->data);
		return last;
	}
	for (uint32_t i = 0; i < p->n_streams; i++)
		if (p->streams[i]->len == name->len && memcmp(p->streams[i]->key, name->data, name->len) == 0)
		{
			free(name->data);
			return p->streams[i];
		}
	if (p->n_streams == p->size_streams)
	{
		p->size_streams = p->size_streams > 0 ? p->size_streams * 2 : 8;
		p->streams = idem_sink_realloc(p->streams, p->size_streams * sizeof(RSinkStream *));
	}
	s = idem_sink_alloc(sizeof(RSinkStream));
	s->key = name->data;
	s->len = name->len;
	s->refused = false;
	p->streams[p->n_streams++] = s;
	return s;
}

void
rsink_forget_streams(RSink *p)
{
	for (uint32_t i = 0; i < p->n_streams; i++)
	{
		free(p->streams[i]->key);
		free(p->streams[i]);
	}
	p->n_streams = 0;
}

/* Name the event's stream.  Returns NULL, or what is wrong with the event. */
static const char *
choose_stream(RSink *p, IdemBatchEvent *e, RSinkStream *last)
{
	const IdemTemplate how = {.relay = p->config.tag, .add = add_value, .arg = p};
	IdemSinkEvent view = idem_batch_view(e);
	IdemText	name = {NULL, 0, 0};
	IdemProtoStr at;
	const char *problem = NULL;

	switch (idem_template_fill(&how, p->config.stream, &view, &name, &at))
	{
		case IDEM_TEMPLATE_LACKS_HEADER:
			problem = "event lacks a header that the option \"stream\" names";
			break;
		case IDEM_TEMPLATE_REFUSED:
			problem = "stream of the event would have braces or control characters in its name";
			break;
		case IDEM_TEMPLATE_FILLED:
			if (name.len == 0 || name.len > RSINK_MAX_KEY)
				problem = "stream of the event must have a name of 1 to 1000 bytes";
			else if (name.len == strlen(p->config.position_key) &&
					 memcmp(name.data, p->config.position_key, name.len) == 0)
				problem = "stream of the event has the name of the position key";
			break;
	}
	if (problem == NULL)
		e->target = find_stream(p, &name, last);
	else
		free(name.data);
	return problem;
}

void
rsink_destination(void *p, const IdemBatchEvent *e, char buf[IDEM_SINK_DESTINATION + 1])
{
	const RSinkConfig *c = &((RSink *) p)->config;
	const IdemTemplate how = {.relay = c->tag, .add = add_value, .arg = p};
	IdemSinkEvent view = idem_batch_view(e);

	idem_template_name(&how, c->stream, &view, buf, IDEM_SINK_DESTINATION + 1);
}

void
rsink_prepare(RSink *p, IdemBatch *b)
{
	RSinkStream *last = NULL;

	for (uint32_t i = 0; i < b->count; i++)
	{
		IdemBatchEvent *e = &b->events[i];
		const char *problem = NULL;

		if (e->outcome != 0)
			continue;
		if (idem_intake_is_blocked(&p->in, e))
		{
			idem_intake_decide(&p->in, e, IDEM_PROTO_SKIPPED, "00000", NULL);
			continue;
		}
		if ((uint64_t) e->headers.len + e->payload.len > p->config.max_event_bytes)
		{
			idem_intake_decide(&p->in, e, IDEM_PROTO_IMPOSSIBLE, "54000",
							   "event is larger than the option \"max_event_bytes\" allows");
			continue;
		}
		problem = choose_stream(p, e, last);
		if (problem != NULL)
			idem_intake_decide(&p->in, e, IDEM_PROTO_IMPOSSIBLE, "22023", problem);
		else
			last = e->target;
	}
}

/* The stream's number among the streams of the batch */
static int64_t
number_of(const RSink *p, const RSinkStream *s)
{
	uint32_t	i = 0;

	while (p->streams[i] != s)
		i++;
	return i;
}

/* The fields of an entry, without those that would be empty. */
typedef struct Fields
{
	const char *names[MAX_FIELDS];
	IdemProtoStr values[MAX_FIELDS];
	int			count;
} Fields;

static void
add_field(Fields *f, const char *name, IdemProtoStr value)
{
	f->names[f->count] = name;
	f->values[f->count++] = value;
}

/* The event as a CloudEvent; its text belongs to json. */
static IdemProtoStr
make_cloudevent(const RSink *p, const IdemSinkEvent *e, IdemText *json)
{
	IdemProtoStr text;

	idem_ce_add_json(json, e, p->config.source, p->config.relay, idem_content_type(e));
	text.data = json->data;
	text.len = (uint32_t) json->len;
	return text;
}

void
rsink_add_entry(const RSink *p, RSinkRequest *r, const IdemBatchEvent *e)
{
	IdemSinkEvent view = idem_batch_view(e);
	IdemText	json = {NULL, 0, 0};
	char		when[IDEM_TIME_TEXT];
	Fields		f = {.count = 0};

	add_field(&f, "event_id", IDEM_STR(view.id));
	if (p->config.cloudevents)
		add_field(&f, "cloudevent", make_cloudevent(p, &view, &json));
	else
	{
		idem_write_time(when, sizeof(when), view.enqueued_at);
		add_field(&f, "aggregate_type", view.aggregate_type);
		add_field(&f, "aggregate_id", view.aggregate_id);
		add_field(&f, "event_type", view.event_type);
		add_field(&f, "enqueued_at", IDEM_STR(when));
		if (view.flags & IDEM_PROTO_HAS_CONTENT_TYPE)
			add_field(&f, "content_type", view.content_type);
		if (view.flags & IDEM_PROTO_HAS_HEADERS)
			add_field(&f, "headers", view.headers);
		add_field(&f, "payload", view.payload);
	}
	rsink_add_number(r, number_of(p, e->target));
	rsink_add_number(r, f.count * 2);
	for (int i = 0; i < f.count; i++)
	{
		rsink_add_text(r, f.names[i]);
		rsink_add(r, f.values[i].data, f.values[i].len);
	}
	free(json.data);
}
