/*-------------------------------------------------------------------------
 *
 * connect.c
 *		Opens a connection to the target, within a time, in a thread.
 *
 * The target is not trusted.  PQconnectdb would print its notices to standard
 * error, which is the server log, and measures its timeout by silence: a target
 * that keeps talking is never given up.  So the connection is driven step by
 * step here.  libpq does not go on to the next address by itself when driven
 * from outside: each host of the list, and each address of a host, is tried as a
 * connection of its own.
 *
 * The steps run in a thread, because the resolver blocks, and libpq computes a
 * password's digest with as many rounds as the target asks for.  The thread
 * writes a byte before each of its steps; the program gives up when none
 * comes for too long.
 *
 * INVARIANT
 *		The notice receiver is set before the target's first byte is read.
 *		Each address has connect_timeout seconds, whatever the target sends.
 *
 * LOCKING
 *		The thread and the program share a Connecting, which the program reads
 *		after joining the thread.
 *
 * MEMORY
 *		Copies of list items live for one attempt, the connection is the caller's.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/postgres/connect.c
 *
 *-------------------------------------------------------------------------
 */
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "sink/postgres/sink.h"

#define ITEM_BYTES		1024	/* of a list: a host, an address, a port */
#define MAX_HOSTS		32
#define MAX_ADDRESSES	16		/* of a host */
#define STEP_MARGIN		10000	/* ms that a step may take beyond its timeout */

typedef struct Connecting
{
	const PgConfig *config;
	PGconn	   *conn;			/* open, or NULL */
	int			alive;			/* a byte for each step; closed when it is
								 * over */
	char		problem[IDEM_PROTO_MAX_MESSAGE];	/* of all attempts */
} Connecting;

/* A connection to try; NULL leaves a part to libpq. */
typedef struct Place
{
	const char *host;
	const char *hostaddr;
	const char *port;
} Place;

static void
ignore_notice(void *arg, const PGresult *res)
{
	(void) arg;
	(void) res;
}

static const char *
setting(const PgConfig *c, const char *keyword)
{
	for (int i = 0; c->keywords[i] != NULL; i++)
		if (strcmp(c->keywords[i], keyword) == 0)
			return c->values[i];
	return NULL;
}

static int
count_items(const char *list)
{
	int			n = 1;

	if (list == NULL || list[0] == '\0')
		return 0;
	for (; *list; list++)
		n += *list == ',';
	return n;
}

/* Item n of a list, NULL if it is empty or missing; a list of one is for all. */
static const char *
item(const char *list, int n, char *dst)
{
	size_t		len;

	if (count_items(list) <= 1)
		n = 0;
	for (; list != NULL && n > 0; n--)
		list = (list = strchr(list, ',')) != NULL ? list + 1 : NULL;
	if (list == NULL)
		return NULL;
	len = strcspn(list, ",");
	if (len == 0 || len >= ITEM_BYTES)
		return NULL;
	memcpy(dst, list, len);
	dst[len] = '\0';
	return dst;
}

/* Add a line of libpq to what is said if no attempt succeeds. */
static void
note_problem(Connecting *c, const char *message)
{
	size_t		len = strlen(c->problem);

	snprintf(c->problem + len, sizeof(c->problem) - len, "%s%s", len > 0 ? "; " : "", message);
	len = strlen(c->problem);
	while (len > 0 && c->problem[len - 1] == '\n')
		c->problem[--len] = '\0';
}

static void
say_alive(const Connecting *c)
{
	ssize_t		rc = write(c->alive, "", 1);

	(void) rc;
}

/* Begin a connection to that place: the settings with its host, address, port. */
static PGconn *
begin(const Connecting *c, const Place *place)
{
	static const char *const own[] = {"host", "hostaddr", "port"};
	const char *const theirs[] = {place->host, place->hostaddr, place->port};
	const char *keywords[40];
	const char *values[40];
	int			n = 0;

	for (int i = 0; c->config->keywords[i] != NULL; i++)
	{
		bool		skip = false;

		for (int j = 0; j < 3; j++)
			skip |= strcmp(c->config->keywords[i], own[j]) == 0;
		if (skip)
			continue;
		keywords[n] = c->config->keywords[i];
		values[n++] = c->config->values[i];
	}
	for (int j = 0; j < 3; j++)
	{
		keywords[n] = own[j];
		values[n++] = theirs[j];
	}
	keywords[n] = values[n] = NULL;
	return PQconnectStartParams(keywords, values, 0);
}

/* Wait until libpq can take its next step; false when the time is up. */
static bool
wait_for_step(PGconn *conn, PostgresPollingStatusType step, int64_t deadline)
{
	for (;;)
	{
		struct pollfd p = {PQsocket(conn), step == PGRES_POLLING_READING ? POLLIN : POLLOUT, 0};
		int64_t		left = deadline - idem_sink_clock();

		if (left <= 0)
			return false;
		if (poll(&p, 1, (int) left) > 0)
			return true;
	}
}

