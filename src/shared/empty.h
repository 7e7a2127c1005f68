/*-------------------------------------------------------------------------
 *
 * empty.h
 *		Empties a table in place, without waiting and without catalog tuples.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/shared/empty.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_EMPTY_H
#define IDEM_EMPTY_H

#include "postgres.h"

#include "nodes/pg_list.h"
#include "utils/relcache.h"

/*
 * Does another transaction hold a lock on the table, or has it changed the table's row in
 * pg_class?  To ask writes no WAL; to take the exclusive lock does.
 */
extern bool idem_empty_is_held(Oid relid);

/*
 * Take AccessExclusiveLock on the table, its indexes, its TOAST table and the
 * indexes of the TOAST table, and lock their rows in pg_class, each only if it is
 * free.  Returns their OIDs.  Returns NIL, and keeps no lock, if one was not free.
 */
extern List *idem_empty_lock(Oid relid);

/*
 * Lock a table by idem_empty_lock and cut all its files; false if a lock was
 * not free.  Emptying cannot be rolled back, so it must be the transaction's
 * last act.
 */
extern bool idem_empty_in_place(Oid relid);

/* A btree without entries: its meta page. */
#define IDEM_EMPTY_INDEX_BLOCKS	1

/*
 * Are all files of the table as new: heap, indexes, TOAST table and its index?
 * Else the table has rows, or a crash has cut an emptying short.  The indexes
 * are those that PostgreSQL maintains, valid or not.  A btree is as new if it
 * has its meta page only.  Another index counts as new if it has blocks.
 * False as well if a lock on an index or on the TOAST table is not free.  The caller
 * has the table open.
 */
extern bool idem_empty_is_pristine(Relation heap);

/* What a table has, by its files. */
typedef enum IdemFiles
{
	IDEM_FILES_NEW,				/* nothing: all files are as new */
	IDEM_FILES_REMAINS,			/* no rows, but other files are not as new: a
								 * crash has cut an emptying short.  VACUUM
								 * may fail on it.  Or an index is locked */
	IDEM_FILES_ROWS,			/* perhaps of aborted transactions only */
	IDEM_FILES_LOCKED			/* somebody's lock keeps us from looking */
} IdemFiles;

/* Look at a table without waiting for a lock. */
extern IdemFiles idem_empty_look(Oid relid);

/*
 * Tell all processes that the files of these relations are being cut, whether
 * this transaction commits or not.  Call it after the last look at the files
 * and before the cut.
 */
extern void idem_empty_announce(const List *locked);

/* The same of one relation, of whose file something else is no longer true. */
extern void idem_announce_change(Oid relid);

#endif							/* IDEM_EMPTY_H */
