/*-------------------------------------------------------------------------
 *
 * deliver.c
 *		Exactly once: delivers a batch and its position as one atomic batch of the server.
 *
 * Each message has the atomic batch's id and its number; the last one is the position,
 * and commits.  The server drops an atomic batch that is silent for ten seconds.  So
 * nothing is sent before the batch is complete, its refused events have their results
 * and the worker has settled them.
 *
 * INVARIANT
 *		A batch has its verdict only after the server has acknowledged the position.
 *
 * A crash leaves an atomic batch that the server drops, or one that is committed,
 * whose position the successor reads.
 *
 * The messages of the next batch are made while the server stores this one.
 *
 * MEMORY
 *		The messages of two batches at most, which are kept until the batch's verdict.
 *		LOCKING: none; a job touches neither events that are not in its batch nor
 *		what messages are made by.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/nats/deliver.c
 *
 *-------------------------------------------------------------------------
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "sink/nats/sink.h"

#define MAX_TRIES	3

/* What a job gets and gives. */
typedef struct Delivery
{
	NSink	   *p;
	IdemBatch  *b;
	NSinkAnswer answer;			/* to the batch's last message */
	NSinkFate	fate;			/* of the position that the server refused */
	bool		careful;		/* ask whether the server begins the batch */
} Delivery;

/* The messages of a batch are not to be used any more: they may be made anew. */
static void
free_messages(IdemBatch *b)
{
	for (uint32_t i = 0; i < b->count && b->events[i].target != NULL; i++)
	{
		natsMsg_Destroy(b->events[i].target->msg);
		b->events[i].target->msg = NULL;
	}
}

/* Make the message of an event, if it has none yet.  False: *problem. */
static bool
make_message(NSink *p, IdemBatchEvent *e, NSinkProblem *problem)
{
	if (e->target->msg == NULL)
		e->target->msg = nsink_make_message(p, e, NULL, problem);
	return e->target->msg != NULL;
}

/* Make places for the messages of a batch. */
static void
begin_messages(IdemBatch *b)
{
	NSinkMessage *messages;

	if (b->events[0].target != NULL)
		return;
	messages = idem_sink_alloc(b->count * sizeof(NSinkMessage));
	for (uint32_t i = 0; i < b->count; i++)
	{
		messages[i].msg = NULL;
		b->events[i].target = &messages[i];
	}
}

/* Make the messages of the next batch.  What has none is decided when its turn comes. */
static void
make_ahead(NSink *p, IdemBatch *b)
{
	NSinkProblem problem;

	if (b == NULL || !b->complete)
		return;
	begin_messages(b);
	for (uint32_t i = 0; i < b->count; i++)
		(void) make_message(p, &b->events[i], &problem);
}

/*
 * Make the messages of the events that are not decided; decide those that can have
 * none, or that are blocked.
 */
static void
prepare(NSink *p, IdemBatch *b)
{
	begin_messages(b);
	for (uint32_t i = 0; i < b->count; i++)
	{
		IdemBatchEvent *e = &b->events[i];
		NSinkProblem problem;

		if (e->outcome != 0)
			continue;
		if (idem_intake_is_blocked(&p->in, e))
			idem_intake_decide(&p->in, e, IDEM_PROTO_SKIPPED, "00000", NULL);
		else if (!make_message(p, e, &problem))
			idem_intake_decide(&p->in, e, problem.outcome, problem.sqlstate, problem.text);
	}
}

/* A batch's id: no other batch of the stream may have it meanwhile. */
static void
make_id(NSink *p, char *id)
{
	uint64_t	bits[2];

	if (getrandom(bits, sizeof(bits), 0) != (ssize_t) sizeof(bits))
		idem_sink_broken(&p->sink, "could not get random bytes: %s", strerror(errno));
	snprintf(id, 33, "%016" PRIx64 "%016" PRIx64, bits[0], bits[1]);
}

