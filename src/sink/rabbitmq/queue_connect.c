/*-------------------------------------------------------------------------
 *
 * queue_connect.c
 *		The connection to a server by AMQP 0-9-1, its channel, and whom to blame
 *		when they fail.
 *
 * The program never connects again: a connection that is lost ends it with `outage`, and
 * the worker sends what was not answered to the next program.  A channel is opened
 * again, since the server closes it for a single message.
 *
 * INVARIANT
 *		A text of the server goes into a message as one line, without secrets.
 *
 * MEMORY
 *		The connection lives as long as the program.  LOCKING: none; all is part of
 *		jobs.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/rabbitmq/queue_connect.c
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <string.h>
#include <sys/time.h>

#include <openssl/ssl.h>

#include "sink/common/hide.h"
#include "sink/rabbitmq/queue.h"

#define PORT		5672
#define PORT_TLS	5671
#define FRAME_MAX	131072		/* the server's default, and the library's */

static struct timeval
milliseconds(int64_t ms)
{
	struct timeval t;

	if (ms < 1)
		ms = 1;
	t.tv_sec = ms / 1000;
	t.tv_usec = ms % 1000 * 1000;
	return t;
}

void
bqueue_copy_text(char *dst, size_t cap, amqp_bytes_t text)
{
	char		raw[512];
	size_t		n = text.len < sizeof(raw) ? text.len : sizeof(raw) - 1;
	const char *shown;

	if (n > 0)
		memcpy(raw, text.bytes, n);
	raw[n] = '\0';
	shown = idem_sink_without_secrets(raw);
	idem_proto_clean_text(dst, cap, IDEM_STR(shown));
}

bool
bqueue_fail(BSink *p, int status, const char *doing)
{
	bool		certificate = status == AMQP_STATUS_SSL_HOSTNAME_VERIFY_FAILED || status == AMQP_STATUS_SSL_PEER_VERIFY_FAILED;
	bool		config = certificate || status == AMQP_STATUS_BROKER_UNSUPPORTED_SASL_METHOD ||
	status == AMQP_STATUS_INCOMPATIBLE_AMQP_VERSION;

	return idem_sink_fail(&p->failure, config ? IDEM_PROTO_REJECTED : IDEM_PROTO_OUTAGE,
						  certificate ? "28000" : config ? "0A000" : "08006", "could not %s: %s%s", doing, amqp_error_string2(status),
						  status == AMQP_STATUS_SSL_PEER_VERIFY_FAILED ? "; the option \"sslrootcert\" names the authority that is trusted" : "");
}

bool
bqueue_fail_for_close(BSink *p, const amqp_connection_close_t *m, const char *doing)
{
	char		text[400];
	bool		refused = m->reply_code == AMQP_ACCESS_REFUSED;
	bool		vhost = m->reply_code == AMQP_NOT_ALLOWED || m->reply_code == AMQP_INVALID_PATH;
	bool		forced = m->reply_code == AMQP_CONNECTION_FORCED;

	bqueue_copy_text(text, sizeof(text), m->reply_text);
	return idem_sink_fail(&p->failure, refused || vhost ? IDEM_PROTO_REJECTED : IDEM_PROTO_OUTAGE,
						  refused ? "28P01" : vhost ? "3D000" : forced ? "57P01" : "08006",
						  "could not %s: the server ended the connection: %s", doing, text);
}

bool
bqueue_fail_for_exchange(BSink *p, const BQueueReply *reply)
{
	bool		missing = reply->code == AMQP_NOT_FOUND;
	bool		refused = missing || reply->code == AMQP_ACCESS_REFUSED;

	return idem_sink_fail(&p->failure, refused ? IDEM_PROTO_REJECTED : IDEM_PROTO_OUTAGE,
						  missing ? "42704" : refused ? "42501" : "58000", "the server takes no message: %s%s", reply->text,
						  refused ? "; idempotency.sink_setup(server, relay) prints what to run there" : "");
}

