/*-------------------------------------------------------------------------
 *
 * key.h
 *		The keys of cursors, and the advisory locks that guard them.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/cursor/key.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_CURSOR_KEY_H
#define IDEM_CURSOR_KEY_H

#include "postgres.h"

#include "claim/lock.h"

/* What the log keeps the state of, as the column "what" has it. */
#define IDEM_CURSOR_OFFSET		'o' /* a consumer's offset in a partition */
#define IDEM_CURSOR_SEQUENCE	's' /* a producer's sequence in a partition */
#define IDEM_CURSOR_PRODUCER	'p' /* a producer's registration, by its id */
#define IDEM_CURSOR_NAME		'n' /* a producer's id, by its name */

/* Strings in the server encoding. */
typedef struct IdemCursorKey
{
	char		what;
	int64		producer_id;	/* SEQUENCE and PRODUCER */
	IdemStr		owner;			/* the consumer, or the producer's name; data
								 * is NULL: unknown */
	IdemStr		topic;			/* OFFSET and SEQUENCE */
	int32		partition;
	IdemClaimKey lock;			/* digest and private lock; its id is what the
								 * digest is made of */
} IdemCursorKey;

/* Make the lock of a key that has all else.  It points to memory of the current context. */
extern void idem_cursor_key_make(IdemCursorKey *key);

/* Make the whole key of a registration, by id or by name. */
extern void idem_cursor_key_producer(IdemCursorKey *key, int64 producer_id);
extern void idem_cursor_key_name(IdemCursorKey *key, IdemStr name);

/* The digest of a producer's registration. */
extern pg_uuid_t idem_cursor_producer_digest(int64 producer_id);

/* The words of a message that names it, palloc'd: partition 3 of topic "x". */
extern char *idem_cursor_title(const IdemCursorKey *key);

/* Error 53400 unless the transaction may keep the locks of both. */
extern void idem_cursor_check_both(const IdemCursorKey *id, const IdemCursorKey *key);

/*
 * Take the lock, by ExclusiveLock or ShareLock; false if somebody else holds it.  Error
 * 53400 past the budget of locks (claim/README.md).
 */
extern bool idem_cursor_lock_try(const IdemCursorKey *key, LOCKMODE mode);

/*
 * The same exclusively, and wait, and keep it to the end of the transaction; the deadlock
 * detector sees the wait.
 */
extern void idem_cursor_lock_wait(const IdemCursorKey *key);

/* The lock that was just taken is kept to the end of the transaction, or given back. */
extern void idem_cursor_lock_keep(const IdemCursorKey *key, LOCKMODE mode);
extern void idem_cursor_lock_release(const IdemCursorKey *key, LOCKMODE mode);

#endif							/* IDEM_CURSOR_KEY_H */
