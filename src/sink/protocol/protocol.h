/*-------------------------------------------------------------------------
 *
 * protocol.h
 *		The frames a relay worker and a sink program exchange, and their codec.
 *
 * doc/sink-protocol.md says the same, with the rules of conversation, for whoever
 * writes a sink without these sources; test/t/602_sink_protocol.pl compares the two.
 *
 * TRANSPORT
 *		One AF_UNIX SOCK_STREAM socket pair.  The program finds its end at
 *		descriptor 0 and uses it in both directions; 1 and 2 lead to the
 *		server log.  Both ends are non-blocking.
 *
 * FRAME
 *		u32 length of what follows | u8 type | body.  All integers are
 *		big-endian; i64 is two's complement.  length is 1 to
 *		IDEM_PROTO_MAX_LENGTH, so a buffer of IDEM_PROTO_MAX_FRAME bytes holds
 *		any frame.  "str16" is u16 length + bytes, "str32" u32 length + bytes;
 *		both are UTF-8 without NUL and without terminator.  A body ends exactly
 *		where its last field ends.  Upper-case types come from the worker,
 *		lower-case ones from the sink.
 *
 * ERRORS
 *		Encoders return the size of the frame and write it if it fits in cap;
 *		a result > cap means nothing was written, 0 that the frame cannot be
 *		expressed (a string too long, a value out of its range).  The decoder
 *		checks each length and each enumeration, and never reads past len.
 *		A sender that breaks a rule is wrong for good: after an error the
 *		stream must be closed.
 *
 * INVARIANT
 *		decode(encode(f)) = f, and encode(decode(b)) = b: one encoding each.
 *
 * MEMORY
 *		Nothing is allocated.  Pointers in a decoded frame point into the
 *		caller's buffer and live as long as those bytes do.  No globals, no
 *		stdio, no server header: the server library and the programs link the
 *		same objects.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/protocol/protocol.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_SINK_PROTOCOL_H
#define IDEM_SINK_PROTOCOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define IDEM_PROTO_VERSION		1
#define IDEM_PROTO_MAGIC		0x49445350	/* "IDSP", opens a HELLO */

#define IDEM_PROTO_MAX_LENGTH	65536	/* largest value of the length field */
#define IDEM_PROTO_MAX_FRAME	(4 + IDEM_PROTO_MAX_LENGTH)
#define IDEM_PROTO_MAX_OPTIONS	256
#define IDEM_PROTO_MAX_MESSAGE	1024	/* bytes of a message worth sending */
#define IDEM_PROTO_ID_BYTES		16
#define IDEM_PROTO_CHUNK_HEAD	21	/* bytes of a CHUNK frame before its data */

typedef enum IdemProtoType
{
	/* worker to sink */
	IDEM_PROTO_HELLO = 'H',		/* first frame, once */
	IDEM_PROTO_EVENT = 'E',		/* an event and the first part of its data */
	IDEM_PROTO_CHUNK = 'C',		/* a further part of the event's data */
	IDEM_PROTO_END = 'N',		/* the batch is complete */
	IDEM_PROTO_SETTLE = 'S',	/* the batch's non-acks are on record */
	IDEM_PROTO_PING = 'P',		/* answer with PONG, or be killed */
	IDEM_PROTO_BYE = 'B',		/* nothing is open: exit */
	/* sink to worker */
	IDEM_PROTO_READY = 'r',		/* answer to HELLO: go on */
	IDEM_PROTO_FAILED = 'f',	/* cannot go on; last frame */
	IDEM_PROTO_RESULT = 'a',	/* outcome of a range of a batch's events */
	IDEM_PROTO_VERDICT = 'v',	/* transactional sinks: fate of the batch */
	IDEM_PROTO_CREDIT = 'c',	/* room for more */
	IDEM_PROTO_PONG = 'p',		/* answer to PING */
	IDEM_PROTO_LOG = 'l'		/* a line for the server log */
} IdemProtoType;

/* Who sent the bytes that are decoded. */
typedef enum IdemProtoPeer
{
	IDEM_PROTO_FROM_WORKER,
	IDEM_PROTO_FROM_SINK
} IdemProtoPeer;

/* What became of an event.  Values go over the wire. */
typedef enum IdemProtoOutcome
{
	IDEM_PROTO_ACKED = 1,		/* done; with a VERDICT to come: done if
								 * committed */
	IDEM_PROTO_RETRY = 2,		/* not now; not the message's fault for sure */
	IDEM_PROTO_REJECTED = 3,	/* refused, the message itself is at fault */
	IDEM_PROTO_UNKNOWN = 4,		/* sent, no answer: may or may not have
								 * arrived */
	IDEM_PROTO_SKIPPED = 5,		/* not sent: an earlier event of its key
								 * failed */
	IDEM_PROTO_OUTAGE = 6,		/* not sent or refused: the target is down */
	IDEM_PROTO_FENCED = 7		/* another instance took the sink over */
} IdemProtoOutcome;

