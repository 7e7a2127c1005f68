/*-------------------------------------------------------------------------
 *
 * count.c
 *		Counts verdicts by consumer, in shared memory.
 *
 * A consumer gets its counters with its first verdict, and keeps them until the server
 * ends or the database is dropped.  A process remembers where the counters of some
 * consumers are, so that a verdict costs one addition.  A verdict counts when it is given,
 * whatever becomes of the transaction: "busy" is mostly followed by a rollback.
 *
 * The number of counters is bounded.  Verdicts for consumers beyond it are counted
 * together, and doctor() tells of them.
 *
 * INVARIANT: a consumer has one set of counters; while a process is in a database, no
 * counters of its consumers are given up.
 *
 * A crash resets the counters with the server, and so does a clean stop.
 *
 * LOCKING: the LWLock of the tranche "idempotency counters" for the table; the counters
 * are atomics.  No lock is taken below it.
 *
 * MEMORY: some 310 bytes of shared memory for each of max_counted_consumers.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/claim/count.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "port/pg_bitutils.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"

#include "claim/count.h"

typedef struct Counters
{
	Oid			dboid;			/* InvalidOid: free */
	int			len;
	char		consumer[IDEM_MAX_NAME_BYTES];
	pg_atomic_uint64 verdicts[IDEM_CLAIM_RESULTS];
} Counters;

/* A hash of open addressing: each place has the number of counters, plus 1. */
typedef struct CountShmem
{
	pg_atomic_uint64 uncounted;
	int			nplaces;		/* a power of 2, at least twice the counters */
	int			reach;			/* the counters beyond were never in use */
	int			nused;
	Counters	counters[FLEXIBLE_ARRAY_MEMBER];
} CountShmem;

static CountShmem *shmem = NULL;	/* NULL: not preloaded */
static uint32 *places = NULL;
static LWLock *lock = NULL;

int			idem_max_counted_consumers = 1024;

/* Where this process found the counters of a consumer last, by its hash. */
#define REMEMBERED 64
static Counters *remembered[REMEMBERED];

/* Shared memory */

static int
number_of_places(void)
{
	return (int) pg_nextpower2_32(Max(idem_max_counted_consumers, 1) * 2);
}

static Size
counters_size(void)
{
	return MAXALIGN(offsetof(CountShmem, counters) + mul_size(idem_max_counted_consumers, sizeof(Counters)));
}

Size
idem_count_shmem_size(void)
{
	return add_size(counters_size(), mul_size(number_of_places(), sizeof(uint32)));
}

void
idem_count_shmem_attach(void *segment, bool found)
{
	shmem = segment;
	places = (uint32 *) ((char *) segment + counters_size());
	lock = &GetNamedLWLockTranche("idempotency counters")[0].lock;
	if (found)
		return;
	memset(segment, 0, idem_count_shmem_size());
	shmem->nplaces = number_of_places();
	pg_atomic_init_u64(&shmem->uncounted, 0);
	for (int i = 0; i < idem_max_counted_consumers; i++)
	{
		for (int v = 0; v < IDEM_CLAIM_RESULTS; v++)
			pg_atomic_init_u64(&shmem->counters[i].verdicts[v], 0);
	}
}

/* Looking up */

static uint32
hash_of(Oid dboid, const char *name, int len)
{
	return hash_combine(hash_bytes((const unsigned char *) name, len), murmurhash32(dboid));
}

static bool
is_of(const Counters *c, Oid dboid, IdemStr consumer)
{
	return c->dboid == dboid && c->len == consumer.len && memcmp(c->consumer, consumer.data, consumer.len) == 0;
}

/* The place of the consumer's counters, or the free one where they belong. */
static uint32 *
find_place(uint32 hash, Oid dboid, IdemStr consumer)
{
	for (uint32 i = hash;; i++)
	{
		uint32	   *place = &places[i & (shmem->nplaces - 1)];

		if (*place == 0 || is_of(&shmem->counters[*place - 1], dboid, consumer))
			return place;
	}
}

/* Free counters; NULL: there are none. */
static Counters *
take_free(void)
{
	if (shmem->nused >= idem_max_counted_consumers)
		return NULL;
	shmem->nused++;
	for (int i = 0; i < shmem->reach; i++)
	{
		if (!OidIsValid(shmem->counters[i].dboid))
			return &shmem->counters[i];
	}
	return &shmem->counters[shmem->reach++];
}

