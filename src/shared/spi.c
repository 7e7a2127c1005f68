/*-------------------------------------------------------------------------
 *
 * spi.c
 *		Small helpers over SPI for tables of the extension that SQL writes.
 *
 * Statements run as the extension's owner.  So roles that may call our
 * functions, and nothing else, reach our tables through them.  Names in the
 * statements are qualified, but operators and types are not, and a caller's
 * search_path could put its own in front of pg_catalog's.  So the search_path
 * is replaced while we run as the owner.
 *
 * LOCKING: the locks of the statement, kept to the end of the transaction.
 * The subtransaction owns them (txn_owner.h), not a portal that calls our
 * function.  idem_spi_read and idem_spi_read_into give their locks back before
 * they return (borrow_begin).
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/shared/spi.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "executor/spi.h"
#include "executor/tstoreReceiver.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/resowner.h"
#include "utils/lsyscache.h"
#include "utils/snapmgr.h"

#include "shared/catalog.h"
#include "shared/guard.h"
#include "shared/spi.h"
#include "shared/txn_owner.h"

/* The tables and sequences that callers run statements on, as idem_spi_guard named them. */
static IdemRelRef *guarded;
static int	nguarded;

void
idem_spi_guard(IdemRelRef *tables, int n)
{
	guarded = tables;
	nguarded = n;
}

/*
 * Error 0A000 or 55000 if one of them is not as it was made.  This is asked
 * before a statement, whose own error would not say so, and when the statement
 * has locked its tables and the caller is going to read the values.
 */
static void
check_tables(void)
{
	for (int i = 0; i < nguarded; i++)
		idem_guard_ref(&guarded[i]);
}

char *
idem_spi_sql(const char *format)
{
	StringInfoData buf;

	initStringInfo(&buf);
	for (const char *p = format; *p; p++)
	{
		if (p[0] == '%' && (p[1] == 's' || p[1] == 't'))
		{
			Oid			schema = p[1] == 's' ? idem_data_schema_oid() : idem_schema_of_extension(IDEM_EXTENSION_NAME);

			appendStringInfoString(&buf, quote_identifier(idem_schema_name(schema, IDEM_EXTENSION_NAME)));
			p++;
		}
		else
			appendStringInfoChar(&buf, *p);
	}
	return buf.data;
}

Datum
idem_spi_value(HeapTuple tup, TupleDesc desc, int column)
{
	bool		isnull;
	Datum		value = SPI_getbinval(tup, desc, column, &isnull);

	if (isnull)
		elog(ERROR, "unexpected null in column %d", column);
	return value;
}

char *
idem_spi_text(HeapTuple tup, TupleDesc desc, int column)
{
	return SPI_getvalue(tup, desc, column);
}

/*
 * Gives locks back as soon as a reading function is done with them.
 *
 * A statement keeps the locks on the tables that it reads to the end of the
 * transaction.  The views of the extension must not keep such locks: a monitor
 * that leaves its transaction open would keep segments and logs of positions from
 * being emptied.  So a function that reads for a view runs its statements
 * under a resource owner of their own.  That owner gives its locks back
 * instead of handing them on.
 *
 * Invariant: after borrow_end, no value that was read points into a
 * table: values that are kept are detoasted before.  Locks that the
 * transaction holds by other owners stay, e.g. the locks for rows that it
 * wrote.  After an error no end is needed: the owner is a child of the owner
 * that was current, and is released with its parent.
 */

/* Locks taken from here on belong to a resource owner of their own. */
static ResourceOwner
borrow_begin(void)
{
	ResourceOwner saved = CurrentResourceOwner;

	CurrentResourceOwner = ResourceOwnerCreate(saved, "idempotency borrowed locks");
	return saved;
}

/*
 * Give the locks back.  The first and the last step report other resources
 * that are still open, as a commit does.  The step of the locks is that of an
 * abort, which does not hand them on.
 */
static void
borrow_end(ResourceOwner saved)
{
	ResourceOwner borrowed = CurrentResourceOwner;

	CurrentResourceOwner = saved;
	ResourceOwnerRelease(borrowed, RESOURCE_RELEASE_BEFORE_LOCKS, true, false);
	ResourceOwnerRelease(borrowed, RESOURCE_RELEASE_LOCKS, false, false);
	ResourceOwnerRelease(borrowed, RESOURCE_RELEASE_AFTER_LOCKS, true, false);
	ResourceOwnerDelete(borrowed);
}

/* The caller's identity, while we run as the owner. */
typedef struct Caller
{
	Oid			userid;
	int			sec_context;
	int			nestlevel;
	ResourceOwner owner;
	bool		borrows;		/* gives the locks of the statement back */
} Caller;

/*
 * Switch to the extension's owner, with a safe search_path.  A worker sorts what others have
 * written, so a limit on temporary files would stop it for ever.
 */
