/*-------------------------------------------------------------------------
 *
 * stream.h
 *		The types and functions that the files of the mode for streams share.
 *
 * The order of the declarations is that of README.md.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/rabbitmq/stream.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_SINK_RABBITMQ_STREAM_H
#define IDEM_SINK_RABBITMQ_STREAM_H

#include "sink/protocol/wire.h"
#include "sink/rabbitmq/sink.h"

#define BSTREAM_PORT				5552
#define BSTREAM_TLS_PORT			5551
#define BSTREAM_MAX_BATCH_EVENTS	1000
#define BSTREAM_MAX_NAME			255 /* bytes of a stream's, or a
										 * publisher's, name */
#define BSTREAM_MAX_FLIGHT			32	/* batches that are in flight together */
#define BSTREAM_MAX_FRAME			(8 * 1024 * 1024)	/* bytes of a frame that
														 * we send */
#define BSTREAM_MAX_CHUNK			(256 * 1024 * 1024) /* bytes of a frame that
														 * we take */
#define BSTREAM_OWNER_TEXT			17	/* with its terminator */

/* Keys of the protocol's commands; an answer has the highest bit set. */
typedef enum BStreamKey
{
	BSTREAM_DECLARE_PUBLISHER = 1,
	BSTREAM_PUBLISH,
	BSTREAM_PUBLISH_CONFIRM,
	BSTREAM_PUBLISH_ERROR,
	BSTREAM_QUERY_SEQUENCE,
	BSTREAM_DELETE_PUBLISHER,
	BSTREAM_SUBSCRIBE,
	BSTREAM_DELIVER,
	BSTREAM_CREDIT,
	BSTREAM_UNSUBSCRIBE = 12,
	BSTREAM_METADATA = 15,
	BSTREAM_METADATA_UPDATE,
	BSTREAM_PEER_PROPERTIES,
	BSTREAM_SASL_HANDSHAKE,
	BSTREAM_SASL_AUTHENTICATE,
	BSTREAM_TUNE,
	BSTREAM_OPEN,
	BSTREAM_CLOSE,
	BSTREAM_HEARTBEAT
} BStreamKey;

#define BSTREAM_IS_ANSWER	0x8000
#define BSTREAM_OK			1	/* the code of a request that succeeded */

/* Where a subscription begins. */
typedef enum BStreamFrom
{
	BSTREAM_FROM_FIRST = 1,
	BSTREAM_FROM_LAST = 2,		/* the last chunk with messages */
	BSTREAM_FROM_OFFSET = 4
} BStreamFrom;

/* Bytes that are being read.  Who reads beyond their end gets zeros and sets bad. */
typedef struct BStreamCursor
{
	const uint8_t *at;
	const uint8_t *end;
	bool		bad;
} BStreamCursor;

/* A frame that the server has sent. */
typedef struct BStreamFrame
{
	uint16_t	key;
	uint32_t	correlation;	/* of an answer */
	uint16_t	code;			/* of an answer that has one */
	BStreamCursor rest;
} BStreamFrame;

/* A chunk: what the server has written to the stream's log in one piece. */
typedef struct BStreamChunk
{
	uint64_t	offset;			/* of its first message */
	uint32_t	records;
	uint32_t	entries;		/* still to be read */
	BStreamCursor data;
} BStreamChunk;

/* An entry of a chunk: a message, or several that were published as one. */
typedef struct BStreamEntry
{
	uint32_t	records;
	const uint8_t *message;		/* the first one; NULL: compressed */
	size_t		len;
} BStreamEntry;

/*
 * The note that the first message of each entry of ours has: whose it is, and the
 * position behind it.
 */
typedef struct BStreamNote
{
	char		relay[256];
	char		owner[BSTREAM_OWNER_TEXT];	/* the program that wrote it */
	uint64_t	id;				/* publishing id */
	bool		fence;			/* no batch, but the start of a program */
	char		incarnation[IDEM_PROTO_MAX_MESSAGE];
	IdemProtoPosition at;
} BStreamNote;

/* An event's message, without a note. */
typedef struct IdemTarget
{
	char	   *data;
	size_t		len;
} BStreamMessage;

/* What the stream is found to hold. */
typedef struct BStreamFound
{
	uint64_t	end;			/* offset behind the last message that was
								 * read */
	bool		read_any;
	uint64_t	id;				/* the highest publishing id of ours, or 0 */
	bool		has_batch;		/* last: the last batch of ours */
	BStreamNote last;
	bool		others;			/* messages that are not ours were seen */
} BStreamFound;

typedef struct BStream
{
	char	   *name;			/* of the stream */
	char	   *publisher;		/* its name; "": at least once */
	bool		exactly_once;
	char		owner[BSTREAM_OWNER_TEXT];	/* different in each program */

	/* the connection */
	int			fd;				/* -1: none */
	void	   *tls;			/* what stream_tls.c keeps of the connection */
	IdemServer	peer;
	IdemText	in;				/* bytes that have come */
	size_t		in_used;		/* of them, taken */
	IdemText	out;			/* the frame that is being written */
	uint32_t	correlation;
	uint32_t	frame_max;
	uint8_t		subscription;
	uint64_t	flight_first;	/* the publishing id of bit 0 */
	uint32_t	flight;			/* a bit for each entry without a confirm */
	int64_t		heard;			/* when the server said something last */
	char		news[400];		/* for the server log, once; "": nothing */
	bool		told_leader;
	bool		told_others;

	/* the position */
	uint64_t	id;				/* the last publishing id that was used */
	uint64_t	highest;		/* the highest that was seen */
	BStreamFound found;			/* at the last look */
	bool		has_position;
	char		incarnation[IDEM_PROTO_MAX_MESSAGE];
	IdemProtoPosition at;
} BStream;

