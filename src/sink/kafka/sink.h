/*-------------------------------------------------------------------------
 *
 * sink.h
 *		The types and functions that the files of the kafka sink share.
 *
 * README.md lists the files from top to bottom; calls go down only.
 * A function that cannot go on notes the reason in p->failure and returns
 * false; main.c alone ends the program with that reason.  "False: p->failure"
 * below means: returns false with the reason in p->failure.
 *
 * Words of this sink: a flight is the run of batches that the sink delivers
 * together, in one transaction of the brokers where there is one.  A report is
 * librdkafka's answer for one record.
 *
 * THREADS
 *		The main thread owns everything.  A function of librdkafka that may
 *		block runs as a job (common/job.c) in a helper thread; while it runs, the main
 *		thread only talks with the worker.  Threads of librdkafka call the log
 *		callback, which has a lock of its own.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/kafka/sink.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_SINK_KAFKA_H
#define IDEM_SINK_KAFKA_H

#include <librdkafka/rdkafka.h>

#include "sink/common/batch.h"
#include "sink/common/format.h"
#include "sink/common/grant.h"
#include "sink/common/json.h"
#include "sink/common/program.h"

/* The oldest librdkafka that the sink works with; checked at start. */
#define KSINK_LEAST_VERSION		0x020002ff
#define KSINK_LEAST_VERSION_TEXT	"2.0.2"

/* Logins by OAUTHBEARER need libcurl when the program is built. */
#ifdef KSINK_OAUTHBEARER
#define KSINK_HAS_OAUTHBEARER	true
#else
#define KSINK_HAS_OAUTHBEARER	false
#endif

#define KSINK_MAX_TOPIC			249 /* bytes of a topic's name */
#define KSINK_TOPIC_LISTS		256
#define KSINK_MAX_BATCH_EVENTS	10000
#define KSINK_MAX_BATCH_BYTES	(8 * 1024 * 1024)
#define KSINK_CREDIT_BYTES		(4 * KSINK_MAX_BATCH_BYTES)

/* The batches of src/sink/common; the target of an event is its topic. */
typedef IdemBatch KSinkBatch;
typedef IdemBatchEvent KSinkEvent;
typedef struct IdemTarget KSinkTopic;

typedef enum KSinkFormat
{
	KSINK_DEBEZIUM,
	KSINK_CE_BINARY,
	KSINK_CE_STRUCTURED
} KSinkFormat;

/* Where access tokens come from, and what is said to get one. */
typedef struct KSinkTokenServer
{
	char	   *url;			/* NULL: the login needs no token */
	char		origin[256];	/* the part of the URL that messages show */
	bool		plain;			/* http, to this machine */
	char	   *rootcert;		/* file; NULL: the system's certificates */
	char	   *client;
	char	   *secret;
	char	   *scope;			/* or NULL */
	char	   *audience;		/* or NULL */
	bool		login_in_body;
	char	  **extensions;		/* of the login: name, value, name, ... */
	size_t		n_extensions;	/* names and values */
} KSinkTokenServer;

typedef struct KSinkConfig
{
	bool		exactly_once;
	bool		key_order;
	char	   *relay;
	char	   *incarnation;
	char	   *topic;			/* template */
	bool		topic_is_fixed; /* the template has no placeholder */
	bool		topic_needs_headers;	/* ... has {header:NAME} */
	char	   *position_topic; /* also the transactional id */
	char	   *source;			/* template */
	bool		create_topics;	/* off in a LOOK, which creates nothing */
	bool		would_create;	/* the option */
	KSinkFormat format;
	bool		scram;			/* the login is by SCRAM */
	KSinkTokenServer token_server;
	bool		json_key;
	bool		tombstones;
	int			transaction_timeout;	/* ms */
	int			transaction_time;	/* ms */
	uint32_t	transaction_events;
	int			timeout;		/* ms */
	struct
	{
		const char *name;
		char	   *value;
	}			properties[24]; /* of librdkafka, for producers and readers;
								 * ended by a NULL name */
} KSinkConfig;

