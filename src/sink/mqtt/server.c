/*-------------------------------------------------------------------------
 *
 * server.c
 *		The connection to the broker, and what its reason codes say.
 *
 * The library's external loop is used: its socket is waited for with idem_sink_wait,
 * and mosquitto_loop_read, _write and _misc do what there is to do.  Only the
 * connection's beginning, which looks a name up, is a job.
 *
 * INVARIANT
 *		A connection that has ended is not made again: the library would send what
 *		it still has in a session that knows nothing of it.
 *
 *		Each session is new (clean start).  In a kept one the broker may remember a
 *		packet identifier of the predecessor's QoS 2 messages, and would take our
 *		first message with it for a repeat.
 *
 * A crash leaves a message that the broker has and that the relay sends again.
 *
 * MEMORY
 *		The library keeps a copy of each message in flight.  LOCKING: see sink.h;
 *		the library's callbacks run in the thread that calls it.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/mqtt/server.c
 *
 *-------------------------------------------------------------------------
 */
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "sink/common/hide.h"
#include "sink/mqtt/sink.h"

#define CONNECT_TIME	15000	/* ms for a connection's beginning; the worker
								 * waits idempotency.sink_timeout for READY */

/*
 * Reason codes: of an event in PUBACK and PUBREC, of the connection in CONNACK and
 * DISCONNECT.  blames: a DISCONNECT says it of a message.
 */
