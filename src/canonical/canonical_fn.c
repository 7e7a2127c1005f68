/*-------------------------------------------------------------------------
 *
 * canonical_fn.c
 *		SQL functions canonical_json and canonical_hash.
 *
 * The results depend on the arguments alone: on no setting, locale, time zone
 * or catalog.  The encoding of the database decides the bytes of
 * canonical_json, as of every text, but not the hash, which is that of UTF-8.
 *
 * LOCKING: none.
 *
 * MEMORY: the caller's context; a text has at most 1 GB, else error 54000.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/canonical/canonical_fn.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "fmgr.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"

#include "compat.h"
#include "canonical/writer.h"
#include "shared/args.h"
#include "shared/digest.h"

/*
 * JSON pointers (RFC 6901) into a jsonb document.
 *
 * Each part of a document has exactly one pointer: a name has one spelling,
 * since "~" and "/" must be escaped and nothing else can be, and a place in an
 * array has no leading zeros.  So pointers are equal if their texts are.
 */

/* Is the text a JSON pointer: empty, or "/name/0/with~1slash"? */
static bool
is_pointer(const char *pointer, int len)
{
	if (len > 0 && pointer[0] != '/')
		return false;
	for (int i = 0; i < len; i++)
	{
		if (pointer[i] == '~' &&
			(i + 1 == len || (pointer[i + 1] != '0' && pointer[i + 1] != '1')))
			return false;
	}
	return true;
}

/* Undo the escapes of a name, into a buffer of at least as many bytes. */
static int
unescape(const char *name, int len, char *buffer)
{
	int			n = 0;

	for (int i = 0; i < len; i++)
	{
		if (name[i] == '~')
			buffer[n++] = name[++i] == '0' ? '~' : '/';
		else
			buffer[n++] = name[i];
	}
	return n;
}

/* Read a place in an array; false if the name is none. */
static bool
read_index(const char *name, int len, uint32 *index)
{
	uint64		n = 0;

	if (len == 0 || (len > 1 && name[0] == '0'))
		return false;
	for (int i = 0; i < len; i++)
	{
		if (name[i] < '0' || name[i] > '9')
			return false;
		n = n * 10 + (name[i] - '0');
		if (n > JB_CMASK)
			return false;
	}
	*index = n;
	return true;
}

/* Go to a member or an element; false if there is none of the name. */
static bool
step(JsonbValue *value, const char *name, int len)
{
	JsonbContainer *container;
	JsonbValue *found = NULL;
	uint32		index;

	if (value->type != jbvBinary)
		return false;
	container = value->val.binary.data;
	if (JsonContainerIsObject(container))
		found = getKeyJsonValueFromContainer(container, name, len, NULL);
	else if (read_index(name, len, &index))
		found = getIthJsonbValueFromContainer(container, index);
	if (found == NULL)
		return false;
	*value = *found;
	pfree(found);
	return true;
}

/*
 * Replace the value, a document, by its part that a valid pointer leads to.  If
 * there is no such part, return false; the value is then undefined.
 */
static bool
follow_pointer(const char *pointer, int len, JsonbValue *value)
{
	const char *end = pointer + len;
	char	   *name = palloc(len + 1);
	bool		found = true;

	while (found && pointer < end)
	{
		const char *first = pointer + 1;	/* behind the slash */
		const char *next = memchr(first, '/', end - first);

		CHECK_FOR_INTERRUPTS();
		pointer = next != NULL ? next : end;
		found = step(value, name, unescape(first, pointer - first, name));
	}
	pfree(name);
	return found;
}

/*
 * Chosen fields of a document, as an object in canonical form.
 *
 * The fields {/a,/b/c} of a document are the object {"/a": ..., "/b/c": ...}.
 * So a value cannot be taken for the value of another field, nor two values for
 * one that is longer; the order of the fields says nothing; and another program
 * gets the same hash by building that object for its own library.
 *
 * Invariant: each field has a value of the document.  A field that is absent
 * is an error.  If it counted as null, all documents without the field would
 * have one hash, and all but the first would be taken for its repeats.
 */

