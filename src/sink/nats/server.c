/*-------------------------------------------------------------------------
 *
 * server.c
 *		The connection: requests to the server, and what it says of the stream.
 *
 * The program never connects again: a connection that is lost ends it with
 * `outage`, and the next program reads from the stream what became of the batch.
 *
 * LOCKING
 *		A thread of the library calls on_error; denied_lock guards what it notes.
 * MEMORY
 *		The connection lives as long as the program.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/nats/server.c
 *
 *-------------------------------------------------------------------------
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE				/* strcasestr */
#endif

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sink/common/hide.h"
#include "sink/nats/sink.h"

#define STORE_FAILED	10077	/* err_code: the stream is full, or its store
								 * failed */
#define RIGHTS_TIME	2000		/* ms for the user's rights, which a server
								 * need not tell */

static pthread_mutex_t denied_lock = PTHREAD_MUTEX_INITIALIZER;
static char denied[16384];		/* refusals of subjects, as the server words
								 * them */

/* The callback for errors that answer no request. */
static void
on_error(natsConnection *nc, natsSubscription *sub, natsStatus err, void *closure)
{
	const char *text = NULL;
	size_t		used;
	size_t		len;

	(void) sub;
	(void) closure;
	if (err != NATS_NOT_PERMITTED || natsConnection_GetLastError(nc, &text) == NATS_OK || text == NULL)
		return;
	pthread_mutex_lock(&denied_lock);
	/* what does not fit shows again with the next try */
	used = strlen(denied);
	len = strlen(text);
	if (used + len < sizeof(denied))
		memcpy(denied + used, text, len + 1);
	pthread_mutex_unlock(&denied_lock);
}

bool
nsink_was_denied(const char *subject)
{
	char		quoted[NSINK_MAX_SUBJECT + 3];
	bool		found;

	snprintf(quoted, sizeof(quoted), "\"%s\"", subject);
	pthread_mutex_lock(&denied_lock);
	found = strstr(denied, quoted) != NULL;
	pthread_mutex_unlock(&denied_lock);
	return found;
}

/* Did the server refuse the subscription to the answers? */
static bool
may_not_subscribe(void)
{
	bool		found;

	pthread_mutex_lock(&denied_lock);
	found = strcasestr(denied, "subscription to \"_INBOX") != NULL;
	pthread_mutex_unlock(&denied_lock);
	return found;
}

void
nsink_forget_denied(void)
{
	pthread_mutex_lock(&denied_lock);
	denied[0] = '\0';
	pthread_mutex_unlock(&denied_lock);
}

bool
nsink_is_out(const NSinkAnswer *a)
{
	/*
	 * the option discard_new_per_subject: others of its subjects may have
	 * room
	 */
	if (a->code == STORE_FAILED && strstr(a->text, "per subject") != NULL)
		return false;
	return a->status >= 500 || a->status == 408 || a->status == 429;
}

bool
nsink_fail(NSink *p, natsStatus s, const char *doing)
{
	const char *more = nats_GetLastError(NULL);
	bool		refused = s == NATS_CONNECTION_AUTH_FAILED || s == NATS_NOT_PERMITTED;
	bool		config = refused || s == NATS_SSL_ERROR || s == NATS_SECURE_CONNECTION_WANTED ||
	s == NATS_SECURE_CONNECTION_REQUIRED || s == NATS_INVALID_ARG || s == NATS_ADDRESS_MISSING;

	return idem_sink_fail(&p->failure, config ? IDEM_PROTO_REJECTED : IDEM_PROTO_OUTAGE,
						  refused ? "28000" : config ? "HV000" : "08006", "could not %s: %s%s%.300s", doing, natsStatus_GetText(s),
						  more != NULL && more[0] != '\0' ? ": " : "", more != NULL ? idem_sink_without_secrets(more) : "");
}

static int64_t
left_of(int64_t deadline)
{
	int64_t		left = deadline - idem_sink_clock();

	return left > 1 ? left : 1;
}

