/*-------------------------------------------------------------------------
 *
 * transaction.c
 *		Transactions of the brokers: init, begin, commit, abort.
 *
 * Each of these functions of librdkafka may block, so each runs as a job.
 *
 * INVARIANT
 *		A commit whose fate is not known ends the program: the next start reads the
 *		position.
 * LOCKING
 *		None.  MEMORY: none of its own.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/kafka/transaction.c
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>

#include "sink/kafka/sink.h"

#define INIT_TIMEOUT	1000	/* ms for init_transactions, before the next
								 * try */
#define MARGIN			5000	/* ms that a job may take above its own limit */

static KSinkCommit commit_end;	/* how the last commit_job ended */

/* The error's code; after a fatal error, the code of its cause. */
static rd_kafka_resp_err_t
code_of(const KSink *p, const rd_kafka_error_t *error)
{
	rd_kafka_resp_err_t fatal = rd_kafka_fatal_error(p->rk, NULL, 0);

	return fatal != RD_KAFKA_RESP_ERR_NO_ERROR ? fatal : rd_kafka_error_code(error);
}

bool
ksink_init_transactions(KSink *p, int64_t deadline)
{
	rd_kafka_error_t *error;
	rd_kafka_resp_err_t err;
	bool		again;

	for (;;)
	{
		error = rd_kafka_init_transactions(p->rk, INIT_TIMEOUT);
		if (error == NULL)
			return true;
		rd_kafka_poll(p->rk, 0);
		err = code_of(p, error);
		again = rd_kafka_error_is_retriable(error) && idem_sink_clock() < deadline;
		if (!again)
		{
			char		doing[KSINK_MAX_TOPIC + 80];

			snprintf(doing, sizeof(doing), "take over transactional id \"%s\"", p->config.position_topic);
			ksink_fail_for_error(p, err, doing, rd_kafka_error_string(error));
		}
		rd_kafka_error_destroy(error);
		if (!again)
			return false;
	}
}

/* Judge what a function of librdkafka returned.  False: p->trouble. */
static bool
check(KSink *p, rd_kafka_error_t *error)
{
	if (error == NULL)
		return true;
	ksink_note_trouble(p, code_of(p, error), rd_kafka_error_string(error));
	rd_kafka_error_destroy(error);
	return false;
}

static bool
begin_job(KSink *p)
{
	return check(p, rd_kafka_begin_transaction(p->rk));
}

bool
ksink_begin(KSink *p)
{
	return ksink_run(p, begin_job, MARGIN, "begin a transaction");
}

static bool
abort_job(KSink *p)
{
	return check(p, rd_kafka_abort_transaction(p->rk, p->config.timeout));
}

bool
ksink_abort(KSink *p)
{
	return ksink_run(p, abort_job, p->config.timeout + MARGIN, "abort a transaction");
}

/* Commit, as often as librdkafka says that another try may help. */
static bool
commit_job(KSink *p)
{
	int64_t		deadline = idem_sink_clock() + p->config.timeout;
	rd_kafka_error_t *error;
	rd_kafka_resp_err_t err;
	int64_t		left;

	commit_end = KSINK_COMMITTED;
	for (;;)
	{
		left = deadline - idem_sink_clock();
		error = rd_kafka_commit_transaction(p->rk, left > 1 ? (int) left : 1);
		if (error == NULL)
			return true;
		if (rd_kafka_error_txn_requires_abort(error) || !rd_kafka_error_is_retriable(error) || left <= 1)
			break;
		rd_kafka_error_destroy(error);
	}
	err = code_of(p, error);
	if (ksink_blame(err) == KSINK_BLAME_FENCE)
		commit_end = KSINK_COMMIT_FENCED;
	else if (rd_kafka_error_txn_requires_abort(error))
		commit_end = KSINK_ABORTED;
	else
	{
		commit_end = KSINK_COMMIT_FAILED;
		ksink_fail_for_error(p, err == RD_KAFKA_RESP_ERR__TIMED_OUT ? err : RD_KAFKA_RESP_ERR__TRANSPORT,
							 "commit a transaction", rd_kafka_error_string(error));
	}
	if (commit_end != KSINK_COMMIT_FAILED)
		ksink_note_trouble(p, err, rd_kafka_error_string(error));
	rd_kafka_error_destroy(error);
	return false;
}

KSinkCommit
ksink_commit(KSink *p)
{
	ksink_run(p, commit_job, p->config.timeout + MARGIN, "commit a transaction");
	return commit_end;
}
