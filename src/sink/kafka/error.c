/*-------------------------------------------------------------------------
 *
 * error.c
 *		Errors of the brokers and of librdkafka, and failures that end the program.
 *
 * librdkafka tells why a connection fails in log lines and in errors that come to a
 * callback, from threads of its own.  The last such line is kept: a message about a
 * timeout says with it which broker failed, and how.
 *
 * When the brokers refuse a partition to a transaction, librdkafka drops all its
 * records without a reason.  The reason's name stands in parentheses at the end of
 * a log line, and nowhere else.
 *
 * INVARIANT
 *	No text has a secret.  librdkafka names brokers, topics and mechanisms, but it
 *	quotes what a broker says of a login, and brokers know the password or the token.
 *	A text with a part of either in it is not shown (common/hide.c).  Of a
 *	record only the number of its error is used, so no text has an event.
 *
 * LOCKING
 *	complaint_lock, around all variables of this file; nothing else is locked inside.
 * MEMORY
 *	None of its own.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/kafka/error.c
 *
 *-------------------------------------------------------------------------
 */
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sink/common/hide.h"
#include "sink/kafka/sink.h"

static pthread_mutex_t complaint_lock = PTHREAD_MUTEX_INITIALIZER;
static char complaint[IDEM_PROTO_MAX_MESSAGE];
static bool login_refused;
static bool token_server_out;
static rd_kafka_resp_err_t transaction_error;

/* Does the token server not answer? */
static bool
is_token_server_out(void)
{
	bool		out;

	pthread_mutex_lock(&complaint_lock);
	out = token_server_out;
	pthread_mutex_unlock(&complaint_lock);
	return out;
}

KSinkBlame
ksink_blame(rd_kafka_resp_err_t err)
{
	if (err == RD_KAFKA_RESP_ERR__AUTHENTICATION && is_token_server_out())
		return KSINK_BLAME_OUTAGE;
	switch (err)
	{
		case RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE:
		case RD_KAFKA_RESP_ERR_RECORD_LIST_TOO_LARGE:
			return KSINK_BLAME_SIZE;
		case RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART:
		case RD_KAFKA_RESP_ERR__UNKNOWN_TOPIC:
		case RD_KAFKA_RESP_ERR__UNKNOWN_PARTITION:
		case RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED:
		case RD_KAFKA_RESP_ERR_TOPIC_EXCEPTION:
		case RD_KAFKA_RESP_ERR_INVALID_MSG:
		case RD_KAFKA_RESP_ERR_INVALID_TIMESTAMP:
		case RD_KAFKA_RESP_ERR_INVALID_RECORD:
		case RD_KAFKA_RESP_ERR_POLICY_VIOLATION:
		case RD_KAFKA_RESP_ERR_INVALID_REQUIRED_ACKS:
		case RD_KAFKA_RESP_ERR__INVALID_ARG:
			return KSINK_BLAME_EVENT;
		case RD_KAFKA_RESP_ERR__FENCED:
		case RD_KAFKA_RESP_ERR_PRODUCER_FENCED:
		case RD_KAFKA_RESP_ERR_INVALID_PRODUCER_EPOCH:
			return KSINK_BLAME_FENCE;
		case RD_KAFKA_RESP_ERR_TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
		case RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED:
		case RD_KAFKA_RESP_ERR_GROUP_AUTHORIZATION_FAILED:
		case RD_KAFKA_RESP_ERR_SASL_AUTHENTICATION_FAILED:
		case RD_KAFKA_RESP_ERR_UNSUPPORTED_SASL_MECHANISM:
		case RD_KAFKA_RESP_ERR_INVALID_TRANSACTION_TIMEOUT:
		case RD_KAFKA_RESP_ERR_UNSUPPORTED_VERSION:
		case RD_KAFKA_RESP_ERR_SECURITY_DISABLED:
		case RD_KAFKA_RESP_ERR__AUTHENTICATION:
		case RD_KAFKA_RESP_ERR__SSL:
		case RD_KAFKA_RESP_ERR__UNSUPPORTED_FEATURE:
			return KSINK_BLAME_CONFIG;
		case RD_KAFKA_RESP_ERR__PURGE_QUEUE:
		case RD_KAFKA_RESP_ERR__PURGE_INFLIGHT:
		case RD_KAFKA_RESP_ERR__STATE:
		case RD_KAFKA_RESP_ERR__FATAL:
		case RD_KAFKA_RESP_ERR__GAPLESS_GUARANTEE:
		case RD_KAFKA_RESP_ERR__INCONSISTENT:
		case RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER:
		case RD_KAFKA_RESP_ERR_UNKNOWN_PRODUCER_ID:
		case RD_KAFKA_RESP_ERR_INVALID_PRODUCER_ID_MAPPING:
		case RD_KAFKA_RESP_ERR_INVALID_TXN_STATE:
			return KSINK_BLAME_NOBODY;
		default:
			return KSINK_BLAME_OUTAGE;
	}
}