#define ARGUMENT	"fields"

/* Fill in the member for a field. */
static void
get_field(IdemMember *member, const JsonbValue *document, int ord, text *field)
{
	const char *pointer = VARDATA_ANY(field);
	int			len = VARSIZE_ANY_EXHDR(field);

	idem_check_element(ARGUMENT, ord, len, 0, IDEM_MAX_ID_BYTES);
	if (!is_pointer(pointer, len))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("element %d of argument \"%s\" is not a JSON pointer: \"%s\"",
						ord, ARGUMENT, pnstrdup(pointer, len)),
				 errhint("A JSON pointer is empty, for the whole document, or like \"/items/0/price\"; \"~\" in a name is written \"~0\", and \"/\" is written \"~1\".")));
	idem_canonical_set_key(member, pointer, len);
	member->value = *document;
	if (!follow_pointer(pointer, len, &member->value))
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

/*
 * Append the object that has the fields' pointers as its keys, and their values
 * in the document.  Errors: 2202E for more than
 * one dimension; 22004 for an element that is null; 22023 if there is no field,
 * or for an element that is not a JSON pointer, is too long, is given twice or
 * leads to nothing.
 */
static void
write_fields(StringInfo out, const JsonbValue *document, FunctionCallInfo fcinfo)
{
	Datum	   *elems;
	bool	   *nulls;
	int			n = idem_arg_array(fcinfo, 1, ARGUMENT, TEXTOID, &elems, &nulls);
	IdemMember *members;

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

PG_FUNCTION_INFO_V1(idem_canonical_json_fn);
PG_FUNCTION_INFO_V1(idem_canonical_hash_fn);

/* Get the argument "document" as a value. */
static void
get_document(FunctionCallInfo fcinfo, JsonbValue *document)
{
	Jsonb	   *jsonb;

	idem_require_arg(fcinfo, 0, "document");
	jsonb = PG_GETARG_JSONB_P(0);
	if (!JB_ROOT_IS_SCALAR(jsonb))
		JsonbToJsonbValue(jsonb, document);
	else if (!JsonbExtractScalar(&jsonb->root, document))
		elog(ERROR, "a scalar document has no value");
}

Datum
idem_canonical_json_fn(PG_FUNCTION_ARGS)
{
	StringInfoData out;
	JsonbValue	document;
	int			utf8len;

	get_document(fcinfo, &document);
	initStringInfo(&out);
	appendStringInfoSpaces(&out, VARHDRSZ);
	idem_canonical_write(&out, &document);

	/* the text is an error where the hash is one */
	(void) idem_canonical_utf8(out.data + VARHDRSZ, out.len - VARHDRSZ, &utf8len);

	SET_VARSIZE(out.data, out.len);
	PG_RETURN_TEXT_P(out.data);
}

Datum
idem_canonical_hash_fn(PG_FUNCTION_ARGS)
{
	StringInfoData out;
	JsonbValue	document;
	const char *utf8;
	int			utf8len;
	bytea	   *result;

	get_document(fcinfo, &document);
	initStringInfo(&out);
	if (PG_ARGISNULL(1))
		idem_canonical_write(&out, &document);
	else
		write_fields(&out, &document, fcinfo);
	utf8 = idem_canonical_utf8(out.data, out.len, &utf8len);
	result = palloc(VARHDRSZ + PG_SHA256_DIGEST_LENGTH);
	SET_VARSIZE(result, VARHDRSZ + PG_SHA256_DIGEST_LENGTH);
	idem_sha256_begin();
	idem_sha256_add(utf8, utf8len);
	idem_sha256_end((uint8 *) VARDATA(result));
	PG_RETURN_BYTEA_P(result);
}
