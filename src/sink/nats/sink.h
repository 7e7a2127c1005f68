/*-------------------------------------------------------------------------
 *
 * sink.h
 *		The types and functions that the files of the nats sink share.
 *
 * README.md lists the files from top to bottom; calls go down only.
 * A function that cannot go on notes the reason in p->failure and returns
 * false; main.c turns it into FAILED.  "False: p->failure" below means: returns
 * false with the reason in p->failure.
 *
 * THREADS
 *		Functions that block are parts of jobs (common/job.c).  While a job runs,
 *		the main thread only talks with the worker.  A thread of the library
 *		calls the error callback of server.c, which has a lock of its own.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/nats/sink.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_SINK_NATS_H
#define IDEM_SINK_NATS_H

#include <nats/nats.h>

#include "sink/common/batch.h"
#include "sink/common/event.h"
#include "sink/common/json.h"
#include "sink/common/lane.h"
#include "sink/common/program.h"

/* The oldest libnats that the sink works with; checked at build and start. */
#define NSINK_LEAST_VERSION			0x030400
#define NSINK_LEAST_VERSION_TEXT	"3.4.0"

#if NATS_VERSION_NUMBER < NSINK_LEAST_VERSION
#error "the nats sink needs libnats 3.4.0 or later"
#endif

/*
 * A batch is one atomic batch of the server, which has at most 1000 messages;
 * the last one is the position.
 */
#define NSINK_MAX_BATCH_EVENTS	999
#define NSINK_MAX_BATCH_BYTES	(4 * 1024 * 1024)
#define NSINK_CREDIT_BATCHES	8
#define NSINK_MAX_SUBJECT		1024
#define NSINK_START_TIME		20000	/* ms for everything at start; the
										 * worker waits
										 * idempotency.sink_timeout for READY */

/* Errors of JetStream, by err_code */
#define NSINK_NO_STREAM			2	/* ours: no stream has the subject */
#define NSINK_TOO_LARGE			10054
#define NSINK_WRONG_SEQUENCE	10071
#define NSINK_SEQUENCE_BUSY		10164	/* the same, while a write is under
										 * way */
#define NSINK_INCOMPLETE		10176	/* the server has not all messages of
										 * an atomic batch */

typedef enum NSinkFormat
{
	NSINK_PLAIN,
	NSINK_CE_BINARY,
	NSINK_CE_STRUCTURED
} NSinkFormat;

typedef struct NSinkConfig
{
	bool		exactly_once;
	char	   *relay;
	char	   *incarnation;
	char	  **servers;		/* URLs */
	int			n_servers;
	char	   *stream;
	char	   *subject;		/* template */
	char	   *position_subject;	/* filled in */
	char	   *position_prefix;	/* what its template has before {relay} */
	char	   *source;			/* template */
	NSinkFormat format;
	int			timeout;		/* ms */
	bool		tls;
	char	   *tls_host;		/* or NULL, as all below */
	char	   *rootcert;
	char	   *user;
	char	   *password;
	char	   *token;
	char	   *credentials;	/* file */
	char	   *cert;			/* file */
	char	   *key;			/* file */
} NSinkConfig;

/* What the server says of the stream. */
typedef struct NSinkStream
{
	IdemText	subjects;		/* each ended by a NUL */
	int64_t		max_message;	/* bytes; -1: no limit */
	int64_t		max_age;		/* ns; 0: no limit */
	bool		keeps_position; /* a position can replace the former one, and
								 * need not expire */
	const char *warning;		/* how it may lose a position, or NULL */
} NSinkStream;

/* Exactly once: the message of an event. */
typedef struct IdemTarget
{
	natsMsg    *msg;			/* NULL: not made yet, or it can have none */
} NSinkMessage;

/* Why an event has no message. */
typedef struct NSinkProblem
{
	IdemProtoOutcome outcome;	/* rejected, if the stream may be altered */
	const char *sqlstate;
	char		text[256];
} NSinkProblem;

/* What a server answers to a publication. */
typedef struct NSinkAnswer
{
	int			code;			/* err_code; 0: it took it */
	int			status;			/* code of the error, like HTTP's */
	uint64_t	seq;
	int64_t		count;			/* messages of an atomic batch; 0: it was none */
	char		text[256];		/* of the error */
} NSinkAnswer;

