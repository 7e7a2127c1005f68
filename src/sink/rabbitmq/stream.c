/*-------------------------------------------------------------------------
 *
 * stream.c
 *		The mode for streams: start, batches, results, verdicts.
 *
 * Exactly once, in a stream of its own, the last batch in the stream is the position.  Batches
 * that are complete go together; behind their confirms the program asks for the
 * last publishing id of its name, because a dropped entry is confirmed, too.
 *
 * At least once there are no name, no notes and no fence; a batch is an entry all the same.
 *
 * INVARIANT
 *		A batch has its verdict only after it was confirmed and the server's sequence was
 *		the last id that the program used.  A batch with an event that is not acked has
 *		its results and its SETTLE before it is sent.
 *
 * A crash leaves a batch wholly there, with its position, or not at all.
 *
 * MEMORY
 *		Messages are freed with their batch.  LOCKING: see sink.h.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/rabbitmq/stream.c
 *
 *-------------------------------------------------------------------------
 */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "sink/common/template.h"
#include "sink/rabbitmq/stream.h"

#define MAX_FLIGHT_BYTES	(16 * 1024 * 1024)	/* of batches that go together */
#define CREDIT_BATCHES		8

static BStream stream = {.fd = -1};

/* Batches that go together. */
typedef struct Flight
{
	BSink	   *p;
	IdemBatch  *first;
	uint32_t	count;
} Flight;

/* Name stream and publisher, and the program.  False: p->failure */
static bool
name_all(BSink *p, BStream *s)
{
	const IdemTemplate how = {.relay = p->config.relay};
	const IdemSinkEvent none = {.flags = 0};
	IdemText	t = {NULL, 0, 0};
	IdemText	publisher = {NULL, 0, 0};
	IdemProtoStr at;
	uint64_t	random;

	(void) idem_template_fill(&how, p->config.stream, &none, &t, &at);
	s->name = idem_text_terminate(&t);
	s->exactly_once = p->config.exactly_once;
	if (s->exactly_once)
	{
		idem_text_puts(&publisher, "idempotency.");
		idem_text_puts(&publisher, p->config.relay);
	}
	s->publisher = idem_text_terminate(&publisher);
	if (getrandom(&random, sizeof(random), 0) != (ssize_t) sizeof(random))
		idem_sink_broken(&p->sink, "could not get random bytes: %s", strerror(errno));
	snprintf(s->owner, sizeof(s->owner), "%016" PRIx64, random);
	if (t.len == 0 || t.len > BSTREAM_MAX_NAME || publisher.len > BSTREAM_MAX_NAME)
		return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "HV024", "option \"stream\" must make a name of 1 to 255 bytes");
	return true;
}

/* Tell the server log what a job has found. */
static void
tell_news(BSink *p, BStream *s)
{
	if (s->news[0] != '\0')
		idem_sink_log(&p->sink, IDEM_PROTO_LOG_WARNING, "%s", s->news);
	s->news[0] = '\0';
}

/* Jobs: look; take the position over. */
static bool
look_job(void *arg)
{
	return bstream_look(arg, &stream);
}

static bool
start_job(void *arg)
{
	return bstream_take_over(arg, &stream, false);
}

/* Run one of them.  False: p->failure */
static bool
run(BSink *p, IdemJob job)
{
	bool		ok = bsink_run(p, job, p, bsink_start_time(p) + 4 * p->config.timeout + BSINK_MARGIN);

	tell_news(p, &stream);
	return ok;
}

static bool
look(BSink *p)
{
	idem_sink_look_at(&p->sink, "server, login, stream and position",
					  "Put right what the message names: servers, the user mapping, or what sink_setup prints.");
	if (!name_all(p, &stream) || !run(p, look_job))
		return false;
	idem_sink_found(&p->sink, true, stream.found.others ? "stream has messages that are not of this relay" : NULL);
	return true;
}

static bool
start(BSink *p, IdemProtoReady *ready)
{
	BStream    *s = &stream;

	if (!name_all(p, s) || !run(p, start_job))
		return false;
	ready->max_batch_events = BSTREAM_MAX_BATCH_EVENTS;

	/*
	 * messages are larger than events; what does not fit is sent with the
	 * next batch
	 */
	ready->max_batch_bytes = s->frame_max / 2;
	ready->credit_messages = CREDIT_BATCHES * BSTREAM_MAX_BATCH_EVENTS;
	ready->credit_bytes = CREDIT_BATCHES * ready->max_batch_bytes;
	if (!s->exactly_once)
		return true;
	ready->capabilities = IDEM_PROTO_STORES_POSITION | IDEM_PROTO_TRANSACTIONAL;
	ready->has_position = s->has_position;
	if (s->has_position)
	{
		ready->incarnation = IDEM_STR(s->incarnation);
		ready->position = s->at;
	}
	return true;
}

