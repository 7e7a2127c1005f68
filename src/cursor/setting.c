/*-------------------------------------------------------------------------
 *
 * setting.c
 *		The settings of cursors.
 *
 * LOCKING: none.
 *
 * MEMORY: the values.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/cursor/setting.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <limits.h>

#include "datatype/timestamp.h"
#include "utils/guc.h"

#include "cursor/setting.h"

int			idem_producer_retention = 30 * SECS_PER_DAY;
int			idem_cursor_log_dump_size = 131072; /* 1 GB */

void
idem_cursor_setting_init(void)
{
	DefineCustomIntVariable("idempotency.producer_retention",
							"How long a producer is kept at least that neither registers nor claims a sequence.",
							"Then it is forgotten, and its claims are answered \"fenced\".  0 means for ever.",
							&idem_producer_retention,
							30 * SECS_PER_DAY, 0, INT_MAX,
							PGC_SUSET, GUC_UNIT_S, NULL, NULL, NULL);

	DefineCustomIntVariable("idempotency.cursor_log_dump_size",
							"How long the log of cursors may become while a dump of the database runs.",
							"Until then no table is emptied that the dump needs. 0: a dump is not waited for.",
							&idem_cursor_log_dump_size,
							131072, 0, INT_MAX / 2,
							PGC_SIGHUP, GUC_UNIT_BLOCKS, NULL, NULL, NULL);
}
