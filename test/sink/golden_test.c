/*-------------------------------------------------------------------------
 *
 * golden_test.c
 *		Checks the C codec against the golden frames, and its own corners.
 *
 *	usage: golden_test directory
 *
 * For each NAME.hex: what it decodes to must read as NAME.txt says, and must
 * encode to the same bytes again, into a buffer of exactly that size only.
 * The format of both files is in README.md.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		test/sink/golden_test.c
 *
 *-------------------------------------------------------------------------
 */
#include <dirent.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sink/null/histogram.h"
#include "sink/postgres/options.h"
#include "sink/protocol/protocol.h"

#define MAX_TEXT	65536

static int	failures;
static char text[MAX_TEXT];
static size_t text_len;

__attribute__((format(printf, 1, 2))) static void
put(const char *fmt,...)
{
	va_list		ap;

	va_start(ap, fmt);
	text_len += (size_t) vsnprintf(text + text_len, MAX_TEXT - text_len, fmt, ap);
	va_end(ap);
}

__attribute__((format(printf, 2, 3))) static void
fail(const char *name, const char *fmt,...)
{
	va_list		ap;

	failures++;
	fprintf(stderr, "FAILED %s: ", name);
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputc('\n', stderr);
}

static void
put_data(const void *data, size_t len)
{
	const uint8_t *p = data;
	uint64_t	h = UINT64_C(0xcbf29ce484222325);

	if (len > 64)
	{
		for (size_t i = 0; i < len; i++)
			h = (h ^ p[i]) * UINT64_C(0x100000001b3);
		put("%zu bytes, fnv1a %016" PRIx64, len, h);
		return;
	}
	put("\"");
	for (size_t i = 0; i < len; i++)
		if (p[i] < 0x20 || p[i] >= 0x7f || p[i] == '\\' || p[i] == '"')
			put("\\x%02x", p[i]);
		else
			put("%c", p[i]);
	put("\"");
}

static void
put_str(const char *field, IdemProtoStr s)
{
	put("%s ", field);
	put_data(s.data, s.len);
	put("\n");
}

static void
put_event(const IdemProtoEvent *e)
{
	put("type EVENT\nbatch %" PRIu64 "\nindex %u\nflags %u\nevent_id ", e->batch, e->index, e->flags);
	for (int i = 0; i < IDEM_PROTO_ID_BYTES; i++)
		put("%02x", e->event_id[i]);
	put("\nseq %" PRId64 "\nenqueued_at %" PRId64 "\ncommitted_at %" PRId64 "\n",
		e->seq, e->enqueued_at, e->committed_at);
	put("headers_len %u\npayload_len %u\n", e->headers_len, e->payload_len);
	put_str("aggregate_type", e->aggregate_type);
	put_str("aggregate_id", e->aggregate_id);
	put_str("event_type", e->event_type);
	put_str("content_type", e->content_type);
	put("chunk ");
	put_data(e->chunk, e->chunk_len);
	put("\n");
}

static void
put_hello(const IdemProtoHello *hello)
{
	IdemProtoHello walk = *hello;
	IdemProtoStr key;
	IdemProtoStr value;

	put("version %u\nflags %u\n", hello->version, hello->flags);
	put_str("relay", hello->relay);
	put_str("incarnation", hello->incarnation);
	put("options %u\n", hello->noptions);
	while (idem_proto_next_option(&walk, &key, &value))
	{
		put("option ");
		put_data(key.data, key.len);
		put(" = ");
		put_data(value.data, value.len);
		put("\n");
	}
}

static void
put_ready(const IdemProtoReady *r)
{
	put("type READY\nversion %u\ncapabilities %u\nhas_position %d\n",
		r->version, r->capabilities, r->has_position);
	put_str("incarnation", r->incarnation);
	put("row_id %" PRId64 "\nk %" PRId64 "\n", r->position.row_id, r->position.k);
	put("max_batch_events %u\nmax_batch_bytes %u\n", r->max_batch_events, r->max_batch_bytes);
	put("credit_messages %u\ncredit_bytes %u\n", r->credit_messages, r->credit_bytes);
}

