/*-------------------------------------------------------------------------
 *
 * ended.c
 *		Waits until earlier transactions have ended in a topic.
 *
 * Brokers that are killed while they end a transaction may forget to write the end
 * into a partition.  The records there stay open, and the next end of a transaction of
 * the same producer id counts for them as well: an aborted event would be committed,
 * beside its repetition, or a committed one aborted.  So nothing is written into a
 * partition before its committed end has come to where its end stood.
 *
 * Transactions of other producers are waited for, too: nobody can tell whose they are.
 *
 * A crash leaves nothing.
 *
 * LOCKING
 *		None.  MEMORY: two readers and two lists of partitions, gone at the end.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/kafka/ended.c
 *
 *-------------------------------------------------------------------------
 */
#include "sink/kafka/sink.h"

#define ASK_TIMEOUT		2000	/* ms for a question, before it is asked again */
#define POLL_TIME		20		/* ms between two looks */

/* The ends of a topic's partitions. */
static rd_kafka_topic_partition_list_t *
new_ends(const char *topic, int partitions)
{
	rd_kafka_topic_partition_list_t *ends = rd_kafka_topic_partition_list_new(partitions);

	for (int i = 0; i < partitions; i++)
		rd_kafka_topic_partition_list_add(ends, topic, i);
	return ends;
}

/* What went wrong for any of the partitions. */
static rd_kafka_resp_err_t
error_of(const rd_kafka_topic_partition_list_t *ends)
{
	for (int i = 0; i < ends->cnt; i++)
		if (ends->elems[i].err != RD_KAFKA_RESP_ERR_NO_ERROR)
			return ends->elems[i].err;
	return RD_KAFKA_RESP_ERR_NO_ERROR;
}

/* Can another try help?  A topic that was just made is not known everywhere. */
static bool
may_pass(rd_kafka_resp_err_t err)
{
	return err == RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART ||
		(err != RD_KAFKA_RESP_ERR_NO_ERROR && ksink_blame(err) == KSINK_BLAME_OUTAGE);
}

/* Ask for the ends that this reader sees. */
static bool
ask_ends(KSink *p, rd_kafka_t *reader, rd_kafka_topic_partition_list_t *ends, int64_t deadline)
{
	rd_kafka_resp_err_t err;

	do
	{
		for (int i = 0; i < ends->cnt; i++)
		{
			/* in place of a time, the protocol takes this for the end */
			ends->elems[i].offset = RD_KAFKA_OFFSET_END;
			ends->elems[i].err = RD_KAFKA_RESP_ERR_NO_ERROR;
		}
		err = rd_kafka_offsets_for_times(reader, ends, ASK_TIMEOUT);
		if (err == RD_KAFKA_RESP_ERR_NO_ERROR)
			err = error_of(ends);
		rd_kafka_poll(reader, err != RD_KAFKA_RESP_ERR_NO_ERROR ? POLL_TIME : 0);
	} while (may_pass(err) && idem_sink_clock() < deadline);
	/* gone since it was asked for; the next start finds what there is to say */
	if (err == RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART)
		err = RD_KAFKA_RESP_ERR__TRANSPORT;
	return err == RD_KAFKA_RESP_ERR_NO_ERROR ||
		ksink_fail_for_error(p, err, "ask for the end of a topic", NULL);
}

/* The first partition whose committed end is not there yet; -1: none. */
static int
find_open(const rd_kafka_topic_partition_list_t *ends, const rd_kafka_topic_partition_list_t *committed)
{
	for (int i = 0; i < ends->cnt; i++)
		if (committed->elems[i].offset < ends->elems[i].offset)
			return i;
	return -1;
}

/* Wait until readers of committed records get as far as all others got. */
static bool
await(KSink *p, rd_kafka_t *all_reader, rd_kafka_t *committed_reader,
	  rd_kafka_topic_partition_list_t *ends, rd_kafka_topic_partition_list_t *committed, int64_t deadline)
{
	const char *topic = ends->elems[0].topic;
	int			open;

	if (!ask_ends(p, all_reader, ends, deadline))
		return false;
	for (;;)
	{
		if (!ask_ends(p, committed_reader, committed, deadline))
			return false;
		open = find_open(ends, committed);
		if (open < 0)
			return true;
		if (idem_sink_clock() >= deadline)
			return idem_sink_fail(&p->failure, IDEM_PROTO_OUTAGE, "08006",
								  "a transaction of topic \"%s\" has not ended: partition %d has records up to offset %" PRId64 ", and committed ones up to offset %" PRId64 "; if no other producer keeps one open there, the brokers have lost its end, and kafka-transactions.sh abort --topic %s --partition %d --start-offset %" PRId64 " ends it",
								  topic, open, ends->elems[open].offset, committed->elems[open].offset,
								  topic, open, committed->elems[open].offset);
		rd_kafka_poll(committed_reader, POLL_TIME);
	}
}

bool
ksink_await_ended(KSink *p, const char *topic, int partitions, int64_t deadline)
{
	rd_kafka_t *all = ksink_open_reader(p, false);
	rd_kafka_t *committed = all != NULL ? ksink_open_reader(p, true) : NULL;
	bool		ok = false;

	if (committed != NULL)
	{
		rd_kafka_topic_partition_list_t *ends = new_ends(topic, partitions);
		rd_kafka_topic_partition_list_t *committed_ends = new_ends(topic, partitions);

		ok = partitions == 0 || await(p, all, committed, ends, committed_ends, deadline);
		rd_kafka_topic_partition_list_destroy(committed_ends);
		rd_kafka_topic_partition_list_destroy(ends);
		rd_kafka_destroy(committed);
	}
	if (all != NULL)
		rd_kafka_destroy(all);
	return ok;
}
