/*-------------------------------------------------------------------------
 *
 * connect.c
 *		Connects to the target, within a time, in a thread.
 *
 * The target is not trusted.  PQconnectdb would print the target's notices to
 * standard error, which is the server log, and its timeout never ends while
 * the target keeps talking.  So this file calls PQconnectPoll step by step.
 * PQconnectPoll alone would not give up an address in time and go on to the
 * next address.  Therefore each address of each host is tried as a connection
 * of its own.
 *
 * The steps run in a thread.  They may block: the resolver does, and libpq
 * computes a password's digest with as many rounds as the target asks for.  The
 * thread writes a byte for each address and for each look-up of a host.  If no
 * byte comes for too long, the program ends.
 *
 * INVARIANT
 *		The notice receiver is set before the target's first byte is read.
 *		Each address has connect_timeout seconds, whatever the target sends.
 *
 * LOCKING
 *		The thread and the program share a Connecting.  The program reads it
 *		after joining the thread.
 *
 * MEMORY
 *		Copies of list items live for one attempt.  A Connecting is on the heap,
 *		because a thread that hangs keeps using it until the program ends.
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

#define ITEM_BYTES		1024	/* item of a list: a host, an address, a port */
#define MAX_HOSTS		32
#define MAX_ADDRESSES	16		/* tried per host */
#define MIN_SERVER		120000	/* oldest version of the target's server */
#define STEP_MARGIN		10000	/* ms that a step may take beyond
								 * connect_timeout */

typedef struct Connecting
{
	const PgSinkConfig *config;
	PGconn	   *conn;			/* established, or NULL */
	int			alive;			/* the thread writes a byte for each step, and
								 * closes the pipe at its end */
	char		problem[IDEM_PROTO_MAX_MESSAGE];	/* messages of all
													 * attempts */
} Connecting;

/* An address to try; libpq chooses the parts that are NULL. */
typedef struct Place
{
	const char *host;
	const char *hostaddr;
	const char *port;
} Place;

/*
 * Keep the target's notices out of standard error, which is the server log.  One
 * of them counts: at COMMIT the target stopped waiting for its synchronous
 * standby, because somebody cancelled the wait.  The transaction is committed
 * there, and a failover would lose it.  The message is
 * in the target's language, so the notice is known by the function that sent it,
 * and where a pooler left that out, by its SQLSTATE.
 */
static void
hear_notice(void *arg, const PGresult *res)
{
	PgSink	   *p = arg;
	const char *sqlstate = PQresultErrorField(res, PG_DIAG_SQLSTATE);
	const char *function = PQresultErrorField(res, PG_DIAG_SOURCE_FUNCTION);

	if (p == NULL)
		return;
	if (function != NULL ? strcmp(function, "SyncRepWaitForLSN") == 0 :
		(sqlstate != NULL && strcmp(sqlstate, "01000") == 0))
		p->unreplicated = true;
}

/* The value of a libpq parameter, or NULL. */
static const char *
setting(const PgSinkConfig *c, const char *keyword)
{
	for (int i = 0; c->keywords[i] != NULL; i++)
		if (strcmp(c->keywords[i], keyword) == 0)
			return c->values[i];
	return NULL;
}

/* The milliseconds that each address has. */
static int
connect_timeout(const PgSinkConfig *config)
{
	const char *seconds = setting(config, "connect_timeout");

	/* config.c has a default, which an analyzer of one file does not see. */
	return seconds == NULL ? 0 : (int) strtol(seconds, NULL, 10) * 1000;
}

/* The number of items in a list of libpq, which commas separate. */
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

/*
 * Copy item n of a list to dst; NULL if the item is empty or missing.  A single
 * item counts for every n.
 */
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

/* Append a message to the messages of the attempts before. */
static void
note_problem(Connecting *c, const char *message)
{
	size_t		len = strlen(c->problem);

	snprintf(c->problem + len, sizeof(c->problem) - len, "%s%s", len > 0 ? "; " : "", message);
	len = strlen(c->problem);
	while (len > 0 && c->problem[len - 1] == '\n')
		c->problem[--len] = '\0';
}

/* Tell the program that the thread begins a new step. */
static void
say_alive(const Connecting *c)
{
	ssize_t		rc = write(c->alive, "", 1);

	(void) rc;
}

/* Start a connection to the place with the program's settings. */
static PGconn *
start(const Connecting *c, const Place *place)
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

