/*-------------------------------------------------------------------------
 *
 * outbox_fn.c
 *		SQL functions that enqueue events: arguments in, rows to the writer.
 *
 * All values are checked before the first write.  So a call that fails has
 * changed nothing, even if its error is caught and the transaction goes on.
 * Event ids that the caller gives are claimed under one of the extension's own
 * consumers.  Dedup ids say which events are repeats, and are not enqueued;
 * they are decided first.  Claims and the outbox meet in this file only;
 * neither knows the other.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/outbox/outbox_fn.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/detoast.h"
#include "catalog/pg_type.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/proc.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"
#include "utils/uuid.h"

#include "compat.h"
#include "claim/claim.h"
#include "claim/dedup.h"
#include "outbox/outbox.h"
#include "shared/args.h"
#include "shared/clock.h"
#include "shared/document.h"
#include "shared/error.h"
#include "shared/fault.h"

/*
 * The consumer that claims event ids, so that they are unique.  SQL cannot
 * name it.
 */
static const IdemStr outbox_consumer = {"@outbox", sizeof("@outbox") - 1};

#define UUID_TEXT_LENGTH	36

/* The window of dedup ids if none is given */
#define DEFAULT_DEDUP_WINDOW	(5 * USECS_PER_MINUTE)

/*
 * How long to wait for another transaction's event id if lock_timeout is not
 * set.
 */
#define DEFAULT_WAIT_MS		10000

PG_FUNCTION_INFO_V1(idem_outbox_enqueue_fn);
PG_FUNCTION_INFO_V1(idem_outbox_enqueue_bytes_fn);
PG_FUNCTION_INFO_V1(idem_outbox_enqueue_many_fn);

/*
 * Error 54000 if a payload or headers are too large.  The limit counts the
 * bytes before compression.
 */
static void
check_size(Datum value, const char *name)
{
	Size		size = toast_raw_datum_size(value) - VARHDRSZ;

	if (size > idem_max_payload_size)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("argument \"%s\" is too large", name),
				 errdetail("It has %zu bytes; idempotency.max_payload_size is %d.",
						   size, idem_max_payload_size),
				 errhint("Store the data elsewhere and enqueue a reference, or raise the setting.")));
}

/* The same for JSON, whose text is limited as well. */
static void
check_json(Datum value, const char *name)
{
	check_size(value, name);
	idem_check_document(name, value, idem_max_payload_size);
}

/* Error unless headers are a JSON object within the size limit. */
static void
check_headers(Datum value)
{
	check_json(value, "headers");
	if (!JB_ROOT_IS_OBJECT(DatumGetJsonbP(value)))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"headers\" must be a JSON object")));
}

/*
 * Error unless a content type is one printable line: at many sinks it becomes
 * a header of the message.
 */
static void
check_content_type(const text *value)
{
	const char *p = VARDATA_ANY(value);
	const char *end = p + VARSIZE_ANY_EXHDR(value);

	for (; p < end; p++)
	{
		if (*p < 0x20 || *p > 0x7e)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("argument \"content_type\" must consist of printable ASCII characters")));
	}
}

/*
 * A text, which is not null; error if it is empty or longer than names may be.
 */
static Datum
checked_name(Datum value, const char *name)
{
	text	   *txt = DatumGetTextPP(value);

	idem_check_length(name, VARSIZE_ANY_EXHDR(txt), IDEM_MAX_NAME_BYTES);
	return PointerGetDatum(txt);
}

/*
 * Unique ids
 */

/* The canonical text of an event id, zero-terminated, as ids are claimed. */
static IdemClaimItem
item_of(const pg_uuid_t *event_id)
{
	IdemClaimItem item = {
		.id = {DatumGetCString(DirectFunctionCall1(uuid_out, UUIDPGetDatum(event_id))), UUID_TEXT_LENGTH}
	};

	return item;
}

/* Error 23505: the event id was enqueued before. */
pg_noreturn static void
report_duplicate(const char *id)
{
	ereport(ERROR,
			(errcode(ERRCODE_UNIQUE_VIOLATION),
			 errmsg("event id \"%s\" was enqueued before", id),
			 errhint("If this is a repeat, the event is on its way or was sent: do not enqueue it under another id. Only another event needs an id of its own.")));
}

/*
 * Wait for the transaction that is enqueueing the id: its end decides whether
 * the id is free.  A unique index would wait likewise, for lock_timeout at
 * most.  *deadline is set by the first wait of a call.
 */
