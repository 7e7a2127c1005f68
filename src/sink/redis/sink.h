/*-------------------------------------------------------------------------
 *
 * sink.h
 *		The types and functions that the files of the redis sink share.
 *
 * README.md lists the files from top to bottom; calls go down only.
 * A function that cannot go on notes the reason in p->failure and returns
 * false; main.c alone ends the program with that reason.  "False: p->failure"
 * below means: returns false with the reason in p->failure.
 *
 * THREADS
 *		The main thread owns everything.  What may block, a connection's
 *		beginning and a request with its answer, runs as a job in the helper
 *		thread of common/job.c; while it runs, the main thread touches neither
 *		the connection nor the request.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/redis/sink.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_SINK_REDIS_H
#define IDEM_SINK_REDIS_H

#include <hiredis/hiredis.h>

#include "sink/common/batch.h"
#include "sink/common/format.h"
#include "sink/common/json.h"
#include "sink/common/program.h"
#include "sink/common/server.h"

/* The oldest hiredis that the sink works with.  The linker keeps a program to it. */
#if HIREDIS_MAJOR == 0 && HIREDIS_MINOR < 14
#error "the redis sink needs hiredis 0.14 or later"
#endif

/* The oldest server that the sink works with; checked at each connection. */
#define RSINK_LEAST_SERVER		7

/* TLS needs hiredis 1.0 or later when the program is built. */
#ifdef RSINK_TLS
#define RSINK_HAS_TLS	true
#else
#define RSINK_HAS_TLS	false
#endif

#define RSINK_MAX_KEY			1000	/* bytes of the name of a key */
#define RSINK_MAX_BATCH_EVENTS	1000	/* a script stops the whole server */
#define RSINK_MAX_BATCH_BYTES	(2 * 1024 * 1024)
#define RSINK_PORT				6379
#define RSINK_SHA_TEXT			41	/* with its terminator */

/* A stream that events of a batch go to. */
typedef struct IdemTarget
{
	char	   *key;
	size_t		len;
	bool		refused;		/* the server takes none of its events */
} RSinkStream;

/* What the position key holds. */
typedef struct RSinkPosition
{
	char		incarnation[IDEM_PROTO_MAX_MESSAGE];	/* "": no position is
														 * stored */
	IdemProtoPosition at;
} RSinkPosition;

typedef enum RSinkWaitAof
{
	RSINK_AOF_AUTO,
	RSINK_AOF_ON,
	RSINK_AOF_OFF
} RSinkWaitAof;

typedef struct RSinkConfig
{
	IdemServer	servers[IDEM_MAX_SERVERS];
	int			n_servers;
	long		database;
	bool		exactly_once;
	char	   *relay;
	char	   *tag;			/* the relay's name in braces */
	char	   *incarnation;
	char	   *stream;			/* template */
	bool		stream_is_fixed;	/* the template has no field of an event */
	char	   *position_key;
	char		maxlen[24];		/* "": all entries stay */
	bool		cloudevents;
	char	   *source;			/* template */
	uint64_t	max_event_bytes;
	RSinkWaitAof wait_aof;
	int			wait_replicas;
	int			timeout;		/* ms */
	bool		tls;
	char	   *sslrootcert;	/* files, or NULL */
	char	   *sslcert;
	char	   *sslkey;
	char	   *sslpassword;	/* or NULL */
	char	   *user;			/* or NULL */
	char	   *password;		/* or NULL: no login */
} RSinkConfig;

/* A request in the server's protocol, without its head. */
typedef struct RSinkRequest
{
	IdemText	text;
	uint32_t	args;
} RSinkRequest;

/* How a request ended. */
typedef enum RSinkAnswer
{
	RSINK_ANSWERED,				/* p->reply */
	RSINK_REFUSED,				/* an error: p->error */
	RSINK_LOST					/* the connection is gone: p->error */
} RSinkAnswer;

