/*-------------------------------------------------------------------------
 *
 * keyed_read.h
 *		Reads the tables of a keyed log.
 *
 * Private to keyed_log.c and keyed_scan.c.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/shared/keyed_read.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_KEYED_READ_H
#define IDEM_KEYED_READ_H

#include "postgres.h"

#include "executor/tuptable.h"
#include "storage/off.h"
#include "utils/relcache.h"
#include "utils/snapshot.h"

#include "shared/keyed.h"

/*
 * The tables of a log, locked to read them.  Rows are read by SnapshotSelf: what is
 * committed at the moment counts, and what the transaction itself wrote.  A row
 * that was committed before the tables were locked is found, since nobody can empty
 * its table.  In SERIALIZABLE such reads leave no predicate locks, which would make
 * transactions of different keys fail.
 */
typedef struct IdemKeyedReader
{
	const IdemKeyedLog *log;
	Relation	heaps[IDEM_KEYED_MAX_TABLES];
	Relation	indexes[IDEM_KEYED_MAX_TABLES]; /* NULL: the table has no rows */
	TupleTableSlot *slots[IDEM_KEYED_MAX_TABLES];	/* made when a row is read */
	Snapshot	snapshot;		/* only rows that it sees count; NULL: all */
	int			writes_to;		/* the table that is locked to append to it;
								 * -1: none */
	bool		written;		/* rows were appended: this table and its
								 * index stay locked */
} IdemKeyedReader;

/*
 * Lock all tables before any of them is read.  The reader has no snapshot.  Returns
 * false, and keeps no lock, if a lock is not free and the caller does not wait.
 */
extern bool idem_keyed_reader_open(IdemKeyedReader *reader, const IdemKeyedLog *log, bool waits);

/*
 * The same, and waits, and takes a snapshot.  The caller unregisters it before it closes
 * the reader.
 */
extern void idem_keyed_reader_open_as_of_now(IdemKeyedReader *reader, const IdemKeyedLog *log);

/*
 * The same to append to the current table, too: that one is locked by RowExclusiveLock.
 * Waits.
 */
extern void idem_keyed_reader_open_to_write(IdemKeyedReader *reader, const IdemKeyedLog *log);

extern void idem_keyed_reader_close(IdemKeyedReader *reader);

/*
 * The parts of that.  Lock all tables, the one to be written to first, -1: none; false, and no
 * lock is kept, if one of the locks is not free.  Then, or again before another key is looked
 * for, the indexes of those that have rows by now; false, and no lock of the reader is kept.
 */
extern bool idem_keyed_reader_open_tables(IdemKeyedReader *reader, const IdemKeyedLog *log,
										  int writes_to, bool waits);
extern bool idem_keyed_reader_open_indexes(IdemKeyedReader *reader, bool waits);

/* The number of a row in a slot; 0 if it is NULL, of an unsound row. */
extern int64 idem_keyed_number(TupleTableSlot *slot);

/* Is the row in a slot one that the log could have written? */
extern bool idem_keyed_is_sound(const IdemKeyedLog *log, TupleTableSlot *slot);

/* Error XX001 if one of the rows, one of each kind, is unsound. */
extern void idem_keyed_refuse_unsound(const IdemKeyedLog *log, const IdemKeyedRow *rows);

/* Does the row, which is in a slot of the table, count for the reader? */
extern bool idem_keyed_counts(const IdemKeyedReader *reader, int table, TupleTableSlot *slot);

/*
 * Fetch the newest row of a digest and kind from one table, of the rows whose
 * number is below a limit, into the reader's slot of the table.  Returns false if there
 * is none.
 */
extern bool idem_keyed_fetch_newest(IdemKeyedReader *reader, int table, const pg_uuid_t *digest,
									char kind, int64 below);

/*
 * The same of the least kind that the digest has in the table.  Returns false if the
 * table has no row of the digest.
 */
extern bool idem_keyed_fetch_least_kind(IdemKeyedReader *reader, int table, const pg_uuid_t *digest);

/*
 * Let the row in the reader's slot of a table go, whose buffer belongs to the current
 * resource owner.
 */
extern void idem_keyed_let_go(IdemKeyedReader *reader, int table);

/* Get the newest row of each kind of a key; and give back the tuples of the rows. */
extern void idem_keyed_find_parts(IdemKeyedReader *reader, const pg_uuid_t *digest,
								  IdemKeyedRow *rows);
extern void idem_keyed_free_parts(const IdemKeyedReader *reader, IdemKeyedRow *rows);

/*
 * Is there a row of the key that is newer than those of its kind in rows, or that
 * somebody is writing?
 */
extern bool idem_keyed_has_newer(IdemKeyedReader *reader, const pg_uuid_t *digest,
								 const IdemKeyedRow *rows);

/* The current table; *marker: number of its marker, 0 without one. */
extern int	idem_keyed_find_current(IdemKeyedReader *reader, int64 *marker);

/* The length of a table, in blocks, and of the values that it has out of line. */
extern BlockNumber idem_keyed_length(Relation heap, BlockNumber *values);

/* Is a table so long that it may lose its turn? */
extern bool idem_keyed_is_long(const IdemKeyedLog *log, Relation heap);

/* How many line pointers has the page? */
extern OffsetNumber idem_keyed_page_rows(Relation heap, BlockNumber block);

/*
 * Where the newest row of a key was when somebody looked last.
 *
 * An index scan reads all entries of a page that fit, though only the first one is wanted.
 * Of a partition that is claimed all the time these are hundreds.  A scan that ends at
 * the newest row that is remembered reads only what is newer.
 */
#define IDEM_KEYED_HINTS	64

typedef struct IdemKeyedHint
{
	pg_uuid_t	digest;
	int64		number;			/* 0: the place is free */
	Oid			index;
	char		kind;
} IdemKeyedHint;

/* What one reader remembers: zeroed, it remembers nothing. */
typedef struct IdemKeyedHints
{
	IdemKeyedHint places[IDEM_KEYED_HINTS];
} IdemKeyedHints;

/* The number that was noted of a digest and kind in an index; 0: none is remembered. */
extern int64 idem_keyed_hint(const IdemKeyedHints *hints, Oid index, const pg_uuid_t *digest,
							 char kind);

/* Note a number.  The key takes the place of another one. */
extern void idem_keyed_hint_note(IdemKeyedHints *hints, Oid index, const pg_uuid_t *digest,
								 char kind, int64 number);

#endif							/* IDEM_KEYED_READ_H */
