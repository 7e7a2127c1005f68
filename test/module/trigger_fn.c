/*-------------------------------------------------------------------------
 *
 * trigger_fn.c
 *		A SQL function that makes a trigger as other extensions do: in C, by no command.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		test/module/trigger_fn.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_trigger.h"
#include "commands/trigger.h"
#include "fmgr.h"
#include "nodes/makefuncs.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"

#include "compat.h"

PG_FUNCTION_INFO_V1(idem_test_trigger_fn);

/* test_trigger(relation regclass, function regproc): an internal one, after each TRUNCATE */
Datum
idem_test_trigger_fn(PG_FUNCTION_ARGS)
{
	Oid			relid = PG_GETARG_OID(0);
	Oid			function = PG_GETARG_OID(1);
	CreateTrigStmt *stmt = makeNode(CreateTrigStmt);

	stmt->trigname = "made_in_c";
	stmt->relation = makeRangeVar(get_namespace_name(get_rel_namespace(relid)), get_rel_name(relid), -1);
	stmt->funcname = list_make2(makeString(get_namespace_name(get_func_namespace(function))),
								makeString(get_func_name(function)));
	stmt->timing = TRIGGER_TYPE_AFTER;
	stmt->events = TRIGGER_TYPE_TRUNCATE;
	(void) CreateTrigger(stmt, NULL, relid, InvalidOid, InvalidOid, InvalidOid, function, InvalidOid, NULL, true, false);
	PG_RETURN_VOID();
}
