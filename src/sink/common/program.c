/*-------------------------------------------------------------------------
 *
 * program.c
 *		Buffers, waiting and ending of a sink program.
 *
 * Frames of the worker are checked as soon as they are read, before the program
 * takes them.  So a PING behind ten thousand events is answered at once, and a
 * breach of the protocol is found early.
 *
 * A crash leaves nothing: the program owns no file and no process.
 *
 * LOCKING
 *		None, and no signal handlers.  A program may have threads, but only its
 *		main thread uses the buffers and the socket.  The program ends by _exit,
 *		which runs no exit handlers: the handlers could belong to a library that
 *		a thread is using.
 *
 * MEMORY
 *		See program.h.  Outgoing frames wait in a buffer that grows.  The buffer
 *		stays small, because the worker reads while it writes, and because
 *		results are small beside events.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/common/program.c
 *
 *-------------------------------------------------------------------------
 */
#include "sink/common/program.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "sink/common/stream.h"

#define WORKER_FD		0
#define READ_SIZE		(256 * 1024)	/* room for each read */
#define OUT_SIZE		(64 * 1024)
#define FLUSH_TIMEOUT	5000	/* ms to send the last frames in */

void *
idem_sink_alloc(size_t size)
{
	return idem_sink_realloc(NULL, size);
}

void *
idem_sink_realloc(void *p, size_t size)
{
	p = realloc(p, size > 0 ? size : 1);
	if (p == NULL)
	{
		static const char msg[] = "idempotency sink: out of memory\n";
		ssize_t		rc = write(2, msg, sizeof(msg) - 1);

		(void) rc;
		_exit(IDEM_SINK_EXIT_BROKEN);
	}
	return p;
}

char *
idem_sink_strdup(const char *data, size_t len)
{
	char	   *s = idem_sink_alloc(len + 1);

	if (len > 0)
		memcpy(s, data, len);
	s[len] = '\0';
	return s;
}

