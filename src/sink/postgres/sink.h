/*-------------------------------------------------------------------------
 *
 * sink.h
 *		The types and functions that the files of the postgres sink share.
 *
 * README.md lists the files from top to bottom; calls go down only.
 * A function that cannot go on notes the reason in p->failure and returns
 * false; main.c alone ends the program with that reason.  An error of the
 * target stays in p->error until a caller knows who is to blame for it.
 * "False: p->failure" below means: returns false with the reason in p->failure.
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

/* The parts of an event that a target can take; target.c has their names. */
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

/* A string in a batch's arena, by offset and length. */
typedef struct PgSinkSpan
{
	size_t		at;
	uint32_t	len;
} PgSinkSpan;

/* The state of an event's claim at the target. */
typedef enum PgSinkClaim
{
	PGSINK_CLAIM_NONE,			/* not asked for */
	PGSINK_CLAIM_ASKED,			/* asked for; the answer is to come */
	PGSINK_CLAIM_GRANTED,
	PGSINK_CLAIM_DUPLICATE,		/* the event was done before */
	PGSINK_CLAIM_BUSY,			/* another transaction holds the claim, or it
								 * is past the budget of locks */
	PGSINK_CLAIM_EXPIRED,		/* the event is too old: claims no longer tell
								 * whether it is a repeat */
	PGSINK_CLAIM_DEAD,			/* the event is parked at the target */
	PGSINK_CLAIM_UNKNOWN		/* a word of a later version */
} PgSinkClaim;

typedef struct PgSinkEvent
{
	uint8_t		id[IDEM_PROTO_ID_BYTES];
	uint8_t		flags;			/* flags of the EVENT frame */
	PgSinkClaim claim;			/* in the transaction under way */
	bool		done;			/* its call is in the transaction under way */
	IdemProtoOutcome outcome;	/* 0: not decided, so acked after COMMIT */
	bool		doubtful;		/* decided, and to be judged by what happens
								 * to others */
	uint32_t	retry_after;	/* ms, of the outcome */
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
	uint64_t	batch;			/* the batch's number */
	IdemProtoPosition position;
	uint32_t	count;			/* events in use */
	uint32_t	size;			/* events allocated */
	PgSinkEvent *events;
	uint8_t    *arena;			/* strings and data of all events */
	size_t		arena_len;
	size_t		arena_size;
	uint64_t	bytes;			/* the batch's share of the byte credit */
} PgSinkBatch;

/*
 * A blocked key: an event of the key was not acked.  The block ends when the
 * last such event is settled.
 */
typedef struct PgSinkKey
{
	uint64_t	hash;			/* 0: the slot is free */
	uint64_t	batch;			/* last batch with an event of the key that
								 * was not acked */
	uint32_t	index;			/* first such event in that batch, */
	uint32_t	last;			/* and the last one */
	char	   *name;			/* aggregate_type, NUL, aggregate_id */
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
	const char *keywords[32];	/* parameters of libpq, ended by NULL */
	const char *values[32];
	char	   *relay;
	char	   *incarnation;
	char	   *consumer;
	char		schema[64];		/* schema and name of the function or table */
	char		name[64];
	bool		is_function;
	char	   *omit_columns;	/* of a table; NULL: none */
	char		position_schema[64];
	char		position_name[64];
	char	   *claim;			/* "auto", "on" or "off" */
	char		statement_timeout[16];	/* ms */
	char		many_timeout[16];	/* ms for the calls of more than
									 * PGSINK_FEW events */
	char		idle_timeout[16];	/* ms */
	long		reply_timeout;	/* ms to wait for each result; 0: no limit */
	bool		key_order;
	bool		require_password;
} PgSinkConfig;

/* The purpose of a statement in the pipeline. */
typedef enum PgSinkStep
{
	PGSINK_STEP_FRAME,			/* BEGIN, settings, savepoints, ROLLBACK */
	PGSINK_STEP_FENCE,			/* the position row */
	PGSINK_STEP_TIME,			/* pgsink_limit_time */
	PGSINK_STEP_CLAIM,
	PGSINK_STEP_PREPARE,
	PGSINK_STEP_CALL,
	PGSINK_STEP_CHECK,			/* deferred constraints */
	PGSINK_STEP_COMPLETE,		/* completion or release of claims */
	PGSINK_STEP_LOOK,			/* is the function still the same? */
	PGSINK_STEP_COMMIT,
	PGSINK_STEP_QUERY,			/* look-ups in the target's catalogs */
	PGSINK_STEP_SYNC
} PgSinkStep;

/* A statement whose result has not been read. */
typedef struct PgSinkPending
{
	PgSinkStep	step;
	uint32_t	arg;			/* CALL, CHECK: index of the event; TIME: the
								 * argument of pgsink_limit_time */
} PgSinkPending;

