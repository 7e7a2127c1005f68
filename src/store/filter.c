/*-------------------------------------------------------------------------
 *
 * filter.c
 *		Matrices of filters in a slot: making, filling and asking them.
 *
 * A matrix has one column for each run.  Page p of the matrix has block p of
 * each column.  The first four bytes of a digest choose the page, so digests
 * in ascending order fill the pages in ascending order.  The other twelve
 * bytes choose the bits of the block.
 *
 * A page is cut into lines of at most 64 bytes.  A line has the same bits of
 * all columns, so each bit of a digest is found for all columns in one or two
 * lines of the processor's cache.  A column that is overwritten changes a piece
 * of every line.
 *
 * Each digest has PROBES bits in a block, chosen by two bytes each.  A digest
 * is the output of a hash, so its bytes are independent, and need no more
 * hashing.
 *
 * A line has n words of each column, as many as fit: words l * n to
 * l * n + n - 1 of the columns' blocks are in line l, column by column.
 *
 * Six probes are the best number for 8.7 bits an id.  Filters have 12 to 13.5
 * bits an id; more probes would gain little there, and would cost
 * more when a matrix is too small for a run.
 *
 * A matrix is a number of rows of kind IDEM_SLOT_FILTER, one to a page of the
 * slot.  It is made before its first column is filled, with
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

/* The words of a page, and the most words of a line. */
#define PAGE_WORDS		2016
#define LINE_WORDS	16

/* A page, as it is stored: in the byte order of the machine. */
typedef struct FilterPage
{
	uint8		version;		/* PAGE_VERSION */
	uint8		width;			/* columns of the matrix: 4, 12 or 16 */
	uint16		matrix;			/* number of the matrix in its slot */
	uint32		page;			/* number of the page in its matrix */
	uint32		pages;			/* of the matrix */
	TransactionId maker;		/* the transaction that made the matrix; tells
								 * it from remains of an unfinished one */
	uint32		words[PAGE_WORDS];
} FilterPage;

/* Rises with each change of what the bits mean. */
#define PAGE_VERSION	1

/* Bits that a page has for one column. */
static inline int
block_bits(int width)
{
	Assert(width > 0 && PAGE_WORDS % width == 0);
	return PAGE_WORDS / width * 32;
}

/* Which page of a matrix is for the digest? */
static inline uint32
page_of(const pg_uuid_t *digest, uint32 pages)
{
	const unsigned char *d = digest->data;
	uint32		top = (uint32) d[0] << 24 | (uint32) d[1] << 16 | (uint32) d[2] << 8 | d[3];

	return (uint32) (((uint64) top * pages) >> 32);
}

#define BITS_PER_ID		12
#define ROOM			12		/* percent */

/* Columns of the first matrix of a slot whose level is not 0. */
#define NARROW_WIDTH	4

/* A run that has more ids than this many times the ids of a matrix gets no filter. */
#define MAX_OVERFILL	4

StaticAssertDecl(sizeof(FilterPage) <= IDEM_SLOT_BODY_BYTES, "a page of filters fits a row");

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

/* The arithmetic of a page */

#define PROBES	6

/* The first byte of the digest that chooses bits; the ones before choose pages. */
#define FIRST_BYTE	4

StaticAssertDecl(FIRST_BYTE + 2 * PROBES == UUID_LEN, "every byte of a digest is used once");

/* The i-th bit of a digest in a block. */
static inline uint32
probe(const pg_uuid_t *digest, int i, int width)
{
	const unsigned char *d = digest->data + FIRST_BYTE + 2 * i;

	return (((uint32) d[0] << 8 | d[1]) * (uint32) block_bits(width)) >> 16;
}

/* Words of a column in a line. */
static inline int
share(int width)
{
	return LINE_WORDS / width;
}

/* Set the bits of a digest in a block of one column. */
static void
block_add(uint32 *block, int width, const pg_uuid_t *digest)
{
	for (int i = 0; i < PROBES; i++)
	{
		uint32		bit = probe(digest, i, width);

		block[bit / 32] |= (uint32) 1 << (bit % 32);
	}
}

/*
 * Overwrite the block of a column, which then answers yes for every digest that was added
 * to the block.
 */
static void
page_put(FilterPage *page, int column, const uint32 *block)
{
	int			n = share(page->width);
	int			line = page->width * n;

	for (uint32 *to = page->words; to < page->words + PAGE_WORDS; to += line, block += n)
		memcpy(to + column * n, block, n * sizeof(uint32));
}

/*
 * Ask all columns at once.  No column leaves the loop early: branches that
 * nobody can predict cost more than the probes.  The width is a constant where
 * this is inlined, so the compiler can use vectors.
 */
