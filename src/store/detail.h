/*-------------------------------------------------------------------------
 *
 * detail.h
 *		What a run has of an event beside its digest: rows of the kind "detail".
 *
 * Private to src/store.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/store/detail.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_STORE_DETAIL_H
#define IDEM_STORE_DETAIL_H

#include "postgres.h"

#include "store/slot.h"

/*
 * Find the detail of an event in a run, with the highest turn.  values: also
 * get id, consumer and result, palloc'd in the current context; else they are
 * 0, and has_detail is false.
 */
extern bool idem_detail_find(const IdemSlot *slot, int64 run, const pg_uuid_t *digest,
							 bool values, IdemEventEntry *entry);

/*
 * Streams the details of a run in order of (digest, turn).  An entry is valid
 * until the next call.
 */
typedef struct IdemDetailScan IdemDetailScan;
extern IdemDetailScan *idem_detail_begin(const IdemSlot *slot, int64 run);
extern bool idem_detail_next(IdemDetailScan *scan, IdemEventEntry *entry);
extern void idem_detail_end(IdemDetailScan *scan);

#endif							/* IDEM_STORE_DETAIL_H */