/* Set TLS.  The certificate has to fit the host, or the option tls_host. */
static natsStatus
set_tls(const NSinkConfig *c, natsOptions *o)
{
	natsStatus	s = natsOptions_SetSecure(o, true);

	if (s == NATS_OK && c->rootcert != NULL)
		s = natsOptions_LoadCATrustedCertificates(o, c->rootcert);
	if (s == NATS_OK && c->cert != NULL)
		s = natsOptions_LoadCertificatesChain(o, c->cert, c->key);
	if (s == NATS_OK && c->tls_host != NULL)
		s = natsOptions_SetExpectedHostname(o, c->tls_host);
	return s;
}

static natsStatus
set_options(NSink *p, natsOptions *o, int64_t timeout)
{
	const NSinkConfig *c = &p->config;
	natsStatus	s = natsOptions_SetServers(o, (const char **) c->servers, c->n_servers);

	if (s == NATS_OK)
		s = natsOptions_SetName(o, "idempotency-sink-nats");
	if (s == NATS_OK)
		s = natsOptions_SetTimeout(o, timeout);
	if (s == NATS_OK)
		s = natsOptions_SetAllowReconnect(o, false);
	if (s == NATS_OK)
		s = natsOptions_SetFailRequestsOnDisconnect(o, true);
	if (s == NATS_OK)
		s = natsOptions_SetWriteDeadline(o, c->timeout);
	if (s == NATS_OK)
		s = natsOptions_SetErrorHandler(o, on_error, p);
	if (s == NATS_OK && c->user != NULL)
		s = natsOptions_SetUserInfo(o, c->user, c->password);
	if (s == NATS_OK && c->token != NULL)
		s = natsOptions_SetToken(o, c->token);
	if (s == NATS_OK && c->credentials != NULL)
		s = natsOptions_SetUserCredentialsFromFiles(o, c->credentials, NULL);
	return s == NATS_OK && c->tls ? set_tls(c, o) : s;
}

bool
nsink_connect(NSink *p, int64_t deadline)
{
	natsOptions *o = NULL;
	natsStatus	s = natsOptions_Create(&o);

	if (s == NATS_OK)
		s = set_options(p, o, left_of(deadline) / (p->config.n_servers + 1) + 1);
	if (s == NATS_OK)
		s = natsConnection_Connect(&p->nc, o);
	natsOptions_Destroy(o);
	if (s != NATS_OK)
		return nsink_fail(p, s, "connect to the server");
	if (natsConnection_HasHeaderSupport(p->nc) == NATS_OK)
		return true;
	return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "0A000", "the server has no headers: it is too old");
}

bool
nsink_request(NSink *p, natsMsg *msg, int64_t timeout, natsMsg **reply)
{
	natsStatus	s = natsConnection_RequestMsg(reply, p->nc, msg, timeout);

	if (s == NATS_OK)
		return true;
	if (nsink_was_denied(natsMsg_GetSubject(msg)))
		return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "42501",
							  "the server does not let the user publish to \"%s\"; idempotency.sink_setup(server, relay) prints what the user needs",
							  natsMsg_GetSubject(msg));
	if (may_not_subscribe())
		return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "42501",
							  "the server does not let the user subscribe to \"_INBOX.>\", where its answers come; idempotency.sink_setup(server, relay) prints what the user needs");
	if (s == NATS_NO_RESPONDERS)
		return idem_sink_fail(&p->failure, IDEM_PROTO_OUTAGE, "08006", "nobody answers to \"%s\": JetStream is off, or not ready",
							  natsMsg_GetSubject(msg));
	return nsink_fail(p, s, "get an answer of the server");
}

/* A whole number that is a member of an object; dflt if there is none. */
static int64_t
number_of(const char *json, size_t len, const char *name, int64_t dflt)
{
	const char *value;
	size_t		n;
	char		text[24];

	if (len == 0 || !idem_json_member(json, len, name, &value, &n) || n >= sizeof(text))
		return dflt;
	memcpy(text, value, n);
	text[n] = '\0';
	return strtoll(text, NULL, 10);
}

