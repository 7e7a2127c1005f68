/*-------------------------------------------------------------------------
 *
 * headers.c
 *		The header lines of a request: of the options, of the login, of the event.
 *
 * INVARIANT
 *		No event adds a second line within one: names are tokens of RFC 9110, values
 *		have no control characters.  common/header.c leaves out names that an event
 *		must not set.
 *
 * MEMORY
 *		The lines belong to the request.  LOCKING: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/http/headers.c
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sink/common/cloudevent.h"
#include "sink/common/header.h"
#include "sink/http/sink.h"

#define MAX_HEADERS	64			/* lines of the option */

/* Take a line "Name: value" apart.  NULL, or what is wrong. */
static const char *
read_line(char *line, HSinkHeader *h)
{
	char	   *colon = strchr(line, ':');

	if (colon == NULL || !idem_header_is_token(line, (size_t) (colon - line)))
		return "must have a line \"Name: value\" for each header";
	*colon++ = '\0';
	if (idem_header_is_reserved(IDEM_HEADERS_OF_OPTION, line, strlen(line)))
		return "must not have a header that has an option of its own, or that the sink sends itself";
	colon += strspn(colon, " \t");
	if (idem_header_has_control(colon, strlen(colon)))
		return "must not have control characters";
	h->name = line;
	h->value = colon;
	return NULL;
}

const char *
hsink_read_headers(HSinkConfig *c, char *text)
{
	char	   *rest = NULL;
	const char *problem = NULL;

	c->headers = idem_sink_alloc(MAX_HEADERS * sizeof(HSinkHeader));
	for (char *line = strtok_r(text, "\r\n", &rest); line != NULL && problem == NULL;
		 line = strtok_r(NULL, "\r\n", &rest))
	{
		if (c->n_headers == MAX_HEADERS)
			problem = "has too many lines";
		else
			problem = read_line(line, &c->headers[c->n_headers++]);
	}
	return problem;
}

/* Has the request more bytes of headers than servers take?  Then *problem says so. */
static bool
is_too_large(const HSinkRequest *r, HSinkProblem *problem)
{
	if (r->header_size <= HSINK_MAX_HEADER_BYTES)
		return false;
	problem->sqlstate = "54000";
	snprintf(problem->text, sizeof(problem->text), "headers of the request have more than %d bytes", HSINK_MAX_HEADER_BYTES);
	return true;
}

bool
hsink_add_option_headers(HSink *p, HSinkRequest *r, const HSinkEvent *e, HSinkProblem *problem)
{
	IdemText	value = {NULL, 0, 0};
	bool		ok = true;

	for (int i = 0; i < p->config.n_headers && ok; i++)
	{
		value.len = 0;
		ok = hsink_expand(p, e, p->config.headers[i].value, HSINK_IN_HEADER, &value, problem);
		if (ok)
			hsink_add_header(r, p->config.headers[i].name, value.data, value.len);
	}
	free(value.data);
	return ok && !is_too_large(r, problem);
}

/* Is there a line of the options with this name? */
static bool
is_of_options(const HSinkConfig *c, const char *name, size_t len)
{
	for (int i = 0; i < c->n_headers; i++)
		if (idem_header_is_same(name, len, c->headers[i].name))
			return true;
	return false;
}

/* Add one of the event's headers.  False: *problem. */
static bool
add_own(HSinkRequest *r, const IdemHeader *h, HSinkProblem *problem)
{
	problem->sqlstate = "22023";
	if (!idem_header_is_token(h->name.data, h->name.len))
	{
		snprintf(problem->text, sizeof(problem->text), "event has a header whose name HTTP does not take");
		return false;
	}
	if (is_of_options(&r->p->config, h->name.data, h->name.len))
		return true;
	if (idem_header_has_control(h->value.data, h->value.len))
	{
		snprintf(problem->text, sizeof(problem->text), "event has a control character in its header \"%.100s\"", h->name.data);
		return false;
	}
	hsink_add_header(r, h->name.data, h->value.data, h->value.len);
	return true;
}

bool
hsink_add_event_headers(HSinkRequest *r, const HSinkEvent *e, HSinkProblem *problem)
{
	IdemSinkEvent view = hsink_view(e);
	IdemHeader	h = {.at = 0};
	bool		ok = true;

	while (ok && idem_header_next(&h, &view, IDEM_HEADERS_OF_HTTP))
		ok = h.is_null || (add_own(r, &h, problem) && !is_too_large(r, problem));
	idem_header_end(&h);
	return ok;
}

IdemProtoStr
hsink_content_type(const HSink *p, const HSinkEvent *e)
{
	IdemSinkEvent view = hsink_view(e);

	return p->config.content_type != NULL ? IDEM_STR(p->config.content_type) : idem_content_type(&view);
}

void
hsink_add_ce_headers(const HSink *p, HSinkRequest *r, const HSinkEvent *e)
{
	IdemSinkEvent view = hsink_view(e);
	IdemText	name = {NULL, 0, 0};
	IdemText	value = {NULL, 0, 0};
	IdemCloudEvent ce;

	idem_ce_make(&ce, &view, p->config.source, p->config.relay);
	for (int i = 0; i < ce.count; i++)
	{
		name.len = value.len = 0;
		idem_text_puts(&name, "ce-");
		idem_text_puts(&name, ce.attributes[i].name);
		idem_ce_add_header_value(&value, ce.attributes[i].value);
		hsink_add_header(r, idem_text_terminate(&name), value.data, value.len);
	}
	idem_ce_free(&ce);
	free(name.data);
	free(value.data);
}

/* Add a header with a scheme and a token. */
static void
add_authorization(HSinkRequest *r, const char *scheme, const char *token)
{
	IdemText	t = {NULL, 0, 0};

	idem_text_puts(&t, scheme);
	idem_text_puts(&t, token);
	hsink_add_header(r, "Authorization", t.data, t.len);
	free(t.data);
}

void
hsink_add_login(HSink *p, HSinkRequest *r)
{
	const HSinkConfig *c = &p->config;

	switch (c->auth)
	{
		case HSINK_AUTH_NONE:
		case HSINK_AUTH_SAS:	/* its service adds it */
			break;
		case HSINK_AUTH_BASIC:
			add_authorization(r, "Basic ", c->authorization);
			break;
		case HSINK_AUTH_BEARER:
			add_authorization(r, "Bearer ", c->token);
			break;
		case HSINK_AUTH_OAUTH2:
		case HSINK_AUTH_SERVICE_ACCOUNT:
			add_authorization(r, "Bearer ", p->token.value);
			r->token = p->token.number;
			break;
		case HSINK_AUTH_AWS:	/* transfer.c signs */
			if (c->session_token != NULL)
				hsink_add_header(r, "X-Amz-Security-Token", c->session_token, strlen(c->session_token));
			break;
	}
}
