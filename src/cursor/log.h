/*-------------------------------------------------------------------------
 *
 * log.h
 *		The log of cursors: how far streams have come, and who may go on.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/cursor/log.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_CURSOR_LOG_H
#define IDEM_CURSOR_LOG_H

#include "postgres.h"

#include "access/xlogdefs.h"
#include "datatype/timestamp.h"

#include "compat.h"
#include "claim/consumer.h"
#include "cursor/key.h"
#include "shared/keyed_log.h"
#include "shared/keyed_scan.h"

/* idempotency.producer_retention: seconds; 0: for ever */
extern int	idem_producer_retention;

/* Defines the settings; called once per process. */
extern void idem_cursor_setting_init(void);

/* The log, for the one who maintains it. */
extern const IdemKeyedLog idem_cursor_log;

/*
 * The history of a registration that came from a dump.  The database may be the one that was
 * dumped, and have given out later epochs meanwhile.
 */
#define IDEM_CURSOR_RESTORED	INT64CONST(0)

/* The state of a cursor, or of a producer's registration. */
typedef struct IdemCursor
{
	bool		known;			/* false: nothing else is set but in_snapshot */
	bool		has_position;
	int64		position;		/* OFFSET: the next offset; SEQUENCE: the last
								 * sequence */
	bool		has_epoch;
	int64		epoch;			/* OFFSET: the generation; else the epoch */
	int64		accepted;		/* SEQUENCE: records of all epochs, and of
								 * this one */
	int64		in_epoch;
	TimestampTz at;				/* when it got into that state; not written */
	int64		producer_id;	/* NAME, and as part of the key of PRODUCER
								 * and SEQUENCE */
	const char *name;			/* PRODUCER: its name; read, not written */
	bool		gapless;		/* PRODUCER */
	IdemOwnerNote role;			/* PRODUCER: who registered it first */
	int64		history;		/* PRODUCER: idem_token_history(), or
								 * IDEM_CURSOR_RESTORED */
	int64		kept;			/* PRODUCER, NAME: for so many seconds it is
								 * kept if nothing happens; 0: for ever */
	int64		written;		/* the time of uptime.h from which on that
								 * counts; read, not written */
	int64		now;			/* PRODUCER, unless it is kept for ever: the
								 * time of uptime.h at which
								 * idem_producer_find found it; not written */
	bool		in_snapshot;	/* the transaction's snapshot sees the state */
	TransactionId writer;		/* the transaction that wrote it */
} IdemCursor;

/*
 * Get the state of a key as of now, whose lock the caller holds.  The log is open; a
 * string is palloc'd.
 */
extern void idem_cursor_find(IdemKeyedAccess *log, const IdemCursorKey *key, IdemCursor *cursor);

/* Write a state.  The caller keeps the lock of the key, to the end of the transaction. */
extern void idem_cursor_write(IdemKeyedAccess *log, const IdemCursorKey *key, const IdemCursor *cursor);

/* Write that nothing is known of the key. */
extern void idem_cursor_write_gone(IdemKeyedAccess *log, const IdemCursorKey *key);

/* Has nothing happened for so long that the registration is forgotten?  now: uptime.h */
extern bool idem_cursor_is_expired(const IdemCursor *cursor, int64 now);

/* Error 40001: the transaction's snapshot does not see how far the cursor has come. */
pg_noreturn extern void idem_cursor_conflict(const IdemCursorKey *key);

/* Wait until a crash or a failover does not undo the state any more. */
extern void idem_cursor_await_durable(const IdemCursor *cursor);

/* All cursors and registrations */

/* Strings are those of the tables, perhaps toasted, or 0 for NULL. */
typedef struct IdemOpenCursor
{
	char		what;
	IdemCursor	state;			/* valid until the next call; with the role of
								 * the producer, but not for wants */
	Datum		owner;
	Datum		topic;
	int32		partition;
} IdemOpenCursor;

/*
 * Get the next one of a scan of the log (shared/keyed_scan.h), valid until the next call;
 * false at the end.  Those of producers that are forgotten are passed over.  wants: chooses
 * by what the row has, before more is looked up; the row may be an old one.  context: what is
 * looked up for a row is there, and is freed by the next call.
 */
typedef bool (*IdemCursorWants) (const IdemOpenCursor *open);
extern bool idem_cursor_scan_next(IdemKeyedScan *scan, MemoryContext context, IdemCursorWants wants,
								  IdemOpenCursor *open);

/*
 * A row that is restored from a dump, as it is to be stored: it is kept from now on, the
 * role that it notes is looked up by its name, and its history is IDEM_CURSOR_RESTORED.
 */
extern HeapTuple idem_cursor_restore(HeapTuple tuple, TupleDesc desc);

#endif							/* IDEM_CURSOR_LOG_H */