static void
put_from_sink(const IdemProtoFrame *f)
{
	switch (f->type)
	{
		case IDEM_PROTO_READY:
			put_ready(&f->u.ready);
			break;
		case IDEM_PROTO_FAILED:
			put("type FAILED\noutcome %d\nsqlstate %s\n", f->u.failed.outcome, f->u.failed.sqlstate);
			put_str("message", f->u.failed.message);
			break;
		case IDEM_PROTO_RESULT:
			put("type RESULT\nbatch %" PRIu64 "\nfirst %u\nlast %u\noutcome %d\nsqlstate %s\nretry_after %u\n",
				f->u.result.batch, f->u.result.first, f->u.result.last,
				f->u.result.outcome, f->u.result.sqlstate, f->u.result.retry_after);
			put_str("destination", f->u.result.destination);
			put_str("message", f->u.result.message);
			break;
		case IDEM_PROTO_VERDICT:
			put("type VERDICT\nbatch %" PRIu64 "\nkind %d\nsqlstate %s\n",
				f->u.verdict.batch, f->u.verdict.kind, f->u.verdict.sqlstate);
			put_str("message", f->u.verdict.message);
			break;
		case IDEM_PROTO_CREDIT:
			put("type CREDIT\nmessages %u\nbytes %u\n", f->u.credit.messages, f->u.credit.bytes);
			break;
		case IDEM_PROTO_PONG:
			put("type PONG\nnonce %" PRIu64 "\n", f->u.ping.nonce);
			break;
		case IDEM_PROTO_LOG:
			put("type LOG\nlevel %d\n", f->u.log.level);
			put_str("message", f->u.log.message);
			break;
		case IDEM_PROTO_FOUND:
			put("type FOUND\nok %d\n", f->u.found.ok);
			put_str("what", f->u.found.what);
			put_str("problem", f->u.found.problem);
			put_str("remedy", f->u.found.remedy);
			break;
		default:
			put("type of the other peer\n");
	}
}

static void
put_from_worker(const IdemProtoFrame *f)
{
	switch (f->type)
	{
		case IDEM_PROTO_HELLO:
		case IDEM_PROTO_LOOK:
			put("type %s\n", f->type == IDEM_PROTO_HELLO ? "HELLO" : "LOOK");
			put_hello(&f->u.hello);
			break;
		case IDEM_PROTO_EVENT:
			put_event(&f->u.event);
			break;
		case IDEM_PROTO_CHUNK:
			put("type CHUNK\nbatch %" PRIu64 "\nindex %u\noffset %u\ndata ",
				f->u.chunk.batch, f->u.chunk.index, f->u.chunk.offset);
			put_data(f->u.chunk.data, f->u.chunk.len);
			put("\n");
			break;
		case IDEM_PROTO_END:
			put("type END\nbatch %" PRIu64 "\ncount %u\nrow_id %" PRId64 "\nk %" PRId64 "\n",
				f->u.end.batch, f->u.end.count, f->u.end.position.row_id, f->u.end.position.k);
			break;
		case IDEM_PROTO_SETTLE:
			put("type SETTLE\nbatch %" PRIu64 "\nfirst %" PRIu32 "\nlast %" PRIu32 "\n",
				f->u.settle.batch, f->u.settle.first, f->u.settle.last);
			break;
		case IDEM_PROTO_PING:
			put("type PING\nnonce %" PRIu64 "\n", f->u.ping.nonce);
			break;
		case IDEM_PROTO_BYE:
			put("type BYE\n");
			break;
		default:
			put("type of the other peer\n");
	}
}

