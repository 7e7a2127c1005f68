/*-------------------------------------------------------------------------
 *
 * guard.c
 *		Keeps roles from waiting for the lock of a view that they do not
 *		own.
 *
 * The extension's tables are out of everybody's reach, in a schema on which
 * nobody has USAGE.  Its views cannot be: a role that may read one view can
 * name all.  A reader's AccessShareLock hurts nobody.  But two commands of
 * PostgreSQL take AccessExclusiveLock on any relation that they name, and
 * check its ownership afterwards.  If such a command waits for an open
 * transaction, nobody can read the view meanwhile.  For the extension's
 * relations, the hook in this file checks the ownership before the command
 * locks.
 *
 * If the library is not preloaded, sessions that have not loaded it are not
 * guarded.
 *
 * LOCKING: none.
 *
 * MEMORY: nothing is kept.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/shared/guard.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/dependency.h"
#include "catalog/namespace.h"
#include "catalog/objectaddress.h"
#include "catalog/pg_class.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "tcop/utility.h"
#include "utils/acl.h"
#include "utils/lsyscache.h"

#include "compat.h"
#include "shared/catalog.h"
#include "shared/guard.h"

static ProcessUtility_hook_type prev_process_utility = NULL;

/*
 * The relation that a command locks before it checks the ownership; NULL for
 * other commands.
 */
static RangeVar *
locked_first(Node *parsetree)
{
	switch (nodeTag(parsetree))
	{
		case T_RuleStmt:
			return ((RuleStmt *) parsetree)->relation;
		case T_AlterObjectDependsStmt:
			return ((AlterObjectDependsStmt *) parsetree)->relation;
		default:
			return NULL;
	}
}

/*
 * Error 42501 if the relation is the extension's and the user does not own it.
 */
static void
check_owner(const RangeVar *relation)
{
	Oid			extension = idem_extension_oid();
	Oid			relid;

	if (!OidIsValid(extension))
		return;
	relid = RangeVarGetRelid(relation, NoLock, true);
	if (OidIsValid(relid) &&
		getExtensionOfObject(RelationRelationId, relid) == extension &&
		!idem_relation_ownercheck(relid, GetUserId()))
		aclcheck_error(ACLCHECK_NOT_OWNER, get_relkind_objtype(get_rel_relkind(relid)),
					   relation->relname);
}

/* ProcessUtility_hook: check the ownership before the command locks. */
static void
process_utility(PlannedStmt *pstmt, const char *queryString, bool readOnlyTree,
				ProcessUtilityContext context, ParamListInfo params,
				QueryEnvironment *queryEnv, DestReceiver *dest, QueryCompletion *qc)
{
	RangeVar   *relation = locked_first(pstmt->utilityStmt);

	if (relation != NULL)
		check_owner(relation);
	if (prev_process_utility)
		prev_process_utility(pstmt, queryString, readOnlyTree, context, params,
							 queryEnv, dest, qc);
	else
		standard_ProcessUtility(pstmt, queryString, readOnlyTree, context, params,
								queryEnv, dest, qc);
}

void
idem_guard_init(void)
{
	prev_process_utility = ProcessUtility_hook;
	ProcessUtility_hook = process_utility;
}