/* Make the message number n of the batch. */
static natsStatus
number(natsMsg *msg, const char *id, uint32_t n)
{
	char		text[16];
	natsStatus	s = natsMsgHeader_Set(msg, "Nats-Batch-Id", id);

	snprintf(text, sizeof(text), "%u", n);
	return s == NATS_OK ? natsMsgHeader_Set(msg, "Nats-Batch-Sequence", text) : s;
}

/*
 * Send the first message of an atomic batch, and wait for its answer: empty if the
 * server begins the batch.  Without it a server that has too many atomic batches open
 * drops the messages, and finds the batch incomplete at its end.  False: p->failure.
 */
static bool
begin_batch(Delivery *d, natsMsg *msg)
{
	NSink	   *p = d->p;
	natsMsg    *reply = NULL;
	natsStatus	s = natsConnection_RequestMsg(&reply, p->nc, msg, p->config.timeout);

	/* the answer to the position tells whether it is the event, or the stream */
	if (s == NATS_NO_RESPONDERS || (s != NATS_OK && nsink_was_denied(natsMsg_GetSubject(msg))))
		return true;
	if (s != NATS_OK)
		return nsink_fail(p, s, "get an answer of the server");
	if (natsMsg_GetDataLength(reply) > 0)
		nsink_read_answer(reply, &d->answer);
	natsMsg_Destroy(reply);
	return true;
}

/* Send the messages, and the position as the last one, whose answer is the batch's. */
static bool
send_batch(Delivery *d)
{
	NSink	   *p = d->p;
	natsMsg    *last = nsink_position_message(p, &d->b->position);
	natsMsg    *reply = NULL;
	natsStatus	s = NATS_OK;
	uint32_t	n = 0;
	char		id[33];
	bool		ok = true;

	memset(&d->answer, 0, sizeof(d->answer));
	make_id(p, id);
	for (uint32_t i = 0; i < d->b->count && s == NATS_OK; i++)
	{
		const IdemBatchEvent *e = &d->b->events[i];
		natsMsg    *msg = e->target->msg;

		if (e->outcome != 0)
			continue;
		s = number(msg, id, ++n);
		if (s == NATS_OK && n == 1 && d->careful)
		{
			ok = begin_batch(d, msg);
			if (!ok || d->answer.code != 0)
			{
				natsMsg_Destroy(last);
				return ok;
			}
		}
		else if (s == NATS_OK)
			s = natsConnection_PublishMsg(p->nc, msg);
	}
	IDEM_SINK_FAULT_POINT(&p->sink, "nats-before-commit");
	if (s == NATS_OK)
		s = number(last, id, n + 1);
	if (s == NATS_OK)
		s = natsMsgHeader_Set(last, "Nats-Batch-Commit", "1");
	ok = s == NATS_OK ? nsink_request(p, last, p->config.timeout, &reply) : nsink_fail(p, s, "send a batch");
	natsMsg_Destroy(last);
	if (!ok)
		return false;
	nsink_read_answer(reply, &d->answer);
	natsMsg_Destroy(reply);
	if (d->answer.code == 0 && d->answer.count != (int64_t) n + 1)
		return idem_sink_fail(&p->failure, IDEM_PROTO_OUTAGE, "08P01",
							  "the server acknowledged the last message of a batch, but no batch of %u messages", n + 1);
	return true;
}

/* Did the server refuse the subjects of some events?  Decide those. */
static bool
decide_denied(NSink *p, IdemBatch *b)
{
	bool		found = false;

	for (uint32_t i = 0; i < b->count; i++)
	{
		IdemBatchEvent *e = &b->events[i];

		if (e->outcome != 0 || !nsink_was_denied(natsMsg_GetSubject(e->target->msg)))
			continue;
		idem_intake_decide(&p->in, e, IDEM_PROTO_REJECTED, "42501", "the server does not let the user publish to the event's subject");
		found = true;
	}
	return found;
}

