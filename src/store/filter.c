/*-------------------------------------------------------------------------
 *
 * filter.c
 *		Matrices of filters in a slot: making, filling and asking them.
 *
 * A matrix is a number of rows of kind IDEM_SLOT_FILTER, one to a page of the
 * slot (filter_page.h).  It is made before its first column is filled, with
 * all bits set.  A run fills its column in place.
 *
 * A slot of level 0 has one matrix for all its runs.  A slot of a higher level
 * has a narrow one, and a wide one from its fifth run on: each matrix is a page
 * more to ask, but a matrix takes its space when its first run comes, and runs
 * of higher levels come seldom.
 *
 * The size of a matrix follows from the first run that needs it, at
 * BITS_PER_ID bits for each id, and ROOM percent more.  A digest that was never
 * added has its bits set with a chance of 0.2 % in a run of the expected size,
 * and of 1.3 % in a run 1.5 times as large.
 *
 * Invariant: as long as a run has an end mark that names a column, each digest
 * of the run has its bits set in the column, on every page that
 * idem_filter_ask may look at.  Whatever is missing or is not as expected
 * counts as set.
 *
 * A crash or an error while a matrix is made leaves its first pages.  The last
 * page is missing then, so nobody uses the matrix.  The next run makes all pages
 * anew, at least as many as the unfinished matrix was to have; the index finds
 * the newest of several rows with the same number.  The field "maker" tells the pages of the two
 * apart.  A crash or an error while a column is filled leaves a column that no
 * end mark names.  The next run overwrites it.
 *
 * LOCKING: the content lock of one page at a time.  The caller has locked the
 * slot: AccessShareLock to ask, RowExclusiveLock and the packer's lock to fill.
 * Nobody moves a row within its page, since rows of a slot are never updated
 * or deleted; a page that was changed while its lock was let go is looked up
 * again all the same.
 *
 * MEMORY: a writer, in the caller's context; asking allocates nothing, unless
 * the index is needed.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/store/filter.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/generic_xlog.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "utils/rel.h"

#include "compat.h"
#include "store/filter.h"
#include "store/filter_page.h"

#define BITS_PER_ID		12
#define ROOM			12		/* percent */

/* Columns of the first matrix of a slot whose level is not 0. */
#define NARROW_WIDTH	4

/* A run that has more ids than this many times the ids of a matrix gets no filter. */
#define MAX_OVERFILL	4

StaticAssertDecl(sizeof(IdemFilterPage) <= IDEM_SLOT_BODY_BYTES, "a page of filters fits a row");

struct IdemFilterWriter
{
	const IdemSlot *slot;
	IdemFilters filters;		/* loaded: the writer's own matrix only */
	int			matrix;
	int			column;			/* in the matrix */
	Size		block_size;
	uint32		page;			/* the page that "block" is for */
	bool		lost;			/* a page could not be found */
	uint32		block[FLEXIBLE_ARRAY_MEMBER];
};

/* Which matrices does a slot of this level have?  None of them is made yet. */
static void
init_filters(IdemFilters *filters, int level)
{
	memset(filters, 0, sizeof(*filters));
	if (level == 0)
	{
		filters->nmatrices = 1;
		filters->matrix[0].width = IDEM_SLOT_RUNS;
		return;
	}
	filters->nmatrices = 2;
	filters->matrix[0].width = NARROW_WIDTH;
	filters->matrix[1].first = NARROW_WIDTH;
	filters->matrix[1].width = IDEM_SLOT_RUNS - NARROW_WIDTH;
}

/* The ids of one run that a page is made for. */
static int
page_ids(int width)
{
	return idem_filter_block_bits(width) / BITS_PER_ID;
}

/* The number of pages of a matrix for runs of this many ids. */
static uint32
pages_for(int64 ids, int width)
{
	int64		pages = (ids + ids * ROOM / 100) / page_ids(width) + 1;

	return (uint32) Min(pages, MaxBlockNumber);
}

/* The digest of the row that has a page. */
static pg_uuid_t
row_digest(uint64 matrix, uint64 page)
{
	pg_uuid_t	digest;

	for (int i = 0; i < 8; i++)
	{
		digest.data[i] = (unsigned char) (matrix >> (8 * (7 - i)));
		digest.data[8 + i] = (unsigned char) (page >> (8 * (7 - i)));
	}
	return digest;
}

/* The body as a page of filters; NULL if this version does not write pages like it. */
static const IdemFilterPage *
as_page(const char *body, int len)
{
	const IdemFilterPage *page = (const IdemFilterPage *) body;

	return len == sizeof(IdemFilterPage) && page->version == IDEM_FILTER_VERSION &&
		page->page < page->pages ? page : NULL;
}

typedef enum Found
{
	FOUND_NOTHING,				/* no row */
	FOUND_FOREIGN,				/* rows that another version wrote */
	FOUND_REMAINS,				/* of a matrix that was not finished */
	FOUND_MATRIX
} Found;

