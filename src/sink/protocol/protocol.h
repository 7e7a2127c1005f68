/*-------------------------------------------------------------------------
 *
 * protocol.h
 *		The frames that a relay worker and a sink program exchange, and their
 *		codec.
 *
 * doc/sink-protocol.md describes the same frames and adds the rules of
 * conversation, for authors who write a sink without these sources.
 * test/t/602_sink_protocol.pl compares the document with this file.
 *
 * TRANSPORT
 *		Worker and program share one AF_UNIX SOCK_STREAM socket pair.  The
 *		program finds its end of the pair at descriptor 0, and reads and writes
 *		there.  Descriptors 1 and 2 lead to the server log.  Both ends are
 *		non-blocking.
 *
 * FRAME
 *		A frame is: u32 length of type and body | u8 type | body.  All integers
 *		are big-endian; i64 is two's complement.  The length is 1 to
 *		IDEM_PROTO_MAX_LENGTH, so a buffer of IDEM_PROTO_MAX_FRAME bytes holds
 *		any frame.  "str16" is a u16 length and as many bytes; "str32" is a u32
 *		length and as many bytes.  Both are UTF-8 without NUL and without
 *		terminator.  A body ends exactly where its last field ends.  The worker
 *		sends the upper-case types, the sink sends the lower-case types.
 *
 * ERRORS
 *		An encoder returns the size of the frame, and writes the frame if it
 *		fits in cap.  A result above cap means that nothing was written.  A
 *		result of 0 means that the frame cannot be expressed: a string is too
 *		long or a value is out of range.  The decoder checks each length and
 *		each enumeration, and never reads past len.  A sender that breaks a
 *		rule once cannot be trusted again: after an error of the decoder, close
 *		the stream.
 *
 * INVARIANT
 *		Each frame has exactly one encoding: decode(encode(f)) = f, and
 *		encode(decode(b)) = b.
 *
 * MEMORY
 *		The codec allocates nothing.  Pointers in a decoded frame point into the
 *		caller's buffer and live as long as those bytes do.  The codec uses no
 *		globals, no stdio and no server header, because the server library and
 *		the programs link the same objects.
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
#define IDEM_PROTO_MAX_MESSAGE	1024	/* bytes of text that receivers keep */
#define IDEM_PROTO_ID_BYTES		16
#define IDEM_PROTO_CHUNK_HEAD	21	/* bytes of a CHUNK frame before its data */

typedef enum IdemProtoType
{
	/* worker to sink */
	IDEM_PROTO_HELLO = 'H',		/* first frame, once */
	IDEM_PROTO_LOOK = 'L',		/* in the place of HELLO: look at the target,
								 * take nothing over and send nothing */
	IDEM_PROTO_EVENT = 'E',		/* an event and the first part of its data */
	IDEM_PROTO_CHUNK = 'C',		/* a further part of the event's data */
	IDEM_PROTO_END = 'N',		/* the batch is complete */
	IDEM_PROTO_SETTLE = 'S',	/* the worker has recorded those of a range of
								 * events that were not acked */
	IDEM_PROTO_PING = 'P',		/* a sink that does not answer with PONG is
								 * killed */
	IDEM_PROTO_BYE = 'B',		/* everything is answered: exit */
	/* sink to worker */
	IDEM_PROTO_READY = 'r',		/* answer to HELLO: events may come */
	IDEM_PROTO_FAILED = 'f',	/* the sink cannot go on; its last frame */
	IDEM_PROTO_RESULT = 'a',	/* outcome of a range of a batch's events */
	IDEM_PROTO_VERDICT = 'v',	/* fate of a batch at a transactional sink */
	IDEM_PROTO_CREDIT = 'c',	/* the sink has room for more events */
	IDEM_PROTO_PONG = 'p',		/* answer to PING */
	IDEM_PROTO_LOG = 'l',		/* a line for the server log */
	IDEM_PROTO_FOUND = 'o'		/* what a LOOK has found of one thing */
} IdemProtoType;

/* The sender of the bytes that are decoded. */
typedef enum IdemProtoPeer
{
	IDEM_PROTO_FROM_WORKER,
	IDEM_PROTO_FROM_SINK
} IdemProtoPeer;

