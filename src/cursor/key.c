/*-------------------------------------------------------------------------
 *
 * key.c
 *		The keys of cursors, and the advisory locks that guard them.
 *
 * A key is a digest, as that of an event: the first 16 bytes of SHA-256 over a zero byte,
 * what it is the key of, and what tells it from others of its sort.  Text is hashed as
 * claim/lock.c hashes it.
 *
 * The locks are private: no SQL function can take them.  They count towards the budget of
 * locks of the transaction (claim/call.h), which state.c counts, savepoints included.
 * What a transaction has locked exclusively it does not lock again.
 *
 * LOCKING: the lock just named, owned by the subtransaction (shared/txn_owner.h).
 *
 * MEMORY: the caller's context.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/cursor/key.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "lib/stringinfo.h"
#include "libpq/pqformat.h"

#include "claim/call.h"
#include "claim/state.h"
#include "cursor/key.h"

/* Name the argument whose text has no form in UTF-8 (error context callback). */
static void
name_argument(void *name)
{
	errcontext("argument \"%s\"", (const char *) name);
}

/* Append the text of an argument, and a zero byte, which no text has. */
static void
append_text(StringInfo bytes, const char *name, IdemStr s)
{
	ErrorContextCallback callback = {
		.previous = error_context_stack, .callback = name_argument, .arg = unconstify(char *, name)
	};
	const char *utf8;

	error_context_stack = &callback;
	utf8 = idem_lock_utf8(s.data, &s.len);
	error_context_stack = callback.previous;

	appendBinaryStringInfo(bytes, utf8, s.len);
	appendStringInfoChar(bytes, '\0');
	if (utf8 != s.data)
		pfree(unconstify(char *, utf8));
}

void
idem_cursor_key_make(IdemCursorKey *key)
{
	StringInfoData bytes;

	initStringInfo(&bytes);
	appendStringInfoChar(&bytes, '\0');
	appendStringInfoChar(&bytes, key->what);
	if (key->what == IDEM_CURSOR_OFFSET || key->what == IDEM_CURSOR_NAME)
		append_text(&bytes, key->what == IDEM_CURSOR_NAME ? "producer" : "consumer", key->owner);
	else
		pq_sendint64(&bytes, key->producer_id);
	if (key->topic.data != NULL)
	{
		append_text(&bytes, "topic", key->topic);
		pq_sendint32(&bytes, key->partition);
	}
	idem_lock_key_of(bytes.data, bytes.len, &key->lock);
}

void
idem_cursor_key_producer(IdemCursorKey *key, int64 producer_id)
{
	memset(key, 0, sizeof(*key));
	key->what = IDEM_CURSOR_PRODUCER;
	key->producer_id = producer_id;
	idem_cursor_key_make(key);
}

void
idem_cursor_key_name(IdemCursorKey *key, IdemStr name)
{
	memset(key, 0, sizeof(*key));
	key->what = IDEM_CURSOR_NAME;
	key->owner = name;
	idem_cursor_key_make(key);
}

pg_uuid_t
idem_cursor_producer_digest(int64 producer_id)
{
	IdemCursorKey key;

	idem_cursor_key_producer(&key, producer_id);
	pfree(unconstify(char *, key.lock.id));
	return key.lock.digest;
}

char *
idem_cursor_title(const IdemCursorKey *key)
{
	switch (key->what)
	{
		case IDEM_CURSOR_NAME:
			return psprintf("producer \"%.*s\"", key->owner.len, key->owner.data);
		case IDEM_CURSOR_PRODUCER:
			return psprintf("producer " INT64_FORMAT, key->producer_id);
		default:
			return psprintf("partition %d of topic \"%.*s\"", key->partition, key->topic.len, key->topic.data);
	}
}

/* Does the transaction keep the lock exclusively? */
static bool
is_kept(const IdemCursorKey *key)
{
	const IdemClaim *own = idem_state_find(&key->lock);

	return own != NULL && own->state.phase == IDEM_PHASE_LOCKED;
}

/* How many locks more does the transaction keep with that of the key? */
static int
count_lock(const IdemCursorKey *key)
{
	const IdemClaim *own = idem_state_find(&key->lock);

	return own != NULL && own->state.lock_kept ? 0 : 1;
}

/* Error 53400, which names the key, if the transaction must not keep so many locks more. */
static void
check_room(const IdemCursorKey *key, int locks)
{
	if (locks > idem_call_room())
		ereport(ERROR,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("%s is past the budget of locks of this transaction", idem_cursor_title(key)),
				 errhint("Claim in fewer partitions in one transaction. If idempotency.max_claim_locks is raised, raise max_locks_per_transaction with it, or other sessions run out of locks.")));
}

void
idem_cursor_check_both(const IdemCursorKey *id, const IdemCursorKey *key)
{
	check_room(key, count_lock(id) + count_lock(key));
}

bool
idem_cursor_lock_try(const IdemCursorKey *key, LOCKMODE mode)
{
	if (is_kept(key))
		return true;
	check_room(key, count_lock(key));
	return idem_lock_try_in(&key->lock, mode);
}

void
idem_cursor_lock_wait(const IdemCursorKey *key)
{
	if (is_kept(key))
		return;
	check_room(key, count_lock(key));
	idem_lock_wait(&key->lock);
	idem_cursor_lock_keep(key, ExclusiveLock);
}

void
idem_cursor_lock_keep(const IdemCursorKey *key, LOCKMODE mode)
{
	IdemClaimPhase phase = mode == ExclusiveLock ? IDEM_PHASE_LOCKED : IDEM_PHASE_SHARED;
	IdemClaim  *claim = idem_state_get(&key->lock);
	IdemClaimState state = claim->state;

	if (state.phase >= phase)
		return;
	if (!state.lock_kept)
		state.lock_subid = GetCurrentSubTransactionId();
	state.phase = phase;
	state.lock_kept = true;
	idem_state_set(claim, &state);
}

void
idem_cursor_lock_release(const IdemCursorKey *key, LOCKMODE mode)
{
	if (!is_kept(key))
		idem_lock_release_in(&key->lock, mode);
}
