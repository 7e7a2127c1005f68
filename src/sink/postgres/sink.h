/*-------------------------------------------------------------------------
 *
 * sink.h
 *		The postgres sink's files and what they share.
 *
 * README.md lists the files from top to bottom; calls go down only.
 * A function that cannot go on returns false and leaves the reason in
 * p->failure; main.c alone ends the program with it.  An error of the
 * target is kept in p->error until its caller knows who is to blame.
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
#define PGSINK_TYPE_BOOL			16
#define PGSINK_TYPE_BYTEA		17
#define PGSINK_TYPE_INT8			20
#define PGSINK_TYPE_TEXT			25
#define PGSINK_TYPE_JSON			114
#define PGSINK_TYPE_VARCHAR		1043
#define PGSINK_TYPE_TIMESTAMPTZ	1184
#define PGSINK_TYPE_UUID			2950
#define PGSINK_TYPE_JSONB		3802

/* The parts of an event that a target can take, by these names. */
typedef enum PgSinkField
{
	PGSINK_FIELD_EVENT_ID,
	PGSINK_FIELD_SEQ,
	PGSINK_FIELD_AGGREGATE_TYPE,
	PGSINK_FIELD_AGGREGATE_ID,
	PGSINK_FIELD_EVENT_TYPE,
	PGSINK_FIELD_CONTENT_TYPE,
	PGSINK_FIELD_PAYLOAD,
	PGSINK_FIELD_PAYLOAD_BYTES,
	PGSINK_FIELD_HEADERS,
	PGSINK_FIELD_ENQUEUED_AT,
	PGSINK_NFIELDS
} PgSinkField;

/* Bytes in a batch's arena. */
typedef struct PgSinkSpan
{
	size_t		at;
	uint32_t	len;
} PgSinkSpan;

/* The target's answer to the claim of an event. */
typedef enum PgSinkClaim
{
	PGSINK_CLAIM_NONE,			/* not asked for */
	PGSINK_CLAIM_ASKED,
	PGSINK_CLAIM_GRANTED,
	PGSINK_CLAIM_DUPLICATE,		/* the event was done, or given up, before */
	PGSINK_CLAIM_BUSY,			/* another transaction holds it */
	PGSINK_CLAIM_EXPIRED		/* too old for claims to tell a repeat */
} PgSinkClaim;

typedef struct PgSinkEvent
{
	uint8_t		id[IDEM_PROTO_ID_BYTES];
	uint8_t		flags;			/* of the EVENT */
	PgSinkClaim claim;			/* in the transaction under way */
	bool		done;			/* called in the transaction under way */
	IdemProtoOutcome outcome;	/* 0: not decided */
	char		sqlstate[6];
	char	   *message;		/* reason of the outcome, or NULL; owned */
	int64_t		seq;
	int64_t		enqueued_at;	/* us since 1970 */
	PgSinkSpan	aggregate_type;
	PgSinkSpan	aggregate_id;
	PgSinkSpan	event_type;
	PgSinkSpan	content_type;
	PgSinkSpan	headers;
	PgSinkSpan	payload;
} PgSinkEvent;

typedef struct PgSinkBatch
{
	uint64_t	batch;			/* its number */
	IdemProtoPosition position;
	uint32_t	count;
	uint32_t	size;			/* of events */
	PgSinkEvent *events;
	uint8_t    *arena;
	size_t		arena_len;
	size_t		arena_size;
	uint64_t	bytes;			/* its share of the byte credit */
} PgSinkBatch;

/* A key of which an event was not acked, until the batch is settled. */
typedef struct PgSinkKey
{
	uint64_t	hash;			/* 0: the slot is free */
	uint64_t	batch;			/* the last batch with such an event */
	uint32_t	index;			/* of the first such event in that batch */
	char	   *name;			/* type, NUL, id */
	size_t		len;
} PgSinkKey;

typedef struct PgSinkKeys
{
	PgSinkKey  *slots;			/* open addressing; size is a power of two */
	size_t		size;
	size_t		used;
} PgSinkKeys;

typedef struct PgSinkConfig
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
	long		reply_timeout;	/* ms to wait for each result; 0: no limit */
	bool		key_order;
	bool		require_password;
} PgSinkConfig;

/* The purpose of a statement in the pipeline. */
typedef enum PgSinkStep
{
	PGSINK_STEP_FRAME,			/* BEGIN, settings, savepoints, ROLLBACK */
	PGSINK_STEP_FENCE,
	PGSINK_STEP_TIME,			/* pgsink_limit_time */
	PGSINK_STEP_CLAIM,
	PGSINK_STEP_PREPARE,
	PGSINK_STEP_CALL,
	PGSINK_STEP_CHECK,			/* deferred constraints */
	PGSINK_STEP_COMPLETE,		/* or release */
	PGSINK_STEP_COMMIT,
	PGSINK_STEP_QUERY,			/* look-ups */
	PGSINK_STEP_SYNC
} PgSinkStep;

