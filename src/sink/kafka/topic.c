/*-------------------------------------------------------------------------
 *
 * topic.c
 *		Asks the brokers whether a topic exists, and whether it is clean.
 *
 * A record for a topic that does not exist would spoil its transaction, after half a
 * minute.  So each topic is asked for before its first record.
 *
 * INVARIANT
 *		Exactly once, a producer writes into a topic only if no transaction stood open
 *		there when it was made: ended.c.
 *
 * MEMORY
 *		A topic that exists is remembered until the brokers refuse it, or the producer is
 *		replaced; a refusal is remembered for NEGATIVE_LIFE.  Events point to topics: see
 *		deliver.c.  LOCKING: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/kafka/topic.c
 *
 *-------------------------------------------------------------------------
 */
#include <stdlib.h>
#include <string.h>

#include "sink/kafka/sink.h"

#define NEGATIVE_LIFE	1000	/* ms */
#define ASK_TIMEOUT		2000	/* ms for a question, before it is asked again */
#define CREATE_TIME		10000	/* ms for the brokers to create a topic */
#define MARGIN			5000

static struct
{
	const char *name;
	rd_kafka_resp_err_t err;
}			question;			/* of ask_job */

/* Which list has the topic? */
static KSinkTopic **
list_of(KSink *p, const char *name)
{
	uint32_t	h = UINT32_C(2166136261);

	for (; *name != '\0'; name++)
		h = (h ^ (unsigned char) *name) * UINT32_C(16777619);
	return &p->topics[h % KSINK_TOPIC_LISTS];
}

/* The topic of that name, if it was asked for. */
static KSinkTopic *
find_topic(KSink *p, const char *name)
{
	KSinkTopic *t = *list_of(p, name);

	while (t != NULL && strcmp(t->name, name) != 0)
		t = t->next;
	return t;
}

/* Remember a topic; its answer is still to be noted. */
static KSinkTopic *
add_topic(KSink *p, const char *name)
{
	KSinkTopic **list = list_of(p, name);
	KSinkTopic *t = idem_sink_alloc(sizeof(KSinkTopic));

	memset(t, 0, sizeof(*t));
	memcpy(t->name, name, strlen(name) + 1);
	t->next = *list;
	*list = t;
	return t;
}

static void
free_topic(KSinkTopic *t)
{
	if (t->handle != NULL)
		rd_kafka_topic_destroy(t->handle);
	free(t);
}

rd_kafka_resp_err_t
ksink_topic_metadata(KSink *p, const char *name, int64_t deadline, int *partitions)
{
	const struct rd_kafka_metadata *metadata;
	rd_kafka_topic_t *topic = rd_kafka_topic_new(p->rk, name, NULL);
	int64_t		created_by = p->config.create_topics ? idem_sink_clock() + CREATE_TIME : 0;
	rd_kafka_resp_err_t err;
	int64_t		now;

	if (topic == NULL)
		return rd_kafka_last_error();
	for (;;)
	{
		err = rd_kafka_metadata(p->rk, 0, topic, &metadata, ASK_TIMEOUT);
		if (err == RD_KAFKA_RESP_ERR_NO_ERROR)
		{
			err = metadata->topic_cnt == 1 ? metadata->topics[0].err : RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART;
			*partitions = metadata->topic_cnt == 1 ? metadata->topics[0].partition_cnt : 0;
			rd_kafka_metadata_destroy(metadata);
		}
		rd_kafka_poll(p->rk, 0);
		now = idem_sink_clock();
		if (err == RD_KAFKA_RESP_ERR_NO_ERROR || now >= deadline)
			break;
		/* a topic that is being created has no leader at first */
		if (ksink_blame(err) != KSINK_BLAME_OUTAGE &&
			(err != RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART || now >= created_by))
			break;
		rd_kafka_poll(p->rk, 100);
	}
	rd_kafka_topic_destroy(topic);
	p->topic_missing = err == RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART;
	return err;
}

static bool
ask_job(KSink *p)
{
	int64_t		deadline = idem_sink_clock() + p->config.timeout;
	int			partitions = 0;

	question.err = ksink_topic_metadata(p, question.name, deadline, &partitions);
	return question.err != RD_KAFKA_RESP_ERR_NO_ERROR || !p->config.exactly_once ||
		ksink_await_ended(p, question.name, partitions, deadline);
}

/* Ask the brokers for the topic, and note their answer.  False: p->failure. */
static bool
ask(KSink *p, const char *name, KSinkTopic **topic)
{
	question.name = name;
	if (!ksink_run(p, ask_job, p->config.timeout + MARGIN, "ask for a topic"))
		return false;
	if (ksink_blame(question.err) != KSINK_BLAME_EVENT && question.err != RD_KAFKA_RESP_ERR_NO_ERROR)
		return ksink_fail_for_error(p, question.err, "ask the brokers for a topic", NULL);
	if (*topic == NULL)
		*topic = add_topic(p, name);
	(*topic)->err = question.err;
	(*topic)->asked_at = idem_sink_clock();
	if (question.err == RD_KAFKA_RESP_ERR_NO_ERROR)
	{
		(*topic)->handle = rd_kafka_topic_new(p->rk, name, NULL);
		if ((*topic)->handle == NULL)
			return ksink_fail_for_error(p, rd_kafka_last_error(), "use a topic", NULL);
	}
	return true;
}

bool
ksink_ask_topic(KSink *p, const char *name, KSinkTopic **topic)
{
	*topic = find_topic(p, name);
	if (*topic != NULL && ((*topic)->err == RD_KAFKA_RESP_ERR_NO_ERROR ||
						   idem_sink_clock() - (*topic)->asked_at <= NEGATIVE_LIFE))
		return true;
	return ask(p, name, topic);
}

void
ksink_forget_topic(KSink *p, const char *name)
{
	for (KSinkTopic **list = list_of(p, name); *list != NULL; list = &(*list)->next)
	{
		KSinkTopic *t = *list;

		if (strcmp(t->name, name) != 0)
			continue;
		*list = t->next;
		free_topic(t);
		return;
	}
}

void
ksink_forget_topics(KSink *p)
{
	for (int i = 0; i < KSINK_TOPIC_LISTS; i++)
		while (p->topics[i] != NULL)
		{
			KSinkTopic *t = p->topics[i];

			p->topics[i] = t->next;
			free_topic(t);
		}
}
