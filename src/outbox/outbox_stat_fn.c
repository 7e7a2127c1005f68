/*-------------------------------------------------------------------------
 *
 * outbox_stat_fn.c
 *		SQL functions that show the outbox and its state; the function that
 *		mends its numbers; the trigger that receives events from a dump.
 *
 * LOCKING: AccessShareLock on one segment at a time.  The trigger takes
 * ShareRowExclusiveLock on its segment, kept with the restored rows, while its
 * statement holds RowExclusiveLock.  So two restores into one segment wait for
 * each other, or the server ends one of them as a deadlock.  So do two restores
 * of events with the same number.  outbox_mend_seq()
 * takes the locks that number.c describes.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/outbox/outbox_stat_fn.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "tcop/pquery.h"
#include "utils/builtins.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"
#include "utils/xid8.h"

#include "compat.h"
#include "outbox/number.h"
#include "outbox/outbox.h"
#include "outbox/reader.h"
#include "outbox/segment.h"
#include "shared/args.h"
#include "shared/dump.h"
#include "shared/guard.h"
#include "shared/lock_wait.h"
#include "shared/rows.h"
#include "shared/spi.h"
#include "shared/txn_owner.h"

#define SEGMENT_COLUMNS		9

PG_FUNCTION_INFO_V1(idem_outbox_events_source_fn);
PG_FUNCTION_INFO_V1(idem_outbox_segments_fn);
PG_FUNCTION_INFO_V1(idem_outbox_generation_fn);
PG_FUNCTION_INFO_V1(idem_outbox_last_seq_fn);
PG_FUNCTION_INFO_V1(idem_outbox_mend_seq_fn);
PG_FUNCTION_INFO_V1(idem_outbox_restamp_fn);

/* The columns of a segment that outbox_events shows, in the view's order. */
static const int shown[] = {
	IDEM_ATT_EVENT_ID, IDEM_ATT_SEQ, IDEM_ATT_AGGREGATE_TYPE, IDEM_ATT_AGGREGATE_ID,
	IDEM_ATT_EVENT_TYPE, IDEM_ATT_PAYLOAD, IDEM_ATT_PAYLOAD_BYTES, IDEM_ATT_CONTENT_TYPE,
	IDEM_ATT_HEADERS, IDEM_ATT_ENQUEUED_AT
};

/* Fill in an event as outbox_events shows it (callback of IdemRowSource). */
static bool
show_event(TupleTableSlot *slot, Datum *values, bool *nulls, void *arg)
{
	slot_getsomeattrs(slot, IDEM_NATTS);
	for (int i = 0; i < lengthof(shown); i++)
	{
		values[i] = slot->tts_values[shown[i]];
		nulls[i] = slot->tts_isnull[shown[i]];
	}
	return true;
}

Datum
idem_outbox_events_source_fn(PG_FUNCTION_ARGS)
{
	static const IdemRowSource source = {
		.ntables = IDEM_OUTBOX_SEGMENTS, .ncolumns = lengthof(shown),
		.tables = idem_outbox_segments, .form_row = show_event
	};

	return idem_rows_next(fcinfo, &source);
}

/*
 * What keeps a closed segment from being emptied, apart from relays and the retention?
 * NULL: nothing.  Only the worker knows whether a dump is older than the delivery of
 * the events (maintain.c).
 */
static const char *
segment_holder(const IdemSegment *seg)
{
	const char *holder;

	if (RecoveryInProgress())
		return NULL;
	holder = idem_holder(RelationGetRelid(seg->heap), AccessExclusiveLock, "lock");
	if (holder == NULL && idem_outbox_dump_size > 0 && idem_dump_runs())
		holder = "dump";
	return holder;
}

/* Fill in a row of outbox_segments. */
static void
describe_segment(const IdemSegment *seg, bool current, Datum *values, bool *nulls)
{
	IdemEntry	first;
	IdemEntry	last;
	IdemPageSummary head;
	IdemPageSummary tail;
	const char *holder;

	memset(nulls, true, SEGMENT_COLUMNS * sizeof(bool));
	idem_set_column(values, nulls, 0, Int32GetDatum(seg->number));
	idem_set_column(values, nulls, 1, BoolGetDatum(current));
	idem_set_column(values, nulls, 2, Int64GetDatum(0));
	idem_set_column(values, nulls, 3, Int64GetDatum(idem_segment_bytes(seg)));
	if (!idem_segment_first(seg, &first) || !idem_segment_last(seg, &last))
		return;
	idem_segment_summarize(seg, false, &head);
	idem_segment_summarize(seg, true, &tail);
	idem_set_column(values, nulls, 2, Int64GetDatum(idem_segment_estimate_events(seg)));
	idem_set_column(values, nulls, 4, FullTransactionIdGetDatum(FullTransactionIdFromU64(first.xid)));
	idem_set_column(values, nulls, 5, FullTransactionIdGetDatum(FullTransactionIdFromU64(last.xid)));
	if (head.tuples > 0)
	{
		idem_set_column(values, nulls, 6, TimestampTzGetDatum(head.oldest));
		idem_set_column(values, nulls, 7, TimestampTzGetDatum(tail.newest));
	}
	holder = current ? NULL : segment_holder(seg);
	if (holder != NULL)
		idem_set_column(values, nulls, 8, CStringGetTextDatum(holder));
}

