/*-------------------------------------------------------------------------
 *
 * headers.c
 *		The header lines of a request: of the options, of the login, of the event.
 *
 * INVARIANT
 *		No event adds a line that it should not, or a second line within one: names
 *		are tokens of RFC 9110, values have no control characters, and names that
 *		frame the message, log in, name its sender or are this sink's own are left
 *		out.
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
#include <strings.h>

#include "sink/common/template.h"
#include "sink/http/sink.h"

#define MAX_HEADERS	64			/* lines of the option */

/* Names that no line of options or events has; "x-*" stands for all x-... */
static const char *const reserved[] = {
	"authorization", "connection", "content-length", "content-type", "cookie", "expect", "forwarded", "host",
	"http2-settings", "idempotency-key", "keep-alive", "proxy-*", "te", "trailer", "transfer-encoding",
	"upgrade", "webhook-*", NULL
};

/* The same of events only. */
static const char *const reserved_of_events[] = {
	"ce-*", "user-agent", "via", "x-forwarded-*", "x-real-ip", NULL
};

static bool
is_token(const char *name, size_t len)
{
	static const char letters[] =
	"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789!#$%&'*+-.^_`|~";

	for (size_t i = 0; i < len; i++)
		if (name[i] == '\0' || strchr(letters, name[i]) == NULL)
			return false;
	return len > 0;
}

static bool
is_among(const char *const *names, const char *name, size_t len)
{
	for (; *names != NULL; names++)
	{
		size_t		n = strlen(*names);

		if ((*names)[n - 1] == '*' ? len >= n - 1 && strncasecmp(name, *names, n - 1) == 0 :
			len == n && strncasecmp(name, *names, n) == 0)
			return true;
	}
	return false;
}

/* Has the text a control character that could end the line? */
static bool
has_control(const char *text, size_t len)
{
	for (size_t i = 0; i < len; i++)
		if (((unsigned char) text[i] < ' ' && text[i] != '\t') || text[i] == 0x7F)
			return true;
	return false;
}

/* Take a line "Name: value" apart.  NULL, or what is wrong. */
static const char *
read_line(char *line, HSinkHeader *h)
{
	char	   *colon = strchr(line, ':');

	if (colon == NULL || !is_token(line, (size_t) (colon - line)))
		return "must have a line \"Name: value\" for each header";
	*colon++ = '\0';
	if (is_among(reserved, line, strlen(line)))
		return "must not have a header that has an option of its own, or that the sink sends itself";
	colon += strspn(colon, " \t");
	if (has_control(colon, strlen(colon)))
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
		if (strlen(c->headers[i].name) == len && strncasecmp(c->headers[i].name, name, len) == 0)
			return true;
	return false;
}

/* Add one of the event's headers.  False: *problem. */
static bool
add_own(HSinkRequest *r, IdemText *name, const char *value, size_t len, HSinkProblem *problem)
{
	problem->sqlstate = "22023";
	if (!is_token(name->data, name->len))
	{
		snprintf(problem->text, sizeof(problem->text), "event has a header whose name HTTP does not take");
		return false;
	}
	if (is_among(reserved, name->data, name->len) || is_among(reserved_of_events, name->data, name->len) ||
		is_of_options(&r->p->config, name->data, name->len))
		return true;
	idem_text_terminate(name);
	if (has_control(value, len))
	{
		snprintf(problem->text, sizeof(problem->text), "event has a control character in its header \"%.100s\"", name->data);
		return false;
	}
	hsink_add_header(r, name->data, value, len);
	return true;
}

bool
hsink_add_event_headers(HSinkRequest *r, const HSinkEvent *e, HSinkProblem *problem)
{
	IdemText	name = {NULL, 0, 0};
	IdemText	text = {NULL, 0, 0};
	const char *value;
	size_t		len;
	size_t		at = 0;
	bool		ok = true;

	while (ok && e->headers.len > 0 && idem_json_next(e->headers.data, e->headers.len, &at, &name, &value, &len))
	{
		text.len = 0;
		if (len == 4 && memcmp(value, "null", 4) == 0)
			continue;
		if (value[0] == '"')
			idem_json_unquote(&text, value, len);
		else
			idem_text_add(&text, value, len);
		ok = add_own(r, &name, text.data, text.len, problem) && !is_too_large(r, problem);
	}
	free(name.data);
	free(text.data);
	return ok;
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
