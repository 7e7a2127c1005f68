/*-------------------------------------------------------------------------
 *
 * guard.c
 *		Keeps roles that do not own a view of ours from waiting for its lock.
 *
 * Tables are out of everybody's reach, in a schema that nobody has USAGE on.  Views
 * cannot be: a role that may read one can name all.  A reader's AccessShareLock
 * hurts nobody, but two commands of PostgreSQL take AccessExclusiveLock on any
 * relation that they name, and check its ownership afterwards.  Such a command that
 * waits for an open transaction keeps everybody from reading the view.  For relations
 * of the extension, the hook here checks ownership before the command locks.
 *
 * Where the library is not preloaded, sessions that have not loaded it are not
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

/* The relation that a command locks before it asks for the owner; or NULL. */
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

/* Error 42501 unless the user owns the relation or it is not ours. */
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

/* ProcessUtility_hook: ask for the owner before the command locks. */
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
