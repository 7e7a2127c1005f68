/*-------------------------------------------------------------------------
 *
 * guard.h
 *		Refuses commands that would lock the extension's views against
 *		everybody, or make its tables what C code does not keep them.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/shared/guard.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_GUARD_H
#define IDEM_GUARD_H

#include "postgres.h"

#include "catalog/pg_class.h"
#include "utils/rel.h"
#include "utils/reltrigger.h"

#include "compat.h"

extern void idem_guard_init(void);

/*
 * Error 0A000 if a table or sequence has what the hook refuses.  Returns if
 * allow_system_table_mods is on.
 */
extern void idem_guard_report(Relation rel);

/*
 * Call this before C code writes to a table.  triggers: as many as the install
 * script gives the table.
 */
static inline void
idem_guard_table(Relation heap, int triggers)
{
	if (unlikely(heap->rd_rel->relpersistence != RELPERSISTENCE_PERMANENT || heap->rd_rules != NULL ||
				 heap->rd_rel->relreplident == REPLICA_IDENTITY_INDEX ||
				 heap->rd_rel->relreplident == REPLICA_IDENTITY_FULL ||
				 (heap->trigdesc != NULL && heap->trigdesc->numtriggers > triggers)))
		idem_guard_report(heap);
}

/* Is it a plain btree on these columns?  A unique index is not. */
extern bool idem_guard_is_index(Relation index, int n, const AttrNumber *columns,
								const int16 *options);

/* Error 0A000: the table has an index that it was not made with. */
pg_noreturn extern void idem_guard_report_index(Relation heap, Relation index);

#endif							/* IDEM_GUARD_H */
