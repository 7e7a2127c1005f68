/*-------------------------------------------------------------------------
 *
 * run.c
 *		Runs: the packed, sorted ids of a closed segment or of merged runs.
 *
 * A run is a set of rows in one slot.  Completions of turn 1 stand on pages, 16
 * bytes each: pages of a run do not overlap, and each but the last is full.
 * Everything else stands as details.  A completion of turn 1 may have a detail
 * beside its digest on a page; a special entry (entry.h) has a detail only.
 * The end mark is the row that makes the run count.
 *
 * Where the page of a digest is can be computed, because digests are uniform:
 * guess a page, look at its first and last digest, correct.  The answer of a
 * page counts only if the digest lies between the page's first and last digest.
 * No other page of the run can have it then.  In all other cases the index
 * decides: if the pages are not where the mark says, if the guesses do not
 * converge because somebody chose the digests, and if the digest lies between
 * two pages, or before the first, or after the last.  So a mark with a wrong
 * first_block makes a search slower, and never wrong.
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
 * MEMORY: a writer has two pages and the slot writer's batch; a reader has a
 * page and what a scan of details holds.  Both are in the context that is
 * current when they are made, which must live as long as they do.  Pages that
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
#include "port/pg_bswap.h"
#include "storage/buffile.h"
#include "storage/bufmgr.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/timestamp.h"
#include "utils/xid8.h"

#include "compat.h"
#include "shared/fault.h"
#include "store/detail.h"
#include "store/filter.h"
#include "shared/catalog.h"
#include "shared/sound.h"
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

/* After so many guesses the index finds the page. */
#define MAX_GUESSES		6

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

struct IdemRunReader
{
	const IdemSlot *slot;
	IdemRun		run;
	IdemSlotScan *pages;
	int64		npages;			/* read so far */
	int64		ndigests;
	int64		ndetails;
	pg_uuid_t	first;			/* digest of this page */
	int			n;				/* digests on this page */
	int			next;
	pg_uuid_t	page[IDEM_PAGE_DIGESTS];
	IdemDetailScan *details;	/* NULL: none left */
	IdemEventEntry detail;		/* the next detail */
	bool		detail_used;	/* the caller has it */
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

bool
idem_run_was_merged_into(const IdemRun *run, const IdemRun *other)
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

bytea *
idem_run_restamp(const char *table, const char *body, int len, int64 now)
{
	IdemRun		run;
	StringInfoData buf;
	bytea	   *result;

	if (!parse_mark(body, len, &run))
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("could not read the end mark of a run of the dedup store"),
				 errdetail("A row that is inserted into table \"%s.%s\" has it.", IDEM_DATA_SCHEMA_NAME, table),
				 errhint("If a newer version of the extension has written it, install that version. Else leave the row out, if the ids of the run may be forgotten.")));
	run.column = -1;
	run.first_block = InvalidBlockNumber;
	run.last_xid = InvalidFullTransactionId;
	run.stamp = now;
	form_mark(&run, &buf);
	result = palloc(VARHDRSZ + buf.len);
	SET_VARSIZE(result, VARHDRSZ + buf.len);
	memcpy(VARDATA(result), buf.data, buf.len);
	pfree(buf.data);
	return result;
}

typedef struct MarkVisit
{
	const IdemSlot *slot;
	void		(*visit) (const IdemRun *run, void *arg);
	void	   *arg;
} MarkVisit;

/*
 * Has the table room for what the mark counts?  A merge makes filters for as many ids, so a
 * mark that says too much would fill the disk.
 */
static bool
fits_table(const IdemSlot *slot, const IdemRun *run)
{
	int64		blocks = RelationGetNumberOfBlocks(slot->heap);

	return run->digests <= blocks * (BLCKSZ / UUID_LEN) &&
		run->details <= blocks * MaxHeapTuplesPerPage;
}

