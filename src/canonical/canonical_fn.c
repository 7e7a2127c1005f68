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

#include "fmgr.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/jsonb.h"

#include "compat.h"
#include "canonical/fields.h"
#include "canonical/string.h"
#include "canonical/writer.h"
#include "shared/args.h"
#include "shared/digest.h"

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

/* SHA-256 as a value. */
static bytea *
sha256(const char *data, int len)
{
	bytea	   *result = palloc(VARHDRSZ + PG_SHA256_DIGEST_LENGTH);

	idem_sha256_begin();
	idem_sha256_add(data, len);
	idem_sha256_end((uint8 *) VARDATA(result));
	SET_VARSIZE(result, VARHDRSZ + PG_SHA256_DIGEST_LENGTH);
	return result;
}

Datum
idem_canonical_hash_fn(PG_FUNCTION_ARGS)
{
	StringInfoData out;
	JsonbValue	document;
	const char *utf8;
	int			utf8len;

	get_document(fcinfo, &document);
	initStringInfo(&out);
	if (PG_ARGISNULL(1))
		idem_canonical_write(&out, &document);
	else
		idem_canonical_write_fields(&out, &document, PG_GETARG_ARRAYTYPE_P(1));
	utf8 = idem_canonical_utf8(out.data, out.len, &utf8len);
	PG_RETURN_BYTEA_P(sha256(utf8, utf8len));
}