/* A topic that the sink has asked the brokers for. */
struct IdemTarget
{
	KSinkTopic *next;
	int64_t		asked_at;		/* idem_sink_clock() */
	rd_kafka_resp_err_t err;	/* NO_ERROR: it exists */
	rd_kafka_topic_t *handle;	/* of p->rk; NULL: it does not exist */
	bool		proven;			/* the producer has delivered a record to it */
	char		name[KSINK_MAX_TOPIC + 1];
};

/* What went wrong in the flight, from the reports. */
typedef struct KSinkTrouble
{
	bool		refused;		/* an event was refused */
	bool		too_large;		/* a request was too large: one of its events,
								 * or all of them together */
	bool		fenced;			/* the brokers do not take this producer any
								 * more */
	bool		dropped;		/* a record fell with another one, or with the
								 * producer's identity */
	bool		outage;
	char		message[IDEM_PROTO_MAX_MESSAGE];	/* of the outage, the
													 * fence or the drop */
} KSinkTrouble;

typedef struct KSink KSink;

/* Work for the helper thread.  False: p->failure. */
typedef bool (*KSinkJob) (KSink *p);

struct KSink
{
	IdemSink	sink;
	KSinkConfig config;
	IdemSinkFailure failure;
	bool		topic_missing;	/* the topic that was asked for last */
	rd_kafka_t *rk;				/* the producer; NULL: none */
	bool		single;			/* the producer sends each record alone */
	int			report_fd;		/* an eventfd: readable when reports are there */
	uint64_t	sent;			/* records whose report is to come */
	uint64_t	reports;		/* that have come */
	int64_t		progress_at;	/* idem_sink_clock() of the last progress */
	int64_t		committed_at;	/* idem_sink_clock() of the last commit; 0:
								 * none */
	KSinkTrouble trouble;

	IdemIntake	in;				/* batches without a verdict */
	KSinkBatch *joined;			/* the last batch of the flight; NULL: none */
	KSinkTopic *topics[KSINK_TOPIC_LISTS];

	/* the position topic, see position.c */
	bool		has_position;
	char		stored_incarnation[IDEM_PROTO_MAX_MESSAGE];
	IdemProtoPosition stored;
	int64_t		offset;			/* of the last record that we wrote or read */
	int64_t		takeover_offset;	/* of this program's start record; -1:
									 * none */
	bool		foreign;		/* another instance has taken over since */
	int64_t		own_record;		/* offset of our relay's first record; -1:
								 * none */
	int64_t		other_record;	/* the same for another relay */
	bool		other_position; /* another relay has delivered with the topic */
	char		other_relay[64];	/* its name, for messages */
	int64_t		reported_offset;	/* of the record sent last; -1: none */
};

/* flight.c */

/*
 * Deliver the complete batches, at least one, and send results and verdicts.
 * False: p->failure.
 */
extern bool ksink_fly(KSink *p);

/* takeover.c */

/*
 * Connect, check the position topic, fence the predecessor, read the position.
 * False: p->failure.
 */
extern bool ksink_take_over(KSink *p);

/* Answer LOOK: connect and look at the topics; no transaction is begun, and nothing is written. */
extern void ksink_look(KSink *p);

/*
 * Replace the producer by a new one, which ends the old one's transaction if
 * it is still open.  p->stored then tells whether that was committed.  With
 * p->single the new producer sends each record alone.  False: p->failure.
 */
extern bool ksink_renew(KSink *p);

/*
 * The brokers do not take the producer any more.  Always false: p->failure is
 * `fenced` only if another instance is certain.
 */
extern bool ksink_judge_fence(KSink *p);

/* deliver.c */

/*
 * Decide the events that are blocked, or whose topic does not do.  False:
 * p->failure.
 */
extern bool ksink_prepare_batch(KSink *p, KSinkBatch *b);

/*
 * Send the events that are neither decided nor delivered.  Events that
 * librdkafka refuses at once are decided.
 */
extern void ksink_send_batch(KSink *p, KSinkBatch *b);

/* The same for one event. */
extern void ksink_send_event(KSink *p, KSinkEvent *e);

/* Give up what a former attempt sent of the batch. */
extern void ksink_reset_batch(KSink *p, KSinkBatch *b);

