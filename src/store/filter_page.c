/*-------------------------------------------------------------------------
 *
 * filter_page.c
 *		The arithmetic of a page of filters.
 *
 * Each digest has PROBES bits in a block, chosen by two bytes each.  A digest
 * is the output of a hash, so its bytes are independent, and need no more
 * hashing.
 *
 * A line has n words of each column, as many as fit: words l * n to
 * l * n + n - 1 of the columns' blocks are in line l, column by column.
 *
 * Six probes are the best number for 8.7 bits an id.  Filters have 12 to 13.5
 * bits an id (filter.c); more probes would gain little there, and would cost
 * more when a matrix is too small for a run.
 *
 * Invariant: a column that idem_filter_page_put overwrote with a block answers
 * yes for every digest that was added to the block.  A column with all bits set
 * answers yes for every digest.
 *
 * LOCKING: none of its own.
 *
 * MEMORY: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/store/filter_page.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "store/filter_page.h"

#define PROBES	6

/* The first byte of the digest that chooses bits; the ones before choose pages. */
#define FIRST_BYTE	4

StaticAssertDecl(FIRST_BYTE + 2 * PROBES == UUID_LEN, "every byte of a digest is used once");

/* The i-th bit of a digest in a block. */
static inline uint32
probe(const pg_uuid_t *digest, int i, int width)
{
	const unsigned char *d = digest->data + FIRST_BYTE + 2 * i;

	return (((uint32) d[0] << 8 | d[1]) * (uint32) idem_filter_block_bits(width)) >> 16;
}

/* Words of a column in a line. */
static inline int
share(int width)
{
	return IDEM_FILTER_LINE_WORDS / width;
}

void
idem_filter_block_add(uint32 *block, int width, const pg_uuid_t *digest)
{
	for (int i = 0; i < PROBES; i++)
	{
		uint32		bit = probe(digest, i, width);

		block[bit / 32] |= (uint32) 1 << (bit % 32);
	}
}

void
idem_filter_page_put(IdemFilterPage *page, int column, const uint32 *block)
{
	int			n = share(page->width);
	int			line = page->width * n;

	for (uint32 *to = page->words; to < page->words + IDEM_FILTER_WORDS; to += line, block += n)
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
	uint32		found[IDEM_FILTER_LINE_WORDS];
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

uint32
idem_filter_page_ask(const IdemFilterPage *page, const pg_uuid_t *digest)
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
