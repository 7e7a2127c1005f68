/*-------------------------------------------------------------------------
 *
 * response.c
 *	The stored answer of a request.
 *
 * The dedup store keeps a jsonb with a completion, so that is what an answer becomes: an
 * object with the members "status", "headers", "body", "fingerprint" and "retention"; body
 * and fingerprint are in base64.  What is absent has no member.  The retention is that of
 * the completion: whatever becomes of the consumer, the store goes by it.  A dump shows it
 * as any result, and packing, merging and expiry need to know nothing of requests.
 *
 * Headers are an object whose values are strings, or an array of pairs where order or
 * repeats count.  Names and values are checked, since they will be written into an HTTP
 * answer as they are: a line break in a value would begin another header.
 *
 * MEMORY: the caller's context.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/request/response.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <limits.h>

#include "common/base64.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/memutils.h"
#include "utils/numeric.h"

#include "compat.h"
#include "request/response.h"
#include "shared/args.h"
#include "shared/document.h"

#define MIN_STATUS	100
#define MAX_STATUS	599

/* A string of jsonb has less than 256 MB, and base64 is longer by a third. */
#define MAX_RESPONSE_SIZE	(128 * 1024 * 1024)

static int	max_response_size = 1024 * 1024;

/* Headers */

pg_noreturn static void
report_headers(const char *detail)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("argument \"headers\" is not valid"),
			 errdetail("%s", detail),
			 errhint("Give an object like {\"Content-Type\": \"text/plain\"}, or an array of pairs [name, value].")));
}

/* Characters of a header's name: RFC 9110, token */
static bool
is_token_char(char c)
{
	return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
		(c != '\0' && strchr("!#$%&'*+-.^_`|~", c) != NULL);
}

static void
check_name(const JsonbValue *name)
{
	if (name->type != jbvString)
		report_headers("The name of a header is not a string.");
	if (name->val.string.len == 0)
		report_headers("The name of a header is empty.");
	for (int i = 0; i < name->val.string.len; i++)
	{
		if (!is_token_char(name->val.string.val[i]))
			report_headers("The name of a header has a character that HTTP does not allow there.");
	}
}

/* A tab is the only control character that a value may have. */
static void
check_value(const JsonbValue *value)
{
	if (value->type != jbvString)
		report_headers("The value of a header is not a string.");
	for (int i = 0; i < value->val.string.len; i++)
	{
		unsigned char c = value->val.string.val[i];

		if ((c < ' ' && c != '\t') || c == 0x7f)
			report_headers("The value of a header has a control character, such as a line break.");
	}
}

static void
check_object(JsonbContainer *object)
{
	JsonbIterator *it = JsonbIteratorInit(object);
	JsonbIteratorToken token;
	JsonbValue	value;

	while ((token = JsonbIteratorNext(&it, &value, true)) != WJB_DONE)
	{
		if (token == WJB_KEY)
			check_name(&value);
		else if (token == WJB_VALUE)
			check_value(&value);
	}
}

/* Check one [name, value]. */
static void
check_pair(const JsonbValue *pair)
{
	JsonbContainer *container = pair->type == jbvBinary ? pair->val.binary.data : NULL;

	if (container == NULL || !JsonContainerIsArray(container) || JsonContainerSize(container) != 2)
		report_headers("An element of the array is not a pair of name and value.");
	check_name(getIthJsonbValueFromContainer(container, 0));
	check_value(getIthJsonbValueFromContainer(container, 1));
}

static void
check_pairs(JsonbContainer *array)
{
	JsonbIterator *it = JsonbIteratorInit(array);
	JsonbIteratorToken token;
	JsonbValue	value;

	while ((token = JsonbIteratorNext(&it, &value, true)) != WJB_DONE)
	{
		if (token == WJB_ELEM)
			check_pair(&value);
	}
}

void
idem_response_check(const IdemResponse *response)
{
	int64		size = 0;

	if (response->status < MIN_STATUS || response->status > MAX_STATUS)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"status\" must be between %d and %d", MIN_STATUS, MAX_STATUS),
				 errdetail("It is %d.", response->status)));
	if (response->headers != NULL)
		size += VARSIZE(response->headers);
	if (response->body != NULL)
		size += VARSIZE_ANY_EXHDR(response->body);
	if (size > max_response_size)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("the response is too long"),
				 errdetail("Headers and body have %lld bytes; at most %d are allowed.",
						   (long long) size, max_response_size),
				 errhint("Store a short answer that says where the long one is, or raise idempotency.max_response_size.")));
	if (response->headers == NULL)
		return;
	idem_check_document("headers", JsonbPGetDatum(response->headers), max_response_size);
	if (JB_ROOT_IS_OBJECT(response->headers))
		check_object(&response->headers->root);
	else if (JB_ROOT_IS_ARRAY(response->headers) && !JB_ROOT_IS_SCALAR(response->headers))
		check_pairs(&response->headers->root);
	else
		report_headers("It is neither an object nor an array.");
}

/* Forming and parsing */

