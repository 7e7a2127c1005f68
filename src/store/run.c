/*-------------------------------------------------------------------------
 *
 * run.c
 *		Runs: the packed, sorted ids of a closed segment or of merged runs; their
 *		end marks, and writing them.
 *
 * A run is a set of rows in one slot.  Completions of turn 1 stand on pages, 16
 * bytes each: pages of a run do not overlap, and each but the last is full.
 * Everything else stands as details.  A completion of turn 1 may have a detail
 * beside its digest on a page; a special entry (entry.h) has a detail only.
 * The end mark is the row that makes the run count.
 *
 * Invariant: the end mark is written after all other rows of the run and their
 * index entries, and names how many there are.
 *
 * What a crash leaves: rows of a run without an end mark.  Nobody reads them, no
 * other run gets the number, and a filter's column that was filled for the run
 * is overwritten by the next one.
 *
 * LOCKING: as in slot.c and slot_write.c; no page stays locked between calls.
 *
 * MEMORY: a writer has two pages and the slot writer's batch, in the context that is
 * current when it is made, which must live as long as it does.  Pages that
 * wait for details are in a temporary file, in the tablespaces for these.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/store/run.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "libpq/pqformat.h"
#include "miscadmin.h"
#include "storage/buffile.h"
#include "storage/bufmgr.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/timestamp.h"
#include "utils/xid8.h"

#include "compat.h"
#include "shared/catalog.h"
#include "shared/fault.h"
#include "shared/sound.h"
#include "store/filter.h"
#include "store/retention.h"
#include "store/run.h"

/* The format of the body of an end mark. */
#define MARK_FORMAT		1

/*
 * Filters are made for at least so many ids: the first run of a slot may come
 * from a segment that was closed early, and decides how large the filters of the
 * later runs are.
 */
#define MIN_FILTERED	16384

struct IdemRunWriter
{
	IdemRun    *run;
	IdemSlotWriter *rows;
	IdemFilterWriter *filter;	/* NULL: the run has none */
	BufFile    *waiting;		/* pages; NULL: they are written at once */
	int			ndigests;		/* on the page that is being filled */
	pg_uuid_t	page[IDEM_PAGE_DIGESTS];
	int64		entries;
	pg_uuid_t	last_digest;	/* of the last entry */
	int16		last_turn;
};

StaticAssertDecl(sizeof(pg_uuid_t) * IDEM_PAGE_DIGESTS <= IDEM_SLOT_BODY_BYTES,
				 "a page of digests is a body");

/* End marks */

/* The mark's body.  Network byte order, so that a dump fits every machine. */
static void
form_mark(const IdemRun *run, StringInfo buf)
{
	initStringInfo(buf);
	pq_sendint16(buf, MARK_FORMAT);
	pq_sendint16(buf, run->class);
	pq_sendint16(buf, run->level);
	pq_sendint16(buf, run->column);
	pq_sendint64(buf, run->pages);
	pq_sendint32(buf, run->first_block);
	pq_sendint64(buf, run->digests);
	pq_sendint64(buf, run->details);
	pq_sendint64(buf, run->specials);
	pq_sendint64(buf, run->oldest);
	pq_sendint64(buf, run->newest);
	pq_sendint64(buf, run->stamp);
	pq_sendint64(buf, U64FromFullTransactionId(run->last_xid));
	pq_sendint16(buf, run->nreplaces);
	for (int i = 0; i < run->nreplaces; i++)
		pq_sendint64(buf, run->replaces[i]);
}

/* Error XX001: the body of a mark cannot be read.  Its ids are those of the pages that follow it. */
pg_noreturn static void
report_mark(const IdemSlot *slot, const ItemPointerData *tid, int64 run)
{
	ereport(ERROR,
			(errcode(ERRCODE_DATA_CORRUPTED),
			 errmsg("could not read the end mark of run " INT64_FORMAT " of the dedup store", run),
			 errdetail("It is row (%u,%u) of table \"%s.%s\".", ItemPointerGetBlockNumber(tid),
					   ItemPointerGetOffsetNumber(tid), IDEM_DATA_SCHEMA_NAME,
					   RelationGetRelationName(slot->heap)),
			 errhint("If a newer version of the extension has written it, install that version. Else restore the table from a backup. "
					 "Without one, delete the row if the ids of the run may be forgotten: their events count then as never seen.")));
}

