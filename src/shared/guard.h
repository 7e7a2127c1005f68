/*-------------------------------------------------------------------------
 *
 * guard.h
 *		Refuses commands that would lock the extension's views against
 *		everybody, or make its tables what C code does not keep them; and
 *		notices what such commands have left.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/shared/guard.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_GUARD_H
#define IDEM_GUARD_H

#include "postgres.h"

#include "catalog/pg_class.h"
#include "utils/rel.h"

#include "compat.h"
#include "shared/catalog.h"
#include "shared/statement.h"

/*
 * Refuse a utility statement that would lock the extension's views, or add to its
 * tables, before it runs; and note what idem_guard_check_made has to know.
 */
extern void idem_guard_read(Node *stmt, IdemStatement *s);

/* An object was created or altered: may the user name all that it depends on? */
extern void idem_guard_check_object(Oid classid, Oid objid, int subid);

/* A trigger was created: error 0A000 if it is on a table that C code writes to. */
extern void idem_guard_check_trigger(Oid trigger);

/* The same as idem_guard_check_object after the statement, for what it has made. */
extern void idem_guard_check_made(const RangeVar *partitioned);

/* A column that C code reads by its place. */
typedef struct IdemColumn
{
	Oid			type;			/* InvalidOid: one of the extension's own, of
								 * which C code reads the text */
	bool		not_null;		/* in the install script */
	bool		plain;			/* STORAGE PLAIN: values are read in place */
} IdemColumn;

/* The most columns of an index. */
#define IDEM_INDEX_COLUMNS	3

/* The index that the install script gives a table: a plain btree, not unique. */
typedef struct IdemIndexForm
{
	const char *text;			/* its columns, as CREATE INDEX names them */
	int			n;
	AttrNumber	columns[IDEM_INDEX_COLUMNS];
	int16		options[IDEM_INDEX_COLUMNS];
	RegProcedure compare[IDEM_INDEX_COLUMNS];	/* the types' own order */
} IdemIndexForm;

/* The form in which the install script makes a table. */
typedef struct IdemTableForm
{
	const IdemColumn *columns;
	int			ncolumns;
	bool		by_sql;			/* only SQL writes to it: tools may add what
								 * leaves the columns as they are */
	bool		exact;			/* readers, too, refuse a column or an index
								 * that somebody added */
	int			triggers;		/* so many */
	const IdemIndexForm *index; /* of all its indexes: REINDEX CONCURRENTLY
								 * makes a second one.  NULL: it has none,
								 * unless by_sql */
} IdemTableForm;

/* Details of errors, which the hook and the checks of tables have in common. */
#define IDEM_GUARD_TRIGGER_DETAIL \
	"Rows of this table are written without the executor, so a trigger would not see them."
#define IDEM_GUARD_RULE_DETAIL \
	"Rows of this table are written without the executor, so a rule would not see them."
#define IDEM_GUARD_INDEX_DETAIL \
	"Rows of this table are written without the executor, which would maintain it; and tools copy tables with a unique index by a trigger, which would not see these rows."
#define IDEM_GUARD_IDENTITY_DETAIL \
	"With a replica identity, tools could rewrite the table while rows are written to it."
#define IDEM_GUARD_UNLOGGED_DETAIL \
	"A crash empties unlogged relations: what is remembered would be forgotten."
#define IDEM_GUARD_TYPE_DETAIL \
	"C code reads the column, and takes its values for what they were."
#define IDEM_GUARD_COLUMN_DETAIL \
	"C code reads and writes the columns that the table was made with."
#define IDEM_GUARD_ATTACH_DETAIL \
	"Triggers and indexes of the partitioned table would come to this table, whose rows are written without the executor."

/* What C code is going to do with rows of a table; in this order. */
typedef enum IdemGuardUse
{
	IDEM_GUARD_READ = 1,
	IDEM_GUARD_WRITE
} IdemGuardUse;

/* Does C code write to the table, which is a member of the extension? */
extern bool idem_guard_written_by_c(Oid relid);

/* Check a table, or the persistence of a sequence, by the relcache. */
extern void idem_guard_examine(IdemRelRef *ref, Relation rel, IdemGuardUse use);

/*
 * Call this before C code reads or writes a row of a table, which is open.
 * Error 0A000 or 55000, with the remedy, if the table is not as it was made.
 * allow_system_table_mods admits additions and unlogged tables.  An invalidation
 * of the table makes the next call look anew.  A lock on the table brings the
 * invalidations of whoever had a lock that conflicts.
 */
static inline void
idem_guard_table(IdemRelRef *ref, Relation rel, IdemGuardUse use)
{
	if (unlikely(ref->checked < use))
		idem_guard_examine(ref, rel, use);
}

/* The same before reading, of a table or a sequence that need not be open, nor locked. */
extern void idem_guard_ref(IdemRelRef *ref);

/* Error 0A000: the sequence is unlogged.  Returns if allow_system_table_mods is on. */
extern void idem_guard_report_sequence(Relation sequence);

/* Call this before C code reads or writes a sequence. */
static inline void
idem_guard_sequence(Relation sequence)
{
	if (unlikely(sequence->rd_rel->relpersistence != RELPERSISTENCE_PERMANENT))
		idem_guard_report_sequence(sequence);
}

/*
 * Error 0A000: the table has a constraint, or the like, that only the executor
 * could enforce.  hint is a sentence.
 */
pg_noreturn extern void idem_guard_report_constraint(Relation heap, const char *what,
													 const char *name, const char *hint);

/* Error 55000: the table has no index that is fit to be used. */
pg_noreturn extern void idem_guard_report_no_index(Relation heap, const IdemIndexForm *form);

#endif							/* IDEM_GUARD_H */
