/*-------------------------------------------------------------------------
 *
 * stream_client.c
 *		A connection to a server, requests and answers of the stream protocol.
 *
 * After the login the connection goes to the server that leads the stream, declares a
 * publisher, and then publishes, reads and asks.  What the server sends of itself comes
 * between the answers: confirms, errors, chunks, heartbeats.
 *
 * INVARIANT
 *		A connection on which anything has failed is not used again: each error is noted
 *		in p->failure, and a connection is made anew.  The socket does not block, and
 *		each wait has an end.
 *
 * MEMORY
 *		One buffer for each direction.  A frame lives until the next one is taken.
 *		LOCKING: see sink.h; bstream_tend is the main thread's, between jobs.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/rabbitmq/stream_client.c
 *
 *-------------------------------------------------------------------------
 */
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "sink/common/hide.h"
#include "sink/rabbitmq/stream.h"

#define PUBLISHER		1		/* the number of our publisher on a connection */
#define CONNECT_TIMEOUT	5000	/* ms: the next address may answer */
#define READ_SIZE		65536
#define CREDIT			8		/* chunks that the server may send ahead */
#define MIN_FRAME		65536	/* less than that, and no event fits */

/* What the codes of answers mean. */
static const struct
{
	uint16_t	code;
	IdemProtoOutcome outcome;
	const char *sqlstate;
	const char *text;
}			codes[] = {
	{0x02, IDEM_PROTO_REJECTED, "42704", "the stream does not exist; idempotency.sink_setup(server, relay) prints how to make it"},
	{0x06, IDEM_PROTO_OUTAGE, "57P03", "the stream is not available"},
	{0x07, IDEM_PROTO_REJECTED, "28000", "the server does not take the login PLAIN"},
	{0x08, IDEM_PROTO_REJECTED, "28P01", "the server refuses the login"},
	{0x09, IDEM_PROTO_REJECTED, "28P01", "the server refuses the login"},
	{0x0a, IDEM_PROTO_REJECTED, "28000", "the server asks for more than a password"},
	{0x0b, IDEM_PROTO_REJECTED, "28P01", "the server lets this user log in from its own machine only"},
	{0x0c, IDEM_PROTO_REJECTED, "42501", "the virtual host does not exist, or the user has no access to it"},
	{0x0e, IDEM_PROTO_OUTAGE, "54000", "a frame was too large"},
	{0x0f, IDEM_PROTO_OUTAGE, "58000", "internal error of the server"},
	{0x10, IDEM_PROTO_REJECTED, "42501", "the user has no right on the stream; idempotency.sink_setup(server, relay) prints what he needs"},
	{0x11, IDEM_PROTO_REJECTED, "55000", "a precondition failed: is it a stream?"},
	{0x12, IDEM_PROTO_OUTAGE, "55000", "the publisher does not exist"}
};

/* Note a code of the server.  Always false. */
static bool
fail_for_code(BSink *p, const BStream *s, uint16_t code, const char *doing)
{
	for (size_t i = 0; i < sizeof(codes) / sizeof(codes[0]); i++)
		if (codes[i].code == code)
			return idem_sink_fail(&p->failure, codes[i].outcome, codes[i].sqlstate, "could not %s (stream \"%.100s\"): %s", doing, s->name,
								  codes[i].text);
	return idem_sink_fail(&p->failure, IDEM_PROTO_OUTAGE, "58000", "could not %s (stream \"%.100s\"): the server answers with code %u",
						  doing, s->name, code);
}

static bool
fail_senseless(BSink *p)
{
	return idem_sink_fail(&p->failure, IDEM_PROTO_OUTAGE, "08P01", "the server sent something that is not of the stream protocol");
}

/* Copy a text of the server, fit for a message. */
static void
copy_text(char *dst, size_t cap, IdemProtoStr text)
{
	char		copy[512];
	const char *shown;

	snprintf(copy, sizeof(copy), "%.*s", (int) text.len, text.data);
	shown = idem_sink_without_secrets(copy);
	idem_proto_clean_text(dst, cap, IDEM_STR(shown));
}

