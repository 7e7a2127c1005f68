/*-------------------------------------------------------------------------
 *
 * keyed_log.h
 *		Makes rows of a keyed log (keyed.h), appends them, and looks keys up.
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

#include "access/htup.h"
#include "access/tupdesc.h"
#include "datatype/timestamp.h"
#include "fmgr.h"
#include "utils/uuid.h"

#include "shared/args.h"
#include "shared/keyed.h"

/* The most columns that a log's tables may have. */
#define IDEM_KEYED_MAX_COLUMNS	24

/* The index of each table: (digest, kind, number DESC). */
extern const IdemIndexForm idem_keyed_index;

/* The columns of a row, from 0. */
typedef struct IdemKeyedColumns
{
	Datum		values[IDEM_KEYED_MAX_COLUMNS];
	bool		nulls[IDEM_KEYED_MAX_COLUMNS];
} IdemKeyedColumns;

/* Begin a row that is written now.  Columns are NULL until they are set. */
extern void idem_keyed_form_begin(const IdemKeyedLog *log, IdemKeyedColumns *row, int64 number,
								  const pg_uuid_t *digest, char kind);

/* Set a column; the same unless the value is NULL, and of a string of some length. */
#define idem_keyed_form_set(row, column, value) \
	idem_set_column((row)->values, (row)->nulls, column, value)
#define idem_keyed_form_set_pointer(row, column, value) \
	idem_set_pointer((row)->values, (row)->nulls, column, value)
extern void idem_keyed_form_set_text(IdemKeyedColumns *row, int column, const char *s, int len);

/*
 * Take a row apart, in one pass over the row.  Columns that somebody added to the table are
 * left out.
 */
extern void idem_keyed_form_take_apart(const IdemKeyedLog *log, TupleDesc desc, HeapTuple tuple,
									   IdemKeyedColumns *row);

/* The value of a column; 0 where it is NULL. */
static inline Datum
idem_keyed_column(const IdemKeyedColumns *row, int column)
{
	return row->nulls[column] ? (Datum) 0 : row->values[column];
}

/* All of these need a transaction. */

/* The columns of the log's tables; free it by FreeTupleDesc. */
extern TupleDesc idem_keyed_log_desc(const IdemKeyedLog *log);

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

/* For what a log is locked */
typedef enum IdemKeyedUse
{
	IDEM_KEYED_TO_READ,			/* to look keys up only */
	IDEM_KEYED_TO_WRITE,
	IDEM_KEYED_OF_LOCKED		/* the same for a caller that has locked each
								 * key that it looks up before the opening:
								 * which tables have rows is not asked again
								 * for each key */
} IdemKeyedUse;

/*
 * Lock a log.  Who looks up a key that it changes locks the key before its look-up, but
 * not for the opening.  While an access is open no table of the log can be emptied, so
 * its owner does not wait for locks of keys.  Opened and closed in one subtransaction.
 */
extern IdemKeyedAccess *idem_keyed_access_open(const IdemKeyedLog *log, IdemKeyedUse use);

/* Unlock it, but for what rows were appended to. */
extern void idem_keyed_access_close(IdemKeyedAccess *access);

/* The columns of the tables, as long as the access is open. */
extern TupleDesc idem_keyed_access_desc(const IdemKeyedAccess *access);

/* As idem_keyed_log_look_up, but error XX001 if a row is unsound. */
extern void idem_keyed_access_look_up(IdemKeyedAccess *access, const pg_uuid_t *digest,
									  IdemKeyedRow *rows);

/*
 * Append a row with a number that the caller has drawn.  Columns that somebody added to
 * the table are NULL.  Who appends
 * rows of one kind of a key holds a lock from before the drawing to the end of the
 * transaction, or else of two rows the one that commits later may be the older.
 * Returns true if the row has begun a page of a table that has grown, or is a large row of
 * one, so that it is time for maintenance.
 */
extern bool idem_keyed_access_append(IdemKeyedAccess *access, const IdemKeyedColumns *row);

/* Body of a function that returns one row: table_bytes, index_bytes, held_by. */
extern Datum idem_keyed_stat(FunctionCallInfo fcinfo, const IdemKeyedLog *log);

#endif							/* IDEM_KEYED_LOG_H */