/* One connection, within connect_timeout; true if it is open. */
static bool
try_place(Connecting *c, const Place *place)
{
	PostgresPollingStatusType step = PGRES_POLLING_WRITING;
	int64_t		deadline = idem_sink_clock() + pg_connect_timeout(c->config);
	PGconn	   *conn = begin(c, place);
	bool		in_time = true;

	say_alive(c);
	if (conn == NULL)
	{
		note_problem(c, "out of memory");
		return false;
	}
	PQsetNoticeReceiver(conn, ignore_notice, NULL);
	if (PQstatus(conn) == CONNECTION_BAD)
		step = PGRES_POLLING_FAILED;
	while (step != PGRES_POLLING_OK && step != PGRES_POLLING_FAILED &&
		   (in_time = wait_for_step(conn, step, deadline)))
		step = PQconnectPoll(conn);
	if (step == PGRES_POLLING_OK)
	{
		c->conn = conn;
		return true;
	}
	note_problem(c, in_time ? PQerrorMessage(conn) :
				 "the target did not complete a connection within connect_timeout");
	PQfinish(conn);
	return false;
}

/* Each address of a host name. */
static bool
try_addresses(Connecting *c, const Place *place)
{
	struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
	struct addrinfo *found = NULL;
	int			rc;
	int			n = 0;
	bool		open = false;

	say_alive(c);
	rc = getaddrinfo(place->host, NULL, &hints, &found);
	if (rc != 0)
	{
		char		text[ITEM_BYTES + 256];

		snprintf(text, sizeof(text), "could not translate host name \"%s\" to address: %s",
				 place->host, gai_strerror(rc));
		note_problem(c, text);
		return false;
	}
	for (struct addrinfo *a = found; a != NULL && !open && n < MAX_ADDRESSES; a = a->ai_next, n++)
	{
		char		address[NI_MAXHOST];
		Place		there = {place->host, address, place->port};

		if (getnameinfo(a->ai_addr, a->ai_addrlen, address, sizeof(address), NULL, 0, NI_NUMERICHOST) == 0)
			open = try_place(c, &there);
	}
	freeaddrinfo(found);
	return open;
}

/* A path is a socket's directory; "@" begins one that no directory holds. */
static bool
is_name(const Place *place)
{
	return place->hostaddr == NULL && place->host != NULL &&
		place->host[0] != '/' && place->host[0] != '@';
}

/* Do the lists belong together?  If not, libpq says so in its words. */
static bool
lists_fit(const char *host, const char *hostaddr, const char *port, int n)
{
	int			hosts = count_items(host);
	int			ports = count_items(port);

	if (n > MAX_HOSTS)
		return false;
	return (count_items(hostaddr) == 0 || hosts == 0 || hosts == n) && (ports <= 1 || ports == n);
}

static void
try_hosts(Connecting *c)
{
	const char *host = setting(c->config, "host");
	const char *hostaddr = setting(c->config, "hostaddr");
	const char *port = setting(c->config, "port");
	int			n = count_items(hostaddr) > 0 ? count_items(hostaddr) : count_items(host);

	n = n > 0 ? n : 1;
	if (!lists_fit(host, hostaddr, port, n))
	{
		Place		all = {host, hostaddr, port};

		(void) try_place(c, &all);
		return;
	}
	for (int i = 0; i < n && c->conn == NULL; i++)
	{
		char		buf[3][ITEM_BYTES];
		Place		place = {item(host, i, buf[0]), item(hostaddr, i, buf[1]), item(port, i, buf[2])};

		if (is_name(&place))
			(void) try_addresses(c, &place);
		else
			(void) try_place(c, &place);
	}
}

static void *
connect_thread(void *arg)
{
	Connecting *c = arg;

	try_hosts(c);
	close(c->alive);
	return NULL;
}

/* Serve the worker until the thread has ended; the end if it hangs. */
static void
await_thread(PgSink *p, int fd)
{
	int			patience = pg_connect_timeout(&p->config) + STEP_MARGIN;
	char		buf[64];

	do
	{
		if (idem_sink_wait(&p->sink, fd, POLLIN, patience, false) == 0)
			idem_sink_failed(&p->sink, IDEM_PROTO_OUTAGE, "08001",
							 "could not connect to the target: no progress within %d ms", patience);
	}
	while (read(fd, buf, sizeof(buf)) > 0);
}

int
pg_connect_timeout(const PgConfig *config)
{
	const char *seconds = setting(config, "connect_timeout");

	return (int) strtol(seconds, NULL, 10) * 1000;
}

PGconn *
pg_open(PgSink *p, char *problem, size_t cap)
{
	Connecting	c = {.config = &p->config};
	pthread_t	thread;
	int			fds[2];

	if (pipe(fds) != 0)
		idem_sink_broken(&p->sink, "could not create a pipe");
	c.alive = fds[1];
	if (pthread_create(&thread, NULL, connect_thread, &c) != 0)
		idem_sink_broken(&p->sink, "could not create a thread");
	await_thread(p, fds[0]);
	pthread_join(thread, NULL);
	close(fds[0]);
	snprintf(problem, cap, "%s", c.problem);
	return c.conn;
}
