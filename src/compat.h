/*-------------------------------------------------------------------------
 *
 * compat.h
 *		The only place that tests PG_VERSION_NUM.
 *
 * Each entry names the upstream change that it bridges.  Supported are 15, 17,
 * 18 and 19.  16 compiles, but is not tested (test/README.md, "Which
 * servers").
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/compat.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_COMPAT_H
#define IDEM_COMPAT_H

#include "postgres.h"

#include "fmgr.h"

#if PG_VERSION_NUM < 150000
#error "idempotency needs PostgreSQL 15 or newer"
#endif

/*
 * 18: index_beginscan() also takes a place for EXPLAIN's counters.
 * 19: scans take the caller's flags.  table_tuple_delete() has a flag, instead
 * of an argument, that says that the row moves to another partition.  A tuple descriptor
 * that was made has to be finished.
 */
#if PG_VERSION_NUM >= 190000
#define idem_compat_index_beginscan(heap, index, snapshot, nkeys) \
	index_beginscan(heap, index, snapshot, NULL, nkeys, 0, SO_NONE)
#define idem_compat_table_beginscan(heap, snapshot) \
	table_beginscan(heap, snapshot, 0, NULL, SO_NONE)
#define idem_compat_finish_desc(desc) TupleDescFinalize(desc)
#define idem_compat_table_tuple_delete(heap, tid, cid, tmfd) \
	table_tuple_delete(heap, tid, cid, 0, InvalidSnapshot, InvalidSnapshot, \
					   true, tmfd)
#else
#if PG_VERSION_NUM >= 180000
#define idem_compat_index_beginscan(heap, index, snapshot, nkeys) \
	index_beginscan(heap, index, snapshot, NULL, nkeys, 0)
#else
#define idem_compat_index_beginscan(heap, index, snapshot, nkeys) \
	index_beginscan(heap, index, snapshot, nkeys, 0)
#endif
#define idem_compat_table_beginscan(heap, snapshot) \
	table_beginscan(heap, snapshot, 0, NULL)
#define idem_compat_finish_desc(desc) ((void) 0)
#define idem_compat_table_tuple_delete(heap, tid, cid, tmfd) \
	table_tuple_delete(heap, tid, cid, InvalidSnapshot, InvalidSnapshot, \
					   true, tmfd, false)
#endif

/*
 * 16: "Default to hidden visibility for extension libraries where possible"
 * made the server's own macros export the symbols that fmgr looks up.  Before
 * 16, with -fvisibility=hidden, fmgr would find neither the magic block nor a
 * function that SQL can call.
 */
#if PG_VERSION_NUM < 160000
#undef PGDLLEXPORT
#define PGDLLEXPORT __attribute__((visibility("default")))
#undef PG_FUNCTION_INFO_V1
#define PG_FUNCTION_INFO_V1(fn) \
	extern PGDLLEXPORT Datum fn(PG_FUNCTION_ARGS); \
	extern PGDLLEXPORT const Pg_finfo_record *CppConcat(pg_finfo_, fn) (void); \
	const Pg_finfo_record * \
	CppConcat(pg_finfo_, fn) (void) \
	{ \
		static const Pg_finfo_record version_1 = {1}; \
		return &version_1; \
	} \
	StaticAssertDecl(true, "takes the semicolon of the caller")
#endif

/* 16: "New header varatt.h split off from postgres.h". */
#if PG_VERSION_NUM >= 160000
#include "varatt.h"
#endif

/*
 * 16: a bulk insertion extends a table by many pages at once, and the more it
 * has extended the table, the more ("hio: Take number of prior relation
 * extensions into account").  Forget that: then it extends the table by what
 * the next rows need.
 */
#if PG_VERSION_NUM >= 160000
#include "access/hio.h"
#define idem_compat_bulk_insert_forget(bistate) ((bistate)->already_extended_by = 0)
#else
#define idem_compat_bulk_insert_forget(bistate) ((void) 0)
#endif

/*
 * 19: "Toggle logical decoding dynamically based on logical slot presence" gave
 * each process a variable beside wal_level that says whether WAL has what
 * logical decoding needs.  An interrupt may change it.  Needs xlog.h.
 */
#if PG_VERSION_NUM >= 190000
#define idem_compat_logical_info() XLogLogicalInfo
#define idem_compat_set_logical_info(on) (XLogLogicalInfo = (on))
#else
#define idem_compat_logical_info() false
#define idem_compat_set_logical_info(on) ((void) (on))
#endif

/*
 * Search the leaf page to which a key belongs, to insert there.  16: the search
 * needs the table, because it may finish a split.  17: the removal of
 * old_snapshot_threshold took the snapshot away.  19: the path to the page is
 * asked for.  A search that finishes splits needs the path; it stays in the
 * current context.  Needs nbtree.h.
 */
