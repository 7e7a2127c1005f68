/*-------------------------------------------------------------------------
 *
 * position.c
 *		The relay's position topic.
 *
 * The topic has one partition, is compacted, and belongs to one relay.  It has two
 * kinds of records, told by their keys:
 *		position RELAY	the position of the last batch of a transaction, written
 *						in that transaction: "1 ROW_ID K INCARNATION"
 *		start RELAY		the incarnation of a program that took over, written in
 *						a transaction of its own
 * A program reads up to its own start record.  So it sees every position that was
 * committed before, and knows that no other transaction hides the end.
 *
 * Before a program fences or writes anything, it reads whether the topic is that of
 * another relay.  A relay that has a position in the topic owns it, and passes over
 * what others wrote there.  Without a position, the relay whose record is the first
 * owns the topic.  So a relay with a wrong position_topic never stops the owner.
 *
 * A start record behind its own proves to a program that another instance has taken
 * over.  The brokers alone cannot tell this from a transaction that timed out.
 *
 * INVARIANT
 *		The offset of each record that is written is above those that were written
 *		or read before.  Otherwise the topic was made anew, and what is stored in it
 *		tells nothing.
 *
 * A crash leaves the position of the last committed transaction.
 * MEMORY
 *		None of its own.  LOCKING: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/kafka/position.c
 *
 *-------------------------------------------------------------------------
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sink/kafka/sink.h"

#define KEY_POSITION	"position "
#define KEY_START		"start "
#define KEY_BYTES		512
#define VALUE_BYTES		512
#define RECENT			500		/* offsets before the end that are read first */
#define POLL_TIME		100		/* ms */
#define DOING_POLICY	"read the configuration of the position topic"
#define DOING_CREATE	"create the position topic"

/* Fail because the topic is not as it has to be. */
static bool
bad_topic(KSink *p, const char *problem)
{
	return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "42704",
						  "position topic \"%s\" %s; idempotency.sink_setup(server) prints what it needs",
						  p->config.position_topic, problem);
}

/* A request to the brokers' administration. */
typedef struct Request
{
	rd_kafka_admin_op_t kind;
	const char *doing;			/* for messages */
	void		(*send) (KSink *p, const rd_kafka_AdminOptions_t *options, rd_kafka_queue_t *queue);
	bool		(*judge) (KSink *p, rd_kafka_event_t *answer);	/* false: p->failure */
} Request;

/* Send the request and judge its answer.  False: p->failure. */
static bool
administer(KSink *p, const Request *request, int64_t deadline)
{
	rd_kafka_queue_t *queue = rd_kafka_queue_new(p->rk);
	rd_kafka_AdminOptions_t *options = rd_kafka_AdminOptions_new(p->rk, request->kind);
	int64_t		left = deadline - idem_sink_clock();
	rd_kafka_event_t *answer;
	bool		ok;

	left = left > 1000 ? left : 1000;
	rd_kafka_AdminOptions_set_request_timeout(options, (int) left, NULL, 0);
	request->send(p, options, queue);
	answer = rd_kafka_queue_poll(queue, (int) left + 1000);
	ok = answer != NULL ? request->judge(p, answer) :
		ksink_fail_for_error(p, RD_KAFKA_RESP_ERR__TIMED_OUT, request->doing, NULL);
	if (answer != NULL)
		rd_kafka_event_destroy(answer);
	rd_kafka_AdminOptions_destroy(options);
	rd_kafka_queue_destroy(queue);
	return ok;
}

/* Find the topic's cleanup.policy in the answer. */
static const char *
cleanup_policy(const rd_kafka_ConfigResource_t *resource)
{
	size_t		n;
	const rd_kafka_ConfigEntry_t **entries = rd_kafka_ConfigResource_configs(resource, &n);

	for (size_t i = 0; i < n; i++)
		if (strcmp(rd_kafka_ConfigEntry_name(entries[i]), "cleanup.policy") == 0)
			return rd_kafka_ConfigEntry_value(entries[i]);
	return NULL;
}

