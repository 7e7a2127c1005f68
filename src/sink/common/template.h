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

/*
 * Add the text of a member of a JSON object: the content of a string, the JSON text
 * of another value.  False if there is none, or null.
 */
extern bool idem_text_add_member(IdemText *t, const char *json, size_t len, const char *name,
								 size_t name_len);

#endif							/* IDEM_SINK_TEMPLATE_H */
