/*-------------------------------------------------------------------------
 *
 * flight.c
 *		Delivers the complete batches together: a flight.
 *
 * Exactly once, a flight is one transaction of the brokers:
 *		begin, the records of all its batches, the position of the last batch, all
 *		reports, commit, results and verdicts
 * While the reports come in, further complete batches join, up to
 * transaction_time, transaction_events and MAX_BYTES.  A flight that is full is
 * sealed: it has its last position at once.  The first batch's position goes ahead
 * of its records: the brokers add the partitions of both to the transaction at once,
 * and if no other batch joins, it is the last one.  Of several positions in a
 * transaction a reader takes the last.
 *
 * A batch with an event that is not acked flies alone: its results and its SETTLE
 * come before the position, and the worker sends no SETTLE before the verdicts of
 * earlier batches.  At least once, there is no transaction; each batch is answered
 * when its reports are there, and batches join for ever, but not behind one that
 * flies alone.
 *
 * An attempt that meets trouble is aborted, its producer is replaced, and the first
 * batch flies alone: without the events that were refused, and with each record in
 * a request of its own if a request was too large.  After MAX_TRIES attempts that
 * failed and refused no event, the program ends with outage.
 *
 * INVARIANT
 *		A transaction is committed only if every event of its batches is delivered
 *		in it, or has an outcome that the worker has noted.
 *
 * A crash leaves a transaction that the successor aborts, or a committed one whose
 * position it reads.
 *
 * MEMORY
 *		Batches stay until their verdict.  LOCKING: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/kafka/flight.c
 *
 *-------------------------------------------------------------------------
 */
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "sink/common/hide.h"
#include "sink/kafka/sink.h"

#define MAX_TRIES	3			/* attempts that failed through nobody's fault */
#define WAIT_TIME	100			/* ms between two looks at the clock */
#define GRACE		500			/* ms without a report, after trouble */

/*
 * Bytes of a transaction: half of the credit, so that the other half can be
 * taken in while the transaction ends.
 */
#define MAX_BYTES	(KSINK_CREDIT_BYTES / 2)

/*
 * ms between a commit and the next begin.  The brokers answer a commit before
 * they have ended the transaction in its partitions.  Until they have, the
 * first partition of the next one is refused, and librdkafka asks again after
 * 20 ms.
 */
#define PAUSE		3

typedef struct Flight
{
	bool		alone;			/* no batch joins the first one */
	bool		careful;		/* a topic refuses the transaction: which one? */
	bool		sealed;			/* full, and the last position is sent */
	int			tries;
	int64_t		began;			/* idem_sink_clock() */
	uint64_t	events;
	uint64_t	bytes;
	const KSinkBatch *placed;	/* the batch whose position was sent last, or
								 * NULL */
} Flight;

/* Take the reports that are there. */
static void
take_reports(KSink *p)
{
	uint64_t	before = p->reports;
	uint64_t	count;
	ssize_t		rc = read(p->report_fd, &count, sizeof(count));

	(void) rc;
	rd_kafka_poll(p->rk, 0);
	if (p->reports != before)
		p->progress_at = idem_sink_clock();
}

/*
 * Wait for reports, or for frames.  The brokers are late only while a report is
 * to come.  False: p->failure.
 */
static bool
await_reports(KSink *p)
{
	int64_t		silence;
	char		more[IDEM_PROTO_MAX_MESSAGE];

	idem_sink_wait(&p->sink, p->report_fd, POLLIN, WAIT_TIME, true);
	if (p->sent == 0)
		p->progress_at = idem_sink_clock();
	silence = idem_sink_clock() - p->progress_at;
	if (ksink_in_trouble(p) && silence > GRACE)
	{
		/*
		 * Drop what waits in librdkafka's queues.  Wait for what is in
		 * flight: a broker may take a late request behind the abort, or
		 * behind the records of the next producer.
		 */
		rd_kafka_purge(p->rk, RD_KAFKA_PURGE_F_QUEUE | RD_KAFKA_PURGE_F_NON_BLOCKING);
	}
	if (silence <= p->config.timeout)
		return true;
	ksink_last_complaint(more, sizeof(more));
	return idem_sink_fail(&p->failure, IDEM_PROTO_OUTAGE, "08006", "the brokers took no record for %d ms%s%.600s",
						  p->config.timeout, more[0] != '\0' ? ": " : "", more);
}