/* Give the consumer counters, unless another process has done so; NULL: there are none left. */
static Counters *
add_counters(uint32 hash, IdemStr consumer)
{
	uint32	   *place = find_place(hash, MyDatabaseId, consumer);
	Counters   *c;

	if (*place != 0)
		return &shmem->counters[*place - 1];
	c = take_free();
	if (c == NULL)
		return NULL;
	c->dboid = MyDatabaseId;
	c->len = consumer.len;
	memcpy(c->consumer, consumer.data, consumer.len);
	for (int v = 0; v < IDEM_CLAIM_RESULTS; v++)
		pg_atomic_write_u64(&c->verdicts[v], 0);
	*place = (uint32) (c - shmem->counters) + 1;
	return c;
}

/* The consumer's counters, which it gets if it has none; NULL: there are none left. */
static Counters *
look_up(uint32 hash, IdemStr consumer)
{
	Counters   *c = NULL;
	uint32		number;
	bool		full;

	LWLockAcquire(lock, LW_SHARED);
	number = *find_place(hash, MyDatabaseId, consumer);
	if (number != 0)
		c = &shmem->counters[number - 1];
	full = shmem->nused >= idem_max_counted_consumers;
	LWLockRelease(lock);
	if (c != NULL || full)
		return c;
	LWLockAcquire(lock, LW_EXCLUSIVE);
	c = add_counters(hash, consumer);
	LWLockRelease(lock);
	return c;
}

void
idem_count_verdicts(IdemStr consumer, IdemClaimResult verdict, int64 n)
{
	uint32		hash;
	Counters   *c;

	if (shmem == NULL || n == 0 || idem_max_counted_consumers == 0 || consumer.len > IDEM_MAX_NAME_BYTES)
		return;
	hash = hash_of(MyDatabaseId, consumer.data, consumer.len);
	c = remembered[hash % REMEMBERED];
	if (c == NULL || !is_of(c, MyDatabaseId, consumer))
	{
		c = look_up(hash, consumer);
		if (c != NULL)
			remembered[hash % REMEMBERED] = c;
	}
	pg_atomic_fetch_add_u64(c != NULL ? &c->verdicts[verdict] : &shmem->uncounted, n);
}

/* Put all consumers into the hash again. */
static void
fill_places(void)
{
	memset(places, 0, shmem->nplaces * sizeof(uint32));
	for (int i = 0; i < shmem->reach; i++)
	{
		const Counters *c = &shmem->counters[i];
		IdemStr		name = {c->consumer, c->len};

		if (OidIsValid(c->dboid))
			*find_place(hash_of(c->dboid, c->consumer, c->len), c->dboid, name) = i + 1;
	}
}

/* DROP DATABASE may fail still; then the counters begin anew. */
void
idem_count_database_dropped(Oid dboid)
{
	int			before;

	if (shmem == NULL)
		return;
	LWLockAcquire(lock, LW_EXCLUSIVE);
	before = shmem->nused;
	for (int i = 0; i < shmem->reach; i++)
	{
		if (shmem->counters[i].dboid != dboid)
			continue;
		shmem->counters[i].dboid = InvalidOid;
		shmem->nused--;
	}
	if (shmem->nused < before)
		fill_places();
	LWLockRelease(lock);
}

/* Reading */

IdemCounts *
idem_counts(int *n)
{
	IdemCounts *counts;

	*n = 0;
	if (shmem == NULL)
		return NULL;
	counts = palloc(sizeof(IdemCounts) * Max(idem_max_counted_consumers, 1));
	LWLockAcquire(lock, LW_SHARED);
	for (int i = 0; i < shmem->reach; i++)
	{
		Counters   *c = &shmem->counters[i];
		IdemCounts *out = &counts[*n];

		if (c->dboid != MyDatabaseId)
			continue;
		out->len = c->len;
		memcpy(out->consumer, c->consumer, c->len);
		for (int v = 0; v < IDEM_CLAIM_RESULTS; v++)
			out->verdicts[v] = (int64) pg_atomic_read_u64(&c->verdicts[v]);
		(*n)++;
	}
	LWLockRelease(lock);
	return counts;
}

int64
idem_count_uncounted(void)
{
	return shmem == NULL ? 0 : (int64) pg_atomic_read_u64(&shmem->uncounted);
}

/* The setting is the size of a segment of shared memory, so it is there at preload only. */
void
idem_count_init(void)
{
	if (process_shared_preload_libraries_in_progress)
		idem_define_int("idempotency.max_counted_consumers",
						"Consumers of all databases whose verdicts are counted, each for itself.",
						"0 counts none.",
						&idem_max_counted_consumers, 0, 65536, PGC_POSTMASTER, 0);
}
