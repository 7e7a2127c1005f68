/*-------------------------------------------------------------------------
 *
 * ack.c
 *		Stands between a worker and a sink program, and counts how old events are
 *		when the sink says that they are acked.
 *
 * A relay to this program (wrapper idempotency_program) is a relay to the sink
 * program that the option "sink" names ("kafka", "http"), which this program
 * starts beside itself.  All frames pass as they are, except that the HELLO loses
 * the options "sink" and "report": the file for the ages of ages.h, which is
 * written whenever no answer came for a while.
 *
 * An event counts when the RESULT that acks it passes.  At an exactly-once sink
 * this RESULT follows the commit of the brokers' transaction.
 *
 * A crash of either end ends this program, and with it the other end.
 * MEMORY: the events in flight.  LOCKING: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		test/bench/ack.c
 *
 *-------------------------------------------------------------------------
 */
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ages.h"

#define QUIET	200				/* ms without an answer before a report */

/* One direction: bytes that were read and are to be written. */
typedef struct Way
{
	IdemProtoPeer peer;			/* who sends */
	int			from;
	int			to;
	uint8_t    *bytes;			/* start to end are to be written */
	size_t		start;
	size_t		scanned;		/* frames before this byte were looked at */
	size_t		end;
	size_t		size;
} Way;

/* A batch on its way. */
typedef struct Batch
{
	struct Batch *next;
	uint64_t	number;
	Birth	   *births;
	uint32_t	count;
	uint32_t	room;
	uint32_t	answered;		/* when it is count, and a later batch has
								 * begun, the batch is done */
} Batch;

static Batch *first;
static Batch *last;
static char report[AGES_PATH];
static char sink_name[64] = "kafka";

static void give_up(const char *what) __attribute__((noreturn));

static void
give_up(const char *what)
{
	fprintf(stderr, "ack: %s: %s\n", what, strerror(errno));
	exit(2);
}

static void *
resized(void *p, size_t size)
{
	p = realloc(p, size);
	if (p == NULL)
		give_up("realloc");
	return p;
}

static void
note_event(const IdemProtoEvent *e)
{
	if (last == NULL || last->number != e->batch)
	{
		Batch	   *b = resized(NULL, sizeof(Batch));

		memset(b, 0, sizeof(*b));
		b->number = e->batch;
		if (last != NULL)
			last->next = b;
		else
			first = b;
		last = b;
	}
	if (last->count == last->room)
	{
		last->room = last->room * 2 + 16;
		last->births = resized(last->births, last->room * sizeof(Birth));
	}
	last->births[last->count++] = birth_of(e);
}

/* Forget the batches that are done.  The last one may have events to come. */
static void
forget_batches(void)
{
	Batch	  **at = &first;

	while (*at != NULL)
	{
		Batch	   *b = *at;

		if (b->answered < b->count || b == last)
			at = &b->next;
		else
		{
			*at = b->next;
			free(b->births);
			free(b);
		}
	}
}

/* Count the events of a RESULT. */
static void
note_result(const IdemProtoResult *r)
{
	int64_t		now = wall_clock();
	Batch	   *b = first;

	while (b != NULL && b->number != r->batch)
		b = b->next;
	if (b == NULL)
		return;
	b->answered += r->last - r->first + 1;
	for (uint32_t i = r->first; r->outcome == IDEM_PROTO_ACKED && i <= r->last && i < b->count; i++)
		count_age(&b->births[i], now);
	forget_batches();
}

/* Look at the frames that have come. */
static void
scan(Way *w)
{
	IdemProtoFrame frame;
	size_t		size;

	while (idem_proto_next(w->peer, w->bytes + w->scanned, w->end - w->scanned, &frame, &size) == IDEM_PROTO_OK)
	{
		if (frame.type == IDEM_PROTO_EVENT)
			note_event(&frame.u.event);
		else if (frame.type == IDEM_PROTO_RESULT)
			note_result(&frame.u.result);
		w->scanned += size;
	}
}

/* Read what is there.  False: end of file. */
static bool
take(Way *w)
{
	ssize_t		n;

	if (w->start == w->scanned && w->start > 0)
	{
		memmove(w->bytes, w->bytes + w->start, w->end - w->start);
		w->end -= w->start;
		w->start = w->scanned = 0;
	}
	if (w->size - w->end < IDEM_PROTO_MAX_FRAME)
	{
		w->size = w->size * 2 + 2 * IDEM_PROTO_MAX_FRAME;
		w->bytes = resized(w->bytes, w->size);
	}
	n = read(w->from, w->bytes + w->end, w->size - w->end);
	if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
		return false;
	if (n > 0)
		w->end += (size_t) n;
	return true;
}

