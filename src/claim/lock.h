/*-------------------------------------------------------------------------
 *
 * lock.h
 *		The name of a claim, and the advisory lock that guards its section.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/claim/lock.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_CLAIM_LOCK_H
#define IDEM_CLAIM_LOCK_H

#include "postgres.h"

#include "utils/uuid.h"

#include "shared/lock_wait.h"

/* The consumer whose lock keys are the published keys. */
#define IDEM_DEFAULT_CONSUMER	"default"

/* A string of the server encoding that is not zero-terminated; its bytes belong to somebody else. */
typedef struct IdemStr
{
	const char *data;
	int			len;
} IdemStr;

static inline IdemStr
idem_str(const char *data, int len)
{
	IdemStr		s = {data, len};

	return s;
}

/* Which locks guard an event. */
typedef enum IdemLockSpace
{
	IDEM_LOCKS_PUBLISHED,		/* those that pg_advisory_xact_lock(bigint)
								 * takes */
	IDEM_LOCKS_PRIVATE,			/* out of the reach of SQL */
	IDEM_LOCKS_BOTH				/* while the consumer changes from one to the
								 * other (change.h) */
} IdemLockSpace;

/*
 * The name of a claim: of an event or of a request.  The strings belong to the
 * caller.  The id of a request is made of its scope, a zero byte and its key, so
 * it is no event's id.
 */
typedef struct IdemClaimKey
{
	int64		lock_key;		/* the first 8 bytes of the digest; 0 if only
								 * the name was made */
	pg_uuid_t	digest;			/* the first 16 bytes of the hash of consumer
								 * and id, by which the store knows the event;
								 * zero if only the name was made */
	const char *id;				/* server encoding, not zero-terminated */
	const char *consumer;
	int			idlen;			/* bytes */
	int			consumerlen;
	int			scopelen;		/* of a request; 0: an event */
	IdemLockSpace locks;
} IdemClaimKey;

static inline bool
idem_claim_key_equal(const IdemClaimKey *a, const IdemClaimKey *b)
{
	return a->idlen == b->idlen &&
		a->consumerlen == b->consumerlen &&
		memcmp(a->id, b->id, a->idlen) == 0 &&
		memcmp(a->consumer, b->consumer, a->consumerlen) == 0;
}

/* The order of two strings that are not zero-terminated: by their bytes, then the shorter first. */
static inline int
idem_compare_strings(const char *a, int alen, const char *b, int blen)
{
	int			res = memcmp(a, b, Min(alen, blen));

	return res != 0 ? res : alen - blen;
}

static inline bool
idem_str_equal(IdemStr a, IdemStr b)
{
	return a.len == b.len && memcmp(a.data, b.data, a.len) == 0;
}

/*
 * Pointers to the n items of an array, each of which begins with its id (IdemStr), in the
 * order of the ids; palloc'd.  Repeats are neighbours, in the order of the input.
 */
extern void *idem_sort_by_id(const void *items, Size size, int n);

/* The id of an event, or the key of a request; not zero-terminated. */
static inline const char *
idem_claim_id(const IdemClaimKey *key, int *len)
{
	int			skip = key->scopelen > 0 ? key->scopelen + 1 : 0;

	*len = key->idlen - skip;
	return key->id + skip;
}

/* The words of a message that names it, palloc'd: event "x", or request "x". */
extern char *idem_claim_title(const IdemClaimKey *key);

/* Makes the keys of the events of one consumer; put it on the stack. */
typedef struct IdemKeyMaker
{
	const char *consumer;		/* server encoding */
	int			consumerlen;
	IdemLockSpace locks;		/* of the keys: published, unless the caller
								 * sets others */
	const char *prefix;			/* hashed before the id; UTF-8; NULL: nothing */
	int			prefixlen;		/* including its zero byte */
	bool		remembers;		/* digests that were made lately */
} IdemKeyMaker;

/*
 * Text as it is hashed: in UTF-8, but in a SQL_ASCII database as it is.
 * Returns s itself where no conversion is needed.  Sets *len.
 */
extern const char *idem_lock_utf8(const char *s, int *len);

extern void idem_keymaker_begin(IdemKeyMaker *maker, const char *consumer,
								int consumerlen);

/*
 * The keys are likely to be made again soon: of events that are leased and then completed,
 * of partitions.  To remember the digest of an event that comes once would cost more than
 * it spares.
 */
extern void idem_keymaker_remember(IdemKeyMaker *maker);

/*
 * Make the key of an event.  key points to id and to the maker's consumer;
 * nothing is copied.
 */
extern void idem_keymaker_make(IdemKeyMaker *maker, const char *id, int idlen,
							   IdemClaimKey *key);

/*
 * Make the key of a request, whose lock is private.  The key points to memory of
 * the current context, and to the maker's consumer.
 */
extern void idem_keymaker_request(IdemKeyMaker *maker, const char *scope, int scopelen,
								  const char *id, int idlen, IdemClaimKey *key);

/*
 * Make the key of something that is neither an event nor a request, whose lock is
 * private.  bytes: what tells it from others; they begin with a zero byte, which no hash
 * of an event or a request begins with.  The key points to them.
 */
extern void idem_lock_key_of(const char *bytes, int len, IdemClaimKey *key);

/* Make the key without lock key and digest, which take time. */
extern void idem_keymaker_name(const IdemKeyMaker *maker, const char *id,
							   int idlen, IdemClaimKey *key);
extern void idem_keymaker_end(IdemKeyMaker *maker);

/* Make the key of one event, with the published lock.  It points to both strings. */
extern void idem_key_of_event(IdemStr id, IdemStr consumer, IdemClaimKey *key);

/*
 * Take the lock for the current subtransaction; false if somebody else holds
 * it.  Never waits.
 */
extern bool idem_lock_try_in(const IdemClaimKey *key, LOCKMODE mode);
#define idem_lock_try(key)				idem_lock_try_in(key, ExclusiveLock)

/*
 * Take the lock, and wait while somebody else holds it.  For sections whose
 * holders wait for nobody; the deadlock detector sees the wait all the same.
 * Error 55P03 after lock_timeout names the event and the process that has it.
 */
extern void idem_lock_wait_in(const IdemClaimKey *key, LOCKMODE mode);
#define idem_lock_wait(key)				idem_lock_wait_in(key, ExclusiveLock)

/*
 * The same of a lock that is no event's, for at most so many milliseconds.  An error
 * 55P03 has the title (shared/lock_wait.h).
 */
extern void idem_lock_wait_as(const IdemClaimKey *key, int ms, IdemLockTitle title,
							  const void *arg);

/*
 * Take the lock in share mode, and wait while somebody else holds it exclusively.
 * Several transactions may hold it so; none of them can be told "claimed" then.
 */
#define idem_lock_share(key)			idem_lock_wait_in(key, ShareLock)

/* The same, but false if somebody else holds it exclusively.  Never waits. */
#define idem_lock_share_try(key)		idem_lock_try_in(key, ShareLock)

/*
 * Give back a lock that the current subtransaction, or a child of it, took; the same of
 * one in share mode.
 */
extern void idem_lock_release_in(const IdemClaimKey *key, LOCKMODE mode);
#define idem_lock_release(key)			idem_lock_release_in(key, ExclusiveLock)
#define idem_lock_share_release(key)	idem_lock_release_in(key, ShareLock)

#endif							/* IDEM_CLAIM_LOCK_H */
