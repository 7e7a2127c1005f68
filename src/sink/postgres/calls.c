/*-------------------------------------------------------------------------
 *
 * calls.c
 *		The statements about a batch's events: claims and calls.
 *
 * Events travel as one array per field.
 *
 * MEMORY
 *		Arrays live until their statement is queued; libpq copies them.
 *		LOCKING: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/postgres/calls.c
 *
 *-------------------------------------------------------------------------
 */
#include <stdlib.h>
#include <string.h>

#include "sink/postgres/sink.h"

/* The array that a field travels in: its own type and that of its elements. */
static void
array_types(const PgSink *p, int f, uint32_t *array, uint32_t *element)
{
	static const uint32_t types[][2] = {
		{PG_UUID, 2951}, {PG_INT8, 1016}, {PG_TIMESTAMPTZ, 1185},
		{PG_JSONB, 3807}, {PG_JSON, 199}, {PG_BYTEA, 1001}
	};
	uint32_t	type = f == PG_EVENT_ID ? PG_UUID : p->type[f];

	*element = PG_TEXT;
	*array = 1009;
	for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
		if (types[i][0] == type)
		{
			*element = type;
			*array = types[i][1];
		}
}

static void
add_span(PgArray *a, const PgSink *p, PgSpan span, uint32_t type)
{
	const void *data = span.len > 0 ? (const void *) (p->batch.arena + span.at) : "";

	pg_array_add(a, "\x01", type == PG_JSONB ? 1 : 0, data, span.len);
}

static void
add_int64(PgArray *a, int64_t value)
{
	uint64_t	v = (uint64_t) value;
	uint8_t		bytes[8];

	for (int i = 0; i < 8; i++)
		bytes[i] = (uint8_t) (v >> (56 - 8 * i));
	pg_array_add(a, NULL, 0, bytes, sizeof(bytes));
}

/* Where there are two fields for the payload, it goes into one of them. */
static bool
has_field(const PgSink *p, const PgEvent *e, int f)
{
	bool		json = (e->flags & IDEM_PROTO_PAYLOAD_JSON) != 0;

	switch (f)
	{
		case PG_CONTENT_TYPE:
			return (e->flags & IDEM_PROTO_HAS_CONTENT_TYPE) != 0;
		case PG_HEADERS:
			return (e->flags & IDEM_PROTO_HAS_HEADERS) != 0;
		case PG_PAYLOAD:
			return json || p->type[f] == PG_BYTEA;
		case PG_PAYLOAD_BYTES:
			return !json || !p->used[PG_PAYLOAD];
		default:
			return true;
	}
}

static void
add_field(PgArray *a, const PgSink *p, const PgEvent *e, int f)
{
	/* microseconds from 1970 to 2000, where the target's clock begins */
	const int64_t epoch = INT64_C(946684800000000);

	if (!has_field(p, e, f))
	{
		pg_array_add(a, NULL, 0, NULL, 0);
		return;
	}
	switch (f)
	{
		case PG_EVENT_ID:
			pg_array_add(a, NULL, 0, e->id, IDEM_PROTO_ID_BYTES);
			break;
		case PG_SEQ:
			add_int64(a, e->seq);
			break;
		case PG_ENQUEUED_AT:
			add_int64(a, e->enqueued_at - epoch);
			break;
		case PG_AGGREGATE_TYPE:
			add_span(a, p, e->aggregate_type, PG_TEXT);
			break;
		case PG_AGGREGATE_ID:
			add_span(a, p, e->aggregate_id, PG_TEXT);
			break;
		case PG_EVENT_TYPE:
			add_span(a, p, e->event_type, PG_TEXT);
			break;
		case PG_CONTENT_TYPE:
			add_span(a, p, e->content_type, PG_TEXT);
			break;
		case PG_HEADERS:
			add_span(a, p, e->headers, p->type[f]);
			break;
		default:
			add_span(a, p, e->payload, p->type[f]);
			break;
	}
}