typedef struct PgSinkPending
{
	PgSinkStep	step;
	uint32_t	arg;
} PgSinkPending;

/* The first error of the target since pgsink_forget_error. */
typedef struct PgSinkError
{
	bool		set;
	bool		lost;			/* the connection is gone */
	PgSinkStep	step;
	uint32_t	arg;
	char		sqlstate[6];
	char		message[IDEM_PROTO_MAX_MESSAGE];
} PgSinkError;

/* Who is to blame for an error of the target. */
typedef enum PgSinkBlame
{
	PGSINK_BLAME_EVENT,			/* the event, or the code that handles it */
	PGSINK_BLAME_SLOW,			/* the event took too long: try it later */
	PGSINK_BLAME_PASSING,		/* nobody: try the batch again */
	PGSINK_BLAME_OUTAGE,		/* the target is down */
	PGSINK_BLAME_CONFIG			/* options or objects of the target */
} PgSinkBlame;

/* Why the program has to end; the content of FAILED. */
typedef struct PgSinkFailure
{
	IdemProtoOutcome outcome;	/* 0: no failure */
	char		sqlstate[6];
	char		message[IDEM_PROTO_MAX_MESSAGE + 1];
} PgSinkFailure;

typedef struct PgSink
{
	IdemSink	sink;
	PgSinkConfig config;
	PGconn	   *conn;			/* NULL: not connected */
	PgSinkPending *pending;		/* statements without a result yet */
	size_t		pending_at;
	size_t		pending_end;
	size_t		pending_size;
	PgSinkError error;
	PgSinkFailure failure;
	char	   *call_sql;		/* takes arrays of the fields in use */
	bool		used[PGSINK_NFIELDS];
	uint32_t	type[PGSINK_NFIELDS];	/* of the target; PGSINK_TYPE_TEXT ... */
	char	   *claim_sql;		/* NULL: no claims */
	char	   *complete_sql;
	char	   *release_sql;
	char	   *position_table; /* quoted */
	char	   *fence_sql;
	int64_t		epoch;			/* of this program in the position row */
	const char *stored_incarnation; /* of the position row, as read by hello */
	int64_t		stored_row_id;	/* or written by the last commit; "" and 0 */
	int64_t		stored_k;		/* stand for NULL */
	PgSinkBatch batch;
	PgSinkKeys	failed;
	bool		answered;		/* the batch's results are out */
} PgSink;

/* apply.c */

/*
 * Apply the batch and send its verdict.  False if the program has to end:
 * p->failure; a batch without a verdict is unknown to the worker.
 */
extern bool pgsink_apply(PgSink *p);

/* careful.c */

/*
 * Call the events one by one inside the open transaction.  True if it may be
 * committed; false if it must be rolled back and the batch tried again, for
 * p->error or for an event that was decided meanwhile.
 */
extern bool pgsink_call_carefully(PgSink *p);

/* decide.c */

/* Note the outcome of an event; message may be NULL. */
extern void pgsink_decide(PgSink *p, uint32_t i, IdemProtoOutcome outcome,
						  const char *sqlstate, const char *message);

/* Note the outcome of the event that is to blame for p->error. */
extern void pgsink_decide_error(PgSink *p, uint32_t i);

/* Note the outcome of the events whose claim was refused. */
extern void pgsink_decide_claims(PgSink *p);

/* Note the outcome of events that need no call. */
extern void pgsink_decide_ahead(PgSink *p);

/* Did an earlier event of the key fail?  False without key order. */
extern bool pgsink_is_blocked(const PgSink *p, uint32_t i);

/* Is the event to be called in the transaction under way? */
extern bool pgsink_to_call(const PgSink *p, uint32_t i);

/* calls.c */

/* Queue the call of those n events; CALL results carry the first one's index. */
extern void pgsink_send_calls(PgSink *p, const uint32_t *which, uint32_t n);

/* Ask for the claims of all undecided events; read the answers into them. */
extern void pgsink_send_claims(PgSink *p);
extern void pgsink_read_claims(PgSink *p, const PGresult *res);

/* Queue completion and release of the claims of events done and not done. */
extern void pgsink_send_claim_ends(PgSink *p);

/* position.c */

/* Take over the relay's row; its position goes into READY.  False: p->failure. */
extern bool pgsink_take_position(PgSink *p, IdemProtoReady *ready);
extern void pgsink_send_fence(PgSink *p);

/* The batch's position is committed: the next fence expects it. */
extern void pgsink_position_stored(PgSink *p);

