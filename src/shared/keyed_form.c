/*-------------------------------------------------------------------------
 *
 * keyed_form.c
 *		Makes the rows of a keyed log, and takes them apart.
 *
 * LOCKING: none.
 *
 * MEMORY: the caller's context.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/shared/keyed_form.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_index.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/timestamp.h"

#include "shared/keyed_form.h"
#include "shared/table.h"

const IdemIndexForm idem_keyed_index = {
	.text = "(digest, kind, number DESC)", .n = 3,
	.columns = {IDEM_KEYED_DIGEST, IDEM_KEYED_KIND, IDEM_KEYED_NUMBER},
	.options = {0, 0, INDOPTION_DESC | INDOPTION_NULLS_FIRST},
	.compare = {F_UUID_CMP, F_BTCHARCMP, F_BTINT8CMP}
};

void
idem_keyed_form_begin(const IdemKeyedLog *log, IdemKeyedNewRow *row, int64 number,
					  const pg_uuid_t *digest, char kind)
{
	memset(row->nulls, true, sizeof(row->nulls));
	idem_keyed_form_set(row, IDEM_KEYED_NUMBER - 1, Int64GetDatum(number));
	idem_keyed_form_set(row, IDEM_KEYED_DIGEST - 1, UUIDPGetDatum(digest));
	idem_keyed_form_set(row, IDEM_KEYED_KIND - 1, CharGetDatum(kind));
	idem_keyed_form_set(row, log->at - 1, TimestampTzGetDatum(GetCurrentTimestamp()));
}

void
idem_keyed_form_set_pointer(IdemKeyedNewRow *row, int column, const void *value)
{
	if (value != NULL)
		idem_keyed_form_set(row, column, PointerGetDatum(value));
}

void
idem_keyed_form_set_text(IdemKeyedNewRow *row, int column, const char *s, int len)
{
	if (s != NULL)
		idem_keyed_form_set(row, column, PointerGetDatum(cstring_to_text_with_len(s, len)));
}

HeapTuple
idem_keyed_form_end(TupleDesc desc, IdemKeyedNewRow *row)
{
	return idem_table_form_row(desc, IDEM_KEYED_MAX_COLUMNS, row->values, row->nulls);
}

void
idem_keyed_form_take_apart(TupleDesc desc, HeapTuple tuple, int n, Datum *values, bool *nulls)
{
	if (desc->natts == n)
	{
		heap_deform_tuple(tuple, desc, values, nulls);
		return;
	}
	for (int i = 0; i < n; i++)
		values[i] = heap_getattr(tuple, i + 1, desc, &nulls[i]);
}

HeapTuple
idem_keyed_form_marker(const IdemKeyedLog *log, TupleDesc desc, int64 number)
{
	pg_uuid_t	digest = {{0}};
	IdemKeyedNewRow row;

	idem_keyed_form_begin(log, &row, number, &digest, IDEM_KEYED_MARKER);
	return idem_keyed_form_end(desc, &row);
}
