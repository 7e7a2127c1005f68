/*-------------------------------------------------------------------------
 *
 * generate.c
 *		A plain load generator: the same request on so many connections, without a
 *		library, to tell what the receiver can take.
 *
 *	generate ADDRESS PORT PATH EVENTS CONNECTIONS PAYLOAD
 *
 * A connection has one request under way.  Answers are not parsed but for their
 * first line: each must be 204, whose end is the end of its headers.  Prints the
 * requests per second between the first tenth and the last one, and the CPU
 * seconds of this process.
 *
 * MEMORY: a buffer per connection.  LOCKING: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		test/bench/generate.c
 *
 *-------------------------------------------------------------------------
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE				/* memmem */
#endif

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "usage.h"

#define MOST	256				/* connections */

typedef struct Connection
{
	int			fd;
	size_t		got;
	char		answer[4096];
} Connection;

static struct sockaddr_in address;
static char *request;
static size_t request_len;
static int	epoll_fd;

static void die(const char *what, const char *why) __attribute__((noreturn));

static void
die(const char *what, const char *why)
{
	fprintf(stderr, "generate: %s: %s\n", what, why);
	exit(1);
}

/* A request is smaller than the socket's buffer, which is empty. */
static void
ask(Connection *c)
{
	c->got = 0;
	if (send(c->fd, request, request_len, MSG_NOSIGNAL) != (ssize_t) request_len)
		die("send", strerror(errno));
}

static void
connect_one(Connection *c)
{
	struct epoll_event e = {.events = EPOLLIN,.data.ptr = c};
	int			on = 1;

	c->fd = socket(AF_INET, SOCK_STREAM, 0);
	if (c->fd < 0 || connect(c->fd, (struct sockaddr *) &address, sizeof(address)) != 0)
		die("connect", strerror(errno));
	setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, c->fd, &e) != 0)
		die("epoll_ctl", strerror(errno));
}

/* Is the answer complete?  The receiver may end the connection between two. */
static int
take(Connection *c)
{
	ssize_t		n = recv(c->fd, c->answer + c->got, sizeof(c->answer) - c->got, 0);

	if (n == 0 && c->got == 0)
	{
		close(c->fd);
		connect_one(c);
		ask(c);
		return 0;
	}
	if (n <= 0)
		die("recv", n == 0 ? "the connection ended" : strerror(errno));
	c->got += (size_t) n;
	if (memmem(c->answer, c->got, "\r\n\r\n", 4) == NULL)
		return 0;
	if (memcmp(c->answer, "HTTP/1.1 204", 12) != 0)
		die("answer", "it is not 204");
	return 1;
}

int
main(int argc, char **argv)
{
	static Connection connections[MOST];
	struct epoll_event ready[MOST];
	double		tenth_at = 0;
	double		cpu_before;
	long		events;
	long		begun = 0;
	long		done = 0;
	int			n;

	if (argc != 7)
		die("usage", "generate ADDRESS PORT PATH EVENTS CONNECTIONS PAYLOAD");
	address.sin_family = AF_INET;
	address.sin_port = htons((uint16_t) atoi(argv[2]));
	inet_pton(AF_INET, argv[1], &address.sin_addr);
	events = atol(argv[4]);
	n = atoi(argv[5]);
	if (n < 1 || n > MOST || events < 10)
		die("usage", "CONNECTIONS is 1 to 256, EVENTS 10 or more");
	request_len = (size_t) asprintf(&request, "POST %s HTTP/1.1\r\nHost: %s:%s\r\nContent-Type: application/json\r\n"
									"webhook-id: 00000000-0000-4000-8000-000000000000\r\n"
									"Idempotency-Key: 00000000-0000-4000-8000-000000000000\r\nContent-Length: %zu\r\n\r\n%s",
									argv[3], argv[1], argv[2], strlen(argv[6]), argv[6]);
	epoll_fd = epoll_create1(0);
	cpu_before = cpu();
	for (int i = 0; i < n && begun < events; i++, begun++)
	{
		connect_one(&connections[i]);
		ask(&connections[i]);
	}
	while (done < events)
	{
		int			many = epoll_wait(epoll_fd, ready, MOST, -1);

		for (int i = 0; i < many; i++)
		{
			Connection *c = ready[i].data.ptr;

			if (!take(c))
				continue;
			if (++done == events / 10)
				tenth_at = now();
			if (begun < events)
			{
				ask(c);
				begun++;
			}
		}
	}
	printf("%.1f\t%.6f\n", (double) (events - events / 10) / (now() - tenth_at), cpu() - cpu_before);
	return 0;
}
