/*-------------------------------------------------------------------------
 *
 * takeover.c
 *		Takes the relay over at start, and replaces a producer that failed.
 *
 * At start: connect, check the topics, read whether the position topic is another
 * relay's, init_transactions, which fences the predecessor and ends its transaction,
 * write the start record, read the position.
 *
 * A new producer is made in this order: look for a twin, init_transactions, look
 * again.  The first look spares a twin that is at work; the second one finds what a
 * twin committed before init_transactions fenced it.
 *
 * INVARIANT
 *		A twin is certain only if its start record stands behind ours.  Without it a
 *		producer that the brokers refuse was forgotten by them: its transaction
 *		timed out.
 *		A transaction whose end the brokers did not write would be ended by our next
 *		one, which has the same producer id.  So none is begun before all have ended
 *		in the position topic, and topic.c waits for the same before the first record
 *		of each other topic.
 *
 * A crash leaves a start record at most.
 * MEMORY
 *		None of its own.  LOCKING: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/kafka/takeover.c
 *
 *-------------------------------------------------------------------------
 */
#include <string.h>

#include "sink/kafka/sink.h"

#define START_TIME	20000		/* ms for everything at start; the worker
								 * waits idempotency.sink_timeout for READY */
#define MARGIN		5000

static int64_t steps_deadline;	/* idem_sink_clock() by which all steps end */

/* The time by which a job of the start, or of a new start, has to end. */
static int64_t
deadline_of(const KSink *p)
{
	return idem_sink_clock() + (p->config.timeout < START_TIME ? p->config.timeout : START_TIME);
}

/* All events go to one topic: does it exist? */
static bool
check_fixed_topic(KSink *p, int64_t deadline)
{
	int			partitions;
	rd_kafka_resp_err_t err;

	if (!p->config.topic_is_fixed)
		return true;
	err = ksink_topic_metadata(p, p->config.topic, deadline, &partitions);
	if (err == RD_KAFKA_RESP_ERR_NO_ERROR)
		return true;
	if (ksink_blame(err) == KSINK_BLAME_EVENT)
		return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, ksink_sqlstate(err), "cannot use topic \"%s\": %s",
							  p->config.topic, rd_kafka_err2str(err));
	return ksink_fail_for_error(p, err, "ask for the topic", NULL);
}

/* The steps of the start, each a job. */

static bool
connect_job(KSink *p)
{
	return ksink_await_token(p, steps_deadline) && ksink_open_producer(p) && ksink_connect(p, steps_deadline) && check_fixed_topic(p, steps_deadline) &&
		(!p->config.exactly_once ||
		 (ksink_check_position_topic(p, steps_deadline) && ksink_check_owner(p, steps_deadline)));
}

static bool
init_job(KSink *p)
{
	return ksink_init_transactions(p, steps_deadline) && ksink_await_ended(p, p->config.position_topic, 1, steps_deadline);
}

static bool
mark_job(KSink *p)
{
	return ksink_mark_takeover(p, steps_deadline);
}

static bool
read_job(KSink *p)
{
	return ksink_read_position(p, steps_deadline);
}

/* Run a step of the start, or of a new start. */
static bool
run_step(KSink *p, KSinkJob job, const char *doing)
{
	int64_t		left = steps_deadline - idem_sink_clock();

	return ksink_run(p, job, (int) (left > 0 ? left : 0) + MARGIN, doing);
}

bool
ksink_take_over(KSink *p)
{
	p->takeover_offset = -1;
	steps_deadline = deadline_of(p);
	if (!run_step(p, connect_job, "connect to the brokers"))
		return false;
	IDEM_SINK_FAULT_POINT(&p->sink, "kafka-connected");
	if (!p->config.exactly_once)
		return true;
	if (!run_step(p, init_job, "take over the transactional id"))
		return false;
	IDEM_SINK_FAULT_POINT(&p->sink, "kafka-predecessor-fenced");
	if (!run_step(p, mark_job, "take over the position topic"))
		return false;
	IDEM_SINK_FAULT_POINT(&p->sink, "kafka-start-marked");
	if (!run_step(p, read_job, "read the position topic"))
		return false;
	if (p->other_record >= 0)
		idem_sink_log(&p->sink, IDEM_PROTO_LOG_WARNING,
					  "kafka sink: position topic \"%s\" has records of %s%s, which are passed over; this relay owns the topic",
					  p->config.position_topic, p->other_relay[0] != '\0' ? "relay " : "something else", p->other_relay);
	return true;
}

