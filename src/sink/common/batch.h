/*-------------------------------------------------------------------------
 *
 * batch.h
 *		Batches of events that a program keeps until their verdict, the keys that
 *		are blocked, the results, and jobs that block meanwhile.
 *
 * For programs that deliver batch by batch, and do a batch again when the
 * target did not take it.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/common/batch.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_SINK_BATCH_H
#define IDEM_SINK_BATCH_H

#include "sink/common/event.h"
#include "sink/common/program.h"

/*
 * A string in a batch's arena, by offset and length.  The arena has less than 4
 * GB: only the last event exceeds max_bytes of the intake, and the server's
 * fields have at most 1 GB.
 */
typedef struct IdemSpan
{
	uint32_t	at;
	uint32_t	len;
} IdemSpan;

typedef struct IdemBatch IdemBatch;

typedef struct IdemBatchEvent
{
	IdemBatch  *batch;
	uint32_t	index;
	uint8_t		id[IDEM_PROTO_ID_BYTES];
	uint8_t		flags;			/* flags of the EVENT frame */
	IdemProtoOutcome outcome;	/* 0: not decided, so acked once delivered */
	char		sqlstate[6];
	char	   *message;		/* reason of the outcome, or NULL; owned */
	uint64_t	settles;		/* so many SETTLEs stand before it in the
								 * stream */
	int64_t		enqueued_at;	/* us since 1970 */
	IdemSpan	aggregate_type;
	IdemSpan	aggregate_id;
	IdemSpan	event_type;
	IdemSpan	content_type;
	IdemSpan	headers;
	IdemSpan	payload;

	/* for the program */
	struct IdemTarget *target;	/* where the event goes; the program defines
								 * the struct */
	bool		sent;			/* its report is to come */
	bool		delivered;		/* the target has it; with a transaction: it
								 * is in the open transaction */
	int			refusal;		/* why the target refused it, in the words of
								 * the client library */
} IdemBatchEvent;

struct IdemBatch
{
	IdemBatch  *next;			/* the batch that came after this one */
	uint64_t	number;
	IdemProtoPosition position;
	bool		complete;		/* its END has come */
	bool		answered;		/* its results have been sent */
	uint32_t	answered_decided;	/* events that were not acked in them */
	uint32_t	open;			/* for the program: events whose report is to
								 * come */
	uint32_t	count;			/* events in use */
	uint32_t	size;			/* events allocated */
	IdemBatchEvent *events;		/* stays in place once the batch is complete */
	struct IdemPlace *places;	/* of its events, see lane.h; NULL: none */
	uint8_t    *arena;			/* strings and data of all events */
	size_t		arena_len;
	size_t		arena_size;
	uint64_t	bytes;			/* the batch's share of the byte credit */
};

/* A blocked key, see keys.c. */
typedef struct IdemKey
{
	uint64_t	hash;			/* 0: the slot is free */
	uint64_t	first_batch;	/* the first event of the key that was not
								 * acked */
	uint32_t	first_index;
	uint64_t	last_batch;		/* the last such event */
	uint32_t	last_index;
	uint64_t	ended;			/* number of the SETTLE that settled the last
								 * one, and so ended the block; 0: none did */
	char	   *name;			/* aggregate_type, NUL, aggregate_id */
	size_t		len;
} IdemKey;

typedef struct IdemKeys
{
	IdemKey    *slots;			/* open addressing; size is a power of two */
	size_t		size;
	size_t		used;
	uint64_t	passed;			/* so many SETTLEs stand before each event
								 * that is still to be looked up */
} IdemKeys;

/* Bytes of a destination's name that a result has. */
#define IDEM_SINK_DESTINATION	512