/* A job: send the batch; find out why the server did not take it. */
static bool
commit_job(void *arg)
{
	Delivery   *d = arg;
	NSink	   *p = d->p;

	d->fate = NSINK_FATE_OURS;
	if (!send_batch(d))
		return false;
	IDEM_SINK_FAULT_POINT(&p->sink, "nats-answered");
	if (d->answer.code == 0)
	{
		p->seq = d->answer.seq;
		nsink_forget_denied();
	}
	else if (d->answer.code == NSINK_WRONG_SEQUENCE || d->answer.code == NSINK_SEQUENCE_BUSY)
		d->fate = nsink_look(p, d->b->position);
	return d->fate != NSINK_FATE_FAILED;
}

/* Send the batch, and make the next one's messages meanwhile; look why the server did not take it. */
static bool
commit(Delivery *d)
{
	NSink	   *p = d->p;

	idem_intake_begin(&p->in, commit_job, d);
	make_ahead(p, d->b->next);
	if (!nsink_end(p, 2 * p->config.timeout + NSINK_MARGIN))
		return false;
	if (d->answer.code == 0 || d->answer.code == NSINK_WRONG_SEQUENCE || d->answer.code == NSINK_SEQUENCE_BUSY)
		return true;
	if (d->b->next != NULL)
		free_messages(d->b->next);
	return nsink_read_stream_again(p);
}

/* The batch is in the stream: say so. */
static void
finish(NSink *p, IdemBatch *b)
{
	idem_intake_answer(&p->in, b);
	idem_sink_verdict(&p->sink, b->number, IDEM_PROTO_COMMITTED, NULL, NULL);
	free_messages(b);
	free(b->events[0].target);
	idem_intake_drop(&p->in);
	IDEM_SINK_FAULT_POINT(&p->sink, "nats-verdict");
}

/* The events that are not acked: wait until the worker has noted them. */
static void
await_settle(NSink *p, IdemBatch *b)
{
	if (idem_batch_count_decided(b) == 0)
		return;
	idem_intake_answer(&p->in, b);
	IDEM_SINK_FAULT_POINT(&p->sink, "nats-before-settle");
	while (p->sink.stream.settled < b->number)
	{
		idem_sink_wait(&p->sink, -1, 0, -1, true);
		idem_intake_take(&p->in);
	}
}

/* The server refuses the batch as a whole, and not because it is full or out. */
static bool
give_up(NSink *p, IdemBatch *b, const NSinkAnswer *a)
{
	if (nsink_is_out(a) || a->code == NSINK_WRONG_SEQUENCE || a->code == NSINK_SEQUENCE_BUSY)
		return idem_sink_fail(&p->failure, IDEM_PROTO_OUTAGE, "53000", "stream \"%s\" takes no batch: %s", p->config.stream, a->text);
	idem_intake_answer(&p->in, b);
	idem_sink_verdict(&p->sink, b->number, IDEM_PROTO_ABORTED, "22023", a->text);
	return idem_sink_fail(&p->failure, IDEM_PROTO_OUTAGE, "22023", "stream \"%s\" refuses a batch: %s", p->config.stream, a->text);
}

bool
nsink_deliver(NSink *p)
{
	IdemBatch  *b = p->in.first;
	Delivery	d = {.p = p, .b = b};

	for (int tries = 1;; tries++)
	{
		if (tries > 1)
			free_messages(b);
		prepare(p, b);
		if (b->answered && idem_batch_count_decided(b) != b->answered_decided)
			return idem_sink_fail(&p->failure, IDEM_PROTO_OUTAGE, "08006",
								  "could not deliver a batch again: an event that was answered as done was refused");
		await_settle(p, b);
		if (!commit(&d))
			return false;
		if (d.answer.code == 0 || d.fate == NSINK_FATE_STORED)
			break;
		d.careful = d.careful || d.answer.code == NSINK_INCOMPLETE;
		if (!b->answered && decide_denied(p, b))
			continue;
		if (tries >= MAX_TRIES || nsink_is_out(&d.answer))
			return give_up(p, b, &d.answer);
	}
	IDEM_SINK_FAULT_POINT(&p->sink, "nats-committed");
	finish(p, b);
	return true;
}