typedef struct RSink
{
	IdemSink	sink;
	RSinkConfig config;
	IdemSinkFailure failure;
	IdemIntake	in;

	redisContext *conn;			/* NULL: not connected */
	void	   *tls;			/* what tls.c keeps of the connection */
	IdemServer	peer;			/* the server of the connection */
	redisReply *reply;			/* of the last request; owned */
	char		error[512];		/* the last error, as the server or the system
								 * says it */
	char		sha[RSINK_SHA_TEXT];	/* of the script of a batch */

	int64_t		epoch;
	RSinkPosition stored;		/* as this program wrote or read it last */
	RSinkPosition found;		/* as it was at the last take-over */
	bool		aof;			/* to wait for the append-only file */
	bool		told_unsynced;
	bool		told_untrimmed;

	RSinkStream **streams;		/* of the batch */
	uint32_t	n_streams;
	uint32_t	size_streams;
} RSink;

/* deliver.c */

/*
 * Deliver the complete batches, at least one, and send results and verdicts.
 * False: p->failure.
 */
extern bool rsink_deliver(RSink *p);

/* takeover.c */

/*
 * Connect, log in and take the position over: p->found has it.  again: this program
 * has done so before, and ends as fenced if another one has since.  A LOOK only reads.
 * False: p->failure.
 */
extern bool rsink_take_over(RSink *p, bool again);

/* Wait until what was written is as safe as the options ask.  False: p->failure. */
extern bool rsink_confirm(RSink *p);

/* Is there anything to wait for? */
extern bool rsink_has_to_confirm(const RSink *p);

/* Is it that position? */
extern bool rsink_is_at(const RSinkPosition *position, const char *incarnation, IdemProtoPosition at);

/* entry.c */

/*
 * Name the stream of each event that is not decided; decide the events that are
 * blocked, that are too large, or that have no stream.
 */
extern void rsink_prepare(RSink *p, IdemBatch *b);

/* The event's stream as its destination; p is an RSink. */
extern void rsink_destination(void *p, const IdemBatchEvent *e, char buf[IDEM_SINK_DESTINATION + 1]);

/* Forget the streams of the batch. */
extern void rsink_forget_streams(RSink *p);

/* Add the arguments of the script for an event: its stream's number, count, entry. */
extern void rsink_add_entry(const RSink *p, RSinkRequest *r, const IdemBatchEvent *e);

/* connect.c */

/* Connect to an address.  False: p->error. */
extern bool rsink_connect(RSink *p, const IdemServer *address);
extern void rsink_disconnect(RSink *p);

/*
 * Send a request and wait for its answer, for at most timeout ms.  head: the first
 * arguments, text by text.
 */
extern RSinkAnswer rsink_ask(RSink *p, const char *const *head, int n_head,
							 const RSinkRequest *rest, int timeout);

/* Has the server ended the connection of an idle program?  It has sent something. */
extern bool rsink_is_lost(RSink *p);

/* Add an argument. */
extern void rsink_add(RSinkRequest *r, const void *data, size_t len);
extern void rsink_add_text(RSinkRequest *r, const char *text);
extern void rsink_add_number(RSinkRequest *r, int64_t number);

/* The text of an element of the reply, which is an array; "" if there is none. */
extern const char *rsink_element(const RSink *p, size_t n);

/* tls.c */

/* A part of a job: begin TLS on the new connection.  False: error. */
extern bool rsink_start_tls(RSink *p, char *error, size_t cap);
extern void rsink_end_tls(RSink *p);

/* error.c */

/* Who is to blame for an error of the server. */
typedef enum RSinkBlame
{
	RSINK_BLAME_CONFIG,			/* options, rights or objects */
	RSINK_BLAME_PLACE,			/* this server: another one may do */
	RSINK_BLAME_MOVED,			/* another server of the cluster has the key */
	RSINK_BLAME_OUTAGE,			/* it passes */
	RSINK_BLAME_UNKNOWN
} RSinkBlame;

extern RSinkBlame rsink_blame(const char *error);

/* As idem_sink_fail, for an error of the server: rejected or outage. */
extern bool rsink_fail_for_error(RSink *p, const char *doing, const char *error);

/* Copy a text of the server, fit for a message: one line, without secrets and without a request's arguments. */
extern void rsink_copy_error(char *dst, size_t cap, const char *error);

/* The address in "MOVED slot host:port".  False: there is none. */
extern bool rsink_moved_to(const RSink *p, const char *error, IdemServer *to);

/* Is the error that the server does not know the command? */
extern bool rsink_is_unknown_command(const char *error);

/* config.c */

/* Turn the options into p->config.  False: p->failure. */
extern bool rsink_configure(RSink *p, const IdemProtoHello *hello);

#endif							/* IDEM_SINK_REDIS_H */