static const struct
{
	int			code;
	IdemProtoOutcome event;
	const char *text;
	const char *event_state;
	const char *connection_state;
	IdemProtoOutcome connection;
	bool		blames;
}			reasons[] = {
	{MQTT_RC_UNSPECIFIED, IDEM_PROTO_RETRY, "an error that the broker does not name", "58000", "08006", IDEM_PROTO_OUTAGE, false},
	{MQTT_RC_MALFORMED_PACKET, IDEM_PROTO_REJECTED, "malformed packet", "08P01", "08P01", IDEM_PROTO_OUTAGE, true},
	{MQTT_RC_PROTOCOL_ERROR, IDEM_PROTO_REJECTED, "protocol error", "08P01", "08P01", IDEM_PROTO_OUTAGE, true},
	{MQTT_RC_IMPLEMENTATION_SPECIFIC, IDEM_PROTO_REJECTED, "the broker does not take it, for a reason of its own", "22023", "08006", IDEM_PROTO_OUTAGE, true},
	{MQTT_RC_UNSUPPORTED_PROTOCOL_VERSION, 0, "the broker does not speak MQTT 5", NULL, "0A000", IDEM_PROTO_REJECTED, false},
	{MQTT_RC_CLIENTID_NOT_VALID, 0, "the broker does not take the client id; see the option \"client_id\"", NULL, "HV024", IDEM_PROTO_REJECTED, false},
	{MQTT_RC_BAD_USERNAME_OR_PASSWORD, 0, "wrong user or password", NULL, "28P01", IDEM_PROTO_REJECTED, false},
	{MQTT_RC_NOT_AUTHORIZED, IDEM_PROTO_REJECTED, "not authorized", "42501", "28000", IDEM_PROTO_REJECTED, false},
	{MQTT_RC_SERVER_UNAVAILABLE, 0, "the broker is not available", NULL, "57P03", IDEM_PROTO_OUTAGE, false},
	{MQTT_RC_SERVER_BUSY, 0, "the broker is busy", NULL, "57P03", IDEM_PROTO_OUTAGE, false},
	{MQTT_RC_BANNED, 0, "the broker bans the client", NULL, "28000", IDEM_PROTO_REJECTED, false},
	{MQTT_RC_SERVER_SHUTTING_DOWN, 0, "the broker is shutting down", NULL, "57P01", IDEM_PROTO_OUTAGE, false},
	{MQTT_RC_BAD_AUTHENTICATION_METHOD, 0, "the broker wants a login of another kind", NULL, "28000", IDEM_PROTO_REJECTED, false},
	{MQTT_RC_KEEP_ALIVE_TIMEOUT, 0, "the broker heard nothing for too long", NULL, "08006", IDEM_PROTO_OUTAGE, false},
	{MQTT_RC_SESSION_TAKEN_OVER, 0, "another client connected with the same client id: a copy of the relay, or a stranger; each needs an id of its own (option \"client_id\")", NULL, "55006", IDEM_PROTO_OUTAGE, false},
	{MQTT_RC_TOPIC_NAME_INVALID, IDEM_PROTO_REJECTED, "the broker does not take the topic", "22023", "22023", IDEM_PROTO_OUTAGE, true},
	{MQTT_RC_RECEIVE_MAXIMUM_EXCEEDED, 0, "too many messages without an answer; see the option \"in_flight\"", NULL, "08P01", IDEM_PROTO_OUTAGE, false},
	{MQTT_RC_PACKET_TOO_LARGE, IDEM_PROTO_REJECTED, "the message is too large", "54000", "54000", IDEM_PROTO_OUTAGE, true},
	{MQTT_RC_MESSAGE_RATE_TOO_HIGH, 0, "too many messages in a time", NULL, "53400", IDEM_PROTO_OUTAGE, false},
	{MQTT_RC_QUOTA_EXCEEDED, IDEM_PROTO_RETRY, "the broker's quota is used up", "53400", "53000", IDEM_PROTO_OUTAGE, false},
	{MQTT_RC_ADMINISTRATIVE_ACTION, 0, "an administrator ended the connection", NULL, "57P01", IDEM_PROTO_OUTAGE, false},
	{MQTT_RC_PAYLOAD_FORMAT_INVALID, IDEM_PROTO_REJECTED, "the payload is not what its format indicator says", "22023", "22023", IDEM_PROTO_OUTAGE, true},
	{MQTT_RC_RETAIN_NOT_SUPPORTED, 0, "the broker retains no messages; see the option \"retain\"", NULL, "0A000", IDEM_PROTO_REJECTED, false},
	{MQTT_RC_QOS_NOT_SUPPORTED, 0, "the broker does not have this quality of service; see the option \"qos\"", NULL, "0A000", IDEM_PROTO_REJECTED, false},
	{MQTT_RC_USE_ANOTHER_SERVER, 0, "the broker names another server; see the option \"servers\"", NULL, "08004", IDEM_PROTO_REJECTED, false},
	{MQTT_RC_SERVER_MOVED, 0, "the broker has moved; see the option \"servers\"", NULL, "08004", IDEM_PROTO_REJECTED, false},
	{MQTT_RC_CONNECTION_RATE_EXCEEDED, 0, "too many connections in a time", NULL, "53300", IDEM_PROTO_OUTAGE, false}
};

#define N_REASONS	(sizeof(reasons) / sizeof(reasons[0]))

/* The line of a code; N_REASONS: there is none. */
static size_t
find_reason(int code)
{
	size_t		i = 0;

	while (i < N_REASONS && reasons[i].code != code)
		i++;
	return i;
}

IdemProtoOutcome
msink_outcome(int code, const char **sqlstate, const char **text)
{
	size_t		i = find_reason(code);

	*sqlstate = NULL;
	*text = NULL;
	/* a topic that nobody has subscribed to: the broker took it for nobody */
	if (code == MQTT_RC_SUCCESS || code == MQTT_RC_NO_MATCHING_SUBSCRIBERS)
		return IDEM_PROTO_ACKED;
	if (i == N_REASONS || reasons[i].event == 0)
		return 0;
	*sqlstate = reasons[i].event_state;
	*text = reasons[i].text;
	return reasons[i].event;
}

