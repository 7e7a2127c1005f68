/*-------------------------------------------------------------------------
 *
 * deliver.c
 *		Sends the events of a batch to the brokers.
 *
 * INVARIANT
 *		With key order no event is sent whose key an earlier event blocks.
 *
 * MEMORY
 *		librdkafka copies the key and takes the headers over.  It does not copy a value
 *		that stands in its batch: a batch stays until all its reports have come, or until
 *		the producer is closed.  The topic of an event is found when its batch is
 *		prepared, and holds until the next time: topics are forgotten between two
 *		attempts only.  LOCKING: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/kafka/deliver.c
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <string.h>

#include "sink/kafka/sink.h"

/*
 * Refuse an event because of its topic, or because of its size.  What is too large for the
 * library can never be sent.
 */
static void
reject(KSink *p, KSinkEvent *e, rd_kafka_resp_err_t err)
{
	bool		unsent = e->refusal == RD_KAFKA_RESP_ERR_NO_ERROR && ksink_blame(err) == KSINK_BLAME_SIZE;
	char		topic[KSINK_MAX_TOPIC + 1];
	char		text[IDEM_PROTO_MAX_MESSAGE];

	if (ksink_topic_of(p, e, topic) != NULL)
		topic[0] = '\0';
	snprintf(text, sizeof(text), "topic \"%s\": %s", topic, rd_kafka_err2str(err));
	idem_intake_decide(&p->in, e, unsent ? IDEM_PROTO_IMPOSSIBLE : IDEM_PROTO_REJECTED, ksink_sqlstate(err), text);
	if (e->refusal != RD_KAFKA_RESP_ERR_NO_ERROR && ksink_blame(err) == KSINK_BLAME_EVENT)
		ksink_forget_topic(p, topic);
}

/* Give a record to librdkafka. */
static rd_kafka_resp_err_t
produce(KSink *p, KSinkEvent *e, KSinkRecord *r)
{
	int			flags = r->owned_value != NULL ? RD_KAFKA_MSG_F_COPY : 0;
	rd_kafka_resp_err_t err;

	err = rd_kafka_producev(p->rk, RD_KAFKA_V_RKT(e->target->handle), RD_KAFKA_V_MSGFLAGS(flags),
							RD_KAFKA_V_KEY(r->key, r->key_len),
							RD_KAFKA_V_VALUE((void *) r->value, r->value_len),
							RD_KAFKA_V_TIMESTAMP(r->timestamp), RD_KAFKA_V_HEADERS(r->headers),
							RD_KAFKA_V_OPAQUE(e), RD_KAFKA_V_END);
	if (err == RD_KAFKA_RESP_ERR_NO_ERROR)
	{
		r->headers = NULL;
		e->sent = true;
		e->batch->open++;
		p->sent++;
	}
	return err;
}

/* Do both texts, of one batch, have the same bytes? */
static bool
same_text(const KSinkEvent *e, IdemSpan a, IdemSpan b)
{
	return a.len == b.len && memcmp(idem_batch_at(e, a), idem_batch_at(e, b), a.len) == 0;
}

/* Do both events, of one batch, surely have the same topic? */
static bool
same_topic(const KSink *p, const KSinkEvent *a, const KSinkEvent *b)
{
	return p->config.topic_is_fixed ||
		(!p->config.topic_needs_headers && same_text(a, a->event_type, b->event_type) &&
		 same_text(a, a->aggregate_type, b->aggregate_type));
}

/*
 * Decide the event without the brokers' help, if that can be done.  last: an
 * earlier event of the batch, whose topic was found just now, or NULL.
 */
static bool
prepare_event(KSink *p, KSinkEvent *e, const KSinkEvent *last)
{
	char		name[KSINK_MAX_TOPIC + 1];
	const char *problem;

	if (idem_intake_is_blocked(&p->in, e))
	{
		/* what was delivered behind a failed event has to come again */
		idem_intake_decide(&p->in, e, e->delivered ? IDEM_PROTO_UNKNOWN : IDEM_PROTO_SKIPPED, "00000", NULL);
		return true;
	}
	if (e->delivered)
		return true;
	if (last != NULL && same_topic(p, e, last))
		e->target = last->target;
	else
	{
		problem = ksink_topic_of(p, e, name);
		if (problem != NULL)
		{
			idem_intake_decide(&p->in, e, IDEM_PROTO_IMPOSSIBLE, "22023", problem);
			return true;
		}
		if (!ksink_ask_topic(p, name, &e->target))
			return false;
	}
	if (e->target->err != RD_KAFKA_RESP_ERR_NO_ERROR)
		reject(p, e, e->target->err);
	return true;
}

bool
ksink_prepare_batch(KSink *p, KSinkBatch *b)
{
	const KSinkEvent *last = NULL;

	for (uint32_t i = 0; i < b->count; i++)
	{
		KSinkEvent *e = &b->events[i];

		e->target = NULL;		/* of a former attempt: forgotten */
		if (e->outcome != 0)
			continue;
		if (!prepare_event(p, e, last))
			return false;
		if (e->target != NULL)
			last = e;
	}
	return true;
}

/* Send an undecided event; note a refusal that librdkafka tells at once. */
static void
send_event(KSink *p, KSinkEvent *e)
{
	KSinkRecord r;
	rd_kafka_resp_err_t err;

	ksink_make_record(p, e, &r);
	err = produce(p, e, &r);
	ksink_free_record(&r);
	if (err == RD_KAFKA_RESP_ERR_NO_ERROR)
		return;
	if (ksink_blame(err) == KSINK_BLAME_SIZE || ksink_blame(err) == KSINK_BLAME_EVENT)
		reject(p, e, err);
	else
		ksink_note_trouble(p, err, NULL);
}

void
ksink_send_event(KSink *p, KSinkEvent *e)
{
	if (e->outcome != 0 || e->delivered || e->sent)
		return;
	/* an event that was refused a moment ago may block this one */
	if (idem_intake_is_blocked(&p->in, e))
		idem_intake_decide(&p->in, e, IDEM_PROTO_SKIPPED, "00000", NULL);
	else
		send_event(p, e);
}

void
ksink_send_batch(KSink *p, KSinkBatch *b)
{
	for (uint32_t i = 0; i < b->count && !ksink_in_trouble(p); i++)
		ksink_send_event(p, &b->events[i]);
}

void
ksink_reset_batch(KSink *p, KSinkBatch *b)
{
	for (uint32_t i = 0; i < b->count; i++)
	{
		b->events[i].sent = false;
		b->events[i].refusal = RD_KAFKA_RESP_ERR_NO_ERROR;
		if (p->config.exactly_once)
			b->events[i].delivered = false;
	}
	b->open = 0;
}

uint32_t
ksink_decide_refused(KSink *p, KSinkBatch *b)
{
	uint32_t	n = 0;

	for (uint32_t i = 0; i < b->count; i++)
	{
		KSinkEvent *e = &b->events[i];

		if (e->refusal == RD_KAFKA_RESP_ERR_NO_ERROR || e->outcome != 0)
			continue;
		reject(p, e, e->refusal);
		n++;
	}
	return n;
}
