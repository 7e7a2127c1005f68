/*-------------------------------------------------------------------------
 *
 * keyed_log.h
 *		Appends to a keyed log (keyed.h), and looks keys up.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/shared/keyed_log.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_KEYED_LOG_H
#define IDEM_KEYED_LOG_H

#include "postgres.h"

#include "datatype/timestamp.h"

#include "shared/keyed.h"

/* All of these need a transaction. */

/* The columns of the log's tables; free it by FreeTupleDesc. */
extern TupleDesc idem_keyed_log_desc(const IdemKeyedLog *log);

/*
 * Which tables have lost their turn and still have rows?  Bits by number.  May be
 * outdated at once.
 */
extern uint32 idem_keyed_log_former(const IdemKeyedLog *log);

/*
 * Take the greatest number of a row in the tables, of committed and other rows, and when
 * that row was written, if it is greater than *greatest.  Reads all of them.
 */
extern void idem_keyed_log_greatest(const IdemKeyedLog *log, int64 *greatest, TimestampTz *at);

/*
 * Get the newest row of each kind of a key, in the order of kinds, as of now.
 * rows has room for all kinds.  A caller that wants the answer to stay true
 * locks the key before the call.  Rows may be unsound.
 */
extern void idem_keyed_log_look_up(const IdemKeyedLog *log, const pg_uuid_t *digest,
								   IdemKeyedRow *rows);

/* A log whose tables are locked to look keys up and to append rows. */
typedef struct IdemKeyedAccess IdemKeyedAccess;

/*
 * Lock a log.  Who looks up a key that it changes locks the key before its look-up, but
 * not for the opening.  While an access is open no table of the log can be emptied, so
 * its owner does not wait for locks of keys.  Opened and closed in one subtransaction.
 */
extern IdemKeyedAccess *idem_keyed_access_open(const IdemKeyedLog *log);

/*
 * The same for a caller that has locked each key that it looks up before the opening: which
 * tables have rows is not asked again for each key.
 */
extern IdemKeyedAccess *idem_keyed_access_open_locked(const IdemKeyedLog *log);

/* The same to look keys up only. */
extern IdemKeyedAccess *idem_keyed_access_open_to_read(const IdemKeyedLog *log);

/* Unlock it, but for what rows were appended to. */
extern void idem_keyed_access_close(IdemKeyedAccess *access);

/* The columns of the tables, as long as the access is open. */
extern TupleDesc idem_keyed_access_desc(const IdemKeyedAccess *access);

/* As idem_keyed_log_look_up, but error XX001 if a row is unsound. */
extern void idem_keyed_access_look_up(IdemKeyedAccess *access, const pg_uuid_t *digest,
									  IdemKeyedRow *rows);

/*
 * Append a row with a number that the caller has drawn.  Frees the tuple.  Who appends
 * rows of one kind of a key holds a lock from before the drawing to the end of the
 * transaction, or else of two rows the one that commits later may be the older.
 * Returns true if the row has begun a page of a table that has grown, or is a large row of
 * one, so that it is time for maintenance.
 */
extern bool idem_keyed_access_append(IdemKeyedAccess *access, HeapTuple tuple);

#endif							/* IDEM_KEYED_LOG_H */
