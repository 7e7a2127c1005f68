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

#define IDEM_EXTENSION_NAME "idempotency"

/* Functions, types and views: for those who were granted USAGE on it. */
#define IDEM_API_SCHEMA_NAME	"idempotency"

/* Tables, sequences and anchors: nobody has USAGE on it. */
#define IDEM_DATA_SCHEMA_NAME	"idempotency_data"

/*
 * A table, index or sequence in the data schema, or a view in the schema of the
 * functions, remembered until an invalidation says that it may have changed.
 * Declare it static, name it with IDEM_RELREF or IDEM_VIEWREF.
 */
typedef struct IdemRelRef
{
	const char *name;			/* unqualified name */
	bool		is_view;
	Oid			oid;			/* InvalidOid: to be looked up */
	bool		registered;		/* in the list the callback walks */
	struct IdemRelRef *next;
} IdemRelRef;

#define IDEM_RELREF(relname) {(relname), false, InvalidOid, false, NULL}
#define IDEM_VIEWREF(viewname) {(viewname), true, InvalidOid, false, NULL}

extern void idem_catalog_init(void);

/* OID of the extension, or InvalidOid if it is not (or no longer) installed. */
extern Oid	idem_extension_oid(void);

/* OID of the role that owns the extension; error 55000 if there is none. */
extern Oid	idem_extension_owner(void);

/* OID of the schema of functions, types and views; error 55000 if there is none. */
extern Oid	idem_api_schema_oid(void);

/*
 * OID of the schema of tables and sequences; error 55000 if the extension has no
 * schema of that name, whoever else may have one.
 */
extern Oid	idem_data_schema_oid(void);

/* OID of one of our relations, without a lock; error 42P01 if it does not exist. */
extern Oid	idem_relref_oid(IdemRelRef *ref);

/* OID of the schema an extension was installed in; error 55000 if none. */
extern Oid	idem_schema_of_extension(const char *extname);

#endif							/* IDEM_CATALOG_H */
