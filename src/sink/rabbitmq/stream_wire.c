/*-------------------------------------------------------------------------
 *
 * stream_wire.c
 *		The bytes of the stream protocol: frames, chunks, entries, notes.
 *
 * A frame is its length (32 bits), a key, the version of the key's command, and for
 * requests and answers a number that the answer repeats.  All integers are big-endian.
 * A chunk is a header of 48 bytes and entries; an entry is a message, or several that
 * were published as one ("sub-batch"): those are stored as a whole or not at all.
 *
 * A note is the first section of an AMQP 1.0 message, its annotations, with one key:
 *
 *		{"relay":"orders","id":12884901889,"owner":"5d1c...","incarnation":"5f3c-1","row_id":70000,"k":17}
 *
 * INVARIANT
 *		Nothing is read beyond the bytes that are there, whatever they say.  Only what
 *		bstream_add_note has written is a note.
 *
 * MEMORY and LOCKING: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/rabbitmq/stream_wire.c
 *
 *-------------------------------------------------------------------------
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sink/rabbitmq/stream.h"

#define VERSION			1
#define CHUNK_MAGIC		5
#define CHUNK_OF_USER	0
#define CHUNK_HEADER	48
#define MAX_NOTE		4096

/* Annotations: a described map of one key, both with lengths of 32 bits. */
static const uint8_t note_begin[] = {0x00, 0x53, 0x72, 0xd1};
static const uint8_t note_key[] = {0, 0, 0, 2, 0xa3, 17, 'x', '-', 'o', 'p', 't', '-', 'i', 'd', 'e', 'm', 'p', 'o', 't', 'e', 'n', 'c', 'y', 0xb1};

void
bstream_put8(IdemText *t, uint8_t v)
{
	idem_text_add(t, &v, 1);
}

void
bstream_put16(IdemText *t, uint16_t v)
{
	uint8_t		bytes[2];

	wire_put16(bytes, v);
	idem_text_add(t, bytes, sizeof(bytes));
}

void
bstream_put32(IdemText *t, uint32_t v)
{
	uint8_t		bytes[4];

	wire_put32(bytes, v);
	idem_text_add(t, bytes, sizeof(bytes));
}

void
bstream_put64(IdemText *t, uint64_t v)
{
	uint8_t		bytes[8];

	wire_put64(bytes, v);
	idem_text_add(t, bytes, sizeof(bytes));
}

void
bstream_put_string(IdemText *t, const char *string)
{
	bstream_put16(t, (uint16_t) strlen(string));
	idem_text_puts(t, string);
}

void
bstream_patch32(IdemText *t, size_t at, uint32_t v)
{
	wire_put32((uint8_t *) t->data + at, v);
}

void
bstream_begin(IdemText *t, BStreamKey key, bool answer)
{
	t->len = 0;
	bstream_put32(t, 0);
	bstream_put16(t, (uint16_t) ((unsigned) key | (answer ? BSTREAM_IS_ANSWER : 0)));
	bstream_put16(t, VERSION);
}

void
bstream_begin_request(IdemText *t, BStreamKey key, uint32_t correlation)
{
	bstream_begin(t, key, false);
	bstream_put32(t, correlation);
}

void
bstream_end(IdemText *t)
{
	bstream_patch32(t, 0, (uint32_t) t->len - 4);
}

/* Step over n bytes; NULL if there are not so many. */
static const uint8_t *
take(BStreamCursor *c, size_t n)
{
	const uint8_t *at = c->at;

	if (c->bad || (size_t) (c->end - c->at) < n)
	{
		c->bad = true;
		return NULL;
	}
	c->at += n;
	return at;
}

uint8_t
bstream_get8(BStreamCursor *c)
{
	const uint8_t *p = take(c, 1);

	return p != NULL ? *p : 0;
}

uint16_t
bstream_get16(BStreamCursor *c)
{
	const uint8_t *p = take(c, 2);

	return p != NULL ? wire_get16(p) : 0;
}