void
bstream_disconnect(BStream *s)
{
	bstream_end_tls(s);
	if (s->fd >= 0)
		close(s->fd);
	s->fd = -1;
	s->in.len = 0;
	s->in_used = 0;
	s->flight = 0;
}

/* Wait until the descriptor is ready.  False: p->failure */
static bool
await(BSink *p, BStream *s, short events, int64_t deadline, const char *doing)
{
	struct pollfd fd = {.fd = s->fd, .events = events};
	int64_t		left = deadline - idem_sink_clock();
	int			rc;

	do
		rc = left > 0 ? poll(&fd, 1, (int) left) : 0;
	while (rc < 0 && errno == EINTR);
	if (rc > 0)
		return true;
	return idem_sink_fail(&p->failure, IDEM_PROTO_OUTAGE, "08006", "could not %s: %s:%d gave no answer in time; is it blocked by an alarm?",
						  doing, s->peer.host, s->peer.port);
}

static bool
fail_lost(BSink *p, const BStream *s, ssize_t rc)
{
	return idem_sink_fail(&p->failure, IDEM_PROTO_OUTAGE, "08006", "connection to %s:%d is lost: %s", s->peer.host, s->peer.port,
						  rc == 0 ? "the server has closed it" : strerror(errno));
}

/* Send s->out.  False: p->failure */
static bool
send_frame(BSink *p, BStream *s, int64_t deadline, const char *doing)
{
	size_t		done = 0;

	while (done < s->out.len)
	{
		short		wait_for;
		ssize_t		rc = bstream_write(s, s->out.data + done, s->out.len - done, &wait_for);

		if (rc > 0)
			done += (size_t) rc;
		else if (rc == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR))
			return fail_lost(p, s, rc);
		else if (!await(p, s, wait_for, deadline, doing))
			return false;
	}
	return true;
}

/* Read what is there.  1: something came; 0: nothing; -1: p->failure.  *wait_for: for what to wait */
static int
fill(BSink *p, BStream *s, short *wait_for)
{
	char		bytes[READ_SIZE];
	ssize_t		rc = bstream_read(s, bytes, sizeof(bytes), wait_for);

	if (rc > 0)
	{
		idem_text_add(&s->in, bytes, (size_t) rc);
		s->heard = idem_sink_clock();
		return 1;
	}
	if (rc == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR))
	{
		fail_lost(p, s, rc);
		return -1;
	}
	return 0;
}

/* Drop the frame that was taken last. */
static void
drop_taken(BStream *s)
{
	if (s->in_used == 0)
		return;
	memmove(s->in.data, s->in.data + s->in_used, s->in.len - s->in_used);
	s->in.len -= s->in_used;
	s->in_used = 0;
}

/* Take a frame that has come wholly.  *there: there was one.  False: p->failure */
static bool
take_frame(BSink *p, BStream *s, BStreamFrame *f, bool *there)
{
	const uint8_t *data;
	uint32_t	size;

	*there = false;
	/* small frames in a row are moved once */
	if (s->in_used > READ_SIZE || s->in_used == s->in.len)
		drop_taken(s);
	if (s->in.len - s->in_used < 4)
		return true;
	data = (const uint8_t *) s->in.data + s->in_used;
	size = wire_get32(data);
	if (size < 4)
		return fail_senseless(p);
	if (size > BSTREAM_MAX_CHUNK)
		return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "54000", "stream \"%.100s\" has a chunk of %u bytes, which is too much", s->name, size);
	if (s->in.len - s->in_used < (size_t) size + 4)
		return true;
	s->in_used += (size_t) size + 4;
	*there = true;
	return bstream_read_frame(data + 4, size, f) || fail_senseless(p);
}

/* Wait for the next frame.  False: p->failure */
static bool
receive(BSink *p, BStream *s, BStreamFrame *f, int64_t deadline, const char *doing)
{
	for (;;)
	{
		bool		there;
		short		wait_for;
		int			rc;

		if (!take_frame(p, s, f, &there))
			return false;
		if (there)
			return true;
		rc = fill(p, s, &wait_for);
		if (rc < 0 || (rc == 0 && !await(p, s, wait_for, deadline, doing)))
			return false;
	}
}