/* stream_position.c: parts of jobs.  False: p->failure */

/* Connect, and read the stream's last batch: s->found.  Writes nothing. */
extern bool bstream_look(BSink *p, BStream *s);

/*
 * Connect, and take the position over: the stream's last batch is in s->at, and none but
 * this program's can follow.  again: this program has done so before, and fails if the
 * position is another one since.
 */
extern bool bstream_take_over(BSink *p, BStream *s, bool again);

/* stream_message.c */

/* Make the messages of the events that are not decided; decide those that have none. */
extern void bstream_prepare(BSink *p, BStream *s, IdemBatch *b);
extern void bstream_free_messages(IdemBatch *b);

/*
 * Write the frame that publishes the messages of the batch as one entry, with the
 * batch's position; b is NULL: that publishes a fence.
 */
extern void bstream_write_entry(BSink *p, BStream *s, const IdemBatch *b, uint64_t id);

/* stream_client.c: parts of jobs.  False: p->failure */

/* Connect to a server, log in, go to the stream's leader, declare the publisher. */
extern bool bstream_connect(BSink *p, BStream *s);
extern void bstream_disconnect(BStream *s);

/* Send the frame in s->out, which publishes an entry of this id. */
extern bool bstream_publish(BSink *p, BStream *s, uint64_t id);

/* Wait until all that was published is confirmed. */
extern bool bstream_await_confirms(BSink *p, BStream *s);

/* Ask for the last publishing id of our name; 0: the server knows none. */
extern bool bstream_ask_sequence(BSink *p, BStream *s, uint64_t *id);

/* Takes a chunk, which lives until it returns.  True: that was enough. */
typedef bool (*BStreamVisit) (BStream *s, BStreamChunk *chunk, void *arg);

/* Read the stream from there until the visitor has enough; the chunks have to be there. */
extern bool bstream_read_from(BSink *p, BStream *s, BStreamFrom from, uint64_t offset, BStreamVisit visit, void *arg);

/*
 * Read the last chunk with messages, if there is one, and ask for the last publishing
 * id of our name.
 */
extern bool bstream_read_last(BSink *p, BStream *s, BStreamVisit visit, void *arg, uint64_t *sequence);

/* The main thread: take what has come while nothing was asked; send a heartbeat. */
extern void bstream_tend(BSink *p, BStream *s);

/* stream_tls.c: parts of jobs */

/* Begin TLS on the connection.  False: p->failure */
extern bool bstream_start_tls(BSink *p, BStream *s, int64_t deadline);
extern void bstream_end_tls(BStream *s);

/* As send(2) and recv(2) on a descriptor that does not block. */
extern ssize_t bstream_write(BStream *s, const void *data, size_t len, short *wait_for);
extern ssize_t bstream_read(BStream *s, void *data, size_t len, short *wait_for);

/* stream_wire.c */

/* Begin a frame in t; end it: its length is written. */
extern void bstream_begin(IdemText *t, BStreamKey key, bool answer);
extern void bstream_begin_request(IdemText *t, BStreamKey key, uint32_t correlation);
extern void bstream_end(IdemText *t);
extern void bstream_put8(IdemText *t, uint8_t v);
extern void bstream_put16(IdemText *t, uint16_t v);
extern void bstream_put32(IdemText *t, uint32_t v);
extern void bstream_put64(IdemText *t, uint64_t v);
extern void bstream_put_string(IdemText *t, const char *string);
extern void bstream_patch32(IdemText *t, size_t at, uint32_t v);

extern uint8_t bstream_get8(BStreamCursor *c);
extern uint16_t bstream_get16(BStreamCursor *c);
extern uint32_t bstream_get32(BStreamCursor *c);
extern uint64_t bstream_get64(BStreamCursor *c);

/* A string: 16 bits of length, or of -1 for none.  It is not terminated. */
extern IdemProtoStr bstream_get_string(BStreamCursor *c);

/* Take the frame at the beginning of the bytes.  False: it makes no sense. */
extern bool bstream_read_frame(const uint8_t *data, size_t len, BStreamFrame *f);

/* Take the chunk of a DELIVER; the next entry of a chunk.  False: it makes no sense. */
extern bool bstream_read_chunk(BStreamCursor *c, BStreamChunk *chunk);
extern bool bstream_next_entry(BStreamChunk *chunk, BStreamEntry *entry);

/* Add a note as a section of a message; read it.  False: the message has none. */
extern void bstream_add_note(IdemText *t, const BStreamNote *note);
extern bool bstream_read_note(const uint8_t *message, size_t len, BStreamNote *note);

#endif							/* IDEM_SINK_RABBITMQ_STREAM_H */
