/*-------------------------------------------------------------------------
 *
 * state_log.h
 *		Appended rows, of which the newest of a key wins, in tables that
 *		take turns.
 *
 * A state log keeps a state that changes.  Rows are never updated: a change
 * appends another row with a higher number.  state_log.c tells how the tables
 * are kept short.  A user says what a row means, by the callbacks of
 * IdemStateLog.
 *
 * States that are looked up by key among many keys are in a keyed log instead
 * (keyed_log.h), which has an index.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/shared/state_log.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_STATE_LOG_H
#define IDEM_STATE_LOG_H

#include "postgres.h"

#include "access/htup.h"
#include "access/tupdesc.h"
#include "storage/block.h"
#include "storage/itemptr.h"

#include "shared/catalog.h"

/*
 * What maintenance knows of a row.  This is the first member of a user's
 * struct; the other members are the key and the fields that is_needed looks
 * at.
 */
typedef struct IdemStateRow
{
	int64		id;				/* the row's number */
	int			table;			/* number of the table that the row is in */
	ItemPointerData tid;		/* the row's place in that table */
	bool		missing;		/* needed, and in no table but the one that is
								 * going to be emptied */
} IdemStateRow;

typedef struct IdemStateLog
{
	IdemRelRef *tables;			/* with the same columns, without indexes */
	int			ntables;		/* two or more */
	IdemRelRef *sequence;		/* numbers the rows */
	AttrNumber	id_column;		/* bigint, NOT NULL: the row's number */
	BlockNumber max_blocks;		/* a current table longer than this loses its
								 * turn; at least 1 */

	/* Make the tuple of rows[i], whose number is id. */
	HeapTuple	(*form) (TupleDesc desc, const void *rows, int i, int64 id);

	/*
	 * Make a row whose content does not matter: the first row of a table
	 * makes the table current.
	 */
	HeapTuple	(*form_marker) (TupleDesc desc, int64 id);

	/*
	 * The following callbacks serve maintenance and get its "arg".
	 *
	 * begin: called first, under the exclusive lock on the table that may be
	 * emptied: no row of an uncommitted transaction is in that table.  NULL:
	 * nothing to do.
	 *
	 * read: fill the user's part of an entry of entry_size bytes.
	 *
	 * compare: order by key, and within a key by anything that takes
	 * precedence over the number.  Among rows that compare as equal, the
	 * newest comes first.
	 *
	 * is_needed: asked in the order of compare, once for each row, however
	 * many copies of the row there are.
	 */
	Size		entry_size;
	void		(*begin) (void *arg);
	void		(*read) (HeapTuple tup, TupleDesc desc, IdemStateRow *row, void *arg);
	int			(*compare) (const IdemStateRow *a, const IdemStateRow *b);
	bool		(*is_needed) (const IdemStateRow *row, void *arg);
} IdemStateLog;

/* All of these need a transaction. */

/*
 * Append rows; ids[i] becomes the number of rows[i].  The rows are as durable
 * as the commit that follows.
 */
extern void idem_state_log_append(const IdemStateLog *log, const void *rows, int n, int64 *ids);

/*
 * Visit every row of every table, by one snapshot that is newer than the locks
 * on all tables.  A row that was copied, and whose original is not emptied
 * yet, is visited twice.  tup points to memory that is gone after the visit.
 */
typedef void (*IdemStateVisit) (HeapTuple tup, TupleDesc desc, int table, void *arg);
extern void idem_state_log_scan(const IdemStateLog *log, IdemStateVisit visit, void *arg);

/*
 * Take one step of taking turns, if there is one to take.  Must be the last
 * act of its transaction.
 */
extern void idem_state_log_maintain(const IdemStateLog *log, void *arg);

/*
 * Has a crash left a table half emptied?  VACUUM may fail on that table until
 * idem_state_log_maintain has finished it.  True as well if somebody's lock keeps us
 * from looking; the look waits for no lock.
 */
extern bool idem_state_log_has_remains(const IdemStateLog *log);

#endif							/* IDEM_STATE_LOG_H */