/* Give a decoded HELLO the arrays that its encoder wants. */
static void
fill_options(IdemProtoHello *hello)
{
	static IdemProtoStr keys[IDEM_PROTO_MAX_OPTIONS];
	static IdemProtoStr values[IDEM_PROTO_MAX_OPTIONS];
	IdemProtoHello walk = *hello;

	for (int i = 0; idem_proto_next_option(&walk, &keys[i], &values[i]);)
		i++;
	hello->keys = keys;
	hello->values = values;
}

static void
check_encode(const char *name, IdemProtoFrame *frame, const uint8_t *bytes, size_t size)
{
	uint8_t    *out = malloc(size);
	size_t		rc;

	if (frame->type == IDEM_PROTO_HELLO || frame->type == IDEM_PROTO_LOOK)
		fill_options(&frame->u.hello);
	memset(out, 0xa5, size);
	rc = idem_proto_encode(out, size - 1, frame);
	if (rc != size || out[0] != 0xa5)
		fail(name, "a buffer one byte short: returned %zu instead of %zu", rc, size);
	rc = idem_proto_encode(out, size, frame);
	if (rc != size || memcmp(out, bytes, size) != 0)
		fail(name, "does not encode to the same %zu bytes (returned %zu)", size, rc);
	free(out);
}

static const char *
error_name(IdemProtoStatus status)
{
	switch (status)
	{
		case IDEM_PROTO_ERR_LENGTH:
			return "error LENGTH";
		case IDEM_PROTO_ERR_TYPE:
			return "error TYPE";
		case IDEM_PROTO_ERR_BODY:
			return "error BODY";
		case IDEM_PROTO_ERR_VALUE:
			return "error VALUE";
		case IDEM_PROTO_ERR_MAGIC:
			return "error MAGIC";
		case IDEM_PROTO_ERR_VERSION:
			return "error VERSION";
		default:
			return "incomplete";
	}
}

/* Decode each proper prefix: it must ask for more and read nothing beyond. */
static void
check_prefixes(const char *name, IdemProtoPeer from, const uint8_t *bytes, size_t size)
{
	IdemProtoFrame frame;
	size_t		used;

	for (size_t n = 0; n < size; n += (n < 300 ? 1 : 997))
	{
		uint8_t    *copy = malloc(n ? n : 1);

		memcpy(copy, bytes, n);
		if (idem_proto_next(from, copy, n, &frame, &used) != IDEM_PROTO_NEED_MORE)
			fail(name, "prefix of %zu bytes is not incomplete", n);
		free(copy);
	}
}

static void
check_frame(const char *name, const uint8_t *bytes, size_t size, const char *expected)
{
	IdemProtoPeer from = strncmp(expected, "from worker\n", 12) == 0 ?
	IDEM_PROTO_FROM_WORKER : IDEM_PROTO_FROM_SINK;
	IdemProtoFrame frame;
	size_t		used = 0;
	IdemProtoStatus status = idem_proto_next(from, bytes, size, &frame, &used);

	text_len = 0;
	put("from %s\n", from == IDEM_PROTO_FROM_WORKER ? "worker" : "sink");
	if (status != IDEM_PROTO_OK)
		put("%s\n", error_name(status));
	else if (from == IDEM_PROTO_FROM_WORKER)
		put_from_worker(&frame);
	else
		put_from_sink(&frame);
	if (strcmp(text, expected) != 0)
		fail(name, "decodes to\n%sinstead of\n%s", text, expected);
	if (status != IDEM_PROTO_OK)
		return;
	if (used != size)
		fail(name, "consumed %zu of %zu bytes", used, size);
	check_prefixes(name, from, bytes, size);
	check_encode(name, &frame, bytes, size);
}

/* "61 62" are two bytes, "00*5" five. */
static size_t
parse_hex(FILE *f, uint8_t *dst, size_t cap)
{
	char		word[64];
	size_t		n = 0;

	while (fscanf(f, "%63s", word) == 1)
	{
		unsigned	byte;
		size_t		count = 1;

		if (sscanf(word, "%2x*%zu", &byte, &count) < 1)
			abort();
		for (; count > 0 && n < cap; count--)
			dst[n++] = (uint8_t) byte;
	}
	return n;
}

