/*-------------------------------------------------------------------------
 *
 * produce_stream.c
 *		A producer of RabbitMQ's stream protocol, for which Debian has no library in C:
 *		sends events from memory as messages of the form that the rabbitmq sink makes.
 *
 *	produce_stream ADDRESS:PORT STREAM EVENTS PAYLOAD
 *
 * What is printed: produce.h.  The fastest way that the protocol has: a frame has one
 * entry, and the entry has a thousand messages, not compressed.  So many frames as the
 * server may hold back are not yet confirmed.  Frames that are neither a confirm nor an
 * answer are passed over.
 *
 * MEMORY: one frame each way.  LOCKING: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		test/bench/produce_stream.c
 *
 *-------------------------------------------------------------------------
 */
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <sys/socket.h>
#include <unistd.h>

#include "produce.h"

#define PER_ENTRY	1000
#define IN_FLIGHT	10			/* entries */
#define FRAME_MAX	1048576
#define ANSWER		0x8000

enum
{
	DECLARE = 1, PUBLISH = 2, CONFIRM = 3, PEER = 17, HANDSHAKE = 18, AUTHENTICATE = 19, TUNE = 20, OPEN = 21
};

static uint8_t out[2 * FRAME_MAX];
static size_t n_out;
static uint8_t in[2 * FRAME_MAX];
static int	fd;

static void
put(uint64_t value, int bytes)
{
	while (bytes-- > 0)
		out[n_out++] = (uint8_t) (value >> (8 * bytes));
}

static void
put_bytes(const void *data, size_t len)
{
	memcpy(out + n_out, data, len);
	n_out += len;
}

static void
put_string(const char *text)
{
	put(strlen(text), 2);
	put_bytes(text, strlen(text));
}

static uint64_t
get(const uint8_t *at, int bytes)
{
	uint64_t	value = 0;

	while (bytes-- > 0)
		value = value << 8 | *at++;
	return value;
}

/* Write the number at a place that was left open. */
static void
patch(size_t at, uint64_t value, int bytes)
{
	size_t		end = n_out;

	n_out = at;
	put(value, bytes);
	n_out = end;
}

static void
begin_frame(int key)
{
	n_out = 0;
	put(0, 4);
	put((uint64_t) key, 2);
	put(1, 2);
}

static void
send_frame(void)
{
	patch(0, n_out - 4, 4);
	for (size_t at = 0; at < n_out;)
	{
		ssize_t		n = write(fd, out + at, n_out - at);

		if (n < 0)
			die("write", strerror(errno));
		at += (size_t) n;
	}
}

static void
read_bytes(uint8_t *to, size_t len)
{
	while (len > 0)
	{
		ssize_t		n = read(fd, to, len);

		if (n <= 0)
			die("read", n == 0 ? "the server has closed the connection" : strerror(errno));
		to += n;
		len -= (size_t) n;
	}
}

/* Read a frame; its key.  The body is behind key and version. */
static int
read_frame(const uint8_t **body)
{
	uint8_t		head[4];
	size_t		len;

	read_bytes(head, 4);
	len = get(head, 4);
	if (len < 4 || len > sizeof(in))
		die("read", "a frame of a wrong length");
	read_bytes(in, len);
	*body = in + 4;
	return (int) get(in, 2);
}

/* Send the request and wait for its answer. */
static void
ask(const char *what, int key)
{
	const uint8_t *body;

	send_frame();
	while (read_frame(&body) != (key | ANSWER))
		;
	if (get(body + 4, 2) != 1)
		die(what, "the server refused it");
}

static void
begin_request(int key)
{
	begin_frame(key);
	put(1, 4);
}

static void
log_in(const char *stream)
{
	begin_request(PEER);
	put(0, 4);
	ask("peer properties", PEER);
	begin_request(HANDSHAKE);
	ask("handshake", HANDSHAKE);
	begin_request(AUTHENTICATE);
	put_string("PLAIN");
	put(12, 4);
	put_bytes("\0admin\0admin", 12);
	ask("log in", AUTHENTICATE);
	begin_frame(TUNE | ANSWER);
	put(FRAME_MAX, 4);
	put(0, 4);
	send_frame();
	begin_request(OPEN);
	put_string("/");
	ask("open", OPEN);
	begin_request(DECLARE);
	put(1, 1);
	put_string("");
	put_string(stream);
	ask(stream, DECLARE);
}

