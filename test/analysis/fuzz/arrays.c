/*-------------------------------------------------------------------------
 *
 * arrays.c
 *		Fuzz target: what the postgres sink makes of a batch for its target.
 *
 * Events, the types of the target and the events chosen come from the input.
 * The arrays are caught on their way to libpq and read by a parser of their
 * own: each element must be the event's field, NULL where it has none.  Claims
 * are answered at random and must end in one completion or release each.  Keys
 * that failed are compared with a list.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		test/analysis/fuzz/arrays.c
 *
 *-------------------------------------------------------------------------
 */
#include "input.h"
#include "sink/postgres/sink.h"
#include "sink/protocol/wire.h"

int			LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MAX_EVENTS	24
#define MAX_KEYS	64

static PgSink p;
static char text_of[MAX_EVENTS][37];
static uint32_t chosen[MAX_EVENTS];
static uint32_t nchosen;
static int	prepared;			/* parameters of the statement to be executed */
static uint32_t prepared_types[PGSINK_NFIELDS];
static int	calls;
static uint32_t ended[2];		/* ids completed, released */
static bool settings;			/* sent before the ends of claims */

typedef struct Array
{
	const uint8_t *at;
	size_t		left;
	uint32_t	count;
	bool		nulls;
	bool		saw_null;
} Array;

static uint32_t
read32(Array *a)
{
	uint32_t	v;

	CHECK(a->left >= 4);
	v = wire_get32(a->at);
	a->at += 4;
	a->left -= 4;
	return v;
}

static Array
open_array(const char *value, int length, uint32_t element)
{
	Array		a = {(const uint8_t *) value, (size_t) length, 0, false, false};
	uint32_t	flags;

	CHECK(length > 0);
	CHECK(read32(&a) == 1);
	flags = read32(&a);
	CHECK(flags <= 1);
	a.nulls = flags == 1;
	CHECK(read32(&a) == element);
	a.count = read32(&a);
	CHECK(read32(&a) == 1);
	return a;
}

static void
close_array(const Array *a)
{
	CHECK(a->left == 0);
	CHECK(a->nulls == a->saw_null);
}

/* The next element must be these bytes, or NULL. */
static void
expect(Array *a, const void *data, size_t len)
{
	uint32_t	size = read32(a);

	if (data == NULL)
	{
		CHECK(size == UINT32_MAX);
		a->saw_null = true;
		return;
	}
	CHECK(size == len && a->left >= len);
	CHECK(len == 0 || memcmp(a->at, data, len) == 0);
	a->at += len;
	a->left -= len;
}

static void
expect_int64(Array *a, int64_t value)
{
	uint8_t		bytes[8];

	wire_put64(bytes, (uint64_t) value);
	expect(a, bytes, sizeof(bytes));
}

static void
expect_span(Array *a, PgSinkSpan span, bool there, bool jsonb)
{
	const uint8_t *data = p.batch.arena + span.at;

	if (there && jsonb)
	{
		uint32_t	size = read32(a);

		CHECK(size == span.len + 1 && a->left >= size && a->at[0] == 1);
		CHECK(memcmp(a->at + 1, data, span.len) == 0);
		a->at += size;
		a->left -= size;
	}
	else
		expect(a, there ? data : NULL, span.len);
}

/* JSON goes to payload, bytes go to payload_bytes; a payload of type bytea takes both. */
static void
expect_payload(Array *a, const PgSinkEvent *e, int f)
{
	bool		json = (e->flags & IDEM_PROTO_PAYLOAD_JSON) != 0;
	bool		there;

	if (f == PGSINK_FIELD_PAYLOAD)
		there = json || p.type[f] == PGSINK_TYPE_BYTEA;
	else
		there = !json;
	expect_span(a, e->payload, there, p.type[f] == PGSINK_TYPE_JSONB);
}