/* Is the last id of our name the one that was used last?  False: p->failure */
static bool
check_sequence(BSink *p, BStream *s)
{
	uint64_t	sequence;

	if (!bstream_ask_sequence(p, s, &sequence))
		return false;
	if (sequence > s->id)
		return idem_sink_fail(&p->failure, IDEM_PROTO_FENCED, "55000", "another instance has taken over relay \"%s\"", p->config.relay);
	if (sequence < s->id)
		return idem_sink_fail(&p->failure, IDEM_PROTO_OUTAGE, "55000",
							  "the server has forgotten what it confirmed in stream \"%.100s\": the stream was made anew, or too many names publish to it",
							  s->name);
	return true;
}

/* The job: publish the batches, and make sure that they are there. */
static bool
publish_job(void *arg)
{
	Flight	   *f = arg;
	BSink	   *p = f->p;
	BStream    *s = &stream;
	IdemBatch  *b = f->first;

	/* an idle connection was lost */
	if (s->fd < 0 && !bstream_take_over(p, s, true))
		return false;

	/*
	 * the server forgets a name when many others publish: who was fenced is
	 * then let in
	 */
	if (s->exactly_once && !check_sequence(p, s))
		return false;
	for (uint32_t i = 0; i < f->count; i++, b = b->next)
	{
		bstream_write_entry(p, s, b, ++s->id);
		if (!bstream_publish(p, s, s->id))
			return false;
	}
	if (!bstream_await_confirms(p, s))
		return false;
	return !s->exactly_once || check_sequence(p, s);
}

/* Say what is left to say of the oldest batch, which is there, and drop it. */
static void
finish(BSink *p, BStream *s)
{
	IdemBatch  *b = p->in.first;

	idem_intake_answer(&p->in, b);
	if (s->exactly_once)
	{
		idem_sink_verdict(&p->sink, b->number, IDEM_PROTO_COMMITTED, NULL, NULL);
		s->has_position = true;
		snprintf(s->incarnation, sizeof(s->incarnation), "%s", p->config.incarnation);
		s->at = b->position;
	}
	bstream_free_messages(b);
	idem_intake_drop(&p->in);
}

/* The events that are not acked: wait until the worker has noted them. */
static void
await_settle(BSink *p, const IdemBatch *b)
{
	while (idem_intake_take(&p->in), p->in.settled < b->number)
		if (idem_sink_wait(&p->sink, stream.fd, POLLIN, p->config.heartbeat * 500, true) != 0 || stream.fd >= 0)
			bstream_tend(p, &stream);
}

/* Publish the first batches.  False: p->failure */
static bool
publish(BSink *p, BStream *s, uint32_t count)
{
	Flight		f = {.p = p, .first = p->in.first, .count = count};
	bool		ok = true;

	/* nothing is left, and no position has to move */
	if (s->exactly_once || count > 1 || idem_batch_count_decided(f.first) < f.first->count)
		ok = bsink_run(p, publish_job, &f, bsink_start_time(p) + 4 * p->config.timeout + BSINK_MARGIN);
	tell_news(p, s);
	for (; ok && count > 0; count--)
		finish(p, s);
	return ok;
}

/* The oldest batch is complete.  How many, without an event that is not acked, can go together? */
static uint32_t
count_flight(BSink *p, BStream *s)
{
	uint32_t	n = 0;
	uint64_t	bytes = 0;
	IdemBatch  *b = p->in.first;

	do
	{
		bstream_prepare(p, s, b);
		if (idem_batch_count_decided(b) > 0)
			break;
		bytes += b->bytes;
		n++;
		b = b->next;
	}
	while (b != NULL && b->complete && n < BSTREAM_MAX_FLIGHT && bytes < MAX_FLIGHT_BYTES);
	return n;
}

static bool
deliver(BSink *p)
{
	BStream    *s = &stream;
	uint32_t	n = count_flight(p, s);

	if (n > 0)
		return publish(p, s, n);
	if (s->exactly_once)
	{
		idem_intake_answer(&p->in, p->in.first);
		await_settle(p, p->in.first);
	}
	return publish(p, s, 1);
}

static int
descriptor(const BSink *p)
{
	(void) p;
	return stream.fd;
}

static bool
tend(BSink *p)
{
	bstream_tend(p, &stream);
	return true;
}

const BSinkMode bsink_stream_mode = {
	.look = look,
	.start = start,
	.deliver = deliver,
	.descriptor = descriptor,
	.tend = tend
};