/* The fate of a batch at a transactional sink.  Values go over the wire. */
typedef enum IdemProtoVerdictKind
{
	IDEM_PROTO_COMMITTED = 1,	/* effects and position are durable there */
	IDEM_PROTO_ABORTED = 2,		/* nothing of the batch had an effect, for one
								 * of its events */
	IDEM_PROTO_VERDICT_UNKNOWN = 3, /* the next READY's position will tell */
	IDEM_PROTO_VERDICT_FENCED = 4	/* nothing had an effect: fenced off */
} IdemProtoVerdictKind;

typedef enum IdemProtoLogLevel
{
	IDEM_PROTO_LOG_DEBUG = 1,
	IDEM_PROTO_LOG_INFO = 2,
	IDEM_PROTO_LOG_WARNING = 3
} IdemProtoLogLevel;

/* HELLO flags */
#define IDEM_PROTO_KEY_ORDER		0x01	/* order per (aggregate_type,
											 * aggregate_id) */
#define IDEM_PROTO_WANT_POSITION	0x02	/* store positions if the sink can */
#define IDEM_PROTO_REQUIRE_PASSWORD 0x04	/* owner is no superuser: log in
											 * with own password */
#define IDEM_PROTO_HELLO_FLAGS		0x07

/* EVENT flags */
#define IDEM_PROTO_PAYLOAD_JSON		0x01	/* payload is JSON text in UTF-8;
											 * else bytes */
#define IDEM_PROTO_HAS_HEADERS		0x02	/* else headers_len is 0 */
#define IDEM_PROTO_HAS_CONTENT_TYPE 0x04	/* else content_type is empty */
#define IDEM_PROTO_EVENT_FLAGS		0x07

/* READY capabilities */
#define IDEM_PROTO_STORES_POSITION	0x01	/* keeps each batch's position
											 * with its effects */
#define IDEM_PROTO_TRANSACTIONAL	0x02	/* sends a VERDICT for each batch */
#define IDEM_PROTO_DEDUPLICATES		0x04	/* a repeated event id has no
											 * second effect */
#define IDEM_PROTO_CAPABILITIES		0x07

/* Bytes inside a buffer; not terminated. */
typedef struct IdemProtoStr
{
	const char *data;
	uint32_t	len;
} IdemProtoStr;

/*
 * HELLO: u32 magic | u16 version | u32 flags | str16 relay | str16
 * incarnation | u16 n | n x (str16 key, str32 value).  Magic and version keep
 * their place in all versions.
 */
typedef struct IdemProtoHello
{
	uint16_t	version;
	uint32_t	flags;			/* IDEM_PROTO_KEY_ORDER ... */
	IdemProtoStr relay;			/* name of the relay, 1 byte at least */
	IdemProtoStr incarnation;	/* identity of the log that positions count in */
	uint16_t	noptions;		/* <= IDEM_PROTO_MAX_OPTIONS */
	const uint8_t *options;		/* decoded: for idem_proto_next_option */
	const uint8_t *options_end;
	/* to be encoded, noptions of each; not set by the decoder */
	const IdemProtoStr *keys;
	const IdemProtoStr *values;
} IdemProtoHello;

/*
 * EVENT: u64 batch | u32 index | u8 flags | id[16] | i64 seq | i64
 * enqueued_at | i64 committed_at | u32 headers_len | u32 payload_len | str16
 * aggregate_type | str16 aggregate_id | str16 event_type | str16
 * content_type | rest: chunk.
 *
 * The event's data is its headers (JSON text of one object) followed by its
 * payload, headers_len + payload_len bytes.  chunk is the first part of that;
 * CHUNKs with the rest follow with nothing but PINGs in between.  Thus the
 * event is whole at once if chunk_len = headers_len + payload_len.
 */
typedef struct IdemProtoEvent
{
	uint64_t	batch;			/* rises within a connection */
	uint32_t	index;			/* 0, 1, 2 ... within the batch */
	uint8_t		flags;			/* IDEM_PROTO_PAYLOAD_JSON ... */
	const uint8_t *event_id;	/* 16 bytes of a uuid, network order */
	int64_t		seq;			/* outbox sequence number */
	int64_t		enqueued_at;	/* microseconds since 1970-01-01 UTC */
	int64_t		committed_at;	/* not before; the same unit; 0 if not known */
	uint32_t	headers_len;	/* bytes */
	uint32_t	payload_len;	/* bytes */
	IdemProtoStr aggregate_type;
	IdemProtoStr aggregate_id;
	IdemProtoStr event_type;
	IdemProtoStr content_type;
	const uint8_t *chunk;		/* encoder: NULL leaves chunk_len bytes for
								 * the caller to fill at the end of the frame */
	uint32_t	chunk_len;
} IdemProtoEvent;