/* Entries are confirmed.  False: p->failure */
static bool
take_confirms(BSink *p, BStream *s, BStreamCursor *c)
{
	uint32_t	n;

	(void) bstream_get8(c);
	n = bstream_get32(c);
	for (; n > 0 && !c->bad; n--)
	{
		uint64_t	at = bstream_get64(c) - s->flight_first;

		if (!c->bad && at < BSTREAM_MAX_FLIGHT)
			s->flight &= ~(UINT32_C(1) << at);
	}
	return !c->bad || fail_senseless(p);
}

/* Take a frame that the server sent of itself.  False: p->failure */
static bool
handle(BSink *p, BStream *s, BStreamFrame *f)
{
	BStreamCursor *c = &f->rest;
	char		text[300];
	uint16_t	code;

	switch (f->key)
	{
		case BSTREAM_HEARTBEAT:
		case BSTREAM_DELIVER:	/* of a subscription that has ended */
			return true;
		case BSTREAM_PUBLISH_CONFIRM:
			return take_confirms(p, s, c);
		case BSTREAM_PUBLISH_ERROR:
			(void) bstream_get8(c);
			(void) bstream_get32(c);
			(void) bstream_get64(c);
			return fail_for_code(p, s, bstream_get16(c), "publish");
		case BSTREAM_METADATA_UPDATE:
			code = bstream_get16(c);
			return idem_sink_fail(&p->failure, IDEM_PROTO_OUTAGE, "57P03", "stream \"%.100s\" is gone, or has another leader (code %u)", s->name, code);
		case BSTREAM_CLOSE:
			(void) bstream_get32(c);
			code = bstream_get16(c);
			copy_text(text, sizeof(text), bstream_get_string(c));
			return idem_sink_fail(&p->failure, IDEM_PROTO_OUTAGE, "08006", "the server ends the connection (code %u): %s", code, text);
		case BSTREAM_CREDIT | BSTREAM_IS_ANSWER:
			return true;
		default:
			return fail_senseless(p);
	}
}

/* Send s->out, a request, and wait for its answer.  False: p->failure */
static bool
ask(BSink *p, BStream *s, BStreamKey key, BStreamFrame *f, int64_t deadline, const char *doing)
{
	bstream_end(&s->out);
	if (!send_frame(p, s, deadline, doing))
		return false;
	for (;;)
	{
		if (!receive(p, s, f, deadline, doing))
			return false;
		if (f->key == ((unsigned) key | BSTREAM_IS_ANSWER) && f->correlation == s->correlation)
			break;
		if (!handle(p, s, f))
			return false;
	}
	if (key == BSTREAM_METADATA || f->code == BSTREAM_OK)
		return true;
	return fail_for_code(p, s, f->code, doing);
}

static void
begin_request(BStream *s, BStreamKey key)
{
	bstream_begin_request(&s->out, key, ++s->correlation);
}

static int64_t
deadline_of(const BSink *p)
{
	return idem_sink_clock() + p->config.timeout;
}