int64_t
idem_sink_clock(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (int64_t) ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

void
idem_sink_broken(const IdemSink *s, const char *fmt,...)
{
	va_list		ap;

	fprintf(stderr, "idempotency-sink-%s: ", s->name);
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputc('\n', stderr);
	_exit(IDEM_SINK_EXIT_BROKEN);
}

/*
 * No setting may come from the environment of the server: libraries would find
 * passwords, proxies and key files there.  HOME is a directory that does not
 * exist, because without HOME some libraries take the home directory from the
 * password file.  Without the other two, Kerberos takes the tickets and keys of
 * the server's user from /tmp and /etc: a target may ask libpq for such a login.
 */
static void
forget_environment(const IdemSink *s)
{
	if (clearenv() != 0 || setenv("HOME", "/nonexistent", 1) != 0 ||
		setenv("KRB5CCNAME", "/nonexistent/tickets", 1) != 0 ||
		setenv("KRB5_CLIENT_KTNAME", "/nonexistent/keytab", 1) != 0)
		idem_sink_broken(s, "could not clear the environment");
}

void
idem_sink_start(IdemSink *s, const char *name)
{
	int			type = 0;
	socklen_t	len = sizeof(type);
	int			flags;

	memset(s, 0, sizeof(*s));
	s->name = name;
	forget_environment(s);
	signal(SIGPIPE, SIG_IGN);
	signal(SIGINT, SIG_IGN);	/* pg_cancel_backend reaches the whole group */
	signal(SIGTERM, SIG_DFL);

	if (getsockopt(WORKER_FD, SOL_SOCKET, SO_TYPE, &type, &len) != 0 ||
		type != SOCK_STREAM)
		idem_sink_broken(s, "descriptor 0 is no stream socket; this program is started by a relay of the extension \"idempotency\"");
	flags = fcntl(WORKER_FD, F_GETFL);
	if (flags < 0 || fcntl(WORKER_FD, F_SETFL, flags | O_NONBLOCK) != 0)
		idem_sink_broken(s, "could not set up descriptor 0: %s", strerror(errno));

	s->in_size = 2 * READ_SIZE;
	s->in = idem_sink_alloc(s->in_size);
	s->out_size = OUT_SIZE;
	s->out = idem_sink_alloc(s->out_size);
	/* READY sets the credit: until then no EVENT may come. */
	idem_stream_init(&s->stream);
	IDEM_SINK_FAULT_POINT(s, "program-started");
}

/*
 * Make room for a read.  The buffer grows unless its first half is taken: then
 * the bytes that are not taken move to the front.
 */
static void
make_room(IdemSink *s)
{
	if (s->in_start == s->in_end)
		s->in_start = s->in_scanned = s->in_end = 0;
	if (s->in_size - s->in_end >= READ_SIZE)
		return;
	if (s->in_start >= s->in_size / 2)
	{
		memmove(s->in, s->in + s->in_start, s->in_end - s->in_start);
		s->in_scanned -= s->in_start;
		s->in_end -= s->in_start;
		s->in_start = 0;
	}
	else
	{
		s->in_size *= 2;
		s->in = idem_sink_realloc(s->in, s->in_size);
	}
}

/* Check the frames that became complete, and answer the PINGs among them. */
static void
scan(IdemSink *s)
{
	IdemProtoFrame frame;
	size_t		size;
	IdemProtoStatus status;

	while ((status = idem_proto_next(IDEM_PROTO_FROM_WORKER, s->in + s->in_scanned,
									 s->in_end - s->in_scanned, &frame, &size)) == IDEM_PROTO_OK)
	{
		const char *problem = idem_stream_check(&s->stream, &frame, size);

		if (problem != NULL)
			idem_sink_broken(s, "protocol error: %s", problem);
		if (frame.type == IDEM_PROTO_PING)
		{
			frame.type = IDEM_PROTO_PONG;
			idem_sink_send(s, &frame);
		}
		s->in_scanned += size;
	}
	/* idem_sink_hello answers a HELLO of another version. */
	if (status == IDEM_PROTO_ERR_VERSION && !s->stream.said_hello)
		return;
	if (status != IDEM_PROTO_NEED_MORE)
		idem_sink_broken(s, "protocol error: %s", idem_proto_status_text(status));
}

/* Read once without waiting; false if the worker is gone. */
static bool
read_input(IdemSink *s)
{
	ssize_t		n;

	make_room(s);
	do
		n = read(WORKER_FD, s->in + s->in_end, s->in_size - s->in_end);
	while (n < 0 && errno == EINTR);
	if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
		return true;
	if (n <= 0)
		return false;			/* end of file or a reset */
	s->in_end += (size_t) n;
	scan(s);
	IDEM_SINK_FAULT_POINT(s, "program-input-read");
	return true;
}

/* Write without waiting; false if the worker is gone. */
static bool
write_output(IdemSink *s)
{
	while (s->out_start < s->out_end)
	{
		ssize_t		n = write(WORKER_FD, s->out + s->out_start,
							  s->out_end - s->out_start);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
			return true;
		if (n < 0)
			return false;
		s->out_start += (size_t) n;
	}
	s->out_start = s->out_end = 0;
	IDEM_SINK_FAULT_POINT(s, "program-output-written");
	return true;
}

short
idem_sink_wait(IdemSink *s, int fd, short events, int timeout, bool until_input)
{
	int64_t		deadline = timeout >= 0 ? idem_sink_clock() + timeout : 0;

	for (;;)
	{
		struct pollfd p[2] = {{WORKER_FD, POLLIN, 0}, {fd, events, 0}};
		int64_t		left = timeout < 0 ? -1 : deadline - idem_sink_clock();
		int			rc;

		if (!write_output(s))
			_exit(IDEM_SINK_EXIT_OK);
		if (s->out_start < s->out_end)
			p[0].events |= POLLOUT;
		if (timeout >= 0 && left < 0)
			left = 0;
		rc = poll(p, 2, (int) left);
		if (rc < 0 && errno != EINTR)
			idem_sink_broken(s, "could not poll: %s", strerror(errno));
		if (rc <= 0)
		{
			if (rc == 0 && timeout >= 0 && idem_sink_clock() >= deadline)
				return 0;
			continue;
		}
		if ((p[0].revents & (POLLIN | POLLHUP | POLLERR)) && !read_input(s))
			_exit(IDEM_SINK_EXIT_OK);
		if (p[1].revents)
			return p[1].revents;
		if (until_input && (p[0].revents & POLLIN))
		{
			/*
			 * Send the PONGs of this read now: the caller may not come back
			 * for long.
			 */
			if (!write_output(s))
				_exit(IDEM_SINK_EXIT_OK);
			return 0;
		}
	}
}

bool
idem_sink_poll(IdemSink *s, IdemProtoFrame *frame, size_t *size)
{
	size_t		used;

	while (s->in_start < s->in_scanned)
	{
		if (idem_proto_next(IDEM_PROTO_FROM_WORKER, s->in + s->in_start,
							s->in_scanned - s->in_start, frame, &used) != IDEM_PROTO_OK)
			idem_sink_broken(s, "lost the frame boundary");
		s->in_start += used;
		if (frame->type == IDEM_PROTO_PING)
			continue;
		if (size)
			*size = used;
		return true;
	}
	return false;
}

void
idem_sink_next(IdemSink *s, IdemProtoFrame *frame)
{
	while (!idem_sink_poll(s, frame, NULL))
		idem_sink_wait(s, -1, 0, -1, true);
}

void
idem_sink_send(IdemSink *s, const IdemProtoFrame *frame)
{
	size_t		size;

	for (;;)
	{
		size = idem_proto_encode(s->out + s->out_end, s->out_size - s->out_end, frame);
		if (size == 0)
			idem_sink_broken(s, "could not encode a frame of type %c", (int) frame->type);
		if (size <= s->out_size - s->out_end)
			break;
		s->out_size *= 2;
		s->out = idem_sink_realloc(s->out, s->out_size);
	}
	s->out_end += size;
}

void
idem_sink_finish(IdemSink *s)
{
	int64_t		deadline = idem_sink_clock() + FLUSH_TIMEOUT;

	while (write_output(s) && s->out_start < s->out_end)
	{
		struct pollfd p = {WORKER_FD, POLLOUT, 0};
		int64_t		left = deadline - idem_sink_clock();

		if (left <= 0)
			break;
		poll(&p, 1, (int) left);
	}
	_exit(IDEM_SINK_EXIT_OK);
}
