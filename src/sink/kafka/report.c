/*-------------------------------------------------------------------------
 *
 * report.c
 *		Takes librdkafka's reports of records.
 *
 * A report of an event that was refused notes the refusal in the event.  Whatever
 * else fails is noted in p->trouble; the flight decides what to do when all reports
 * have come.
 *
 * A request holds many records, and the broker refuses it as a whole if it is too
 * large.  Which record is to blame is known only when each is sent alone
 * (p->single).
 *
 * LOCKING
 *		None: reports come to the thread that polls, which is the main thread, or
 *		the helper thread while the main thread waits for it.
 * MEMORY
 *		The opaque value of a record is its event; NULL: a record of ours.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/kafka/report.c
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>

#include "sink/common/hide.h"
#include "sink/kafka/sink.h"

bool
ksink_in_trouble(const KSink *p)
{
	const KSinkTrouble *t = &p->trouble;

	return t->refused || t->too_large || t->fenced || t->dropped || t->outage;
}

void
ksink_note_trouble(KSink *p, rd_kafka_resp_err_t err, const char *text)
{
	KSinkTrouble *t = &p->trouble;
	bool	   *flag;

	switch (ksink_blame(err))
	{
		case KSINK_BLAME_FENCE:
			flag = &t->fenced;
			break;
		case KSINK_BLAME_NOBODY:
			flag = &t->dropped;
			break;
		default:
			flag = &t->outage;
			break;
	}
	if (t->message[0] == '\0' || (*flag == false && flag != &t->dropped))
		snprintf(t->message, sizeof(t->message), "%s", text != NULL ? idem_sink_without_secrets(text) : rd_kafka_err2str(err));
	*flag = true;
}

/* The brokers refused a record of ours: the position topic is to blame. */
static void
refuse_position(KSink *p, rd_kafka_resp_err_t err)
{
	KSinkBlame	blame = ksink_blame(err);

	if (blame == KSINK_BLAME_EVENT || blame == KSINK_BLAME_SIZE)
		idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, ksink_sqlstate(err),
					   "could not write to position topic \"%s\": %s; idempotency.sink_setup(server) prints what it needs",
					   p->config.position_topic, rd_kafka_err2str(err));
	ksink_note_trouble(p, err, NULL);
}

/* The brokers refused an event. */
static void
refuse(KSink *p, KSinkEvent *e, rd_kafka_resp_err_t err)
{
	KSinkBlame	blame = ksink_blame(err);

	if (blame == KSINK_BLAME_EVENT || (blame == KSINK_BLAME_SIZE && p->single))
	{
		e->refusal = err;
		p->trouble.refused = true;
	}
	else if (blame == KSINK_BLAME_SIZE)
		p->trouble.too_large = true;
	else
		ksink_note_trouble(p, err, NULL);
}

void
ksink_on_report(rd_kafka_t *rk, const rd_kafka_message_t *message, void *opaque)
{
	KSink	   *p = opaque;
	KSinkEvent *e = message->_private;

	(void) rk;
	p->sent--;
	p->reports++;
	if (e == NULL)
	{
		if (message->err != 0)
			refuse_position(p, message->err);
		else
			p->reported_offset = message->offset;
		return;
	}
	e->sent = false;
	e->batch->open--;
	if (message->err != 0)
		refuse(p, e, message->err);
	else
		e->delivered = true;
}
