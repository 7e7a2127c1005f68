/*-------------------------------------------------------------------------
 *
 * run_read.c
 *		Runs: searching one, and reading all of it.
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
 * An event may have several details in a run, one of each turn.  The index does
 * not have the turns, so whoever wants them in order reads all rows of a
 * digest.  They are few: kept claims, and orders to forget.
 *
 * Values that are stored out of line need no snapshot either.  The packer's
 * heap_multi_insert writes their chunks with the options of the row, so they
 * are frozen, too; a restore commits its chunks with its rows.  So if the row
 * is there (slot.c), its chunks are.
 *
 * LOCKING: as in slot.c; no page stays locked between calls.  A scan of details keeps a
 * page of the index pinned.
 *
 * MEMORY: a reader has a page, the rows of one digest, without the values that are
 * stored out of line, and the values of one entry.  It is in the context that is current
 * when it is made, which must live as long as it does.  An entry that is found has its
 * values in the current context.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/store/run_read.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "miscadmin.h"
#include "port/pg_bswap.h"
#include "storage/bufmgr.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "shared/catalog.h"
#include "store/run.h"

/* After so many guesses the index finds the page. */
#define MAX_GUESSES		6

/* Details */

typedef struct Detail
{
	int16		turn;
	HeapTuple	tuple;
} Detail;

/*
 * Streams the details of a run in order of (digest, turn).  An entry is valid
 * until the next call.
 */
typedef struct DetailScan
{
	const IdemSlot *slot;
	IdemSlotScan *rows;
	MemoryContext context;		/* of the scan */
	MemoryContext entry_context;	/* of the entry that was returned last */
	Detail	   *group;			/* the rows of one digest, by turn */
	int			size;			/* of the array */
	int			ngroup;
	int			next;			/* in the group */
	HeapTuple	ahead;			/* the first row of the next digest; NULL: the
								 * rows are at their end */
} DetailScan;

/* A time; 0 if it is NULL. */
static TimestampTz
time_value(const IdemSlot *slot, HeapTuple tuple, int column)
{
	bool		isnull;
	Datum		value = idem_slot_value(slot, tuple, column, &isnull);

	return isnull ? 0 : DatumGetTimestampTz(value);
}

/* A detoasted copy of a long value; 0 if it is NULL. */
static Datum
long_value(const IdemSlot *slot, HeapTuple tuple, int column)
{
	bool		isnull;
	Datum		value = idem_slot_value(slot, tuple, column, &isnull);

	return isnull ? (Datum) 0 : PointerGetDatum(PG_DETOAST_DATUM_COPY(value));
}

static int16
turn_value(const IdemSlot *slot, HeapTuple tuple)
{
	bool		isnull;
	Datum		value = idem_slot_value(slot, tuple, IDEM_SLOT_TURN, &isnull);

	return isnull ? 0 : DatumGetInt16(value);
}

/* Make an entry of a row. */
static void
fill_entry(const IdemSlot *slot, HeapTuple tuple, bool values, IdemEventEntry *entry)
{
	bool		isnull;
	Datum		state = idem_slot_value(slot, tuple, IDEM_SLOT_STATE, &isnull);

	entry->digest = *idem_slot_digest(slot, tuple);
	entry->turn = turn_value(slot, tuple);
	entry->state = isnull ? '\0' : DatumGetChar(state);
	entry->has_detail = values;
	entry->claimed_at = time_value(slot, tuple, IDEM_SLOT_CLAIMED_AT);
	entry->completed_at = time_value(slot, tuple, IDEM_SLOT_COMPLETED_AT);
	entry->event_id = values ? long_value(slot, tuple, IDEM_SLOT_EVENT_ID) : 0;
	entry->consumer = values ? long_value(slot, tuple, IDEM_SLOT_CONSUMER) : 0;
	entry->result = values ? long_value(slot, tuple, IDEM_SLOT_RESULT) : 0;
	entry->tid = tuple->t_self;
}

/*
 * Find the detail of an event in a run, with the highest turn.  values: also
 * get id, consumer and result, palloc'd in the current context; else they are
 * 0, and has_detail is false.
 */
static bool
find_detail(const IdemSlot *slot, int64 run, const pg_uuid_t *digest,
			bool values, IdemEventEntry *entry)
{
	IdemSlotScan *rows = idem_slot_scan_begin(slot, IDEM_SLOT_DETAIL, run, digest);
	HeapTuple	best = NULL;
	HeapTuple	tuple;

	while ((tuple = idem_slot_scan_next(rows)) != NULL)
	{
		HeapTuple	other = tuple;

		if (best == NULL || turn_value(slot, tuple) > turn_value(slot, best))
		{
			other = best;
			best = tuple;
		}
		if (other != NULL)
			heap_freetuple(other);
	}
	idem_slot_scan_end(rows);
	if (best == NULL)
		return false;
	fill_entry(slot, best, values, entry);
	heap_freetuple(best);
	return true;
}

static DetailScan *
begin_details(const IdemSlot *slot, int64 run)
{
	DetailScan *scan = palloc0(sizeof(DetailScan));

	scan->slot = slot;
	scan->rows = idem_slot_scan_begin(slot, IDEM_SLOT_DETAIL, run, NULL);
	scan->context = CurrentMemoryContext;
	scan->entry_context = AllocSetContextCreate(CurrentMemoryContext, "detail of the dedup store",
												ALLOCSET_DEFAULT_SIZES);
	scan->size = 4;
	scan->group = palloc(scan->size * sizeof(Detail));
	scan->ahead = idem_slot_scan_next(scan->rows);
	return scan;
}