/* Has the transaction reached one of its limits? */
static bool
is_full(const KSink *p, const Flight *f)
{
	const KSinkConfig *c = &p->config;

	return c->exactly_once && (f->events >= c->transaction_events || f->bytes >= MAX_BYTES ||
							   idem_sink_clock() - f->began >= c->transaction_time);
}

/* The batch that may join now, or NULL. */
static KSinkBatch *
next_to_join(const KSink *p, const Flight *f)
{
	KSinkBatch *b = p->joined != NULL ? p->joined->next : p->in.first;

	if (b == NULL || !b->complete || ksink_in_trouble(p))
		return NULL;
	if (p->joined == NULL && b == p->in.first)
		return b;
	return f->alone || f->sealed || is_full(p, f) ? NULL : b;
}

/*
 * Is a batch on its way that may join?  The worker sends to its end what it has
 * begun, whatever verdict it waits for.
 */
static bool
expects_batch(const KSink *p, const Flight *f)
{
	return p->config.exactly_once && !f->alone && !f->sealed && p->in.last != p->joined && !is_full(p, f);
}

/* Send the position of the last batch.  Trouble: in p->trouble. */
static void
place(KSink *p, Flight *f)
{
	rd_kafka_resp_err_t err;

	IDEM_SINK_FAULT_POINT(&p->sink, "kafka-before-position");
	err = ksink_send_position(p, p->joined->position);
	if (err != RD_KAFKA_RESP_ERR_NO_ERROR)
		ksink_note_trouble(p, err, NULL);
	f->placed = p->joined;
}

/*
 * Send the events of a batch, but wait for the report of the first record of each
 * topic.  If the topic refuses the transaction, this event is refused.  False:
 * p->failure.
 */
static bool
send_carefully(KSink *p, KSinkBatch *b)
{
	for (uint32_t i = 0; i < b->count && !ksink_in_trouble(p); i++)
	{
		KSinkEvent *e = &b->events[i];
		bool		proven = e->target != NULL && e->target->proven;
		rd_kafka_resp_err_t err;

		ksink_send_event(p, e);
		while (!proven && e->sent)
		{
			take_reports(p);
			if (p->failure.outcome != 0 || (e->sent && !await_reports(p)))
				return false;
		}
		if (e->delivered && e->target != NULL)
			e->target->proven = true;
		else if (!proven && e->outcome == 0 && e->refusal == RD_KAFKA_RESP_ERR_NO_ERROR &&
				 ksink_blame(err = ksink_take_transaction_error()) == KSINK_BLAME_EVENT)
		{
			e->refusal = err;
			p->trouble.refused = true;
		}
	}
	return true;
}

/*
 * Let batches join, and send their events.  A batch of which an event is
 * decided joins no other one, and no other one joins it.  False: p->failure.
 */
static bool
join(KSink *p, Flight *f)
{
	bool		shares = !p->config.exactly_once;
	KSinkBatch *b;

	while ((b = next_to_join(p, f)) != NULL)
	{
		if (!ksink_prepare_batch(p, b))
			return false;
		if (!shares && idem_batch_count_decided(b) > 0)
		{
			f->alone = true;
			if (b != p->in.first)
				return true;
		}
		p->joined = b;
		f->events += b->count;
		f->bytes += b->bytes;
		if (!shares && !f->alone && f->placed == NULL)
			place(p, f);
		if (!f->careful)
			ksink_send_batch(p, b);
		else if (!send_carefully(p, b))
			return false;
		if (!shares && idem_batch_count_decided(b) > 0)
		{
			/* librdkafka refused an event: too late to leave the batch out */
			f->alone = true;
			if (b != p->in.first)
				p->trouble.refused = true;
		}
		rd_kafka_poll(p->rk, 0);
		IDEM_SINK_FAULT_POINT(&p->sink, "kafka-records-sent");
	}
	if (!f->alone && !f->sealed && is_full(p, f) && !ksink_in_trouble(p))
	{
		f->sealed = true;
		if (f->placed != p->joined)
			place(p, f);
	}
	return true;
}

/* The first batch is done. */
static void
drop_first(KSink *p)
{
	if (p->joined == p->in.first)
		p->joined = NULL;
	idem_intake_drop(&p->in);
}

/* At least once: answer the batches whose events are all decided. */
static void
answer_finished(KSink *p)
{
	while (p->joined != NULL && p->in.first->open == 0)
	{
		IDEM_SINK_FAULT_POINT(&p->sink, "kafka-unanswered");
		idem_intake_answer(&p->in, p->in.first);
		drop_first(p);
	}
}

