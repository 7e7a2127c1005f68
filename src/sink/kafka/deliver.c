/*-------------------------------------------------------------------------
 *
 * deliver.c
 *		Sends the events of a batch to the brokers.
 *
 * INVARIANT
 *		With key order no event is sent whose key an earlier event blocks.
 *
 * MEMORY
 *		librdkafka copies key and value, and takes the headers over.  LOCKING: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/kafka/deliver.c
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>

#include "sink/kafka/sink.h"

/* Refuse an event because of its topic, or because of its size. */
static void
reject(KSink *p, KSinkEvent *e, rd_kafka_resp_err_t err)
{
	char		topic[KSINK_MAX_TOPIC + 1];
	char		text[IDEM_PROTO_MAX_MESSAGE];

	if (ksink_topic_of(p, e, topic) != NULL)
		topic[0] = '\0';
	snprintf(text, sizeof(text), "topic \"%s\": %s", topic, rd_kafka_err2str(err));
	ksink_decide(p, e, IDEM_PROTO_REJECTED, ksink_sqlstate(err), text);
	if (e->refusal != RD_KAFKA_RESP_ERR_NO_ERROR && ksink_blame(err) == KSINK_BLAME_EVENT)
		ksink_forget_topic(p, topic);
}

/* Give a record to librdkafka. */
static rd_kafka_resp_err_t
produce(KSink *p, KSinkEvent *e, KSinkRecord *r)
{
	rd_kafka_resp_err_t err;

	err = rd_kafka_producev(p->rk, RD_KAFKA_V_TOPIC(r->topic), RD_KAFKA_V_MSGFLAGS(RD_KAFKA_MSG_F_COPY),
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

/* Decide the event without the brokers' help, if that can be done. */
static bool
prepare_event(KSink *p, KSinkEvent *e)
{
	char		topic[KSINK_MAX_TOPIC + 1];
	rd_kafka_resp_err_t err;
	const char *problem;

	if (ksink_is_blocked(p, e))
	{
		/* what was delivered behind a failed event has to come again */
		ksink_decide(p, e, e->delivered ? IDEM_PROTO_UNKNOWN : IDEM_PROTO_SKIPPED, "00000", NULL);
		return true;
	}
	if (e->delivered)
		return true;
	problem = ksink_topic_of(p, e, topic);
	if (problem != NULL)
	{
		ksink_decide(p, e, IDEM_PROTO_REJECTED, "22023", problem);
		return true;
	}
	if (!ksink_ask_topic(p, topic, &err))
		return false;
	if (err != RD_KAFKA_RESP_ERR_NO_ERROR)
		reject(p, e, err);
	return true;
}

bool
ksink_prepare_batch(KSink *p, KSinkBatch *b)
{
	for (uint32_t i = 0; i < b->count; i++)
		if (b->events[i].outcome == 0 && !prepare_event(p, &b->events[i]))
			return false;
	return true;
}

bool
ksink_is_proven(KSink *p, const KSinkEvent *e)
{
	char		name[KSINK_MAX_TOPIC + 1];
	const KSinkTopic *topic = ksink_topic_of(p, e, name) == NULL ? ksink_find_topic(p, name) : NULL;

	return topic != NULL && topic->proven;
}

void
ksink_prove(KSink *p, const KSinkEvent *e)
{
	char		name[KSINK_MAX_TOPIC + 1];
	KSinkTopic *topic = ksink_topic_of(p, e, name) == NULL ? ksink_find_topic(p, name) : NULL;

	if (topic != NULL)
		topic->proven = true;
}

/* Send an undecided event; note a refusal that librdkafka tells at once. */
static void
send_event(KSink *p, KSinkEvent *e)
{
	KSinkRecord r;
	rd_kafka_resp_err_t err;

	ksink_topic_of(p, e, r.topic);
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
	if (ksink_is_blocked(p, e))
		ksink_decide(p, e, IDEM_PROTO_SKIPPED, "00000", NULL);
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