/* What the library says of its return code. */
static const char *
library_text(const MSink *p, int rc)
{
	switch (rc)
	{
		case MOSQ_ERR_ERRNO:
			return strerror(p->gone_errno);
		case MOSQ_ERR_EAI:
			return gai_strerror(p->gone_errno);
		case MOSQ_ERR_TLS:
			return p->tls_error[0] != '\0' ? p->tls_error : "TLS failed";
		case MOSQ_ERR_KEEPALIVE:
			return "no answer to a ping";
		case MOSQ_ERR_CONN_LOST:
		case MOSQ_ERR_NO_CONN:
			/* mosquitto does so, without a DISCONNECT */
			return p->answered ? "the broker closed the connection; a client with the same client id would make it do so" :
				"the broker closed the connection";
		default:
			return mosquitto_strerror(rc);
	}
}

bool
msink_fail_library(MSink *p, int rc, const char *doing)
{
	bool		certificate = rc == MOSQ_ERR_TLS && strstr(p->tls_error, "erif") != NULL;

	return idem_sink_fail(&p->failure, certificate ? IDEM_PROTO_REJECTED : IDEM_PROTO_OUTAGE, "08006", "could not %s: %s", doing,
						  idem_sink_without_secrets(library_text(p, rc)));
}

/*
 * A message in flight may be the reason that the connection ended, and which one
 * nobody says: with ID006 the relay sends the events again one by one.
 */
bool
msink_fail_gone(MSink *p)
{
	bool		from_broker = p->gone_code >= 0x80;
	size_t		i = from_broker ? find_reason(p->gone_code) : N_REASONS;
	bool		blames = i < N_REASONS ? reasons[i].blames : p->gone_code == MOSQ_ERR_PROTOCOL || p->gone_code == MOSQ_ERR_MALFORMED_PACKET;

	if (!from_broker && !(blames && p->n_flight > 0))
		return msink_fail_library(p, p->gone_code, p->answered ? "keep the connection to the broker" : "connect to the broker");
	return idem_sink_fail(&p->failure, i < N_REASONS ? reasons[i].connection : IDEM_PROTO_OUTAGE,
						  blames && p->n_flight > 0 ? "ID006" : i < N_REASONS ? reasons[i].connection_state : "08006",
						  from_broker ? "the broker ended the connection: %s (0x%02X)" : "the connection ended: %s",
						  i < N_REASONS ? reasons[i].text : from_broker ? "no reason that MQTT 5 has" : library_text(p, p->gone_code), (unsigned int) p->gone_code);
}

/* Note why the broker refused the connection.  Always false. */
static bool
fail_connack(MSink *p)
{
	size_t		i = find_reason(p->connack);

	return idem_sink_fail(&p->failure, i < N_REASONS ? reasons[i].connection : IDEM_PROTO_OUTAGE,
						  i < N_REASONS ? reasons[i].connection_state : "08006", "the broker refused the connection: %s (0x%02X)",
						  i < N_REASONS ? reasons[i].text : "no reason that MQTT 5 has", (unsigned) p->connack);
}

/* The connection has ended; what comes later are consequences. */
static void
note_gone(MSink *p, int code)
{
	int			error = errno;

	if (p->gone)
		return;
	p->gone = true;
	p->gone_code = code;
	p->gone_errno = error;
}

/* A callback of the library: CONNACK. */
static void
on_connect(struct mosquitto *mosq, void *arg, int code, int flags, const mosquitto_property *properties)
{
	MSink	   *p = arg;
	uint8_t		byte;
	uint16_t	word;
	uint32_t	number;

	(void) mosq;
	(void) flags;
	p->answered = true;
	p->connack = code;
	if (mosquitto_property_read_byte(properties, MQTT_PROP_MAXIMUM_QOS, &byte, false) != NULL)
		p->limits.qos = byte;
	if (mosquitto_property_read_byte(properties, MQTT_PROP_RETAIN_AVAILABLE, &byte, false) != NULL)
		p->limits.retain = byte != 0;
	if (mosquitto_property_read_int16(properties, MQTT_PROP_RECEIVE_MAXIMUM, &word, false) != NULL && word > 0)
		p->limits.receive = word;
	if (mosquitto_property_read_int16(properties, MQTT_PROP_SERVER_KEEP_ALIVE, &word, false) != NULL)
		p->limits.keepalive = word;
	if (mosquitto_property_read_int32(properties, MQTT_PROP_MAXIMUM_PACKET_SIZE, &number, false) != NULL)
		p->limits.packet = number;
}

