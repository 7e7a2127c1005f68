/*-------------------------------------------------------------------------
 *
 * idempotency.c
 *		Entry point of the library: initialises each subsystem, and tells the
 *		subsystems what the server tells its hooks.
 *
 * Every subsystem is initialised in the backend that loads the library.  If
 * the library is preloaded, it is initialised in the postmaster, too.  Claims
 * and the outbox work with and without preloading.  The relay needs shared
 * memory and background workers, and therefore the preload.  There is no shared
 * memory during pg_upgrade, which starts the new server with the library loaded.
 *
 * The library has each hook once.  Which subsystem hears of what, and in which
 * order, stands here and nowhere else.  A hook that another library installed
 * before runs before ours, except that a utility statement is read before it.
 * A subsystem that has nothing to do without shared memory finds that out itself.
 *
 * What a subsystem raises in a hook ends the statement or the transaction, and
 * the subsystems after it are not asked.  Callbacks of COMMIT, PREPARE and ROLLBACK
 * raise nothing and allocate nothing.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/idempotency.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_database.h"
#include "catalog/pg_trigger.h"
#include "commands/extension.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"
#include "tcop/utility.h"
#include "utils/guc.h"
#include "utils/wait_event.h"

#include "claim/claim.h"
#include "claim/count.h"
#include "claim/state.h"
#include "compat.h"
#include "cursor/log.h"
#include "lease/log.h"
#include "outbox/outbox.h"
#include "relay/api/api.h"
#include "relay/difference_end.h"
#include "relay/function/function.h"
#include "relay/relay.h"
#include "relay/report.h"
#include "relay/witness.h"
#include "relay/worker/workers.h"
#include "relay/worker_slots.h"
#include "request/flight.h"
#include "request/response.h"
#include "shared/catalog.h"
#include "shared/durable.h"
#include "shared/fault.h"
#include "shared/guard.h"
#include "shared/keyed_worker.h"
#include "shared/statement.h"
#include "store/setting.h"

PG_MODULE_MAGIC;

/* How long DDL waits for workers to end before it proceeds regardless. */
#define HOLD_WAIT_MS 8000

extern PGDLLEXPORT void _PG_init(void);

static ProcessUtility_hook_type prev_process_utility = NULL;
static object_access_hook_type prev_object_access = NULL;
static shmem_request_hook_type prev_shmem_request = NULL;
static shmem_startup_hook_type prev_shmem_startup = NULL;

/* Utility statements */

/* Run a statement by the hook that was installed before ours. */
static void
call_next(PlannedStmt *pstmt, const char *query, bool read_only_tree,
		  ProcessUtilityContext context, ParamListInfo params,
		  QueryEnvironment *env, DestReceiver *dest, QueryCompletion *qc)
{
	(prev_process_utility ? prev_process_utility : standard_ProcessUtility)
		(pstmt, query, read_only_tree, context, params, env, dest, qc);
}

/* The same for a command of the script of an extension, which event triggers may see. */
static void
call_next_in_script(PlannedStmt *pstmt, const char *query, bool read_only_tree,
					ProcessUtilityContext context, ParamListInfo params,
					QueryEnvironment *env, DestReceiver *dest, QueryCompletion *qc)
{
	idem_script_commands++;
	PG_TRY();
	{
		call_next(pstmt, query, read_only_tree, context, params, env, dest, qc);
	}
	PG_FINALLY();
	{
		idem_script_commands--;
	}
	PG_END_TRY();
}

/*
 * Keep the database's workers down, and wait until they have ended.  A worker ends within
 * milliseconds of SIGTERM, unless a function relay's handler does not reach an interrupt
 * check.  The wait is bounded, so that the command then fails as it would beside any such session.
 */