Datum
idem_outbox_segments_fn(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	int			current = idem_segment_of(idem_outbox_generation());

	InitMaterializedSRF(fcinfo, 0);
	for (int i = 0; i < IDEM_OUTBOX_SEGMENTS; i++)
	{
		IdemSegment seg;
		Datum		values[SEGMENT_COLUMNS];
		bool		nulls[SEGMENT_COLUMNS];

		CHECK_FOR_INTERRUPTS();
		idem_segment_open(&seg, i);
		describe_segment(&seg, i == current, values, nulls);
		idem_segment_close(&seg);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	PG_RETURN_NULL();
}

Datum
idem_outbox_generation_fn(PG_FUNCTION_ARGS)
{
	PG_RETURN_INT64(idem_outbox_generation());
}

Datum
idem_outbox_last_seq_fn(PG_FUNCTION_ARGS)
{
	PG_RETURN_INT64(idem_outbox_last_seq());
}

Datum
idem_outbox_mend_seq_fn(PG_FUNCTION_ARGS)
{
	idem_prevent_read_only("outbox_mend_seq()");
	PG_RETURN_INT64(idem_number_mend());
}

/* Does the segment have a committed row, as of now? */
static bool
has_rows(Relation segment)
{
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	TableScanDesc scan = idem_compat_table_beginscan(segment, snapshot);
	bool		found = heap_getnext(scan, ForwardScanDirection) != NULL;

	table_endscan(scan);
	UnregisterSnapshot(snapshot);
	return found;
}

/* Error 55000: events cannot be restored into this outbox. */
static void
refuse_restore(Relation segment)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("cannot restore events into \"%s\": the outbox is in use",
					RelationGetRelationName(segment)),
			 errdetail("The events of a dump keep their numbers, which other events have here already or will get."),
			 errhint("Restore the whole dump into a new database. Without the data of the extension's tables, "
					 "events that were handled would be handled again, and events that were not sent would not be sent. "
					 "Events of this database are written with outbox_enqueue.")));
}

/*
 * Refuse events whose numbers other events may have: of two events with the
 * same number a relay would skip one.  Events of a dump keep their numbers, so
 * only a log that has given out no number takes them.  A dump has one COPY per
 * segment, so a COPY into a segment with rows is of a second dump; other second
 * dumps are known by the numbers of their events (note_number).  Nobody draws the
 * first number while the statement has its lock on the segment (number.c).
 *
 * The first look is without the lock.  In a log that is in use, all writers
 * would queue up behind a lock that waits for one open transaction.
 */
static void
check_restore(Relation segment)
{
	bool		is_copy;

	if (idem_number_in_use())
		refuse_restore(segment);
	idem_txn_lock(RelationGetRelid(segment), ShareRowExclusiveLock);
	/* a dump made with --inserts has a statement for each row */
	is_copy = ActivePortal != NULL && ActivePortal->commandTag == CMDTAG_COPY;
	if (idem_number_in_use() || (is_copy && has_rows(segment)))
		refuse_restore(segment);
}

/* Note the number of a restored event; error 55000 if another one has it. */
static void
note_number(Relation segment, Datum seq)
{
	static IdemSpiStatement note =
	IDEM_SPI_STATEMENT("INSERT INTO %s.outbox_restored (seq) VALUES ($1) ON CONFLICT DO NOTHING");
	static const IdemColumn columns[] = {{INT8OID, true}};
	static const IdemTableForm form = {.columns = columns, .ncolumns = lengthof(columns), .by_sql = true};
	static IdemRelRef restored = IDEM_TABLEREF("outbox_restored", &form);
	Oid			types[1] = {INT8OID};
	ResourceOwner saved = idem_txn_owner_enter();
	uint64		noted;

	idem_guard_ref(&restored);
	SPI_connect();
	noted = idem_spi_run_saved(&note, 1, types, &seq, NULL);
	SPI_finish();
	idem_txn_owner_leave(saved);
	if (noted == 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("cannot restore event number %lld into \"%s\": another event was restored with that number",
						(long long) DatumGetInt64(seq), RelationGetRelationName(segment)),
				 errdetail("Of two events with the same number a relay would skip one."),
				 errhint("Restore each dump once, and no two dumps into the same database.")));
}

/*
 * Trigger of each segment, before insert.  The writer fires no triggers, so
 * the rows that come here are restored from a dump.  Their transaction ids
 * belong to another cluster.  The trigger gives them the id of the transaction
 * that restores them.
 */
Datum
idem_outbox_restamp_fn(PG_FUNCTION_ARGS)
{
	TriggerData *trigger = idem_require_insert_trigger(fcinfo, "outbox_restamp");
	int			column = IDEM_ATT_XID + 1;
	Datum		value;
	Datum		seq;
	bool		isnull = false;
	bool		no_seq;

	(void) idem_require_table(fcinfo, "outbox_restamp", idem_outbox_segments, IDEM_OUTBOX_SEGMENTS);
	if (fcinfo->flinfo->fn_extra == NULL)
	{
		check_restore(trigger->tg_relation);
		if (idem_outbox_restored_hook != NULL)
			(*idem_outbox_restored_hook) ();
		fcinfo->flinfo->fn_extra = trigger->tg_trigger; /* once per statement */
	}
	seq = heap_getattr(trigger->tg_trigtuple, IDEM_ATT_SEQ + 1, RelationGetDescr(trigger->tg_relation), &no_seq);
	if (!no_seq)
		note_number(trigger->tg_relation, seq);
	value = FullTransactionIdGetDatum(GetTopFullTransactionId());
	return PointerGetDatum(heap_modify_tuple_by_cols(trigger->tg_trigtuple,
													 RelationGetDescr(trigger->tg_relation),
													 1, &column, &value, &isnull));
}
