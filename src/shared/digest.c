/*-------------------------------------------------------------------------
 *
 * digest.c
 *		SHA-256: fast, and by pgcrypto for SQL to see and recompute.
 *
 * The server's interface to OpenSSL has the library look the algorithm up by its
 * name for each digest, which takes more than the digest of a short text.  Here a
 * process looks once, and keeps the algorithm and the state of the computation.
 * Where the library is built without OpenSSL's headers, or for a server without
 * OpenSSL, the server's interface is used.
 *
 * pgcrypto's function is called by the schema in pgcrypto's row of pg_extension.
 * So neither the search_path nor a function of the same name elsewhere matters.
 *
 * LOCKING: none.
 *
 * MEMORY: the state of the computation stays until the process ends.  Results of
 * pgcrypto and temporary data are in the caller's context.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/shared/digest.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#ifdef IDEM_OPENSSL
#include <openssl/evp.h>
#else
#include "common/cryptohash.h"
#endif

#include "catalog/pg_type.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "nodes/pg_list.h"
#include "nodes/value.h"
#include "parser/parse_func.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"

#include "compat.h"
#include "shared/catalog.h"
#include "shared/digest.h"

/* So many bytes are hashed between two looks for interrupts. */
#define STEP				(1024 * 1024)

pg_noreturn static void
report_failure(const char *why)
{
	ereport(ERROR,
			(errcode(ERRCODE_INTERNAL_ERROR), errmsg("could not compute SHA-256: %s", why)));
}

#ifdef IDEM_OPENSSL

static const EVP_MD *algorithm;
static EVP_MD_CTX *computation;

/* Look the algorithm up, and make the state. */
static void
prepare(void)
{
#if OPENSSL_VERSION_NUMBER >= 0x30000000L
	if (algorithm == NULL)
		algorithm = EVP_MD_fetch(NULL, "SHA256", NULL);
#else
	algorithm = EVP_sha256();
#endif
	if (computation == NULL)
		computation = EVP_MD_CTX_new();
	if (algorithm == NULL || computation == NULL)
		report_failure("the library has no such algorithm, or no memory");
}

void
idem_sha256_begin(void)
{
	if (algorithm == NULL || computation == NULL)
		prepare();
	if (!EVP_DigestInit_ex(computation, algorithm, NULL))
		report_failure("it cannot begin");
}

static void
add_part(const void *data, size_t len)
{
	if (!EVP_DigestUpdate(computation, data, len))
		report_failure("it cannot go on");
}

void
idem_sha256_end(uint8 digest[PG_SHA256_DIGEST_LENGTH])
{
	if (!EVP_DigestFinal_ex(computation, digest, NULL))
		report_failure("it cannot end");
}

#else

/* From begin to end.  After an error its memory has gone with the call's. */
static pg_cryptohash_ctx *computation;

pg_noreturn static void
report_server_failure(void)
{
	report_failure(computation ? pg_cryptohash_error(computation) : "out of memory");
}

void
idem_sha256_begin(void)
{
	computation = pg_cryptohash_create(PG_SHA256);
	if (computation == NULL || pg_cryptohash_init(computation) < 0)
		report_server_failure();
}

static void
add_part(const void *data, size_t len)
{
	if (pg_cryptohash_update(computation, data, len) < 0)
		report_server_failure();
}

void
idem_sha256_end(uint8 digest[PG_SHA256_DIGEST_LENGTH])
{
	if (pg_cryptohash_final(computation, digest, PG_SHA256_DIGEST_LENGTH) < 0)
		report_server_failure();
	pg_cryptohash_free(computation);
}

#endif

void
idem_sha256_add(const void *data, size_t len)
{
	const char *from = data;

	for (size_t done = 0; done < len; done += STEP)
	{
		if (done > 0)
			CHECK_FOR_INTERRUPTS();
		add_part(from + done, Min(STEP, len - done));
	}
}

bytea *
idem_digest_sha256(bytea *data)
{
	Oid			argtypes[] = {BYTEAOID, TEXTOID};
	char	   *schema = idem_schema_name(idem_schema_of_extension("pgcrypto"), "pgcrypto");
	List	   *name = list_make2(makeString(schema), makeString("digest"));
	Oid			digest = LookupFuncName(name, 2, argtypes, false);

	return DatumGetByteaPP(OidFunctionCall2(digest, PointerGetDatum(data),
											CStringGetTextDatum("sha256")));
}
