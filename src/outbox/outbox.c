/*-------------------------------------------------------------------------
 *
 * outbox.c
 *		The outbox's settings.
 *
 * All of them may be given per database (ALTER DATABASE ... SET), because each
 * database has its own outbox and its own relay worker.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/outbox/outbox.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <limits.h>

#include "utils/guc.h"

#include "outbox/outbox.h"

/* A jsonb value cannot be larger than this. */
#define MAX_PAYLOAD_LIMIT	(256 * 1024 * 1024 - 1)

int			idem_max_payload_size = 1024 * 1024;
int			idem_outbox_retention = 24 * 60 * 60;
int			idem_outbox_segment_size = 64 * 1024;
int			idem_outbox_rotation_interval = 60;

void		(*idem_outbox_enqueued_hook) (void) = NULL;
int64		(*idem_outbox_greatest_hook) (void) = NULL;

void
idem_outbox_init(void)
{
	DefineCustomIntVariable("idempotency.max_payload_size",
							"Largest payload, and largest headers, that an event may have.",
							"Counted in the binary form, uncompressed.",
							&idem_max_payload_size,
							1024 * 1024, 1024, MAX_PAYLOAD_LIMIT,
							PGC_SUSET, GUC_UNIT_BYTE, NULL, NULL, NULL);

	DefineCustomIntVariable("idempotency.outbox_retention",
							"Time that events stay in the outbox after they were enqueued.",
							"Events not yet delivered by every relay stay longer.",
							&idem_outbox_retention,
							24 * 60 * 60, 0, INT_MAX,
							PGC_SUSET, GUC_UNIT_S, NULL, NULL, NULL);

	DefineCustomIntVariable("idempotency.outbox_segment_size",
							"Size at which a segment of the outbox is closed early.",
							"Applies while at least half of the ring of segments is empty.",
							&idem_outbox_segment_size,
							64 * 1024, 8, INT_MAX,
							PGC_SUSET, GUC_UNIT_KB, NULL, NULL, NULL);

	DefineCustomIntVariable("idempotency.outbox_rotation_interval",
							"Least time between two closings of a segment of the outbox.",
							NULL,
							&idem_outbox_rotation_interval,
							60, 0, INT_MAX / 1000,
							PGC_SUSET, GUC_UNIT_S, NULL, NULL, NULL);
}
