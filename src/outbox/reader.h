/*-------------------------------------------------------------------------
 *
 * reader.h
 *		Reads the outbox as differences of snapshots, in order, bounded.
 *
 * A position says what was delivered: every event whose top-level transaction
 * is visible in "base", and, while the difference between "base" and "target" is
 * being worked through, those visible in "target" up to its seq.  The reader
 * yields what "target" sees, "base" does not, after that seq, in its order.
 * Reading the same position again yields the same rows in the same order.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/outbox/reader.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_OUTBOX_READER_H
#define IDEM_OUTBOX_READER_H

#include "postgres.h"

#include "access/transam.h"
#include "datatype/timestamp.h"
#include "utils/palloc.h"
#include "utils/uuid.h"

#include "outbox/snapshot.h"

/*
 * One event as it stands in the log.  Pointers are into the reader's memory
 * and stay valid until the next idem_reader_next / _suspend.  Strings are not
 * zero-terminated and in the server encoding.
 */
typedef struct IdemEventText
{
	const char *data;
	int			len;
} IdemEventText;

typedef struct IdemEvent
{
	FullTransactionId xid;		/* top-level transaction */
	int64		seq;
	pg_uuid_t	event_id;
	TimestampTz enqueued_at;
	IdemEventText aggregate_type;
	IdemEventText aggregate_id;
	IdemEventText event_type;
	bool		is_json;		/* payload is jsonb, else bytea */
	Datum		payload;		/* jsonb or bytea, perhaps still toasted */
	bool		has_content_type;
	IdemEventText content_type;
	bool		has_headers;
	Datum		headers;		/* jsonb, perhaps still toasted */
} IdemEvent;

typedef struct IdemReader IdemReader;

/* A reader with a bounded buffer of places, all in a context below parent. */
extern IdemReader *idem_reader_create(MemoryContext parent);
extern void idem_reader_free(IdemReader *reader);

/*
 * Work through the difference cur - done from seq > k on.  Copies what it
 * needs.  A reader that stands at an equal position already keeps its places.
 */
extern void idem_reader_seek(IdemReader *reader, const IdemPosition *pos);

/*
 * The next event of the difference; false at its end.  Needs a transaction
 * and an active snapshot not older than "target".
 */
extern bool idem_reader_next(IdemReader *reader, IdemEvent *event);

/*
 * Put the event that idem_reader_next just gave back: the next call gives it
 * again (a batch was full).
 */
extern void idem_reader_unget(IdemReader *reader);

/*
 * Before the transaction ends, or the subtransaction in which the reader was
 * used first since it was suspended: closes relations, keeps the places.  After
 * an abort idem_reader_reset must be called instead; it forgets places and
 * position, so that idem_reader_seek comes next.
 */
extern void idem_reader_suspend(IdemReader *reader);
extern void idem_reader_reset(IdemReader *reader);

/*
 * Look one event up by its place in the log, or by its id (a scan of every
 * segment); false if it is not, or no longer, there.
 */
extern bool idem_reader_fetch(IdemReader *reader, FullTransactionId xid,
							  int64 seq, IdemEvent *event);
extern bool idem_reader_find(IdemReader *reader, const pg_uuid_t *event_id,
							 IdemEvent *event);

/*
 * Committed events not yet delivered at a position: counted up to 1,000, an
 * estimate of at least that beyond.  events = 0 says that there is none; then
 * the others are 0 as well.  The caller has read the position before.
 */
typedef struct IdemLag
{
	int64		events;
	int64		bytes;			/* their rows and TOAST values */
	TimestampTz oldest;			/* enqueued_at of the oldest; 0 = none */
} IdemLag;

extern void idem_reader_lag(const IdemPosition *pos, IdemLag *lag);

/* The same of n positions, by one snapshot. */
extern void idem_reader_lags(const IdemPosition **positions, IdemLag *lags, int n);

/*
 * Housekeeping, called by the relay worker in a transaction of its own: make
 * the next segment current if the current one is due, and empty in place those
 * closed segments all of whose events are delivered at each of the npos
 * positions' "base" and older than idempotency.outbox_retention.  Takes locks
 * conditionally, so it never waits; must be the transaction's last act.
 * Returns the number of segments emptied.  npos = 0 releases nothing.
 */
extern int	idem_outbox_maintain(IdemSnap *const *done, int npos);

/*
 * Is there a segment, not the current one, that a crash has left half emptied?
 * Also true if somebody's lock keeps us from looking.  The next
 * idem_outbox_maintain finishes it, with npos = 0 as well.
 */
extern bool idem_outbox_has_remains(void);

#endif							/* IDEM_OUTBOX_READER_H */