/* CHUNK: u64 batch | u32 index | u32 offset | rest: data, not empty. */
typedef struct IdemProtoChunk
{
	uint64_t	batch;
	uint32_t	index;
	uint32_t	offset;			/* of this part in the event's data, bytes */
	const uint8_t *data;		/* encoder: NULL as in an EVENT */
	uint32_t	len;
} IdemProtoChunk;

/*
 * A position in the log of the HELLO's incarnation: the worker's to interpret.
 * No two batches to a sink that stores positions have the same one.
 */
typedef struct IdemProtoPosition
{
	int64_t		row_id;
	int64_t		k;
} IdemProtoPosition;

/* END: u64 batch | u32 count | i64 row_id | i64 k. */
typedef struct IdemProtoEnd
{
	uint64_t	batch;
	uint32_t	count;			/* events in the batch, 1 at least */
	IdemProtoPosition position; /* to be stored with the batch's effects */
} IdemProtoEnd;

/*
 * SETTLE: u64 batch.  Sent once all events of a batch are answered and some
 * answer was not `acked`: those are durably listed for another try.  A
 * transactional sink may commit now; EVENTs that follow it may be of keys
 * that failed in this batch or before.
 */
typedef struct IdemProtoSettle
{
	uint64_t	batch;
} IdemProtoSettle;

/* PING, PONG: u64 nonce. */
typedef struct IdemProtoPing
{
	uint64_t	nonce;
} IdemProtoPing;

/*
 * READY: u16 version | u32 capabilities | u8 has_position | str16 incarnation
 * | i64 row_id | i64 k | u32 max_batch_events | u32 max_batch_bytes | u32
 * credit_messages | u32 credit_bytes.
 *
 * An event may be started while both credits are above zero.  It takes one
 * message and all bytes of its EVENT and CHUNK frames, length fields included;
 * byte credit may go below zero by the event that uses it up.  Likewise a
 * batch may pass max_batch_bytes by its last event.
 */
typedef struct IdemProtoReady
{
	uint16_t	version;
	uint32_t	capabilities;	/* IDEM_PROTO_STORES_POSITION ... */
	bool		has_position;	/* else the three below are empty and 0 */
	IdemProtoStr incarnation;
	IdemProtoPosition position; /* of the last batch committed at the sink */
	uint32_t	max_batch_events;	/* 0: no limit */
	uint32_t	max_batch_bytes;	/* 0: no limit; counted as credit is */
	uint32_t	credit_messages;	/* 1 at least */
	uint32_t	credit_bytes;	/* 1 at least */
} IdemProtoReady;

/*
 * FAILED: u8 outcome | sqlstate[5] | str16 message.  Events without a result
 * and batches without a verdict are `unknown`.
 */
typedef struct IdemProtoFailed
{
	IdemProtoOutcome outcome;	/* OUTAGE: try later; FENCED; REJECTED: the
								 * options or the target's objects are wrong */
	char		sqlstate[6];	/* terminated */
	IdemProtoStr message;
} IdemProtoFailed;

/*
 * RESULT: u64 batch | u32 first | u32 last | u8 outcome | sqlstate[5] | u32
 * retry_after | str16 message.  "00000" where there is no SQLSTATE to tell.
 */
typedef struct IdemProtoResult
{
	uint64_t	batch;
	uint32_t	first;			/* index of the first event it is about */
	uint32_t	last;			/* and of the last, inclusive */
	IdemProtoOutcome outcome;
	char		sqlstate[6];	/* terminated */
	uint32_t	retry_after;	/* ms, not before; 0: as the relay sees fit */
	IdemProtoStr message;
} IdemProtoResult;

/*
 * VERDICT: u64 batch | u8 kind | sqlstate[5] | str16 message.  After any kind
 * but committed the sink applies nothing more and sends FAILED.
 */
typedef struct IdemProtoVerdict
{
	uint64_t	batch;
	IdemProtoVerdictKind kind;
	char		sqlstate[6];	/* terminated */
	IdemProtoStr message;
} IdemProtoVerdict;

/* CREDIT: u32 messages | u32 bytes; added to what is left. */
typedef struct IdemProtoCredit
{
	uint32_t	messages;
	uint32_t	bytes;
} IdemProtoCredit;

