/*-------------------------------------------------------------------------
 *
 * aws.c
 *		What the services of AWS have in common: options, errors, entries.
 *
 * An error names its code in "__type" of a JSON object, behind a '#' if there is
 * one, or in an element <Code> of XML.
 *
 * INVARIANT
 *		An answer is not trusted: an entry counts once, and only if it is in the
 *		request.
 *
 * MEMORY
 *		None of its own.  LOCKING: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/http/aws.c
 *
 *-------------------------------------------------------------------------
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE				/* memmem */
#endif

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sink/common/hide.h"
#include "sink/http/sink.h"

#define MAX_CODE	128

/* Beginnings of codes that say "later". */
static const char *const busy[] = {
	"Throttl", "RequestThrottled", "TooManyRequests", "ServiceUnavailable", "InternalFailure", "InternalError",
	"InternalException", "OverLimit", "SlowDown", "RequestTimeout", "KMSThrottling", "KmsThrottled", "LimitExceeded", NULL
};

/* Beginnings of codes that blame the login, or the queue or topic. */
static const char *const config[] = {
	"AccessDenied", "AuthFailure", "AuthorizationError", "AWS.SimpleQueueService.NonExistentQueue", "ExpiredToken",
	"IncompleteSignature", "InvalidAccessKeyId", "InvalidAddress", "InvalidClientTokenId", "InvalidSecurity",
	"InvalidSignature", "KMSAccessDenied", "KmsAccessDenied", "KMSNotFound", "KMSDisabled", "MissingAuthenticationToken",
	"NotAuthorized", "NotFound", "OptInRequired", "QueueDoesNotExist", "RequestExpired", "ResourceNotFound",
	"SignatureDoesNotMatch", "TopicDoesNotExist", "UnrecognizedClient", NULL
};

static bool
begins_with_one(const char *code, const char *const *names)
{
	for (; *names != NULL; names++)
		if (strncmp(code, *names, strlen(*names)) == 0)
			return true;
	return false;
}

const char *
hsink_configure_aws(HSink *p)
{
	HSinkConfig *c = &p->config;

	if (c->region == NULL || c->user == NULL || c->password == NULL)
		return "AWS needs the options \"region\", \"user\" (access key id), and \"password\" (secret access key) or \"secret_file\"";
	if (strspn(c->region, "abcdefghijklmnopqrstuvwxyz0123456789-") != strlen(c->region))
		return "option \"region\" must be the name of a region, as in eu-central-1";
	if (strcmp(c->method, "POST") != 0)
		return "option \"method\" is for webhooks";
	c->auth = HSINK_AUTH_AWS;
	return hsink_check_batch_options(p);
}

/* Write the code of an error; "" if the answer has none. */
static void
find_code(const HSinkRequest *r, char *code)
{
	const char *start = r->answer.len > 0 ? memmem(r->answer.data, r->answer.len, "<Code>", 6) : NULL;
	char	   *type = r->answer.len > 0 ? idem_json_string(r->answer.data, r->answer.len, "__type") : NULL;
	const char *name = type != NULL ? strrchr(type, '#') : NULL;
	size_t		n = 0;

	if (type != NULL)
		n = (size_t) snprintf(code, MAX_CODE, "%s", name != NULL ? name + 1 : type);
	else if (start != NULL)
		for (start += 6; n < MAX_CODE - 1 && start < r->answer.data + r->answer.len && *start != '<'; start++)
			code[n++] = *start;
	code[n < MAX_CODE ? n : MAX_CODE - 1] = '\0';
	free(type);
}

HSinkBlame
hsink_blame_aws(HSink *p, const HSinkRequest *r)
{
	char		code[MAX_CODE];

	(void) p;
	find_code(r, code);
	if (begins_with_one(code, busy))
		return HSINK_BLAME_BUSY;
	if (begins_with_one(code, config) || (r->status >= 401 && r->status <= 404))
		return HSINK_BLAME_CONFIG;
	return HSINK_BLAME_STATUS;
}

void
hsink_answer_refused(HSink *p, HSinkRequest *r, uint32_t index, bool sender, const char *code, const char *message)
{
	char		text[IDEM_PROTO_MAX_MESSAGE + 1];
	bool		hide = idem_sink_has_secret(message, strlen(message)) || idem_sink_has_secret(code, strlen(code));

	snprintf(text, sizeof(text), "%s%s%s", hide ? "refused" : code, hide || message[0] != '\0' ? ": " : "",
			 hide ? "the response " IDEM_SINK_HIDES_SECRET : message);
	hsink_answer(p, r->events[index], sender && !begins_with_one(code, busy) ? IDEM_PROTO_REJECTED : IDEM_PROTO_RETRY,
				 begins_with_one(code, busy) ? HSINK_ASKS_FOR_LESS : NULL, 0, text);
	r->events[index] = NULL;
}

int
hsink_entry_index(const HSinkRequest *r, const char *id)
{
	char	   *end;
	long		n;

	if (id[0] < '0' || id[0] > '9')
		return -1;
	n = strtol(id, &end, 10);
	return *end == '\0' && n < (long) r->count && r->events[n] != NULL ? (int) n : -1;
}