static void
wait_for_id(IdemStr id, IdemClock *deadline)
{
	long		wait_ms;
	IdemClaimResult result;

	if (*deadline == 0)
		*deadline = idem_clock_plus_ms(idem_clock(),
									   LockTimeout > 0 ? LockTimeout : DEFAULT_WAIT_MS);
	wait_ms = idem_clock_ms_until(*deadline);
	result = idem_claim_event(id, outbox_consumer, wait_ms, NULL);
	if (result == IDEM_CLAIM_CLAIMED)
		return;
	if (result == IDEM_CLAIM_DUPLICATE)
		report_duplicate(id.data);
	ereport(ERROR,
			(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
			 errmsg("event id \"%s\" is being enqueued by another transaction", id.data),
			 errhint("Try again after that transaction has ended; lock_timeout sets how long to wait for it.")));
}

/* Claim and complete n event ids; error 23505 if one was enqueued before. */
static void
claim_ids(IdemClaimItem *items, int n)
{
	IdemClock	deadline = 0;

	idem_claim_events(items, n, outbox_consumer);
	for (int i = 0; i < n; i++)
	{
		if (items[i].result == IDEM_CLAIM_DUPLICATE)
			report_duplicate(items[i].id.data);
	}
	for (int i = 0; i < n; i++)
	{
		if (items[i].result != IDEM_CLAIM_CLAIMED)
			wait_for_id(items[i].id, &deadline);
	}
	IDEM_FAULT_POINT("outbox-ids-claimed");
	idem_complete_events(items, n, outbox_consumer,
						 NULL, NULL);
}

/*
 * Dedup ids
 */

/* Get the window of dedup ids in microseconds.  Error 22023 unless it is positive. */
static int64
get_dedup_window(FunctionCallInfo fcinfo, int argno)
{
	int64		length;

	if (PG_ARGISNULL(argno))
		return DEFAULT_DEDUP_WINDOW;
	length = idem_interval_us(PG_GETARG_INTERVAL_P(argno));
	if (length <= 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"dedup_window\" must be positive"),
				 errhint("Leave dedup_id out for an event that is enqueued in any case; a window of 100 years has no end.")));
	return length >= IDEM_FOR_EVER_US ? IDEM_DEDUP_FOR_EVER : length;
}

/* Decide about dedup ids of one aggregate type. */
static void
decide_dedup(IdemDedupItem *items, int n, Datum aggregate_type, int64 window)
{
	text	   *scope = DatumGetTextPP(aggregate_type);

	idem_dedup(items, n, VARDATA_ANY(scope), VARSIZE_ANY_EXHDR(scope), window);
}

/*
 * One event
 */

/*
 * Refuse the two arguments of later features, from argno on.  These arguments
 * come last in all three functions; in outbox_enqueue_many they have plural
 * names.
 */
static void
reject_later_args(FunctionCallInfo fcinfo, int argno, bool many)
{
	idem_reject_arg(fcinfo, argno, many ? "deliver_ats" : "deliver_at",
					"Keep the event in a table of your own, and enqueue it when it is due.");
	idem_reject_arg(fcinfo, argno + 1, many ? "expires_ats" : "expires_at",
					"Put the time into the headers, and let the receiver discard an event that is too old.");
}

/*
 * Is the dedup id a repeat?  If so, the row gets the id of the first event.
 * dedup_id may be NULL: no repeat.
 */
static bool
is_repeat(IdemOutboxRow *row, const text *dedup_id, int64 window)
{
	IdemDedupItem item;

	if (dedup_id == NULL)
		return false;
	item.id = idem_str(VARDATA_ANY(dedup_id), VARSIZE_ANY_EXHDR(dedup_id));
	item.value = row->event_id;
	decide_dedup(&item, 1, row->aggregate_type, window);
	row->event_id = item.value;
	return item.is_repeat;
}

/*
 * Enqueue one event.  The first four arguments, and those from the headers on,
 * are the same in both functions for one event.
 */
