/*-------------------------------------------------------------------------
 *
 * hold_fn.c
 *		SQL functions by which tests hold what others have for a moment only: a
 *		transaction that others already see, the lock by which the server
 *		extends a table, and a command whose parse tree is gone.
 *
 * The callbacks of a commit run when the transaction has become visible, and
 * before it has released its locks.
 *
 * A utility hook may read the parse tree only before the command runs.  If the
 * module is preloaded before the library, its hook runs below that of the
 * library, and takes the tree away when the command has run.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		test/module/hold_fn.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/mman.h>
#include <unistd.h>

#include "access/table.h"
#include "access/xact.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "parser/parser.h"
#include "storage/lmgr.h"
#include "tcop/dest.h"
#include "tcop/utility.h"
#include "utils/builtins.h"

#include "compat.h"

#define LOOK_AGAIN_US	2000

PG_FUNCTION_INFO_V1(idem_test_hold_commit_fn);
PG_FUNCTION_INFO_V1(idem_test_hold_extension_fn);
PG_FUNCTION_INFO_V1(idem_test_run_without_tree_fn);

static char hold_file[MAXPGPATH];	/* empty: hold no transaction */
static ProcessUtility_hook_type prev_utility = NULL;
static Node *fleeting = NULL;	/* tree on a page of its own */
static bool taken = false;		/* was it taken away? */

/* Commit callback: wait while the file exists. */
static void
hold(XactEvent event, void *arg)
{
	while (event == XACT_EVENT_COMMIT && hold_file[0] != '\0' && access(hold_file, F_OK) == 0)
		pg_usleep(LOOK_AGAIN_US);
	if (event == XACT_EVENT_COMMIT || event == XACT_EVENT_ABORT)
		hold_file[0] = '\0';
}

/*
 * test_hold_commit(file text) -> void: hold this transaction's commit while
 * the file exists
 */
Datum
idem_test_hold_commit_fn(PG_FUNCTION_ARGS)
{
	static bool registered = false;

	if (!registered)
		RegisterXactCallback(hold, NULL);
	registered = true;
	text_to_cstring_buffer(PG_GETARG_TEXT_PP(0), hold_file, sizeof(hold_file));
	PG_RETURN_VOID();
}

/*
 * test_hold_extension(table_oid oid, file text) -> void: while the file exists,
 * hold the lock by which the server extends the table; null: to the end of the
 * transaction
 */
Datum
idem_test_hold_extension_fn(PG_FUNCTION_ARGS)
{
	Relation	rel = table_open(PG_GETARG_OID(0), AccessShareLock);
	char	   *file = PG_ARGISNULL(1) ? NULL : text_to_cstring(PG_GETARG_TEXT_PP(1));

	LockRelationForExtension(rel, ExclusiveLock);
	while (file != NULL && access(file, F_OK) == 0)
	{
		CHECK_FOR_INTERRUPTS();
		pg_usleep(LOOK_AGAIN_US);
	}
	if (file != NULL)
		UnlockRelationForExtension(rel, ExclusiveLock);
	table_close(rel, AccessShareLock);
	PG_RETURN_VOID();
}

/* The hook below that of the library: take the tree away when the command has run. */
static void
take_tree(PlannedStmt *pstmt, const char *query, bool read_only_tree,
		  ProcessUtilityContext context, ParamListInfo params, QueryEnvironment *env,
		  DestReceiver *dest, QueryCompletion *qc)
{
	Node	   *tree = pstmt->utilityStmt;

	(prev_utility ? prev_utility : standard_ProcessUtility) (pstmt, query, read_only_tree, context,
															 params, env, dest, qc);
	if (tree == fleeting && tree != NULL)
		taken = mprotect(tree, getpagesize(), PROT_NONE) == 0;
}

extern void idem_test_take_trees(void);

/* For _PG_init, which may run in a session: then the hook would be the upper one. */
void
idem_test_take_trees(void)
{
	if (!process_shared_preload_libraries_in_progress)
		return;
	prev_utility = ProcessUtility_hook;
	ProcessUtility_hook = take_tree;
}

/*
 * test_run_without_tree(sql text) -> boolean: run an ALTER SERVER whose parse tree
 * nobody can read when it has run; true if that was so
 */
Datum
idem_test_run_without_tree_fn(PG_FUNCTION_ARGS)
{
	char	   *sql = text_to_cstring(PG_GETARG_TEXT_PP(0));
	Node	   *stmt = ((RawStmt *) linitial(raw_parser(sql, RAW_PARSE_DEFAULT)))->stmt;
	PlannedStmt *pstmt = makeNode(PlannedStmt);

	if (!IsA(stmt, AlterForeignServerStmt))
		elog(ERROR, "not an ALTER SERVER");
	fleeting = mmap(NULL, getpagesize(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (fleeting == MAP_FAILED)
		elog(ERROR, "could not map a page: %m");
	memcpy(fleeting, stmt, sizeof(AlterForeignServerStmt));
	taken = false;
	pstmt->commandType = CMD_UTILITY;
	pstmt->utilityStmt = fleeting;
	ProcessUtility(pstmt, sql, false, PROCESS_UTILITY_QUERY, NULL, NULL, None_Receiver, NULL);
	munmap(fleeting, getpagesize());
	fleeting = NULL;
	PG_RETURN_BOOL(taken);
}