typedef struct NSink
{
	IdemSink	sink;
	NSinkConfig config;
	IdemSinkFailure failure;
	IdemIntake	in;
	natsConnection *nc;
	NSinkStream stream;

	/* at least once, see publish.c */
	IdemLanes	lanes;
	IdemPlaces	flight;			/* sent, the oldest first */
	uint32_t	n_flight;
	natsInbox  *inbox;			/* where the answers come; NULL: exactly once */

	/* the position, see position.c */
	uint64_t	epoch;			/* of this program */
	uint64_t	seq;			/* of the position's last message; 0: none */
	bool		has_position;
	char	   *stored_incarnation;
	IdemProtoPosition stored;
} NSink;

/* deliver.c */

/* Deliver the first batch, which is complete, with its position.  False: p->failure. */
extern bool nsink_deliver(NSink *p);

/* publish.c: at least once.  False: p->failure. */

/* Begin, with an open connection. */
extern bool nsink_start_publishing(NSink *p);

/* Take frames and answers, send what may be sent, and answer the batches that are done. */
extern bool nsink_publish(NSink *p);

/* Wait for the server or the worker. */
extern bool nsink_await_answers(NSink *p);

/* position.c */

/* Parts of jobs. */

/* Raise the epoch and read the position.  False: p->failure. */
extern bool nsink_take_over(NSink *p, int64_t deadline);

/* For a LOOK: is the position, if there is one, this relay's?  False: p->failure. */
extern bool nsink_check_owner(NSink *p, int64_t deadline);

/* The message of a position.  NULL of position: of the takeover. */
extern natsMsg *nsink_position_message(NSink *p, const IdemProtoPosition *position);

/* What became of a position that the server did not take. */
typedef enum NSinkFate
{
	NSINK_FATE_OURS,			/* the stored one is still our last one */
	NSINK_FATE_STORED,			/* the position in question is stored */
	NSINK_FATE_FAILED			/* p->failure: another instance, or it is gone */
} NSinkFate;

extern NSinkFate nsink_look(NSink *p, IdemProtoPosition position);

/* message.c */

/*
 * Make the message of an event; the answer to it goes to reply, or NULL.  NULL: *problem.
 * Part of a job, too.
 */
extern natsMsg *nsink_make_message(const NSink *p, const IdemBatchEvent *e, const char *reply, NSinkProblem *problem);

/* The event's subject as its destination; p is an NSink. */
extern void nsink_destination(void *p, const IdemBatchEvent *e, char buf[IDEM_SINK_DESTINATION + 1]);

/* Is the text a subject to publish to? */
extern bool nsink_is_subject(const char *subject, size_t len);

/* Does one of the patterns, each ended by a NUL, match the subject? */
extern bool nsink_has_subject(const IdemText *patterns, const char *subject);

/* server.c */

/* Parts of jobs.  False: p->failure. */
extern bool nsink_connect(NSink *p, int64_t deadline);
extern bool nsink_read_stream(NSink *p, int64_t deadline);	/* a LOOK looks at the
															 * subjects itself */

/* Does the stream have the subjects that the options name?  False: p->failure. */
extern bool nsink_check_subjects(NSink *p);

/*
 * May the user publish to the subjects that the options name, by what the server says?
 * *told: false if it does not say it.
 */
extern bool nsink_check_rights(NSink *p, int64_t deadline, bool *told);

/*
 * Send a request with the message, and wait for its answer.  False: p->failure,
 * because the server, or the connection, is out.
 */
extern bool nsink_request(NSink *p, natsMsg *msg, int64_t timeout, natsMsg **reply);

/* Read the answer to a publication.  reply is not NULL. */
extern void nsink_read_answer(natsMsg *reply, NSinkAnswer *a);

/* Note the status of the library: outage, or rejected.  Always false. */
extern bool nsink_fail(NSink *p, natsStatus s, const char *doing);

/* Did the server refuse the subject to the user, since the last batch that it took? */
extern bool nsink_was_denied(const char *subject);
extern void nsink_forget_denied(void);

/* Is the server out, full or busy, so that waiting helps? */
extern bool nsink_is_out(const NSinkAnswer *a);

#define NSINK_MARGIN	5000	/* ms that a job has beyond its requests */

/* A job: read the stream again, which may have other subjects, or limits, than at the start. */
extern bool nsink_read_stream_again(NSink *p);

/* Run a job.  If it has not ended after timeout ms, the program ends. */
extern bool nsink_run(NSink *p, bool (*job) (void *), void *arg, int timeout);

/* The second half of it, behind idem_intake_begin. */
extern bool nsink_end(NSink *p, int timeout);

/* config.c */

/* Turn the options into p->config.  False: p->failure. */
extern bool nsink_configure(NSink *p, const IdemProtoHello *hello);

#endif							/* IDEM_SINK_NATS_H */