/* Decide the events that the brokers refused; how many? */
extern uint32_t ksink_decide_refused(KSink *p, KSinkBatch *b);

/* position.c */

/* Parts of jobs.  False: p->failure. */

/* Does the topic exist, with one partition, and compacted? */
extern bool ksink_check_position_topic(KSink *p, int64_t deadline);

/* Read the topic before anything is written to it: is it ours? */
extern bool ksink_check_owner(KSink *p, int64_t deadline);

/* Write the start record, which proves to others that this program took over. */
extern bool ksink_mark_takeover(KSink *p, int64_t deadline);

/* Read the position up to the start record of this program, and check the owner again. */
extern bool ksink_read_position(KSink *p, int64_t deadline);

/* Read what was written since; p->foreign: another instance has taken over. */
extern bool ksink_read_news(KSink *p, int64_t deadline);

/* Send the record with the position. */
extern rd_kafka_resp_err_t ksink_send_position(KSink *p, IdemProtoPosition position);

/* Note that the position is committed. */
extern void ksink_position_stored(KSink *p, IdemProtoPosition position);

/* Is the position the one that is stored, by this program? */
extern bool ksink_is_stored(const KSink *p, IdemProtoPosition position);

/* transaction.c */

/* False: p->trouble, or p->failure. */
extern bool ksink_begin(KSink *p);

/* How a commit ended. */
typedef enum KSinkCommit
{
	KSINK_COMMITTED,
	KSINK_ABORTED,				/* nothing of it is at the brokers; the reason
								 * is in p->trouble */
	KSINK_COMMIT_FENCED,
	KSINK_COMMIT_FAILED			/* p->failure: not known */
} KSinkCommit;

extern KSinkCommit ksink_commit(KSink *p);

/* Abort the open transaction.  False: p->trouble, or p->failure. */
extern bool ksink_abort(KSink *p);

/* A part of a job: fence the predecessor.  False: p->failure. */
extern bool ksink_init_transactions(KSink *p, int64_t deadline);

/* ended.c */

/*
 * Wait until the transactions of earlier producers have ended in all partitions
 * of a topic.  init_transactions has ended ours, but brokers that were killed
 * meanwhile may not have written that.  A part of a job.  False: p->failure.
 */
extern bool ksink_await_ended(KSink *p, const char *topic, int partitions, int64_t deadline);

/* producer.c */

/* Parts of jobs; they may block.  False: p->failure. */
extern bool ksink_open_producer(KSink *p);
extern void ksink_close_producer(KSink *p);

/* A reader of committed records, or of all.  NULL: p->failure. */
extern rd_kafka_t *ksink_open_reader(KSink *p, bool committed);

/* Wait until the brokers answer.  A part of a job.  False: p->failure. */
extern bool ksink_connect(KSink *p, int64_t deadline);

/* token.c */

/* A part of a job: wait until there is a token for logins.  False: p->failure. */
extern bool ksink_await_token(KSink *p, int64_t deadline);

/* Let the handle that is made from conf ask for tokens, and once it is made. */
extern void ksink_want_tokens(KSink *p, rd_kafka_conf_t *conf);

/* The second part of it.  False: p->failure. */
extern bool ksink_start_tokens(KSink *p, rd_kafka_t *rk);

/* tokenserver.c */

typedef enum KSinkTokenEnd
{
	KSINK_TOKEN_GRANTED,
	KSINK_TOKEN_REFUSED,		/* another try does not help */
	KSINK_TOKEN_OUTAGE
} KSinkTokenEnd;

/* Check s->url, and take it apart.  Returns NULL, or what is wrong with the option. */
extern const char *ksink_check_token_server(KSinkTokenServer *s);

/*
 * Ask for a token, for at most timeout ms.  problem: why there is none; it has
 * no byte of the server's answer.
 */
extern KSinkTokenEnd ksink_ask_token_server(const KSinkTokenServer *s, int timeout,
											IdemGrant *grant, char *problem, size_t cap);

/* topic.c */

/*
 * Ask the brokers for the topic, unless their answer is known.  It is in
 * (*topic)->err.  False: p->failure.
 */
