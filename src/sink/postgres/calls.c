/*-------------------------------------------------------------------------
 *
 * calls.c
 *		The statements about a batch's events: claims and calls.
 *
 * Events are sent as one array per field.  The answers to claims are noted in
 * the events; decide.c turns the refused claims into outcomes.
 *
 * MEMORY
 *		Arrays live until their statement is queued, because libpq copies them.
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

/* The OIDs of a field's array type and of the array's element type. */
static void
array_types(const PgSink *p, int f, uint32_t *array, uint32_t *element)
{
	static const uint32_t types[][2] = {
		{PGSINK_TYPE_UUID, 2951}, {PGSINK_TYPE_INT8, 1016}, {PGSINK_TYPE_TIMESTAMPTZ, 1185},
		{PGSINK_TYPE_JSONB, 3807}, {PGSINK_TYPE_JSON, 199}, {PGSINK_TYPE_BYTEA, 1001}
	};
	uint32_t	type = f == PGSINK_FIELD_EVENT_ID ? PGSINK_TYPE_UUID : p->type[f];

	*element = PGSINK_TYPE_TEXT;
	*array = 1009;
	for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
		if (types[i][0] == type)
		{
			*element = type;
			*array = types[i][1];
		}
}

/* Add text, JSON or bytes.  Binary jsonb has a version byte before its text. */
static void
add_span(PgSinkArray *a, const PgSink *p, PgSinkSpan span, uint32_t type)
{
	const void *data = span.len > 0 ? (const void *) (p->batch.arena + span.at) : "";

	pgsink_array_add(a, "\x01", type == PGSINK_TYPE_JSONB ? 1 : 0, data, span.len);
}

/* Add an int8 or a timestamptz in network order. */
static void
add_int64(PgSinkArray *a, int64_t value)
{
	uint64_t	v = (uint64_t) value;
	uint8_t		bytes[8];

	for (int i = 0; i < 8; i++)
		bytes[i] = (uint8_t) (v >> (56 - 8 * i));
	pgsink_array_add(a, NULL, 0, bytes, sizeof(bytes));
}

/*
 * Has the event a value for the field?  JSON goes to payload, bytes go to
 * payload_bytes.  A payload of type bytea takes both kinds.
 */
static bool
has_field(const PgSink *p, const PgSinkEvent *e, int f)
{
	bool		json = (e->flags & IDEM_PROTO_PAYLOAD_JSON) != 0;

	switch (f)
	{
		case PGSINK_FIELD_CONTENT_TYPE:
			return (e->flags & IDEM_PROTO_HAS_CONTENT_TYPE) != 0;
		case PGSINK_FIELD_HEADERS:
			return (e->flags & IDEM_PROTO_HAS_HEADERS) != 0;
		case PGSINK_FIELD_PAYLOAD:
			return json || p->type[f] == PGSINK_TYPE_BYTEA;
		case PGSINK_FIELD_PAYLOAD_BYTES:
			return !json;
		default:
			return true;
	}
}

/* Add an event's value of the field, or NULL. */
static void
add_field(PgSinkArray *a, const PgSink *p, const PgSinkEvent *e, int f)
{
	/* microseconds from 1970 to 2000, where timestamptz begins */
	const int64_t epoch = INT64_C(946684800000000);

	if (!has_field(p, e, f))
	{
		pgsink_array_add(a, NULL, 0, NULL, 0);
		return;
	}
	switch (f)
	{
		case PGSINK_FIELD_EVENT_ID:
			pgsink_array_add(a, NULL, 0, e->id, IDEM_PROTO_ID_BYTES);
			break;
		case PGSINK_FIELD_SEQ:
			add_int64(a, e->seq);
			break;
		case PGSINK_FIELD_ENQUEUED_AT:
			add_int64(a, e->enqueued_at - epoch);
			break;
		case PGSINK_FIELD_AGGREGATE_TYPE:
			add_span(a, p, e->aggregate_type, PGSINK_TYPE_TEXT);
			break;
		case PGSINK_FIELD_AGGREGATE_ID:
			add_span(a, p, e->aggregate_id, PGSINK_TYPE_TEXT);
			break;
		case PGSINK_FIELD_EVENT_TYPE:
			add_span(a, p, e->event_type, PGSINK_TYPE_TEXT);
			break;
		case PGSINK_FIELD_CONTENT_TYPE:
			add_span(a, p, e->content_type, PGSINK_TYPE_TEXT);
			break;
		case PGSINK_FIELD_HEADERS:
			add_span(a, p, e->headers, p->type[f]);
			break;
		default:
			add_span(a, p, e->payload, p->type[f]);
			break;
	}
}