static Datum
enqueue_one(FunctionCallInfo fcinfo, IdemOutboxRow *row, int headers_argno)
{
	int			event_id_argno = headers_argno + 1;
	int			dedup_argno = headers_argno + 2;
	text	   *dedup_id = NULL;
	int64		window;
	pg_uuid_t  *result;

	row->aggregate_type = PointerGetDatum(idem_get_text_arg(fcinfo, 0, "aggregate_type",
															IDEM_MAX_NAME_BYTES));
	row->aggregate_id = PointerGetDatum(idem_get_text_arg(fcinfo, 1, "aggregate_id",
														  IDEM_MAX_NAME_BYTES));
	row->event_type = PointerGetDatum(idem_get_text_arg(fcinfo, 2, "event_type",
														IDEM_MAX_NAME_BYTES));
	idem_require_arg(fcinfo, 3, "payload");
	row->payload = PG_GETARG_DATUM(3);
	if (row->is_json)
		check_json(row->payload, "payload");
	else
		check_size(row->payload, "payload");
	row->has_headers = !PG_ARGISNULL(headers_argno);
	if (row->has_headers)
	{
		row->headers = PG_GETARG_DATUM(headers_argno);
		check_headers(row->headers);
	}
	if (!PG_ARGISNULL(dedup_argno))
		dedup_id = idem_get_text_arg(fcinfo, dedup_argno, "dedup_id", IDEM_MAX_ID_BYTES);
	window = get_dedup_window(fcinfo, dedup_argno + 1);
	reject_later_args(fcinfo, dedup_argno + 2, false);

	if (PG_ARGISNULL(event_id_argno))
		idem_uuid7_generate(&row->event_id);
	else
		row->event_id = *PG_GETARG_UUID_P(event_id_argno);
	if (!is_repeat(row, dedup_id, window))
	{
		if (!PG_ARGISNULL(event_id_argno))
		{
			IdemClaimItem item = item_of(&row->event_id);

			claim_ids(&item, 1);
		}
		idem_outbox_insert(row, 1);
	}

	result = palloc(sizeof(pg_uuid_t));
	*result = row->event_id;
	PG_RETURN_UUID_P(result);
}

Datum
idem_outbox_enqueue_fn(PG_FUNCTION_ARGS)
{
	IdemOutboxRow row = {.is_json = true};

	idem_prevent_read_only("outbox_enqueue()");
	idem_prevent_running_ahead("outbox_enqueue()", false);
	return enqueue_one(fcinfo, &row, 4);
}

Datum
idem_outbox_enqueue_bytes_fn(PG_FUNCTION_ARGS)
{
	IdemOutboxRow row = {.is_json = false};
	text	   *content_type;

	idem_prevent_read_only("outbox_enqueue_bytes()");
	idem_prevent_running_ahead("outbox_enqueue_bytes()", false);
	content_type = idem_get_text_arg(fcinfo, 4, "content_type", IDEM_MAX_NAME_BYTES);
	check_content_type(content_type);
	row.has_content_type = true;
	row.content_type = PointerGetDatum(content_type);
	return enqueue_one(fcinfo, &row, 5);
}

/*
 * Many events
 */

/*
 * Events of one call, at most.  The rows of so many are below MaxAllocSize, and
 * arrays of more could hardly be sent.
 */
#define MAX_EVENTS	10000000

StaticAssertDecl(MAX_EVENTS <= MaxAllocSize / sizeof(IdemOutboxRow), "the rows are one allocation");
StaticAssertDecl(MAX_EVENTS <= MaxAllocSize / sizeof(IdemDedupItem), "and so are the dedup ids");

/* The last arguments of outbox_enqueue_many; the features of the last two are not built */
#define ARG_DEDUP_IDS	6
#define ARG_DEDUP_WINDOW	7
#define ARG_DELIVER_ATS	8
#define ARG_EXPIRES_ATS	9

/* The elements of an array argument. */
typedef struct Elements
{
	const char *name;
	Datum	   *values;
	bool	   *nulls;
	int			n;
} Elements;

/*
 * Get an array argument; error if it has more than one dimension, or too many
 * elements.
 */
static ArrayType *
get_flat_array(FunctionCallInfo fcinfo, int argno, const char *name)
{
	ArrayType  *array = PG_GETARG_ARRAYTYPE_P(argno);

	if (ARR_NDIM(array) > 1)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"%s\" must be a one-dimensional array", name)));
	if (ArrayGetNItems(ARR_NDIM(array), ARR_DIMS(array)) > MAX_EVENTS)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("argument \"%s\" has too many elements", name),
				 errdetail("It has %d elements; at most %d are allowed.",
						   ArrayGetNItems(ARR_NDIM(array), ARR_DIMS(array)), MAX_EVENTS),
				 errhint("Enqueue the events by several calls in the same transaction.")));
	return array;
}

/* Get the elements of an array argument. */
static void
get_elements(FunctionCallInfo fcinfo, int argno, const char *name,
			 Oid type, int typlen, char typalign, Elements *elements)
{
	elements->name = name;
	deconstruct_array(get_flat_array(fcinfo, argno, name), type, typlen, false, typalign,
					  &elements->values, &elements->nulls, &elements->n);
}