/* Judge the answer to DescribeConfigs. */
static bool
judge_policy(KSink *p, rd_kafka_event_t *event)
{
	const rd_kafka_DescribeConfigs_result_t *result = rd_kafka_event_DescribeConfigs_result(event);
	const rd_kafka_ConfigResource_t **resources = NULL;
	rd_kafka_resp_err_t err = rd_kafka_event_error(event);
	const char *policy;
	size_t		n = 0;

	if (err == 0 && result != NULL)
	{
		resources = rd_kafka_DescribeConfigs_result_resources(result, &n);
		if (n == 1)
			err = rd_kafka_ConfigResource_error(resources[0]);
	}
	if (err == 0 && n != 1)
		err = RD_KAFKA_RESP_ERR__BAD_MSG;
	if (err == RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED)
		return bad_topic(p, "does not show its configuration: the user lacks DESCRIBE_CONFIGS on it");
	if (err != 0)
		return ksink_fail_for_error(p, err, DOING_POLICY, NULL);
	policy = resources != NULL ? cleanup_policy(resources[0]) : NULL;
	if (policy == NULL || strcmp(policy, "compact") != 0)
		return bad_topic(p, "must have cleanup.policy=compact, or the position is forgotten");
	return true;
}

/* Ask for the topic's configuration. */
static void
send_policy_question(KSink *p, const rd_kafka_AdminOptions_t *options, rd_kafka_queue_t *queue)
{
	rd_kafka_ConfigResource_t *resource = rd_kafka_ConfigResource_new(RD_KAFKA_RESOURCE_TOPIC,
																	  p->config.position_topic);

	rd_kafka_DescribeConfigs(p->rk, &resource, 1, options, queue);
	rd_kafka_ConfigResource_destroy(resource);
}

/* Judge the answer to CreateTopics.  A topic that is there already will do. */
static bool
judge_creation(KSink *p, rd_kafka_event_t *event)
{
	const rd_kafka_CreateTopics_result_t *result = rd_kafka_event_CreateTopics_result(event);
	rd_kafka_resp_err_t err = rd_kafka_event_error(event);
	size_t		n = 0;

	if (err == 0 && result != NULL)
	{
		const rd_kafka_topic_result_t **topics = rd_kafka_CreateTopics_result_topics(result, &n);

		if (n == 1)
			err = rd_kafka_topic_result_error(topics[0]);
	}
	if (err == RD_KAFKA_RESP_ERR_TOPIC_ALREADY_EXISTS || (err == 0 && n == 1))
		return true;
	if (err == RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED || err == RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED)
		return bad_topic(p, "cannot be created: the user lacks CREATE");
	return ksink_fail_for_error(p, err != 0 ? err : RD_KAFKA_RESP_ERR__BAD_MSG, DOING_CREATE, NULL);
}

/* Ask for the topic to be created. */
static void
send_creation(KSink *p, const rd_kafka_AdminOptions_t *options, rd_kafka_queue_t *queue)
{
	rd_kafka_NewTopic_t *topic = rd_kafka_NewTopic_new(p->config.position_topic, 1, -1, NULL, 0);

	rd_kafka_NewTopic_set_config(topic, "cleanup.policy", "compact");
	rd_kafka_NewTopic_set_config(topic, "segment.bytes", "1048576");
	rd_kafka_NewTopic_set_config(topic, "min.cleanable.dirty.ratio", "0.1");
	rd_kafka_CreateTopics(p->rk, &topic, 1, options, queue);
	rd_kafka_NewTopic_destroy(topic);
}

/* The topic is compacted. */
static const Request check_policy = {
	RD_KAFKA_ADMIN_OP_DESCRIBECONFIGS, DOING_POLICY, send_policy_question, judge_policy
};

/* The topic is there, or was created. */
static const Request create_topic = {
	RD_KAFKA_ADMIN_OP_CREATETOPICS, DOING_CREATE, send_creation, judge_creation
};

bool
ksink_check_position_topic(KSink *p, int64_t deadline)
{
	int			partitions = 0;
	rd_kafka_resp_err_t err;

	if (p->config.create_topics && !administer(p, &create_topic, deadline))
		return false;
	err = ksink_topic_metadata(p, p->config.position_topic, deadline, &partitions);
	if (err == RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART)
		return bad_topic(p, "does not exist");
	if (err == RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED)
		return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "42501",
							  "the user lacks DESCRIBE on position topic \"%s\"; idempotency.sink_setup(server) prints what it needs",
							  p->config.position_topic);
	if (err != RD_KAFKA_RESP_ERR_NO_ERROR)
		return ksink_fail_for_error(p, err, "ask for the position topic", NULL);
	if (partitions != 1)
		return bad_topic(p, "must have one partition");
	return administer(p, &check_policy, deadline);
}