/* Write the frames that were looked at, as far as the other end takes them. */
static bool
give(Way *w)
{
	ssize_t		n = send(w->to, w->bytes + w->start, w->scanned - w->start, MSG_NOSIGNAL);

	if (n < 0)
		return errno == EAGAIN || errno == EINTR;
	w->start += (size_t) n;
	return true;
}

/* Take our options out of the HELLO, which is all that has come. */
static void
rewrite_hello(Way *w)
{
	static IdemProtoStr keys[IDEM_PROTO_MAX_OPTIONS];
	static IdemProtoStr values[IDEM_PROTO_MAX_OPTIONS];
	static uint8_t whole[IDEM_PROTO_MAX_FRAME];
	struct pollfd p = {.fd = w->from, .events = POLLIN};
	IdemProtoFrame frame;
	IdemProtoStr key;
	IdemProtoStr value;
	uint16_t	n = 0;
	size_t		size;

	while (idem_proto_next(w->peer, w->bytes, w->end, &frame, &size) == IDEM_PROTO_NEED_MORE)
	{
		poll(&p, 1, -1);
		if (!take(w))
			exit(0);
	}
	if (frame.type != IDEM_PROTO_HELLO)
		give_up("no HELLO");
	while (idem_proto_next_option(&frame.u.hello, &key, &value))
	{
		if (key.len == 6 && memcmp(key.data, "report", 6) == 0)
			snprintf(report, sizeof(report), "%.*s", (int) value.len, value.data);
		else if (key.len == 4 && memcmp(key.data, "sink", 4) == 0)
			snprintf(sink_name, sizeof(sink_name), "%.*s", (int) value.len, value.data);
		else
		{
			keys[n] = key;
			values[n++] = value;
		}
	}
	frame.u.hello.noptions = n;
	frame.u.hello.keys = keys;
	frame.u.hello.values = values;
	size = idem_proto_encode_hello(whole, sizeof(whole), &frame.u.hello);
	memcpy(w->bytes, whole, size);
	w->end = size;
}

/* Start the sink; the descriptor that leads to it. */
static int
start_sink(void)
{
	char		self[PATH_MAX];
	char		path[PATH_MAX + 128];
	ssize_t		n = readlink("/proc/self/exe", self, sizeof(self) - 1);
	int			pair[2];

	if (n < 0 || socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0)
		give_up("socketpair");
	self[n] = '\0';
	snprintf(path, sizeof(path), "%s/idempotency-sink-%s", dirname(self), sink_name);
	switch (fork())
	{
		case -1:
			give_up("fork");
			break;
		case 0:
			dup2(pair[1], 0);
			close(pair[0]);
			close(pair[1]);
			execl(path, path, (char *) NULL);
			give_up(path);
			break;
		default:
			break;
	}
	close(pair[1]);
	fcntl(pair[0], F_SETFL, O_NONBLOCK);
	return pair[0];
}

int
main(void)
{
	Way			there = {.peer = IDEM_PROTO_FROM_WORKER};
	Way			back = {.peer = IDEM_PROTO_FROM_SINK};
	uint64_t	reported = 0;
	uint64_t	seen = 0;
	int			sink;

	fcntl(0, F_SETFL, O_NONBLOCK);
	there.from = back.to = 0;
	rewrite_hello(&there);
	sink = start_sink();
	there.to = back.from = sink;
	for (;;)
	{
		struct pollfd p[2] = {{.fd = 0, .events = POLLIN}, {.fd = sink, .events = POLLIN}};
		int			n;

		scan(&there);
		scan(&back);
		if (!give(&there) || !give(&back))
			return 0;
		if (there.start < there.scanned)
			p[1].events |= POLLOUT;
		if (back.start < back.scanned)
			p[0].events |= POLLOUT;
		n = poll(p, 2, QUIET);
		if (n == 0 && since_due.samples == seen && seen > reported)
		{
			if (!write_ages(report))
				give_up(report);
			reported = seen;
		}
		seen = since_due.samples;
		if ((p[0].revents & (POLLIN | POLLHUP) && !take(&there)) || (p[1].revents & (POLLIN | POLLHUP) && !take(&back)))
		{
			scan(&back);
			give(&back);
			return 0;
		}
	}
}
