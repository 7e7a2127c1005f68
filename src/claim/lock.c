/*-------------------------------------------------------------------------
 *
 * lock.c
 *		The name of a claim, and the advisory lock that guards its section.
 *
 * The lock key of consumer "default" is the published key: the first 8 bytes,
 * big-endian, of SHA-256 over the id.  So claims, and clients without this
 * extension that use pg_try_advisory_xact_lock(), exclude each other.  For any
 * other consumer the hash is over the consumer, a zero byte and the id.  Text
 * is hashed as UTF-8 whatever the server encoding is.  In a SQL_ASCII database
 * text is hashed as it stands, because nothing says what its bytes mean.  No
 * text value has a zero byte, so consumer and id never run together.
 *
 * A request has a scope as well: the hash is over consumer, zero byte, scope, zero
 * byte and key, also for consumer "default".  Two zero bytes keep requests apart from
 * events.  Its lock is private always.  What is hashed of a cursor (src/cursor) begins
 * with a zero byte, which neither a consumer nor an id begins with.
 *
 * A consumer may have private locks, which no SQL function can take.  Advisory
 * locks have no access control: any role can take the lock of an event whose
 * key it knows, and so keep the event "busy".  consumer.c says which consumers
 * have private locks.  While a consumer changes from one to the other, its claims
 * take both locks (change.c).
 *
 * Two keys may collide.  A collision may cost a false "busy"; no verdict rests
 * on the key alone.
 *
 * LOCKING: the lock that pg_advisory_xact_lock(bigint) takes, or a private
 * lock with the same number.  The subtransaction owns the lock (txn_owner.h),
 * not the portal that runs.  A cursor may be opened before a savepoint and
 * fetched from after the savepoint.  Locks that its portal owned would outlive
 * the claims that ROLLBACK TO has undone, or fall when the cursor is closed.
 *
 * MEMORY: a key maker lives in the current context.  A session remembers some digests, in
 * static memory.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/claim/lock.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "port/pg_bswap.h"
#include "storage/lock.h"
#include "storage/proc.h"

#include "compat.h"
#include "claim/lock.h"
#include "shared/digest.h"
#include "shared/txn_owner.h"

/* SET_LOCKTAG_ADVISORY's fourth field for a key of a single bigint */
#define SINGLE_BIGINT_KEY	1

/*
 * The fourth field for a private lock.  pg_advisory_lock and its variants use
 * 1 and 2 only, so no SQL function reaches the lock.  pg_locks shows the field
 * as objsubid.
 */
#define PRIVATE_KEY			0x4944

const char *
idem_lock_utf8(const char *s, int *len)
{
	char	   *utf8;

	/* pg_server_to_any would refuse bytes that are not valid UTF-8 */
	if (GetDatabaseEncoding() == PG_SQL_ASCII)
		return s;
	utf8 = pg_server_to_any(s, *len, PG_UTF8);
	if (utf8 != s)
		*len = strlen(utf8);
	return utf8;
}

void
idem_keymaker_begin(IdemKeyMaker *maker, const char *consumer, int consumerlen)
{
	maker->consumer = consumer;
	maker->consumerlen = consumerlen;
	maker->prefix = NULL;
	maker->prefixlen = 0;
	maker->locks = IDEM_LOCKS_PUBLISHED;
	maker->remembers = false;

	if (consumerlen != strlen(IDEM_DEFAULT_CONSUMER) ||
		memcmp(consumer, IDEM_DEFAULT_CONSUMER, consumerlen) != 0)
	{
		int			len = consumerlen;
		const char *utf8 = idem_lock_utf8(consumer, &len);
		char	   *prefix = palloc(len + 1);

		memcpy(prefix, utf8, len);
		prefix[len] = '\0';
		maker->prefix = prefix;
		maker->prefixlen = len + 1;
		if (utf8 != consumer)
			pfree(unconstify(char *, utf8));
	}
}

void
idem_keymaker_remember(IdemKeyMaker *maker)
{
	maker->remembers = true;
}

/*
 * Order by id, then by place in the input: repeats of an id are adjacent, and
 * the budget of locks goes to the same ids in whatever order they were given.
 * The order of ids is not that of the store's index, which has digests.
 */
static int
compare_items(const void *a, const void *b, void *arg)
{
	const IdemStr *ia = *(const IdemStr *const *) a;
	const IdemStr *ib = *(const IdemStr *const *) b;
	int			res = idem_compare_strings(ia->data, ia->len, ib->data, ib->len);

	return res != 0 ? res : (ia < ib ? -1 : 1);
}

void *
idem_sort_by_id(const void *items, Size size, int n)
{
	const void **sorted = palloc_extended(sizeof(void *) * n, MCXT_ALLOC_HUGE);

	for (int i = 0; i < n; i++)
		sorted[i] = (const char *) items + i * size;
	qsort_interruptible(sorted, n, sizeof(void *), compare_items, NULL);
	return sorted;
}