/* Connect to an address of the host.  False: p->error is errno */
static bool
connect_address(BStream *s, const struct addrinfo *ai, int64_t deadline)
{
	int			one = 1;
	int			error = 0;
	socklen_t	len = sizeof(error);
	struct pollfd fd = {.events = POLLOUT};
	int64_t		left = deadline - idem_sink_clock();

	s->fd = socket(ai->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (s->fd < 0)
		return false;
	(void) setsockopt(s->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	(void) setsockopt(s->fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));
	fd.fd = s->fd;
	if (connect(s->fd, ai->ai_addr, ai->ai_addrlen) == 0)
		return true;
	if (errno == EINPROGRESS)
	{
		if (left > CONNECT_TIMEOUT)
			left = CONNECT_TIMEOUT;
		if (left <= 0 || poll(&fd, 1, (int) left) != 1)
			error = ETIMEDOUT;
		else if (getsockopt(s->fd, SOL_SOCKET, SO_ERROR, &error, &len) == 0 && error == 0)
			return true;
		errno = error;
	}
	error = errno;
	close(s->fd);
	s->fd = -1;
	errno = error;
	return false;
}

/* Connect to the host.  False: p->failure */
static bool
connect_host(BSink *p, BStream *s, const IdemServer *address, int64_t deadline)
{
	struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
	struct addrinfo *list = NULL;
	char		port[16];
	int			rc;

	bstream_disconnect(s);
	s->peer = *address;
	if (s->peer.port == 0)
		s->peer.port = p->config.tls ? BSTREAM_TLS_PORT : BSTREAM_PORT;
	snprintf(port, sizeof(port), "%d", s->peer.port);
	rc = getaddrinfo(s->peer.host, port, &hints, &list);
	if (rc != 0)
		return idem_sink_fail(&p->failure, IDEM_PROTO_OUTAGE, "08001", "could not look up host \"%s\": %s", s->peer.host, gai_strerror(rc));
	errno = ENOENT;
	for (struct addrinfo *ai = list; ai != NULL && s->fd < 0; ai = ai->ai_next)
		(void) connect_address(s, ai, deadline);
	rc = errno;
	freeaddrinfo(list);
	s->heard = idem_sink_clock();
	if (s->fd < 0)
		return idem_sink_fail(&p->failure, IDEM_PROTO_OUTAGE, "08001", "could not connect to %s:%d: %s", s->peer.host, s->peer.port, strerror(rc));
	return !p->config.tls || bstream_start_tls(p, s, deadline);
}

/* Tell who we are, and log in.  False: p->failure */
static bool
log_in(BSink *p, BStream *s, int64_t deadline)
{
	const BSinkConfig *c = &p->config;
	BStreamFrame f;
	bool		plain = false;
	size_t		user = strlen(c->user);
	size_t		password = strlen(c->password);

	begin_request(s, BSTREAM_PEER_PROPERTIES);
	bstream_put32(&s->out, 2);
	bstream_put_string(&s->out, "product");
	bstream_put_string(&s->out, "idempotency-sink-rabbitmq");
	bstream_put_string(&s->out, "connection_name");
	bstream_put_string(&s->out, c->relay);
	if (!ask(p, s, BSTREAM_PEER_PROPERTIES, &f, deadline, "begin to talk"))
		return false;
	begin_request(s, BSTREAM_SASL_HANDSHAKE);
	if (!ask(p, s, BSTREAM_SASL_HANDSHAKE, &f, deadline, "log in"))
		return false;
	for (uint32_t n = bstream_get32(&f.rest); n > 0 && !f.rest.bad; n--)
	{
		IdemProtoStr name = bstream_get_string(&f.rest);

		plain = plain || (name.len == 5 && memcmp(name.data, "PLAIN", 5) == 0);
	}
	if (!plain)
		return fail_for_code(p, s, 0x07, "log in");
	begin_request(s, BSTREAM_SASL_AUTHENTICATE);
	bstream_put_string(&s->out, "PLAIN");
	bstream_put32(&s->out, (uint32_t) (user + password + 2));
	bstream_put8(&s->out, 0);
	idem_text_add(&s->out, c->user, user);
	bstream_put8(&s->out, 0);
	idem_text_add(&s->out, c->password, password);
	return ask(p, s, BSTREAM_SASL_AUTHENTICATE, &f, deadline, "log in");
}

/* Agree on the limits of the connection.  False: p->failure */
static bool
tune(BSink *p, BStream *s, int64_t deadline)
{
	BStreamFrame f;

	do
		if (!receive(p, s, &f, deadline, "log in"))
			return false;
	while (f.key == BSTREAM_HEARTBEAT);
	if (f.key == BSTREAM_CLOSE)
		return handle(p, s, &f);
	s->frame_max = bstream_get32(&f.rest);
	if (f.key != BSTREAM_TUNE || f.rest.bad)
		return fail_senseless(p);
	if (s->frame_max == 0 || s->frame_max > BSTREAM_MAX_FRAME)
		s->frame_max = BSTREAM_MAX_FRAME;
	if (s->frame_max < MIN_FRAME)
		return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "54000",
							  "the server takes frames of %u bytes only; set stream.frame_max there to %d or more", s->frame_max, MIN_FRAME);
	bstream_begin(&s->out, BSTREAM_TUNE, true);
	bstream_put32(&s->out, s->frame_max);
	bstream_put32(&s->out, (uint32_t) p->config.heartbeat);
	bstream_end(&s->out);
	return send_frame(p, s, deadline, "log in");
}