/* The steps of a LOOK, each a job. */

static bool
look_connect_job(KSink *p)
{
	return ksink_await_token(p, steps_deadline) && ksink_open_producer(p) && ksink_connect(p, steps_deadline);
}

static bool
look_topic_job(KSink *p)
{
	return check_fixed_topic(p, steps_deadline);
}

static bool
look_position_topic_job(KSink *p)
{
	return ksink_check_position_topic(p, steps_deadline);
}

static bool
look_owner_job(KSink *p)
{
	return ksink_check_owner(p, steps_deadline);
}

/*
 * Run a step of a LOOK and say what it has found.  excuse: a topic that does not
 * exist is no fault, but noted.
 */
static bool
look_step(KSink *p, const char *what, const char *remedy, KSinkJob job, const char *excuse)
{
	bool		ok;

	idem_sink_look_at(&p->sink, what, remedy);
	ok = run_step(p, job, what);
	if (!ok && excuse != NULL && p->topic_missing)
		idem_sink_found(&p->sink, true, excuse);
	else
		idem_sink_found(&p->sink, ok, ok ? NULL : p->failure.message);
	memset(&p->failure, 0, sizeof(p->failure));
	return ok;
}

void
ksink_look(KSink *p)
{
	const char *excuse = p->config.would_create ? "it does not exist yet, and create_topics is on" : NULL;

	p->takeover_offset = -1;
	steps_deadline = deadline_of(p);
	if (!look_step(p, "connection", "Put right what the message names: brokers, a firewall, user mapping, or certificates.",
				   look_connect_job, NULL))
		return;
	if (p->config.topic_is_fixed)
		(void) look_step(p, "topic", "Run at the brokers what sink_setup prints.", look_topic_job, excuse);
	if (p->config.exactly_once &&
		look_step(p, "position topic", "Run at the brokers what sink_setup prints.", look_position_topic_job, excuse))
		(void) look_step(p, "position", "Give the relay a position topic of its own: the option \"position_topic\".",
						 look_owner_job, NULL);
}

/* Fail because of a twin. */
static bool
fail_fenced(KSink *p)
{
	return idem_sink_fail(&p->failure, IDEM_PROTO_FENCED, "55000",
						  "another instance has taken over position topic \"%s\"", p->config.position_topic);
}

/* Look for the start record of another instance.  False: p->failure. */
static bool
look_job(KSink *p)
{
	if (!ksink_read_news(p, steps_deadline))
		return false;
	return !p->foreign || fail_fenced(p);
}

static bool
renew_job(KSink *p)
{
	int			partitions;

	ksink_close_producer(p);
	if (!ksink_await_token(p, steps_deadline))
		return false;
	/* do not fence a twin that has taken over */
	if (p->config.exactly_once && !look_job(p))
		return false;
	if (!ksink_open_producer(p))
		return false;
	/* without the question the first record would wait a second */
	return !p->config.exactly_once ||
		ksink_topic_metadata(p, p->config.position_topic, steps_deadline, &partitions) == RD_KAFKA_RESP_ERR_NO_ERROR ||
		ksink_check_position_topic(p, steps_deadline);
}

bool
ksink_renew(KSink *p)
{
	ksink_forget_topics(p);
	steps_deadline = deadline_of(p);
	if (!run_step(p, renew_job, "make a new producer"))
		return false;
	if (!p->config.exactly_once)
		return true;
	IDEM_SINK_FAULT_POINT(&p->sink, "kafka-producer-opened");

	/*
	 * Look again behind init_transactions: only now has each transaction of
	 * this id ended, ours and that of a twin which started a moment ago.
	 */
	return run_step(p, init_job, "take over the transactional id") &&
		run_step(p, look_job, "look for another instance");
}

static bool
judge_job(KSink *p)
{
	if (!look_job(p))
		return false;
	return idem_sink_fail(&p->failure, IDEM_PROTO_OUTAGE, "25P04",
						  "the brokers have ended a transaction of \"%s\", most likely because it was open for longer than %d ms: %s",
						  p->config.position_topic, p->config.transaction_timeout, p->trouble.message);
}

bool
ksink_judge_fence(KSink *p)
{
	IDEM_SINK_FAULT_POINT(&p->sink, "kafka-judge-fence");
	steps_deadline = deadline_of(p);
	return run_step(p, judge_job, "look for another instance");
}
