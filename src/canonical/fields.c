/*-------------------------------------------------------------------------
 *
 * fields.c
 *		Chosen fields of a document, as an object in canonical form.
 *
 * The fields {/a,/b/c} of a document are the object {"/a": ..., "/b/c": ...}.
 * So a value cannot be taken for the value of another field, nor two values for
 * one that is longer; the order of the fields says nothing; and another program
 * gets the same hash by building that object for its own library.
 *
 * Invariant: each field has a value of the document.  A field that is absent
 * is an error.  If it counted as null, all documents without the field would
 * have one hash, and all but the first would be taken for its repeats.
 *
 * LOCKING: none.
 *
 * MEMORY: an array of the fields, in the caller's context.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/canonical/fields.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/builtins.h"

#include "compat.h"
#include "canonical/fields.h"
#include "canonical/pointer.h"
#include "canonical/writer.h"
#include "shared/args.h"

#define ARGUMENT	"fields"

/* Error 22023 unless the text at place ord, counted from 1, is a JSON pointer. */
static void
check_pointer(int ord, const char *pointer, int len)
{
	if (len > IDEM_MAX_ID_BYTES)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("element %d of argument \"%s\" is too long", ord, ARGUMENT),
				 errdetail("It has %d bytes; at most %d are allowed.", len, IDEM_MAX_ID_BYTES)));
	if (!idem_pointer_is_valid(pointer, len))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("element %d of argument \"%s\" is not a JSON pointer: \"%s\"",
						ord, ARGUMENT, pnstrdup(pointer, len)),
				 errhint("A JSON pointer is empty, for the whole document, or like \"/items/0/price\"; \"~\" in a name is written \"~0\", and \"/\" is written \"~1\".")));
}

/* Fill in the member for a field. */
static void
get_field(IdemMember *member, const JsonbValue *document, int ord, text *field)
{
	const char *pointer = VARDATA_ANY(field);
	int			len = VARSIZE_ANY_EXHDR(field);

	check_pointer(ord, pointer, len);
	idem_canonical_set_key(member, pointer, len);
	member->value = *document;
	if (!idem_pointer_follow(pointer, len, &member->value))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("field \"%s\" is not in the document", pnstrdup(pointer, len)),
				 errhint("Documents without the field would all have the same hash. Give the field a value, null if need be, or leave it out of \"%s\".",
						 ARGUMENT)));
}

/* Error 22023 if two of the sorted members have the same key. */
static void
reject_repeats(const IdemMember *members, int n)
{
	for (int i = 1; i < n; i++)
	{
		if (members[i].keylen == members[i - 1].keylen &&
			memcmp(members[i].key, members[i - 1].key, members[i].keylen) == 0)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("field \"%s\" is given more than once",
							pnstrdup(members[i].key, members[i].keylen))));
	}
}

void
idem_canonical_write_fields(StringInfo out, const JsonbValue *document, ArrayType *fields)
{
	Datum	   *elems;
	bool	   *nulls;
	int			n;
	IdemMember *members;

	if (ARR_NDIM(fields) > 1)
		ereport(ERROR,
				(errcode(ERRCODE_ARRAY_SUBSCRIPT_ERROR),
				 errmsg("argument \"%s\" must be a one-dimensional array", ARGUMENT)));
	deconstruct_array(fields, TEXTOID, -1, false, TYPALIGN_INT, &elems, &nulls, &n);
	if (n == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"%s\" must not be empty", ARGUMENT),
				 errhint("All documents would have the same hash. Leave the argument out to hash the whole document.")));

	members = palloc(n * sizeof(IdemMember));
	for (int i = 0; i < n; i++)
	{
		CHECK_FOR_INTERRUPTS();
		if (nulls[i])
			idem_null_element(ARGUMENT, i + 1);
		get_field(&members[i], document, i + 1, DatumGetTextPP(elems[i]));
	}
	idem_canonical_sort(members, n);
	reject_repeats(members, n);
	idem_canonical_write_object(out, members, n);
}
