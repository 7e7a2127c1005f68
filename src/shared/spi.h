/*-------------------------------------------------------------------------
 *
 * spi.h
 *		Small helpers over SPI for the relay's own tables.
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

/*
 * The statement with each %s replaced by the quoted schema of tables and sequences,
 * each %t by that of types and functions; however many.
 */
extern char *idem_spi_sql(const char *format);

/* A column that must not be null, and a text column that may be (NULL). */
extern Datum idem_spi_value(HeapTuple tup, TupleDesc desc, int column);
extern char *idem_spi_text(HeapTuple tup, TupleDesc desc, int column);

/*
 * Run one statement on the relay's tables as the extension's owner, whoever
 * calls.  nulls as in SPI_execute_with_args, or NULL.  Returns the number of
 * rows; results in SPI_tuptable.  Caller is connected to SPI.
 */
extern uint64 idem_spi_run(const char *sql, int nargs, Oid *types,
						   Datum *values, const char *nulls);

/* A statement that runs often: its text, with %s, and the plan, which the process keeps. */
typedef struct IdemSpiStatement
{
	const char *sql;
	SPIPlanPtr	plan;
	Oid			schema;			/* that the plan is for */
} IdemSpiStatement;

#define IDEM_SPI_STATEMENT(sql) {sql, NULL, InvalidOid}

/*
 * The same with a plan that is made once, and reads rows by an index wherever there is
 * one, however small the table was when the plan was made.
 */
extern uint64 idem_spi_run_saved(IdemSpiStatement *statement, int nargs, Oid *types,
								 Datum *values, const char *nulls);

/*
 * The same on the rows as of now, also where the transaction keeps an older
 * snapshot: for statements that follow what DDL has done, which has no snapshot.
 * No value is NULL.
 */
extern uint64 idem_spi_run_latest(const char *sql, int nargs, Oid *types, Datum *values);

/*
 * Run one query as the owner, as of the caller's snapshot, and give its locks back.
 * Nothing of the result is toasted: the query selects no column that may be.
 */
extern uint64 idem_spi_read(const char *sql, int nargs, Oid *types, Datum *values);

/* The same for any columns; the rows go to the set that a function returns. */
extern void idem_spi_read_into(const char *sql, ReturnSetInfo *rsinfo);

#endif							/* IDEM_SHARED_SPI_H */