#if PG_VERSION_NUM >= 190000
#define idem_compat_bt_search_leaf(index, heap, key, buffer) \
	((void) _bt_search(index, heap, key, buffer, BT_WRITE, true))
#elif PG_VERSION_NUM >= 170000
#define idem_compat_bt_search_leaf(index, heap, key, buffer) \
	((void) _bt_search(index, heap, key, buffer, BT_WRITE))
#elif PG_VERSION_NUM >= 160000
#define idem_compat_bt_search_leaf(index, heap, key, buffer) \
	((void) _bt_search(index, heap, key, buffer, BT_WRITE, NULL))
#else
#define idem_compat_bt_search_leaf(index, heap, key, buffer) \
	((void) _bt_search(index, key, buffer, BT_WRITE, NULL))
#endif

/* 18: "Add pg_noreturn" removed pg_attribute_noreturn(). */
#if PG_VERSION_NUM < 180000
#define pg_noreturn __attribute__((noreturn))
#endif

/*
 * Are synchronous standbys configured?  The checkpointer tells all processes.
 * Needs walsender_private.h.  15.13, 16.9, 17.5: "Fix race condition with
 * synchronous_standby_names at startup" turned the flag into a bit mask.
 */
#ifdef SYNC_STANDBY_DEFINED
#define IDEM_SYNC_STANDBYS_DEFINED() \
	idem_compat_sync_standbys(((volatile WalSndCtlData *) WalSndCtl)->sync_standbys_status)

/* Before the checkpointer has told the processes, the setting itself counts. */
static inline bool
idem_compat_sync_standbys(int status)
{
	return (status & SYNC_STANDBY_INIT) ? (status & SYNC_STANDBY_DEFINED) != 0 :
		SyncRepStandbyNames != NULL && SyncRepStandbyNames[0] != '\0';
}
#else
#define IDEM_SYNC_STANDBYS_DEFINED() \
	(((volatile WalSndCtlData *) WalSndCtl)->sync_standbys_defined)
#endif

/* 17 renamed ShmemVariableCache (8205258b). */
#if PG_VERSION_NUM >= 170000
#define IDEM_OLDEST_CLOG_XID (TransamVariables->oldestClogXid)
#else
#define IDEM_OLDEST_CLOG_XID (ShmemVariableCache->oldestClogXid)
#endif

/* 17 replaced PGPROC.pgprocno by the variable MyProcNumber (024c5211). */
#if PG_VERSION_NUM >= 170000
#define IDEM_MY_PROCNO MyProcNumber
#else
#define IDEM_MY_PROCNO (MyProc->pgprocno)
#endif

/* 16 replaced the pg_*_aclcheck family by object_aclcheck (c727f511). */
#if PG_VERSION_NUM >= 160000
#define idem_server_usage_check(serverid, roleid) \
	object_aclcheck(ForeignServerRelationId, (serverid), (roleid), ACL_USAGE)
#define idem_function_execute_check(funcid, roleid) \
	object_aclcheck(ProcedureRelationId, (funcid), (roleid), ACL_EXECUTE)
#define idem_schema_usage_check(schema, roleid) \
	object_aclcheck(NamespaceRelationId, (schema), (roleid), ACL_USAGE)
#define idem_relation_ownercheck(relid, roleid) \
	object_ownercheck(RelationRelationId, (relid), (roleid))
#else
#define idem_server_usage_check(serverid, roleid) \
	pg_foreign_server_aclcheck((serverid), (roleid), ACL_USAGE)
#define idem_function_execute_check(funcid, roleid) \
	pg_proc_aclcheck((funcid), (roleid), ACL_EXECUTE)
#define idem_schema_usage_check(schema, roleid) \
	pg_namespace_aclcheck((schema), (roleid), ACL_USAGE)
#define idem_relation_ownercheck(relid, roleid) pg_class_ownercheck((relid), (roleid))
#endif

/* A relation's file, and its number.  16: relfilenode became relfilenumber. */
#if PG_VERSION_NUM >= 160000
#define IDEM_REL_FILE(rel) ((rel)->rd_locator)
#define IDEM_REL_FILE_NUMBER(rel) ((rel)->rd_locator.relNumber)
#define IDEM_REL_GOT_NEW_FILE(rel) ((rel)->rd_firstRelfilelocatorSubid != InvalidSubTransactionId)
#else
#define IDEM_REL_FILE(rel) ((rel)->rd_node)
#define IDEM_REL_FILE_NUMBER(rel) ((rel)->rd_node.relNode)
#define IDEM_REL_GOT_NEW_FILE(rel) ((rel)->rd_firstRelfilenodeSubid != InvalidSubTransactionId)
#endif

/*
 * 17 gave CreateWaitEventSet a resource owner instead of a memory context
 * (50c67c2019).
 */