/* Open the virtual host.  *self: the address by which the server is known.  False: p->failure */
static bool
open_vhost(BSink *p, BStream *s, IdemServer *self, int64_t deadline)
{
	BStreamFrame f;

	memset(self, 0, sizeof(*self));
	begin_request(s, BSTREAM_OPEN);
	bstream_put_string(&s->out, p->config.vhost);
	if (!ask(p, s, BSTREAM_OPEN, &f, deadline, "open the virtual host"))
		return false;
	for (uint32_t n = f.rest.at < f.rest.end ? bstream_get32(&f.rest) : 0; n > 0 && !f.rest.bad; n--)
	{
		IdemProtoStr key = bstream_get_string(&f.rest);
		IdemProtoStr value = bstream_get_string(&f.rest);
		char		text[16];

		if (key.len == 15 && memcmp(key.data, "advertised_host", 15) == 0)
			snprintf(self->host, sizeof(self->host), "%.*s", (int) value.len, value.data);
		else if (key.len == 15 && memcmp(key.data, "advertised_port", 15) == 0)
		{
			snprintf(text, sizeof(text), "%.*s", (int) value.len, value.data);
			self->port = (int) strtol(text, NULL, 10);
		}
	}
	return !f.rest.bad || fail_senseless(p);
}

/* The address of the stream's leader.  False: p->failure */
static bool
find_leader(BSink *p, BStream *s, IdemServer *leader, int64_t deadline)
{
	BStreamFrame f;
	BStreamCursor brokers;
	uint32_t	n;
	uint16_t	code;
	uint16_t	number;

	memset(leader, 0, sizeof(*leader));
	begin_request(s, BSTREAM_METADATA);
	bstream_put32(&s->out, 1);
	bstream_put_string(&s->out, s->name);
	if (!ask(p, s, BSTREAM_METADATA, &f, deadline, "find the stream"))
		return false;
	brokers = f.rest;
	for (n = bstream_get32(&f.rest); n > 0 && !f.rest.bad; n--)
	{
		(void) bstream_get16(&f.rest);
		(void) bstream_get_string(&f.rest);
		(void) bstream_get32(&f.rest);
	}
	(void) bstream_get32(&f.rest);	/* one stream */
	(void) bstream_get_string(&f.rest);
	code = bstream_get16(&f.rest);
	number = bstream_get16(&f.rest);
	if (f.rest.bad)
		return fail_senseless(p);
	if (code != BSTREAM_OK)
		return fail_for_code(p, s, code, "find the stream");
	for (n = bstream_get32(&brokers); n > 0; n--)
	{
		uint16_t	which = bstream_get16(&brokers);
		IdemProtoStr host = bstream_get_string(&brokers);
		uint32_t	port = bstream_get32(&brokers);

		if (which != number)
			continue;
		snprintf(leader->host, sizeof(leader->host), "%.*s", (int) host.len, host.data);
		leader->port = (int) port;
		return true;
	}
	return fail_for_code(p, s, 0x06, "find the stream's leader");
}

/* Connect to this server.  *self: as open_vhost has it.  False: p->failure */
static bool
connect_server(BSink *p, BStream *s, const IdemServer *address, IdemServer *self, int64_t deadline)
{
	return connect_host(p, s, address, deadline) && log_in(p, s, deadline) && tune(p, s, deadline) && open_vhost(p, s, self, deadline);
}

/*
 * Go to the stream's leader.  Where its name leads nowhere from here, behind a proxy for
 * example, the first server passes on what it gets.  False: p->failure
 */