/* What does the last row that may belong to a matrix say?  page: NULL if not ours. */
static Found
classify(const IdemFilterPage *page, int matrix, int width)
{
	if (page == NULL)
		return FOUND_FOREIGN;
	if (page->matrix != matrix)
		return FOUND_NOTHING;	/* the row is of the matrix before */
	if (page->width != width)
		return FOUND_FOREIGN;
	return page->page == page->pages - 1 ? FOUND_MATRIX : FOUND_REMAINS;
}

/*
 * Find a matrix by the row of its last page, and fill in its fields of
 * *filters.  Of a matrix that is not complete, "pages" remains 0, and
 * *remains gets the number of pages that it should have had.
 */
static Found
find_matrix(const IdemSlot *slot, IdemFilters *filters, int matrix, uint32 *remains)
{
	pg_uuid_t	last = row_digest(matrix, PG_UINT64_MAX);
	ItemPointerData tid;
	Buffer		buffer;
	int			len;
	const char *body = idem_slot_body_by_index(slot, IDEM_SLOT_FILTER, 0, &last, &len, &tid, &buffer);
	const IdemFilterPage *page;
	Found		found;

	filters->matrix[matrix].pages = 0;
	if (body == NULL)
		return FOUND_NOTHING;
	page = as_page(body, len);
	found = classify(page, matrix, filters->matrix[matrix].width);
	if (found == FOUND_REMAINS)
		*remains = page->pages;
	if (found == FOUND_MATRIX)
	{
		BlockNumber block = ItemPointerGetBlockNumber(&tid);

		filters->matrix[matrix].pages = page->pages;
		filters->matrix[matrix].maker = page->maker;
		filters->matrix[matrix].first_block = block - Min(page->page, block);
	}
	UnlockReleaseBuffer(buffer);
	return found;
}

void
idem_filter_load(const IdemSlot *slot, int level, IdemFilters *filters)
{
	uint32		remains;

	init_filters(filters, level);
	for (int i = 0; i < filters->nmatrices; i++)
		(void) find_matrix(slot, filters, i, &remains);
}

/* The page, if it is the one that is looked for; else give the buffer back. */
static const IdemFilterPage *
check_page(const char *body, int len, Buffer buffer, const IdemFilters *filters, int matrix, uint32 number)
{
	const IdemFilterPage *page;

	if (body == NULL)
		return NULL;
	page = as_page(body, len);
	if (page != NULL && page->matrix == matrix && page->page == number &&
		page->width == filters->matrix[matrix].width &&
		page->pages == filters->matrix[matrix].pages && page->maker == filters->matrix[matrix].maker)
		return page;
	UnlockReleaseBuffer(buffer);
	return NULL;
}

/*
 * A page of a matrix, in a buffer that is pinned and share-locked: at the
 * expected block, else by the index.  NULL, and no buffer, if it is neither
 * here nor there.
 */
static const IdemFilterPage *
get_page(const IdemSlot *slot, const IdemFilters *filters, int matrix, uint32 number, Buffer *buffer)
{
	pg_uuid_t	digest = row_digest(matrix, number);
	ItemPointerData tid;
	int			len;
	const char *body = idem_slot_body_at(slot, filters->matrix[matrix].first_block + number,
										 IDEM_SLOT_FILTER, 0, &digest, &len, buffer);
	const IdemFilterPage *page = check_page(body, len, *buffer, filters, matrix, number);

	if (page != NULL)
		return page;
	body = idem_slot_body_by_index(slot, IDEM_SLOT_FILTER, 0, &digest, &len, &tid, buffer);
	return check_page(body, len, *buffer, filters, matrix, number);
}

/* Ask one matrix.  Bits by column of the matrix. */
static uint32
ask_matrix(const IdemSlot *slot, const IdemFilters *filters, int matrix, const pg_uuid_t *digest)
{
	uint32		pages = filters->matrix[matrix].pages;
	const IdemFilterPage *page;
	Buffer		buffer;
	uint32		found;

	if (pages == 0)
		return PG_UINT32_MAX;
	page = get_page(slot, filters, matrix, idem_filter_page_of(digest, pages), &buffer);
	if (page == NULL)
		return PG_UINT32_MAX;
	found = idem_filter_page_ask(page, digest);
	UnlockReleaseBuffer(buffer);
	return found;
}

uint32
idem_filter_ask(const IdemSlot *slot, const IdemFilters *filters, uint32 columns, const pg_uuid_t *digest)
{
	uint32		found = 0;

	for (int i = 0; i < filters->nmatrices; i++)
	{
		int			first = filters->matrix[i].first;
		uint32		asked = columns & ((((uint32) 1 << filters->matrix[i].width) - 1) << first);

		if (asked != 0)
			found |= asked & (ask_matrix(slot, filters, i, digest) << first);
	}
	return found;
}

/*
 * Write all pages of a matrix, with all bits set.  The reader of a column that
 * was never filled, whyever, finds every digest in it.
 */