/* Add a text of AMQP 1.0, of less than 256 bytes. */
static void
put_text(const char *text)
{
	put(0xA1, 1);
	put(strlen(text), 1);
	put_bytes(text, strlen(text));
}

static size_t
begin_compound(uint8_t section, uint8_t constructor)
{
	put(0x0053, 2);
	put(section, 1);
	put(constructor, 1);
	put(0, 4);
	put(0, 4);
	return n_out - 8;
}

static void
end_compound(size_t at, uint32_t count)
{
	patch(at, n_out - at - 4, 4);
	patch(at + 4, count, 4);
}

/* Add the message of an event: properties, application properties, data. */
static void
put_message(long n)
{
	size_t		begin = n_out;
	size_t		at;
	char		id[PRODUCE_ID];
	char		key[24];

	produce_id(id, n);
	snprintf(key, sizeof(key), "%ld", n % PRODUCE_KEYS);
	put(0, 4);
	at = begin_compound(0x73, 0xD0);
	put_text(id);
	for (int i = 0; i < 5; i++)
		put(0x40, 1);
	put(0xA3, 1);
	put(16, 1);
	put_bytes("application/json", 16);
	put(0x4040, 2);
	put(0x83, 1);
	put(1796000000000, 8);
	end_compound(at, 10);
	at = begin_compound(0x74, 0xD1);
	put_text("event_type");
	put_text("OrderCreated");
	put_text("aggregate_type");
	put_text("order");
	put_text("aggregate_id");
	put_text(key);
	end_compound(at, 6);
	put(0x005375B0, 4);
	put(strlen(payload), 4);
	put_bytes(payload, strlen(payload));
	patch(begin, n_out - begin - 4, 4);
}

/* Send an entry of so many events; its publishing id is that of its first event. */
static void
send_entry(long first, long count)
{
	size_t		begin;

	begin_frame(PUBLISH);
	put(1, 1);
	put(1, 4);
	put((uint64_t) first, 8);
	put(0x80, 1);
	put((uint64_t) count, 2);
	begin = n_out + 8;
	put(0, 8);
	for (long n = first; n < first + count; n++)
		put_message(n);
	patch(begin - 8, n_out - begin, 4);
	patch(begin - 4, n_out - begin, 4);
	if (n_out > FRAME_MAX)
		die("usage", "PAYLOAD is too long");
	send_frame();
}

static long
count_of(long first)
{
	return events - first < PER_ENTRY ? events - first : PER_ENTRY;
}

/* Wait for confirms. */
static void
take(void)
{
	const uint8_t *body;
	int			key = read_frame(&body);

	if (key != CONFIRM)
		return;
	for (uint64_t i = 0; i < get(body + 1, 4); i++)
		produce_answered(count_of((long) get(body + 5 + 8 * i, 8)));
}

int
main(int argc, char **argv)
{
	int			port = produce_arguments(argc, argv);
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
	struct addrinfo *found;
	char		service[16];
	int			on = 1;

	snprintf(service, sizeof(service), "%d", port);
	if (strlen(payload) > 900 || getaddrinfo(argv[1], service, &hints, &found) != 0)
		die("usage", "PAYLOAD is too long, or there is no such address");
	fd = socket(found->ai_family, SOCK_STREAM, 0);
	if (fd < 0 || connect(fd, found->ai_addr, found->ai_addrlen) != 0)
		die("connect", strerror(errno));
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	freeaddrinfo(found);
	log_in(argv[2]);
	produce_begin();
	for (long n = 0; answered < events;)
	{
		if (n < events && n - answered < PER_ENTRY * IN_FLIGHT)
		{
			send_entry(n, count_of(n));
			n += count_of(n);
		}
		else
			take();
	}
	produce_report();
	close(fd);
	return 0;
}
