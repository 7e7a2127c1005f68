/*-------------------------------------------------------------------------
 *
 * filter_page.h
 *		One page of a matrix: the blocks of several runs' Bloom filters.
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
 * Private to src/store.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/store/filter_page.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_STORE_FILTER_PAGE_H
#define IDEM_STORE_FILTER_PAGE_H

#include "postgres.h"

#include "store/entry.h"

/* The words of a page, and the most words of a line. */
#define IDEM_FILTER_WORDS		2016
#define IDEM_FILTER_LINE_WORDS	16

/* A page, as it is stored: in the byte order of the machine. */
typedef struct IdemFilterPage
{
	uint8		version;		/* IDEM_FILTER_VERSION */
	uint8		width;			/* columns of the matrix: 4, 12 or 16 */
	uint16		matrix;			/* number of the matrix in its slot */
	uint32		page;			/* number of the page in its matrix */
	uint32		pages;			/* of the matrix */
	TransactionId maker;		/* the transaction that made the matrix; tells
								 * it from remains of an unfinished one */
	uint32		words[IDEM_FILTER_WORDS];
} IdemFilterPage;

/* Rises with each change of what the bits mean. */
#define IDEM_FILTER_VERSION	1

/* Bits that a page has for one column. */
static inline int
idem_filter_block_bits(int width)
{
	Assert(width > 0 && IDEM_FILTER_WORDS % width == 0);
	return IDEM_FILTER_WORDS / width * 32;
}

/* Which page of a matrix is for the digest? */
static inline uint32
idem_filter_page_of(const pg_uuid_t *digest, uint32 pages)
{
	const unsigned char *d = digest->data;
	uint32		top = (uint32) d[0] << 24 | (uint32) d[1] << 16 | (uint32) d[2] << 8 | d[3];

	return (uint32) (((uint64) top * pages) >> 32);
}

/*
 * Set the bits of a digest in a block of one column.  The block has
 * idem_filter_block_bits(width) bits.
 */
extern void idem_filter_block_add(uint32 *block, int width, const pg_uuid_t *digest);

/* Overwrite the block of a column. */
extern void idem_filter_page_put(IdemFilterPage *page, int column, const uint32 *block);

/* Which columns may have the digest?  Bits by column. */
extern uint32 idem_filter_page_ask(const IdemFilterPage *page, const pg_uuid_t *digest);

#endif							/* IDEM_STORE_FILTER_PAGE_H */
