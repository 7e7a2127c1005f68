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
 * they return (borrow.h).
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
#include "utils/lsyscache.h"
#include "utils/snapmgr.h"

#include "shared/borrow.h"
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
			Oid			schema = p[1] == 's' ? idem_data_schema_oid() : idem_api_schema_oid();

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

/* Run a statement with a snapshot taken now. */
static int
run_as_of_now(const char *sql, int nargs, Oid *types, Datum *values, const char *nulls)
{
	SPIPlanPtr	plan = SPI_prepare(sql, nargs, types);

	if (plan == NULL)
		return SPI_result;
	return SPI_execute_snapshot(plan, values, nulls, GetLatestSnapshot(), InvalidSnapshot,
								false, true, 0);
}

/* The caller's identity, while we run as the owner. */
typedef struct Caller
{
	Oid			userid;
	int			sec_context;
	int			nestlevel;
} Caller;

/*
 * Switch to the extension's owner, with a safe search_path.  A worker sorts what others have
 * written, so a limit on temporary files would stop it for ever.
 */
static void
become_owner(Caller *caller)
{
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

/* Switch back to the caller. */
static void
become_caller(const Caller *caller)
{
	AtEOXact_GUC(true, caller->nestlevel);
	SetUserIdAndSecContext(caller->userid, caller->sec_context);
}

/* Raise an error if SPI returned one, or may have returned values that C code misreads. */
static void
check_result(const char *sql, int rc)
{
	if (rc < 0)
		elog(ERROR, "could not run \"%s\": %s", sql, SPI_result_code_string(rc));
	check_tables();
}

/*
 * Run a statement as the extension's owner, with a snapshot taken now if
 * "latest".
 */
static uint64
run_as_owner(const char *sql, int nargs, Oid *types, Datum *values, const char *nulls,
			 bool latest)
{
	ResourceOwner save_owner = idem_txn_owner_enter();
	Caller		caller;
	int			rc;

	become_owner(&caller);
	rc = latest ? run_as_of_now(idem_spi_sql(sql), nargs, types, values, nulls) :
		SPI_execute_with_args(idem_spi_sql(sql), nargs, types, values, nulls, false, 0);
	become_caller(&caller);
	idem_txn_owner_leave(save_owner);
	check_result(sql, rc);
	return SPI_processed;
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
	ResourceOwner save_owner = idem_txn_owner_enter();
	Caller		caller;
	int			rc;

	become_owner(&caller);
	(void) set_config_option("enable_seqscan", "off",
							 PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
	prepare_statement(statement, nargs, types);
	rc = SPI_execute_plan(statement->plan, values, nulls, false, 0);
	become_caller(&caller);
	idem_txn_owner_leave(save_owner);
	check_result(statement->sql, rc);
	return SPI_processed;
}

uint64
idem_spi_run(const char *sql, int nargs, Oid *types, Datum *values, const char *nulls)
{
	return run_as_owner(sql, nargs, types, values, nulls, false);
}

uint64
idem_spi_run_latest(const char *sql, int nargs, Oid *types, Datum *values)
{
	return run_as_owner(sql, nargs, types, values, NULL, true);
}

uint64
idem_spi_read(const char *sql, int nargs, Oid *types, Datum *values)
{
	ResourceOwner saved = idem_borrow_begin();
	Caller		caller;
	int			rc;

	become_owner(&caller);
	rc = SPI_execute_with_args(idem_spi_sql(sql), nargs, types, values, NULL, true, 0);
	become_caller(&caller);
	idem_borrow_end(saved);
	check_result(sql, rc);
	return SPI_processed;
}

void
idem_spi_read_into(const char *sql, ReturnSetInfo *rsinfo)
{
	SPIExecuteOptions options = {.read_only = true, .must_return_tuples = true};
	ResourceOwner saved = idem_borrow_begin();
	Caller		caller;
	int			rc;

	/* The rows outlive their locks, so toasted values are fetched. */
	options.dest = CreateDestReceiver(DestTuplestore);
	SetTuplestoreDestReceiverParams(options.dest, rsinfo->setResult,
									rsinfo->econtext->ecxt_per_query_memory, true, NULL, NULL);
	become_owner(&caller);
	rc = SPI_execute_extended(idem_spi_sql(sql), &options);
	become_caller(&caller);
	idem_borrow_end(saved);
	check_result(sql, rc);
}
