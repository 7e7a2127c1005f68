/*-------------------------------------------------------------------------
 *
 * deliver.c
 *		Delivers a batch: an atomic batch of the server, or message by message.
 *
 * Exactly once, the messages of a batch and its position, which is the last one, are
 * an atomic batch: each message has the batch's id and its number, and the last one
 * commits.  The server drops an atomic batch that is silent for ten seconds.  So
 * nothing is sent before the batch is complete, its refused events have their results
 * and the worker has settled them.
 *
 * At least once, each message has the event's id as Nats-Msg-Id: a repeat within the
 * stream's duplicate_window is dropped.  With key order the messages go in waves that
 * have no key twice, because the server may refuse one and take the next.
 *
 * INVARIANT
 *		A batch has its verdict only after the server has acknowledged the position.
 *
 * A crash leaves an atomic batch that the server drops, or one that is committed,
 * whose position the successor reads.
 *
 * MEMORY
 *		Messages are freed with their batch.  LOCKING: none.
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
#define MARGIN		5000		/* ms that a job has beyond its requests */
#define LOOK_TIME	500			/* ms between two looks at the clock */

/* What a job gets and gives. */
typedef struct Delivery
{
	NSink	   *p;
	IdemBatch  *b;
	NSinkAnswer answer;			/* to the batch's last message */
	NSinkFate	fate;			/* of the position that the server refused */
	bool		careful;		/* ask whether the server begins the batch */
	IdemKeys	keys;			/* of the wave */
} Delivery;

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

		if (e->outcome != 0)
			continue;
		s = number(e->target->msg, id, ++n);
		if (s == NATS_OK && n == 1 && d->careful)
		{
			ok = begin_batch(d, e->target->msg);
			if (!ok || d->answer.code != 0)
			{
				natsMsg_Destroy(last);
				return ok;
			}
		}
		else if (s == NATS_OK)
			s = natsConnection_PublishMsg(p->nc, e->target->msg);
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

		if (e->outcome != 0 || e->delivered || e->target == NULL || !nsink_was_denied(e->target->subject))
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
	else
		/* the stream may have other subjects, or limits, than at the start */
		return nsink_read_stream(p, idem_sink_clock() + p->config.timeout);
	return d->fate != NSINK_FATE_FAILED;
}

