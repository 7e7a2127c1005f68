/*-------------------------------------------------------------------------
 *
 * sink.h
 *		The types and functions that the files of the rabbitmq sink share.
 *
 * README.md lists the files from top to bottom; calls go down only.
 * A function that cannot go on notes the reason in p->failure and returns
 * false; main.c turns it into FAILED.  "False: p->failure" below means: returns
 * false with the reason in p->failure.
 *
 * MODES
 *		The server has two protocols: AMQP 0-9-1 for queues, and one for streams.
 *		A mode (BSinkMode) speaks one of them.  queue.h declares what the files
 *		of the mode for queues share.
 *
 * THREADS
 *		Functions that block are parts of jobs (common/job.c).  While a job runs,
 *		the main thread only talks with the worker.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/rabbitmq/sink.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_SINK_RABBITMQ_H
#define IDEM_SINK_RABBITMQ_H

#include "sink/common/batch.h"
#include "sink/common/event.h"
#include "sink/common/json.h"
#include "sink/common/program.h"
#include "sink/common/server.h"

#define BSINK_START_TIME	20000	/* ms for everything at start; the worker
									 * waits idempotency.sink_timeout for
									 * READY */
#define BSINK_MARGIN		5000	/* ms that a job has beyond its requests */

typedef enum BSinkFormat
{
	BSINK_PLAIN,
	BSINK_CE_BINARY,
	BSINK_CE_STRUCTURED
} BSinkFormat;

typedef struct BSinkConfig
{
	char	   *relay;
	char	   *incarnation;
	IdemServer	servers[IDEM_MAX_SERVERS];	/* port 0: the mode's usual one */
	int			n_servers;
	char	   *vhost;
	char	   *exchange;		/* template */
	char	   *routing_key;	/* template */
	bool		exchange_is_fixed;	/* the template has no field of an event,
									 * and is filled in */
	char	   *stream;			/* template; NULL: the mode for queues */
	bool		exactly_once;	/* into the stream */
	uint64_t	max_event_bytes;	/* into the stream; 0: no limit */
	BSinkFormat format;
	char	   *source;			/* template */
	int			heartbeat;		/* s */
	int			timeout;		/* ms */
	bool		tls;
	char	   *sslrootcert;	/* files, or NULL */
	char	   *sslcert;
	char	   *sslkey;
	char	   *sslpassword;	/* or NULL */
	char	   *user;
	char	   *password;
} BSinkConfig;

typedef struct BSink
{
	IdemSink	sink;
	BSinkConfig config;
	IdemSinkFailure failure;
	IdemIntake	in;
} BSink;

/*
 * A mode.  Its functions are called by the main thread, and each may run jobs; its state
 * is its own.
 */
typedef struct BSinkMode
{
	/*
	 * Answer a LOOK up to its end; the options have been looked at.  False:
	 * p->failure
	 */
	bool		(*look) (BSink *p);

	/*
	 * Connect, take over, and fill in *ready: limits, credit, capabilities,
	 * position. False: p->failure
	 */
	bool		(*start) (BSink *p, IdemProtoReady *ready);

	/*
	 * Deliver the complete batches, at least the first one, and send their
	 * results and verdicts.  False: p->failure
	 */
	bool		(*deliver) (BSink *p);

	/* While there is nothing to deliver: the descriptor to wait for, or -1. */
	int			(*descriptor) (const BSink *p);

	/*
	 * Called when the descriptor is readable, and every half of a heartbeat.
	 * False: p->failure
	 */
	bool		(*tend) (BSink *p);
} BSinkMode;

/* queue.c */

extern const BSinkMode bsink_queue_mode;

/* stream.c */

extern const BSinkMode bsink_stream_mode;

/* config.c */

/* Turn the options into p->config.  False: p->failure */
extern bool bsink_configure(BSink *p, const IdemProtoHello *hello);

/* Run a job.  If it has not ended after timeout ms, the program ends. */
static inline bool
bsink_run(BSink *p, IdemJob job, void *arg, int timeout)
{
	IdemJobEnd	end = idem_intake_run(&p->in, job, arg, timeout);

	/* p->failure belongs to the job: end here */
	if (end == IDEM_JOB_LATE)
		idem_sink_failed(&p->sink, IDEM_PROTO_OUTAGE, "08006", "the server gave no answer within %d ms", timeout);
	return end == IDEM_JOB_DONE;
}

/* The milliseconds that everything at start may take. */
static inline int
bsink_start_time(const BSink *p)
{
	return p->config.timeout < BSINK_START_TIME ? p->config.timeout : BSINK_START_TIME;
}

#endif							/* IDEM_SINK_RABBITMQ_H */
