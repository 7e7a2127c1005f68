/*-------------------------------------------------------------------------
 *
 * setup.h
 *		What the brokers need before a kafka sink can work.
 *
 * The sink creates nothing by itself, unless its option create_topics is on.
 * The SQL function sink_setup(server, relay) prints these commands, and an
 * operator runs them.  They can be run again.  Each %s is text that is quoted
 * for a shell.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/kafka/setup.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_SINK_KAFKA_SETUP_H
#define IDEM_SINK_KAFKA_SETUP_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

/*
 * The position topic: brokers, topic.  Small segments are compacted soon, so
 * that a start need not read much.
 */
#define IDEM_SINK_KAFKA_POSITION_SETUP \
	"kafka-topics.sh --bootstrap-server %s --create --if-not-exists --topic %s --partitions 1 \\\n" \
	"    --config cleanup.policy=compact --config segment.bytes=1048576 --config min.cleanable.dirty.ratio=0.1\n"

/* A topic of events, with the brokers' number of partitions: brokers, topic. */
#define IDEM_SINK_KAFKA_TOPIC_SETUP \
	"kafka-topics.sh --bootstrap-server %s --create --if-not-exists --topic %s\n"

/* Rights on the position topic and on the transactional id: brokers, user, name. */
#define IDEM_SINK_KAFKA_POSITION_ACL \
	"kafka-acls.sh --bootstrap-server %s --add --allow-principal %s \\\n" \
	"    --operation Read --operation Write --operation Describe --operation DescribeConfigs --topic %s\n"
#define IDEM_SINK_KAFKA_TRANSACTION_ACL \
	"kafka-acls.sh --bootstrap-server %s --add --allow-principal %s \\\n" \
	"    --operation Write --operation Describe --transactional-id %s\n"

/* Rights on the topics of events: brokers, user, name, literal or prefixed. */
#define IDEM_SINK_KAFKA_TOPIC_ACL \
	"kafka-acls.sh --bootstrap-server %s --add --allow-principal %s \\\n" \
	"    --operation Write --operation Describe --topic %s --resource-pattern-type %s\n"

/*
 * Write the name of the relay's position topic, in which {relay} stands for the
 * relay.  False if it does not fit.
 */
static inline bool
idem_sink_kafka_position_topic(char *dst, size_t cap, const char *template, const char *relay)
{
	static const char place[] = "{relay}";
	size_t		n = 0;

	while (*template != '\0')
	{
		bool		found = strncmp(template, place, sizeof(place) - 1) == 0;
		const char *part = found ? relay : template;
		size_t		len = found ? strlen(relay) : 1;

		if (n + len >= cap)
			return false;
		memcpy(dst + n, part, len);
		n += len;
		template += found ? sizeof(place) - 1 : 1;
	}
	dst[n] = '\0';
	return true;
}

#endif							/* IDEM_SINK_KAFKA_SETUP_H */