/* Send events until nothing is left whose report is to come. */
static bool
send_all(KSink *p, Flight *f)
{
	p->progress_at = idem_sink_clock();
	for (;;)
	{
		idem_intake_take(&p->in);
		if (!join(p, f))
			return false;
		take_reports(p);
		if (p->failure.outcome != 0)
			return false;
		if (!p->config.exactly_once && !ksink_in_trouble(p))
		{
			answer_finished(p);
			/* behind the batch that flew alone the others fly together again */
			if (f->alone && p->joined == NULL)
				return true;
		}
		if (p->sent == 0 && (ksink_in_trouble(p) || (next_to_join(p, f) == NULL && !expects_batch(p, f))))
			return true;
		if (!await_reports(p))
			return false;
	}
}

/*
 * Wait until the worker has noted the events that are not acked: the position
 * that will be committed passes them.  The batch is alone.
 */
static void
await_settle(KSink *p)
{
	if (idem_batch_count_decided(p->joined) == 0)
		return;
	idem_intake_answer(&p->in, p->joined);
	IDEM_SINK_FAULT_POINT(&p->sink, "kafka-before-settle");
	while (p->sink.stream.settled < p->joined->number)
		idem_sink_wait(&p->sink, -1, 0, -1, true);
}

/*
 * Do the results that were sent still hold?  A transaction that is done again
 * may meet another refusal.  False: p->failure.
 */
static bool
check_results(KSink *p)
{
	for (KSinkBatch *b = p->in.first; b != NULL; b = b->next)
		if (b->answered && idem_batch_count_decided(b) != b->answered_decided)
			return idem_sink_fail(&p->failure, IDEM_PROTO_OUTAGE, "08006",
								  "could not deliver a batch again: an event that was answered as done was refused");
	return true;
}

/* Write the last position, unless it was written.  False: p->failure or trouble. */
static bool
write_position(KSink *p, Flight *f)
{
	if (f->placed != p->joined)
		place(p, f);
	p->progress_at = idem_sink_clock();
	while (p->sent > 0)
	{
		take_reports(p);
		if (p->failure.outcome != 0 || (p->sent > 0 && !await_reports(p)))
			return false;
	}
	if (ksink_in_trouble(p))
		return false;
	if (p->reported_offset > p->offset)
		return true;
	return idem_sink_fail(&p->failure, IDEM_PROTO_OUTAGE, "55000",
						  "position topic \"%s\" was made anew: its position is gone", p->config.position_topic);
}

/* All batches of the flight are committed: say so. */
static void
send_verdicts(KSink *p)
{
	bool		last = false;

	while (!last)
	{
		last = p->in.first == p->joined;
		idem_intake_answer(&p->in, p->in.first);
		idem_sink_verdict(&p->sink, p->in.first->number, IDEM_PROTO_COMMITTED, NULL, NULL);
		drop_first(p);
	}
}

/* Commit the transaction of a flight whose events are all decided. */
static bool
finish(KSink *p, Flight *f)
{
	if (!check_results(p))
		return false;
	IDEM_SINK_FAULT_POINT(&p->sink, "kafka-records-reported");
	await_settle(p);
	if (!write_position(p, f))
		return false;
	IDEM_SINK_FAULT_POINT(&p->sink, "kafka-before-commit");
	switch (ksink_commit(p))
	{
		case KSINK_COMMITTED:
			IDEM_SINK_FAULT_POINT(&p->sink, "kafka-committed");
			p->committed_at = idem_sink_clock();
			ksink_position_stored(p, p->joined->position);
			send_verdicts(p);
			IDEM_SINK_FAULT_POINT(&p->sink, "kafka-verdict");
			return true;
		default:
			return false;		/* p->trouble or p->failure tells */
	}
}

/* Decide what the brokers refused; how many events? */
static uint32_t
decide_refused(KSink *p)
{
	uint32_t	n = 0;

	for (KSinkBatch *b = p->in.first; b != NULL && p->joined != NULL; b = b->next)
	{
		n += ksink_decide_refused(p, b);
		if (b == p->joined)
			break;
	}
	return n;
}

/*
 * If the brokers refused a partition to the transaction, its records fell without
 * a reason.  The next attempt finds the topic.
 */
static void
look_for_topic(KSink *p, Flight *f, uint32_t refused)
{
	rd_kafka_resp_err_t err = ksink_take_transaction_error();

	if (p->config.exactly_once && refused == 0 && ksink_blame(err) == KSINK_BLAME_EVENT)
		f->careful = true;
}