/* Are the numbers of a mark those of some run? */
static bool
is_mark_sound(const IdemRun *run)
{
	return run->level >= 0 && run->column >= -1 && run->column < IDEM_SLOT_RUNS &&
		run->pages >= 0 && run->pages <= MaxBlockNumber &&
		run->digests >= 0 && run->digests <= run->pages * IDEM_PAGE_DIGESTS &&
		run->specials >= 0 && run->specials <= run->details &&
		run->details < IDEM_SOUND_NUMBER &&
		!TIMESTAMP_NOT_FINITE(run->oldest) && !TIMESTAMP_NOT_FINITE(run->newest) &&
		run->stamp >= 0 && run->stamp <= IDEM_SOUND_SECONDS;
}

/* Take the body of a mark apart; false if it is none. */
static bool
parse_mark(const char *body, int len, IdemRun *run)
{
	StringInfoData buf = {.data = unconstify(char *, body), .len = len, .maxlen = len};
	const int	head = 5 * sizeof(int16) + sizeof(int32) + 8 * sizeof(int64);

	memset(run, 0, sizeof(*run));
	if (len < head || pq_getmsgint(&buf, 2) != MARK_FORMAT)
		return false;
	run->class = (int16) pq_getmsgint(&buf, 2);
	run->level = (int16) pq_getmsgint(&buf, 2);
	run->column = (int16) pq_getmsgint(&buf, 2);
	run->pages = pq_getmsgint64(&buf);
	run->first_block = pq_getmsgint(&buf, 4);
	run->digests = pq_getmsgint64(&buf);
	run->details = pq_getmsgint64(&buf);
	run->specials = pq_getmsgint64(&buf);
	run->oldest = pq_getmsgint64(&buf);
	run->newest = pq_getmsgint64(&buf);
	run->stamp = pq_getmsgint64(&buf);
	run->last_xid = FullTransactionIdFromU64(pq_getmsgint64(&buf));
	run->nreplaces = pq_getmsgint(&buf, 2);
	if (run->nreplaces > IDEM_SLOT_RUNS || len != head + run->nreplaces * (int) sizeof(int64))
		return false;
	for (int i = 0; i < run->nreplaces; i++)
		run->replaces[i] = pq_getmsgint64(&buf);
	return is_mark_sound(run);
}

int64
idem_run_end(const IdemRun *run)
{
	return idem_retention_end(run->class, idem_retention_slice(run->class, run->stamp));
}

/*
 * Was the run merged into that other one?  A merge takes the latest stamp.  So if
 * the run's is later, a restore has brought the run once more since, and it is to be
 * remembered for longer.
 */
static bool
was_merged_into(const IdemRun *run, const IdemRun *other)
{
	if (idem_run_end(run) > idem_run_end(other))
		return false;
	for (int i = 0; i < other->nreplaces; i++)
	{
		if (other->replaces[i] == run->number)
			return true;
	}
	return false;
}

void
idem_run_find_replaced(const IdemRunSet *set)
{
	for (int i = 0; i < set->n; i++)
	{
		IdemRun    *run = &set->runs[i];

		for (int j = 0; j < set->n; j++)
		{
			const IdemRun *other = &set->runs[j];

			if (was_merged_into(run, other) &&
				(run->replaced_by == NULL ||
				 FullTransactionIdPrecedes(other->packer, run->replaced_by->packer)))
				run->replaced_by = other;
		}
	}
}

