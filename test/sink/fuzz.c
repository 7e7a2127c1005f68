/*-------------------------------------------------------------------------
 *
 * fuzz.c
 *		Fuzz target for what reads bytes from the other side.
 *
 * The first byte chooses the sender, the rest is a stream.  Frames must decode
 * without reading beyond the stream (the address sanitizer watches), encode to
 * the same bytes again, and pass the checks of their order without harm.
 *
 * With -fsanitize=fuzzer this is a libFuzzer target.  With -DSTANDALONE it has
 * its own driver, for compilers without that:
 *
 *	usage: fuzz directory-of-golden-frames seconds [seed]
 *
 * which mutates golden frames and chains of them.  The seed is printed.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		test/sink/fuzz.c
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sink/common/stream.h"
#include "sink/protocol/option.h"
#include "sink/protocol/protocol.h"

int			LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static IdemProtoStr keys[IDEM_PROTO_MAX_OPTIONS];
static IdemProtoStr values[IDEM_PROTO_MAX_OPTIONS];

#define CHECK(cond) \
	do { \
		if (!(cond)) \
		{ \
			fprintf(stderr, "fuzz: %s does not hold\n", #cond); \
			abort(); \
		} \
	} while (0)

static void
reencode(IdemProtoFrame *frame, const uint8_t *bytes, size_t size)
{
	static uint8_t out[IDEM_PROTO_MAX_FRAME];

	if (frame->type == IDEM_PROTO_HELLO || frame->type == IDEM_PROTO_LOOK)
	{
		IdemProtoHello walk = frame->u.hello;
		int			n = 0;

		while (idem_proto_next_option(&walk, &keys[n], &values[n]))
			n++;
		CHECK(n == frame->u.hello.noptions);
		frame->u.hello.keys = keys;
		frame->u.hello.values = values;
	}
	CHECK(idem_proto_encode(out, sizeof(out), frame) == size);
	CHECK(memcmp(out, bytes, size) == 0);
}

/* The text of a frame from the sink ends up in logs. */
static void
clean_message(const IdemProtoFrame *frame)
{
	char		text[128];
	char		twice[128];
	IdemProtoStr s = {"", 0};
	IdemProtoStr cleaned = {text, 0};
	size_t		n;
	size_t		again;

	if (frame->type == IDEM_PROTO_RESULT)
		s = frame->u.result.destination.len > 0 ? frame->u.result.destination : frame->u.result.message;
	else if (frame->type == IDEM_PROTO_FAILED)
		s = frame->u.failed.message;
	else if (frame->type == IDEM_PROTO_LOG)
		s = frame->u.log.message;
	else if (frame->type == IDEM_PROTO_FOUND)
		s = frame->u.found.problem;
	n = idem_proto_clean_text(text, sizeof(text), s);
	CHECK(n < sizeof(text) && text[n] == '\0' && n <= s.len);
	cleaned.len = (uint32_t) n;
	again = idem_proto_clean_text(twice, sizeof(twice), cleaned);
	CHECK(again == n && memcmp(text, twice, n) == 0);
}

static void
names(const uint8_t *data, size_t size)
{
	char		value[96];
	char		a[64];
	char		b[64];

	if (size >= sizeof(value))
		size = sizeof(value) - 1;
	memcpy(value, data, size);
	value[size] = '\0';
	if (idem_sink_split_name(value, a, b, sizeof(a)))
		CHECK(a[0] != '\0' && b[0] != '\0' && strlen(a) < 64 && strlen(b) < 64);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	IdemProtoPeer from;
	IdemProtoFrame frame;
	IdemSinkStream stream;
	uint8_t    *copy;
	size_t		at = 0;
	size_t		used;

	if (size < 1)
		return 0;
	from = (data[0] & 1) ? IDEM_PROTO_FROM_SINK : IDEM_PROTO_FROM_WORKER;
	names(data + 1, size - 1);
	copy = malloc(size);
	memcpy(copy, data + 1, size - 1);
	idem_stream_init(&stream);
	stream.credit_messages = 8;
	stream.credit_bytes = 1000;
	stream.said_hello = (data[0] & 2) != 0;
	while (idem_proto_next(from, copy + at, size - 1 - at, &frame, &used) == IDEM_PROTO_OK)
	{
		CHECK(used >= 5 && used <= size - 1 - at);
		reencode(&frame, copy + at, used);
		if (from == IDEM_PROTO_FROM_SINK)
			clean_message(&frame);
		else
			idem_stream_check(&stream, &frame, used);
		CHECK(stream.data_done <= stream.data_len);
		at += used;
	}
	free(copy);
	return 0;
}

