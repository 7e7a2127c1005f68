/*-------------------------------------------------------------------------
 *
 * producer.h
 *		Producers: names with an id and an epoch.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/cursor/producer.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_CURSOR_PRODUCER_H
#define IDEM_CURSOR_PRODUCER_H

#include "postgres.h"

#include "cursor/log.h"

/* The last epoch of an id, after which a gapless producer gets another id. */
#define IDEM_PRODUCER_MAX_EPOCH		PG_INT16_MAX

/*
 * Register a producer, or register it again with the next epoch.  Waits for the
 * transactions that claim under it.  Errors: 42501 if it belongs to a role that the
 * current user does not have the privileges of; 55000 if it has the other rule.
 */
extern void idem_producer_register(IdemStr name, bool gapless, int64 *producer_id, int *epoch);

/* Forget a producer, and what it has sent.  Error 42704 if there is none. */
extern void idem_producer_drop(IdemStr name);

/*
 * Get the registration of an id; false if there is none any more.  The caller has the
 * lock of the key at least in share mode.  Error 42501 as above.
 */
extern bool idem_producer_find(IdemKeyedAccess *log, const IdemCursorKey *key, IdemCursor *producer);

/*
 * A producer was used: note that, now and then, so that it is not forgotten.  Locks as
 * above, kept to the end of the transaction.
 */
extern void idem_producer_use(IdemKeyedAccess *log, const IdemCursorKey *key, IdemCursor *producer);

/* May the current user act for the producer? */
extern bool idem_producer_is_accessible(const IdemCursor *producer);

#endif							/* IDEM_CURSOR_PRODUCER_H */
