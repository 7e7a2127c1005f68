/*-------------------------------------------------------------------------
 *
 * keys.h
 *		The keys of a difference of snapshots, in order of seq, bounded.
 *
 * Private to src/outbox.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/outbox/keys.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_OUTBOX_KEYS_H
#define IDEM_OUTBOX_KEYS_H

#include "postgres.h"

#include "outbox/segment.h"
#include "outbox/snapshot.h"

/* Where an event is. */
typedef struct IdemKey
{
	int64		seq;
	uint64		xid;
	ItemPointerData tid;
	uint16		segment;
} IdemKey;

typedef struct IdemKeys IdemKeys;

/* Gives an open segment; the keys never close it. */
typedef const IdemSegment *(*IdemSegmentOpener) (void *arg, int number);

extern IdemKeys *idem_keys_create(MemoryContext context);

/* Start on cur - done, seq > k.  The snapshots must outlive their use. */
extern void idem_keys_start(IdemKeys *keys, const IdemSnap *done,
							const IdemSnap *cur, int64 k);

/* Go on from k, of the same difference; cheap if k is among the keys held. */
extern void idem_keys_move(IdemKeys *keys, int64 k);

/* Forget all keys; idem_keys_start comes next. */
extern void idem_keys_forget(IdemKeys *keys);

/*
 * The next key, NULL at the end; it stays where it is until the next call.
 * Scans indexes through the opener when the keys held have run out.
 */
extern const IdemKey *idem_keys_next(IdemKeys *keys, IdemSegmentOpener opener,
									 void *arg);

/* Step back by the one key that idem_keys_next gave last. */
extern void idem_keys_back(IdemKeys *keys);

#endif							/* IDEM_OUTBOX_KEYS_H */