const char *
ksink_sqlstate(rd_kafka_resp_err_t err)
{
	switch (err)
	{
		case RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE:
		case RD_KAFKA_RESP_ERR_RECORD_LIST_TOO_LARGE:
			return "54000";
		case RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART:
		case RD_KAFKA_RESP_ERR__UNKNOWN_TOPIC:
		case RD_KAFKA_RESP_ERR__UNKNOWN_PARTITION:
			return "42704";
		case RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED:
		case RD_KAFKA_RESP_ERR_TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
		case RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED:
			return "42501";
		case RD_KAFKA_RESP_ERR_SASL_AUTHENTICATION_FAILED:
		case RD_KAFKA_RESP_ERR__AUTHENTICATION:
			return "28000";
		case RD_KAFKA_RESP_ERR_TOPIC_EXCEPTION:
		case RD_KAFKA_RESP_ERR_INVALID_RECORD:
		case RD_KAFKA_RESP_ERR_INVALID_MSG:
		case RD_KAFKA_RESP_ERR_INVALID_TIMESTAMP:
		case RD_KAFKA_RESP_ERR_POLICY_VIOLATION:
		case RD_KAFKA_RESP_ERR__INVALID_ARG:
			return "22023";
		default:
			return ksink_blame(err) == KSINK_BLAME_CONFIG ? "HV000" : "08006";
	}
}

bool
ksink_fail_for_error(KSink *p, rd_kafka_resp_err_t err, const char *doing, const char *text)
{
	KSinkBlame	blame = ksink_blame(err);
	const char *shown = text != NULL && text[0] != '\0' ? idem_sink_without_secrets(text) : rd_kafka_err2str(err);
	char		more[IDEM_PROTO_MAX_MESSAGE] = "";

	if (blame == KSINK_BLAME_OUTAGE)
		ksink_last_complaint(more, sizeof(more));
	return idem_sink_fail(&p->failure, blame == KSINK_BLAME_CONFIG || blame == KSINK_BLAME_EVENT ?
						  IDEM_PROTO_REJECTED : IDEM_PROTO_OUTAGE,
						  ksink_sqlstate(err), "could not %s: %s%s%.600s", doing, shown,
						  more[0] != '\0' ? "; " : "", more);
}

/* Keep a line, from any thread.  Its beginning names the broker. */
static void
complain(const char *text)
{
	const char *shown = idem_sink_without_secrets(text);
	const char *end = shown != text ? strstr(text, ": ") : NULL;
	char		broker[IDEM_PROTO_MAX_MESSAGE] = "";

	if (end != NULL)
	{
		snprintf(broker, sizeof(broker), "%.*s", (int) (end + 2 - text), text);
		if (idem_sink_without_secrets(broker) != broker)
			broker[0] = '\0';
	}
	pthread_mutex_lock(&complaint_lock);
	snprintf(complaint, sizeof(complaint), "%.500s%s", broker, shown);
	pthread_mutex_unlock(&complaint_lock);
}