static bool
go_to_leader(BSink *p, BStream *s, const IdemServer *first, IdemServer *self, int64_t deadline)
{
	IdemServer	leader;

	if (!find_leader(p, s, &leader, deadline))
		return false;
	if (self->host[0] == '\0' || (strcmp(leader.host, self->host) == 0 && leader.port == self->port))
		return true;
	if (connect_server(p, s, &leader, self, deadline))
		return true;
	if (!s->told_leader)
		snprintf(s->news, sizeof(s->news), "rabbitmq sink: stays with %s:%d, since the leader of the stream cannot be used: %.200s", first->host,
				 first->port, p->failure.message);
	s->told_leader = true;
	p->failure.outcome = 0;
	return connect_server(p, s, first, self, deadline);
}

/* Declare the publisher.  False: p->failure */
static bool
declare_publisher(BSink *p, BStream *s, int64_t deadline)
{
	BStreamFrame f;

	begin_request(s, BSTREAM_DECLARE_PUBLISHER);
	bstream_put8(&s->out, PUBLISHER);
	bstream_put_string(&s->out, s->publisher);
	bstream_put_string(&s->out, s->name);
	return ask(p, s, BSTREAM_DECLARE_PUBLISHER, &f, deadline, "publish");
}

bool
bstream_connect(BSink *p, BStream *s)
{
	int64_t		deadline = idem_sink_clock() + bsink_start_time(p);

	for (int i = 0; i < p->config.n_servers; i++)
	{
		const IdemServer *address = &p->config.servers[i];
		IdemServer	self;

		/* the next server may do what this one could not */
		p->failure.outcome = 0;
		if (connect_server(p, s, address, &self, deadline) && go_to_leader(p, s, address, &self, deadline) &&
			declare_publisher(p, s, deadline))
			return true;
		bstream_disconnect(s);
		if (p->failure.outcome != IDEM_PROTO_OUTAGE)
			break;
	}
	return false;
}

bool
bstream_publish(BSink *p, BStream *s, uint64_t id)
{
	if (s->flight == 0)
		s->flight_first = id;
	s->flight |= UINT32_C(1) << (id - s->flight_first);
	return send_frame(p, s, deadline_of(p), "publish");
}

bool
bstream_await_confirms(BSink *p, BStream *s)
{
	while (s->flight != 0)
	{
		BStreamFrame f;

		if (!receive(p, s, &f, deadline_of(p), "get the confirms of what was published"))
			return false;
		if (!handle(p, s, &f))
			return false;
	}
	return true;
}

/* Write the request for the sequence of our name. */
static void
write_sequence_request(BStream *s)
{
	begin_request(s, BSTREAM_QUERY_SEQUENCE);
	bstream_put_string(&s->out, s->publisher);
	bstream_put_string(&s->out, s->name);
}

bool
bstream_ask_sequence(BSink *p, BStream *s, uint64_t *id)
{
	BStreamFrame f;

	write_sequence_request(s);
	if (!ask(p, s, BSTREAM_QUERY_SEQUENCE, &f, deadline_of(p), "ask for the last publishing id"))
		return false;
	*id = bstream_get64(&f.rest);
	return !f.rest.bad || fail_senseless(p);
}

/* Begin to read.  False: p->failure */
static bool
subscribe(BSink *p, BStream *s, BStreamFrom from, uint64_t offset)
{
	BStreamFrame f;

	s->subscription++;
	begin_request(s, BSTREAM_SUBSCRIBE);
	bstream_put8(&s->out, s->subscription);
	bstream_put_string(&s->out, s->name);
	bstream_put16(&s->out, (uint16_t) from);
	if (from == BSTREAM_FROM_OFFSET)
		bstream_put64(&s->out, offset);
	bstream_put16(&s->out, from == BSTREAM_FROM_LAST ? 1 : CREDIT);
	bstream_put32(&s->out, 0);
	return ask(p, s, BSTREAM_SUBSCRIBE, &f, deadline_of(p), "read");
}

static bool
unsubscribe(BSink *p, BStream *s)
{
	BStreamFrame f;

	begin_request(s, BSTREAM_UNSUBSCRIBE);
	bstream_put8(&s->out, s->subscription);
	return ask(p, s, BSTREAM_UNSUBSCRIBE, &f, deadline_of(p), "end reading");
}