char *
idem_claim_title(const IdemClaimKey *key)
{
	int			len;
	const char *id = idem_claim_id(key, &len);

	return psprintf("%s \"%.*s\"", key->scopelen > 0 ? "request" : "event", len, id);
}

void
idem_keymaker_name(const IdemKeyMaker *maker, const char *id, int idlen,
				   IdemClaimKey *key)
{
	key->lock_key = 0;
	memset(&key->digest, 0, sizeof(key->digest));
	key->id = id;
	key->idlen = idlen;
	key->consumer = maker->consumer;
	key->consumerlen = maker->consumerlen;
	key->scopelen = 0;
	key->locks = maker->locks;
}

static void
hash(const char *prefix, int prefixlen, const char *bytes, int len, uint8 *digest)
{
	idem_sha256_begin();
	idem_sha256_add(prefix, prefixlen);
	idem_sha256_add(bytes, len);
	idem_sha256_end(digest);
}

/* What was hashed lately, and its digest.  A digest follows from the bytes alone. */
#define HASHED_BYTES	128
#define HASHED_PLACES	16

typedef struct Hashed
{
	int			len;			/* 0: the place is free */
	char		bytes[HASHED_BYTES];
	uint8		digest[PG_SHA256_DIGEST_LENGTH];
} Hashed;

/* The same from memory, if this session has hashed the bytes lately. */
static void
recall(const char *prefix, int prefixlen, const char *bytes, int len, uint8 *digest)
{
	static Hashed hashed[HASHED_PLACES];
	int			total = prefixlen + len;
	char		joined[HASHED_BYTES];
	Hashed	   *place;

	if (total > HASHED_BYTES)
	{
		hash(prefix, prefixlen, bytes, len, digest);
		return;
	}
	if (prefixlen > 0)
		memcpy(joined, prefix, prefixlen);
	memcpy(joined + prefixlen, bytes, len);
	place = &hashed[hash_bytes((const unsigned char *) joined, total) % HASHED_PLACES];
	if (place->len != total || memcmp(place->bytes, joined, total) != 0)
	{
		place->len = 0;
		hash(prefix, prefixlen, bytes, len, place->digest);
		memcpy(place->bytes, joined, total);
		place->len = total;
	}
	memcpy(digest, place->digest, sizeof(place->digest));
}

/* Fill in lock key and digest: of the maker's prefix or another one, if any, and the bytes. */
static void
set_digest(const IdemKeyMaker *maker, const char *prefix, int prefixlen, const char *bytes, int len,
		   IdemClaimKey *key)
{
	uint8		digest[PG_SHA256_DIGEST_LENGTH];
	uint64		first;

	if (maker->remembers)
		recall(prefix, prefixlen, bytes, len, digest);
	else
		hash(prefix, prefixlen, bytes, len, digest);
	memcpy(&first, digest, sizeof(first));
	key->lock_key = (int64) pg_ntoh64(first);
	memcpy(key->digest.data, digest, UUID_LEN);
}

void
idem_keymaker_make(IdemKeyMaker *maker, const char *id, int idlen,
				   IdemClaimKey *key)
{
	int			len = idlen;
	const char *utf8 = idem_lock_utf8(id, &len);

	idem_keymaker_name(maker, id, idlen, key);
	set_digest(maker, maker->prefix, maker->prefixlen, utf8, len, key);
	if (utf8 != id)
		pfree(unconstify(char *, utf8));
}

/* Two strings with a zero byte between them, palloc'd. */
static char *
join(const char *a, int alen, const char *b, int blen)
{
	char	   *joined = palloc(alen + 1 + blen);

	memcpy(joined, a, alen);
	joined[alen] = '\0';
	memcpy(joined + alen + 1, b, blen);
	return joined;
}

void
idem_keymaker_request(IdemKeyMaker *maker, const char *scope, int scopelen,
					  const char *id, int idlen, IdemClaimKey *key)
{
	static const char prefix_of_default[] = IDEM_DEFAULT_CONSUMER;
	int			slen = scopelen;
	int			klen = idlen;
	const char *utf8_scope = idem_lock_utf8(scope, &slen);
	const char *utf8_id = idem_lock_utf8(id, &klen);
	char	   *bytes = join(utf8_scope, slen, utf8_id, klen);

	idem_keymaker_name(maker, join(scope, scopelen, id, idlen), scopelen + 1 + idlen, key);
	key->scopelen = scopelen;
	key->locks = IDEM_LOCKS_PRIVATE;
	if (maker->prefix != NULL)
		set_digest(maker, maker->prefix, maker->prefixlen, bytes, slen + 1 + klen, key);
	else
		set_digest(maker, prefix_of_default, sizeof(prefix_of_default), bytes, slen + 1 + klen, key);
	pfree(bytes);
	if (utf8_scope != scope)
		pfree(unconstify(char *, utf8_scope));
	if (utf8_id != id)
		pfree(unconstify(char *, utf8_id));
}

