/*-------------------------------------------------------------------------
 *
 * arg.c
 *		The arguments that functions of claims, leases and requests share.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/claim/arg.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <limits.h>

#include "catalog/pg_enum.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/builtins.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"

#include "claim/arg.h"
#include "claim/consumer.h"
#include "shared/args.h"
#include "shared/document.h"
#include "shared/error.h"

/* Limits of what the log of leases keeps */
#define MAX_DAYS		366		/* of a duration or a pause */
#define MAX_WORK_BYTES	(1024 * 1024)

/* Longest wait, so that milliseconds since the start fit a long everywhere */
#define MAX_WAIT_MS		INT_MAX

const char *const idem_claim_labels[IDEM_CLAIM_RESULTS] = {
	"claimed", "duplicate", "busy", "expired", "dead"
};

const char *const idem_lease_labels[IDEM_LEASE_STATES] = {"leased", "waiting", "dead"};

IdemStr
idem_arg_str(text *t)
{
	return idem_str(VARDATA_ANY(t), VARSIZE_ANY_EXHDR(t));
}

IdemStr
idem_arg_event_id(FunctionCallInfo fcinfo, int argno)
{
	return idem_arg_str(idem_get_text_arg(fcinfo, argno, "event_id",
										  IDEM_MAX_ID_BYTES));
}

IdemStr
idem_arg_uuid_event_id(FunctionCallInfo fcinfo, int argno)
{
	IdemStr		s;

	idem_require_arg(fcinfo, argno, "event_id");
	s.data = DatumGetCString(DirectFunctionCall1(uuid_out,
												 PG_GETARG_DATUM(argno)));
	s.len = strlen(s.data);
	return s;
}

IdemStr
idem_arg_consumer(FunctionCallInfo fcinfo, int argno)
{
	IdemStr		s = idem_arg_any_consumer(fcinfo, argno);

	idem_consumer_check_access(s.data, s.len);
	return s;
}

IdemStr
idem_arg_any_consumer(FunctionCallInfo fcinfo, int argno)
{
	IdemStr		s = idem_arg_str(idem_get_text_arg(fcinfo, argno, "consumer",
												   IDEM_MAX_NAME_BYTES));

	if (s.data[0] == '@')
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("consumer \"%s\" is reserved", pnstrdup(s.data, s.len)),
				 errdetail("Names that start with \"@\" belong to the extension.")));
	return s;
}

long
idem_arg_wait(FunctionCallInfo fcinfo, int argno)
{
	int64		us;

	idem_require_arg(fcinfo, argno, "wait");
	us = idem_interval_us(PG_GETARG_INTERVAL_P(argno));
	if (us < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"wait\" must not be negative")));
	return us > MAX_WAIT_MS * INT64CONST(1000) ? MAX_WAIT_MS : (us + 999) / 1000;
}

int64
idem_arg_interval(FunctionCallInfo fcinfo, int argno, const char *name, bool may_be_zero,
				  int64 otherwise)
{
	int64		us;

	if (PG_ARGISNULL(argno))
		return otherwise;
	us = idem_interval_us(PG_GETARG_INTERVAL_P(argno));
	if (us < 0 || (us == 0 && !may_be_zero))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 may_be_zero ? errmsg("argument \"%s\" must not be negative", name) :
				 errmsg("argument \"%s\" must be positive", name)));
	if (us > MAX_DAYS * USECS_PER_DAY)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"%s\" must be at most %d days", name, MAX_DAYS)));
	return us;
}

text *
idem_arg_name(FunctionCallInfo fcinfo, int argno, const char *name)
{
	return PG_ARGISNULL(argno) ? NULL : idem_get_text_arg(fcinfo, argno, name, IDEM_MAX_NAME_BYTES);
}

text *
idem_arg_error(FunctionCallInfo fcinfo, int argno)
{
	text	   *error;
	int			len;

	if (PG_ARGISNULL(argno))
		return NULL;
	error = PG_GETARG_TEXT_PP(argno);
	len = VARSIZE_ANY_EXHDR(error);
	idem_check_length("error", len, MaxAllocSize);
	return cstring_to_text_with_len(VARDATA_ANY(error),
									pg_mbcliplen(VARDATA_ANY(error), len, IDEM_MAX_ERROR_BYTES));
}

struct varlena *
idem_arg_work(FunctionCallInfo fcinfo, int argno, const char *name)
{
	struct varlena *work;

	if (PG_ARGISNULL(argno))
		return NULL;
	work = PG_GETARG_VARLENA_P(argno);
	if (VARSIZE(work) > MAX_WORK_BYTES)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("argument \"%s\" is too long", name),
				 errdetail("It has %d bytes; at most %d are allowed.",
						   (int) VARSIZE(work), MAX_WORK_BYTES),
				 errhint("Keep the bulk in a table of yours, and its key here.")));
	idem_check_document(name, PointerGetDatum(work), MAX_WORK_BYTES);
	return work;
}

int64
idem_arg_token(FunctionCallInfo fcinfo, int argno)
{
	idem_require_arg(fcinfo, argno, "token");
	return PG_GETARG_INT64(argno);
}

Datum
idem_arg_label(Oid enumtype, const char *label)
{
	Oid			oid = GetSysCacheOid2(ENUMTYPOIDNAME, Anum_pg_enum_oid,
									  ObjectIdGetDatum(enumtype),
									  CStringGetDatum(label));

	if (!OidIsValid(oid))
		elog(ERROR, "enum type %u has no label \"%s\"", enumtype, label);
	return ObjectIdGetDatum(oid);
}

IdemClaimItem *
idem_arg_event_ids(FunctionCallInfo fcinfo, int argno, int *n)
{
	Datum	   *elems;
	IdemClaimItem *items;

	idem_require_array(fcinfo, argno, "event_ids");
	*n = idem_arg_array(fcinfo, argno, "event_ids", TEXTOID, &elems, NULL);
	items = palloc_extended(sizeof(IdemClaimItem) * Max(*n, 1), MCXT_ALLOC_HUGE);
	for (int i = 0; i < *n; i++)
	{
		IdemStr		id = idem_arg_str(DatumGetTextPP(elems[i]));

		CHECK_FOR_INTERRUPTS();
		idem_check_element("event_ids", i + 1, id.len, 1, IDEM_MAX_ID_BYTES);
		items[i].id = id;
	}
	return items;
}
