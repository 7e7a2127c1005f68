/*-------------------------------------------------------------------------
 *
 * sink.h
 *		The postgres sink's parts and what they share.
 *
 *		main.c		the talk with the worker: hello, batches, key order
 *		config.c	options into settings
 *		connect.c	opening it, within a time
 *		conn.c		one libpq connection, in pipeline mode
 *		target.c	what the events go into: a function or a table
 *		position.c	the position row: taking over, lost commits
 *		apply.c		a batch as one remote transaction
 *		calls.c		its statements: claims and calls
 *		careful.c	the same event by event, to find those at fault
 *		batch.c		the events of a batch, and the keys that failed
 *		array.c		arrays in the binary format
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/postgres/sink.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_SINK_POSTGRES_H
#define IDEM_SINK_POSTGRES_H

#include <libpq-fe.h>

#include "sink/common/program.h"

/* Types of the target's arguments and columns, as OIDs of pg_type. */
#define PG_BOOL			16
#define PG_BYTEA		17
#define PG_INT8			20
#define PG_TEXT			25
#define PG_JSON			114
#define PG_VARCHAR		1043
#define PG_TIMESTAMPTZ	1184
#define PG_UUID			2950
#define PG_JSONB		3802

/* The parts of an event that a target can take, by these names. */
typedef enum PgField
{
	PG_EVENT_ID,
	PG_SEQ,
	PG_AGGREGATE_TYPE,
	PG_AGGREGATE_ID,
	PG_EVENT_TYPE,
	PG_CONTENT_TYPE,
	PG_PAYLOAD,
	PG_PAYLOAD_BYTES,
	PG_HEADERS,
	PG_ENQUEUED_AT,
	PG_NFIELDS
} PgField;

/* Bytes in a batch's arena. */
typedef struct PgSpan
{
	size_t		at;
	uint32_t	len;
} PgSpan;

typedef struct PgEvent
{
	uint8_t		id[IDEM_PROTO_ID_BYTES];
	uint8_t		flags;			/* of the EVENT */
	bool		asked;			/* for a claim, in the transaction under way */
	bool		claimed;		/* in the transaction under way */
	bool		done;			/* called in the transaction under way */
	IdemProtoOutcome outcome;	/* 0: to be done; else decided */
	char		sqlstate[6];
	char	   *message;		/* why, or NULL; owned */
	int64_t		seq;
	int64_t		enqueued_at;	/* us since 1970 */
	PgSpan		aggregate_type;
	PgSpan		aggregate_id;
	PgSpan		event_type;
	PgSpan		content_type;
	PgSpan		headers;
	PgSpan		payload;
} PgEvent;

typedef struct PgBatch
{
	uint64_t	batch;			/* its number */
	IdemProtoPosition position;
	uint32_t	count;
	uint32_t	size;			/* of events */
	PgEvent    *events;
	uint8_t    *arena;
	size_t		arena_len;
	size_t		arena_size;
	uint64_t	bytes;			/* what it took of the byte credit */
} PgBatch;

/* A key of which an event was not acked, until the batch is settled. */
typedef struct PgKey
{
	uint64_t	hash;			/* 0: the slot is free */
	uint64_t	batch;			/* the last one with such an event */
	uint32_t	index;			/* of the first one in that batch */
	char	   *name;			/* type, NUL, id */
	size_t		len;
} PgKey;

typedef struct PgKeys
{
	PgKey	   *slots;			/* open addressing; size is a power of two */
	size_t		size;
	size_t		used;
} PgKeys;

typedef struct PgConfig
{
	const char *keywords[32];	/* for libpq, ended by NULL */
	const char *values[32];
	char	   *relay;
	char	   *incarnation;
	char	   *consumer;
	char		schema[64];		/* of the function or table */
	char		name[64];
	bool		is_function;
	char		position_schema[64];
	char		position_name[64];
	char	   *claim;			/* auto, on, off */
	char		statement_timeout[16];	/* ms */
	char		idle_timeout[16];	/* ms */
	long		reply_timeout;	/* ms for each result until given up; 0: none */
	bool		key_order;
	bool		require_password;
} PgConfig;