bytea *
idem_run_restamp(const char *table, const char *body, int len, int64 now)
{
	IdemRun		run;
	StringInfoData buf;

	if (!parse_mark(body, len, &run))
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("could not read the end mark of a run of the dedup store"),
				 errdetail("A row that is inserted into table \"%s.%s\" has it.", IDEM_DATA_SCHEMA_NAME, table),
				 errhint("If a newer version of the extension has written it, install that version. Else leave the row out, if the ids of the run may be forgotten.")));
	run.column = -1;
	run.first_block = InvalidBlockNumber;
	run.last_xid = InvalidFullTransactionId;
	run.nreplaces = 0;
	run.stamp = now;
	form_mark(&run, &buf);
	return cstring_to_text_with_len(buf.data, buf.len);
}

/*
 * Has the table room for what the mark counts?  A merge makes filters for as many ids, so a
 * mark that says too much would fill the disk.  Of a restored run more rows may be to come.
 */
static bool
fits_table(const IdemSlot *slot, const IdemRun *run)
{
	int64		blocks = RelationGetNumberOfBlocks(slot->heap);

	return run->digests <= blocks * (BLCKSZ / UUID_LEN) &&
		run->details <= blocks * MaxHeapTuplesPerPage;
}

/* The run of an end mark. */
static void
read_mark(const IdemSlot *slot, HeapTuple tuple, IdemRun *run)
{
	bool		no_number;
	bool		no_body;
	bool		no_packer;
	int64		number = DatumGetInt64(idem_slot_value(slot, tuple, IDEM_SLOT_RUN, &no_number));
	Datum		value = idem_slot_value(slot, tuple, IDEM_SLOT_BODY, &no_body);
	bytea	   *body = no_body ? NULL : DatumGetByteaPP(value);
	Datum		packer = idem_slot_value(slot, tuple, IDEM_SLOT_PACKER, &no_packer);

	if (body == NULL || !parse_mark(VARDATA_ANY(body), VARSIZE_ANY_EXHDR(body), run))
		report_mark(slot, &tuple->t_self, number);
	run->slot = slot->number;
	run->lsn = idem_slot_lsn(slot, &tuple->t_self);
	run->number = number;
	/* pg_resetwal may have set the ids back, and ended all transactions */
	if (!no_packer && FullTransactionIdPrecedes(DatumGetFullTransactionId(packer), ReadNextFullTransactionId()))
		run->packer = DatumGetFullTransactionId(packer);
	run->xmin = HeapTupleHeaderGetRawXmin(tuple->t_data);
	run->lacks_rows = !fits_table(slot, run);
	if (run->lacks_rows && U64FromFullTransactionId(run->packer) != 0)
		report_mark(slot, &tuple->t_self, number);
}

void
idem_run_read_marks(const IdemSlot *slot, IdemRunSet *set)
{
	IdemSlotScan *scan = idem_slot_scan_begin(slot, IDEM_SLOT_MARK, -1, NULL);
	HeapTuple	tuple;

	while ((tuple = idem_slot_scan_next(scan)) != NULL)
	{
		if (set->n == set->room)
		{
			set->room += IDEM_SLOT_RUNS;
			set->runs = set->n == 0 ? MemoryContextAlloc(set->context, set->room * sizeof(IdemRun)) :
				repalloc(set->runs, set->room * sizeof(IdemRun));
		}
		read_mark(slot, tuple, &set->runs[set->n++]);
		heap_freetuple(tuple);
	}
	idem_slot_scan_end(scan);
}

int64
idem_run_new_number(void)
{
	uint64		number;

	if (!pg_strong_random(&number, sizeof(number)))
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("could not generate random bytes")));
	return (int64) (number >> 1 | 1);
}

/* Writing */