/* The i-th element; error if it is null. */
static Datum
required_element(const Elements *elements, int i)
{
	if (elements->nulls[i])
		idem_null_element(elements->name, i + 1);
	return elements->values[i];
}

/*
 * Get the elements of an array that may be left out (n = 0); otherwise it must
 * be as long as "like".
 */
static void
get_optional(FunctionCallInfo fcinfo, int argno, const char *name, Oid type,
			 int typlen, char typalign, const Elements *like, Elements *elements)
{
	memset(elements, 0, sizeof(Elements));
	if (PG_ARGISNULL(argno))
		return;
	get_elements(fcinfo, argno, name, type, typlen, typalign, elements);
	idem_check_same_length(like->name, like->n, name, elements->n);
}

/* Check the shape of an array of a later feature, as a later version will. */
static void
check_later_array(FunctionCallInfo fcinfo, int argno, const char *name, const Elements *like)
{
	ArrayType  *array;

	if (PG_ARGISNULL(argno))
		return;
	array = get_flat_array(fcinfo, argno, name);
	idem_check_same_length(like->name, like->n, name, ArrayGetNItems(ARR_NDIM(array), ARR_DIMS(array)));
}

/* The argument arrays of outbox_enqueue_many. */
typedef struct Arrays
{
	Datum		aggregate_type;
	Elements	aggregate_ids;
	Elements	event_types;
	Elements	payloads;
	Elements	headers;		/* n = 0: not given */
	Elements	event_ids;		/* n = 0: not given */
	Elements	dedup_ids;		/* n = 0: not given */
	int64		window;			/* of the dedup ids */
} Arrays;

/* Check the arguments of outbox_enqueue_many and get their elements. */
static void
get_arrays(FunctionCallInfo fcinfo, Arrays *a)
{
	a->aggregate_type = PointerGetDatum(idem_get_text_arg(fcinfo, 0, "aggregate_type",
														  IDEM_MAX_NAME_BYTES));
	idem_require_array(fcinfo, 1, "aggregate_ids");
	idem_require_array(fcinfo, 2, "event_types");
	idem_require_array(fcinfo, 3, "payloads");
	get_elements(fcinfo, 1, "aggregate_ids", TEXTOID, -1, TYPALIGN_INT, &a->aggregate_ids);
	get_elements(fcinfo, 2, "event_types", TEXTOID, -1, TYPALIGN_INT, &a->event_types);
	get_elements(fcinfo, 3, "payloads", JSONBOID, -1, TYPALIGN_INT, &a->payloads);
	idem_check_same_length("aggregate_ids", a->aggregate_ids.n, "event_types", a->event_types.n);
	idem_check_same_length("aggregate_ids", a->aggregate_ids.n, "payloads", a->payloads.n);
	get_optional(fcinfo, 4, "headers", JSONBOID, -1, TYPALIGN_INT, &a->aggregate_ids, &a->headers);
	get_optional(fcinfo, 5, "event_ids", UUIDOID, UUID_LEN, TYPALIGN_CHAR, &a->aggregate_ids,
				 &a->event_ids);
	get_optional(fcinfo, ARG_DEDUP_IDS, "dedup_ids", TEXTOID, -1, TYPALIGN_INT, &a->aggregate_ids,
				 &a->dedup_ids);
	check_later_array(fcinfo, ARG_DELIVER_ATS, "deliver_ats", &a->aggregate_ids);
	check_later_array(fcinfo, ARG_EXPIRES_ATS, "expires_ats", &a->aggregate_ids);
	a->window = get_dedup_window(fcinfo, ARG_DEDUP_WINDOW);
}

/* Was the i-th element of an array given that may be left out? */
static bool
is_given(const Elements *elements, int i)
{
	return elements->n > 0 && !elements->nulls[i];
}

/*
 * Make a row of the i-th event of the arrays, with the event id that the
 * caller gave or a generated one.
 */
static void
fill_row(const Arrays *a, int i, IdemOutboxRow *row)
{
	row->aggregate_type = a->aggregate_type;
	row->aggregate_id = checked_name(required_element(&a->aggregate_ids, i), "aggregate_ids");
	row->event_type = checked_name(required_element(&a->event_types, i), "event_types");
	row->is_json = true;
	row->payload = required_element(&a->payloads, i);
	check_json(row->payload, "payloads");
	row->has_headers = is_given(&a->headers, i);
	if (row->has_headers)
	{
		row->headers = a->headers.values[i];
		check_headers(row->headers);
	}
	if (is_given(&a->event_ids, i))
		row->event_id = *DatumGetUUIDP(a->event_ids.values[i]);
	else
		idem_uuid7_generate(&row->event_id);
}