/* What became of an event.  The values go over the wire. */
typedef enum IdemProtoOutcome
{
	IDEM_PROTO_ACKED = 1,		/* done; at a transactional sink: done if the
								 * VERDICT is COMMITTED */
	IDEM_PROTO_RETRY = 2,		/* refused for now; the event is not known to
								 * be at fault */
	IDEM_PROTO_REJECTED = 3,	/* refused: the event itself is at fault */
	IDEM_PROTO_UNKNOWN = 4,		/* sent without an answer: may or may not have
								 * arrived */
	IDEM_PROTO_SKIPPED = 5,		/* not sent: an earlier event of its key
								 * failed */
	IDEM_PROTO_OUTAGE = 6,		/* not sent or refused: the target is down */
	IDEM_PROTO_FENCED = 7,		/* another instance took the sink over */
	IDEM_PROTO_HALTED = 8,		/* the target wants no more events; in FAILED
								 * only */
	IDEM_PROTO_IMPOSSIBLE = 9	/* not sent: the event can never be; in RESULT
								 * only */
} IdemProtoOutcome;

/* The fate of a batch at a transactional sink.  The values go over the wire. */
typedef enum IdemProtoVerdictKind
{
	IDEM_PROTO_COMMITTED = 1,	/* effects and position are durable at the
								 * target */
	IDEM_PROTO_ABORTED = 2,		/* the batch had no effect, because of one of
								 * its events */
	IDEM_PROTO_VERDICT_UNKNOWN = 3, /* the position in the next READY tells */
	IDEM_PROTO_VERDICT_FENCED = 4	/* the batch had no effect: another
									 * instance took the sink over */
} IdemProtoVerdictKind;

typedef enum IdemProtoLogLevel
{
	IDEM_PROTO_LOG_DEBUG = 1,
	IDEM_PROTO_LOG_INFO = 2,
	IDEM_PROTO_LOG_WARNING = 3
} IdemProtoLogLevel;

/* HELLO flags */
#define IDEM_PROTO_KEY_ORDER		0x01	/* keep the order of each key:
											 * (aggregate_type, aggregate_id) */
#define IDEM_PROTO_WANT_POSITION	0x02	/* store positions if the sink can */
#define IDEM_PROTO_REQUIRE_PASSWORD 0x04	/* the owner is no superuser: log
											 * in with the password of the
											 * options */
#define IDEM_PROTO_HELLO_FLAGS		0x07

/* EVENT flags */
#define IDEM_PROTO_PAYLOAD_JSON		0x01	/* the payload is JSON text in
											 * UTF-8; unset: bytes */
#define IDEM_PROTO_HAS_HEADERS		0x02	/* unset: headers_len is 0 */
#define IDEM_PROTO_HAS_CONTENT_TYPE 0x04	/* unset: content_type is empty */
#define IDEM_PROTO_EVENT_FLAGS		0x07

/* READY capabilities */
#define IDEM_PROTO_STORES_POSITION	0x01	/* stores each batch's position
											 * with its effects */
#define IDEM_PROTO_TRANSACTIONAL	0x02	/* sends a VERDICT for each batch */
#define IDEM_PROTO_DEDUPLICATES		0x04	/* a repeated event id has no
											 * second effect */
#define IDEM_PROTO_CAPABILITIES		0x07

/* Bytes inside a buffer, not terminated. */
typedef struct IdemProtoStr
{
	const char *data;
	uint32_t	len;
} IdemProtoStr;

/*
 * HELLO, LOOK: u32 magic | u16 version | u32 flags | str16 relay | str16
 * incarnation | u16 n | n x (str16 key, str32 value).  Magic and version keep
 * their place in all versions of the protocol.
 */
