/*-------------------------------------------------------------------------
 *
 * producer.c
 *		Handles of librdkafka: the producer, and the reader of the position topic.
 *
 * INVARIANT
 *		librdkafka gets the properties of config.c and of this file, and no others:
 *		no environment, no file that an option does not name.
 *
 * LOCKING
 *		None.  MEMORY: a handle lives until it is closed.  The program ends without
 *		closing the producer: its transaction is the successor's to abort.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/kafka/producer.c
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <string.h>

#include "sink/common/hide.h"
#include "sink/kafka/sink.h"

#define ASK_TIMEOUT	1000		/* ms for a question, before it is asked again */
#define SCRAM_VERSION	0x020601ff
#define REFRESH		10000		/* ms until librdkafka asks again for topics
								 * that it knows */
#define PROPAGATION	5000		/* ms until a topic that vanished counts as
								 * gone */

/* Set a property.  False: p->failure, which names the property only. */
static bool
set(KSink *p, rd_kafka_conf_t *conf, const char *name, const char *value)
{
	char		problem[512];

	if (rd_kafka_conf_set(conf, name, value, problem, sizeof(problem)) == RD_KAFKA_CONF_OK)
		return true;
	return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "HV024",
						  "librdkafka %s of this machine does not take the value of its property \"%s\"",
						  rd_kafka_version_str(), name);
}

/* The properties of all handles. */
static rd_kafka_conf_t *
new_conf(KSink *p)
{
	rd_kafka_conf_t *conf = rd_kafka_conf_new();

	rd_kafka_conf_set_opaque(conf, p);
	rd_kafka_conf_set_log_cb(conf, ksink_log_callback);
	rd_kafka_conf_set_error_cb(conf, ksink_error_callback);
	ksink_want_tokens(p, conf);
	for (int i = 0; p->config.properties[i].name != NULL; i++)
	{
		if (!set(p, conf, p->config.properties[i].name, p->config.properties[i].value))
		{
			rd_kafka_conf_destroy(conf);
			return NULL;
		}
	}
	return conf;
}

/* Make a handle; conf is gone afterwards.  NULL: p->failure. */
static rd_kafka_t *
new_handle(KSink *p, rd_kafka_type_t type, rd_kafka_conf_t *conf)
{
	char		problem[512];
	rd_kafka_t *rk = rd_kafka_new(type, conf, problem, sizeof(problem));

	if (rk == NULL)
	{
		rd_kafka_conf_destroy(conf);
		idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "HV024", "librdkafka cannot use the options: %s",
					   idem_sink_without_secrets(problem));
	}
	else if (!ksink_start_tokens(p, rk))
	{
		rd_kafka_destroy(rk);
		rk = NULL;
	}
	return rk;
}

/* Set a number. */
static bool
set_int(KSink *p, rd_kafka_conf_t *conf, const char *name, long value)
{
	char		text[24];

	snprintf(text, sizeof(text), "%ld", value);
	return set(p, conf, name, text);
}

/* The properties of a producer. */
static bool
set_producer(KSink *p, rd_kafka_conf_t *conf)
{
	const KSinkConfig *c = &p->config;
	int			message_timeout = c->timeout;
	int			propagation = c->timeout / 2 < PROPAGATION ? c->timeout / 2 : PROPAGATION;
	int			refresh = c->timeout / 3 < REFRESH ? c->timeout / 3 : REFRESH;

	/* even a plain idempotent producer would ask the brokers for an id */
	if (idem_sink_looks(&p->sink))
		return true;
	if (c->exactly_once)
	{
		if (message_timeout > c->transaction_timeout)
			message_timeout = c->transaction_timeout;
		if (!set(p, conf, "transactional.id", c->position_topic) ||
			!set_int(p, conf, "transaction.timeout.ms", c->transaction_timeout) ||
			!set(p, conf, "max.in.flight.requests.per.connection", "2"))
			return false;
	}
	else if (c->key_order)
	{
		/*
		 * The brokers take any sequence number from a producer that is new to
		 * a partition.  So with several requests in flight, the second one
		 * would be taken although the first one was refused.
		 */
		if (!set(p, conf, "enable.gapless.guarantee", "true") ||
			!set(p, conf, "max.in.flight.requests.per.connection", "1"))
			return false;
	}

	/*
	 * Without a linger time librdkafka sends what it has as soon as a request
	 * may be sent.  While it waits for a time that is not over, some versions
	 * poll without a pause.
	 */
	return set(p, conf, "enable.idempotence", "true") &&
		set(p, conf, "partitioner", "murmur2_random") &&
		set(p, conf, "linger.ms", "0") &&
		set(p, conf, "queue.buffering.max.messages", "1000000") &&
		set(p, conf, "queue.buffering.max.kbytes", "2097151") &&
		set_int(p, conf, "message.timeout.ms", message_timeout) &&
		set_int(p, conf, "topic.metadata.propagation.max.ms", propagation) &&
		set_int(p, conf, "topic.metadata.refresh.interval.ms", refresh) &&
		(!p->single || set(p, conf, "batch.num.messages", "1"));
}