void
pg_send_calls(PgSink *p, const uint32_t *which, uint32_t n)
{
	PgArray		arrays[PG_NFIELDS];
	uint32_t	types[PG_NFIELDS];
	const char *values[PG_NFIELDS];
	int			lengths[PG_NFIELDS];
	int			count = 0;

	for (int f = 0; f < PG_NFIELDS; f++)
	{
		uint32_t	element;

		if (f != PG_EVENT_ID && !p->used[f])
			continue;
		array_types(p, f, &types[count], &element);
		pg_array_init(&arrays[count], element);
		for (uint32_t i = 0; i < n; i++)
			add_field(&arrays[count], p, &p->batch.events[which[i]], f);
		pg_array_finish(&arrays[count]);
		values[count] = arrays[count].data;
		lengths[count] = (int) arrays[count].len;
		count++;
	}
	pg_prepare(p, p->call_sql, count, types);
	pg_execute(p, which[0], count, values, lengths);
	for (int i = 0; i < count; i++)
		free(arrays[i].data);
}

/* The id as it is claimed: a uuid's canonical text. */
static void
add_id_text(PgArray *a, const PgEvent *e)
{
	static const char hex[] = "0123456789abcdef";
	char		text[36];
	int			n = 0;

	for (int i = 0; i < IDEM_PROTO_ID_BYTES; i++)
	{
		if (i == 4 || i == 6 || i == 8 || i == 10)
			text[n++] = '-';
		text[n++] = hex[e->id[i] >> 4];
		text[n++] = hex[e->id[i] & 15];
	}
	pg_array_add(a, NULL, 0, text, sizeof(text));
}

/* Send a statement about the claims of an array of ids; nothing if empty. */
static void
send_ids(PgSink *p, PgStep step, const char *sql, PgArray *ids)
{
	const uint32_t types[2] = {1009, PG_TEXT};
	const char *values[2] = {ids->data, p->config.consumer};
	int			lengths[2] = {0, 0};

	pg_array_finish(ids);
	lengths[0] = (int) ids->len;
	values[0] = ids->data;
	if (ids->count > 0)
		pg_send(p, step, 0, sql, 2, types, values, lengths);
	free(ids->data);
}

void
pg_send_claim_ends(PgSink *p)
{
	PgArray		done;
	PgArray		undone;

	if (p->claim_sql == NULL)
		return;
	pg_array_init(&done, PG_TEXT);
	pg_array_init(&undone, PG_TEXT);
	for (uint32_t i = 0; i < p->batch.count; i++)
	{
		PgEvent    *e = &p->batch.events[i];

		if (e->claimed)
			add_id_text(e->done ? &done : &undone, e);
	}
	send_ids(p, PG_STEP_COMPLETE, p->complete_sql, &done);
	send_ids(p, PG_STEP_COMPLETE, p->release_sql, &undone);
}

void
pg_send_claims(PgSink *p)
{
	PgArray		ids;

	pg_array_init(&ids, PG_TEXT);
	for (uint32_t i = 0; i < p->batch.count; i++)
	{
		PgEvent    *e = &p->batch.events[i];

		e->asked = (e->outcome == 0);
		if (e->asked)
			add_id_text(&ids, e);
	}
	send_ids(p, PG_STEP_CLAIM, p->claim_sql, &ids);
}

/*
 * A duplicate is acknowledged, and so is an event that is dead there, which
 * later versions of the target answer: the target's operator has it.
 */
static void
read_claim(PgSink *p, uint32_t i, const char *result)
{
	PgEvent    *e = &p->batch.events[i];

	e->claimed = (strcmp(result, "claimed") == 0);
	if (e->outcome != 0)
		return;
	if (strcmp(result, "busy") == 0)
		pg_decide(p, i, IDEM_PROTO_RETRY, "55P03",
				  "another transaction at the target holds the claim of the event");
	else if (strcmp(result, "expired") == 0)
		pg_decide(p, i, IDEM_PROTO_REJECTED, "22023",
				  "event is too old for the target's claims to tell a repeat");
}

/* There is one row per id, in the order of the ids. */
void
pg_read_claims(PgSink *p, const PGresult *res)
{
	uint32_t	i = 0;

	for (int row = 0; row < PQntuples(res); row++, i++)
	{
		while (i < p->batch.count && !p->batch.events[i].asked)
			i++;
		if (i == p->batch.count)
			break;
		read_claim(p, i, PQgetvalue(res, row, 1));
	}
}