typedef struct IdemProtoHello
{
	uint16_t	version;
	uint32_t	flags;			/* IDEM_PROTO_KEY_ORDER ... */
	IdemProtoStr relay;			/* name of the relay, 1 byte at least */
	IdemProtoStr incarnation;	/* identity of the log that positions count in */
	uint16_t	noptions;		/* <= IDEM_PROTO_MAX_OPTIONS */
	const uint8_t *options;		/* set by the decoder, for
								 * idem_proto_next_option */
	const uint8_t *options_end;
	/* read by the encoder, noptions of each; NULL after decoding */
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
 * payload: headers_len + payload_len bytes.  chunk is the first part of the
 * data.  CHUNKs with the other parts follow at once; only PINGs may come in
 * between.  An event with chunk_len = headers_len + payload_len is complete
 * without CHUNKs.
 */
typedef struct IdemProtoEvent
{
	uint64_t	batch;			/* rises within a connection */
	uint32_t	index;			/* 0, 1, 2 ... within the batch */
	uint8_t		flags;			/* IDEM_PROTO_PAYLOAD_JSON ... */
	const uint8_t *event_id;	/* 16 bytes of a uuid, network order */
	int64_t		seq;			/* outbox sequence number */
	int64_t		enqueued_at;	/* microseconds since 1970-01-01 UTC */
	int64_t		committed_at;	/* the same unit, not earlier than the commit;
								 * 0: not known */
	uint32_t	headers_len;	/* bytes */
	uint32_t	payload_len;	/* bytes */
	IdemProtoStr aggregate_type;
	IdemProtoStr aggregate_id;
	IdemProtoStr event_type;
	IdemProtoStr content_type;
	const uint8_t *chunk;		/* for the encoder, NULL: the caller fills
								 * chunk_len bytes at the end of the frame */
	uint32_t	chunk_len;
} IdemProtoEvent;

/* CHUNK: u64 batch | u32 index | u32 offset | rest: data, not empty. */
typedef struct IdemProtoChunk
{
	uint64_t	batch;
	uint32_t	index;
	uint32_t	offset;			/* bytes of the event's data before this part */
	const uint8_t *data;		/* for the encoder, NULL as in an EVENT */
	uint32_t	len;
} IdemProtoChunk;

/*
 * A position in the log of the HELLO's incarnation.  Only the worker interprets
 * it.  Two batches to a sink that stores positions never have the same
 * position.
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
 * SETTLE: u64 batch | u32 first | u32 last.  The events of this range are
 * answered, and the worker has durably recorded those that were not acked, for
 * another try.  EVENTs behind the SETTLE may be of keys that failed in the range.
 * A transactional sink gets one SETTLE for all events of a batch, and may commit
 * the batch then.
 */
typedef struct IdemProtoSettle
{
	uint64_t	batch;
	uint32_t	first;			/* <= last */
	uint32_t	last;
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
 * The worker may start an event while both credits are above zero.  An event
 * uses one message and all bytes of its EVENT and CHUNK frames, length fields
 * included.  The event that uses up the byte credit may take it below zero.
 * Likewise the last event of a batch may exceed max_batch_bytes.
 */
typedef struct IdemProtoReady
{
	uint16_t	version;
	uint32_t	capabilities;	/* IDEM_PROTO_STORES_POSITION ... */
	bool		has_position;	/* false: incarnation is empty, position 0 */
	IdemProtoStr incarnation;
	IdemProtoPosition position; /* of the last batch committed at the sink */
	uint32_t	max_batch_events;	/* 0: no limit */
	uint32_t	max_batch_bytes;	/* 0: no limit; counted as credit is */
	uint32_t	credit_messages;	/* 1 at least */
	uint32_t	credit_bytes;	/* 1 at least */
} IdemProtoReady;

/*
 * FAILED: u8 outcome | sqlstate[5] | str16 message.  Events without a RESULT
 * and batches without a VERDICT are then `unknown`.
 */
typedef struct IdemProtoFailed
{
	IdemProtoOutcome outcome;	/* OUTAGE: try later; REJECTED: the options or
								 * the target's objects are wrong; FENCED;
								 * HALTED */
	char		sqlstate[6];	/* terminated */
	IdemProtoStr message;
} IdemProtoFailed;

/*
 * RESULT: u64 batch | u32 first | u32 last | u8 outcome | sqlstate[5] | u32
 * retry_after | str16 destination | str16 message.  sqlstate is "00000" if
 * there is no SQLSTATE.
 */
typedef struct IdemProtoResult
{
	uint64_t	batch;
	uint32_t	first;			/* index of the first event of the range */
	uint32_t	last;			/* index of the last event, inclusive */
	IdemProtoOutcome outcome;
	char		sqlstate[6];	/* terminated */
	uint32_t	retry_after;	/* least ms until the next try; 0: the relay
								 * decides */
	IdemProtoStr destination;	/* which of the target's the events went to,
								 * or were to; empty: it has one */
	IdemProtoStr message;
} IdemProtoResult;

/*
 * VERDICT: u64 batch | u8 kind | sqlstate[5] | str16 message.  After a kind
 * other than COMMITTED the sink applies nothing more and sends FAILED.
 */
typedef struct IdemProtoVerdict
{
	uint64_t	batch;
	IdemProtoVerdictKind kind;
	char		sqlstate[6];	/* terminated */
	IdemProtoStr message;
} IdemProtoVerdict;

/* CREDIT: u32 messages | u32 bytes; the worker adds them to its credit. */
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

/*
 * FOUND: u8 ok | str16 what | str16 problem | str16 remedy.  The three texts are
 * for people.  After its last FOUND the program closes the socket and exits.
 */
typedef struct IdemProtoFound
{
	bool		ok;
	IdemProtoStr what;			/* the thing: "position table", 1 byte at
								 * least */
	IdemProtoStr problem;		/* what is wrong with it, or worth knowing of
								 * it */
	IdemProtoStr remedy;
} IdemProtoFound;

/* A decoded frame; BYE has no body. */
typedef struct IdemProtoFrame
{
	IdemProtoType type;
	union
	{
		IdemProtoHello hello;	/* HELLO and LOOK */
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
		IdemProtoFound found;
	}			u;
} IdemProtoFrame;

typedef enum IdemProtoStatus
{
	IDEM_PROTO_OK,				/* *frame and *consumed are set */
	IDEM_PROTO_NEED_MORE,		/* the frame is not complete yet */
	/* the values below: the peer is broken, close the stream */
	IDEM_PROTO_ERR_LENGTH,		/* length field is 0 or over the limit */
	IDEM_PROTO_ERR_TYPE,		/* unknown type, or this peer must not send it */
	IDEM_PROTO_ERR_BODY,		/* a field passes the body's end, or bytes are
								 * left over */
	IDEM_PROTO_ERR_VALUE,		/* a field has a value that it cannot have */
	IDEM_PROTO_ERR_MAGIC,		/* a HELLO does not begin with the magic */
	IDEM_PROTO_ERR_VERSION		/* HELLO or READY of another version; the
								 * frame's field "version" is set */
} IdemProtoStatus;

/*
 * Decode the frame that begins at buf; len bytes of the stream are there.
 * IDEM_PROTO_OK sets *consumed to the size of the frame; IDEM_PROTO_NEED_MORE
 * sets nothing.  Errors in the length and in the type are found before the
 * frame is complete.
 */
extern IdemProtoStatus idem_proto_next(IdemProtoPeer from, const uint8_t *buf,
									   size_t len, IdemProtoFrame *frame,
									   size_t *consumed);

/* A status in words, for messages: "unknown frame type". */
extern const char *idem_proto_status_text(IdemProtoStatus status);

/* May a RESULT have this outcome? */
static inline bool
idem_proto_is_result(IdemProtoOutcome outcome)
{
	return outcome >= IDEM_PROTO_ACKED && outcome <= IDEM_PROTO_IMPOSSIBLE && outcome != IDEM_PROTO_HALTED;
}

/* Read the next option of a decoded HELLO; false at the end. */
extern bool idem_proto_next_option(IdemProtoHello *hello, IdemProtoStr *key,
								   IdemProtoStr *value);

/* Bytes of the event's data that fit in the EVENT frame beside its strings. */
extern size_t idem_proto_event_room(const IdemProtoEvent *event);

/* The encoders.  ERRORS above describes their results. */
extern size_t idem_proto_encode_hello(uint8_t *buf, size_t cap, const IdemProtoHello *f);
extern size_t idem_proto_encode_look(uint8_t *buf, size_t cap, const IdemProtoHello *f);
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
extern size_t idem_proto_encode_found(uint8_t *buf, size_t cap, const IdemProtoFound *f);

/* Encode a frame of any type. */
extern size_t idem_proto_encode(uint8_t *buf, size_t cap, const IdemProtoFrame *f);

/*
 * Copy a message from an untrusted peer to dst as one terminated line.  Control
 * bytes become spaces, and bytes that are no valid UTF-8 become '?'.  A line
 * that does not fit in cap bytes is cut between two characters.  cap is at
 * least 1.  Returns the length without the terminator.
 */
extern size_t idem_proto_clean_text(char *dst, size_t cap, IdemProtoStr src);

#endif							/* IDEM_SINK_PROTOCOL_H */
