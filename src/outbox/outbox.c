/*-------------------------------------------------------------------------
 *
 * outbox.c
 *		The outbox's settings, and the ids of events.
 *
 * All settings may be given per database (ALTER DATABASE ... SET), because each
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
#include <time.h>

#include "port/pg_bswap.h"

#include "outbox/outbox.h"
#include "shared/args.h"

/* A jsonb value cannot be larger than this. */
#define MAX_PAYLOAD_LIMIT	(256 * 1024 * 1024 - 1)

int			idem_max_payload_size = 1024 * 1024;
int			idem_outbox_retention = 24 * 60 * 60;
int			idem_outbox_segment_size = 64 * 1024;
int			idem_outbox_rotation_interval = 60;
int			idem_outbox_dump_size = 1024 * 1024;

void		(*idem_outbox_enqueued_hook) (void) = NULL;
void		(*idem_outbox_restored_hook) (void) = NULL;
int64		(*idem_outbox_greatest_hook) (void) = NULL;

void
idem_outbox_init(void)
{
	idem_define_int("idempotency.max_payload_size",
					"Largest payload, and largest headers, that an event may have.",
					"Counted in the binary form, uncompressed.",
					&idem_max_payload_size, 1024, MAX_PAYLOAD_LIMIT, PGC_SUSET, GUC_UNIT_BYTE);

	idem_define_int("idempotency.outbox_retention",
					"Time that events stay in the outbox after they were enqueued.",
					"Events not yet delivered by every relay stay longer.",
					&idem_outbox_retention, 0, INT_MAX, PGC_SUSET, GUC_UNIT_S);

	idem_define_int("idempotency.outbox_segment_size",
					"Size at which a segment of the outbox is closed early.",
					"Applies while at least half of the ring of segments is empty.",
					&idem_outbox_segment_size, 8, INT_MAX, PGC_SUSET, GUC_UNIT_KB);

	idem_define_int("idempotency.outbox_rotation_interval",
					"Least time between two closings of a segment of the outbox.",
					NULL,
					&idem_outbox_rotation_interval, 0, INT_MAX / 1000, PGC_SUSET, GUC_UNIT_S);

	idem_define_int("idempotency.outbox_dump_size",
					"How much of the outbox may be kept only because a dump of the database runs.",
					"Until then no segment is emptied that the dump needs. 0: a dump is not waited for.",
					&idem_outbox_dump_size, 0, INT_MAX, PGC_SUSET, GUC_UNIT_KB);
}

/*
 * Generates version 7 UUIDs (RFC 9562) on every supported server version.
 *
 * Layout: 48 bits of milliseconds since 1970, the version, 12 bits that count
 * 1/4096 of a millisecond, the variant, 62 random bits.  Ids of one backend
 * ascend: if the clock has not advanced since the last id, the new id has the
 * last id's time plus one step.  Ids of different backends are in the clock's
 * order; nothing depends on their order.
 *
 * If the clock was set back by more than a second, ids follow the clock.
 * Otherwise ids would have a wrong date as long as the session lasts.
 *
 * Random bytes are drawn in blocks, because a system call or library call per
 * id would dominate the cost of an enqueue.  Bytes are wiped when they are
 * handed out.
 */

#define STEPS_PER_MS		4096
#define RANDOM_POOL_BYTES	512

/* Time part of the last id, in steps since 1970. */
static uint64 last_step = 0;

static unsigned char random_pool[RANDOM_POOL_BYTES];
static int	random_left = 0;

/*
 * The time part of the next id: the wall clock in steps of 1/4096 ms, or the step after
 * the last id's if the clock has not advanced.
 */
static uint64
next_step(void)
{
	struct timespec now;
	uint64		step;

	clock_gettime(CLOCK_REALTIME, &now);
	step = (uint64) now.tv_sec * 1000 * STEPS_PER_MS +
		(uint64) now.tv_nsec * STEPS_PER_MS / 1000000;
	if (step <= last_step && last_step - step < 1000 * STEPS_PER_MS)
		step = last_step + 1;
	last_step = step;
	return step;
}

/* 64 random bits out of the pool. */
static uint64
random_bits(void)
{
	unsigned char *p;
	uint64		bits;

	if (random_left == 0)
	{
		if (!pg_strong_random(random_pool, RANDOM_POOL_BYTES))
			ereport(ERROR,
					(errcode(ERRCODE_INTERNAL_ERROR),
					 errmsg("could not generate random values")));
		random_left = RANDOM_POOL_BYTES;
	}
	random_left -= sizeof(bits);
	p = random_pool + random_left;
	memcpy(&bits, p, sizeof(bits));
	memset(p, 0, sizeof(bits));
	return bits;
}

void
idem_uuid7_generate(pg_uuid_t *uuid)
{
	uint64		step = next_step();
	uint64		high = (step / STEPS_PER_MS) << 16 | (step % STEPS_PER_MS);
	uint64		low = random_bits() & UINT64CONST(0x3FFFFFFFFFFFFFFF);

	high |= UINT64CONST(0x7000);	/* version 7 */
	low |= UINT64CONST(0x8000000000000000); /* variant of the RFC */
	high = pg_hton64(high);
	low = pg_hton64(low);
	memcpy(uuid->data, &high, sizeof(high));
	memcpy(uuid->data + sizeof(high), &low, sizeof(low));
}