/* Is the member true? */
static bool
is_true(const char *json, size_t len, const char *name)
{
	const char *value;
	size_t		n;

	return idem_json_member(json, len, name, &value, &n) && n == 4 && memcmp(value, "true", 4) == 0;
}

void
nsink_read_answer(natsMsg *reply, NSinkAnswer *a)
{
	const char *json = natsMsg_GetData(reply);
	size_t		len = (size_t) natsMsg_GetDataLength(reply);
	const char *error;
	size_t		n;
	char	   *text;

	memset(a, 0, sizeof(*a));
	if (natsMsg_IsNoResponders(reply))
	{
		a->code = NSINK_NO_STREAM;
		snprintf(a->text, sizeof(a->text), "no stream takes the subject");
		return;
	}
	if (len == 0 || !idem_json_is_object(json, len))
	{
		a->code = -1;
		a->status = 503;
		snprintf(a->text, sizeof(a->text), "the answer is none of JetStream");
		return;
	}
	a->seq = (uint64_t) number_of(json, len, "seq", 0);
	a->count = number_of(json, len, "count", 0);
	if (!idem_json_member(json, len, "error", &error, &n))
	{
		/* what took nothing has no sequence number */
		a->code = a->seq == 0 ? -1 : 0;
		a->status = a->seq == 0 ? 503 : 0;
		return;
	}
	a->code = (int) number_of(error, n, "err_code", -1);
	a->status = (int) number_of(error, n, "code", 503);
	if (a->code == 0)
		a->code = -1;
	text = idem_json_string(error, n, "description");
	snprintf(a->text, sizeof(a->text), "%s", text != NULL ? idem_sink_without_secrets(text) : "an error without a description");
	free(text);
}

/* Take the subjects in the list that is a member of the object. */
static void
read_subjects(IdemText *subjects, const char *json, size_t len, const char *name)
{
	const char *list;
	const char *value;
	size_t		list_len;
	size_t		n;
	size_t		at = 0;

	subjects->len = 0;
	if (!idem_json_member(json, len, name, &list, &list_len))
		return;
	while (idem_json_next_element(list, list_len, &at, &value, &n))
	{
		if (value[0] != '"')
			continue;
		idem_json_unquote(subjects, value, n);
		idem_text_add(subjects, "", 1);
	}
}

/* Does the stream store the subject's messages under another one? */
static bool
is_transformed(const char *config, size_t len, const char *subject)
{
	const char *transform;
	size_t		n;
	IdemText	src = {NULL, 0, 0};
	char	   *text;
	bool		found;

	if (!idem_json_member(config, len, "subject_transform", &transform, &n) || transform[0] != '{')
		return false;
	text = idem_json_string(transform, n, "src");
	idem_text_puts(&src, text != NULL && text[0] != '\0' ? text : ">");
	idem_text_add(&src, "", 1);
	found = nsink_has_subject(&src, subject);
	free(text);
	free(src.data);
	return found;
}

/* What makes a stream unfit; NULL: nothing. */
static const char *
problem_of(const NSink *p, const char *config, size_t len)
{
	char	   *retention = idem_json_string(config, len, "retention");
	const char *value;
	size_t		n;
	const char *problem = NULL;

	if (retention != NULL && strcmp(retention, "limits") != 0)
		problem = "has a retention other than \"limits\": it acknowledges messages that nobody consumes, and does not store them";
	else if (idem_json_member(config, len, "mirror", &value, &n) && value[0] == '{')
		problem = "is a mirror, which takes no messages";
	else if (is_true(config, len, "sealed"))
		problem = "is sealed";
	else if (is_true(config, len, "no_ack"))
		problem = "has no_ack: it acknowledges nothing";
	else if (p->config.exactly_once && !is_true(config, len, "allow_atomic"))
		problem = "has no atomic batches (allow_atomic, nats-server 2.12 or later), which \"exactly_once\" needs; set the option \"delivery\" to \"at_least_once\" otherwise";
	else if (is_true(config, len, "allow_msg_counter"))
		problem = "has allow_msg_counter: it takes numbers to add only";
	else if (p->config.exactly_once && is_transformed(config, len, p->config.position_subject))
		problem = "has a subject_transform of the position's subject, under which the position would not be found again";
	else if (p->config.exactly_once && is_true(config, len, "discard_new_per_subject") && !p->stream.keeps_position)
		problem = "has discard_new_per_subject and lacks allow_rollup_hdrs or allow_msg_ttl: it refuses positions once it has some";
	free(retention);
	return problem;
}