static void
add(IdemJsonbBuild *out, const char *name, JsonbValue *value)
{
	JsonbValue	key = {.type = jbvString,.val.string = {strlen(name), unconstify(char *, name)}};

	(void) idem_compat_jsonb_push(out, WJB_KEY, &key);
	(void) idem_compat_jsonb_push(out, WJB_VALUE, value);
}

/* Add a number, unless it is 0. */
static void
add_number(IdemJsonbBuild *out, const char *name, int64 number)
{
	JsonbValue	value = {.type = jbvNumeric};

	if (number == 0)
		return;
	value.val.numeric = int64_to_numeric(number);
	add(out, name, &value);
}

/* Add bytes, unless there are none. */
static void
add_bytes(IdemJsonbBuild *out, const char *name, const bytea *bytes)
{
	JsonbValue	value = {.type = jbvString};
	int			len;
	int			room;

	if (bytes == NULL)
		return;
	len = VARSIZE_ANY_EXHDR(bytes);
	room = pg_b64_enc_len(len);
	value.val.string.val = palloc_extended(room, MCXT_ALLOC_HUGE);
	value.val.string.len = pg_b64_encode((const void *) VARDATA_ANY(bytes), len, value.val.string.val, room);
	add(out, name, &value);
}

/* Add a document, unless there is none. */
static void
add_document(IdemJsonbBuild *out, const char *name, Jsonb *document)
{
	JsonbValue	value = {.type = jbvBinary};

	if (document == NULL)
		return;
	value.val.binary.data = &document->root;
	value.val.binary.len = VARSIZE_ANY_EXHDR(document);
	add(out, name, &value);
}

/* Not by way of a text: to parse one of 2 kB was a quarter of a request's work. */
Datum
idem_response_form(const IdemResponse *response)
{
	IdemJsonbBuild out = {0};

	(void) idem_compat_jsonb_push(&out, WJB_BEGIN_OBJECT, NULL);
	add_number(&out, "status", response->status);
	add_document(&out, "headers", response->headers);
	add_bytes(&out, "body", response->body);
	add_bytes(&out, "fingerprint", response->fingerprint);
	add_number(&out, "retention", response->retention);
	(void) idem_compat_jsonb_push(&out, WJB_END_OBJECT, NULL);
	return JsonbPGetDatum(JsonbValueToJsonb(out.result));
}

pg_noreturn static void
report_malformed(const char *name)
{
	ereport(ERROR,
			(errcode(ERRCODE_DATA_CORRUPTED),
			 errmsg("the stored response of a request has a malformed \"%s\"", name),
			 errdetail("It stands in the column \"result\" of a table \"%s.store_segment_...\" or \"%s.store_slot_...\".",
					   IDEM_DATA_SCHEMA_NAME, IDEM_DATA_SCHEMA_NAME),
			 errhint("Find out whether the request was executed. The row of its key, or the result alone, can be restored from a backup; without the row, the request counts as never made.")));
}

/* A member, palloc'd, of that type; NULL if it is absent. */
static JsonbValue *
get_member(Jsonb *result, const char *name, enum jbvType type)
{
	JsonbValue *value = getKeyJsonValueFromContainer(&result->root, name, strlen(name), NULL);

	if (value != NULL && value->type != type)
		report_malformed(name);
	return value;
}

static bytea *
get_bytes(Jsonb *result, const char *name)
{
	JsonbValue *value = get_member(result, name, jbvString);
	bytea	   *bytes;
	int			room;
	int			len;

	if (value == NULL)
		return NULL;
	room = pg_b64_dec_len(value->val.string.len);
	bytes = palloc_extended(VARHDRSZ + room, MCXT_ALLOC_HUGE);
	len = pg_b64_decode(value->val.string.val, value->val.string.len, (void *) VARDATA(bytes), room);
	if (len < 0)
		report_malformed(name);
	SET_VARSIZE(bytes, VARHDRSZ + len);
	return bytes;
}

/* A member that is a number; 0 if it is absent. */
static int64
get_number(Jsonb *result, const char *name)
{
	JsonbValue *value = get_member(result, name, jbvNumeric);

	return value == NULL ? 0 :
		DatumGetInt64(DirectFunctionCall1(numeric_int8, NumericGetDatum(value->val.numeric)));
}

void
idem_response_parse(Datum datum, IdemResponse *response)
{
	Jsonb	   *result = DatumGetJsonbP(datum);
	JsonbValue *value;

	if (!JB_ROOT_IS_OBJECT(result))
		report_malformed("object");
	response->status = (int) get_number(result, "status");
	value = getKeyJsonValueFromContainer(&result->root, "headers", strlen("headers"), NULL);
	response->headers = value == NULL ? NULL : JsonbValueToJsonb(value);
	response->body = get_bytes(result, "body");
	response->fingerprint = get_bytes(result, "fingerprint");
	response->retention = get_number(result, "retention");
}

void
idem_response_init(void)
{
	idem_define_int("idempotency.max_response_size",
					"Largest response that complete_request stores: headers and body.",
					NULL,
					&max_response_size, 1024, MAX_RESPONSE_SIZE, PGC_SUSET, GUC_UNIT_BYTE);
}
