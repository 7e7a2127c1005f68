/*-------------------------------------------------------------------------
 *
 * array.c
 *		One-dimensional arrays in PostgreSQL's binary format.
 *
 * A batch is sent as one array per field.  So nothing is quoted, uuids and
 * bytes are not converted to text, and one statement takes a thousand events.
 *
 * MEMORY
 *		An array grows on the heap; its user frees the field "data".  LOCKING:
 *		none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/postgres/array.c
 *
 *-------------------------------------------------------------------------
 */
#include <stdlib.h>
#include <string.h>

#include "sink/postgres/sink.h"
#include "sink/protocol/wire.h"

#define HEADER		20			/* dimensions, flags, type, size, lower bound */
#define FIRST_SIZE	4096

/* Append room for more bytes; returns the place of the first. */
static uint8_t *
extend(PgSinkArray *a, size_t more)
{
	uint8_t    *p;

	while (a->size - a->len < more)
	{
		a->size *= 2;
		a->data = idem_sink_realloc(a->data, a->size);
	}
	p = (uint8_t *) a->data + a->len;
	a->len += more;
	return p;
}

void
pgsink_array_init(PgSinkArray *a, uint32_t element_type)
{
	uint8_t    *p;

	a->size = FIRST_SIZE;
	a->data = idem_sink_alloc(a->size);
	a->len = 0;
	a->count = 0;
	p = extend(a, HEADER);
	wire_put32(p, 1);
	wire_put32(p + 4, 0);
	wire_put32(p + 8, element_type);
	wire_put32(p + 16, 1);
}

void
pgsink_array_add(PgSinkArray *a, const void *prefix, size_t prefix_len,
				 const void *data, size_t len)
{
	uint8_t    *p;

	a->count++;
	if (data == NULL)
	{
		wire_put32(extend(a, 4), UINT32_MAX);
		wire_put32((uint8_t *) a->data + 4, 1); /* has nulls */
		return;
	}
	p = extend(a, 4 + prefix_len + len);
	wire_put32(p, (uint32_t) (prefix_len + len));
	if (prefix_len > 0)
		memcpy(p + 4, prefix, prefix_len);
	if (len > 0)
		memcpy(p + 4 + prefix_len, data, len);
}

void
pgsink_array_finish(PgSinkArray *a)
{
	uint8_t    *p = (uint8_t *) a->data;

	wire_put32(p + 12, a->count);
}