/* The batches of a program.  It sets the first four before it sends READY. */
typedef struct IdemIntake
{
	IdemSink   *sink;
	bool		key_order;
	uint32_t	max_events;		/* as READY has them */
	uint32_t	max_bytes;
	IdemBatch  *first;			/* batches without a verdict, oldest first */
	IdemBatch  *last;
	uint64_t	settled;		/* the last batch that a SETTLE among the
								 * frames taken named */
	uint64_t	settles;		/* SETTLEs among the frames taken */
	bool		bye;
	IdemKeys	keys;			/* the blocked keys */

	/*
	 * Where does the event go?  For a program whose target has several
	 * destinations, so that one that fails is not blamed on the others; NULL:
	 * it has one.  The name is written to buf; empty if there is none.
	 */
	void		(*destination) (void *arg, const IdemBatchEvent *e, char buf[IDEM_SINK_DESTINATION + 1]);
	void	   *destination_arg;

	/*
	 * Of a program that has the blocks of its keys itself, see
	 * idem_keys_settle; NULL: of others
	 */
	void		(*settle) (void *arg, const IdemProtoSettle *settle, uint64_t number);
	void	   *settle_arg;
} IdemIntake;

/* job.c */

/* Work for the helper thread; true: it succeeded. */
typedef bool (*IdemJob) (void *arg);

typedef enum IdemJobEnd
{
	IDEM_JOB_DONE,
	IDEM_JOB_FAILED,			/* the job returned false */
	IDEM_JOB_LATE				/* it still runs: the program has to end */
} IdemJobEnd;

/* Run a job for at most timeout ms; take frames meanwhile. */
extern IdemJobEnd idem_intake_run(IdemIntake *in, IdemJob job, void *arg, int timeout);

/* The same in two steps, between which the caller works at what the job does not touch. */
extern void idem_intake_begin(IdemIntake *in, IdemJob job, void *arg);
extern IdemJobEnd idem_intake_end(IdemIntake *in, int timeout);

/* intake.c */

/* Take the frames that are there into batches. */
extern void idem_intake_take(IdemIntake *in);

/* Free the oldest batch and give its credit back. */
extern void idem_intake_drop(IdemIntake *in);

/* decide.c */

/* Note the outcome of an event; message may be NULL. */
extern void idem_intake_decide(IdemIntake *in, IdemBatchEvent *e, IdemProtoOutcome outcome,
							   const char *sqlstate, const char *message);

/* Did an earlier event of the event's key fail? */
extern bool idem_intake_is_blocked(IdemIntake *in, const IdemBatchEvent *e);

/* Send the batch's results, unless they were sent. */
extern void idem_intake_answer(IdemIntake *in, IdemBatch *b);

/* How many events of the batch will not be acked? */
extern uint32_t idem_batch_count_decided(const IdemBatch *b);

/* keys.c */

/* The event's key: a hash, never 0; its name, which is aggregate_type, NUL, aggregate_id. */
extern uint64_t idem_key_hash(const IdemBatchEvent *e);
extern size_t idem_key_len(const IdemBatchEvent *e);
extern void idem_key_write(const IdemBatchEvent *e, char *name);
extern bool idem_key_is(const IdemBatchEvent *e, const char *name, size_t len);

extern void idem_keys_add(IdemKeys *keys, const IdemBatchEvent *e);
extern bool idem_keys_has(const IdemKeys *keys, const IdemBatchEvent *e);

/*
 * The SETTLE of this number, counted from 1, has come: it ends the blocks whose last event
 * it names, for the events behind it.  ..._pass: all events that are looked up from now on
 * stand behind so many SETTLEs.
 */
extern void idem_keys_settle(IdemKeys *keys, const IdemProtoSettle *settle, uint64_t number);
extern void idem_keys_pass(IdemKeys *keys, uint64_t settles);

/* Free the set, and make it empty. */
extern void idem_keys_free(IdemKeys *keys);

/* batch.c */
extern IdemBatch *idem_batch_new(uint64_t number);
extern void idem_batch_free(IdemBatch *b);
extern void idem_batch_add(IdemBatch *b, const IdemProtoEvent *event, uint64_t settles);
extern void idem_batch_add_data(IdemBatch *b, const uint8_t *data, uint32_t len);

/* The fields of an event of a complete batch. */
extern IdemSinkEvent idem_batch_view(const IdemBatchEvent *e);

/* The bytes of a span. */
static inline const char *
idem_batch_at(const IdemBatchEvent *e, IdemSpan span)
{
	return (const char *) e->batch->arena + span.at;
}

#endif							/* IDEM_SINK_BATCH_H */