static bool
visit_mark(const Datum *values, const bool *nulls, ItemPointer tid, void *arg)
{
	const MarkVisit *mark = arg;
	int64		number = DatumGetInt64(values[IDEM_SLOT_RUN]);
	bytea	   *body = nulls[IDEM_SLOT_BODY] ? NULL : DatumGetByteaPP(values[IDEM_SLOT_BODY]);
	IdemRun		run;

	if (body == NULL || !parse_mark(VARDATA_ANY(body), VARSIZE_ANY_EXHDR(body), &run) ||
		!fits_table(mark->slot, &run))
		report_mark(mark->slot, tid, number);
	run.slot = mark->slot->number;
	run.tid = *tid;
	run.lsn = idem_slot_lsn(mark->slot, tid);
	run.number = number;
	run.packer = nulls[IDEM_SLOT_PACKER] ? InvalidFullTransactionId :
		DatumGetFullTransactionId(values[IDEM_SLOT_PACKER]);
	/* pg_resetwal set the ids back, and ended all transactions */
	if (!FullTransactionIdPrecedes(run.packer, ReadNextFullTransactionId()))
		run.packer = InvalidFullTransactionId;
	mark->visit(&run, mark->arg);
	return true;
}

void
idem_run_read_marks(const IdemSlot *slot, void (*visit) (const IdemRun *run, void *arg),
					void *arg)
{
	MarkVisit	mark = {slot, visit, arg};

	idem_slot_visit(slot, IDEM_SLOT_MARK, -1, visit_mark, &mark);
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

/* Keep the highest column of the marks. */
static void
visit_column(const IdemRun *run, void *arg)
{
	int		   *highest = arg;

	*highest = Max(*highest, run->column);
}

/* Begin to fill the column of the filters behind those of the runs that are there. */
static void
begin_filter(IdemRunWriter *writer, IdemSlot *slot, int64 expected)
{
	IdemRun    *run = writer->run;
	int			column = -1;

	idem_run_read_marks(slot, visit_column, &column);
	column++;
	writer->filter = NULL;
	if (column < IDEM_SLOT_RUNS)
		writer->filter = idem_filter_begin(slot, writer->rows, run->level, column,
										   Max(expected, MIN_FILTERED));
	run->column = writer->filter != NULL ? column : -1;
}

IdemRunWriter *
idem_run_begin(IdemSlot *slot, IdemRun *run, int64 expected)
{
	IdemRunWriter *writer = palloc(sizeof(IdemRunWriter));

	run->slot = slot->number;
	run->pages = run->digests = run->details = run->specials = 0;
	writer->run = run;
	writer->rows = idem_slot_begin_write(slot, run->number);
	run->packer = GetTopFullTransactionId();
	begin_filter(writer, slot, expected);
	idem_slot_reset_first_block(writer->rows);
	writer->waiting = run->plain ? NULL : BufFileCreateTemp(false);
	writer->ndigests = 0;
	writer->entries = 0;
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

/* Searches rely on the order, so a caller that breaks it gets an error. */
static void
check_order(IdemRunWriter *writer, const IdemEventEntry *entry)
{
	int			cmp;

	if (writer->entries == 0)
		return;
	cmp = idem_digest_compare(&writer->last_digest, &entry->digest);
	if (cmp > 0 || (cmp == 0 && writer->last_turn >= entry->turn))
		elog(ERROR, "entries of run " INT64_FORMAT " are not in order", writer->run->number);
}

/* Add the digest to the filter; each only once. */
static void
add_to_filter(IdemRunWriter *writer, const pg_uuid_t *digest)
{
	if (writer->filter != NULL &&
		(writer->entries == 0 || idem_digest_compare(&writer->last_digest, digest) != 0))
		idem_filter_add(writer->filter, digest);
}

void
idem_run_add(IdemRunWriter *writer, const IdemEventEntry *entry)
{
	bool		special = idem_entry_is_special(entry);

	check_order(writer, entry);
	add_to_filter(writer, &entry->digest);
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

/* Write the end mark, after everything else and in a batch of its own. */
static void
write_mark(IdemRunWriter *writer)
{
	pg_uuid_t	zero = {{0}};
	StringInfoData mark;

	idem_slot_flush(writer->rows);
	IDEM_FAULT_POINT("store-run-before-mark");
	form_mark(writer->run, &mark);
	idem_slot_write_body(writer->rows, IDEM_SLOT_MARK, &zero, mark.data, mark.len);
	idem_slot_flush(writer->rows);
	pfree(mark.data);
}

void
idem_run_finish(IdemRunWriter *writer)
{
	end_page(writer);
	if (writer->waiting != NULL)
		write_waiting(writer);
	writer->run->first_block = idem_slot_first_block(writer->rows);
	if (writer->filter != NULL && !idem_filter_finish(writer->filter))
		writer->run->column = -1;
	write_mark(writer);
	idem_slot_end_write(writer->rows);
	pfree(writer);
}

/* Searching */

/* What a page says of a digest. */
typedef enum PageAnswer
{
	PAGE_HAS_IT,
	PAGE_LACKS_IT,				/* and no other page of the run has it */
	PAGE_IS_BEFORE,				/* the last digest of the page is smaller */
	PAGE_IS_AFTER				/* the first digest of the page is greater */
} PageAnswer;

/* Error XX001: a body is not a page of digests. */
pg_noreturn static void
report_page(const IdemSlot *slot, const IdemRun *run)
{
	ereport(ERROR,
			(errcode(ERRCODE_DATA_CORRUPTED),
			 errmsg("run " INT64_FORMAT " in table \"%s.%s\" has a page that cannot be read",
					run->number, IDEM_DATA_SCHEMA_NAME, RelationGetRelationName(slot->heap)),
			 errhint(IDEM_SLOT_ROW_HINT)));
}

/* The number of digests on a page. */
static int
page_digests(const IdemSlot *slot, const IdemRun *run, int len)
{
	if (len == 0 || len % UUID_LEN != 0 || len / UUID_LEN > IDEM_PAGE_DIGESTS)
		report_page(slot, run);
	return len / UUID_LEN;
}

/* Ask a page of n digests. */
static PageAnswer
ask_page(const pg_uuid_t *page, int n, const pg_uuid_t *digest)
{
	int			low = 0;
	int			high = n - 1;

	if (idem_digest_compare(digest, &page[0]) < 0)
		return PAGE_IS_AFTER;
	if (idem_digest_compare(digest, &page[n - 1]) > 0)
		return PAGE_IS_BEFORE;
	while (low <= high)
	{
		int			middle = (low + high) / 2;
		int			cmp = idem_digest_compare(digest, &page[middle]);

		if (cmp == 0)
			return PAGE_HAS_IT;
		if (cmp < 0)
			high = middle - 1;
		else
			low = middle + 1;
	}
	return PAGE_LACKS_IT;
}

/* The first eight bytes of a digest, as a number of the same order. */
static uint64
digest_position(const pg_uuid_t *digest)
{
	uint64		value;

	memcpy(&value, digest->data, sizeof(value));
	return pg_ntoh64(value);
}

/* The pages that may have a digest, and the positions at their borders. */
typedef struct PageRange
{
	int64		low;
	int64		high;			/* inclusive */
	uint64		after;			/* position of the digest before page low */
	uint64		before;			/* position of the digest after page high */
} PageRange;

/* The page of the range that has a position, if digests are uniform. */
static int64
guess_page(const PageRange *range, uint64 position)
{
	double		width = (double) range->before - (double) range->after;
	double		part = (double) position - (double) range->after;
	int64		pages = range->high - range->low + 1;
	int64		guess = width > 0 ? (int64) (part / width * pages) : 0;

	return range->low + Max(0, Min(guess, pages - 1));
}

/*
 * Ask the page at a block.  Returns false if there is no page of the run.
 * Narrows the range unless the page is the one that decides.
 */
static bool
ask_block(const IdemSlot *slot, const IdemRun *run, int64 page, const pg_uuid_t *digest,
		  PageRange *range, PageAnswer *answer)
{
	int			len;
	Buffer		buffer;
	const pg_uuid_t *digests;
	int			n;

	digests = (const pg_uuid_t *) idem_slot_body_at(slot, run->first_block + page, IDEM_SLOT_PAGE,
													run->number, NULL, &len, &buffer);
	if (digests == NULL)
		return false;
	n = page_digests(slot, run, len);
	*answer = ask_page(digests, n, digest);
	if (*answer == PAGE_IS_AFTER)
	{
		range->high = page - 1;
		range->before = digest_position(&digests[0]);
	}
	else if (*answer == PAGE_IS_BEFORE)
	{
		range->low = page + 1;
		range->after = digest_position(&digests[n - 1]);
	}
	UnlockReleaseBuffer(buffer);
	return true;
}

/*
 * Search the pages where the mark says that they are.  Returns false if that
 * does not decide.
 */
static bool
search_blocks(const IdemSlot *slot, const IdemRun *run, const pg_uuid_t *digest, bool *found)
{
	uint64		position = digest_position(digest);
	PageRange	range = {0, run->pages - 1, 0, PG_UINT64_MAX};
	PageAnswer	answer;

	if (run->first_block == InvalidBlockNumber)
		return false;
	for (int i = 0; i < MAX_GUESSES && range.low <= range.high; i++)
	{
		if (!ask_block(slot, run, guess_page(&range, position), digest, &range, &answer))
			return false;
		if (answer == PAGE_HAS_IT || answer == PAGE_LACKS_IT)
		{
			*found = answer == PAGE_HAS_IT;
			return true;
		}
	}
	return false;
}

/* Search the pages by the index: the last one that does not begin after the digest. */
static bool
search_index(const IdemSlot *slot, const IdemRun *run, const pg_uuid_t *digest)
{
	ItemPointerData tid;
	int			len;
	Buffer		buffer;
	const char *body = idem_slot_body_by_index(slot, IDEM_SLOT_PAGE, run->number, digest,
											   &len, &tid, &buffer);
	PageAnswer	answer;

	if (body == NULL)
		return false;
	answer = ask_page((const pg_uuid_t *) body, page_digests(slot, run, len), digest);
	UnlockReleaseBuffer(buffer);
	return answer == PAGE_HAS_IT;
}

/* Is the digest on a page of the run? */
static bool
pages_have(const IdemSlot *slot, const IdemRun *run, const pg_uuid_t *digest)
{
	bool		found;

	if (run->pages == 0)
		return false;
	if (search_blocks(slot, run, digest, &found))
		return found;
	return search_index(slot, run, digest);
}

/* The entry that a digest on a page stands for. */
static void
fill_plain(const pg_uuid_t *digest, IdemEventEntry *entry)
{
	memset(entry, 0, sizeof(*entry));
	entry->digest = *digest;
	entry->turn = 1;
	entry->state = IDEM_ENTRY_COMPLETED;
}

/*
 * A detail has the last word: it is that of the entry on the page, or of a
 * later turn.
 */
bool
idem_run_search(const IdemSlot *slot, const IdemRun *run, const pg_uuid_t *digest,
				bool detail, IdemEventEntry *entry)
{
	if ((run->specials > 0 || (detail && run->details > 0)) &&
		idem_detail_find(slot, run->number, digest, detail, entry))
		return true;
	if (!pages_have(slot, run, digest))
		return false;
	fill_plain(digest, entry);
	return true;
}

/* Reading everything */

/*
 * The source of a merge is emptied after the merge, so a run that lacks rows
 * must not be merged.  At the end of the run the rows are those that the mark says; before,
 * no more: whatever rows are there, a merge writes what the marks count, for which
 * there is room (fits_table).
 */
static void
check_complete(IdemRunReader *reader, bool at_end)
{
	const IdemRun *run = &reader->run;

	if (at_end ? reader->npages == run->pages && reader->ndigests == run->digests && reader->ndetails == run->details :
		reader->npages <= run->pages && reader->ndigests <= run->digests && reader->ndetails <= run->details)
		return;
	ereport(ERROR,
			(errcode(ERRCODE_DATA_CORRUPTED),
			 errmsg("run " INT64_FORMAT " in table \"%s.%s\" is not complete",
					reader->run.number, IDEM_DATA_SCHEMA_NAME,
					RelationGetRelationName(reader->slot->heap)),
			 errdetail("Found " INT64_FORMAT " of " INT64_FORMAT " ids and " INT64_FORMAT " of " INT64_FORMAT " details.",
					   reader->ndigests, reader->run.digests, reader->ndetails, reader->run.details),
			 errhint("Build the table's index again with REINDEX. While a restore of the table is at work, its rows are still to come.")));
}

/* Go to the next detail. */
static void
next_detail(IdemRunReader *reader)
{
	reader->detail_used = false;
	if (idem_detail_next(reader->details, &reader->detail))
	{
		reader->ndetails++;
		check_complete(reader, false);
		return;
	}
	idem_detail_end(reader->details);
	reader->details = NULL;
}

IdemRunReader *
idem_run_read(const IdemSlot *slot, const IdemRun *run)
{
	IdemRunReader *reader = palloc(sizeof(IdemRunReader));

	reader->slot = slot;
	reader->run = *run;
	reader->pages = idem_slot_scan_begin(slot, IDEM_SLOT_PAGE, run->number, NULL);
	reader->npages = reader->ndigests = reader->ndetails = 0;
	reader->n = reader->next = 0;
	reader->details = idem_detail_begin(slot, run->number);
	next_detail(reader);
	return reader;
}

/*
 * The next digest of the pages; NULL at the end.  The pages come by the index,
 * which has them wherever they stand.  A run that was restored twice has each page
 * twice, one after the other.
 */
static const pg_uuid_t *
peek_digest(IdemRunReader *reader)
{
	int			len;

	if (reader->next < reader->n)
		return &reader->page[reader->next];
	do
	{
		if (!idem_slot_scan_next_body(reader->pages, (char *) reader->page, &len))
			return NULL;
	} while (reader->npages > 0 && idem_digest_compare(&reader->page[0], &reader->first) == 0);
	reader->first = reader->page[0];
	reader->n = page_digests(reader->slot, &reader->run, len);
	reader->next = 0;
	reader->npages++;
	reader->ndigests += reader->n;
	check_complete(reader, false);
	return &reader->page[0];
}

/* The digest on a page comes before the detail. */
static bool
digest_is_first(const pg_uuid_t *digest, const IdemEventEntry *detail, bool *same)
{
	int			cmp = idem_digest_compare(digest, &detail->digest);

	*same = cmp == 0 && !idem_entry_is_special(detail);
	return cmp < 0 || (cmp == 0 && detail->turn > 1);
}

bool
idem_run_next(IdemRunReader *reader, IdemEventEntry *entry)
{
	const pg_uuid_t *digest = peek_digest(reader);
	bool		same = false;

	if (reader->details != NULL && reader->detail_used)
		next_detail(reader);
	if (digest == NULL && reader->details == NULL)
	{
		check_complete(reader, true);
		return false;
	}
	if (digest != NULL &&
		(reader->details == NULL || digest_is_first(digest, &reader->detail, &same)))
	{
		fill_plain(digest, entry);
		reader->next++;
		return true;
	}
	if (same)
		reader->next++;
	*entry = reader->detail;
	reader->detail_used = true;
	return true;
}

void
idem_run_end_read(IdemRunReader *reader)
{
	idem_slot_scan_end(reader->pages);
	if (reader->details != NULL)
		idem_detail_end(reader->details);
	pfree(reader);
}
