/*-------------------------------------------------------------------------
 *
 * verdict.c
 *		What the end of a request means for its events.
 *
 *		2xx							answered: the service reads the answer
 *		408, 425, 429, 5xx			retry, not before Retry-After
 *		no complete answer in time	retry
 *		410							the program ends: the relay is halted
 *		3xx, other 4xx				rejected
 *		a file of the options		the program ends: rejected
 *		no connection				the program ends: outage
 *
 * INVARIANT
 *		An answer counts only as a whole.  One that is longer than is read is judged
 *		by its status, unless the service has to read it.
 *		No message has a secret: an answer with a part of one is not shown.  A
 *		message that ends the program is logged, so it has no payload either.
 *
 * MEMORY
 *		None of its own.  LOCKING: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/http/verdict.c
 *
 *-------------------------------------------------------------------------
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "sink/common/hide.h"
#include "sink/http/sink.h"

#define LOGGED_BYTES	300		/* of an answer, in a message that is logged */
#define BEFORE_ANSWER	": "
#define SHOWN			(HSINK_SHOWN_BYTES + sizeof(BEFORE_ANSWER))

static HSinkJudgement decide(HSinkVerdict *v, IdemProtoOutcome outcome, const char *sqlstate,
							 int64_t retry_after, const char *fmt,...)
			__attribute__((format(printf, 5, 6)));

/* Fill in a verdict for all events; always HSINK_ALL. */
static HSinkJudgement
decide(HSinkVerdict *v, IdemProtoOutcome outcome, const char *sqlstate, int64_t retry_after, const char *fmt,...)
{
	va_list		ap;

	v->outcome = outcome;
	v->sqlstate = sqlstate;
	v->retry_after = (uint32_t) retry_after;
	va_start(ap, fmt);
	vsnprintf(v->message, sizeof(v->message), fmt, ap);
	va_end(ap);
	return HSINK_ALL;
}

/* ": " and the start of the answer, fit for a message; nothing if the answer is empty. */
static void
show_answer(const HSinkRequest *r, char dst[SHOWN])
{
	char	   *text = dst + strlen(BEFORE_ANSWER);
	IdemProtoStr answer = {r->answer.data, (uint32_t) (r->answer.len < HSINK_SHOWN_BYTES ? r->answer.len : HSINK_SHOWN_BYTES)};
	size_t		looked_at = IDEM_SINK_LOOKED_AT(HSINK_SHOWN_BYTES);

	dst[0] = '\0';
	if (looked_at > r->answer.len)
		looked_at = r->answer.len;
	if (answer.len == 0)
		return;
	memcpy(dst, BEFORE_ANSWER, sizeof(BEFORE_ANSWER));
	if (idem_sink_has_secret(r->answer.data, looked_at))
		snprintf(text, HSINK_SHOWN_BYTES + 1, "the response " IDEM_SINK_HIDES_SECRET);
	else
		idem_proto_clean_text(text, HSINK_SHOWN_BYTES + 1, answer);
	if (text[0] == '\0')
		dst[0] = '\0';
}

/* Has the text a part of one of the events? */
static bool
has_event(const HSinkRequest *r, const char *text, size_t len)
{
	for (uint32_t i = 0; i < r->count; i++)
		if (idem_sink_repeats(text, len, r->events[i]->headers.data, r->events[i]->headers.len) ||
			idem_sink_repeats(text, len, r->events[i]->payload.data, r->events[i]->payload.len))
			return true;
	return false;
}

/*
 * The same for a message that ends the program.  The server logs it, so it is
 * shorter, and it is not shown if the answer repeats headers or a payload.
 */
static void
show_for_log(const HSinkRequest *r, char dst[SHOWN])
{
	size_t		len = r->answer.len < LOGGED_BYTES ? r->answer.len : LOGGED_BYTES;

	show_answer(r, dst);
	if (len > 0 && has_event(r, r->answer.data, len))
		snprintf(dst, SHOWN, BEFORE_ANSWER "the response " IDEM_SINK_HIDES_EVENT);
	else if (strlen(dst) > strlen(BEFORE_ANSWER) + LOGGED_BYTES)
		dst[strlen(BEFORE_ANSWER) + LOGGED_BYTES] = '\0';
}

