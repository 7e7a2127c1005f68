/*-------------------------------------------------------------------------
 *
 * template.c
 *		Templates of options, and members of headers as text.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/common/template.c
 *
 *-------------------------------------------------------------------------
 */
#include <stdlib.h>
#include <string.h>

#include "sink/common/program.h"
#include "sink/common/template.h"

bool
idem_text_add_member(IdemText *t, const char *json, size_t len, const char *name, size_t name_len)
{
	char	   *wanted = idem_sink_strdup(name, name_len);
	const char *value;
	size_t		value_len;
	bool		found = len > 0 && idem_json_member(json, len, wanted, &value, &value_len) &&
	!(value_len == 4 && memcmp(value, "null", 4) == 0);

	free(wanted);
	if (found && value[0] == '"')
		idem_json_unquote(t, value, value_len);
	else if (found)
		idem_text_add(t, value, value_len);
	return found;
}