/* The first error of the target since pgsink_forget_error. */
typedef struct PgSinkError
{
	bool		set;
	bool		lost;			/* the connection is gone */
	PgSinkStep	step;			/* step and arg of the statement */
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
	PGSINK_BLAME_DOUBTFUL,		/* the event or the target: what happens to
								 * other events tells */
	PGSINK_BLAME_OUTAGE,		/* the target is down */
	PGSINK_BLAME_CONFIG			/* the options, or objects of the target */
} PgSinkBlame;

/* A batch of so few events may be tried as long as it takes: the relay sends no smaller one. */
#define PGSINK_FEW		8
#define PGSINK_FALLEN	64

typedef struct PgSink
{
	IdemSink	sink;
	PgSinkConfig config;
	PGconn	   *conn;			/* NULL: not connected */
	bool		unreplicated;	/* the target gave up waiting for its
								 * synchronous standby in this transaction */
	PgSinkPending *pending;		/* the statements from pending_at to
								 * pending_end - 1 have no result yet */
	size_t		pending_at;
	size_t		pending_end;
	size_t		pending_size;
	PgSinkError error;
	bool		repeated;		/* the batch was tried often enough: what
								 * passes elsewhere does not pass here */
	bool		passes;			/* the last event that was called was done */
	bool		dropped;		/* a connection was lost in the calls of this
								 * batch */
	bool		fell;			/* careful lost the connection in the call of
								 * event fell_at */
	bool		fell_first;		/* that call was the transaction's first */
	uint32_t	fell_at;
	uint8_t		fallen[PGSINK_FALLEN][IDEM_PROTO_ID_BYTES]; /* events whose calls
															 * lost connections, a
															 * ring */
	uint32_t	nfallen;		/* events that were put into it */
	IdemSinkFailure failure;
	char	   *call_sql;		/* its parameters are arrays: event_id and the
								 * fields in use */
	bool		used[PGSINK_NFIELDS];	/* does the target take the field? */
	uint32_t	type[PGSINK_NFIELDS];	/* type at the target: PGSINK_TYPE_... */
	char		function_row[32];	/* oid and xmin of the function's row in
									 * pg_proc */
	bool		changed;		/* the function has another row now */
	char	   *claim_sql;		/* NULL: events are not claimed */
	char	   *complete_sql;
	char	   *release_sql;
	char	   *position_table; /* quoted */
	char	   *fence_sql;
	int64_t		epoch;			/* this program's epoch in the position row */
	/* the position that hello read or the last commit wrote; NULL: "" or 0 */
	const char *stored_incarnation;
	int64_t		stored_row_id;
	int64_t		stored_k;
	PgSinkBatch batch;
	PgSinkKeys	failed;			/* the blocked keys */
	bool		answered;		/* the batch's results have been sent */
	int64_t		began;			/* when the attempt at it began */
} PgSink;

/* apply.c */

/*
 * Apply the batch and send its verdict.  False: p->failure; the program has to
 * end.  For the worker the fate of a batch without a verdict is unknown.
 */
extern bool pgsink_apply(PgSink *p);

/* careful.c */

/*
 * Call the events one by one inside the open transaction.  True if the
 * transaction may be committed.  False if the caller must roll it back and try
 * the batch again: because of p->error, or because a key's later event was done
 * although an earlier event of the key failed.
 */
extern bool pgsink_call_carefully(PgSink *p);

/*
 * The connection was lost, and p->fell.  again: this is not the first loss of
 * the batch.  Decides events, and returns true, if the batch is to be tried
 * without them.
 */
extern bool pgsink_judge_fall(PgSink *p, bool again);

/* Is an event of the batch known for a loss of the connection? */
extern bool pgsink_has_fallen(const PgSink *p);

/* decide.c */

/* Note the outcome of an event; message may be NULL. */
extern void pgsink_decide(PgSink *p, uint32_t i, IdemProtoOutcome outcome,
						  const char *sqlstate, const char *message);

/*
 * Note the outcome of event i, which is to blame for p->error, or may be: then it
 * is doubtful.
 */
extern void pgsink_decide_error(PgSink *p, uint32_t i);

/* Note the outcome of the events whose claim was refused. */
extern void pgsink_decide_claims(PgSink *p);

/* Note the outcome of the events that are decided without a call. */
extern void pgsink_decide_ahead(PgSink *p);

/*
 * Did an earlier event of the event's key fail?  Always false without key
 * order.
 */
extern bool pgsink_is_blocked(const PgSink *p, uint32_t i);

/* Is the event to be called in the transaction under way? */
extern bool pgsink_to_call(const PgSink *p, uint32_t i);

/* calls.c */

/* Queue the call of n events, which has the first event's index as argument. */
extern void pgsink_send_calls(PgSink *p, const uint32_t *which, uint32_t n);

