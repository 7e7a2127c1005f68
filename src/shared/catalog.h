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
#define IDEM_SCHEMA_NAME	"idempotency"

/*
 * A relation of the extension's schema, remembered until an invalidation says
 * that it may have changed.  Declare it static, name it with IDEM_RELREF.
 */
typedef struct IdemRelRef
{
	const char *name;			/* unqualified relation or index name */
	Oid			oid;			/* InvalidOid: to be looked up */
	bool		registered;		/* in the list the callback walks */
	struct IdemRelRef *next;
} IdemRelRef;

#define IDEM_RELREF(relname) {(relname), InvalidOid, false, NULL}

extern void idem_catalog_init(void);

/* OID of the extension, or InvalidOid if it is not (or no longer) installed. */
extern Oid	idem_extension_oid(void);

/* OID of the role that owns the extension; error 55000 if there is none. */
extern Oid	idem_extension_owner(void);

/* OID of the schema the extension's objects are in; error 55000 if none. */
extern Oid	idem_schema_oid(void);

/* OID of one of our relations; error 42P01 if it does not exist. */
extern Oid	idem_relref_oid(IdemRelRef *ref);

/* OID of the schema an extension was installed in; error 55000 if none. */
extern Oid	idem_schema_of_extension(const char *extname);

#endif							/* IDEM_CATALOG_H */