/* Judge a complete answer. */
static HSinkJudgement
judge_status(HSink *p, const HSinkRequest *r, HSinkVerdict *v)
{
	HSinkBlame	blame = p->service->blame != NULL ? p->service->blame(p, r) : HSINK_BLAME_STATUS;
	long		status = r->status;
	char		shown[SHOWN];

	show_answer(r, shown);
	if (blame == HSINK_BLAME_CONFIG || status == 410)
		show_for_log(r, shown);
	if (blame == HSINK_BLAME_CONFIG)
	{
		idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "08004", "%s answers with HTTP %ld%s", p->config.origin, status, shown);
		return HSINK_FAILS;
	}
	if (blame == HSINK_BLAME_BUSY || status == 429)
		return decide(v, IDEM_PROTO_RETRY, HSINK_ASKS_FOR_LESS, r->retry_after, "HTTP %ld%s", status, shown);
	if (status == 408 || status == 425 || status >= 500 || status < 200)
		return decide(v, IDEM_PROTO_RETRY, NULL, r->retry_after, "HTTP %ld%s", status, shown);
	if (status == 410)
	{
		idem_sink_fail(&p->failure, IDEM_PROTO_HALTED, "08004",
					   "%s answers with HTTP 410 (Gone): it wants no more events%s", p->config.origin, shown);
		return HSINK_FAILS;
	}
	if (status < 400)
		return decide(v, IDEM_PROTO_REJECTED, NULL, 0,
					  "HTTP %ld: a redirect, which is not followed; set the option \"url\" to the final URL", status);
	return decide(v, IDEM_PROTO_REJECTED, NULL, 0, "HTTP %ld%s", status, shown);
}

/* The target cannot be reached. */
static HSinkJudgement
outage(HSink *p, const char *what)
{
	idem_sink_fail(&p->failure, IDEM_PROTO_OUTAGE, "08001", "%s: %s", p->config.origin, what);
	return HSINK_FAILS;
}

/* A file that an option names is not what it has to be. */
static HSinkJudgement
unusable(HSink *p, const char *what)
{
	idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "58030", "%s: %s", p->config.origin, what);
	return HSINK_FAILS;
}

/* No connection came about. */
static HSinkJudgement
judge_connection(HSink *p, const HSinkRequest *r)
{
	char		what[256];
	long		error = 0;

	if (r->refused != NULL)
	{
		idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "42501",
					   "%s is %s, which is not connected to unless a superuser lists it in the option \"allowed_addresses\"",
					   p->config.origin, r->refused);
		return HSINK_FAILS;
	}
	curl_easy_getinfo(r->easy, CURLINFO_OS_ERRNO, &error);
	if (r->code == CURLE_COULDNT_CONNECT && error != 0)
		return outage(p, strerror((int) error));
	if (r->code == CURLE_OPERATION_TIMEDOUT)
		return outage(p, "no connection in time; see the option \"connect_timeout\"");
	if (r->code == CURLE_PEER_FAILED_VERIFICATION)
		return outage(p, "its certificate is not trusted, or not for this host; see the option \"sslrootcert\"");
	if (r->code == CURLE_SSL_CACERT_BADFILE)
		return unusable(p, "could not read the certificates of the option \"sslrootcert\"");
	if (r->code == CURLE_SSL_CERTPROBLEM)
		return unusable(p, "could not use the options \"sslcert\", \"sslkey\" and \"sslpassword\"");

	/*
	 * curl_easy_strerror has fixed texts; CURLOPT_ERRORBUFFER quotes the
	 * server
	 */
	snprintf(what, sizeof(what), "%s", curl_easy_strerror(r->code));
	return outage(p, what);
}

/* Judge a request without a complete answer. */
static HSinkJudgement
judge_failure(HSink *p, const HSinkRequest *r, HSinkVerdict *v)
{
	if (r->code == CURLE_URL_MALFORMAT)
		return decide(v, IDEM_PROTO_IMPOSSIBLE, "22023", 0, "URL of the event is not valid");
	if (!r->was_sent)
		return judge_connection(p, r);
	/* the error of libcurl for a line that is longer than 100 kB */
	if (r->code == CURLE_OUT_OF_MEMORY)
		return decide(v, IDEM_PROTO_RETRY, NULL, 0, "no complete response: a header of it is too long");
	if (r->headers_cut)
		return decide(v, IDEM_PROTO_RETRY, NULL, 0, "headers of the response have more than %zu bytes", r->max_bytes);
	if (r->cut)
		return decide(v, IDEM_PROTO_RETRY, NULL, 0, "response has more than %zu bytes", r->max_bytes);
	if (r->ended_under)
		return decide(v, IDEM_PROTO_RETRY, NULL, 0, "no response: the connection ended under the request");
	if (r->code == CURLE_OPERATION_TIMEDOUT)
		return decide(v, IDEM_PROTO_RETRY, NULL, 0, "no complete response within %ld ms", p->config.timeout);
	return decide(v, IDEM_PROTO_RETRY, NULL, 0, "no complete response: %s", curl_easy_strerror(r->code));
}

HSinkJudgement
hsink_judge(HSink *p, const HSinkRequest *r, HSinkVerdict *v)
{
	bool		success = r->status >= 200 && r->status < 300;

	/* what is longer than what is read is complete enough, but for services */
	if (r->code == CURLE_OK || r->whole || (r->cut && !(success && p->service->reads_answer)))
		return success ? HSINK_ANSWERED : judge_status(p, r, v);
	return judge_failure(p, r, v);
}
