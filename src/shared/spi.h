/*-------------------------------------------------------------------------
 *
 * spi.h
 *		Small helpers over SPI for tables of the extension that SQL writes.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/shared/spi.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_SHARED_SPI_H
#define IDEM_SHARED_SPI_H

#include "postgres.h"

#include "access/htup.h"
#include "access/tupdesc.h"
#include "nodes/execnodes.h"
#include "executor/spi.h"

#include "shared/catalog.h"

/*
 * Name the tables and sequences that statements are about; at load, once.  Each statement
 * is an error, 0A000 or 55000, if one of them is not as it was made.
 */
extern void idem_spi_guard(IdemRelRef *tables, int n);

/*
 * The statement with each %s replaced by the quoted schema of tables and
 * sequences, and each %t by the quoted schema of types and functions.
 */
extern char *idem_spi_sql(const char *format);

/*
 * The value of a column that must not be null; and of a text column, NULL if
 * it is null.
 */
extern Datum idem_spi_value(HeapTuple tup, TupleDesc desc, int column);
extern char *idem_spi_text(HeapTuple tup, TupleDesc desc, int column);

/*
 * Run one statement as the extension's owner, whoever
 * calls.  nulls as in SPI_execute_with_args, or NULL.  Returns the number of
 * rows; the results are in SPI_tuptable.  The caller is connected to SPI.
 */
extern uint64 idem_spi_run(const char *sql, int nargs, Oid *types,
						   Datum *values, const char *nulls);

/*
 * A statement that runs often: its text, with %s, and its plan, which the
 * process keeps.
 */
typedef struct IdemSpiStatement
{
	const char *sql;
	SPIPlanPtr	plan;
	Oid			schema;			/* the schema that the plan is for */
} IdemSpiStatement;

#define IDEM_SPI_STATEMENT(sql) {sql, NULL, InvalidOid}

/*
 * Run a statement with a plan that is made once.  The plan reads rows by an
 * index where an index exists, however small the table was when the plan was
 * made.
 */
extern uint64 idem_spi_run_saved(IdemSpiStatement *statement, int nargs, Oid *types,
								 Datum *values, const char *nulls);

/*
 * Run a statement on the rows as of now, even if the transaction keeps an
 * older snapshot.  For statements that follow the changes of DDL, which has no
 * snapshot.  No value is NULL.
 */
extern uint64 idem_spi_run_latest(const char *sql, int nargs, Oid *types, Datum *values);

/*
 * Run one query as the owner, with the caller's snapshot, and give its locks
 * back.  No value of the result is toasted: the query selects no column that
 * may be.
 */
extern uint64 idem_spi_read(const char *sql, int nargs, Oid *types, Datum *values);

/*
 * Run one query like idem_spi_read, of any columns.  The rows go to the set
 * that a function returns.
 */
extern void idem_spi_read_into(const char *sql, ReturnSetInfo *rsinfo);

#endif							/* IDEM_SHARED_SPI_H */
