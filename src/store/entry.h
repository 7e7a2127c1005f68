/*-------------------------------------------------------------------------
 *
 * entry.h
 *		What the dedup store remembers of one event, wherever it stands.
 *
 * An event is known by its digest: the first 16 bytes of the hash that gives
 * the key of its lock (claim/lock.h).  An event may have several entries.
 * Each has a turn, which is one more than the highest turn that its writer
 * found, under the event's lock.  The entry with the highest turn decides.
 * Nearly every event has one entry, a completion of turn 1.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/store/entry.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_STORE_ENTRY_H
#define IDEM_STORE_ENTRY_H

#include "postgres.h"

#include "access/xlogdefs.h"
#include "datatype/timestamp.h"
#include "storage/itemptr.h"
#include "utils/uuid.h"

/* The state of an entry, as it is stored (type "char"). */
#define IDEM_ENTRY_COMPLETED	'c'
#define IDEM_ENTRY_KEPT			'k' /* claimed and kept, not completed */
#define IDEM_ENTRY_FORGOTTEN	'f' /* an order to forget what is older */

typedef struct IdemEventEntry
{
	pg_uuid_t	digest;
	int16		turn;			/* 1 or more */
	char		state;

	/*
	 * Does the entry have the fields below?  A completion of turn 1 with
	 * neither result nor id is packed without them.
	 */
	bool		has_detail;
	TimestampTz claimed_at;
	TimestampTz completed_at;	/* if completed; else 0 */
	Datum		event_id;		/* text, or 0 if it was not kept */
	Datum		consumer;		/* text, or 0 */
	Datum		result;			/* jsonb, detoasted, or 0 */
	ItemPointerData tid;		/* not stored: where its detail stands */
} IdemEventEntry;

/*
 * Could the store have written an entry?  One that it could not have written says nothing of
 * its event, not even that nobody has seen the event.
 */
static inline bool
idem_entry_is_sound(int16 turn, char state)
{
	return turn > 0 &&
		(state == IDEM_ENTRY_COMPLETED || state == IDEM_ENTRY_KEPT || state == IDEM_ENTRY_FORGOTTEN);
}

typedef enum IdemRowStatus
{
	IDEM_ROW_NONE,				/* nothing is remembered, or it was forgotten */
	IDEM_ROW_BUSY,				/* another transaction is writing or removing
								 * a row */
	IDEM_ROW_PROCESSING,		/* claimed and kept, not completed */
	IDEM_ROW_COMPLETED
} IdemRowStatus;

/* The result of a look-up.  With status BUSY only busy_xid is set. */
typedef struct IdemRow
{
	IdemRowStatus status;
	TransactionId busy_xid;		/* who is writing, maybe a subtransaction; it
								 * may have ended meanwhile */
	bool		own;			/* written by the current transaction */
	bool		in_snapshot;	/* own, or the transaction snapshot sees it;
								 * true if nothing was ever remembered */
	int16		turn;			/* of what decides; 0: nothing */
	int16		class;			/* how long that is remembered: retention.h */
	int64		expires;		/* when it may be dropped, by uptime.h; 0: its
								 * class counts from a later time on, since it
								 * is not packed yet */
	TimestampTz claimed_at;		/* the earliest that it may have been */
	TimestampTz completed_at;	/* if completed: the earliest */
	TimestampTz completed_latest;
	XLogRecPtr	commit_lsn;		/* once flushed up to here, it is durable */
} IdemRow;

/*
 * What was found of an event so far: segments first, then runs.  An entry that is both
 * in a run and in a segment is taken from the segment, which has its times.  Private to
 * src/store.
 */
typedef struct IdemFinding
{
	IdemRow		row;			/* of the entry that decides; no status */
	char		state;			/* of that entry */
	bool		found;			/* there is one */
	bool		busy;			/* another transaction is writing or removing
								 * a row: row.busy_xid */
	bool		dead_rows;		/* a segment has rows of it that nobody sees
								 * any more, or places of such rows */
	int			segment;		/* of the row that decides; -1: it is in a run */
	int64		run;			/* that run; 0: none */
	ItemPointerData tid;
	Oid			unsound;		/* the table of the row, if the store did not
								 * write it */
	bool		has_result;		/* of a run; result is set then */
	Datum		result;
} IdemFinding;

/* The place of an entry that this transaction wrote, valid until it ends. */
typedef struct IdemEntryRef
{
	int			segment;
	ItemPointerData tid;
} IdemEntryRef;

/* An entry to be written.  Strings are in the server's encoding, without a zero at their end. */
typedef struct IdemNewEntry
{
	pg_uuid_t	digest;
	int16		turn;			/* one more than that of the entry found,
								 * under the event's lock */
	char		state;
	bool		keep_id;		/* keep the id in clear when it is packed */
	int16		class;			/* how long it is remembered: retention.h */
	const char *event_id;
	const char *consumer;
	int			event_id_len;	/* bytes */
	int			consumer_len;
	TimestampTz claimed_at;
	TimestampTz completed_at;	/* if completed */
	bool		has_result;
	Datum		result;			/* jsonb, if has_result */
	IdemEntryRef ref;			/* set when it is written */
} IdemNewEntry;

/* The most entries that one call writes. */
#define IDEM_STORE_CHUNK	64

static inline int
idem_digest_compare(const pg_uuid_t *a, const pg_uuid_t *b)
{
	return memcmp(a->data, b->data, UUID_LEN);
}

/*
 * An entry that cannot stand on a page of digests: anything but a completion of
 * turn 1.
 */
static inline bool
idem_entry_is_special(const IdemEventEntry *entry)
{
	return entry->state != IDEM_ENTRY_COMPLETED || entry->turn != 1;
}

#endif							/* IDEM_STORE_ENTRY_H */
