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

#include "shared/keyed.h"

/* All of these need a transaction. */

/*
 * Append a row, whose tuple the caller has formed by idem_keyed_log_desc, with a
 * number that the caller has drawn.  Frees the tuple.  Who appends rows of one
 * kind of a key holds a lock from before the drawing to the end of the
 * transaction, or else of two rows the one that commits later may be the older.
 * Returns true if the row has begun a page of a table that has grown, so that it is
 * time for maintenance.
 */
extern bool idem_keyed_log_append(const IdemKeyedLog *log, HeapTuple tuple);

/* The columns of the log's tables; free it by FreeTupleDesc. */
extern TupleDesc idem_keyed_log_desc(const IdemKeyedLog *log);

/*
 * Which tables have lost their turn and still have rows?  Bits by number.  May be
 * outdated at once.
 */
extern uint32 idem_keyed_log_former(const IdemKeyedLog *log);

/*
 * Get the newest row of each kind of a key, in the order of kinds, as of now.
 * rows has room for all kinds.  A caller that wants the answer to stay true
 * locks the key before the call.
 */
extern void idem_keyed_log_look_up(const IdemKeyedLog *log, const pg_uuid_t *digest,
								   IdemKeyedRow *rows);

#endif							/* IDEM_KEYED_LOG_H */