uint32_t
bstream_get32(BStreamCursor *c)
{
	const uint8_t *p = take(c, 4);

	return p != NULL ? wire_get32(p) : 0;
}

uint64_t
bstream_get64(BStreamCursor *c)
{
	const uint8_t *p = take(c, 8);

	return p != NULL ? wire_get64(p) : 0;
}

IdemProtoStr
bstream_get_string(BStreamCursor *c)
{
	uint16_t	len = bstream_get16(c);
	const uint8_t *p = len == UINT16_MAX ? NULL : take(c, len);
	IdemProtoStr s = {p != NULL ? (const char *) p : "", p != NULL ? len : 0};

	return s;
}

/* Has the answer to a request of this key a code? */
static bool
has_code(uint16_t key)
{
	return key != (BSTREAM_METADATA | BSTREAM_IS_ANSWER) && key != (BSTREAM_TUNE | BSTREAM_IS_ANSWER);
}

bool
bstream_read_frame(const uint8_t *data, size_t len, BStreamFrame *f)
{
	memset(f, 0, sizeof(*f));
	f->rest.at = data;
	f->rest.end = data + len;
	f->key = bstream_get16(&f->rest);
	(void) bstream_get16(&f->rest);

	/*
	 * the answer to a CREDIT, which comes if the credit is refused, has no
	 * number
	 */
	if ((f->key & BSTREAM_IS_ANSWER) && f->key != (BSTREAM_CREDIT | BSTREAM_IS_ANSWER))
	{
		f->correlation = bstream_get32(&f->rest);
		if (has_code(f->key))
			f->code = bstream_get16(&f->rest);
	}
	return !f->rest.bad;
}

bool
bstream_read_chunk(BStreamCursor *c, BStreamChunk *chunk)
{
	BStreamCursor header = *c;
	size_t		left;
	size_t		filter;
	uint8_t		magic;
	uint8_t		type;
	uint32_t	size;

	memset(chunk, 0, sizeof(*chunk));
	magic = bstream_get8(&header);
	type = bstream_get8(&header);
	chunk->entries = bstream_get16(&header);
	chunk->records = bstream_get32(&header);
	(void) bstream_get64(&header);	/* the time */
	(void) bstream_get64(&header);	/* the leader's epoch */
	chunk->offset = bstream_get64(&header);
	(void) bstream_get32(&header);	/* CRC: TCP has one, too */
	size = bstream_get32(&header);
	(void) bstream_get32(&header);	/* size of the trailer */
	filter = bstream_get8(&header);
	(void) take(&header, 3);
	if (header.bad || magic >> 4 != CHUNK_MAGIC)
		return false;
	/* the server leaves the filter out, though the header has its size */
	left = (size_t) (header.end - header.at);
	if (left >= size + filter)
		(void) take(&header, filter);
	else if (left < size)
		return false;
	chunk->data.at = header.at;
	chunk->data.end = header.at + size;
	if (type != CHUNK_OF_USER)
		chunk->entries = 0;
	return true;
}

bool
bstream_next_entry(BStreamChunk *chunk, BStreamEntry *entry)
{
	BStreamCursor *c = &chunk->data;
	BStreamCursor batch;
	uint8_t		kind;
	uint32_t	size;

	memset(entry, 0, sizeof(*entry));
	if (chunk->entries == 0 || c->at == c->end)
		return false;
	chunk->entries--;
	kind = *c->at;
	if ((kind & 0x80) == 0)
	{
		size = bstream_get32(c);
		entry->records = 1;
		entry->message = take(c, size);
		entry->len = size;
		return !c->bad;
	}
	(void) bstream_get8(c);
	entry->records = bstream_get16(c);
	(void) bstream_get32(c);	/* its size before it was compressed */
	size = bstream_get32(c);
	batch.at = take(c, size);
	if (c->bad)
		return false;
	batch.end = c->at;
	batch.bad = false;
	if ((kind & 0x70) != 0 || entry->records == 0)
		return true;
	size = bstream_get32(&batch);
	entry->message = take(&batch, size);
	entry->len = entry->message != NULL ? size : 0;
	return true;
}

