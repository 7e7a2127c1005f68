/*-------------------------------------------------------------------------
 *
 * state.c
 *		The claims of the current transaction, savepoints included.
 *
 * There is a table of claims by name, and a log.  A change in a subtransaction
 * logs the state that it replaces.  Subtransaction ids only rise.  While a
 * subtransaction is current, every record that was logged since its start has
 * its id, or the higher id of a child that committed into it.  So the abort of
 * a subtransaction undoes the tail of the log, from the subtransaction's id
 * on, and a commit has nothing to reparent.  Changes outside of any
 * subtransaction are not logged: only the end of the transaction undoes them.
 *
 * Neither a crash nor PREPARE TRANSACTION needs this state: by then every
 * claim is a row or has been given up.
 *
 * LOCKING: none; the state is private to the backend.
 *
 * MEMORY: one context below TopTransactionContext.  The first claim of a
 * transaction makes it, and the end of the transaction drops it.  Undoing
 * allocates nothing, so it cannot fail.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/claim/state.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "common/pg_prng.h"
#include "utils/memutils.h"

#include "compat.h"
#include "claim/state.h"
#include "shared/fault.h"

/*
 * Ids come from outside.  A random seed per transaction keeps ids that collide
 * under one seed from colliding under the next seed.  The hash is not
 * cryptographic; ids that collide under every seed cost time, not correctness.
 * The hash is not the lock key either: that would need a digest, which
 * completing does without.  One event may be claimed for thousands of
 * consumers, so the consumer is hashed as well.
 */
static uint64 hash_seed;

/* The hash of a claim's name, for the table. */
static inline uint32
hash_name(const IdemClaimKey *key)
{
	uint64		id = hash_bytes_extended((const unsigned char *) key->id,
										 key->idlen, hash_seed);

	return (uint32) hash_bytes_extended((const unsigned char *) key->consumer,
										key->consumerlen, id);
}

/*
 * An element of the table.  key points to the first field of an IdemClaim, so
 * it leads to the claim.
 */
typedef struct ClaimSlot
{
	const IdemClaimKey *key;
	char		status;
} ClaimSlot;

#define SH_PREFIX claimtab
#define SH_ELEMENT_TYPE ClaimSlot
#define SH_KEY_TYPE const IdemClaimKey *
#define SH_KEY key
#define SH_HASH_KEY(tb, key) hash_name(key)
#define SH_EQUAL(tb, a, b) idem_claim_key_equal(a, b)
#define SH_SCOPE static inline
#define SH_DECLARE
#define SH_DEFINE
#include "lib/simplehash.h"

/* How many events of a consumer the transaction holds. */
typedef struct ConsumerHeld
{
	int64		held;
	int			len;
	char		name[FLEXIBLE_ARRAY_MEMBER];
} ConsumerHeld;

/* name: that of the ConsumerHeld */
typedef struct ConsumerSlot
{
	IdemStr		name;
	ConsumerHeld *consumer;
	char		status;
} ConsumerSlot;

#define SH_PREFIX consumertab
#define SH_ELEMENT_TYPE ConsumerSlot
#define SH_KEY_TYPE IdemStr
#define SH_KEY name
#define SH_HASH_KEY(tb, key) \
	((uint32) hash_bytes_extended((const unsigned char *) (key).data, (key).len, hash_seed))
#define SH_EQUAL(tb, a, b) ((a).len == (b).len && memcmp((a).data, (b).data, (a).len) == 0)
#define SH_SCOPE static inline
#define SH_DECLARE
#define SH_DEFINE
#include "lib/simplehash.h"

/* A record of the log: the state that a change in a subtransaction replaced. */
typedef struct UndoRecord
{
	SubTransactionId subid;
	IdemClaim  *claim;
	IdemClaimState before;
} UndoRecord;

#define INITIAL_CLAIMS	16
#define INITIAL_UNDO	16
#define INITIAL_CONSUMERS	4

static MemoryContext state_context = NULL;	/* NULL: the transaction has no
											 * claim yet */
static claimtab_hash *claims = NULL;
static consumertab_hash *consumers = NULL;
static UndoRecord *undo_log = NULL;
static int	undo_used = 0;
static int	undo_size = 0;
static IdemClaimCounts counts;

/* May the transaction make the event's effect? */
static inline bool
is_held(const IdemClaimState *state)
{
	return (state->phase == IDEM_PHASE_CLAIMED || state->phase == IDEM_PHASE_COMPLETED ||
			state->phase == IDEM_PHASE_ASSERTED) && !state->discarded;
}