/* Note the answer to a request that failed.  A closed channel is in q->closed.  False: p->failure */
static bool
judge_reply(BSink *p, BQueue *q, amqp_rpc_reply_t reply, const char *doing)
{
	if (reply.reply_type == AMQP_RESPONSE_NORMAL)
		return true;
	if (reply.reply_type != AMQP_RESPONSE_SERVER_EXCEPTION)
		return bqueue_fail(p, reply.reply_type == AMQP_RESPONSE_LIBRARY_EXCEPTION ? reply.library_error : AMQP_STATUS_UNEXPECTED_STATE, doing);
	if (reply.reply.id == AMQP_CHANNEL_CLOSE_METHOD)
		return bqueue_agree_to_close(p, q, reply.reply.decoded);
	if (reply.reply.id == AMQP_CONNECTION_CLOSE_METHOD)
		return bqueue_fail_for_close(p, reply.reply.decoded, doing);
	return bqueue_fail(p, AMQP_STATUS_WRONG_METHOD, doing);
}

bool
bqueue_agree_to_close(BSink *p, BQueue *q, const amqp_channel_close_t *m)
{
	amqp_channel_close_ok_t ok = {0};
	int			status;

	q->closed.code = m->reply_code > 0 ? m->reply_code : AMQP_INTERNAL_ERROR;
	bqueue_copy_text(q->closed.text, sizeof(q->closed.text), m->reply_text);
	status = amqp_send_method(q->conn, BQUEUE_CHANNEL, AMQP_CHANNEL_CLOSE_OK_METHOD, &ok);
	return status == AMQP_STATUS_OK || bqueue_fail(p, status, "answer the server");
}

/* Prepare TLS.  False: p->failure */
static bool
set_tls(BSink *p, BQueue *q)
{
	const BSinkConfig *c = &p->config;
	SSL_CTX    *context = amqp_ssl_socket_get_context(q->socket);

	SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
	amqp_ssl_socket_set_verify_peer(q->socket, 1);
	amqp_ssl_socket_set_verify_hostname(q->socket, 1);
	if (c->sslrootcert == NULL)
		SSL_CTX_set_default_verify_paths(context);
	else if (amqp_ssl_socket_set_cacert(q->socket, c->sslrootcert) != AMQP_STATUS_OK)
		return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "HV024", "option \"sslrootcert\" names no file of certificates");
	/* without a password OpenSSL would ask for one at the terminal */
	amqp_ssl_socket_set_key_passwd(q->socket, c->sslpassword != NULL ? c->sslpassword : "");
	if (c->sslcert != NULL && amqp_ssl_socket_set_key(q->socket, c->sslcert, c->sslkey) != AMQP_STATUS_OK)
		return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "HV024",
							  "options \"sslcert\", \"sslkey\" and \"sslpassword\" name no certificate with its key");
	return true;
}

/* Open a connection to the address.  False: p->failure */
static bool
open_socket(BSink *p, BQueue *q, const IdemServer *address, int64_t deadline)
{
	struct timeval left = milliseconds(deadline - idem_sink_clock());
	int			port = address->port != 0 ? address->port : p->config.tls ? PORT_TLS : PORT;
	char		doing[300];
	int			status;

	q->conn = amqp_new_connection();
	if (q->conn != NULL)
		q->socket = p->config.tls ? amqp_ssl_socket_new(q->conn) : amqp_tcp_socket_new(q->conn);
	if (q->conn == NULL || q->socket == NULL)
		return bqueue_fail(p, AMQP_STATUS_NO_MEMORY, "make a connection");
	if (p->config.tls && !set_tls(p, q))
		return false;
	status = amqp_socket_open_noblock(q->socket, address->host, port, &left);
	snprintf(doing, sizeof(doing), "connect to %s:%d", address->host, port);
	return status == AMQP_STATUS_OK || bqueue_fail(p, status, doing);
}