/* What a statement in the pipeline is for. */
typedef enum PgStep
{
	PG_STEP_FRAME,				/* BEGIN, settings, savepoints, ROLLBACK */
	PG_STEP_FENCE,
	PG_STEP_TIME,				/* what is left of statement_timeout */
	PG_STEP_CLAIM,
	PG_STEP_PREPARE,
	PG_STEP_CALL,
	PG_STEP_CHECK,				/* deferred constraints */
	PG_STEP_COMPLETE,			/* or release */
	PG_STEP_COMMIT,
	PG_STEP_QUERY,				/* look-ups */
	PG_STEP_SYNC
} PgStep;

typedef struct PgPending
{
	PgStep		step;
	uint32_t	arg;
} PgPending;

/* The first error since pg_forget_error. */
typedef struct PgError
{
	bool		set;
	bool		lost;			/* the connection is gone */
	PgStep		step;
	uint32_t	arg;
	char		sqlstate[6];
	char		message[IDEM_PROTO_MAX_MESSAGE];
} PgError;

/* What to make of an error. */
typedef enum PgBlame
{
	PG_BLAME_EVENT,				/* the event, or the code that handles it */
	PG_BLAME_SLOW,				/* the event took too long: try it later */
	PG_BLAME_PASSING,			/* nobody: try the batch again */
	PG_BLAME_OUTAGE,			/* the target is down */
	PG_BLAME_CONFIG				/* options or objects of the target */
} PgBlame;

typedef struct PgSink
{
	IdemSink	sink;
	PgConfig	config;
	PGconn	   *conn;			/* NULL: not connected */
	PgPending  *pending;		/* statements without a result yet */
	size_t		pending_at;
	size_t		pending_end;
	size_t		pending_size;
	PgError		error;
	char	   *call_sql;		/* takes arrays of the fields in use */
	bool		used[PG_NFIELDS];
	uint32_t	type[PG_NFIELDS];	/* of the target; PG_TEXT ... */
	char	   *claim_sql;		/* NULL: no claims */
	char	   *complete_sql;
	char	   *release_sql;
	char	   *position_table; /* quoted */
	char	   *fence_sql;
	int64_t		epoch;			/* of this program in the position row */
	const char *stored_incarnation; /* what that row has: found there, or */
	int64_t		stored_row_id;	/* written by the last commit; "" and 0 for */
	int64_t		stored_k;		/* NULL */
	PgBatch		batch;
	PgKeys		failed;
	bool		answered;		/* the batch's results are out */
} PgSink;

/* config.c */
extern void pg_configure(PgSink *p, const IdemProtoHello *hello);

/* connect.c */

/*
 * Open a connection to the first place that takes one; NULL with what kept each
 * of them from it in problem, of cap bytes.
 */
extern PGconn *pg_open(PgSink *p, char *problem, size_t cap);

/* Milliseconds that each address has. */
extern int	pg_connect_timeout(const PgConfig *config);

/* conn.c */
extern bool pg_connect(PgSink *p);
extern void pg_disconnect(PgSink *p);

/*
 * Queue a statement.  Parameters are text (length 0 in lengths, or lengths
 * NULL) or binary.  Failures show in pg_next.
 */
extern void pg_send(PgSink *p, PgStep step, uint32_t arg, const char *sql,
					int nparams, const uint32_t *types, const char *const *values,
					const int *lengths);
extern void pg_prepare(PgSink *p, const char *sql, int nparams, const uint32_t *types);
extern void pg_execute(PgSink *p, uint32_t arg, int nparams,
					   const char *const *values, const int *lengths);
extern void pg_sync(PgSink *p);

/*
 * The next result in order, NULL when all pending have been read or the
 * connection is lost.  Errors are noted in p->error, the first only.
 */
extern PGresult *pg_next(PgSink *p, PgPending *what);

/* Read all pending results and throw them away. */
extern void pg_drain(PgSink *p);

/* End the transaction without effect; the connection may be lost by it. */
extern void pg_rollback(PgSink *p);