bool
ksink_open_producer(KSink *p)
{
	static const uint64_t one = 1;
	rd_kafka_conf_t *conf = new_conf(p);
	rd_kafka_queue_t *queue;

	if (conf == NULL)
		return false;
	rd_kafka_conf_set_dr_msg_cb(conf, ksink_on_report);
	if (!set_producer(p, conf))
	{
		rd_kafka_conf_destroy(conf);
		return false;
	}
	p->rk = new_handle(p, RD_KAFKA_PRODUCER, conf);
	if (p->rk == NULL)
		return false;
	queue = rd_kafka_queue_get_main(p->rk);
	rd_kafka_queue_io_event_enable(queue, p->report_fd, &one, sizeof(one));
	rd_kafka_queue_destroy(queue);
	return true;
}

void
ksink_close_producer(KSink *p)
{
	if (p->rk == NULL)
		return;
	rd_kafka_purge(p->rk, RD_KAFKA_PURGE_F_QUEUE | RD_KAFKA_PURGE_F_INFLIGHT);
	rd_kafka_destroy(p->rk);
	p->rk = NULL;
}

rd_kafka_t *
ksink_open_reader(KSink *p, bool committed)
{
	rd_kafka_conf_t *conf = new_conf(p);

	if (conf == NULL)
		return NULL;
	if (!set(p, conf, "isolation.level", committed ? "read_committed" : "read_uncommitted") ||
		!set(p, conf, "enable.partition.eof", "true") ||
		!set(p, conf, "fetch.wait.max.ms", "100"))
	{
		rd_kafka_conf_destroy(conf);
		return NULL;
	}
	return new_handle(p, RD_KAFKA_CONSUMER, conf);
}

/* Is the library too old for SCRAM as newer brokers check it? */
static bool
lacks_scram(const KSink *p)
{
	return p->config.scram && rd_kafka_version() < SCRAM_VERSION;
}

bool
ksink_connect(KSink *p, int64_t deadline)
{
	const struct rd_kafka_metadata *metadata;
	char		more[IDEM_PROTO_MAX_MESSAGE];
	rd_kafka_resp_err_t err;

	for (;;)
	{
		err = rd_kafka_metadata(p->rk, 0, NULL, &metadata, ASK_TIMEOUT);
		if (err == RD_KAFKA_RESP_ERR_NO_ERROR)
		{
			rd_kafka_metadata_destroy(metadata);
			return true;
		}
		rd_kafka_poll(p->rk, 0);
		ksink_last_complaint(more, sizeof(more));
		if (ksink_login_refused())
			return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "28000", "could not log in to the brokers: %.600s%s%s%s", more,
								  lacks_scram(p) ? "; librdkafka " : "", lacks_scram(p) ? rd_kafka_version_str() : "",
								  lacks_scram(p) ? " cannot log in by SCRAM to brokers of Kafka 4, version 2.6.1 can" : "");
		if (idem_sink_clock() >= deadline)
			return idem_sink_fail(&p->failure, IDEM_PROTO_OUTAGE, "08001", "could not connect to the brokers: %s",
								  more[0] != '\0' ? more : rd_kafka_err2str(err));
	}
}