/* Add a claim's state to the totals (by = 1), or take it away (by = -1). */
static void
count(const IdemClaim *claim, int by)
{
	const IdemClaimState *state = &claim->state;

	if (is_held(state))
		*claim->held += by;
	if (state->phase == IDEM_PHASE_CLAIMED)
		counts.pending += by;
	if (state->phase == IDEM_PHASE_COMPLETED)
		counts.completed += by;
	if (state->lock_kept)
		counts.locks += claim->key.locks == IDEM_LOCKS_BOTH ? 2 * by : by;
}

/*
 * Restore the state that the last record of the log replaced, and remove the
 * record.
 */
static void
undo_last(void)
{
	UndoRecord *rec = &undo_log[--undo_used];
	IdemClaim  *claim = rec->claim;

	IDEM_FAULT_POINT_NO_ERROR("claim-undo");
	count(claim, -1);
	claim->state = rec->before;
	count(claim, 1);

	/*
	 * The undone change made the claim, so no older record refers to the
	 * claim.
	 */
	if (claim->state.phase == IDEM_PHASE_NONE)
	{
		claimtab_delete(claims, &claim->key);
		pfree(claim);
	}
}

void
idem_state_undo(SubTransactionId subid)
{
	while (undo_used > 0 && undo_log[undo_used - 1].subid >= subid)
		undo_last();
}

void
idem_state_subtransaction_committed(SubTransactionId parent)
{
	if (parent == TopSubTransactionId)
		undo_used = 0;			/* no subtransaction is left that could abort */
}

void
idem_state_forget(XactEvent event)
{
	if (claims != NULL && event == XACT_EVENT_COMMIT)
		IDEM_FAULT_POINT_NO_ERROR("claim-commit");
	if (claims != NULL && event == XACT_EVENT_ABORT)
		IDEM_FAULT_POINT_NO_ERROR("claim-abort");
	if (claims != NULL && event == XACT_EVENT_PREPARE)
		IDEM_FAULT_POINT_NO_ERROR("claim-prepare");
	state_context = NULL;
	claims = NULL;
	consumers = NULL;
	undo_log = NULL;
	undo_used = undo_size = 0;
	memset(&counts, 0, sizeof(counts));
}

IdemClaim *
idem_state_find(const IdemClaimKey *key)
{
	ClaimSlot  *slot;

	if (claims == NULL)
		return NULL;
	slot = claimtab_lookup(claims, key);
	return slot ? (IdemClaim *) slot->key : NULL;
}

/*
 * Order by id, then by consumer, so that errors name the same claim each time.
 */
static int
compare_claims(const void *a, const void *b)
{
	const IdemClaimKey *ka = &(*(IdemClaim *const *) a)->key;
	const IdemClaimKey *kb = &(*(IdemClaim *const *) b)->key;
	int			res = idem_compare_strings(ka->id, ka->idlen, kb->id, kb->idlen);

	return res != 0 ? res :
		idem_compare_strings(ka->consumer, ka->consumerlen, kb->consumer, kb->consumerlen);
}

const IdemClaim *
idem_state_find_of_other(const IdemClaimKey *key)
{
	const IdemClaim *found = NULL;
	claimtab_iterator it;
	ClaimSlot  *slot;

	if (claims == NULL)
		return NULL;
	claimtab_start_iterate(claims, &it);
	while ((slot = claimtab_iterate(claims, &it)) != NULL)
	{
		const IdemClaim *claim = (const IdemClaim *) slot->key;

		if ((claim->state.phase == IDEM_PHASE_CLAIMED || claim->state.phase == IDEM_PHASE_ASSERTED) &&
			claim->key.idlen == key->idlen && memcmp(claim->key.id, key->id, key->idlen) == 0 &&
			!idem_claim_key_equal(&claim->key, key) &&
			(found == NULL || compare_claims(&claim, &found) < 0))
			found = claim;
	}
	return found;
}

/* The number of events held of a consumer; made if it is not there. */
static int64 *
held_of(const char *name, int len)
{
	IdemStr		key = {name, len};
	ConsumerSlot *slot = consumertab_lookup(consumers, key);
	ConsumerHeld *consumer;
	bool		found;

	if (slot != NULL)
		return &slot->consumer->held;
	consumer = MemoryContextAllocZero(state_context, offsetof(ConsumerHeld, name) + len);
	memcpy(consumer->name, name, len);
	consumer->len = len;
	key.data = consumer->name;
	slot = consumertab_insert(consumers, key, &found);
	slot->consumer = consumer;
	return &consumer->held;
}

/* Make a claim.  The claim and both of its strings are one chunk of memory. */
static IdemClaim *
make_claim(const IdemClaimKey *key)
{
	IdemClaim  *claim;
	char	   *strings;

	claim = MemoryContextAllocZero(state_context, sizeof(IdemClaim) +
								   key->idlen + key->consumerlen);
	strings = (char *) (claim + 1);
	memcpy(strings, key->id, key->idlen);
	memcpy(strings + key->idlen, key->consumer, key->consumerlen);

	claim->key = *key;
	claim->key.id = strings;
	claim->key.consumer = strings + key->idlen;
	claim->state.phase = IDEM_PHASE_NONE;
	claim->held = held_of(claim->key.consumer, claim->key.consumerlen);
	return claim;
}