/* The batch is in the stream: say so. */
static void
finish(NSink *p, IdemBatch *b)
{
	idem_intake_answer(&p->in, b);
	idem_sink_verdict(&p->sink, b->number, IDEM_PROTO_COMMITTED, NULL, NULL);
	nsink_free_messages(b);
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

/* Deliver the batch with its position.  False: p->failure. */
static bool
deliver_once(NSink *p, IdemBatch *b)
{
	Delivery	d = {.p = p, .b = b};
	uint32_t	decided;

	for (int tries = 1;; tries++)
	{
		nsink_prepare_batch(p, b);
		if (b->answered && idem_batch_count_decided(b) != b->answered_decided)
			return idem_sink_fail(&p->failure, IDEM_PROTO_OUTAGE, "08006",
								  "could not deliver a batch again: an event that was answered as done was refused");
		await_settle(p, b);
		if (!nsink_run(p, commit_job, &d, 2 * p->config.timeout + MARGIN))
			return false;
		if (d.answer.code == 0 || d.fate == NSINK_FATE_STORED)
			break;
		d.careful = d.careful || d.answer.code == NSINK_INCOMPLETE;
		decided = idem_batch_count_decided(b);
		if (!b->answered && (decide_denied(p, b) || idem_batch_count_decided(b) > decided))
			continue;
		if (tries >= MAX_TRIES || nsink_is_out(&d.answer))
			return give_up(p, b, &d.answer);
	}
	IDEM_SINK_FAULT_POINT(&p->sink, "nats-committed");
	finish(p, b);
	return true;
}

/* Send the event's message, whose answer goes to the inbox. */
static natsStatus
send_event(NSink *p, IdemBatchEvent *e)
{
	natsStatus	s = natsConnection_PublishMsg(p->nc, e->target->msg);

	if (s == NATS_OK)
	{
		e->sent = true;
		e->batch->open++;
	}
	return s;
}

/* Send what may be in flight together.  False: the library's status in *s. */
static bool
send_wave(Delivery *d, natsStatus *s)
{
	NSink	   *p = d->p;

	idem_keys_free(&d->keys);
	for (uint32_t i = 0; i < d->b->count; i++)
	{
		IdemBatchEvent *e = &d->b->events[i];

		if (e->outcome != 0 || e->delivered)
			continue;
		if (idem_intake_is_blocked(&p->in, e))
		{
			idem_intake_decide(&p->in, e, IDEM_PROTO_SKIPPED, "00000", NULL);
			continue;
		}
		if (p->in.key_order)
		{
			/* an earlier event of the key is in this wave */
			if (idem_keys_has(&d->keys, e))
				continue;
			idem_keys_add(&d->keys, e);
		}
		*s = send_event(p, e);
		if (*s != NATS_OK)
			return false;
	}
	return true;
}

/* Take the answer to an event.  False: p->failure. */
static bool
take_answer(Delivery *d, natsMsg *reply)
{
	NSink	   *p = d->p;
	const char *dot = strrchr(natsMsg_GetSubject(reply), '.');
	unsigned long index = dot != NULL ? strtoul(dot + 1, NULL, 10) : d->b->count;
	IdemBatchEvent *e;
	NSinkAnswer a;

	if (index >= d->b->count || !d->b->events[index].sent)
		return true;
	e = &d->b->events[index];
	e->sent = false;
	d->b->open--;
	nsink_read_answer(reply, &a);
	if (a.code == 0)
		e->delivered = true;
	else if (nsink_is_out(&a))
		return idem_sink_fail(&p->failure, IDEM_PROTO_OUTAGE, "53000", "stream \"%s\" takes no message: %s", p->config.stream, a.text);
	else
		idem_intake_decide(&p->in, e, IDEM_PROTO_REJECTED,
						   a.code == NSINK_NO_STREAM ? "42704" : a.code == NSINK_TOO_LARGE ? "54000" : "22023", a.text);
	return true;
}

/* No answer will come to what was sent: it may be sent again. */
static void
forget_sent(IdemBatch *b)
{
	for (uint32_t i = 0; i < b->count; i++)
		b->events[i].sent = false;
	b->open = 0;
}

/*
 * Wait for the answers of a wave.  A message to a subject that the server refuses to
 * the user has none, but an error of the connection, of which the library keeps the
 * last one only.  So the others that have no answer go again.  False: p->failure.
 */
static bool
await_answers(Delivery *d, natsSubscription *sub)
{
	NSink	   *p = d->p;
	int64_t		heard = idem_sink_clock();

	while (d->b->open > 0)
	{
		natsMsg    *reply = NULL;
		natsStatus	s = natsSubscription_NextMsg(&reply, sub, LOOK_TIME);
		bool		ok;

		if (s == NATS_TIMEOUT && decide_denied(p, d->b))
		{
			forget_sent(d->b);
			break;
		}
		if (s == NATS_TIMEOUT && idem_sink_clock() - heard < p->config.timeout)
			continue;
		if (s != NATS_OK)
			return nsink_fail(p, s, "get the server's acknowledgements");
		heard = idem_sink_clock();
		ok = take_answer(d, reply);
		natsMsg_Destroy(reply);
		if (!ok)
			return false;
	}
	return true;
}

/* A job: send the messages of a batch, and wait for their answers. */
static bool
publish_job(void *arg)
{
	Delivery   *d = arg;
	NSink	   *p = d->p;
	natsSubscription *sub = NULL;
	char		subject[NSINK_MAX_SUBJECT];
	natsStatus	s;
	bool		more;
	bool		ok = true;

	snprintf(subject, sizeof(subject), "%s.*", p->inbox);
	s = natsConnection_SubscribeSync(&sub, p->nc, subject);
	more = s == NATS_OK;
	while (ok && more)
	{
		if (!send_wave(d, &s))
			break;
		more = d->b->open > 0;
		ok = await_answers(d, sub);
		IDEM_SINK_FAULT_POINT(&p->sink, "nats-wave-answered");
	}
	natsSubscription_Destroy(sub);
	idem_keys_free(&d->keys);
	if (ok && s != NATS_OK)
		ok = nsink_fail(p, s, "send messages");
	return ok;
}

/* Deliver the batch at least once.  False: p->failure. */
static bool
deliver_each(NSink *p, IdemBatch *b)
{
	Delivery	d = {.p = p, .b = b};
	natsStatus	s = natsInbox_Create(&p->inbox);
	bool		ok;

	if (s != NATS_OK)
		return nsink_fail(p, s, "make an inbox");
	nsink_prepare_batch(p, b);
	/* each wave has a timeout of its own, and each answer starts it anew */
	ok = nsink_run(p, publish_job, &d, INT32_MAX);
	natsInbox_Destroy(p->inbox);
	if (!ok)
		return false;
	idem_intake_answer(&p->in, b);
	nsink_free_messages(b);
	idem_intake_drop(&p->in);
	return true;
}

bool
nsink_deliver(NSink *p)
{
	return p->config.exactly_once ? deliver_once(p, p->in.first) : deliver_each(p, p->in.first);
}
