/*-------------------------------------------------------------------------
 *
 * reader.h
 *		Reads the outbox as differences of snapshots, in order, bounded.
 *
 * A position says which events were delivered.  These are the events whose
 * top-level transaction is visible in "base".  While the relay works through
 * the difference between "base" and "target", the delivered events are also
 * those that are visible in "target", up to the position's seq.  The reader
 * yields the events after that seq that "target" sees and "base" does not see,
 * in order of seq.  Reading the same position again yields the same events in
 * the same order.
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
 * One event as it stands in the log.  Pointers are into the reader's memory,
 * and valid until the next idem_reader_next or idem_reader_suspend.  Strings
 * are in the server encoding and not zero-terminated.
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

/* The event's size in bytes, payload and headers as they are stored: nothing is detoasted. */
extern int64 idem_event_size(const IdemEvent *event);

typedef struct IdemReader IdemReader;

/*
 * Create a reader, whose buffer of places is bounded, in a context below
 * parent.
 */
extern IdemReader *idem_reader_create(MemoryContext parent);
extern void idem_reader_free(IdemReader *reader);

/*
 * Work through the position's difference, from its seq on.  Copies the
 * position.  A reader that stands at an equal position keeps its places.
 */
extern void idem_reader_seek(IdemReader *reader, const IdemPosition *pos);

/*
 * Get the next event of the difference; false at its end.  Needs a transaction
 * and an active snapshot that is not older than "target".
 */
extern bool idem_reader_next(IdemReader *reader, IdemEvent *event);

/*
 * Put back the event that idem_reader_next just gave, because a batch was
 * full.  The next call gives it again.
 */
extern void idem_reader_unget(IdemReader *reader);

/*
 * Call idem_reader_suspend before the transaction ends; or before the
 * subtransaction ends that used the reader first since the last suspension.
 * It closes relations and keeps the places.  After an abort call
 * idem_reader_reset instead.  It forgets places and position, so
 * idem_reader_seek comes next.
 */
extern void idem_reader_suspend(IdemReader *reader);
extern void idem_reader_reset(IdemReader *reader);

/*
 * Look up one event, by its place in the log or by its id (a scan of every
 * segment).  False if the event is not in the log, or no longer.
 */
extern bool idem_reader_fetch(IdemReader *reader, FullTransactionId xid,
							  int64 seq, IdemEvent *event);
extern bool idem_reader_find(IdemReader *reader, const pg_uuid_t *event_id,
							 IdemEvent *event);

/*
 * The committed events that a position has not delivered.  They are counted up
 * to 1,000; beyond, the number is an estimate of at least 1,000.  events = 0
 * says that there are none; the other fields are 0 then.  The caller has read
 * the position before the call.
 */
typedef struct IdemLag
{
	int64		events;
	int64		bytes;			/* of their rows and TOAST values */
	TimestampTz oldest;			/* enqueued_at of the oldest; 0 = none */
} IdemLag;

/* The lags of n positions, by one snapshot. */
extern void idem_reader_lags(const IdemPosition **positions, IdemLag *lags, int n);

/*
 * Housekeeping, which the relay worker calls in a transaction of its own.
 * Makes the next segment current if the current segment is due.  Empties in
 * place the closed segments all of whose events are older than
 * idempotency.outbox_retention, and delivered at "base" of each position; done
 * has these npos snapshots.  Keeps segments that a running dump needs.  Takes locks conditionally, so it never waits.
 * Must be the transaction's last act.  Returns the number of segments emptied.
 * npos = 0 releases nothing.
 */
extern int	idem_outbox_maintain(IdemSnap *const *done, int npos);

/*
 * A snapshot that sees the transactions of all events which
 * idem_outbox_maintain could empty now, and no transaction that one of the
 * positions does not see; NULL: it could empty none.  Takes locks conditionally.
 * In the caller's context.
 */
extern IdemSnap *idem_outbox_survey(IdemSnap *const *done, int npos);

/*
 * Does a closed segment wait for positions to move past transactions that have ended
 * between the two snapshots?  A commit wakes the relays, a rollback does not.  Takes
 * locks conditionally.
 */
extern bool idem_outbox_has_ended_since(const IdemSnap *then, const IdemSnap *now);

/*
 * Is there a segment, other than the current one, that a crash left half
 * emptied?  Also true if somebody's lock keeps us from looking.  The next
 * idem_outbox_maintain finishes that segment, even with npos = 0.
 */
extern bool idem_outbox_has_remains(void);

#endif							/* IDEM_OUTBOX_READER_H */
