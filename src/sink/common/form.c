/*-------------------------------------------------------------------------
 *
 * form.c
 *		Writes the form of a request to a token server.
 *
 * INVARIANT
 *		Values are encoded: no option can add a field, or end its own.
 *
 * MEMORY
 *		The form belongs to the caller.  LOCKING: none; reentrant.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/common/form.c
 *
 *-------------------------------------------------------------------------
 */
#include "sink/common/form.h"

#include <string.h>

#include "sink/common/format.h"

void
idem_form_add(IdemText *form, const char *name, const char *value)
{
	if (value == NULL)
		return;
	if (form->len > 0)
		idem_text_puts(form, "&");
	idem_text_puts(form, name);
	idem_text_puts(form, "=");
	idem_text_add_encoded(form, value, strlen(value));
}

void
idem_form_ask_by_credentials(IdemText *form, const char *scope, const char *audience)
{
	idem_form_add(form, "grant_type", "client_credentials");
	idem_form_add(form, "scope", scope);
	idem_form_add(form, "audience", audience);
}

void
idem_form_add_login(IdemText *form, const char *client, const char *secret)
{
	idem_form_add(form, "client_id", client);
	idem_form_add(form, "client_secret", secret);
}
