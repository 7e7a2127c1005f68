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

#include "common/cryptohash.h"
#include "common/sha2.h"
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

/* Bytes that are hashed between two checks for interrupts */
#define HASH_STEP	(1024 * 1024)

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

/* Error XX000: the server's hash routine failed. */
pg_noreturn static void
report_hash_failure(pg_cryptohash_ctx *hash)
{
	ereport(ERROR,
			(errcode(ERRCODE_INTERNAL_ERROR),
			 errmsg("could not compute SHA-256: %s",
					hash ? pg_cryptohash_error(hash) : "out of memory")));
}

/* Compute SHA-256.  Its state belongs to the resource owner if an error comes. */
static bytea *
sha256(const char *data, int len)
{
	bytea	   *result = palloc(VARHDRSZ + PG_SHA256_DIGEST_LENGTH);
	pg_cryptohash_ctx *hash = pg_cryptohash_create(PG_SHA256);

	if (hash == NULL || pg_cryptohash_init(hash) < 0)
		report_hash_failure(hash);
	for (int done = 0; done < len; done += HASH_STEP)
	{
		CHECK_FOR_INTERRUPTS();
		if (pg_cryptohash_update(hash, (const uint8 *) data + done, Min(HASH_STEP, len - done)) < 0)
			report_hash_failure(hash);
	}
	if (pg_cryptohash_final(hash, (uint8 *) VARDATA(result), PG_SHA256_DIGEST_LENGTH) < 0)
		report_hash_failure(hash);
	pg_cryptohash_free(hash);
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