#ifdef STANDALONE

#include <dirent.h>
#include <time.h>

#define MAX_SEEDS	256
#define STREAM_BYTES	(2 * IDEM_PROTO_MAX_FRAME)

static struct
{
	uint8_t    *data;
	size_t		size;
}			seeds[MAX_SEEDS];
static int	nseeds;
static uint64_t state;

/* xorshift64* */
static uint64_t
next_random(uint64_t below)
{
	state ^= state >> 12;
	state ^= state << 25;
	state ^= state >> 27;
	return (state * UINT64_C(2685821657736338717) >> 11) % below;
}

static void
load(const char *path)
{
	static uint8_t bytes[IDEM_PROTO_MAX_FRAME];
	char		word[64];
	size_t		n = 0;
	FILE	   *f = fopen(path, "r");

	if (f == NULL || nseeds == MAX_SEEDS)
		abort();
	while (fscanf(f, "%63s", word) == 1)
	{
		unsigned	byte;
		size_t		count = 1;

		if (sscanf(word, "%2x*%zu", &byte, &count) < 1)
			abort();
		for (; count > 0 && n < sizeof(bytes); count--)
			bytes[n++] = (uint8_t) byte;
	}
	fclose(f);
	seeds[nseeds].data = malloc(n);
	memcpy(seeds[nseeds].data, bytes, n);
	seeds[nseeds++].size = n;
}

/* A few changes of the kinds that find length and bounds errors. */
static size_t
mutate(uint8_t *p, size_t n)
{
	static const uint8_t odd[] = {0, 1, 0x7f, 0x80, 0xfe, 0xff};

	for (uint64_t i = next_random(6); i > 0 && n > 1; i--)
	{
		size_t		at = next_random(next_random(2) ? n : (n < 64 ? n : 64));

		switch (next_random(4))
		{
			case 0:
				p[at] ^= (uint8_t) (1 << next_random(8));
				break;
			case 1:
				p[at] = odd[next_random(sizeof(odd))];
				break;
			case 2:
				n = at + 1;
				break;
			default:
				memmove(p + at, p + at + 1, n - at - 1);
				p[n - 1] = (uint8_t) next_random(256);
		}
	}
	return n;
}

int
main(int argc, char **argv)
{
	static uint8_t input[STREAM_BYTES];
	DIR		   *dir = argc >= 3 ? opendir(argv[1]) : NULL;
	struct dirent *entry;
	time_t		end;
	uint64_t	runs = 0;

	if (dir == NULL)
	{
		fprintf(stderr, "usage: fuzz directory seconds [seed]\n");
		return 2;
	}
	while ((entry = readdir(dir)) != NULL)
		if (strstr(entry->d_name, ".hex"))
		{
			char		path[4096];

			snprintf(path, sizeof(path), "%s/%s", argv[1], entry->d_name);
			load(path);
		}
	closedir(dir);
	state = argc > 3 ? strtoull(argv[3], NULL, 10) : (uint64_t) time(NULL);
	printf("fuzz: seed %llu\n", (unsigned long long) state);
	fflush(stdout);
	state = state * 2 + 1;
	end = time(NULL) + atoi(argv[2]);
	for (; (runs & 255) != 0 || time(NULL) < end; runs++)
	{
		size_t		n = 1;

		input[0] = (uint8_t) next_random(4);
		for (uint64_t frames = 1 + next_random(5); frames > 0; frames--)
		{
			int			s = (int) next_random((uint64_t) nseeds);

			if (seeds[s].size > 4096 && next_random(50) != 0)
				continue;
			if (n + seeds[s].size > STREAM_BYTES)
				break;
			memcpy(input + n, seeds[s].data, seeds[s].size);
			n += seeds[s].size;
		}
		n = 1 + mutate(input + 1, n - 1);
		LLVMFuzzerTestOneInput(input, n);
	}
	printf("fuzz: %llu inputs, no fault\n", (unsigned long long) runs);
	return 0;
}

#endif							/* STANDALONE */
