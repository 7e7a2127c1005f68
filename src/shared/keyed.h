/*-------------------------------------------------------------------------
 *
 * keyed.h
 *		What a keyed log is: its tables, rows and callbacks.
 *
 * A keyed log keeps the states of many keys.  A key is a digest.  Its state is
 * made of several parts, and each part has a kind, a letter.  Rows are never
 * updated: a change of a part appends another row of that kind with a higher
 * number.  So a part changes without the others, and two transactions may each
 * change a part of one key.  keyed_log.c tells how the tables are kept short.
 *
 * A user says what a row means, by the callbacks of IdemKeyedLog.  A log whose
 * readers want all keys, and that stays short, is a state log (state_log.h),
 * which needs no index.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/shared/keyed.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_KEYED_H
#define IDEM_KEYED_H

#include "postgres.h"

#include "access/htup.h"
#include "access/tupdesc.h"
#include "storage/block.h"
#include "utils/uuid.h"

#include "shared/catalog.h"
#include "shared/guard.h"

/* The most tables and kinds that a log may have. */
#define IDEM_KEYED_MAX_TABLES	3
#define IDEM_KEYED_MAX_KINDS	4

/* A table that is longer loses its turn; blocks that a step copies. */
#ifdef IDEMPOTENCY_FAULT_POINTS
#define IDEM_KEYED_MAX_BLOCKS	2	/* turns have fault points in them */
#define IDEM_KEYED_PASS_BLOCKS	1
#else
#define IDEM_KEYED_MAX_BLOCKS	256
#define IDEM_KEYED_PASS_BLOCKS	32
#endif

/* So much longer than its table is the TOAST table that makes it lose its turn. */
#define IDEM_KEYED_VALUES		16

/*
 * The kind of the rows that say which table is current.  Their digest is zero.
 * No user's kind.
 */
#define IDEM_KEYED_MARKER		'm'

/*
 * The first columns of each table, of types bigint, uuid and "char", all NOT
 * NULL.  The other columns are the user's.
 */
#define IDEM_KEYED_NUMBER		1
#define IDEM_KEYED_DIGEST		2
#define IDEM_KEYED_KIND			3

/*
 * Numbers are below this.  A row with a greater number was brought by somebody else, and is
 * not found: no row that is written after it would count.
 */
#define IDEM_KEYED_END			(INT64CONST(1) << 62)

/* The newest row of a key and a kind. */
typedef struct IdemKeyedRow
{
	int64		number;			/* 0: there is no row */
	HeapTuple	tuple;			/* a copy in the caller's context; NULL: no
								 * row */
	uint32		tables;			/* bits: the tables that have the row */
	bool		in_snapshot;	/* the transaction's snapshot sees the row or
								 * its original, or the transaction is READ
								 * COMMITTED */
	bool		unsound;		/* the log did not write it: nothing may be
								 * read of it but number and tables */
} IdemKeyedRow;

/* Must a part of a key's state outlive the table that it is in? */
typedef enum IdemKeyedNeed
{
	IDEM_KEYED_SPENT,			/* no: without the part the state is the same */
	IDEM_KEYED_NEEDED,
	IDEM_KEYED_TOMBSTONE,		/* only as long as another table has an older
								 * row of the key, which might count without
								 * it */
	IDEM_KEYED_EXPIRED			/* the same, or as long as a newer row of the
								 * key is being written, by which the part may
								 * be needed again */
} IdemKeyedNeed;

typedef struct IdemKeyedLog
{
	/* tables of one form (guard.h) */
	IdemRelRef *tables;
	IdemRelRef *indexes;		/* of table n: (digest, kind, number DESC) */
	int			ntables;		/* 2 to IDEM_KEYED_MAX_TABLES */
	IdemRelRef *sequence;		/* numbers the rows */
	const char *what;			/* its rows make, for a message: "a thing" */
	const char *kinds;			/* 1 to IDEM_KEYED_MAX_KINDS letters */
	BlockNumber max_blocks;		/* a current table longer than this loses its
								 * turn, and one with IDEM_KEYED_VALUES times
								 * as much out of line; at least 1 */
	BlockNumber pass_blocks;	/* how many blocks a step copies; at least 1 */

	/*
	 * While a dump of the database runs, the log may become so long, in
	 * blocks of all tables and of their TOAST tables, before a table that the
	 * dump needs is emptied. NULL, and 0: dumps are not waited for.
	 */
	const int  *dump_blocks;

	/* The next number of the sequence. */
	int64		(*draw) (void);

	/*
	 * Could the log have written the row, which is no marker?  All columns of
	 * a table.  A dump that was changed, or a role that may write all data,
	 * brings any values.  The other callbacks get rows only of which this is
	 * true. NULL: of all.
	 */
	bool		(*is_sound) (const Datum *values, const bool *nulls);

	/*
	 * Which parts are needed?  rows: the newest row of each kind, in the
	 * order of kinds.  need: as many, to be filled in.  A part that is not
	 * needed must stay so until it changes.  One that has expired may be
	 * needed again by a newer row of another kind, but who has written such a
	 * row looks then whether the part has expired, and if so, fails.
	 */
	void		(*judge) (TupleDesc desc, const IdemKeyedRow *rows, IdemKeyedNeed *need);

	/*
	 * Is a key needed only as long as another one is?  Fills in the other's
	 * digest.  Once that one is not needed it stays so, and nobody asks for
	 * the first one then.  NULL: no key is.
	 */
	bool		(*master) (TupleDesc desc, const IdemKeyedRow *rows, pg_uuid_t *digest);

	/*
	 * The column that says when a row was written, a timestamptz; from 1.  0:
	 * the log has none.
	 */
	int			at;

	/*
	 * The column of a copy that says which transaction wrote its original, an
	 * xid8; NULL in other rows.  From 1; 0: the log has none, and a
	 * transaction snapshot that is older than a turn sees no row that the
	 * turn copied.
	 */
	int			origin;
} IdemKeyedLog;

#endif							/* IDEM_KEYED_H */