/* Send a record to the position topic. */
static rd_kafka_resp_err_t
send_record(KSink *p, const char *kind, const char *value)
{
	char		key[KEY_BYTES];
	rd_kafka_resp_err_t err;

	snprintf(key, sizeof(key), "%s%s", kind, p->config.relay);
	p->reported_offset = -1;
	err = rd_kafka_producev(p->rk, RD_KAFKA_V_TOPIC(p->config.position_topic),
							RD_KAFKA_V_PARTITION(0), RD_KAFKA_V_MSGFLAGS(RD_KAFKA_MSG_F_COPY),
							RD_KAFKA_V_KEY(key, strlen(key)), RD_KAFKA_V_VALUE((void *) value, strlen(value)),
							RD_KAFKA_V_OPAQUE(NULL), RD_KAFKA_V_END);
	if (err == RD_KAFKA_RESP_ERR_NO_ERROR)
		p->sent++;
	return err;
}

rd_kafka_resp_err_t
ksink_send_position(KSink *p, IdemProtoPosition position)
{
	char		value[VALUE_BYTES];

	snprintf(value, sizeof(value), "1 %" PRId64 " %" PRId64 " %s", position.row_id, position.k,
			 p->config.incarnation);
	return send_record(p, KEY_POSITION, value);
}

void
ksink_position_stored(KSink *p, IdemProtoPosition position)
{
	p->has_position = true;
	p->stored = position;
	p->offset = p->reported_offset;
	snprintf(p->stored_incarnation, sizeof(p->stored_incarnation), "%s", p->config.incarnation);
}

bool
ksink_is_stored(const KSink *p, IdemProtoPosition position)
{
	return p->has_position && strcmp(p->stored_incarnation, p->config.incarnation) == 0 &&
		p->stored.row_id == position.row_id && p->stored.k == position.k;
}

/* Wait for the report of the record that was sent. */
static bool
await_report(KSink *p, int64_t deadline)
{
	while (p->sent > 0 && idem_sink_clock() < deadline)
		rd_kafka_poll(p->rk, POLL_TIME);
	return p->failure.outcome == 0 && p->sent == 0 && p->reported_offset >= 0;
}

/* The transaction of the start record failed with this error, or NULL. */
static bool
mark_failed(KSink *p, rd_kafka_error_t *error)
{
	const char *text = error != NULL ? rd_kafka_error_string(error) : p->trouble.message;
	rd_kafka_resp_err_t err = error != NULL ? rd_kafka_error_code(error) : RD_KAFKA_RESP_ERR__TIMED_OUT;

	ksink_fail_for_error(p, err, "take over the position topic", text);
	if (error != NULL)
		rd_kafka_error_destroy(error);
	return false;
}

bool
ksink_mark_takeover(KSink *p, int64_t deadline)
{
	rd_kafka_error_t *error = rd_kafka_begin_transaction(p->rk);
	rd_kafka_resp_err_t err;
	int64_t		left;

	if (error != NULL)
		return mark_failed(p, error);
	err = send_record(p, KEY_START, p->config.incarnation);
	if (err != RD_KAFKA_RESP_ERR_NO_ERROR)
		return ksink_fail_for_error(p, err, "write to the position topic", NULL);
	if (!await_report(p, deadline))
		return mark_failed(p, NULL);
	left = deadline - idem_sink_clock();
	error = rd_kafka_commit_transaction(p->rk, left > 1000 ? (int) left : 1000);
	if (error != NULL)
		return mark_failed(p, error);
	p->takeover_offset = p->reported_offset;
	return true;
}

/* Take a number and the space behind it from the text; false if they are not there. */
static bool
take_number(const char **text, int64_t *number)
{
	char	   *end;

	errno = 0;
	*number = strtoll(*text, &end, 10);
	if (end == *text || errno != 0 || *end != ' ')
		return false;
	*text = end + 1;
	return true;
}

