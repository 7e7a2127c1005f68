/*-------------------------------------------------------------------------
 *
 * view_fn.c
 *		SQL functions behind the views claim_consumers, leases, requests and
 *		stat_consumers.
 *
 * LOCKING, MEMORY: shared/rows.c.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/claim/view_fn.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "executor/tuptable.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "compat.h"
#include "claim/arg.h"
#include "claim/consumer.h"
#include "claim/count.h"
#include "claim/leased.h"
#include "lease/log.h"
#include "shared/args.h"
#include "shared/rows.h"
#include "shared/uptime.h"
#include "store/retention.h"

PG_FUNCTION_INFO_V1(idem_claim_consumers_source_fn);

/* Columns of claim_consumers: those of the table, with the class after the retention */
enum
{
	SHOWN_RETENTION = IDEM_CONSUMERS_RETENTION - 1,
	SHOWN_CLASS,
	SHOWN_OWNER = IDEM_CONSUMERS_OWNER,
	SHOWN_OWNER_MISSING,
	SHOWN_COLUMNS
};

/* Show the owner by its present name, or by its last one if it does not exist. */
static void
show_owner(TupleTableSlot *slot, Datum *values, bool *nulls)
{
	bool		shouldfree;
	HeapTuple	row = ExecFetchSlotHeapTuple(slot, false, &shouldfree);
	IdemOwnerNote note = idem_owner_read(row, slot->tts_tupleDescriptor);
	Oid			role;
	const char *name;

	if (shouldfree)
		heap_freetuple(row);
	idem_set_column(values, nulls, SHOWN_OWNER_MISSING, BoolGetDatum(false));
	if (note.role == NULL)
		return;
	role = idem_owner_role(&note);
	name = OidIsValid(role) ? GetUserNameFromId(role, true) : NULL;
	idem_set_column(values, nulls, SHOWN_OWNER, CStringGetTextDatum(name != NULL ? name : note.role));
	values[SHOWN_OWNER_MISSING] = BoolGetDatum(name == NULL);
}

/* Fill in a consumer as claim_consumers shows it (callback of IdemRowSource). */
static bool
show_consumer(TupleTableSlot *slot, Datum *values, bool *nulls, void *arg)
{
	int			class;

	for (int column = IDEM_CONSUMERS_CONSUMER; column < IDEM_CONSUMERS_OWNER; column++)
	{
		int			shown = column <= IDEM_CONSUMERS_RETENTION ? column - 1 : column;

		values[shown] = slot_getattr(slot, column, &nulls[shown]);
	}
	class = idem_consumer_class(nulls[SHOWN_RETENTION] ? NULL :
								DatumGetIntervalP(values[SHOWN_RETENTION]));
	idem_set_column(values, nulls, SHOWN_CLASS, CStringGetTextDatum(idem_retention_name(class)));
	show_owner(slot, values, nulls);
	return true;
}

Datum
idem_claim_consumers_source_fn(PG_FUNCTION_ARGS)
{
	static const IdemRowSource source = {
		.ntables = 1, .ncolumns = SHOWN_COLUMNS,
		.tables = &idem_consumers, .form_row = show_consumer
	};

	return idem_rows_next(fcinfo, &source);
}

/*
 * SQL functions behind the views leases, requests and stat_consumers.
 *
 * The views show the log of leases (lease/log.h), one row for each event or request that
 * is open.  Who may read processed_events, which has the events of all consumers, sees
 * all rows of leases and requests.  Others see the rows of consumers that they may claim
 * for.  stat_consumers counts the rows of all consumers, and shows no ids.
 *
 * LOCKING: keyed_scan.c, until the last row was read or the executor ends.
 */

PG_FUNCTION_INFO_V1(idem_leases_source_fn);
PG_FUNCTION_INFO_V1(idem_requests_source_fn);
PG_FUNCTION_INFO_V1(idem_stat_consumers_source_fn);
PG_FUNCTION_INFO_V1(idem_claim_verdicts_fn);