static void
expect_field(Array *a, const PgSinkEvent *e, int f)
{
	switch (f)
	{
		case PGSINK_FIELD_EVENT_ID:
			expect(a, e->id, IDEM_PROTO_ID_BYTES);
			break;
		case PGSINK_FIELD_SEQ:
			expect_int64(a, e->seq);
			break;
		case PGSINK_FIELD_ENQUEUED_AT:
			expect_int64(a, e->enqueued_at - INT64_C(946684800000000));
			break;
		case PGSINK_FIELD_AGGREGATE_TYPE:
			expect_span(a, e->aggregate_type, true, false);
			break;
		case PGSINK_FIELD_AGGREGATE_ID:
			expect_span(a, e->aggregate_id, true, false);
			break;
		case PGSINK_FIELD_EVENT_TYPE:
			expect_span(a, e->event_type, true, false);
			break;
		case PGSINK_FIELD_CONTENT_TYPE:
			expect_span(a, e->content_type, (e->flags & IDEM_PROTO_HAS_CONTENT_TYPE) != 0, false);
			break;
		case PGSINK_FIELD_HEADERS:
			expect_span(a, e->headers, (e->flags & IDEM_PROTO_HAS_HEADERS) != 0,
						p.type[f] == PGSINK_TYPE_JSONB);
			break;
		default:
			expect_payload(a, e, f);
	}
}

/* Array types and those of their elements, as in the target's catalog. */
static uint32_t
element_of(uint32_t array)
{
	switch (array)
	{
		case 2951:
			return PGSINK_TYPE_UUID;
		case 1016:
			return PGSINK_TYPE_INT8;
		case 1185:
			return PGSINK_TYPE_TIMESTAMPTZ;
		case 3807:
			return PGSINK_TYPE_JSONB;
		case 199:
			return PGSINK_TYPE_JSON;
		case 1001:
			return PGSINK_TYPE_BYTEA;
		default:
			CHECK(array == 1009);
			return PGSINK_TYPE_TEXT;
	}
}

/* Stand-ins for pipeline.c: statements for the target. */
void
pgsink_prepare(PgSink *sink, const char *sql, int nparams, const uint32_t *types)
{
	CHECK(sink == &p && sql == p.call_sql && nparams <= PGSINK_NFIELDS);
	prepared = nparams;
	memcpy(prepared_types, types, (size_t) nparams * sizeof(types[0]));
}

void
pgsink_execute(PgSink *sink, uint32_t arg, int nparams, const char *const *values,
			   const int *lengths)
{
	int			param = 0;

	CHECK(sink == &p && arg == chosen[0] && nparams == prepared);
	for (int f = 0; f < PGSINK_NFIELDS; f++)
	{
		Array		a;

		if (f != PGSINK_FIELD_EVENT_ID && !p.used[f])
			continue;
		CHECK(param < nparams);
		a = open_array(values[param], lengths[param], element_of(prepared_types[param]));
		CHECK(a.count == nchosen);
		for (uint32_t i = 0; i < nchosen; i++)
			expect_field(&a, &p.batch.events[chosen[i]], f);
		close_array(&a);
		param++;
	}
	CHECK(param == nparams);
	calls++;
}

/* Does the event's id belong into a statement about claims? */
static bool
in_statement(const PgSinkEvent *e, PgSinkStep step, const char *sql)
{
	if (step == PGSINK_STEP_CLAIM)
		return e->outcome == 0;
	return e->claim == PGSINK_CLAIM_GRANTED && e->done == (sql == p.complete_sql);
}

void
pgsink_send(PgSink *sink, PgSinkStep step, uint32_t arg, const char *sql, int nparams,
			const uint32_t *types, const char *const *values, const int *lengths)
{
	Array		a = open_array(values[0], lengths[0], element_of(types[0]));
	uint32_t	n = 0;

	CHECK(sink == &p && arg == 0 && nparams == 2 && values[1] == p.config.consumer);
	CHECK(step == PGSINK_STEP_CLAIM ? sql == p.claim_sql : step == PGSINK_STEP_COMPLETE);
	for (uint32_t i = 0; i < p.batch.count; i++)
		if (in_statement(&p.batch.events[i], step, sql))
		{
			expect(&a, text_of[i], 36);
			n++;
		}
	CHECK(a.count == n && n > 0);
	close_array(&a);
	CHECK(step == PGSINK_STEP_CLAIM || settings);
	if (step == PGSINK_STEP_COMPLETE)
		ended[sql == p.complete_sql ? 0 : 1] += n;
}

/* The settings before the ends of claims; their statement has no array. */
void
pgsink_send_settings(PgSink *sink)
{
	CHECK(sink == &p && p.claim_sql != NULL);
	settings = true;
}