/* Take a position record: "1 ROW_ID K INCARNATION". */
static void
take_position(KSink *p, const char *value)
{
	IdemProtoPosition position;
	int64_t		version;
	const char *rest = value;

	if (!take_number(&rest, &version) || version != 1 ||
		!take_number(&rest, &position.row_id) || !take_number(&rest, &position.k))
	{
		bad_topic(p, "has a record that this program does not understand");
		return;
	}
	p->has_position = true;
	p->stored = position;
	snprintf(p->stored_incarnation, sizeof(p->stored_incarnation), "%s", rest);
}

/* Is the record of this kind? */
static bool
is_kind(const char *key, const char *kind)
{
	return strncmp(key, kind, strlen(kind)) == 0;
}

/* Note the record of another relay, or of something else: relay is "". */
static void
take_other(KSink *p, const char *relay, bool is_start, int64_t offset)
{
	size_t		n = 0;

	if (p->other_record < 0 || offset < p->other_record)
		p->other_record = offset;
	if (!is_start)
		p->other_position = true;
	/* the name is text of the brokers: only what any log can hold */
	for (; relay[n] != '\0' && n + 1 < sizeof(p->other_relay); n++)
		p->other_relay[n] = relay[n] > ' ' && relay[n] < 127 ? relay[n] : '?';
	p->other_relay[n] = '\0';
}

/* Take a record of the topic. */
static void
take_record(KSink *p, const rd_kafka_message_t *m)
{
	char		key[KEY_BYTES];
	char		value[VALUE_BYTES];
	const char *relay;
	bool		is_start;

	if (m->payload == NULL || m->key == NULL)
		return;
	snprintf(key, sizeof(key), "%.*s", (int) m->key_len, (const char *) m->key);
	snprintf(value, sizeof(value), "%.*s", (int) m->len, (const char *) m->payload);
	is_start = is_kind(key, KEY_START);
	relay = is_start || is_kind(key, KEY_POSITION) ? strchr(key, ' ') + 1 : "";
	if (strcmp(relay, p->config.relay) != 0)
	{
		take_other(p, relay, is_start, m->offset);
		return;
	}
	if (p->own_record < 0 || m->offset < p->own_record)
		p->own_record = m->offset;
	if (!is_start)
		take_position(p, value);
	else if (p->takeover_offset >= 0 && m->offset > p->takeover_offset)
		p->foreign = true;
}

/*
 * Read from the offset up to "end", exclusive.  The consumer passes the ends of
 * transactions, which are no records; so its place counts, not the records.
 */
static bool
read_range(KSink *p, rd_kafka_topic_t *topic, int64_t from, int64_t end, int64_t deadline)
{
	rd_kafka_resp_err_t err = RD_KAFKA_RESP_ERR_NO_ERROR;
	int64_t		next = from;

	if (rd_kafka_consume_start(topic, 0, from) != 0)
		return ksink_fail_for_error(p, rd_kafka_last_error(), "read the position topic", NULL);
	while (next < end && p->failure.outcome == 0)
	{
		rd_kafka_message_t *m = rd_kafka_consume(topic, 0, POLL_TIME);

		if (m != NULL)
		{
			err = m->err;
			if (err == RD_KAFKA_RESP_ERR_NO_ERROR)
			{
				take_record(p, m);
				next = m->offset + 1;
			}
			else if (err == RD_KAFKA_RESP_ERR__PARTITION_EOF)
				next = m->offset;
			rd_kafka_message_destroy(m);
		}
		if (next < end && err != RD_KAFKA_RESP_ERR__PARTITION_EOF && ksink_blame(err) != KSINK_BLAME_OUTAGE &&
			err != RD_KAFKA_RESP_ERR_NO_ERROR)
		{
			ksink_fail_for_error(p, err, "read the position topic", NULL);
			break;
		}
		if (next < end && idem_sink_clock() >= deadline)
			idem_sink_fail(&p->failure, IDEM_PROTO_OUTAGE, "08006",
						   "could not read position topic \"%s\" to its end: offset %" PRId64 " of %" PRId64 "%s%s",
						   p->config.position_topic, next, end, err != 0 ? ": " : "",
						   err != 0 ? rd_kafka_err2str(err) : "");
	}
	rd_kafka_consume_stop(topic, 0);
	return p->failure.outcome == 0;
}

