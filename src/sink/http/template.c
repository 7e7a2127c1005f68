/*-------------------------------------------------------------------------
 *
 * template.c
 *		Fills the fields of an event into templates.
 *
 * INVARIANT
 *		A field of an event cannot leave its place.  In a URL each of its bytes
 *		but the unreserved ones of RFC 3986 is percent-encoded; url.c looks after
 *		segments of dots.  In a header it has no control character, or the event
 *		is refused.
 *
 * MEMORY
 *		None of its own.  LOCKING: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/http/template.c
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>

#include "sink/common/header.h"
#include "sink/common/template.h"
#include "sink/http/sink.h"

/* Where the values of a template go, and what was wrong with one. */
typedef struct Place
{
	HSinkPlace	place;
	HSinkProblem *problem;
} Place;

/* Add a value for its place.  False: it cannot stand there. */
static bool
add_value(void *arg, IdemText *t, const char *value, size_t len)
{
	Place	   *at = arg;
	HSinkProblem *problem = at->problem;

	problem->sqlstate = "22023";
	if (at->place == HSINK_IN_URL)
	{
		snprintf(problem->text, sizeof(problem->text), "event has an empty value for a placeholder of the option \"url\"");
		idem_text_add_encoded(t, value, len);
		return len > 0;
	}
	if (at->place == HSINK_IN_HEADER && idem_header_has_control(value, len))
	{
		snprintf(problem->text, sizeof(problem->text),
				 "event has a control character in a value for the option \"headers\"");
		return false;
	}
	idem_text_add(t, value, len);
	return true;
}

bool
hsink_expand(const HSink *p, const HSinkEvent *e, const char *template, HSinkPlace place,
			 IdemText *t, HSinkProblem *problem)
{
	Place		at = {place, problem};
	const IdemTemplate how = {p->config.relay, p->config.token, add_value, &at};
	IdemSinkEvent view = hsink_view(e);
	IdemProtoStr placeholder;
	IdemTemplateEnd end = idem_template_fill(&how, template, &view, t, &placeholder);

	if (end == IDEM_TEMPLATE_LACKS_HEADER)
	{
		problem->sqlstate = "22023";
		snprintf(problem->text, sizeof(problem->text), "event lacks the header of the placeholder \"%.*s\"",
				 (int) placeholder.len, placeholder.data);
	}
	return end == IDEM_TEMPLATE_FILLED;
}