/* A few letters, so that keys repeat; the buffer lives until the next call. */
static IdemProtoStr
take_str(Input *in, char *buf, size_t cap)
{
	IdemProtoStr s = {buf, take8(in) % 4};

	if (s.len == 3)
		s.len = (uint32_t) take_text(in, buf, cap);
	else
		for (uint32_t i = 0; i < s.len; i++)
			buf[i] = (char) ('a' + take8(in) % 2);
	return s;
}

static void
add_event(Input *in)
{
	char		bufs[4][64];
	uint8_t		id[IDEM_PROTO_ID_BYTES];
	uint8_t		chunk[64];
	IdemProtoEvent e;
	char	   *text = text_of[p.batch.count];

	memset(&e, 0, sizeof(e));
	for (int i = 0; i < IDEM_PROTO_ID_BYTES; i++)
		id[i] = take8(in);
	snprintf(text, 37, "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
			 id[0], id[1], id[2], id[3], id[4], id[5], id[6], id[7], id[8], id[9],
			 id[10], id[11], id[12], id[13], id[14], id[15]);
	e.event_id = id;
	e.seq = (int64_t) take64(in);
	/* what the program gets is a time that a server has */
	e.enqueued_at = (int64_t) (take64(in) >> 2);
	e.flags = take8(in) & IDEM_PROTO_EVENT_FLAGS;
	e.aggregate_type = take_str(in, bufs[0], sizeof(bufs[0]));
	e.aggregate_id = take_str(in, bufs[1], sizeof(bufs[1]));
	e.event_type = take_str(in, bufs[2], sizeof(bufs[2]));
	if (e.flags & IDEM_PROTO_HAS_CONTENT_TYPE)
		e.content_type = take_str(in, bufs[3], sizeof(bufs[3]));
	if (e.flags & IDEM_PROTO_HAS_HEADERS)
		e.headers_len = take8(in) % 32;
	e.payload_len = take8(in) % 32;
	for (uint32_t i = 0; i < e.headers_len + e.payload_len; i++)
		chunk[i] = take8(in);
	e.chunk = chunk;
	e.chunk_len = e.headers_len + e.payload_len;
	pgsink_batch_add(&p.batch, &e);
}

static void
choose_types(Input *in)
{
	static const uint32_t types[] = {
		PGSINK_TYPE_TEXT, PGSINK_TYPE_VARCHAR, PGSINK_TYPE_JSON, PGSINK_TYPE_JSONB, PGSINK_TYPE_BYTEA
	};

	for (int f = 0; f < PGSINK_NFIELDS; f++)
	{
		p.used[f] = take8(in) % 2;
		p.type[f] = PGSINK_TYPE_TEXT;
	}
	p.type[PGSINK_FIELD_SEQ] = PGSINK_TYPE_INT8;
	p.type[PGSINK_FIELD_ENQUEUED_AT] = PGSINK_TYPE_TIMESTAMPTZ;
	p.type[PGSINK_FIELD_PAYLOAD] = types[take8(in) % 5];
	p.type[PGSINK_FIELD_PAYLOAD_BYTES] = PGSINK_TYPE_BYTEA;
	p.type[PGSINK_FIELD_HEADERS] = types[take8(in) % 4];
}

static void
make_calls(Input *in)
{
	nchosen = 0;
	for (uint32_t i = 0; i < p.batch.count; i++)
		if (take8(in) % 4)
			chosen[nchosen++] = i;
	if (nchosen == 0)
		return;
	calls = 0;
	pgsink_send_calls(&p, chosen, nchosen);
	CHECK(calls == 1);
}

