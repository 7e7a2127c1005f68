/*-------------------------------------------------------------------------
 *
 * token.c
 *		Keeps an access token for logins by OAUTHBEARER, and hands it to librdkafka.
 *
 * All handles share one token.  The start of the program, and of a new producer,
 * asks for it and waits; so a refusal is known before a broker is asked.  Later
 * the background thread of each handle calls refresh_token when its token is due,
 * whether the program is idle or delivering.  A token that could not be replaced is
 * used on while it lives.
 *
 * INVARIANT
 *		Only one thread asks the token server.  A token server that is out is an
 *		outage; only its own refusal is a refused login.
 *
 * LOCKING
 *		ask_lock around a request, then token_lock around the token.  Closing a
 *		handle waits for its refresh_token, so a request takes ASK_TIME at most.
 * MEMORY
 *		The token lives as long as the program, or until the next one is there.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/kafka/token.c
 *
 *-------------------------------------------------------------------------
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "sink/common/hide.h"
#include "sink/kafka/sink.h"

#define ASK_TIME		5000	/* ms for a request */
#define PAUSE			1000	/* ms between requests at start */
#define RETRY_LIFE		12500	/* ms; librdkafka asks again after 4/5 of a
								 * life */

static pthread_mutex_t ask_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t token_lock = PTHREAD_MUTEX_INITIALIZER;

/* The token; times are of idem_sink_clock(). */
static struct
{
	char	   *value;			/* NULL: none yet */
	int64_t		expires_at;
	int64_t		due_at;			/* ask for the next one from here on */
}			token;

/* Is the token to be replaced? */
static bool
is_due(void)
{
	bool		due;

	pthread_mutex_lock(&token_lock);
	due = token.value == NULL || idem_sink_clock() >= token.due_at;
	pthread_mutex_unlock(&token_lock);
	return due;
}

/* Can brokers accept the token? */
static bool
is_alive(void)
{
	bool		alive;

	pthread_mutex_lock(&token_lock);
	alive = token.value != NULL && idem_sink_clock() < token.expires_at;
	pthread_mutex_unlock(&token_lock);
	return alive;
}

/* Keep a grant that was asked for at that time. */
static void
keep(const IdemGrant *grant, int64_t asked_at)
{
	idem_sink_keep_token(grant->token);
	pthread_mutex_lock(&token_lock);
	free(token.value);
	token.value = grant->token;
	token.expires_at = asked_at + grant->life;
	token.due_at = asked_at + grant->life * 3 / 4;
	pthread_mutex_unlock(&token_lock);
}

/*
 * Replace the token if it is due, for at most timeout ms.  problem: why that
 * failed.
 */
static KSinkTokenEnd
replace_token(KSink *p, int64_t timeout, char *problem, size_t cap)
{
	KSinkTokenEnd end = KSINK_TOKEN_GRANTED;
	IdemGrant	grant;
	int64_t		now;

	pthread_mutex_lock(&ask_lock);
	if (is_due())
	{
		now = idem_sink_clock();
		end = ksink_ask_token_server(&p->config.token_server, (int) (timeout < ASK_TIME ? timeout : ASK_TIME),
									 &grant, problem, cap);
		if (end == KSINK_TOKEN_GRANTED)
			keep(&grant, now);
	}
	pthread_mutex_unlock(&ask_lock);
	ksink_note_token_server(end != KSINK_TOKEN_OUTAGE);
	return end;
}

/* Give the token, if there is a living one, to a handle.  most: ms until its next refresh. */
static bool
give_token(KSink *p, rd_kafka_t *rk, int64_t most)
{
	const KSinkTokenServer *s = &p->config.token_server;
	char		problem[512];
	struct timespec now;
	int64_t		left;
	bool		ok = false;

	pthread_mutex_lock(&token_lock);
	left = token.value != NULL ? token.expires_at - idem_sink_clock() : 0;
	if (left > 0)
	{
		clock_gettime(CLOCK_REALTIME, &now);
		ok = rd_kafka_oauthbearer_set_token(rk, token.value,
											(int64_t) now.tv_sec * 1000 + now.tv_nsec / 1000000 + (left < most ? left : most),
											s->client, (const char **) s->extensions, s->n_extensions,
											problem, sizeof(problem)) == RD_KAFKA_RESP_ERR_NO_ERROR;
	}
	pthread_mutex_unlock(&token_lock);
	return ok;
}

/* librdkafka wants a token for a handle; in the background thread of the handle. */
static void
refresh_token(rd_kafka_t *rk, const char *config, void *opaque)
{
	KSink	   *p = opaque;
	char		problem[IDEM_PROTO_MAX_MESSAGE];

	(void) config;
	/* a new handle need not wait for the next token */
	if (give_token(p, rk, INT32_MAX) && !is_due())
		return;
	if (replace_token(p, ASK_TIME, problem, sizeof(problem)) == KSINK_TOKEN_GRANTED)
	{
		if (!give_token(p, rk, INT32_MAX))
			rd_kafka_oauthbearer_set_token_failure(rk, "librdkafka does not take the token");
	}
	else if (!give_token(p, rk, RETRY_LIFE))
		rd_kafka_oauthbearer_set_token_failure(rk, problem);
}

bool
ksink_await_token(KSink *p, int64_t deadline)
{
	static const struct timespec pause = {PAUSE / 1000, PAUSE % 1000 * 1000000};
	char		problem[IDEM_PROTO_MAX_MESSAGE];
	KSinkTokenEnd end;
	int64_t		left;

	if (p->config.token_server.url == NULL)
		return true;
	while (is_due())
	{
		left = deadline - idem_sink_clock();
		end = replace_token(p, left > 1 ? left : 1, problem, sizeof(problem));
		if (end == KSINK_TOKEN_GRANTED || is_alive())
			return true;
		if (end == KSINK_TOKEN_REFUSED)
			return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "28000", "could not get a token: %s", problem);
		if (idem_sink_clock() + PAUSE >= deadline)
			return idem_sink_fail(&p->failure, IDEM_PROTO_OUTAGE, "08001", "could not get a token: %s", problem);
		nanosleep(&pause, NULL);
	}
	return true;
}

void
ksink_want_tokens(KSink *p, rd_kafka_conf_t *conf)
{
	if (p->config.token_server.url == NULL)
		return;
	rd_kafka_conf_set_oauthbearer_token_refresh_cb(conf, refresh_token);
	rd_kafka_conf_enable_sasl_queue(conf, 1);
}

bool
ksink_start_tokens(KSink *p, rd_kafka_t *rk)
{
	rd_kafka_error_t *error = p->config.token_server.url != NULL ? rd_kafka_sasl_background_callbacks_enable(rk) : NULL;

	if (error == NULL)
		return true;
	rd_kafka_error_destroy(error);
	return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "0A000", "librdkafka %s of this machine cannot log in by OAUTHBEARER",
						  rd_kafka_version_str());
}