/* LOG: u8 level | str16 message. */
typedef struct IdemProtoLog
{
	IdemProtoLogLevel level;
	IdemProtoStr message;
} IdemProtoLog;

/* A decoded frame; BYE has no body. */
typedef struct IdemProtoFrame
{
	IdemProtoType type;
	union
	{
		IdemProtoHello hello;
		IdemProtoEvent event;
		IdemProtoChunk chunk;
		IdemProtoEnd end;
		IdemProtoSettle settle;
		IdemProtoPing ping;		/* PING and PONG */
		IdemProtoReady ready;
		IdemProtoFailed failed;
		IdemProtoResult result;
		IdemProtoVerdict verdict;
		IdemProtoCredit credit;
		IdemProtoLog log;
	}			u;
} IdemProtoFrame;

typedef enum IdemProtoStatus
{
	IDEM_PROTO_OK,				/* *frame and *consumed are set */
	IDEM_PROTO_NEED_MORE,		/* the frame is not complete yet */
	/* all below: the peer is broken, close */
	IDEM_PROTO_ERR_LENGTH,		/* length field is 0 or over the limit */
	IDEM_PROTO_ERR_TYPE,		/* no such type, or not from this peer */
	IDEM_PROTO_ERR_BODY,		/* a field passes the body's end, or bytes are
								 * left over */
	IDEM_PROTO_ERR_VALUE,		/* a value that the field cannot have */
	IDEM_PROTO_ERR_MAGIC,		/* HELLO without the magic */
	IDEM_PROTO_ERR_VERSION		/* HELLO or READY of another version; its
								 * version field is set */
} IdemProtoStatus;

/*
 * Decode the frame at buf, of which len bytes are there.  *consumed is set to
 * the size of the frame on IDEM_PROTO_OK only; on IDEM_PROTO_NEED_MORE nothing
 * is set.  Errors in the length and the type show before the frame is whole.
 */
extern IdemProtoStatus idem_proto_next(IdemProtoPeer from, const uint8_t *buf,
									   size_t len, IdemProtoFrame *frame,
									   size_t *consumed);

/* An error in words, for messages: "unknown frame type". */
extern const char *idem_proto_status_text(IdemProtoStatus status);

/* Read the next option of a decoded HELLO; false at the end. */
extern bool idem_proto_next_option(IdemProtoHello *hello, IdemProtoStr *key,
								   IdemProtoStr *value);

/* Bytes of data that fit in the EVENT frame itself beside the strings. */
extern size_t idem_proto_event_room(const IdemProtoEvent *event);

/* Encoders; see ERRORS above for what they return. */
extern size_t idem_proto_encode_hello(uint8_t *buf, size_t cap, const IdemProtoHello *f);
extern size_t idem_proto_encode_event(uint8_t *buf, size_t cap, const IdemProtoEvent *f);
extern size_t idem_proto_encode_chunk(uint8_t *buf, size_t cap, const IdemProtoChunk *f);
extern size_t idem_proto_encode_end(uint8_t *buf, size_t cap, const IdemProtoEnd *f);
extern size_t idem_proto_encode_settle(uint8_t *buf, size_t cap, const IdemProtoSettle *f);
extern size_t idem_proto_encode_ping(uint8_t *buf, size_t cap, uint64_t nonce);
extern size_t idem_proto_encode_bye(uint8_t *buf, size_t cap);
extern size_t idem_proto_encode_ready(uint8_t *buf, size_t cap, const IdemProtoReady *f);
extern size_t idem_proto_encode_failed(uint8_t *buf, size_t cap, const IdemProtoFailed *f);
extern size_t idem_proto_encode_result(uint8_t *buf, size_t cap, const IdemProtoResult *f);
extern size_t idem_proto_encode_verdict(uint8_t *buf, size_t cap, const IdemProtoVerdict *f);
extern size_t idem_proto_encode_credit(uint8_t *buf, size_t cap, const IdemProtoCredit *f);
extern size_t idem_proto_encode_pong(uint8_t *buf, size_t cap, uint64_t nonce);
extern size_t idem_proto_encode_log(uint8_t *buf, size_t cap, const IdemProtoLog *f);

/* Any frame, by its type. */
extern size_t idem_proto_encode(uint8_t *buf, size_t cap, const IdemProtoFrame *f);

/*
 * Copy a message from an untrusted peer to dst as one line: control bytes
 * become spaces, bytes that are no valid UTF-8 become '?', cut at a character
 * so that dst holds it with a terminator.  cap is 1 at least; returns the
 * length.
 */
extern size_t idem_proto_clean_text(char *dst, size_t cap, IdemProtoStr src);

#endif							/* IDEM_SINK_PROTOCOL_H */