/* The run fills the column of the filters behind those of the runs that are there. */
IdemRunWriter *
idem_run_begin(IdemSlot *slot, IdemRun *run, int64 expected)
{
	IdemRunWriter *writer = palloc0(sizeof(IdemRunWriter));
	IdemRunSet	others = {.context = CurrentMemoryContext};
	int			column = 0;

	run->slot = slot->number;
	run->pages = run->digests = run->details = run->specials = 0;
	writer->run = run;
	writer->rows = idem_slot_begin_write(slot, run->number);
	run->packer = GetTopFullTransactionId();
	idem_run_read_marks(slot, &others);
	for (int i = 0; i < others.n; i++)
		column = Max(column, others.runs[i].column + 1);
	if (others.n > 0)
		pfree(others.runs);
	if (column < IDEM_SLOT_RUNS)
		writer->filter = idem_filter_begin(slot, writer->rows, run->level, column,
										   Max(expected, MIN_FILTERED));
	run->column = writer->filter != NULL ? column : -1;
	idem_slot_reset_first_block(writer->rows);
	writer->waiting = run->plain ? NULL : BufFileCreateTemp(false);
	return writer;
}

/* Write the page that was filled, or let it wait. */
static void
end_page(IdemRunWriter *writer)
{
	int			len = writer->ndigests * UUID_LEN;

	if (writer->ndigests == 0)
		return;
	CHECK_FOR_INTERRUPTS();
	if (writer->waiting != NULL)
		BufFileWrite(writer->waiting, writer->page, len);
	else
		idem_slot_write_body(writer->rows, IDEM_SLOT_PAGE, &writer->page[0],
							 (const char *) writer->page, len);
	writer->run->pages++;
	writer->run->digests += writer->ndigests;
	writer->ndigests = 0;
}

void
idem_run_add(IdemRunWriter *writer, const IdemEventEntry *entry)
{
	bool		special = idem_entry_is_special(entry);
	int			cmp = writer->entries == 0 ? -1 : idem_digest_compare(&writer->last_digest, &entry->digest);

	/* searches rely on the order, so a caller that breaks it gets an error */
	if (cmp > 0 || (cmp == 0 && writer->last_turn >= entry->turn))
		elog(ERROR, "entries of run " INT64_FORMAT " are not in order", writer->run->number);
	/* each digest once */
	if (cmp < 0 && writer->filter != NULL)
		idem_filter_add(writer->filter, &entry->digest);
	if (special || entry->has_detail)
	{
		idem_slot_write_detail(writer->rows, entry);
		writer->run->details++;
	}
	if (special)
		writer->run->specials++;
	else
	{
		writer->page[writer->ndigests++] = entry->digest;
		if (writer->ndigests == IDEM_PAGE_DIGESTS)
			end_page(writer);
	}
	writer->last_digest = entry->digest;
	writer->last_turn = entry->turn;
	writer->entries++;
}

/* Write the pages that waited for the details. */
static void
write_waiting(IdemRunWriter *writer)
{
	int64		left = writer->run->digests;

	if (BufFileSeek(writer->waiting, 0, 0, SEEK_SET) != 0)
		elog(ERROR, "could not rewind the pages of a run");
	while (left > 0)
	{
		int			n = Min(left, IDEM_PAGE_DIGESTS);

		CHECK_FOR_INTERRUPTS();
		if (BufFileRead(writer->waiting, writer->page, n * UUID_LEN) != n * UUID_LEN)
			elog(ERROR, "could not read the pages of a run");
		idem_slot_write_body(writer->rows, IDEM_SLOT_PAGE, &writer->page[0],
							 (const char *) writer->page, n * UUID_LEN);
		left -= n;
	}
	BufFileClose(writer->waiting);
}

/* The end mark is written after everything else, and in a batch of its own. */
void
idem_run_finish(IdemRunWriter *writer)
{
	pg_uuid_t	zero = {{0}};
	StringInfoData mark;

	end_page(writer);
	if (writer->waiting != NULL)
		write_waiting(writer);
	writer->run->first_block = idem_slot_first_block(writer->rows);
	if (writer->filter != NULL && !idem_filter_finish(writer->filter))
		writer->run->column = -1;
	IDEM_FAULT_POINT("store-run-before-mark");
	form_mark(writer->run, &mark);
	idem_slot_write_body(writer->rows, IDEM_SLOT_MARK, &zero, mark.data, mark.len);
	idem_slot_end_write(writer->rows);
	pfree(mark.data);
	pfree(writer);
}
