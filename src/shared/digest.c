/*-------------------------------------------------------------------------
 *
 * digest.c
 *		Digests by pgcrypto, found where it is installed.
 *
 * The function is called by the schema in pgcrypto's row of pg_extension.  So
 * neither the search_path nor a function of the same name elsewhere matters.
 *
 * LOCKING: none.
 *
 * MEMORY: results and temporary data are in the caller's context.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/shared/digest.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "fmgr.h"
#include "nodes/pg_list.h"
#include "nodes/value.h"
#include "parser/parse_func.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"

#include "shared/catalog.h"
#include "shared/digest.h"

bytea *
idem_digest_sha256(bytea *data)
{
	Oid			argtypes[] = {BYTEAOID, TEXTOID};
	char	   *schema = get_namespace_name(idem_schema_of_extension("pgcrypto"));
	List	   *name = list_make2(makeString(schema), makeString("digest"));
	Oid			digest = LookupFuncName(name, 2, argtypes, false);

	return DatumGetByteaPP(OidFunctionCall2(digest, PointerGetDatum(data),
											CStringGetTextDatum("sha256")));
}