IdemClaim *
idem_state_get(const IdemClaimKey *key)
{
	IdemClaim  *claim = idem_state_find(key);
	bool		found;

	if (claim != NULL)
		return claim;

	if (state_context == NULL)
	{
		state_context = AllocSetContextCreate(TopTransactionContext, "idempotency claims",
											  ALLOCSET_DEFAULT_SIZES);
		hash_seed = pg_prng_uint64(&pg_global_prng_state);
		claims = claimtab_create(state_context, INITIAL_CLAIMS, NULL);
		consumers = consumertab_create(state_context, INITIAL_CONSUMERS, NULL);
	}
	claim = make_claim(key);
	(void) claimtab_insert(claims, &claim->key, &found);
	Assert(!found);
	return claim;
}

/* Log a claim's state for the abort of the current subtransaction. */
static void
log_undo(IdemClaim *claim)
{
	UndoRecord *rec;

	if (undo_log == NULL)
	{
		undo_log = MemoryContextAlloc(state_context,
									  INITIAL_UNDO * sizeof(UndoRecord));
		undo_size = INITIAL_UNDO;
	}
	else if (undo_used == undo_size)
	{
		undo_log = repalloc_huge(undo_log,
								 sizeof(UndoRecord) * undo_size * 2);
		undo_size *= 2;
	}

	rec = &undo_log[undo_used++];
	rec->subid = GetCurrentSubTransactionId();
	rec->claim = claim;
	rec->before = claim->state;
}

void
idem_state_set(IdemClaim *claim, const IdemClaimState *state)
{
	if (GetCurrentTransactionNestLevel() > 1)
		log_undo(claim);

	count(claim, -1);
	claim->state = *state;
	count(claim, 1);
}

const struct varlena *
idem_state_copy(const struct varlena *value)
{
	Size		size = value == NULL ? 0 : VARSIZE_ANY(value);

	return value == NULL ? NULL : memcpy(MemoryContextAlloc(state_context, size), value, size);
}

const IdemClaimCounts *
idem_state_counts(void)
{
	return &counts;
}

/* Note in a claim's state that what it guards was written. */
static void
note_write(IdemClaim *claim, IdemClaimPhase phase)
{
	IdemClaimState state = claim->state;

	if (state.written)
		return;
	state.phase = phase;
	state.written = true;
	idem_state_set(claim, &state);
}

bool
idem_state_note_write(const IdemClaimKey *key)
{
	IdemClaim  *claim = idem_state_find(key);

	if (claim == NULL || !is_held(&claim->state))
		return false;
	note_write(claim, claim->state.phase);
	return true;
}

/*
 * The name under which a write is noted that any event of the consumer allows.  No event
 * has an empty id.
 */
static IdemClaimKey
name_of_any(const char *consumer, int len)
{
	IdemClaimKey key = {.id = "", .consumer = consumer, .consumerlen = len};

	return key;
}

bool
idem_state_note_write_of_any(const char *consumer, int len)
{
	IdemStr		name = {consumer, len};
	ConsumerSlot *slot = consumers == NULL ? NULL : consumertab_lookup(consumers, name);
	IdemClaimKey key = name_of_any(consumer, len);

	if (slot == NULL || slot->consumer->held == 0)
		return false;
	note_write(idem_state_get(&key), IDEM_PHASE_WRITTEN);
	return true;
}

bool
idem_state_is_needed(const IdemClaim *claim)
{
	IdemClaimKey any = name_of_any(claim->key.consumer, claim->key.consumerlen);

	return claim->state.written || (*claim->held == 1 && idem_state_find(&any) != NULL);
}

bool
idem_state_used(void)
{
	return state_context != NULL;
}

IdemClaim **
idem_state_pending(void)
{
	IdemClaim **pending = palloc_extended(counts.pending * sizeof(IdemClaim *),
										  MCXT_ALLOC_HUGE);
	claimtab_iterator it;
	ClaimSlot  *slot;
	int64		n = 0;

	if (claims == NULL)
		return pending;

	claimtab_start_iterate(claims, &it);
	while ((slot = claimtab_iterate(claims, &it)) != NULL)
	{
		IdemClaim  *claim = (IdemClaim *) slot->key;

		if (claim->state.phase == IDEM_PHASE_CLAIMED)
			pending[n++] = claim;
	}
	Assert(n == counts.pending);
	qsort(pending, n, sizeof(IdemClaim *), compare_claims);
	return pending;
}
