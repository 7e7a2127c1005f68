/*-------------------------------------------------------------------------
 *
 * outbox.h
 *		Appends events to the outbox within the caller's transaction.
 *
 * The log of events is a ring of segments (segment.h).  The relay reads the
 * events through reader.h, and SQL reads them through the view outbox_events.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/outbox/outbox.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_OUTBOX_H
#define IDEM_OUTBOX_H

#include "postgres.h"

#include "utils/uuid.h"

/* Settings; the last four are for the relay's housekeeping of the ring. */
extern int	idem_max_payload_size;	/* bytes */
extern int	idem_outbox_retention;	/* seconds */
extern int	idem_outbox_segment_size;	/* kB */
extern int	idem_outbox_rotation_interval;	/* seconds */
extern int	idem_outbox_dump_size;	/* kB; 0: dumps are not waited for */

/*
 * An event to append.  The Datums are varlenas, toasted or not, and are only
 * read.  Text is in the server encoding.
 */
typedef struct IdemOutboxRow
{
	pg_uuid_t	event_id;
	Datum		aggregate_type; /* text */
	Datum		aggregate_id;	/* text */
	Datum		event_type;		/* text */
	bool		is_json;		/* payload is jsonb, else bytea */
	Datum		payload;
	bool		has_content_type;
	Datum		content_type;	/* text */
	bool		has_headers;
	Datum		headers;		/* jsonb */
} IdemOutboxRow;

/* Defines the subsystem's settings and hooks; called once per process. */
extern void idem_outbox_init(void);

/*
 * Append n events, numbered in the order given.  The caller has checked the
 * values, and has refused recovery and read-only transactions.  Allocates in
 * the current memory context, which the caller resets.
 */
extern void idem_outbox_insert(const IdemOutboxRow *rows, int n);

/*
 * Called once per idem_outbox_insert, after the insert, in its transaction.
 * NULL if nobody listens.  A subsystem that sets the hook calls the previous
 * one.
 */
extern void (*idem_outbox_enqueued_hook) (void);

/*
 * Called by each statement that restores events of a dump, before the first one.
 * NULL if nobody listens.
 */
extern void (*idem_outbox_restored_hook) (void);

/*
 * Returns the greatest number of an event that another subsystem remembers, or
 * 0.  NULL if there is no such subsystem.  After a restore new events get
 * greater numbers.
 */
extern int64 (*idem_outbox_greatest_hook) (void);

/* Generate a version 7 UUID.  The UUIDs of a backend ascend. */
extern void idem_uuid7_generate(pg_uuid_t *uuid);

#endif							/* IDEM_OUTBOX_H */