/* One row per event that was asked for, as claim_events answers. */
static void
make_claims(Input *in)
{
	static const struct
	{
		const char *text;
		PgSinkClaim claim;
	}			answers[] = {
		{"claimed", PGSINK_CLAIM_GRANTED}, {"duplicate", PGSINK_CLAIM_DUPLICATE},
		{"busy", PGSINK_CLAIM_BUSY}, {"expired", PGSINK_CLAIM_EXPIRED}
	};
	PGresAttDesc columns[2];
	PGresult   *res = PQmakeEmptyPGresult(NULL, PGRES_TUPLES_OK);
	PgSinkClaim given[MAX_EVENTS] = {PGSINK_CLAIM_NONE};
	uint32_t	claimed = 0;
	uint32_t	done = 0;
	int			row = 0;

	memset(columns, 0, sizeof(columns));
	columns[0].name = columns[1].name = (char *) "c";
	CHECK(PQsetResultAttrs(res, 2, columns));
	for (uint32_t i = 0; i < p.batch.count; i++)
		p.batch.events[i].outcome = take8(in) % 4 ? 0 : IDEM_PROTO_SKIPPED;
	pgsink_send_claims(&p);
	for (uint32_t i = 0; i < p.batch.count; i++)
	{
		uint8_t		n;

		if (p.batch.events[i].outcome != 0)
			continue;
		n = take8(in) % 4;
		given[i] = answers[n].claim;
		CHECK(PQsetvalue(res, row, 0, (char *) "1", 1));
		CHECK(PQsetvalue(res, row++, 1, (char *) answers[n].text, (int) strlen(answers[n].text)));
	}
	pgsink_read_claims(&p, res);
	PQclear(res);
	for (uint32_t i = 0; i < p.batch.count; i++)
	{
		PgSinkEvent *e = &p.batch.events[i];

		CHECK(e->claim == given[i]);
		e->done = e->claim == PGSINK_CLAIM_GRANTED && take8(in) % 2;
		claimed += e->claim == PGSINK_CLAIM_GRANTED;
		done += e->done;
	}
	ended[0] = ended[1] = 0;
	settings = false;
	pgsink_send_claim_ends(&p);
	CHECK(ended[0] == done && ended[1] == claimed - done);
}

static bool
same_key(const PgSinkEvent *a, const PgSinkEvent *b)
{
	const uint8_t *arena = p.batch.arena;

	return a->aggregate_type.len == b->aggregate_type.len &&
		a->aggregate_id.len == b->aggregate_id.len &&
		memcmp(arena + a->aggregate_type.at, arena + b->aggregate_type.at, a->aggregate_type.len) == 0 &&
		memcmp(arena + a->aggregate_id.at, arena + b->aggregate_id.at, a->aggregate_id.len) == 0;
}

/* Keys of this batch against a list of the events that failed in it. */
static void
fail_keys(Input *in)
{
	bool		fell[MAX_EVENTS] = {false};
	IdemProtoSettle settle = {0};

	for (int n = take8(in) % MAX_KEYS; n > 0 && p.batch.count > 0; n--)
	{
		uint32_t	i = take_below(in, p.batch.count);

		pgsink_keys_add(&p.failed, &p.batch, &p.batch.events[i]);
		fell[i] = true;
	}
	for (uint32_t i = 0; i < p.batch.count; i++)
	{
		bool		before = false;

		for (uint32_t j = 0; j < i; j++)
			before = before || (fell[j] && same_key(&p.batch.events[i], &p.batch.events[j]));
		CHECK(pgsink_keys_has(&p.failed, &p.batch, &p.batch.events[i]) == before);
	}
	p.batch.batch++;
	for (uint32_t i = 0; i < p.batch.count; i++)
	{
		bool		any = false;

		for (uint32_t j = 0; j < p.batch.count; j++)
			any = any || (fell[j] && same_key(&p.batch.events[i], &p.batch.events[j]));
		CHECK(pgsink_keys_has(&p.failed, &p.batch, &p.batch.events[i]) == any);
	}
	settle.batch = p.batch.batch - 1;
	settle.last = p.batch.count - 1;
	pgsink_keys_settle(&p.failed, &settle);
	CHECK(p.failed.used == 0);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static char call[] = "call";
	static char claim[] = "claim";
	static char complete[] = "complete";
	static char release[] = "release";
	static char consumer[] = "consumer";
	Input		in = {data, size};

	p.call_sql = call;
	p.claim_sql = claim;
	p.complete_sql = complete;
	p.release_sql = release;
	p.config.consumer = consumer;
	pgsink_batch_reset(&p.batch);
	p.batch.batch = 1;
	for (uint8_t n = take8(&in) % MAX_EVENTS; n > 0; n--)
		add_event(&in);
	if (p.batch.count == 0)
		return 0;
	choose_types(&in);
	make_calls(&in);
	make_claims(&in);
	fail_keys(&in);
	return 0;
}