static void
check_file(const char *dir, const char *name)
{
	static uint8_t bytes[IDEM_PROTO_MAX_FRAME + 1];
	static char expected[MAX_TEXT];
	char		path[4096];
	size_t		size;
	uint8_t    *exact;
	FILE	   *f;

	snprintf(path, sizeof(path), "%s/%s.hex", dir, name);
	if ((f = fopen(path, "r")) == NULL)
		abort();
	size = parse_hex(f, bytes, sizeof(bytes));
	fclose(f);
	snprintf(path, sizeof(path), "%s/%s.txt", dir, name);
	if ((f = fopen(path, "r")) == NULL)
	{
		fail(name, "no %s", path);
		return;
	}
	expected[fread(expected, 1, sizeof(expected) - 1, f)] = '\0';
	fclose(f);

	/* memory that ends where the frame ends, for the address sanitizer */
	exact = malloc(size);
	memcpy(exact, bytes, size);
	check_frame(name, exact, size, expected);
	free(exact);
}

static void
check_clean(const char *in, size_t len, size_t cap, const char *out)
{
	char	   *buf = malloc(cap);
	IdemProtoStr s = {in, (uint32_t) len};
	size_t		n = idem_proto_clean_text(buf, cap, s);

	if (strcmp(buf, out) != 0 || n != strlen(out))
		fail("clean_text", "\"%s\" instead of \"%s\"", buf, out);
	free(buf);
}

static void
check_text(void)
{
	check_clean("plain", 5, 6, "plain");
	check_clean("plain", 5, 5, "plai");
	check_clean("", 0, 1, "");
	check_clean("a\nb\r\0c\x7f", 7, 20, "a b  c ");
	check_clean("\xc3\xa9t\xc3\xa9", 5, 6, "\xc3\xa9t\xc3\xa9");
	check_clean("\xc3\xa9t\xc3\xa9", 5, 5, "\xc3\xa9t");
	check_clean("\xff\xc3", 2, 10, "??");
	check_clean("\xc0\x80\xed\xa0\x80", 5, 10, "?????");
	check_clean("\xf0\x9f\x90\x98\xf5", 5, 10, "\xf0\x9f\x90\x98?");
	check_clean("\xe2\x82\xac\xf4\x90\x80\x80", 7, 10, "\xe2\x82\xac????");
}

static void
check_name(const char *in, const char *schema, const char *name)
{
	char		a[64];
	char		b[64];
	bool		ok = idem_sink_split_name(in, a, b, sizeof(a));

	if (ok != (schema != NULL) || (ok && (strcmp(a, schema) != 0 || strcmp(b, name) != 0)))
		fail("split_name", "wrong answer for %s", in);
}

static void
check_option(const char *option, const char *value, bool expected)
{
	char		problem[256];
	const IdemSinkOption *o = idem_sink_option_find(idem_sink_postgres_options, option);

	if (o == NULL || idem_sink_option_check(o, value, problem, sizeof(problem)) != expected)
		fail("option", "%s '%s' should be %s", option, value, expected ? "fine" : "refused");
}

static void
check_options(void)
{
	check_name("app.on_order", "app", "on_order");
	check_name("App.On", "app", "on");
	check_name("\"App\".\"o.\"\"n\"", "App", "o.\"n");
	check_name("app", NULL, NULL);
	check_name("app.", NULL, NULL);
	check_name(".x", NULL, NULL);
	check_name("a.b.c", NULL, NULL);
	check_name("\"a.b", NULL, NULL);
	check_name("\"\".b", NULL, NULL);
	check_name("a b.c", NULL, NULL);
	check_name("a.bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb", NULL, NULL);
	check_option("sslmode", "verify-full", true);
	check_option("sslmode", "verify", false);
	check_option("sslmode", "", false);
	check_option("sslmode", "allow prefer", false);
	check_option("connect_timeout", "10", true);
	check_option("connect_timeout", "1", false);
	check_option("connect_timeout", "10s", false);
	check_option("connect_timeout", "99999999999999999999", false);
	check_option("connect_timeout", "-5", false);
	check_option("host", "", false);
	if (idem_sink_option_find(idem_sink_postgres_options, "passfile") != NULL)
		fail("option", "passfile is accepted");
}