void
idem_lock_key_of(const char *bytes, int len, IdemClaimKey *key)
{
	IdemKeyMaker maker = {.consumer = "", .locks = IDEM_LOCKS_PRIVATE, .remembers = true};

	Assert(len > 0 && bytes[0] == '\0');

	idem_keymaker_name(&maker, bytes, len, key);
	set_digest(&maker, NULL, 0, bytes, len, key);
}

void
idem_keymaker_end(IdemKeyMaker *maker)
{
	if (maker->prefix != NULL)
		pfree(unconstify(char *, maker->prefix));
}

void
idem_key_of_event(IdemStr id, IdemStr consumer, IdemClaimKey *key)
{
	IdemKeyMaker maker;

	idem_keymaker_begin(&maker, consumer.data, consumer.len);
	idem_keymaker_make(&maker, id.data, id.len, key);
	idem_keymaker_end(&maker);
}

/* The tag of the claim's advisory lock. */
static void
set_locktag(LOCKTAG *tag, const IdemClaimKey *key, IdemLockSpace space)
{
	/* the fourth field tells the published lock from the private one */
	SET_LOCKTAG_ADVISORY(*tag, MyDatabaseId,
						 (uint32) (key->lock_key >> 32), (uint32) key->lock_key,
						 space == IDEM_LOCKS_PRIVATE ? PRIVATE_KEY : SINGLE_BIGINT_KEY);
}

/* Take one lock; false if it is not available. */
static bool
try_one(const IdemClaimKey *key, IdemLockSpace space, LOCKMODE mode)
{
	LOCKTAG		tag;

	set_locktag(&tag, key, space);
	return LockAcquire(&tag, mode, false, true) != LOCKACQUIRE_NOT_AVAIL;
}

/* IdemLockTitle of a key, which may be that of a cursor (idem_lock_key_of). */
static char *
key_title(const void *arg)
{
	const IdemClaimKey *key = arg;

	return key->id[0] == '\0' ? pstrdup("the cursor of a partition") : idem_claim_title(key);
}

/* Wait for one lock. */
static void
wait_for_one(const IdemClaimKey *key, IdemLockSpace space, LOCKMODE mode)
{
	LOCKTAG		tag;

	set_locktag(&tag, key, space);
	idem_lock_acquire(&tag, mode, LockTimeout, key_title, key);
}

static void
release_one(const IdemClaimKey *key, IdemLockSpace space, LOCKMODE mode)
{
	LOCKTAG		tag;

	set_locktag(&tag, key, space);
	(void) LockRelease(&tag, mode, false);
}

/* The lock to take first.  Who takes both takes them in one order, and waits in no circle. */
static IdemLockSpace
first_lock(const IdemClaimKey *key)
{
	return key->locks == IDEM_LOCKS_BOTH ? IDEM_LOCKS_PUBLISHED : key->locks;
}

bool
idem_lock_try_in(const IdemClaimKey *key, LOCKMODE mode)
{
	ResourceOwner saved = idem_txn_owner_enter();
	bool		taken = try_one(key, first_lock(key), mode);

	if (taken && key->locks == IDEM_LOCKS_BOTH && !try_one(key, IDEM_LOCKS_PRIVATE, mode))
	{
		release_one(key, IDEM_LOCKS_PUBLISHED, mode);
		taken = false;
	}
	idem_txn_owner_leave(saved);
	return taken;
}

void
idem_lock_wait_in(const IdemClaimKey *key, LOCKMODE mode)
{
	ResourceOwner saved = idem_txn_owner_enter();

	wait_for_one(key, first_lock(key), mode);
	if (key->locks == IDEM_LOCKS_BOTH)
		wait_for_one(key, IDEM_LOCKS_PRIVATE, mode);
	idem_txn_owner_leave(saved);
}

void
idem_lock_wait_as(const IdemClaimKey *key, int ms, IdemLockTitle title, const void *arg)
{
	ResourceOwner saved = idem_txn_owner_enter();
	LOCKTAG		tag;

	set_locktag(&tag, key, key->locks);
	idem_lock_acquire(&tag, ExclusiveLock, ms, title, arg);
	idem_txn_owner_leave(saved);
}

void
idem_lock_release_in(const IdemClaimKey *key, LOCKMODE mode)
{
	ResourceOwner saved = idem_txn_owner_enter();

	if (key->locks == IDEM_LOCKS_BOTH)
		release_one(key, IDEM_LOCKS_PRIVATE, mode);
	release_one(key, first_lock(key), mode);
	idem_txn_owner_leave(saved);
}