/* Keep the error whose name ends the line. */
static void
note_transaction_error(const char *text)
{
	const struct rd_kafka_err_desc *descs;
	const char *name = strrchr(text, '(');
	size_t		n;

	if (name == NULL)
		return;
	rd_kafka_get_err_descs(&descs, &n);
	for (size_t i = 0; i < n; i++)
	{
		size_t		len = descs[i].name != NULL ? strlen(descs[i].name) : 0;

		if (len == 0 || strncmp(name + 1, descs[i].name, len) != 0 || name[len + 1] != ')')
			continue;
		pthread_mutex_lock(&complaint_lock);
		if (transaction_error == RD_KAFKA_RESP_ERR_NO_ERROR)
			transaction_error = descs[i].code;
		pthread_mutex_unlock(&complaint_lock);
	}
}

rd_kafka_resp_err_t
ksink_take_transaction_error(void)
{
	rd_kafka_resp_err_t err;

	pthread_mutex_lock(&complaint_lock);
	err = transaction_error;
	transaction_error = RD_KAFKA_RESP_ERR_NO_ERROR;
	pthread_mutex_unlock(&complaint_lock);
	return err;
}

void
ksink_log_callback(const rd_kafka_t *rk, int level, const char *facility, const char *text)
{
	const char *shown = strncmp(text, "[thrd:", 6) == 0 ? strstr(text, "]: ") : NULL;

	(void) rk;
	if (strcmp(facility, "TXNERR") == 0)
		note_transaction_error(text);
	if (level <= 3 && (strcmp(facility, "FAIL") == 0 || strcmp(facility, "ERROR") == 0))
		complain(shown != NULL ? shown + 3 : text);
}

void
ksink_error_callback(rd_kafka_t *rk, int err, const char *reason, void *opaque)
{
	(void) rk;
	(void) opaque;
	if (err == RD_KAFKA_RESP_ERR__AUTHENTICATION || err == RD_KAFKA_RESP_ERR__SSL)
	{
		complain(reason);
		pthread_mutex_lock(&complaint_lock);
		if (!token_server_out)
			login_refused = true;
		pthread_mutex_unlock(&complaint_lock);
	}
}

void
ksink_last_complaint(char *dst, size_t cap)
{
	pthread_mutex_lock(&complaint_lock);
	snprintf(dst, cap, "%s", complaint);
	pthread_mutex_unlock(&complaint_lock);
}

void
ksink_note_token_server(bool answers)
{
	pthread_mutex_lock(&complaint_lock);
	token_server_out = !answers;
	pthread_mutex_unlock(&complaint_lock);
}

bool
ksink_login_refused(void)
{
	bool		refused;

	pthread_mutex_lock(&complaint_lock);
	refused = login_refused;
	pthread_mutex_unlock(&complaint_lock);
	return refused;
}

/* A job with its argument. */
typedef struct Work
{
	KSink	   *p;
	KSinkJob	job;
} Work;

static bool
run_work(void *arg)
{
	const Work *work = arg;

	return work->job(work->p);
}

bool
ksink_run(KSink *p, KSinkJob job, int timeout, const char *doing)
{
	static Work work;			/* a job that is late still uses it */
	char		more[IDEM_PROTO_MAX_MESSAGE];
	IdemJobEnd	end;

	work.p = p;
	work.job = job;
	end = idem_intake_run(&p->in, run_work, &work, timeout);
	if (end == IDEM_JOB_LATE)
	{
		/* p->failure belongs to the job: end here */
		ksink_last_complaint(more, sizeof(more));
		idem_sink_failed(&p->sink, IDEM_PROTO_OUTAGE, "08006", "could not %s within %d ms%s%.600s",
						 doing, timeout, more[0] != '\0' ? ": " : "", more);
	}
	return end == IDEM_JOB_DONE;
}