#if PG_VERSION_NUM >= 170000
#define IDEM_CREATE_WAIT_EVENT_SET(n) CreateWaitEventSet(NULL, (n))
#else
#define IDEM_CREATE_WAIT_EVENT_SET(n) CreateWaitEventSet(TopMemoryContext, (n))
#endif

/*
 * The number of locks in one of a process's lists.  16 replaced SHM_QUEUE by
 * dlist (5764f611).
 */
#if PG_VERSION_NUM >= 160000
#include "lib/ilist.h"
#define idem_compat_proclocks(list) idem_compat_dlist_length(list)

static inline int
idem_compat_dlist_length(dlist_head *list)
{
	dlist_iter	iter;
	int			n = 0;

	dlist_foreach(iter, list)
		n++;
	return n;
}
#else
#include "storage/shmem.h"
#define idem_compat_proclocks(list) idem_compat_shmqueue_length(list)

static inline int
idem_compat_shmqueue_length(SHM_QUEUE *list)
{
	int			n = 0;

	for (SHM_QUEUE *e = list->next; e != NULL && e != list; e = e->next)
		n++;
	return n;
}
#endif

/*
 * 16: the status of a backend is fetched by its index by pgstat_get_local_beentry_by_index,
 * which was pgstat_fetch_stat_local_beentry.
 */
#if PG_VERSION_NUM >= 160000
#define idem_compat_local_beentry(i) pgstat_get_local_beentry_by_index(i)
#else
#define idem_compat_local_beentry(i) pgstat_fetch_stat_local_beentry(i)
#endif

/*
 * The number of settings that this process knows.  16 replaced the array of
 * settings by a hash table (3057465acf).
 */
#include "utils/guc.h"
#include "utils/guc_tables.h"
#if PG_VERSION_NUM >= 160000
static inline int
idem_compat_num_settings(void)
{
	int			n;

	pfree(get_guc_variables(&n));
	return n;
}
#else
#define idem_compat_num_settings() GetNumConfigOptions()
#endif

/* 16 gave stringToQualifiedNameList an error context (1ff3f420). */
#if PG_VERSION_NUM >= 160000
#define idem_string_to_name_list(s) stringToQualifiedNameList((s), NULL)
#else
#define idem_string_to_name_list(s) stringToQualifiedNameList(s)
#endif

/*
 * All functions of a name, whatever their arguments.  19 added an output
 * argument with details of a failed look-up.
 */
#if PG_VERSION_NUM >= 190000
#define idem_funcname_candidates(names) \
	FuncnameGetCandidates((names), -1, NIL, false, false, false, true, &(int) {0})
#else
#define idem_funcname_candidates(names) \
	FuncnameGetCandidates((names), -1, NIL, false, false, false, true)
#endif

/*
 * Take a lock of the transaction if it is free; no error if the lock table is
 * full.  Needs storage/lock.h.  18 added an argument that logs failures
 * (6d376c3b0d).
 */
#if PG_VERSION_NUM >= 180000
#define idem_compat_try_lock(tag, mode) \
	LockAcquireExtended((tag), (mode), false, true, false, NULL, false)
#else
#define idem_compat_try_lock(tag, mode) \
	LockAcquireExtended((tag), (mode), false, true, false, NULL)
#endif

/*
 * Whose lock an entry of GetLockStatusData() is.  Needs storage/lock.h.  17 replaced
 * backend ids by process numbers, and put both parts into one field (ab355e3a88).
 */
#if PG_VERSION_NUM >= 170000
#define idem_compat_lock_vxid(lock) ((lock)->vxid)
#else
#define idem_compat_lock_vxid(lock) \
	((VirtualTransactionId) {.backendId = (lock)->backend, .localTransactionId = (lock)->lxid})
#endif

/*
 * A jsonb that is built member by member: result has it after its last token.  PostgreSQL
 * 19 has a type of its own for that, and pushes into it.
 */
#include "utils/jsonb.h"
#if PG_VERSION_NUM >= 190000
typedef JsonbInState IdemJsonbBuild;
#define idem_compat_jsonb_push(build, token, value) \
	pushJsonbValue((build), (token), (value))
#else
typedef struct IdemJsonbBuild
{
	JsonbParseState *state;
	JsonbValue *result;
} IdemJsonbBuild;

#define idem_compat_jsonb_push(build, token, value) \
	((build)->result = pushJsonbValue(&(build)->state, (token), (value)))
#endif

/*
 * The process of a virtual transaction, NULL if it is gone.  Needs storage/procarray.h,
 * and before 17 storage/sinvaladt.h.  17: backend ids became numbers of processes
 * (024c521117).
 */
#if PG_VERSION_NUM >= 170000
#define idem_compat_vxid_proc(vxid) ProcNumberGetProc((vxid).procNumber)
#else
#define idem_compat_vxid_proc(vxid) BackendIdGetProc((vxid).backendId)
#endif

#endif							/* IDEM_COMPAT_H */
