/*-------------------------------------------------------------------------
 *
 * keyed_form.h
 *		Makes the rows of a keyed log, and takes them apart.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/shared/keyed_form.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_KEYED_FORM_H
#define IDEM_KEYED_FORM_H

#include "postgres.h"

#include "access/htup.h"
#include "access/tupdesc.h"
#include "utils/uuid.h"

#include "shared/keyed.h"

/* The most columns that a log's tables may have. */
#define IDEM_KEYED_MAX_COLUMNS	24

/* The index of each table: (digest, kind, number DESC). */
extern const IdemIndexForm idem_keyed_index;

/* A row to be written; columns, from 0, are NULL until they are set. */
typedef struct IdemKeyedNewRow
{
	Datum		values[IDEM_KEYED_MAX_COLUMNS];
	bool		nulls[IDEM_KEYED_MAX_COLUMNS];
} IdemKeyedNewRow;

/* Begin a row that is written now. */
extern void idem_keyed_form_begin(const IdemKeyedLog *log, IdemKeyedNewRow *row, int64 number,
								  const pg_uuid_t *digest, char kind);

static inline void
idem_keyed_form_set(IdemKeyedNewRow *row, int column, Datum value)
{
	row->values[column] = value;
	row->nulls[column] = false;
}

/* Set a column, unless the value is NULL; the same of a string of some length. */
extern void idem_keyed_form_set_pointer(IdemKeyedNewRow *row, int column, const void *value);
extern void idem_keyed_form_set_text(IdemKeyedNewRow *row, int column, const char *s, int len);

/* The row as a tuple.  Columns that somebody added to the table are NULL. */
extern HeapTuple idem_keyed_form_end(TupleDesc desc, IdemKeyedNewRow *row);

/*
 * Take a row apart: its first n columns, in one pass over the row.  Columns that somebody
 * added to the table are left out.
 */
extern void idem_keyed_form_take_apart(TupleDesc desc, HeapTuple tuple, int n, Datum *values, bool *nulls);

/* A marker: the callback IdemKeyedLog.form_marker of a log without columns of its own for it. */
extern HeapTuple idem_keyed_form_marker(const IdemKeyedLog *log, TupleDesc desc, int64 number);

#endif							/* IDEM_KEYED_FORM_H */