static inline uint32
ask(const uint32 *words, const pg_uuid_t *digest, const int width)
{
	const int	n = share(width);
	uint32		found[LINE_WORDS];
	uint32		columns = 0;

	for (int c = 0; c < width; c++)
		found[c] = 1;
	for (int i = 0; i < PROBES; i++)
	{
		uint32		bit = probe(digest, i, width);
		uint32		word = bit / 32;
		const uint32 *line = words + word / n * n * width + word % n;

		for (int c = 0; c < width; c++)
			found[c] &= line[c * n] >> (bit % 32);
	}
	for (int c = 0; c < width; c++)
		columns |= found[c] << c;
	return columns;
}

/* Which columns may have the digest?  Bits by column. */
static uint32
page_ask(const FilterPage *page, const pg_uuid_t *digest)
{
	switch (page->width)
	{
		case 4:
			return ask(page->words, digest, 4);
		case 12:
			return ask(page->words, digest, 12);
		case 16:
			return ask(page->words, digest, 16);
		default:
			return PG_UINT32_MAX;
	}
}

/* Matrices */

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
	return block_bits(width) / BITS_PER_ID;
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
static const FilterPage *
as_page(const char *body, int len)
{
	const FilterPage *page = (const FilterPage *) body;

	return len == sizeof(FilterPage) && page->version == PAGE_VERSION &&
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
classify(const FilterPage *page, int matrix, int width)
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
	Buffer		buffer;
	int			len;
	const char *body = idem_slot_body_by_index(slot, IDEM_SLOT_FILTER, 0, &last, &len, &buffer);
	const FilterPage *page;
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
		BlockNumber block = BufferGetBlockNumber(buffer);

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

/*
 * A page of a matrix, in a buffer that is pinned and share-locked: at the
 * expected block, else by the index.  NULL, and no buffer, if it is neither
 * here nor there.
 */
static const FilterPage *
get_page(const IdemSlot *slot, const IdemFilters *filters, int matrix, uint32 number, Buffer *buffer)
{
	pg_uuid_t	digest = row_digest(matrix, number);

	for (int tries = 0; tries < 2; tries++)
	{
		int			len;
		const char *body = tries == 0 ?
		idem_slot_body_at(slot, filters->matrix[matrix].first_block + number,
						  IDEM_SLOT_FILTER, 0, &digest, &len, buffer) :
		idem_slot_body_by_index(slot, IDEM_SLOT_FILTER, 0, &digest, &len, buffer);
		const FilterPage *page = body == NULL ? NULL : as_page(body, len);

		if (page != NULL && page->matrix == matrix && page->page == number &&
			page->width == filters->matrix[matrix].width &&
			page->pages == filters->matrix[matrix].pages && page->maker == filters->matrix[matrix].maker)
			return page;
		if (body != NULL)
			UnlockReleaseBuffer(*buffer);
	}
	return NULL;
}

/* Ask one matrix.  Bits by column of the matrix. */
static uint32
ask_matrix(const IdemSlot *slot, const IdemFilters *filters, int matrix, const pg_uuid_t *digest)
{
	uint32		pages = filters->matrix[matrix].pages;
	const FilterPage *page;
	Buffer		buffer;
	uint32		found;

	if (pages == 0)
		return PG_UINT32_MAX;
	page = get_page(slot, filters, matrix, page_of(digest, pages), &buffer);
	if (page == NULL)
		return PG_UINT32_MAX;
	found = page_ask(page, digest);
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
	FilterPage *page = palloc(sizeof(*page));

	page->version = PAGE_VERSION;
	page->width = filters->matrix[matrix].width;
	page->matrix = matrix;
	page->pages = pages;
	page->maker = GetTopTransactionId();
	memset(page->words, 0xff, sizeof(page->words));
	idem_slot_reset_first_block(rows);
	for (page->page = 0; page->page < pages; page->page++)
	{
		pg_uuid_t	digest = row_digest(matrix, page->page);

		CHECK_FOR_INTERRUPTS();
		idem_slot_write_body(rows, IDEM_SLOT_FILTER, &digest, (const char *) page, sizeof(*page));
	}
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
	block_size = block_bits(filters.matrix[matrix].width) / 8;
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
		const FilterPage *page = get_page(writer->slot, &writer->filters, writer->matrix, writer->page, buffer);
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

		page_put((FilterPage *) ((char *) page + offset), writer->column, writer->block);
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
	uint32		page = page_of(digest, writer->filters.matrix[writer->matrix].pages);

	if (page < writer->page)
		elog(ERROR, "digests of a run are not in ascending order");
	while (writer->page < page)
		write_block(writer);
	block_add(writer->block, writer->filters.matrix[writer->matrix].width, digest);
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