void
bstream_add_note(IdemText *t, const BStreamNote *note)
{
	IdemText	json = {NULL, 0, 0};
	char		text[96];

	idem_text_puts(&json, "{\"relay\":");
	idem_text_add_json(&json, note->relay, strlen(note->relay));
	snprintf(text, sizeof(text), ",\"id\":%" PRIu64 ",\"owner\":\"%s\"", note->id, note->owner);
	idem_text_puts(&json, text);
	if (!note->fence)
	{
		idem_text_puts(&json, ",\"incarnation\":");
		idem_text_add_json(&json, note->incarnation, strlen(note->incarnation));
		snprintf(text, sizeof(text), ",\"row_id\":%" PRId64 ",\"k\":%" PRId64, note->at.row_id, note->at.k);
		idem_text_puts(&json, text);
	}
	idem_text_puts(&json, "}");
	idem_text_add(t, note_begin, sizeof(note_begin));
	bstream_put32(t, (uint32_t) (sizeof(note_key) + 4 + json.len));
	idem_text_add(t, note_key, sizeof(note_key));
	bstream_put32(t, (uint32_t) json.len);
	idem_text_add(t, json.data, json.len);
	free(json.data);
}

/* Copy a string of the note.  False: it has none, or one that is too long. */
static bool
copy_string(char *dst, size_t cap, const char *json, size_t len, const char *name)
{
	char	   *text = idem_json_string(json, len, name);
	bool		fits = text != NULL && strlen(text) < cap;

	if (fits)
		memcpy(dst, text, strlen(text) + 1);
	free(text);
	return fits;
}

/* Copy a number of the note.  False: it has none. */
static bool
copy_number(char *dst, size_t cap, const char *json, size_t len, const char *name)
{
	const char *value;
	size_t		n;

	if (!idem_json_member(json, len, name, &value, &n) || n == 0 || n >= cap || strchr("-0123456789", *value) == NULL)
		return false;
	memcpy(dst, value, n);
	dst[n] = '\0';
	return true;
}

bool
bstream_read_note(const uint8_t *message, size_t len, BStreamNote *note)
{
	BStreamCursor c = {message, message + len, false};
	const uint8_t *begin = take(&c, sizeof(note_begin));
	uint32_t	size = bstream_get32(&c);
	const uint8_t *key = take(&c, sizeof(note_key));
	uint32_t	json_len = bstream_get32(&c);
	const char *json = (const char *) take(&c, json_len);
	char		number[24];

	memset(note, 0, sizeof(*note));
	if (c.bad || memcmp(begin, note_begin, sizeof(note_begin)) != 0 || memcmp(key, note_key, sizeof(note_key)) != 0 ||
		json_len > MAX_NOTE || size != sizeof(note_key) + 4 + json_len || !idem_json_is_object(json, json_len) ||
		!copy_string(note->relay, sizeof(note->relay), json, json_len, "relay") ||
		!copy_string(note->owner, sizeof(note->owner), json, json_len, "owner") ||
		!copy_number(number, sizeof(number), json, json_len, "id"))
		return false;
	note->id = strtoull(number, NULL, 10);
	note->fence = !copy_string(note->incarnation, sizeof(note->incarnation), json, json_len, "incarnation");
	if (note->fence)
		return true;
	if (!copy_number(number, sizeof(number), json, json_len, "row_id"))
		return false;
	note->at.row_id = strtoll(number, NULL, 10);
	if (!copy_number(number, sizeof(number), json, json_len, "k"))
		return false;
	note->at.k = strtoll(number, NULL, 10);
	return true;
}