/* Log in.  The server then tells when it is short of memory or disk.  False: p->failure */
static bool
log_in(BSink *p, BQueue *q, int64_t deadline)
{
	const BSinkConfig *c = &p->config;
	struct timeval left = milliseconds(deadline - idem_sink_clock());
	struct timeval timeout = milliseconds(c->timeout);
	IdemText	name = {NULL, 0, 0};
	amqp_table_entry_t capabilities[] = {
		{.key = amqp_cstring_bytes("connection.blocked"), .value = {.kind = AMQP_FIELD_KIND_BOOLEAN,.value.boolean = 1}},
		{.key = amqp_cstring_bytes("basic.nack"), .value = {.kind = AMQP_FIELD_KIND_BOOLEAN,.value.boolean = 1}},
		{.key = amqp_cstring_bytes("publisher_confirms"), .value = {.kind = AMQP_FIELD_KIND_BOOLEAN,.value.boolean = 1}}
	};
	amqp_table_entry_t entries[] = {
		{.key = amqp_cstring_bytes("capabilities"), .value = {.kind = AMQP_FIELD_KIND_TABLE,.value.table = {3, capabilities}}},
		{.key = amqp_cstring_bytes("connection_name"), .value = {.kind = AMQP_FIELD_KIND_UTF8}}
	};
	amqp_table_t properties = {2, entries};
	amqp_rpc_reply_t reply;

	idem_text_puts(&name, "idempotency relay ");
	idem_text_puts(&name, c->relay);
	entries[1].value.value.bytes = amqp_cstring_bytes(idem_text_terminate(&name));
	amqp_set_handshake_timeout(q->conn, &left);
	amqp_set_rpc_timeout(q->conn, &timeout);
	reply = amqp_login_with_properties(q->conn, c->vhost, 0, FRAME_MAX, c->heartbeat, &properties, AMQP_SASL_METHOD_PLAIN,
									   c->user, c->password);
	free(name.data);
	return judge_reply(p, q, reply, "log in");
}

bool
bqueue_connect(BSink *p, BQueue *q)
{
	int64_t		start = idem_sink_clock();

	for (int i = 0; i < p->config.n_servers; i++)
	{
		/* each server has a share of the time that is left */
		int64_t		now = idem_sink_clock();
		int64_t		left = start + bsink_start_time(p) - now;
		int64_t		deadline = now + left / (p->config.n_servers - i);

		memset(&p->failure, 0, sizeof(p->failure));
		if (open_socket(p, q, &p->config.servers[i], deadline) && log_in(p, q, deadline))
			return true;
		/* another server knows the same users */
		if (p->failure.outcome == IDEM_PROTO_REJECTED)
			return false;
		amqp_destroy_connection(q->conn);
		q->conn = NULL;
	}
	return false;
}

bool
bqueue_open_channel(BSink *p, BQueue *q)
{
	q->closed.code = 0;
	amqp_channel_open(q->conn, BQUEUE_CHANNEL);
	if (!judge_reply(p, q, amqp_get_rpc_reply(q->conn), "open a channel"))
		return false;
	if (q->closed.code == 0)
	{
		amqp_confirm_select(q->conn, BQUEUE_CHANNEL);
		if (!judge_reply(p, q, amqp_get_rpc_reply(q->conn), "ask for confirms"))
			return false;
	}
	q->first_tag = 1;
	return q->closed.code == 0 ||
		idem_sink_fail(&p->failure, IDEM_PROTO_OUTAGE, "08006", "could not open a channel: %s", q->closed.text);
}

bool
bqueue_check_exchange(BSink *p, BQueue *q)
{
	const char *exchange = p->config.exchange;

	/* the one without a name is there, and cannot be asked for */
	if (!p->config.exchange_is_fixed || exchange[0] == '\0')
		return true;
	amqp_exchange_declare(q->conn, BQUEUE_CHANNEL, amqp_cstring_bytes(exchange), amqp_cstring_bytes("topic"), 1, 1, 0, 0,
						  amqp_empty_table);
	if (!judge_reply(p, q, amqp_get_rpc_reply(q->conn), "look for the exchange"))
		return false;
	return q->closed.code == 0 || bqueue_fail_for_exchange(p, &q->closed);
}