static void
hold_workers(Oid dboid)
{
	idem_workers_hold(dboid);
	for (int waited = 0; waited < HOLD_WAIT_MS && idem_workers_terminate(dboid) > 0; waited += 10)
	{
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 10L, PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
}

/* Release the workers after an error or FATAL in the statement. */
static void
release_workers(int code, Datum former)
{
	idem_workers_release(DatumGetObjectId(former));
}

/*
 * Run a statement that needs a database without sessions, or DROP EXTENSION.  A
 * worker is a session of its database, and serving interrupts does not make it
 * leave.  So the database's workers are kept down meanwhile.
 */
static void
call_next_without_workers(Oid dboid, PlannedStmt *pstmt, const char *query, bool read_only_tree,
						  ProcessUtilityContext context, ParamListInfo params,
						  QueryEnvironment *env, DestReceiver *dest, QueryCompletion *qc)
{
	Oid			former = idem_workers_current_hold();

	PG_ENSURE_ERROR_CLEANUP(release_workers, ObjectIdGetDatum(former));
	{
		hold_workers(dboid);
		IDEM_FAULT_POINT("ddl-workers-held");
		call_next(pstmt, query, read_only_tree, context, params, env, dest, qc);
	}
	PG_END_ENSURE_ERROR_CLEANUP(release_workers, ObjectIdGetDatum(former));
	IDEM_FAULT_POINT_NO_ERROR("ddl-workers-release");
	idem_workers_release(former);
}

/* What the statement means; refuses a statement that may not run. */
static IdemStatement
read_statement(Node *stmt)
{
	IdemStatement s = {0};

	if (IsA(stmt, TransactionStmt))
	{
		TransactionStmtKind kind = ((TransactionStmt *) stmt)->kind;

		s.commits_prepared = kind == TRANS_STMT_COMMIT_PREPARED;
		s.ends_block = kind == TRANS_STMT_COMMIT || kind == TRANS_STMT_PREPARE;
		s.ends_prepared = s.commits_prepared || kind == TRANS_STMT_ROLLBACK_PREPARED;
	}
	s.in_script = creating_extension && !IsA(stmt, DoStmt) && !IsA(stmt, CallStmt);
	idem_ddl_read(stmt, &s);
	idem_guard_read(stmt, &s);
	return s;
}

/* ProcessUtility_hook.  The parse tree is not looked at after the statement. */
static void
process_utility(PlannedStmt *pstmt, const char *query, bool read_only_tree,
				ProcessUtilityContext context, ParamListInfo params,
				QueryEnvironment *env, DestReceiver *dest, QueryCompletion *qc)
{
	const IdemStatement s = read_statement(pstmt->utilityStmt);

	if (s.ends_block)
		idem_claims_ask_first();
	if (OidIsValid(s.clear))
		call_next_without_workers(s.clear, pstmt, query, read_only_tree, context,
								  params, env, dest, qc);
	else if (s.in_script)
		call_next_in_script(pstmt, query, read_only_tree, context, params, env, dest, qc);
	else
		call_next(pstmt, query, read_only_tree, context, params, env, dest, qc);

	idem_guard_check_made(s.partitioned);
	if (s.ends_prepared)
		idem_flight_wake_all();
	if (s.commits_prepared)
		idem_wake_committed_prepared();
	if (s.changes_relays)
		idem_relay_config_changed();
}

/* object_access_hook.  Most calls are for the use of a function or a schema. */
static void
on_object_access(ObjectAccessType access, Oid classid, Oid objid, int subid, void *arg)
{
	if (prev_object_access)
		prev_object_access(access, classid, objid, subid, arg);
	if (access == OAT_POST_CREATE || access == OAT_POST_ALTER)
	{
		idem_guard_check_object(classid, objid, subid);
		if (access == OAT_POST_CREATE && classid == TriggerRelationId)
			idem_guard_check_trigger(objid);
		idem_option_guard_check(classid, objid, access == OAT_POST_CREATE);
	}
	if ((access == OAT_POST_ALTER || access == OAT_DROP) && subid == 0)
		idem_ddl_object_changed(classid, objid, access == OAT_DROP);
	if (access == OAT_DROP && classid == DatabaseRelationId)
		idem_count_database_dropped(objid);
}

/* Transactions */

/*
 * What is to be announced comes first.  The claims come last: they are forgotten when
 * nobody asks for them any more.
 */
static void
on_transaction(XactEvent event, void *arg)
{
	switch (event)
	{
		case XACT_EVENT_PRE_COMMIT:
			idem_wake_committing();
			idem_finish_claims(false);
			idem_durable_commits();
			break;
		case XACT_EVENT_PRE_PREPARE:
			idem_finish_claims(true);
			idem_durable_commits();
			break;
		case XACT_EVENT_COMMIT:
			idem_wake_committed();
			if (idem_wake_applies_prepared())
			{
				idem_flight_wake_all();
				idem_wake_committed_prepared();
			}
			idem_flight_transaction_ended();
			idem_durable_ended();
			idem_state_forget(event);
			break;
		case XACT_EVENT_PREPARE:
			idem_wake_prepared();
			idem_flight_transaction_prepared();
			idem_durable_ended();
			idem_state_forget(event);
			break;
		case XACT_EVENT_ABORT:
			idem_wake_aborted();
			idem_flight_transaction_ended();
			idem_durable_ended();
			idem_state_forget(event);
			break;
		default:
			break;
	}
}

static void
on_subtransaction(SubXactEvent event, SubTransactionId subid, SubTransactionId parent, void *arg)
{
	if (event == SUBXACT_EVENT_ABORT_SUB)
	{
		idem_handler_subtransaction_aborted();
		idem_flight_leave();
		idem_state_undo(subid);
	}
	else if (event == SUBXACT_EVENT_COMMIT_SUB)
		idem_state_subtransaction_committed(parent);
}

/* Shared memory */

static const struct
{
	const char *name;
	Size		(*size) (void);
	void		(*attach) (void *base, bool found);
}			segments[] =

{
	{"idempotency flights", idem_flight_shmem_size, idem_flight_shmem_attach},
	{"idempotency workers", idem_slots_shmem_size, idem_slots_shmem_attach},
	{"idempotency relays", idem_relay_entries_size, idem_relay_entries_attach},
	{"idempotency changes of relays", idem_difference_shmem_size, idem_difference_shmem_attach},
	{"idempotency witness", idem_witness_shmem_size, idem_witness_shmem_attach},
	{"idempotency verdicts", idem_count_shmem_size, idem_count_shmem_attach},
};

/* shmem_request_hook.  PostgreSQL accepts requests nowhere else. */
static void
shmem_request(void)
{
	if (prev_shmem_request)
		prev_shmem_request();
	for (int i = 0; i < lengthof(segments); i++)
		RequestAddinShmemSpace(segments[i].size());
	RequestNamedLWLockTranche("idempotency", IDEM_LOCKS);
	RequestNamedLWLockTranche("idempotency counters", 1);
}

/*
 * shmem_startup_hook: find or make the segments.  Runs in the postmaster, and in each
 * child where processes are not forked.
 */
static void
shmem_startup(void)
{
	if (prev_shmem_startup)
		prev_shmem_startup();
	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	for (int i = 0; i < lengthof(segments); i++)
	{
		bool		found;
		void	   *base = ShmemInitStruct(segments[i].name, segments[i].size(), &found);

		segments[i].attach(base, found);
	}
	LWLockRelease(AddinShmemInitLock);
}

static void
install_hooks(void)
{
	prev_process_utility = ProcessUtility_hook;
	ProcessUtility_hook = process_utility;
	prev_object_access = object_access_hook;
	object_access_hook = on_object_access;
	RegisterXactCallback(on_transaction, NULL);
	RegisterSubXactCallback(on_subtransaction, NULL);
	if (!process_shared_preload_libraries_in_progress || IsBinaryUpgrade)
		return;
	prev_shmem_request = shmem_request_hook;
	shmem_request_hook = shmem_request;
	prev_shmem_startup = shmem_startup_hook;
	shmem_startup_hook = shmem_startup;
}

void
_PG_init(void)
{
	idem_catalog_init();
	idem_store_setting_init();
	idem_lease_setting_init();
	idem_keyed_worker_add(&idem_lease_log);
	idem_keyed_worker_add(&idem_cursor_log);
	idem_cursor_setting_init();
	idem_claim_init();
	idem_count_init();
	idem_outbox_init();
	idem_flight_init();
	idem_response_init();
	idem_relay_init();
	install_hooks();

	MarkGUCPrefixReserved("idempotency");
}
