/*-------------------------------------------------------------------------
 *
 * sink.h
 *		The types and functions that the files of the mqtt sink share.
 *
 * README.md lists the files from top to bottom; calls go down only.
 * A function that cannot go on notes the reason in p->failure and returns
 * false; main.c turns it into FAILED.  "False: p->failure" below means: returns
 * false with the reason in p->failure.
 *
 * THREADS
 *		The library connects in a job (common/job.c), because it looks names up.
 *		Everything else happens in the main thread, which waits for the library's
 *		socket with idem_sink_wait.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/mqtt/sink.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_SINK_MQTT_H
#define IDEM_SINK_MQTT_H

#include <mosquitto.h>
#if LIBMOSQUITTO_VERSION_NUMBER < 2001000
#include <mqtt_protocol.h>		/* mosquitto.h has it from 2.1 on */
#endif

#include "sink/common/batch.h"
#include "sink/common/event.h"
#include "sink/common/json.h"
#include "sink/common/lane.h"
#include "sink/common/program.h"
#include "sink/common/server.h"

/* The oldest libmosquitto that the sink works with; checked at build and start. */
#define MSINK_LEAST_VERSION			2000011
#define MSINK_LEAST_VERSION_TEXT	"2.0.11"

#if LIBMOSQUITTO_VERSION_NUMBER < MSINK_LEAST_VERSION
#error "the mqtt sink needs libmosquitto 2.0.11 or later"
#endif

#define MSINK_MAX_BATCH_EVENTS	1000
#define MSINK_MAX_BATCH_BYTES	(4 * 1024 * 1024)
#define MSINK_CREDIT_BATCHES	8
#define MSINK_MAX_STRING		65535	/* bytes of a string of MQTT */
#define MSINK_MAX_REMAINING		268435455	/* bytes of a packet behind its
											 * first field */
#define MSINK_MIDS				65536

/* Bytes of messages without an answer, which the library keeps a copy of */
#define MSINK_MAX_FLIGHT_BYTES	(16 * 1024 * 1024)

typedef enum MSinkFormat
{
	MSINK_PLAIN,
	MSINK_CE_BINARY,
	MSINK_CE_STRUCTURED
} MSinkFormat;

typedef struct MSinkConfig
{
	char	   *relay;
	IdemServer	servers[IDEM_MAX_SERVERS];
	int			n_servers;
	char	   *topic;			/* template */
	int			qos;
	bool		retain;
	uint32_t	expiry;			/* s; 0: none */
	MSinkFormat format;
	char	   *source;			/* template */
	char	   *client_id;
	int			keepalive;		/* s */
	long		in_flight;
	int			timeout;		/* ms */
	bool		tls;
	char	   *sslrootcert;	/* or NULL, as all below */
	char	   *user;
	char	   *password;
	char	   *sslcert;
	char	   *sslkey;
	char	   *sslpassword;
} MSinkConfig;

/* What the broker said in its CONNACK. */
typedef struct MSinkLimits
{
	int			qos;
	bool		retain;
	uint32_t	packet;			/* bytes; 0: no limit of its own */
	long		receive;		/* QoS 1 and 2 messages without an answer */
	int			keepalive;		/* s */
} MSinkLimits;

typedef struct MSink
{
	IdemSink	sink;
	MSinkConfig config;
	IdemSinkFailure failure;
	IdemIntake	in;

	/* the connection, see server.c */
	struct mosquitto *mosq;
	bool		answered;		/* CONNACK has come */
	int			connack;		/* its reason code */
	MSinkLimits limits;
	bool		broken;			/* nothing can be sent; answers may still come */
	bool		gone;			/* the connection has ended */
	int			gone_code;		/* reason code of DISCONNECT; below 0x80: of
								 * the library */
	int			gone_errno;
	char		tls_error[256]; /* what the library said last of TLS */

	/* events, see deliver.c */
	IdemLanes	lanes;
	IdemPlaces	flight;			/* sent, the oldest first */
	long		n_flight;
	uint64_t	flight_bytes;
	IdemPlace **by_mid;			/* of the messages in flight */
} MSink;

/* deliver.c */

/* Begin with an open connection. */
extern void msink_start_delivery(MSink *p);

/*
 * Take complete batches, send what may be sent, and answer batches that are done.
 * False: p->failure.
 */
extern bool msink_deliver(MSink *p);

/* Wait for the broker or the worker.  False: p->failure. */
extern bool msink_await(MSink *p);

/* message.c */

/* The message of an event; the caller frees it. */
typedef struct MSinkMessage
{
	IdemText	topic;			/* terminated */
	IdemText	body;			/* of a structured CloudEvent */
	const char *data;			/* of the message */
	uint32_t	len;
	mosquitto_property *properties;
	const char *sqlstate;		/* why there is none */
	char		problem[256];
} MSinkMessage;

/* False: sqlstate and problem. */
extern bool msink_make_message(const MSink *p, const IdemSinkEvent *e, MSinkMessage *m);
extern void msink_free_message(MSinkMessage *m);

/* The destination of the intake: the topic. */
extern void msink_destination(void *p, const IdemBatchEvent *e, char buf[IDEM_SINK_DESTINATION + 1]);

/* Is the text a topic that a message can have, but for its encoding? */
extern bool msink_is_topic(const char *topic, size_t len);

/* server.c */

/* Connect to one of the servers.  False: p->failure. */
extern bool msink_connect(MSink *p, const char *client_id);

/* Can the broker do what the options ask for?  False: p->failure. */
extern bool msink_check_limits(MSink *p);

/*
 * Wait until the connection has something to do, timeout ms have passed, or, with
 * until_input, bytes came from the worker; do it.  False: the connection has ended.
 */
extern bool msink_pump(MSink *p, int timeout, bool until_input);

/* Note why the connection has ended.  Always false. */
extern bool msink_fail_gone(MSink *p);

/* Note that the library failed.  Always false. */
extern bool msink_fail_library(MSink *p, int rc, const char *doing);

/* What a reason code says of an event.  The text has no line end. */
extern IdemProtoOutcome msink_outcome(int code, const char **sqlstate, const char **text);

/* config.c */

/* Turn the options into p->config.  False: p->failure. */
extern bool msink_configure(MSink *p, const IdemProtoHello *hello);

#endif							/* IDEM_SINK_MQTT_H */