/* Count the attempt that failed.  False: p->failure. */
static bool
count_try(KSink *p, Flight *f, uint32_t refused)
{
	bool		smaller = p->trouble.too_large && !p->single;

	f->alone = true;
	if (smaller)
	{
		p->single = true;
		idem_sink_log(&p->sink, IDEM_PROTO_LOG_WARNING,
					  "kafka sink: a request was too large for the brokers; its records are sent one by one; lower the option \"max_message_bytes\" to what the topic takes");
	}
	if (refused > 0 || smaller || ++f->tries < MAX_TRIES)
		return true;
	return idem_sink_fail(&p->failure, IDEM_PROTO_OUTAGE, "08006", "could not deliver a batch: %s", p->trouble.message);
}

/*
 * The producer may have met a fatal error: records fall with it, and their reports
 * do not tell its cause.  False: the options or rights are to blame, p->failure.
 */
static bool
ask_fatal(KSink *p)
{
	char		text[IDEM_PROTO_MAX_MESSAGE];
	rd_kafka_resp_err_t err = rd_kafka_fatal_error(p->rk, text, sizeof(text));

	if (err == RD_KAFKA_RESP_ERR_NO_ERROR)
		return true;
	if (ksink_blame(err) == KSINK_BLAME_CONFIG)
		return ksink_fail_for_error(p, err, "deliver a batch", text);
	snprintf(p->trouble.message, sizeof(p->trouble.message), "%s", idem_sink_without_secrets(text));
	return true;
}

/*
 * After an attempt that met trouble: end it, and get ready for the next one.
 * *committed: the attempt was committed after all.  False: p->failure.
 */
static bool
recover(KSink *p, Flight *f, bool *committed)
{
	KSinkBatch *b;
	uint32_t	refused;

	*committed = false;
	if (!ask_fatal(p))
		return false;
	if (p->trouble.fenced)
		return ksink_judge_fence(p);
	if (p->trouble.outage)
		return idem_sink_fail(&p->failure, IDEM_PROTO_OUTAGE, "08006", "could not deliver a batch: %s", p->trouble.message);

	/*
	 * Some versions cannot abort before the first record is taken.  The new
	 * producer ends the transaction then.
	 */
	if (p->config.exactly_once && !ksink_abort(p) && p->trouble.fenced)
		return ksink_judge_fence(p);
	IDEM_SINK_FAULT_POINT(&p->sink, "kafka-aborted");
	refused = decide_refused(p);
	look_for_topic(p, f, refused);
	if (!count_try(p, f, refused) || !ksink_renew(p))
		return false;
	IDEM_SINK_FAULT_POINT(&p->sink, "kafka-producer-replaced");
	memset(&p->trouble, 0, sizeof(p->trouble));
	p->sent = 0;
	if (p->config.exactly_once && p->joined != NULL && ksink_is_stored(p, p->joined->position))
	{
		*committed = true;
		return true;
	}
	for (b = p->in.first; b != NULL; b = b->next)
		ksink_reset_batch(p, b);
	p->joined = NULL;
	return true;
}

/* Let PAUSE pass since the last commit; take frames meanwhile. */
static void
await_markers(KSink *p)
{
	int64_t		left;

	while (p->committed_at != 0 && (left = p->committed_at + PAUSE - idem_sink_clock()) > 0)
	{
		idem_sink_wait(&p->sink, -1, 0, (int) left, true);
		idem_intake_take(&p->in);
	}
}

/* Deliver once.  False: p->trouble or p->failure. */
static bool
attempt(KSink *p, Flight *f)
{
	await_markers(p);
	f->began = idem_sink_clock();
	f->events = f->bytes = 0;
	f->sealed = false;
	f->placed = NULL;
	if (p->config.exactly_once && !ksink_begin(p))
		return false;
	IDEM_SINK_FAULT_POINT(&p->sink, "kafka-begun");
	if (!send_all(p, f) || ksink_in_trouble(p))
		return false;
	return !p->config.exactly_once || finish(p, f);
}

bool
ksink_fly(KSink *p)
{
	Flight		f = {.tries = 0};
	bool		committed = false;

	/* the last flight ended with a producer that sends records one by one */
	if (p->single)
	{
		p->single = false;
		if (!ksink_renew(p))
			return false;
	}
	while (!attempt(p, &f))
	{
		if (p->failure.outcome != 0 || !recover(p, &f, &committed))
			return false;
		if (committed)
		{
			send_verdicts(p);
			return true;
		}
	}
	return true;
}
