/*-------------------------------------------------------------------------
 *
 * template.h
 *		Templates of options, filled with the fields of an event.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/common/template.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_SINK_TEMPLATE_H
#define IDEM_SINK_TEMPLATE_H

#include "sink/common/event.h"
#include "sink/common/json.h"

/* What a template is filled with besides the event, and where it goes. */
typedef struct IdemTemplate
{
	const char *relay;
	const char *token;			/* of {token}; NULL: empty */

	/*
	 * Add the value of a placeholder; false: it cannot stand there.  NULL:
	 * values are added as they are.
	 */
	bool		(*add) (void *arg, IdemText *t, const char *value, size_t len);
	void	   *arg;
} IdemTemplate;

typedef enum IdemTemplateEnd
{
	IDEM_TEMPLATE_FILLED,
	IDEM_TEMPLATE_LACKS_HEADER,
	IDEM_TEMPLATE_REFUSED		/* by add */
} IdemTemplateEnd;

/*
 * Add the template, filled in.  idem_sink_check_template has taken it.  *at is the
 * placeholder that could not be filled, braces included.
 */
extern IdemTemplateEnd idem_template_fill(const IdemTemplate *how, const char *template,
										  const IdemSinkEvent *e, IdemText *t, IdemProtoStr *at);

/* Fill the template into buf, cut to cap bytes with the terminator; empty if it cannot be. */
extern void idem_template_name(const IdemTemplate *how, const char *template, const IdemSinkEvent *e, char *buf, size_t cap);

/*
 * Does the template make several destinations, each of which many keys share?  With
 * {aggregate_id} each key has a place of its own, where nothing else can pass; then
 * nothing would ever count against a refused event.
 */
extern bool idem_template_makes_destinations(const char *template);

#endif							/* IDEM_SINK_TEMPLATE_H */