/* What the encoders must refuse. */
static void
check_refusals(void)
{
	static char big[70000];
	uint8_t		buf[256];
	IdemProtoStr s = {big, 70000};
	IdemProtoFrame f = {.type = IDEM_PROTO_LOG};

	memset(big, 'x', sizeof(big));
	f.u.log.level = IDEM_PROTO_LOG_INFO;
	f.u.log.message = s;
	if (idem_proto_encode(buf, sizeof(buf), &f) != 0)
		fail("refusal", "LOG of 70000 bytes");
	f.u.log.message.len = 65535;
	if (idem_proto_encode(buf, sizeof(buf), &f) != 0)
		fail("refusal", "LOG that passes the largest frame");
	memset(&f, 0, sizeof(f));
	f.type = IDEM_PROTO_RESULT;
	f.u.result.outcome = IDEM_PROTO_ACKED;
	memcpy(f.u.result.sqlstate, "abcde", 6);
	if (idem_proto_encode(buf, sizeof(buf), &f) != 0)
		fail("refusal", "RESULT with a lower-case SQLSTATE");
	memset(&f, 0, sizeof(f));
	f.type = IDEM_PROTO_EVENT;
	f.u.event.chunk_len = 1;
	if (idem_proto_encode(buf, sizeof(buf), &f) != 0)
		fail("refusal", "EVENT with more chunk than data");
	f.u.event.aggregate_type = s;
	if (idem_proto_event_room(&f.u.event) != 0)
		fail("refusal", "room beside strings that fill the frame");
}

/* A bucket must hold its values and be at most 1/16 wide. */
static void
check_histogram(void)
{
	static NullHistogram h;
	int			last = -1;

	for (uint64_t v = 0; v < UINT64_C(1) << 40; v += 1 + v / 100)
	{
		int			b = null_histogram_bucket(v);
		uint64_t	upper = null_histogram_upper(b);

		if (b < last || upper < v || upper - v > v / 16)
			fail("histogram", "%" PRIu64 " is in bucket %d up to %" PRIu64, v, b, upper);
		last = b;
	}
	for (int i = 1; i <= 1000; i++)
		null_histogram_add(&h, i);
	if (null_histogram_quantile(&h, 0.5) < 500 || null_histogram_quantile(&h, 0.5) > 532 ||
		null_histogram_quantile(&h, 1.0) != 1000)
		fail("histogram", "quantiles of 1 to 1000");
}

int
main(int argc, char **argv)
{
	DIR		   *dir = argc == 2 ? opendir(argv[1]) : NULL;
	struct dirent *entry;
	int			count = 0;

	if (dir == NULL)
	{
		fprintf(stderr, "usage: golden_test directory\n");
		return 2;
	}
	while ((entry = readdir(dir)) != NULL)
	{
		char		name[256];
		size_t		len = strlen(entry->d_name);

		if (len < 5 || strcmp(entry->d_name + len - 4, ".hex") != 0)
			continue;
		snprintf(name, sizeof(name), "%.*s", (int) len - 4, entry->d_name);
		check_file(argv[1], name);
		count++;
	}
	closedir(dir);
	check_text();
	check_options();
	check_refusals();
	check_histogram();
	if (count < 60)
		fail("golden", "found %d frames only", count);
	printf("golden frames in C: %d checked, %d failed\n", count, failures);
	return failures ? 1 : 0;
}