/* How a stream may lose a position; NULL: not that it shows. */
static const char *
warning_of(const NSink *p, const char *config, size_t len)
{
	char	   *storage = idem_json_string(config, len, "storage");
	bool		forgets = storage != NULL && strcmp(storage, "memory") == 0;

	free(storage);
	if (!p->config.exactly_once)
		return NULL;
	if (p->stream.max_age > 0 && !p->stream.keeps_position)
		return "has max_age and lacks allow_rollup_hdrs or allow_msg_ttl: the position of a relay that sends nothing for that long is deleted";
	return forgets ? "has storage \"memory\": the position is lost when the server restarts" : NULL;
}

/* Judge what the server says of the stream. */
static bool
take_stream(NSink *p, const char *json, size_t len)
{
	const char *config;
	const char *problem;
	int64_t		max_bytes;
	size_t		n;

	if (!idem_json_is_object(json, len) || !idem_json_member(json, len, "config", &config, &n))
		return idem_sink_fail(&p->failure, IDEM_PROTO_OUTAGE, "08006", "could not read what the server says of stream \"%s\"", p->config.stream);
	p->stream.keeps_position = is_true(config, n, "allow_rollup_hdrs") && is_true(config, n, "allow_msg_ttl");
	problem = problem_of(p, config, n);
	if (problem != NULL)
		return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "55000", "stream \"%s\" %s", p->config.stream, problem);
	read_subjects(&p->stream.subjects, config, n, "subjects");
	p->stream.max_message = number_of(config, n, "max_msg_size", -1);
	/* a stream that deletes the oldest would take a larger one, and delete it */
	max_bytes = number_of(config, n, "max_bytes", -1);
	if (max_bytes > 0 && (p->stream.max_message < 0 || max_bytes < p->stream.max_message))
		p->stream.max_message = max_bytes;
	p->stream.max_age = number_of(config, n, "max_age", 0);
	p->stream.warning = warning_of(p, config, n);
	return idem_sink_looks(&p->sink) || nsink_check_subjects(p);
}

bool
nsink_check_subjects(NSink *p)
{
	const char *problem = NULL;

	if (p->config.exactly_once && !nsink_has_subject(&p->stream.subjects, p->config.position_subject))
		problem = p->config.position_subject;
	else if (strchr(p->config.subject, '{') == NULL && !nsink_has_subject(&p->stream.subjects, p->config.subject))
		problem = p->config.subject;
	if (problem == NULL)
		return true;
	return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "42704",
						  "stream \"%s\" does not have the subject \"%s\"; idempotency.sink_setup(server, relay) prints what it needs",
						  p->config.stream, problem);
}

