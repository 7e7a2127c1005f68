/*-------------------------------------------------------------------------
 *
 * connect.c
 *		A connection to a server, and requests with their answers.
 *
 * A request is written as the server's protocol has it, and sent in one piece.  hiredis
 * is used in its blocking form, in a helper thread: looking a name up, TLS, and the wait
 * for an answer need no loops of our own.
 *
 * INVARIANT
 *		A connection of which an answer is missing is not used again: rsink_ask
 *		returns RSINK_LOST and the connection is gone.  The request may still reach
 *		the server.
 *
 * MEMORY
 *		hiredis copies the request, so a batch is in memory three times for a
 *		moment.  LOCKING: see sink.h.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/redis/connect.c
 *
 *-------------------------------------------------------------------------
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "sink/redis/sink.h"

/* Most time for a connection's beginning, in ms: the next server may answer */
#define CONNECT_TIMEOUT	5000

/* What a job has beyond the timeouts of its system calls, in ms */
#define GRACE	5000

/* A job, and what it gives back.  A job that is late still uses it. */
static struct
{
	RSink	   *p;
	const IdemServer *address;
	IdemText	head;
	const IdemText *rest;
	redisReply *reply;
	char		error[512];
}			work;

static void
set_timeout(struct timeval *tv, int ms)
{
	tv->tv_sec = ms / 1000;
	tv->tv_usec = ms % 1000 * 1000;
}

/* Note why the connection does not work. */
static bool
note_error(const redisContext *conn)
{
	snprintf(work.error, sizeof(work.error), "%s",
			 conn == NULL ? "out of memory" :
			 conn->err == REDIS_ERR_IO && (errno == EAGAIN || errno == ETIMEDOUT) ? "no answer in time" :
			 conn->errstr[0] != '\0' ? conn->errstr : "connection is broken");
	return false;
}

/* The job: connect. */
static bool
run_connect(void *arg)
{
	RSink	   *p = arg;
	struct timeval tv;

	set_timeout(&tv, p->config.timeout < CONNECT_TIMEOUT ? p->config.timeout : CONNECT_TIMEOUT);
	p->conn = redisConnectWithTimeout(work.address->host, work.address->port, tv);
	if (p->conn == NULL || p->conn->err != 0)
		return note_error(p->conn);
	set_timeout(&tv, p->config.timeout);
	if (redisSetTimeout(p->conn, tv) != REDIS_OK)
		return note_error(p->conn);
	redisEnableKeepAlive(p->conn);
	return !p->config.tls || rsink_start_tls(p, work.error, sizeof(work.error));
}

/* The job: send the request and read its answer. */
static bool
run_ask(void *arg)
{
	RSink	   *p = arg;
	void	   *reply = NULL;

	errno = 0;
	if (redisAppendFormattedCommand(p->conn, work.head.data, work.head.len) != REDIS_OK ||
		(work.rest->len > 0 && redisAppendFormattedCommand(p->conn, work.rest->data, work.rest->len) != REDIS_OK) ||
		redisGetReply(p->conn, &reply) != REDIS_OK || reply == NULL)
		return note_error(p->conn);
	work.reply = reply;
	return true;
}

/* Run a job; the program ends if the job does not. */
static bool
run(RSink *p, IdemJob job, int timeout, const char *doing)
{
	IdemJobEnd	end;

	work.p = p;
	work.error[0] = '\0';
	end = idem_intake_run(&p->in, job, p, timeout + GRACE);
	if (end == IDEM_JOB_LATE)
		idem_sink_failed(&p->sink, IDEM_PROTO_OUTAGE, "08006", "could not %s within %d ms", doing, timeout + GRACE);
	if (end != IDEM_JOB_DONE)
		memcpy(p->error, work.error, sizeof(p->error));
	return end == IDEM_JOB_DONE;
}

void
rsink_disconnect(RSink *p)
{
	if (p->reply != NULL)
		freeReplyObject(p->reply);
	p->reply = NULL;
	if (p->conn != NULL)
		redisFree(p->conn);
	p->conn = NULL;
	rsink_end_tls(p);
}

bool
rsink_connect(RSink *p, const IdemServer *address)
{
	rsink_disconnect(p);
	p->peer = *address;
	work.address = &p->peer;
	/* the system's lookup of a name has a time of its own */
	if (run(p, run_connect, p->config.timeout * 2, "connect to the server"))
		return true;
	rsink_disconnect(p);
	return false;
}

/* Add an argument as the protocol has it. */
static void
add_bulk(IdemText *t, const void *data, size_t len)
{
	char		size[32];

	idem_text_add(t, size, (size_t) snprintf(size, sizeof(size), "$%zu\r\n", len));
	idem_text_add(t, data, len);
	idem_text_add(t, "\r\n", 2);
}

void
rsink_add(RSinkRequest *r, const void *data, size_t len)
{
	add_bulk(&r->text, data, len);
	r->args++;
}

void
rsink_add_text(RSinkRequest *r, const char *text)
{
	rsink_add(r, text, strlen(text));
}

void
rsink_add_number(RSinkRequest *r, int64_t number)
{
	char		text[32];

	snprintf(text, sizeof(text), "%lld", (long long) number);
	rsink_add_text(r, text);
}

RSinkAnswer
rsink_ask(RSink *p, const char *const *head, int n_head, const RSinkRequest *rest, int timeout)
{
	static const RSinkRequest nothing;
	char		size[32];

	if (rest == NULL)
		rest = &nothing;
	if (p->reply != NULL)
		freeReplyObject(p->reply);
	p->reply = NULL;
	if (p->conn == NULL)
	{
		snprintf(p->error, sizeof(p->error), "the server has closed the connection");
		return RSINK_LOST;
	}
	work.head.len = 0;
	idem_text_add(&work.head, size, (size_t) snprintf(size, sizeof(size), "*%u\r\n", rest->args + (unsigned) n_head));
	for (int i = 0; i < n_head; i++)
		add_bulk(&work.head, head[i], strlen(head[i]));
	work.rest = &rest->text;
	work.reply = NULL;
	if (!run(p, run_ask, timeout, "get an answer of the server"))
	{
		rsink_disconnect(p);
		return RSINK_LOST;
	}
	p->reply = work.reply;
	if (p->reply->type != REDIS_REPLY_ERROR)
		return RSINK_ANSWERED;
	snprintf(p->error, sizeof(p->error), "%s", p->reply->str);
	return RSINK_REFUSED;
}

bool
rsink_is_lost(RSink *p)
{
	char		byte;

	/* between two requests the server has nothing to say */
	return p->conn == NULL || recv(p->conn->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) >= 0 ||
		(errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

const char *
rsink_element(const RSink *p, size_t n)
{
	const redisReply *r = p->reply;

	if (r == NULL || r->type != REDIS_REPLY_ARRAY || n >= r->elements || r->element[n] == NULL ||
		r->element[n]->str == NULL)
		return "";
	return r->element[n]->str;
}