static void
become_owner(Caller *caller, bool borrows)
{
	caller->borrows = borrows;
	caller->owner = borrows ? borrow_begin() : idem_txn_owner_enter();
	check_tables();
	GetUserIdAndSecContext(&caller->userid, &caller->sec_context);
	SetUserIdAndSecContext(idem_extension_owner(),
						   caller->sec_context | SECURITY_LOCAL_USERID_CHANGE |
						   SECURITY_RESTRICTED_OPERATION | SECURITY_NOFORCE_RLS);
	caller->nestlevel = NewGUCNestLevel();
	(void) set_config_option("search_path", "pg_catalog, pg_temp",
							 PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
	if (MyBackendType == B_BG_WORKER)
		(void) set_config_option("temp_file_limit", "-1",
								 PGC_SUSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
}

/*
 * Switch back to the caller.  Raise an error if SPI returned one, or may have returned
 * values that C code misreads; else return the number of rows.
 */
static uint64
become_caller(const Caller *caller, const char *sql, int rc)
{
	AtEOXact_GUC(true, caller->nestlevel);
	SetUserIdAndSecContext(caller->userid, caller->sec_context);
	if (caller->borrows)
		borrow_end(caller->owner);
	else
		idem_txn_owner_leave(caller->owner);
	if (rc < 0)
		elog(ERROR, "could not run \"%s\": %s", sql, SPI_result_code_string(rc));
	check_tables();
	return SPI_processed;
}

/* Run a statement as the extension's owner; one that only reads gives its locks back. */
static uint64
run_as_owner(const char *sql, int nargs, Oid *types, Datum *values, const char *nulls,
			 bool reads)
{
	Caller		caller;
	int			rc;

	become_owner(&caller, reads);
	rc = SPI_execute_with_args(idem_spi_sql(sql), nargs, types, values, nulls, reads, 0);
	return become_caller(&caller, sql, rc);
}

/*
 * Make the statement's plan, unless the process has it.  The plan is made anew
 * if the extension was dropped and created again, in a schema with another
 * OID.
 */
static void
prepare_statement(IdemSpiStatement *statement, int nargs, Oid *types)
{
	SPIPlanPtr	plan;

	if (statement->plan != NULL && statement->schema == idem_data_schema_oid())
		return;
	if (statement->plan != NULL)
		SPI_freeplan(statement->plan);
	statement->plan = NULL;
	plan = SPI_prepare_cursor(idem_spi_sql(statement->sql), nargs, types,
							  CURSOR_OPT_GENERIC_PLAN);
	if (plan == NULL || SPI_keepplan(plan) != 0)
		elog(ERROR, "could not prepare \"%s\": %s", statement->sql,
			 SPI_result_code_string(SPI_result));
	statement->plan = plan;
	statement->schema = idem_data_schema_oid();
}

uint64
idem_spi_run_saved(IdemSpiStatement *statement, int nargs, Oid *types, Datum *values,
				   const char *nulls)
{
	Caller		caller;
	int			rc;

	become_owner(&caller, false);
	(void) set_config_option("enable_seqscan", "off",
							 PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
	prepare_statement(statement, nargs, types);
	rc = SPI_execute_plan(statement->plan, values, nulls, false, 0);
	return become_caller(&caller, statement->sql, rc);
}

uint64
idem_spi_run(const char *sql, int nargs, Oid *types, Datum *values, const char *nulls)
{
	return run_as_owner(sql, nargs, types, values, nulls, false);
}

uint64
idem_spi_run_latest(const char *sql, int nargs, Oid *types, Datum *values)
{
	Caller		caller;
	SPIPlanPtr	plan;
	int			rc;

	become_owner(&caller, false);
	plan = SPI_prepare(idem_spi_sql(sql), nargs, types);
	if (plan != NULL)
		rc = SPI_execute_snapshot(plan, values, NULL, GetLatestSnapshot(), InvalidSnapshot,
								  false, true, 0);
	else
		rc = SPI_result;
	return become_caller(&caller, sql, rc);
}

uint64
idem_spi_read(const char *sql, int nargs, Oid *types, Datum *values)
{
	return run_as_owner(sql, nargs, types, values, NULL, true);
}

void
idem_spi_read_into(const char *sql, ReturnSetInfo *rsinfo)
{
	SPIExecuteOptions options = {.read_only = true, .must_return_tuples = true};
	Caller		caller;
	int			rc;

	become_owner(&caller, true);

	/* The rows outlive their locks, so toasted values are fetched. */
	options.dest = CreateDestReceiver(DestTuplestore);
	SetTuplestoreDestReceiverParams(options.dest, rsinfo->setResult,
									rsinfo->econtext->ecxt_per_query_memory, true, NULL, NULL);
	rc = SPI_execute_extended(idem_spi_sql(sql), &options);
	(void) become_caller(&caller, sql, rc);
}