/* BEGIN and the settings of each transaction. */
extern void pg_begin(PgSink *p);

/*
 * Give the next statements, each of them, what is left of statement_timeout since
 * the transaction began; 57014 at step TIME if nothing is.  pg_give_time: all
 * of it once more, for those that end the transaction.
 */
extern void pg_limit_time(PgSink *p, uint32_t arg);
extern void pg_give_time(PgSink *p);

extern void pg_forget_error(PgSink *p);
extern PgBlame pg_blame(const PgError *error);

/* Quote a name; the caller owns the result. */
extern char *pg_quote(const char *name);

/* printf into memory of the caller. */
extern char *pg_format(const char *fmt,...) __attribute__((format(printf, 1, 2)));

/* target.c */
extern void pg_describe_target(PgSink *p);
extern const char *pg_field_name(PgField field);

/* position.c */
extern void pg_take_position(PgSink *p, IdemProtoReady *ready);
extern void pg_send_fence(PgSink *p);

/* The batch's position is committed: the next fence expects it. */
extern void pg_position_stored(PgSink *p);

/*
 * After a fence that found no row to update: has another instance taken over?
 * Else the target does not have what this program stored there, or read.
 */
extern bool pg_taken_over(PgSink *p);

typedef enum PgFate
{
	PG_FATE_COMMITTED,
	PG_FATE_ABORTED,
	PG_FATE_FENCED,
	PG_FATE_UNKNOWN				/* could not be asked: see p->error */
} PgFate;

/* After a lost COMMIT: did the batch's transaction commit? */
extern PgFate pg_ask_fate(PgSink *p);

/* Say what is wrong in a FAILED, and end. */
extern void pg_give_up(PgSink *p, const char *doing) __attribute__((noreturn));

/* apply.c */
extern void pg_apply(PgSink *p);

/* Give an event its outcome; message may be NULL. */
extern void pg_decide(PgSink *p, uint32_t i, IdemProtoOutcome outcome,
					  const char *sqlstate, const char *message);
extern void pg_decide_error(PgSink *p, uint32_t i);

/* Is the event to be called in the transaction under way? */
extern bool pg_to_call(const PgSink *p, uint32_t i);

/* calls.c */

/* Queue the call of those events; CALL results carry the first one's index. */
extern void pg_send_calls(PgSink *p, const uint32_t *which, uint32_t n);

/* Ask for the claims of all events undecided; take the answers in. */
extern void pg_send_claims(PgSink *p);
extern void pg_read_claims(PgSink *p, const PGresult *res);

/* Queue completion and release of the claims of events done and not done. */
extern void pg_send_claim_ends(PgSink *p);

/* careful.c */

/*
 * Call the events one by one inside the open transaction.  True if it may be
 * committed; false if it must be rolled back and the batch tried again, be it
 * for p->error or because of events decided meanwhile.
 */
extern bool pg_call_carefully(PgSink *p);

/* batch.c */
extern void pg_batch_reset(PgBatch *b);
extern void pg_batch_add(PgBatch *b, const IdemProtoEvent *e);
extern void pg_batch_add_data(PgBatch *b, const uint8_t *data, uint32_t len);
extern void pg_keys_add(PgKeys *keys, const PgBatch *b, const PgEvent *e);
extern bool pg_keys_has(const PgKeys *keys, const PgBatch *b, const PgEvent *e);
extern void pg_keys_settle(PgKeys *keys, uint64_t batch);

/* array.c */
typedef struct PgArray
{
	char	   *data;
	size_t		len;
	size_t		size;
	uint32_t	count;
} PgArray;

extern void pg_array_init(PgArray *a, uint32_t element_type);

/* Add an element: prefix bytes (0 to 1) and data; data NULL is NULL. */
extern void pg_array_add(PgArray *a, const void *prefix, size_t prefix_len,
						 const void *data, size_t len);

/* Write the header once all elements are there. */
extern void pg_array_finish(PgArray *a);

#endif							/* IDEM_SINK_POSTGRES_H */