/* A callback of the library: DISCONNECT, or an end without one. */
static void
on_disconnect(struct mosquitto *mosq, void *arg, int code, const mosquitto_property *properties)
{
	(void) mosq;
	(void) properties;
	note_gone(arg, code);
}

/* A callback of the library: what it says of TLS is in no return code. */
static void
on_log(struct mosquitto *mosq, void *arg, int level, const char *text)
{
	MSink	   *p = arg;
	IdemProtoStr s = {text, (uint32_t) strlen(text)};

	(void) mosq;
	if (level == MOSQ_LOG_ERR && p->tls_error[0] == '\0')
		idem_proto_clean_text(p->tls_error, sizeof(p->tls_error), s);
}

/* The password of the key: of the option, and never asked for at a terminal. */
static int
give_password(char *buf, int size, int writing, void *arg)
{
	const MSink *p = mosquitto_userdata(arg);
	const char *password = p->config.sslpassword;

	(void) writing;
	if (password == NULL || strlen(password) >= (size_t) size)
		return 0;
	memcpy(buf, password, strlen(password) + 1);
	return (int) strlen(password);
}

/* Give the library the options of TLS; returns its code. */
static int
set_tls(MSink *p)
{
	const MSinkConfig *c = &p->config;
	int			rc = MOSQ_ERR_SUCCESS;

	if (c->sslrootcert == NULL)
		return mosquitto_int_option(p->mosq, MOSQ_OPT_TLS_USE_OS_CERTS, 1);
	rc = mosquitto_tls_set(p->mosq, c->sslrootcert, NULL, c->sslcert, c->sslkey, give_password);
	/* the chain is verified, and the name or the address is compared */
	if (rc == MOSQ_ERR_SUCCESS)
		rc = mosquitto_tls_opts_set(p->mosq, 1, NULL, NULL);
	return rc;
}

/* A client of the library, as the options want it.  False: p->failure. */
static bool
make_client(MSink *p, const char *client_id)
{
	const MSinkConfig *c = &p->config;
	int			rc;

	if (p->mosq != NULL)
		mosquitto_destroy(p->mosq);
	p->answered = p->gone = false;
	p->tls_error[0] = '\0';
	/* what counts if the broker does not say it */
	p->limits = (MSinkLimits)
	{
		.qos = 2, .retain = true, .receive = 65535, .keepalive = c->keepalive
	};
	p->mosq = mosquitto_new(client_id, true, p);
	if (p->mosq == NULL)
		idem_sink_broken(&p->sink, "could not make a client of libmosquitto: %s", strerror(errno));
	rc = mosquitto_int_option(p->mosq, MOSQ_OPT_PROTOCOL_VERSION, MQTT_PROTOCOL_V5);
	if (rc == MOSQ_ERR_SUCCESS)
		rc = mosquitto_int_option(p->mosq, MOSQ_OPT_SEND_MAXIMUM, (int) c->in_flight);
	if (rc == MOSQ_ERR_SUCCESS)
		rc = mosquitto_int_option(p->mosq, MOSQ_OPT_TCP_NODELAY, 1);
	if (rc == MOSQ_ERR_SUCCESS && c->user != NULL)
		rc = mosquitto_username_pw_set(p->mosq, c->user, c->password);
	if (rc == MOSQ_ERR_SUCCESS && c->tls)
		rc = set_tls(p);
	mosquitto_connect_v5_callback_set(p->mosq, on_connect);
	mosquitto_disconnect_v5_callback_set(p->mosq, on_disconnect);
	mosquitto_log_callback_set(p->mosq, on_log);
	return rc == MOSQ_ERR_SUCCESS || msink_fail_library(p, rc, "prepare a connection");
}

/* What the job of a connection gets and gives.  A job that is late still uses it. */
static struct
{
	MSink	   *p;
	const IdemServer *server;
	int			rc;
	int			error;
}			work;