void
pgsink_send_calls(PgSink *p, const uint32_t *which, uint32_t n)
{
	PgSinkArray arrays[PGSINK_NFIELDS];
	uint32_t	types[PGSINK_NFIELDS];
	const char *values[PGSINK_NFIELDS];
	int			lengths[PGSINK_NFIELDS];
	int			count = 0;

	for (int f = 0; f < PGSINK_NFIELDS; f++)
	{
		uint32_t	element;

		if (f != PGSINK_FIELD_EVENT_ID && !p->used[f])
			continue;
		array_types(p, f, &types[count], &element);
		pgsink_array_init(&arrays[count], element);
		for (uint32_t i = 0; i < n; i++)
			add_field(&arrays[count], p, &p->batch.events[which[i]], f);
		pgsink_array_finish(&arrays[count]);
		values[count] = arrays[count].data;
		lengths[count] = (int) arrays[count].len;
		count++;
	}
	pgsink_prepare(p, p->call_sql, count, types);
	pgsink_execute(p, which[0], count, values, lengths);
	for (int i = 0; i < count; i++)
		free(arrays[i].data);
}

/* Add the id as claims name it: the canonical text of a uuid. */
static void
add_id_text(PgSinkArray *a, const PgSinkEvent *e)
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
	pgsink_array_add(a, NULL, 0, text, sizeof(text));
}

/*
 * Queue a statement about the claims of the ids, if there are any; free the
 * array.
 */
static void
send_ids(PgSink *p, PgSinkStep step, const char *sql, PgSinkArray *ids)
{
	const uint32_t types[2] = {1009, PGSINK_TYPE_TEXT};
	const char *values[2] = {ids->data, p->config.consumer};
	int			lengths[2] = {0, 0};

	pgsink_array_finish(ids);
	lengths[0] = (int) ids->len;
	values[0] = ids->data;
	if (ids->count > 0)
		pgsink_send(p, step, 0, sql, 2, types, values, lengths);
	free(ids->data);
}

void
pgsink_send_claim_ends(PgSink *p)
{
	PgSinkArray done;
	PgSinkArray undone;

	if (p->claim_sql == NULL)
		return;
	pgsink_send_settings(p);	/* claims are completed by who made them, and
								 * no guard is in the way */
	pgsink_array_init(&done, PGSINK_TYPE_TEXT);
	pgsink_array_init(&undone, PGSINK_TYPE_TEXT);
	for (uint32_t i = 0; i < p->batch.count; i++)
	{
		PgSinkEvent *e = &p->batch.events[i];

		if (e->claim == PGSINK_CLAIM_GRANTED)
			add_id_text(e->done ? &done : &undone, e);
	}
	send_ids(p, PGSINK_STEP_COMPLETE, p->complete_sql, &done);
	send_ids(p, PGSINK_STEP_COMPLETE, p->release_sql, &undone);
}

void
pgsink_send_claims(PgSink *p)
{
	PgSinkArray ids;

	pgsink_array_init(&ids, PGSINK_TYPE_TEXT);
	for (uint32_t i = 0; i < p->batch.count; i++)
	{
		PgSinkEvent *e = &p->batch.events[i];

		e->claim = e->outcome == 0 ? PGSINK_CLAIM_ASKED : PGSINK_CLAIM_NONE;
		if (e->claim == PGSINK_CLAIM_ASKED)
			add_id_text(&ids, e);
	}
	send_ids(p, PGSINK_STEP_CLAIM, p->claim_sql, &ids);
	pgsink_guard_claims(p);
}

/*
 * Only what the calls ask is to fail: the setting is not there yet when the program
 * claims, and RESET ALL has ended it before the program completes.
 */
void
pgsink_guard_claims(PgSink *p)
{
	const uint32_t types[1] = {PGSINK_TYPE_TEXT};
	const char *values[1] = {p->config.consumer};

	if (p->claim_sql != NULL)
		pgsink_send(p, PGSINK_STEP_FRAME, 0,
					"SELECT pg_catalog.set_config('idempotency.claimed_consumer', $1, true)",
					1, types, values, NULL);
}

/* Translate the verdict of the target's extension.  Of all of them only "duplicate" acks an event. */
static PgSinkClaim
claim_of(const char *result)
{
	static const struct
	{
		const char *word;
		PgSinkClaim claim;
	}			words[] = {
		{"claimed", PGSINK_CLAIM_GRANTED},
		{"duplicate", PGSINK_CLAIM_DUPLICATE},
		{"busy", PGSINK_CLAIM_BUSY},
		{"expired", PGSINK_CLAIM_EXPIRED},
		{"dead", PGSINK_CLAIM_DEAD}
	};

	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
		if (strcmp(result, words[i].word) == 0)
			return words[i].claim;
	return PGSINK_CLAIM_UNKNOWN;
}

/*
 * The result has one row per claimed id, in the order of the ids.  An event without
 * an answer must not count as a duplicate: it would be acked, and nothing done.
 */
bool
pgsink_read_claims(PgSink *p, const PGresult *res)
{
	int			row = 0;
	bool		answered = true;

	for (uint32_t i = 0; i < p->batch.count; i++)
	{
		if (p->batch.events[i].claim != PGSINK_CLAIM_ASKED)
			continue;
		answered = answered && row < PQntuples(res) && !PQgetisnull(res, row, 1);
		if (answered)
			p->batch.events[i].claim = claim_of(PQgetvalue(res, row, 1));
		row++;
	}
	return answered ||
		idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "XX000",
					   "claim_events at the target gave no answer for some events");
}
