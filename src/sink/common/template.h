/*-------------------------------------------------------------------------
 *
 * template.h
 *		Templates of options, and members of headers as text.
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

#include "sink/common/json.h"

/* Of a placeholder, what stands before the name of a header of the event */
#define IDEM_SINK_HEADER_PREFIX	"header:"

/*
 * What is wrong with a template, as the end of a sentence; NULL: nothing.  names: the
 * placeholders that it may have, as in "{relay} {aggregate_type} {header:NAME}".
 */
extern const char *idem_sink_check_template(const char *template, const char *names);

/*
 * Add the text of a member of a JSON object: the content of a string, the JSON text
 * of another value.  False if there is none, or null.
 */
extern bool idem_text_add_member(IdemText *t, const char *json, size_t len, const char *name,
								 size_t name_len);

#endif							/* IDEM_SINK_TEMPLATE_H */