/* Add a row to the group; not if a restore has brought it twice. */
static void
add_to_group(DetailScan *scan, HeapTuple tuple)
{
	for (int i = 0; i < scan->ngroup; i++)
	{
		if (scan->group[i].turn == turn_value(scan->slot, tuple))
		{
			heap_freetuple(tuple);
			return;
		}
	}
	if (scan->ngroup == scan->size)
	{
		scan->size *= 2;
		scan->group = repalloc(scan->group, scan->size * sizeof(Detail));
	}
	scan->group[scan->ngroup].turn = turn_value(scan->slot, tuple);
	scan->group[scan->ngroup++].tuple = tuple;
}

static int
compare_turns(const void *a, const void *b)
{
	return ((const Detail *) a)->turn - ((const Detail *) b)->turn;
}

/*
 * Collect the rows of the next digest.  The index has them in the order of
 * their places, which after a restore may not be the order of their turns.
 */
static void
fill_group(DetailScan *scan)
{
	MemoryContext old = MemoryContextSwitchTo(scan->context);

	scan->ngroup = scan->next = 0;
	while (scan->ahead != NULL &&
		   (scan->ngroup == 0 ||
			idem_digest_compare(idem_slot_digest(scan->slot, scan->ahead),
								idem_slot_digest(scan->slot, scan->group[0].tuple)) == 0))
	{
		add_to_group(scan, scan->ahead);
		scan->ahead = idem_slot_scan_next(scan->rows);
	}
	qsort(scan->group, scan->ngroup, sizeof(Detail), compare_turns);
	MemoryContextSwitchTo(old);
}

static bool
next_of_details(DetailScan *scan, IdemEventEntry *entry)
{
	MemoryContext old;
	HeapTuple	tuple;

	CHECK_FOR_INTERRUPTS();
	MemoryContextReset(scan->entry_context);
	if (scan->next == scan->ngroup)
		fill_group(scan);
	if (scan->next == scan->ngroup)
		return false;
	tuple = scan->group[scan->next++].tuple;
	old = MemoryContextSwitchTo(scan->entry_context);
	fill_entry(scan->slot, tuple, true, entry);
	MemoryContextSwitchTo(old);
	heap_freetuple(tuple);
	return true;
}

static void
end_details(DetailScan *scan)
{
	idem_slot_scan_end(scan->rows);
	MemoryContextDelete(scan->entry_context);
	pfree(scan);
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

static int
compare_digests(const void *a, const void *b)
{
	return idem_digest_compare(a, b);
}

/* Ask a page of n digests. */
static PageAnswer
ask_page(const pg_uuid_t *page, int n, const pg_uuid_t *digest)
{
	if (idem_digest_compare(digest, &page[0]) < 0)
		return PAGE_IS_AFTER;
	if (idem_digest_compare(digest, &page[n - 1]) > 0)
		return PAGE_IS_BEFORE;
	return bsearch(digest, page, n, sizeof(*page), compare_digests) != NULL ? PAGE_HAS_IT : PAGE_LACKS_IT;
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
	int			len;
	Buffer		buffer;
	const char *body = idem_slot_body_by_index(slot, IDEM_SLOT_PAGE, run->number, digest, &len, &buffer);
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
		find_detail(slot, run->number, digest, detail, entry))
		return true;
	if (!pages_have(slot, run, digest))
		return false;
	fill_plain(digest, entry);
	return true;
}

/* Reading everything */

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
	DetailScan *details;		/* NULL: none left */
	IdemEventEntry detail;		/* the next detail */
	bool		detail_used;	/* the caller has it */
};

/* Error XX001: the rows of a run are not those that its mark counts. */
pg_noreturn static void
report_incomplete(const IdemRunReader *reader)
{
	ereport(ERROR,
			(errcode(ERRCODE_DATA_CORRUPTED),
			 errmsg("run " INT64_FORMAT " in table \"%s.%s\" is not complete",
					reader->run.number, IDEM_DATA_SCHEMA_NAME,
					RelationGetRelationName(reader->slot->heap)),
			 errdetail("Found " INT64_FORMAT " of " INT64_FORMAT " ids and " INT64_FORMAT " of " INT64_FORMAT " details.",
					   reader->ndigests, reader->run.digests, reader->ndetails, reader->run.details),
			 errhint("Build the table's index again with REINDEX. While a restore of the table is at work, its rows are still to come.")));
}

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

	if (at_end ? reader->npages != run->pages || reader->ndigests != run->digests || reader->ndetails != run->details :
		reader->npages > run->pages || reader->ndigests > run->digests || reader->ndetails > run->details)
		report_incomplete(reader);
}

/* Go to the next detail. */
static void
next_detail(IdemRunReader *reader)
{
	reader->detail_used = false;
	if (next_of_details(reader->details, &reader->detail))
	{
		reader->ndetails++;
		check_complete(reader, false);
		return;
	}
	end_details(reader->details);
	reader->details = NULL;
}

IdemRunReader *
idem_run_read(const IdemSlot *slot, const IdemRun *run)
{
	IdemRunReader *reader = palloc0(sizeof(IdemRunReader));

	reader->slot = slot;
	reader->run = *run;
	if (run->lacks_rows)
		report_incomplete(reader);
	reader->pages = idem_slot_scan_begin(slot, IDEM_SLOT_PAGE, run->number, NULL);
	reader->details = begin_details(slot, run->number);
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
		end_details(reader->details);
	pfree(reader);
}