/* The topic's first offset, and its end for this reader. */
static bool
ask_ends(KSink *p, rd_kafka_t *reader, int64_t *low, int64_t *high, int64_t deadline)
{
	rd_kafka_resp_err_t err;

	do
		err = rd_kafka_query_watermark_offsets(reader, p->config.position_topic, 0, low, high, 2000);
	while (err != RD_KAFKA_RESP_ERR_NO_ERROR && ksink_blame(err) == KSINK_BLAME_OUTAGE &&
		   idem_sink_clock() < deadline);
	if (ksink_blame(err) == KSINK_BLAME_EVENT)
		return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, ksink_sqlstate(err),
							  "position topic \"%s\" is gone, or the user lacks READ or DESCRIBE on it: %s; idempotency.sink_setup(server) prints what it needs",
							  p->config.position_topic, rd_kafka_err2str(err));
	return err == RD_KAFKA_RESP_ERR_NO_ERROR ||
		ksink_fail_for_error(p, err, "ask for the end of the position topic", NULL);
}

/* Run with a reader of the topic. */
static bool
with_reader(KSink *p, bool (*job) (KSink *, rd_kafka_t *, rd_kafka_topic_t *, int64_t), int64_t deadline)
{
	rd_kafka_t *reader = ksink_open_reader(p, true);
	rd_kafka_topic_t *topic;
	bool		ok;

	if (reader == NULL)
		return false;
	topic = rd_kafka_topic_new(reader, p->config.position_topic, NULL);
	ok = topic != NULL ? job(p, reader, topic, deadline) :
		ksink_fail_for_error(p, rd_kafka_last_error(), "read the position topic", NULL);
	if (topic != NULL)
		rd_kafka_topic_destroy(topic);
	rd_kafka_destroy(reader);
	return ok;
}

/* Is the topic that of our relay, by what was read?  False: p->failure. */
static bool
judge_owner(KSink *p)
{
	if (p->has_position || p->other_record < 0 ||
		(!p->other_position && p->own_record >= 0 && p->own_record < p->other_record))
		return true;
	if (p->other_relay[0] == '\0')
		return bad_topic(p, "has records of something else than a relay");
	return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "42710",
						  "position topic \"%s\" is that of relay \"%s\"; give this relay's server another \"position_topic\", or delete the topic if that relay is gone",
						  p->config.position_topic, p->other_relay);
}

/*
 * Read up to the start record; before there is one, to the end.  The last position is
 * most often near the end; only if it is not, everything is read.
 */
static bool
read_start(KSink *p, rd_kafka_t *reader, rd_kafka_topic_t *topic, int64_t deadline)
{
	int64_t		low;
	int64_t		high;
	int64_t		from;

	p->has_position = false;
	p->own_record = p->other_record = -1;
	p->other_position = false;
	p->other_relay[0] = '\0';
	if (!ask_ends(p, reader, &low, &high, deadline))
		return false;
	from = high - RECENT > low ? high - RECENT : low;
	if (!read_range(p, topic, from, p->takeover_offset >= 0 ? p->takeover_offset + 1 : high, deadline))
		return false;
	if (!p->has_position && from > low &&
		!read_range(p, topic, low, from, deadline))
		return false;
	p->offset = p->takeover_offset;
	return judge_owner(p);
}

bool
ksink_check_owner(KSink *p, int64_t deadline)
{
	return with_reader(p, read_start, deadline);
}

bool
ksink_read_position(KSink *p, int64_t deadline)
{
	return with_reader(p, read_start, deadline);
}

/* Read what was written behind p->offset. */
static bool
read_news(KSink *p, rd_kafka_t *reader, rd_kafka_topic_t *topic, int64_t deadline)
{
	int64_t		low;
	int64_t		high;

	for (;;)
	{
		if (!ask_ends(p, reader, &low, &high, deadline))
			return false;
		if (high > p->offset || idem_sink_clock() >= deadline)
			break;
		/* readers see a transaction some time after its commit is answered */
		rd_kafka_poll(reader, POLL_TIME);
	}
	if (high <= p->offset)
		return idem_sink_fail(&p->failure, IDEM_PROTO_OUTAGE, "55000",
							  "position topic \"%s\" ends at offset %" PRId64 ", before offset %" PRId64 " that was written: the topic was made anew",
							  p->config.position_topic, high, p->offset);
	return high == p->offset + 1 || read_range(p, topic, p->offset + 1, high, deadline);
}

bool
ksink_read_news(KSink *p, int64_t deadline)
{
	return with_reader(p, read_news, deadline);
}
