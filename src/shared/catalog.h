/*-------------------------------------------------------------------------
 *
 * catalog.h
 *		Finds the extension's own objects by pg_extension, never by search_path.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/shared/catalog.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_CATALOG_H
#define IDEM_CATALOG_H

#include "postgres.h"

#include "storage/itemptr.h"
#include "storage/lockdefs.h"
#include "utils/relcache.h"

#define IDEM_EXTENSION_NAME "idempotency"

/*
 * The schema of functions, types and views: for roles that were granted USAGE
 * on it.
 */
#define IDEM_API_SCHEMA_NAME	"idempotency"

/* The schema of tables, sequences and anchors: nobody has USAGE on it. */
#define IDEM_DATA_SCHEMA_NAME	"idempotency_data"

/*
 * A table, index or sequence in the data schema, or a view in the schema of
 * the functions.  The OID is remembered until an invalidation says that it may
 * have changed.  Declare a ref static, and set it up with IDEM_RELREF,
 * IDEM_TABLEREF for a table whose rows C code reads, or IDEM_VIEWREF.
 */
typedef struct IdemRelRef
{
	const char *name;			/* unqualified name */
	bool		is_view;
	Oid			oid;			/* InvalidOid: to be looked up */
	bool		registered;		/* in the list that the callback walks */
	struct IdemRelRef *next;
	const struct IdemTableForm *form;	/* guard.h; NULL: C code reads no rows
										 * of it by the places of columns */
	int			checked;		/* the use (guard.h) for which the table was
								 * found fit since its last invalidation; 0:
								 * for none */
	uint32		changes;		/* counts invalidations while the OID is known */
} IdemRelRef;

#define IDEM_RELREF(relname) {(relname), false, InvalidOid, false, NULL, NULL, 0, 0}
#define IDEM_TABLEREF(tablename, tableform) \
	{(tablename), false, InvalidOid, false, NULL, (tableform), 0, 0}
#define IDEM_VIEWREF(viewname) {(viewname), true, InvalidOid, false, NULL, NULL, 0, 0}

extern void idem_catalog_init(void);

/* OID of the extension, or InvalidOid if it is not, or no longer, installed. */
extern Oid	idem_extension_oid(void);

/*
 * Error 0A000 in the script of another extension; what: "a relay", for the message.  Not
 * for what an event trigger does for a command of the script: a restore makes these
 * triggers last.
 */
extern void idem_check_no_script(const char *what);

/* Commands of a script that are under way, but for those that run code of the script: DO and CALL. */
extern int	idem_script_commands;

/*
 * OID of the role that owns the extension; error 55000 if it is not installed.
 */
extern Oid	idem_extension_owner(void);

/*
 * OID of the schema of tables and sequences; error 55000 if the extension has
 * no such schema, even if another schema has the name.
 */
extern Oid	idem_data_schema_oid(void);

/*
 * Name of a schema of the given extension, palloc'd.  Error 55000 if there is
 * no such schema any more: the extension was dropped since its look-up.
 */
extern char *idem_schema_name(Oid schema, const char *extname);

/*
 * OID of one of the extension's relations, which is not locked; error 42P01 if
 * it does not exist.
 */
extern Oid	idem_relref_oid(IdemRelRef *ref);

/*
 * Say that the extension did not write a row: ERROR XX001, or a WARNING for a row that the
 * caller passes over.  hint: what it means to delete the row; a sentence.
 */
extern void idem_report_row(int elevel, Oid relid, const ItemPointerData *tid, const char *hint);

/* Open a table with a lock if the lock is free; else NULL. */
extern Relation idem_table_open_nowait(Oid oid, LOCKMODE mode);

/*
 * The running transaction that has changed the relation's row in pg_class, as GRANT and
 * REVOKE do, which lock no table; InvalidTransactionId: none but this one.
 */
extern TransactionId idem_relation_changer(Oid relid);

/*
 * OID of the schema in which an extension was installed; error 55000 if it is
 * not installed.
 */
extern Oid	idem_schema_of_extension(const char *extname);

#endif							/* IDEM_CATALOG_H */
