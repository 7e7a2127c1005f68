/*-------------------------------------------------------------------------
 *
 * form.h
 *		The form of a request to an OAuth 2.0 token server.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/common/form.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_SINK_FORM_H
#define IDEM_SINK_FORM_H

#include "sink/common/json.h"

/* Add a field, percent-encoded.  value: NULL adds none. */
extern void idem_form_add(IdemText *form, const char *name, const char *value);

/* Ask for a token by the client's credentials.  scope, audience: or NULL. */
extern void idem_form_ask_by_credentials(IdemText *form, const char *scope, const char *audience);

/* Add the client's login, for a server that does not want it in a header. */
extern void idem_form_add_login(IdemText *form, const char *client, const char *secret);

#endif							/* IDEM_SINK_FORM_H */