/* What a column shows. */
typedef enum Shown
{
	SHOW_CONSUMER,
	SHOW_SCOPE,
	SHOW_ID,
	SHOW_STATE,
	SHOW_TOKEN,
	SHOW_ATTEMPT,
	SHOW_HOLDER,
	SHOW_SINCE,
	SHOW_LEASE_UNTIL,
	SHOW_RETRY_AT,
	SHOW_DUE,
	SHOW_POINT,
	SHOW_ERROR,
	SHOW_EXPIRES_AT,
	SHOW_REQUEST,
	SHOW_IS_REQUEST,
	NSHOWN
} Shown;

/* The columns of the functions, in their order */
static const Shown leases_columns[] = {
	SHOW_CONSUMER, SHOW_SCOPE, SHOW_ID, SHOW_STATE, SHOW_TOKEN, SHOW_ATTEMPT, SHOW_HOLDER,
	SHOW_SINCE, SHOW_LEASE_UNTIL, SHOW_RETRY_AT, SHOW_DUE, SHOW_POINT, SHOW_ERROR,
	SHOW_EXPIRES_AT
};
static const Shown requests_columns[] = {
	SHOW_CONSUMER, SHOW_SCOPE, SHOW_ID, SHOW_STATE, SHOW_TOKEN, SHOW_ATTEMPT,
	SHOW_SINCE, SHOW_LEASE_UNTIL, SHOW_RETRY_AT, SHOW_DUE, SHOW_POINT, SHOW_ERROR,
	SHOW_EXPIRES_AT, SHOW_REQUEST
};
static const Shown stat_columns[] = {
	SHOW_CONSUMER, SHOW_IS_REQUEST, SHOW_STATE, SHOW_ATTEMPT, SHOW_SINCE, SHOW_LEASE_UNTIL,
	SHOW_RETRY_AT, SHOW_DUE
};

/* A look at what is open. */
typedef struct View
{
	IdemKeyedScan *scan;
	const Shown *columns;
	int			ncolumns;
	Datum		labels[IDEM_LEASE_STATES];
	TimestampTz now;
	int64		uptime;			/* by which rows expire, at that moment */
	bool		sees_all;		/* rows of all consumers */
	bool		requests_only;
} View;

/* Begin to look; desc: columns of the function's result. */
static View *
begin_view(TupleDesc desc, const Shown *columns, int ncolumns)
{
	View	   *view = palloc0(sizeof(View));

	view->columns = columns;
	view->ncolumns = ncolumns;
	for (int i = 0; i < ncolumns; i++)
	{
		for (int s = 0; columns[i] == SHOW_STATE && s < IDEM_LEASE_STATES; s++)
			view->labels[s] = idem_arg_label(TupleDescAttr(desc, i)->atttypid, idem_lease_labels[s]);
	}
	view->sees_all = idem_consumer_sees_all();
	view->scan = idem_keyed_scan_begin(&idem_lease_log);
	view->now = GetCurrentTimestamp();
	view->uptime = idem_uptime_now();
	return view;
}

/* Callbacks of IdemRowSource */
static void *
begin_leases(TupleDesc desc)
{
	return begin_view(desc, leases_columns, lengthof(leases_columns));
}

static void *
begin_requests(TupleDesc desc)
{
	View	   *view = begin_view(desc, requests_columns, lengthof(requests_columns));

	view->requests_only = true;
	return view;
}

static void *
begin_stat(TupleDesc desc)
{
	View	   *view = begin_view(desc, stat_columns, lengthof(stat_columns));

	view->sees_all = true;
	return view;
}

static void
end_view(void *arg)
{
	idem_keyed_scan_end(((View *) arg)->scan);
}

/* Is the row one that the view shows?  (IdemLeaseWants) */
static bool
is_shown(const IdemOpenLease *open, void *arg)
{
	const View *view = arg;

	if (view->requests_only && open->scope == (Datum) 0)
		return false;
	return view->sees_all || idem_consumer_value_is_accessible(open->consumer);
}

/* The place of a state of the log among the labels. */
static IdemLeaseState
state_of(const IdemOpenLease *open)
{
	if (open->lease.state == IDEM_LEASE_LEASED)
		return IDEM_LEASE_STATE_LEASED;
	return open->lease.state == IDEM_LEASE_DEAD ? IDEM_LEASE_STATE_DEAD : IDEM_LEASE_STATE_WAITING;
}

