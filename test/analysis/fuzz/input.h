/*-------------------------------------------------------------------------
 *
 * input.h
 *		What the fuzz targets share: choices out of bytes, and a check.
 *
 * A target reads its input as a row of choices and builds something valid, or
 * nearly so, of them.  An input that ends early goes on with zeros.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		test/analysis/fuzz/input.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_FUZZ_INPUT_H
#define IDEM_FUZZ_INPUT_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(cond) \
	do { \
		if (!(cond)) \
		{ \
			fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #cond); \
			abort(); \
		} \
	} while (0)

typedef struct Input
{
	const uint8_t *data;
	size_t		left;
} Input;

static inline uint8_t
take8(Input *in)
{
	if (in->left == 0)
		return 0;
	in->left--;
	return *in->data++;
}

static inline uint32_t
take32(Input *in)
{
	uint32_t	v = 0;

	for (int i = 0; i < 4; i++)
		v = (v << 8) | take8(in);
	return v;
}

static inline uint64_t
take64(Input *in)
{
	uint64_t	high = take32(in);

	return (high << 32) | take32(in);
}

/* Below n, which is not 0. */
static inline uint32_t
take_below(Input *in, uint32_t n)
{
	return n <= 256 ? take8(in) % n : take32(in) % n;
}

/* A string of less than cap bytes without NUL; terminated. */
static inline size_t
take_text(Input *in, char *dst, size_t cap)
{
	size_t		len = take8(in);
	size_t		n = 0;

	for (; n + 1 < cap && n < len && in->left > 0; n++)
	{
		dst[n] = (char) take8(in);
		if (dst[n] == '\0')
			dst[n] = '"';
	}
	dst[n] = '\0';
	return n;
}

#endif							/* IDEM_FUZZ_INPUT_H */