bool
nsink_read_stream(NSink *p, int64_t deadline)
{
	char		subject[NSINK_MAX_SUBJECT];
	natsMsg    *msg = NULL;
	natsMsg    *reply = NULL;
	NSinkAnswer a;
	natsStatus	s;
	bool		ok;

	snprintf(subject, sizeof(subject), "$JS.API.STREAM.INFO.%s", p->config.stream);
	s = natsMsg_Create(&msg, subject, NULL, NULL, 0);
	if (s != NATS_OK)
		return nsink_fail(p, s, "ask for the stream");
	ok = nsink_request(p, msg, left_of(deadline), &reply);
	natsMsg_Destroy(msg);
	if (!ok)
		return false;
	nsink_read_answer(reply, &a);
	if (a.text[0] == '\0')
		ok = take_stream(p, natsMsg_GetData(reply), (size_t) natsMsg_GetDataLength(reply));
	else
		ok = idem_sink_fail(&p->failure, a.status == 404 ? IDEM_PROTO_REJECTED : IDEM_PROTO_OUTAGE, a.status == 404 ? "42704" : "08006",
							"could not use stream \"%s\": %s%s", p->config.stream, a.text,
							a.status == 404 ? "; idempotency.sink_setup(server, relay) prints the request that makes it" : "");
	natsMsg_Destroy(reply);
	return ok;
}

/* Do the rights, an object of lists of subjects, allow the subject? */
static bool
allows(const char *rights, size_t len, const char *subject)
{
	IdemText	list = {NULL, 0, 0};
	const char *value;
	size_t		n;
	bool		allowed = true;

	if (idem_json_member(rights, len, "allow", &value, &n) && value[0] == '[')
	{
		read_subjects(&list, rights, len, "allow");
		allowed = nsink_has_subject(&list, subject);
	}
	read_subjects(&list, rights, len, "deny");
	allowed = allowed && !nsink_has_subject(&list, subject);
	free(list.data);
	return allowed;
}

/* Take the user's rights to publish from what the server says; false: it says none. */
static bool
find_rights(const char *json, size_t len, const char **rights, size_t *n)
{
	return len > 0 && idem_json_is_object(json, len) && idem_json_member(json, len, "data", rights, n) && (*rights)[0] == '{';
}

bool
nsink_check_rights(NSink *p, int64_t deadline, bool *told)
{
	const char *needed[] = {p->config.exactly_once ? p->config.position_subject : NULL,
	strchr(p->config.subject, '{') == NULL ? p->config.subject : NULL};
	int64_t		timeout = left_of(deadline) < RIGHTS_TIME ? left_of(deadline) : RIGHTS_TIME;
	natsMsg    *reply = NULL;
	const char *rights;
	size_t		n;
	bool		ok = true;

	/* a user who may not ask gets no answer */
	if (natsConnection_RequestString(&reply, p->nc, "$SYS.REQ.USER.INFO", "", timeout) != NATS_OK)
		reply = NULL;
	*told = reply != NULL && find_rights(natsMsg_GetData(reply), (size_t) natsMsg_GetDataLength(reply), &rights, &n);
	if (*told && idem_json_member(rights, n, "permissions", &rights, &n) && rights[0] == '{' &&
		idem_json_member(rights, n, "publish", &rights, &n) && rights[0] == '{')
		for (size_t i = 0; i < sizeof(needed) / sizeof(needed[0]) && ok; i++)
			ok = needed[i] == NULL || allows(rights, n, needed[i]) ||
				idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "42501", "the user has no right to publish to \"%s\"", needed[i]);
	natsMsg_Destroy(reply);
	return ok;
}

bool
nsink_end(NSink *p, int timeout)
{
	IdemJobEnd	end = idem_intake_end(&p->in, timeout);

	/* p->failure belongs to the job: end here */
	if (end == IDEM_JOB_LATE)
		idem_sink_failed(&p->sink, IDEM_PROTO_OUTAGE, "08006", "the server gave no answer within %d ms", timeout);
	return end == IDEM_JOB_DONE;
}

bool
nsink_run(NSink *p, bool (*job) (void *), void *arg, int timeout)
{
	idem_intake_begin(&p->in, job, arg);
	return nsink_end(p, timeout);
}

/* A job. */
static bool
read_stream_job(void *arg)
{
	NSink	   *p = arg;

	return nsink_read_stream(p, idem_sink_clock() + p->config.timeout);
}

bool
nsink_read_stream_again(NSink *p)
{
	return nsink_run(p, read_stream_job, p, p->config.timeout + NSINK_MARGIN);
}