/*
 * Queue the claim of all undecided events; read the answers into the events.
 * False if there is not an answer for each: p->failure.
 */
extern void pgsink_send_claims(PgSink *p);

/*
 * Queue, before calls and behind settings: the claims of this transaction are the
 * program's, so a call that claims one of these events for their consumer fails.
 */
extern void pgsink_guard_claims(PgSink *p);
extern bool pgsink_read_claims(PgSink *p, const PGresult *res);

/*
 * Queue the completion of claims of done events, and the release of the
 * others.
 */
extern void pgsink_send_claim_ends(PgSink *p);

/* position.c */

/*
 * Take over the relay's row; its position goes into READY.  False: p->failure.
 */
extern bool pgsink_take_position(PgSink *p, IdemProtoReady *ready);

/*
 * For a LOOK: could the program use the position table, and is the position there, if
 * any, the relay's?  Nothing is locked or changed.  False: p->failure.
 */
extern bool pgsink_rehearse_position(PgSink *p);
extern bool pgsink_look_at_position(PgSink *p);

/* Queue the UPDATE of the position row that each batch begins with. */
extern void pgsink_send_fence(PgSink *p);

/*
 * Read the answer to the fence: did it find its row?  If the target stored
 * something else than was sent: p->failure.
 */
extern bool pgsink_read_fence(PgSink *p, const PGresult *res);

/* Note that the batch's position is committed: the next fence expects it. */
extern void pgsink_position_stored(PgSink *p);

typedef enum PgSinkFate
{
	PGSINK_FATE_COMMITTED,
	PGSINK_FATE_ABORTED,
	PGSINK_FATE_FENCED,
	PGSINK_FATE_NOT_STORED,		/* the target keeps the position from being
								 * stored: p->failure */
	PGSINK_FATE_UNKNOWN			/* the question failed: p->error */
} PgSinkFate;

/* After a COMMIT whose answer is lost: did the batch's transaction commit? */
extern PgSinkFate pgsink_ask_fate(PgSink *p);

/*
 * After a fence that found no row to update: why?  FENCED if another instance
 * has taken over.  ABORTED if the target lost the position that this program
 * read or stored there.  NOT_STORED if the row is as it was expected.  UNKNOWN with
 * p->error.
 */
extern PgSinkFate pgsink_ask_takeover(PgSink *p);

/* target.c */

/*
 * Run one query, in a transaction, where the timeouts of the role do not hold.
 * NULL: p->failure.  The caller clears the result.
 */
extern PGresult *pgsink_look_up(PgSink *p, const char *sql, int nparams, const char *const *values);

/*
 * In a query with a row c of pg_class: does a crash of the target empty the table, or a
 * partition of it?
 */
#define PGSINK_IS_UNLOGGED \
	"(c.relpersistence OPERATOR(pg_catalog.=) 'u' OR EXISTS (SELECT FROM pg_catalog.pg_partition_tree(c.oid) p" \
	" JOIN pg_catalog.pg_class k ON k.oid OPERATOR(pg_catalog.=) p.relid" \
	" WHERE k.relpersistence OPERATOR(pg_catalog.=) 'u'))"

/* Look up the target and write its statements.  False: p->failure. */
extern bool pgsink_describe_target(PgSink *p);

/* Then, for a LOOK: would the target run them?  False: p->failure. */
extern bool pgsink_rehearse_calls(PgSink *p);

/*
 * After an error of a call that may mean that the target has another shape by now:
 * look it up again.  False: p->failure.  p->error stays.
 */
extern bool pgsink_check_target(PgSink *p);

/*
 * Queue, behind the calls of a transaction, the question whether the function is
 * the one that was looked up; read the answer.
 */
extern void pgsink_send_look(PgSink *p);
extern bool pgsink_read_look(const PGresult *res);

/* The function was changed: look it up, and write its statement.  False: p->failure. */
extern bool pgsink_look_again(PgSink *p);

/* config.c */

/* Turn the options into p->config.  False: p->failure. */
extern bool pgsink_configure(PgSink *p, const IdemProtoHello *hello);

/* connect.c */

/*
 * Connect to the first address that takes a connection.  False with p->error if
 * another try may succeed; false with p->failure if the failure is final.
 */
extern bool pgsink_connect(PgSink *p);

/* pipeline.c */

/*
 * Queue a statement; its result carries step and arg.  A parameter with a
 * length above 0 is binary; a parameter with length 0, or without lengths, is
 * text.  pgsink_next reports the failures.  Without a connection nothing is
 * queued.
 */
extern void pgsink_send(PgSink *p, PgSinkStep step, uint32_t arg, const char *sql,
						int nparams, const uint32_t *types, const char *const *values,
						const int *lengths);