typedef enum PgSinkFate
{
	PGSINK_FATE_COMMITTED,
	PGSINK_FATE_ABORTED,
	PGSINK_FATE_FENCED,
	PGSINK_FATE_UNKNOWN			/* the question failed: p->error */
} PgSinkFate;

/* After a lost COMMIT: did the batch's transaction commit? */
extern PgSinkFate pgsink_ask_fate(PgSink *p);

/*
 * After a fence that found no row to update: FENCED if another instance has
 * taken over, ABORTED if the target lost the position that this program read or
 * stored there, UNKNOWN with p->error.
 */
extern PgSinkFate pgsink_ask_takeover(PgSink *p);

/* target.c */

/* Look up the target and write its statements.  False: p->failure. */
extern bool pgsink_describe_target(PgSink *p);

/* config.c */

/* Turn the options into p->config.  False: p->failure. */
extern bool pgsink_configure(PgSink *p, const IdemProtoHello *hello);

/* connect.c */

/*
 * Connect to the first address that takes a connection.  False with p->error, if
 * another try may succeed, or with p->failure, which is final.
 */
extern bool pgsink_connect(PgSink *p);

/* pipeline.c */

/*
 * Queue a statement.  Parameters are text (length 0 in lengths, or lengths
 * NULL) or binary.  Failures show in pgsink_next.
 */
extern void pgsink_send(PgSink *p, PgSinkStep step, uint32_t arg, const char *sql,
						int nparams, const uint32_t *types, const char *const *values,
						const int *lengths);
extern void pgsink_prepare(PgSink *p, const char *sql, int nparams, const uint32_t *types);
extern void pgsink_execute(PgSink *p, uint32_t arg, int nparams,
						   const char *const *values, const int *lengths);
extern void pgsink_sync(PgSink *p);

/*
 * The next result in order, NULL when all pending have been read or the
 * connection is lost.  Errors are noted in p->error, the first only.
 */
extern PGresult *pgsink_next(PgSink *p, PgSinkPending *pending);

/* Read all pending results and throw them away. */
extern void pgsink_drain(PgSink *p);

/* BEGIN and the settings of each transaction. */
extern void pgsink_begin(PgSink *p);

/* End the transaction without effect; the connection may be lost by it. */
extern void pgsink_rollback(PgSink *p);

/*
 * pgsink_limit_time gives each of the next statements the rest of statement_timeout
 * since the transaction began; without a rest its own result is 57014 at step
 * TIME.  pgsink_give_time gives all of it once more, to the statements that end
 * the transaction.
 */
extern void pgsink_limit_time(PgSink *p, uint32_t arg);
extern void pgsink_give_time(PgSink *p);

extern void pgsink_disconnect(PgSink *p);

/* error.c */
extern void pgsink_forget_error(PgSink *p);

/* Note an error unless there is one; a lost connection is always noted. */
extern void pgsink_note_error(PgSink *p, PgSinkPending pending, bool lost,
							  const char *sqlstate, const char *message);
extern PgSinkBlame pgsink_blame(const PgSinkError *error);

/* Note why the program has to end; always false, to be returned. */
extern bool pgsink_fail(PgSink *p, IdemProtoOutcome outcome, const char *sqlstate,
						const char *fmt,...) __attribute__((format(printf, 4, 5)));

/* The same, because p->error kept the program from "doing". */
extern bool pgsink_fail_for_error(PgSink *p, const char *doing);

/* batch.c */
extern void pgsink_batch_reset(PgSinkBatch *b);
extern void pgsink_batch_add(PgSinkBatch *b, const IdemProtoEvent *e);
extern void pgsink_batch_add_data(PgSinkBatch *b, const uint8_t *data, uint32_t len);
extern void pgsink_keys_add(PgSinkKeys *keys, const PgSinkBatch *b, const PgSinkEvent *e);
extern bool pgsink_keys_has(const PgSinkKeys *keys, const PgSinkBatch *b, const PgSinkEvent *e);
extern void pgsink_keys_settle(PgSinkKeys *keys, uint64_t batch);

/* array.c */
typedef struct PgSinkArray
{
	char	   *data;
	size_t		len;
	size_t		size;
	uint32_t	count;
} PgSinkArray;

extern void pgsink_array_init(PgSinkArray *a, uint32_t element_type);

/* Add an element: prefix bytes (0 to 1) and data; data NULL is NULL. */
extern void pgsink_array_add(PgSinkArray *a, const void *prefix, size_t prefix_len,
							 const void *data, size_t len);

/* Write the header once all elements are there. */
extern void pgsink_array_finish(PgSinkArray *a);

/* sql.c */

/* Quote a name; the caller owns the result. */
extern char *pgsink_quote(const char *name);

/* printf into memory of the caller. */
extern char *pgsink_format(const char *fmt,...) __attribute__((format(printf, 1, 2)));

#endif							/* IDEM_SINK_POSTGRES_H */