/* Fill in all that can be shown, by Shown. */
static void
show_all(const View *view, const IdemOpenLease *open, Datum *values, bool *nulls)
{
	bool		leased = open->lease.state == IDEM_LEASE_LEASED;
	bool		dead = open->lease.state == IDEM_LEASE_DEAD;

	memset(nulls, true, NSHOWN * sizeof(bool));
	idem_set_column(values, nulls, SHOW_CONSUMER, open->consumer);
	idem_set_pointer(values, nulls, SHOW_SCOPE, DatumGetPointer(open->scope));
	idem_set_column(values, nulls, SHOW_IS_REQUEST, BoolGetDatum(open->scope != (Datum) 0));
	idem_set_column(values, nulls, SHOW_ID, open->id);
	idem_set_column(values, nulls, SHOW_STATE, view->labels[state_of(open)]);
	idem_set_column(values, nulls, SHOW_ATTEMPT, Int32GetDatum(open->lease.attempt));
	idem_set_pointer(values, nulls, SHOW_HOLDER, open->lease.holder);
	idem_set_column(values, nulls, SHOW_SINCE, TimestampTzGetDatum(open->lease.at));
	idem_set_column(values, nulls, SHOW_DUE, BoolGetDatum(!dead && open->lease.until <= view->now));
	idem_set_pointer(values, nulls, SHOW_POINT, open->lease.recovery_point);
	idem_set_pointer(values, nulls, SHOW_ERROR, open->lease.error);
	idem_set_pointer(values, nulls, SHOW_REQUEST, open->lease.request);
	if (leased)
		idem_set_column(values, nulls, SHOW_TOKEN, Int64GetDatum(open->lease.token));
	if (!dead)
		idem_set_column(values, nulls, leased ? SHOW_LEASE_UNTIL : SHOW_RETRY_AT,
						TimestampTzGetDatum(open->lease.until));
	if (open->lease.expires != 0)
		idem_set_column(values, nulls, SHOW_EXPIRES_AT,
						TimestampTzGetDatum(Max(open->lease.until, view->now +
												(open->lease.expires - view->uptime) * USECS_PER_SEC)));
}

/* Fill in the next row (callback of IdemRowSource). */
static bool
next_row(Datum *values, bool *nulls, void *arg)
{
	View	   *view = arg;
	IdemOpenLease open;
	Datum		all_values[NSHOWN];
	bool		all_nulls[NSHOWN];

	if (!idem_lease_scan_next(view->scan, is_shown, view, &open))
		return false;
	show_all(view, &open, all_values, all_nulls);
	for (int i = 0; i < view->ncolumns; i++)
	{
		values[i] = all_values[view->columns[i]];
		nulls[i] = all_nulls[view->columns[i]];
	}
	return true;
}

Datum
idem_leases_source_fn(PG_FUNCTION_ARGS)
{
	static const IdemRowSource source = {
		.ncolumns = lengthof(leases_columns),
		.begin = begin_leases, .end = end_view, .next = next_row
	};

	return idem_rows_next(fcinfo, &source);
}

Datum
idem_requests_source_fn(PG_FUNCTION_ARGS)
{
	static const IdemRowSource source = {
		.ncolumns = lengthof(requests_columns),
		.begin = begin_requests, .end = end_view, .next = next_row
	};

	return idem_rows_next(fcinfo, &source);
}

Datum
idem_stat_consumers_source_fn(PG_FUNCTION_ARGS)
{
	static const IdemRowSource source = {
		.ncolumns = lengthof(stat_columns),
		.begin = begin_stat, .end = end_view, .next = next_row
	};

	return idem_rows_next(fcinfo, &source);
}

/* claim_verdicts() -> setof (consumer, and a count per verdict) */
Datum
idem_claim_verdicts_fn(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	IdemCounts *counts;
	int			n;

	InitMaterializedSRF(fcinfo, 0);
	counts = idem_counts(&n);
	for (int i = 0; i < n; i++)
	{
		Datum		values[1 + IDEM_CLAIM_RESULTS];
		bool		nulls[1 + IDEM_CLAIM_RESULTS] = {false};

		values[0] = PointerGetDatum(cstring_to_text_with_len(counts[i].consumer, counts[i].len));
		for (int v = 0; v < IDEM_CLAIM_RESULTS; v++)
			values[1 + v] = Int64GetDatum(counts[i].verdicts[v]);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	PG_RETURN_NULL();
}