extern void pgsink_prepare(PgSink *p, const char *sql, int nparams, const uint32_t *types);
extern void pgsink_execute(PgSink *p, uint32_t arg, int nparams,
						   const char *const *values, const int *lengths);
extern void pgsink_sync(PgSink *p);

/*
 * Wait for the next result in order and return it with its statement in
 * *pending.  NULL when all results have been read or the connection is lost.
 * The first error is noted in p->error.
 */
extern PGresult *pgsink_next(PgSink *p, PgSinkPending *pending);

/* Read all pending results and throw them away. */
extern void pgsink_drain(PgSink *p);

/* Queue BEGIN and the settings of each transaction. */
extern void pgsink_begin(PgSink *p);

/* Queue the settings anew, behind calls that may have changed some. */
extern void pgsink_send_settings(PgSink *p);

/* Roll back, which may lose the connection.  An error noted before stays. */
extern void pgsink_rollback(PgSink *p);

/*
 * Would the target run the statement?  It is explained, which checks names, types and
 * privileges, and runs nothing.  False: p->error.
 */
extern bool pgsink_rehearse(PgSink *p, PgSinkStep step, const char *sql, int nparams, const uint32_t *types);

/*
 * pgsink_limit_time gives each of the next statements the rest of
 * the time for the batch's calls, counted from the beginning of the transaction.  If no time
 * is left, its own result is the error 57014 at step TIME.  pgsink_give_time
 * gives the next statements the whole statement_timeout again; the statements
 * that end a segment or the transaction need it.
 */
extern void pgsink_limit_time(PgSink *p, uint32_t arg);

/* The next statement has all the time for the batch's calls. */
extern void pgsink_limit_calls(PgSink *p);

/* Did the calls of more than PGSINK_FEW events take all their time? */
extern bool pgsink_takes_long(const PgSink *p);
extern void pgsink_give_time(PgSink *p);

extern void pgsink_disconnect(PgSink *p);

/*
 * Is the session still there?  To be asked between two batches, when the socket
 * of the connection is readable.  False with p->failure if the target ended it.
 */
extern bool pgsink_is_alive(PgSink *p);

/* error.c */
extern void pgsink_forget_error(PgSink *p);

/*
 * Note an error of the target unless one is noted already.  A lost connection
 * is added to the noted error.  The message may be NULL.
 */
extern void pgsink_note_error(PgSink *p, PgSinkPending pending, bool lost,
							  const char *sqlstate, const char *message);

/* Hide the message, which is going to be logged, if it has an event in it. */
extern void pgsink_hide_events(const PgSink *p, PgSinkError *e);

/* May an error of a call mean that the target has another shape than at hello? */
extern bool pgsink_may_be_shape(const PgSinkError *e);

/* Decide by step and SQLSTATE who is to blame for p->error. */
extern PgSinkBlame pgsink_blame(const PgSink *p);

/* As idem_sink_fail, because p->error kept the program from doing something. */
extern bool pgsink_fail_for_error(PgSink *p, const char *doing);

/* batch.c */

/* Empty the batch. */
extern void pgsink_batch_reset(PgSinkBatch *b);

/* Add an event, and the data of its CHUNKs. */
extern void pgsink_batch_add(PgSinkBatch *b, const IdemProtoEvent *e);
extern void pgsink_batch_add_data(PgSinkBatch *b, const uint8_t *data, uint32_t len);

/* Block the key of an event that was not acked. */
extern void pgsink_keys_add(PgSinkKeys *keys, const PgSinkBatch *b, const PgSinkEvent *e);

/* Is the event's key blocked by an earlier event? */
extern bool pgsink_keys_has(const PgSinkKeys *keys, const PgSinkBatch *b, const PgSinkEvent *e);

/* End the blocks whose last event is settled by this. */
extern void pgsink_keys_settle(PgSinkKeys *keys, const IdemProtoSettle *settle);

/* array.c */

/* An array in PostgreSQL's binary format, of count elements and len bytes. */
typedef struct PgSinkArray
{
	char	   *data;
	size_t		len;
	size_t		size;
	uint32_t	count;
} PgSinkArray;

extern void pgsink_array_init(PgSinkArray *a, uint32_t element_type);

/*
 * Add an element: prefix_len (0 or 1) bytes of prefix, then the data.  If data
 * is NULL, the element is NULL.
 */
extern void pgsink_array_add(PgSinkArray *a, const void *prefix, size_t prefix_len,
							 const void *data, size_t len);

/* Complete the header after the last element. */
extern void pgsink_array_finish(PgSinkArray *a);

/* sql.c */

/* Quote a name; the caller owns the result. */
extern char *pgsink_quote(const char *name);

/* printf into new memory, which the caller owns. */
extern char *pgsink_format(const char *fmt,...) __attribute__((format(printf, 1, 2)));

#endif							/* IDEM_SINK_POSTGRES_H */