static void
make_matrix(IdemFilters *filters, int matrix, uint32 pages, IdemSlotWriter *rows)
{
	IdemFilterPage *page = palloc(sizeof(*page));

	page->version = IDEM_FILTER_VERSION;
	page->width = filters->matrix[matrix].width;
	page->matrix = matrix;
	page->pages = pages;
	page->maker = GetTopTransactionId();
	memset(page->words, 0xff, sizeof(page->words));
	idem_slot_flush(rows);
	idem_slot_reset_first_block(rows);
	for (page->page = 0; page->page < pages; page->page++)
	{
		pg_uuid_t	digest = row_digest(matrix, page->page);

		CHECK_FOR_INTERRUPTS();
		idem_slot_write_body(rows, IDEM_SLOT_FILTER, &digest, (const char *) page, sizeof(*page));
	}
	idem_slot_flush(rows);
	filters->matrix[matrix].pages = pages;
	filters->matrix[matrix].first_block = idem_slot_first_block(rows);
	filters->matrix[matrix].maker = page->maker;
	idem_slot_reset_first_block(rows);
	pfree(page);
}

/* Find the matrix or make it; false if the run has to do without. */
static bool
prepare_matrix(const IdemSlot *slot, IdemFilters *filters, int matrix, IdemSlotWriter *rows, int64 expected)
{
	int			width = filters->matrix[matrix].width;
	uint32		remains = 0;
	Found		found = find_matrix(slot, filters, matrix, &remains);

	if (found == FOUND_FOREIGN)
		return false;

	/* such remains are not a writer's, and new pages would fill the disk */
	if (remains > MAX_OVERFILL * Max(pages_for(expected, width), (int64) RelationGetNumberOfBlocks(slot->heap)))
		return false;
	if (found == FOUND_MATRIX)
		return expected <= (int64) filters->matrix[matrix].pages * page_ids(width) * MAX_OVERFILL;
	make_matrix(filters, matrix, Max(pages_for(expected, width), remains), rows);
	return true;
}

IdemFilterWriter *
idem_filter_begin(IdemSlot *slot, IdemSlotWriter *rows, int level, int column, int64 expected)
{
	IdemFilters filters;
	IdemFilterWriter *writer;
	Size		block_size;
	int			matrix;

	init_filters(&filters, level);
	matrix = column < filters.matrix[0].width ? 0 : 1;
	if (!prepare_matrix(slot, &filters, matrix, rows, expected))
		return NULL;
	block_size = idem_filter_block_bits(filters.matrix[matrix].width) / 8;
	writer = palloc0(offsetof(IdemFilterWriter, block) + block_size);
	writer->slot = slot;
	writer->filters = filters;
	writer->matrix = matrix;
	writer->column = column - filters.matrix[matrix].first;
	writer->block_size = block_size;
	return writer;
}

/*
 * Like get_page, but with an exclusive lock.  *offset: of the page of filters in the
 * buffer's page.  A change between the two locks changes the LSN.
 */
static bool
get_page_to_write(const IdemFilterWriter *writer, Buffer *buffer, Size *offset)
{
	for (;;)
	{
		const IdemFilterPage *page = get_page(writer->slot, &writer->filters, writer->matrix, writer->page, buffer);
		XLogRecPtr	lsn;

		if (page == NULL)
			return false;
		*offset = (const char *) page - (const char *) BufferGetPage(*buffer);
		lsn = BufferGetLSNAtomic(*buffer);
		LockBuffer(*buffer, BUFFER_LOCK_UNLOCK);
		LockBuffer(*buffer, BUFFER_LOCK_EXCLUSIVE);
		if (BufferGetLSNAtomic(*buffer) == lsn)
			return true;
		UnlockReleaseBuffer(*buffer);
		CHECK_FOR_INTERRUPTS();
	}
}

/* Write the block to its page, and begin the block of the next page. */
static void
write_block(IdemFilterWriter *writer)
{
	Buffer		buffer;
	Size		offset;

	CHECK_FOR_INTERRUPTS();
	if (get_page_to_write(writer, &buffer, &offset))
	{
		GenericXLogState *state = GenericXLogStart(writer->slot->heap);
		Page		page = GenericXLogRegisterBuffer(state, buffer, 0);

		idem_filter_page_put((IdemFilterPage *) ((char *) page + offset), writer->column, writer->block);
		GenericXLogFinish(state);
		UnlockReleaseBuffer(buffer);
		if (writer->slot->wrote != NULL)
			writer->slot->wrote(writer->block_size);
	}
	else
		writer->lost = true;
	memset(writer->block, 0, writer->block_size);
	writer->page++;
}

void
idem_filter_add(IdemFilterWriter *writer, const pg_uuid_t *digest)
{
	uint32		page = idem_filter_page_of(digest, writer->filters.matrix[writer->matrix].pages);

	if (page < writer->page)
		elog(ERROR, "digests of a run are not in ascending order");
	while (writer->page < page)
		write_block(writer);
	idem_filter_block_add(writer->block, writer->filters.matrix[writer->matrix].width, digest);
}

bool
idem_filter_finish(IdemFilterWriter *writer)
{
	bool		lost;

	while (writer->page < writer->filters.matrix[writer->matrix].pages)
		write_block(writer);
	lost = writer->lost;
	pfree(writer);
	return !lost;
}