/* Connect to one address within connect_timeout; true with c->conn. */
static bool
try_place(Connecting *c, const Place *place)
{
	PostgresPollingStatusType step = PGRES_POLLING_WRITING;
	int64_t		deadline = idem_sink_clock() + connect_timeout(c->config);
	PGconn	   *conn = start(c, place);
	bool		in_time = true;

	say_alive(c);
	if (conn == NULL)
	{
		note_problem(c, "out of memory");
		return false;
	}
	PQsetNoticeReceiver(conn, hear_notice, NULL);
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

/* Resolve a host name and try each of its addresses; true with c->conn. */
static bool
try_addresses(Connecting *c, const Place *place)
{
	struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
	struct addrinfo *found = NULL;
	int			rc;
	int			n = 0;
	bool		connected = false;

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
	for (struct addrinfo *a = found; a != NULL && !connected && n < MAX_ADDRESSES; a = a->ai_next, n++)
	{
		char		address[NI_MAXHOST];
		Place		there = {place->host, address, place->port};

		if (getnameinfo(a->ai_addr, a->ai_addrlen, address, sizeof(address), NULL, 0, NI_NUMERICHOST) == 0)
			connected = try_place(c, &there);
	}
	freeaddrinfo(found);
	return connected;
}

/*
 * Does the host name have to be resolved?  A path is a socket's directory, and
 * "@" begins the name of an abstract socket.
 */
static bool
needs_resolver(const Place *place)
{
	return place->hostaddr == NULL && place->host != NULL &&
		place->host[0] != '/' && place->host[0] != '@';
}

/* Do the lists have matching lengths?  If not, libpq writes the message. */
static bool
lists_fit(const char *host, const char *hostaddr, const char *port, int n)
{
	int			hosts = count_items(host);
	int			ports = count_items(port);

	if (n > MAX_HOSTS)
		return false;
	return (count_items(hostaddr) == 0 || hosts == 0 || hosts == n) && (ports <= 1 || ports == n);
}

/* Try the hosts in their order until one takes the connection. */
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

		if (needs_resolver(&place))
			(void) try_addresses(c, &place);
		else
			(void) try_place(c, &place);
	}
}

/*
 * The main function of the thread.  Closing c->alive tells the program its
 * end.
 */
static void *
connect_thread(void *arg)
{
	Connecting *c = arg;

	try_hosts(c);
	close(c->alive);
	return NULL;
}

/* Note that there is no connection. */
static void
note_lost(PgSink *p, const char *message)
{
	PgSinkPending pending = {PGSINK_STEP_FRAME, 0};

	pgsink_note_error(p, pending, true, "08006", message);
}

/* Serve the worker until the thread has ended; false if it hangs. */
static bool
await_thread(PgSink *p, int fd)
{
	int			patience = connect_timeout(&p->config) + STEP_MARGIN;
	char		buf[64];

	do
	{
		if (idem_sink_wait(&p->sink, fd, POLLIN, patience, false) == 0)
			return idem_sink_fail(&p->failure, IDEM_PROTO_OUTAGE, "08001",
								  "could not connect to the target: no progress within %d ms", patience);
	}
	while (read(fd, buf, sizeof(buf)) > 0);
	return true;
}

/*
 * Run the steps in a thread and return the connection.  NULL with p->error if
 * no address took a connection.  NULL with p->failure if the thread hangs: the
 * thread keeps its Connecting, and the program ends.
 */
static PGconn *
run_thread(PgSink *p)
{
	Connecting *c = idem_sink_alloc(sizeof(Connecting));
	PGconn	   *conn;
	pthread_t	thread;
	int			fds[2];

	if (pipe(fds) != 0)
		idem_sink_broken(&p->sink, "could not create a pipe");
	memset(c, 0, sizeof(*c));
	c->config = &p->config;
	c->alive = fds[1];
	if (pthread_create(&thread, NULL, connect_thread, c) != 0)
		idem_sink_broken(&p->sink, "could not create a thread");
	if (!await_thread(p, fds[0]))
		return NULL;
	pthread_join(thread, NULL);
	close(fds[0]);
	conn = c->conn;
	if (conn == NULL)
		note_lost(p, c->problem);
	free(c);
	return conn;
}

/*
 * Check the login and the server.  False: p->failure, or p->error for a server
 * that another try may find as it has to be.
 */
static bool
check_server(PgSink *p)
{
	const char *standby = PQparameterStatus(p->conn, "in_hot_standby");

	/*
	 * A target may trust the operating-system user of our server.  A relay
	 * whose owner may not act as that user must not get in that way.
	 */
	if (p->config.require_password && !PQconnectionUsedPassword(p->conn))
		return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "2F003",
							  "the target did not ask for a password, but the relay's owner is not a superuser; change the target's authentication method");
	if (PQserverVersion(p->conn) < MIN_SERVER)
		return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "0A000",
							  "the target's server is older than version %d", MIN_SERVER / 10000);

	/* Servers before 14 do not say it; their BEGIN fails, see pgsink_blame. */
	if (standby != NULL && strcmp(standby, "on") == 0)
	{
		note_lost(p, "the target is a standby, in recovery");
		pgsink_disconnect(p);
		return false;
	}
	return true;
}

bool
pgsink_connect(PgSink *p)
{
	pgsink_disconnect(p);
	pgsink_forget_error(p);
	p->conn = run_thread(p);
	p->unreplicated = false;
	if (p->conn == NULL || !check_server(p))
		return false;
	PQsetNoticeReceiver(p->conn, hear_notice, p);
	if (PQsetnonblocking(p->conn, 1) != 0 || PQenterPipelineMode(p->conn) != 1)
	{
		note_lost(p, PQerrorMessage(p->conn));
		pgsink_disconnect(p);
		return false;
	}
	return true;
}