/* The job: look the name up and open the connection. */
static bool
connect_job(void *arg)
{
	const MSink *p = arg;

	errno = 0;
	work.rc = mosquitto_connect_bind_v5(p->mosq, work.server->host, work.server->port, p->config.keepalive, NULL, NULL);
	work.error = errno;
	return work.rc == MOSQ_ERR_SUCCESS;
}

/* Has the broker closed a connection that it has not answered? */
static bool
is_closed(int fd)
{
	char		byte;

	return recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

bool
msink_pump(MSink *p, int timeout, bool until_input)
{
	int			fd = mosquitto_socket(p->mosq);
	short		events = (short) (POLLIN | (!p->broken && mosquitto_want_write(p->mosq) ? POLLOUT : 0));
	short		got = idem_sink_wait(&p->sink, fd, events, timeout, until_input);
	int			rc = MOSQ_ERR_SUCCESS;

	/* the library tries a handshake that the peer has left for ever */
	if (got != 0 && !p->answered && is_closed(fd))
		rc = MOSQ_ERR_CONN_LOST;
	else if (got != 0 && (got != POLLOUT || !p->answered))
		rc = mosquitto_loop_read(p->mosq, 1);
	if (rc == MOSQ_ERR_SUCCESS && !p->gone && !p->broken && mosquitto_want_write(p->mosq))
		rc = mosquitto_loop_write(p->mosq, 1);
	if (rc == MOSQ_ERR_SUCCESS && !p->gone)
		rc = mosquitto_loop_misc(p->mosq);
	if (rc != MOSQ_ERR_SUCCESS)
		note_gone(p, rc);
	return !p->gone;
}

/* Connect to a server, and wait for its answer.  False: p->failure. */
static bool
connect_to(MSink *p, const IdemServer *server, const char *client_id, int64_t deadline)
{
	int64_t		left = deadline - idem_sink_clock();

	if (!make_client(p, client_id))
		return false;
	work.server = server;
	switch (idem_intake_run(&p->in, connect_job, p, left > 0 ? (int) left : 0))
	{
		case IDEM_JOB_LATE:
			idem_sink_failed(&p->sink, IDEM_PROTO_OUTAGE, "08006", "could not connect to the broker in time");
		case IDEM_JOB_FAILED:
			p->gone_errno = work.error;
			return msink_fail_library(p, work.rc, "connect to the broker");
		case IDEM_JOB_DONE:
			break;
	}
	while (!p->answered)
	{
		left = deadline - idem_sink_clock();
		if (left <= 0)
			return idem_sink_fail(&p->failure, IDEM_PROTO_OUTAGE, "08006", "the broker did not answer in time");
		if (!msink_pump(p, (int) left, false) && !p->answered)
			return msink_fail_gone(p);
	}
	return p->connack == MQTT_RC_SUCCESS || fail_connack(p);
}

bool
msink_connect(MSink *p, const char *client_id)
{
	int64_t		now = idem_sink_clock();
	int			most = p->config.timeout < CONNECT_TIME ? p->config.timeout : CONNECT_TIME;

	for (int i = 0; i < p->config.n_servers; i++)
	{
		/* what the last one said is reported */
		memset(&p->failure, 0, sizeof(p->failure));
		if (connect_to(p, &p->config.servers[i], client_id, now + (int64_t) most * (i + 1) / p->config.n_servers))
			return true;
		if (p->failure.outcome == IDEM_PROTO_REJECTED)
			break;
	}
	return false;
}

bool
msink_check_limits(MSink *p)
{
	if (p->config.qos > p->limits.qos)
		return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "0A000", "the broker has quality of service %d at most; see the option \"qos\"", p->limits.qos);
	/* the library would send the messages without the flag */
	if (p->config.retain && !p->limits.retain)
		return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "0A000", "the broker retains no messages; see the option \"retain\"");
	if (p->limits.receive > p->config.in_flight)
		p->limits.receive = p->config.in_flight;
	return true;
}