/* An event of outbox_enqueue_many. */
typedef struct Event
{
	int			dedup;			/* its place among the items; -1: it has no
								 * dedup id */
	pg_uuid_t	event_id;		/* as the caller gets it */
} Event;

/* Make the items of the dedup ids that were given, and check them; returns their number. */
static int
fill_dedup_items(const Arrays *a, const IdemOutboxRow *rows, Event *events, int n,
				 IdemDedupItem *items)
{
	int			given = 0;

	for (int i = 0; i < n; i++)
	{
		text	   *id;

		CHECK_FOR_INTERRUPTS();
		events[i].dedup = -1;
		if (!is_given(&a->dedup_ids, i))
			continue;
		id = DatumGetTextPP(a->dedup_ids.values[i]);
		idem_check_length("dedup_ids", VARSIZE_ANY_EXHDR(id), IDEM_MAX_ID_BYTES);
		items[given].id = idem_str(VARDATA_ANY(id), VARSIZE_ANY_EXHDR(id));
		items[given].value = rows[i].event_id;
		events[i].dedup = given++;
	}
	return given;
}

/*
 * Set the events' ids, and remove the rows of repeats from the array; returns
 * the number of rows that are left.  Event ids that the caller gave for them
 * are put into "claims".
 */
static int
remove_repeats(const Arrays *a, const IdemDedupItem *items, Event *events, int n,
			   IdemOutboxRow *rows, IdemClaimItem *claims, int *nclaims)
{
	int			left = 0;

	*nclaims = 0;
	for (int i = 0; i < n; i++)
	{
		const IdemDedupItem *item = events[i].dedup >= 0 ? &items[events[i].dedup] : NULL;

		CHECK_FOR_INTERRUPTS();
		events[i].event_id = item != NULL ? item->value : rows[i].event_id;
		if (item != NULL && item->is_repeat)
			continue;
		if (is_given(&a->event_ids, i))
			claims[(*nclaims)++] = item_of(&rows[i].event_id);
		rows[left++] = rows[i];
	}
	return left;
}

/* Enqueue n > 0 events, except repeats.  By now every check is passed. */
static void
enqueue_rows(const Arrays *a, IdemDedupItem *items, int ndedup, Event *events, int n,
			 IdemOutboxRow *rows)
{
	IdemClaimItem *claims = palloc(sizeof(IdemClaimItem) * n);
	int			nclaims;

	if (ndedup > 0)
		decide_dedup(items, ndedup, a->aggregate_type, a->window);
	n = remove_repeats(a, items, events, n, rows, claims, &nclaims);
	if (nclaims > 0)
		claim_ids(claims, nclaims);
	if (n > 0)
		idem_outbox_insert(rows, n);
}

/* Enqueue the events of the arguments; returns their number. */
static int
enqueue_arrays(FunctionCallInfo fcinfo, Event **events)
{
	Arrays		arrays;
	IdemOutboxRow *rows;
	IdemDedupItem *items;
	int			n,
				ndedup;

	get_arrays(fcinfo, &arrays);
	n = arrays.aggregate_ids.n;
	rows = palloc0(sizeof(IdemOutboxRow) * Max(n, 1));
	items = palloc(sizeof(IdemDedupItem) * Max(arrays.dedup_ids.n, 1));
	*events = palloc(sizeof(Event) * Max(n, 1));
	for (int i = 0; i < n; i++)
	{
		CHECK_FOR_INTERRUPTS();
		fill_row(&arrays, i, &rows[i]);
	}
	ndedup = fill_dedup_items(&arrays, rows, *events, n, items);
	reject_later_args(fcinfo, ARG_DELIVER_ATS, true);
	if (n > 0)
		enqueue_rows(&arrays, items, ndedup, *events, n, rows);
	return n;
}

Datum
idem_outbox_enqueue_many_fn(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	Event	   *events;
	int			n;

	idem_prevent_read_only("outbox_enqueue_many()");
	idem_prevent_running_ahead("outbox_enqueue_many()", false);
	InitMaterializedSRF(fcinfo, MAT_SRF_USE_EXPECTED_DESC);
	n = enqueue_arrays(fcinfo, &events);
	for (int i = 0; i < n; i++)
	{
		Datum		value = UUIDPGetDatum(&events[i].event_id);
		bool		isnull = false;

		CHECK_FOR_INTERRUPTS();
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, &value, &isnull);
	}
	PG_RETURN_NULL();
}