/* Is the frame a chunk of the subscription?  It is taken; *bad: it makes no sense. */
static bool
is_chunk(BStream *s, BStreamFrame *f, BStreamChunk *chunk, bool *bad)
{
	BStreamCursor c = f->rest;

	*bad = false;
	if (f->key != BSTREAM_DELIVER || bstream_get8(&c) != s->subscription)
		return false;
	*bad = !bstream_read_chunk(&c, chunk);
	return true;
}

/* Let the server send one more chunk.  False: p->failure */
static bool
give_credit(BSink *p, BStream *s)
{
	bstream_begin(&s->out, BSTREAM_CREDIT, false);
	bstream_put8(&s->out, s->subscription);
	bstream_put16(&s->out, 1);
	bstream_end(&s->out);
	return send_frame(p, s, deadline_of(p), "read");
}

bool
bstream_read_from(BSink *p, BStream *s, BStreamFrom from, uint64_t offset, BStreamVisit visit, void *arg)
{
	if (!subscribe(p, s, from, offset))
		return false;
	for (;;)
	{
		BStreamFrame f;
		BStreamChunk chunk;
		bool		bad;

		if (!receive(p, s, &f, deadline_of(p), "read"))
			return false;
		if (is_chunk(s, &f, &chunk, &bad))
		{
			if (bad)
				return fail_senseless(p);
			if (visit(s, &chunk, arg))
				return unsubscribe(p, s);
			if (!give_credit(p, s))
				return false;
		}
		else if (!handle(p, s, &f))
			return false;
	}
}

bool
bstream_read_last(BSink *p, BStream *s, BStreamVisit visit, void *arg, uint64_t *sequence)
{
	bool		visited = false;
	bool		answered = false;

	if (!subscribe(p, s, BSTREAM_FROM_LAST, 0))
		return false;
	write_sequence_request(s);
	bstream_end(&s->out);
	if (!send_frame(p, s, deadline_of(p), "read"))
		return false;

	/*
	 * The server sends a chunk that can be read before it takes the next
	 * request.  A name that has published has a chunk, but it cannot be read
	 * before enough replicas have it.
	 */
	while (!answered || (!visited && *sequence > 0))
	{
		BStreamFrame f;
		BStreamChunk chunk;
		bool		bad;

		if (!receive(p, s, &f, deadline_of(p), "read the last batch"))
			return false;
		if (is_chunk(s, &f, &chunk, &bad))
		{
			if (bad)
				return fail_senseless(p);
			if (!visited)
				(void) visit(s, &chunk, arg);
			visited = true;
		}
		else if (f.key == (BSTREAM_QUERY_SEQUENCE | BSTREAM_IS_ANSWER) && f.correlation == s->correlation)
		{
			if (f.code != BSTREAM_OK)
				return fail_for_code(p, s, f.code, "ask for the last publishing id");
			*sequence = bstream_get64(&f.rest);
			if (f.rest.bad)
				return fail_senseless(p);
			answered = true;
		}
		else if (!handle(p, s, &f))
			return false;
	}
	return unsubscribe(p, s);
}

/* Take the frames that have come while nothing was asked.  False: the connection is no more */
static bool
take_idle_frames(BSink *p, BStream *s)
{
	BStreamFrame f;
	bool		there;
	short		wait_for;
	int			rc;

	while ((rc = fill(p, s, &wait_for)) > 0)
		;
	while (rc == 0 && take_frame(p, s, &f, &there) && there)
		if (!handle(p, s, &f))
			return false;
	return rc == 0 && p->failure.outcome == 0 && idem_sink_clock() - s->heard < p->config.heartbeat * INT64_C(2000);
}

void
bstream_tend(BSink *p, BStream *s)
{
	if (s->fd < 0)
		return;
	bstream_begin(&s->out, BSTREAM_HEARTBEAT, false);
	bstream_end(&s->out);
	if (take_idle_frames(p, s) && send_frame(p, s, idem_sink_clock(), "send a heartbeat"))
		return;

	/*
	 * the next batch connects again, and looks whether the position is where
	 * it was
	 */
	bstream_disconnect(s);
	p->failure.outcome = 0;
}