extern bool ksink_ask_topic(KSink *p, const char *name, KSinkTopic **topic);

/* A part of a job: ask the brokers for the topic and its partitions. */
extern rd_kafka_resp_err_t ksink_topic_metadata(KSink *p, const char *name, int64_t deadline,
												int *partitions);

/* The brokers refused the topic: ask again before it is used the next time. */
extern void ksink_forget_topic(KSink *p, const char *name);

/* A new producer knows no topic: ask for each again. */
extern void ksink_forget_topics(KSink *p);

/* report.c */

/* The callback that librdkafka calls with each report. */
extern void ksink_on_report(rd_kafka_t *rk, const rd_kafka_message_t *message, void *opaque);

/* Has the flight met trouble? */
extern bool ksink_in_trouble(const KSink *p);

/* Note an error that is not of a single event. */
extern void ksink_note_trouble(KSink *p, rd_kafka_resp_err_t err, const char *text);

/* error.c */

/* Who is to blame for an error of librdkafka or the brokers. */
typedef enum KSinkBlame
{
	KSINK_BLAME_EVENT,			/* the record or its topic */
	KSINK_BLAME_SIZE,			/* the record, or those sent with it */
	KSINK_BLAME_FENCE,
	KSINK_BLAME_CONFIG,
	KSINK_BLAME_NOBODY,			/* a consequence: send it again */
	KSINK_BLAME_OUTAGE
} KSinkBlame;

extern KSinkBlame ksink_blame(rd_kafka_resp_err_t err);
extern const char *ksink_sqlstate(rd_kafka_resp_err_t err);

/* As idem_sink_fail, for an error of the brokers: rejected or outage. */
extern bool ksink_fail_for_error(KSink *p, rd_kafka_resp_err_t err, const char *doing,
								 const char *text);

/*
 * Run a job in the helper thread (common/job.c).  Returns what the job returns.
 * If the job has not ended after timeout ms, the program ends; "doing" names the
 * job in the message.
 */
extern bool ksink_run(KSink *p, KSinkJob job, int timeout, const char *doing);

/* The callbacks of librdkafka, and the last complaint about a connection. */
extern void ksink_log_callback(const rd_kafka_t *rk, int level, const char *facility,
							   const char *text);
extern void ksink_error_callback(rd_kafka_t *rk, int err, const char *reason, void *opaque);
extern void ksink_last_complaint(char *dst, size_t cap);

/* While the token server does not answer, a login that fails is no refusal. */
extern void ksink_note_token_server(bool answers);

/* Why the brokers refused a partition to the transaction; forgets it. */
extern rd_kafka_resp_err_t ksink_take_transaction_error(void);

/* Did a broker refuse the login, or the certificate? */
extern bool ksink_login_refused(void);

/* config.c */

/* Turn the options into p->config.  False: p->failure. */
extern bool ksink_configure(KSink *p, const IdemProtoHello *hello);

/* record.c */

/* A record of an event.  The pointers live as long as batch and record. */
typedef struct KSinkRecord
{
	const void *key;
	size_t		key_len;
	const void *value;			/* NULL: a tombstone */
	size_t		value_len;
	int64_t		timestamp;		/* ms since 1970 */
	rd_kafka_headers_t *headers;
	char	   *owned_key;		/* memory to free */
	char	   *owned_value;
} KSinkRecord;

/* Name the topic of the event.  Returns NULL, or what is wrong. */
extern const char *ksink_topic_of(const KSink *p, const KSinkEvent *e, char *topic);

/* The event's topic as its destination; p is a KSink. */
extern void ksink_destination(void *p, const KSinkEvent *e, char buf[IDEM_SINK_DESTINATION + 1]);

/* Make the record of an event, all but its topic. */
extern void ksink_make_record(const KSink *p, const KSinkEvent *e, KSinkRecord *r);

/* Free what librdkafka has not taken over. */
extern void ksink_free_record(KSinkRecord *r);

/* Is the text the name of a topic? */
extern bool ksink_is_topic(const char *name);

#endif							/* IDEM_SINK_KAFKA_H */
