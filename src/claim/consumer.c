/*-------------------------------------------------------------------------
 *
 * consumer.c
 *		The registered properties of a consumer.
 *
 * Consumers need no registration: a row of idempotency_data.consumers only
 * says how a consumer differs from the defaults.  foreign_lockers is read as
 * of now, like the rows of events.  Only claims past the budget of locks read
 * it, so an ordinary claim never pays for it.
 *
 * The choice of the lock that guards an event must not change while a claim of
 * the event is undecided.  Otherwise two transactions could each hold "the"
 * lock at the same time.  Every claim holds RowExclusiveLock on the table of
 * claims as long as the claim may be committed, in a prepared transaction
 * across a crash as well.  A change of private_locks takes a lock on that
 * table that conflicts with RowExclusiveLock.  So the change waits for all
 * claims in flight, and keeps new claims out until the change has committed.
 * A process remembers the names of consumers with private locks until a change
 * sends an invalidation.  The invalidation arrives with the lock on the table
 * of claims at the latest.
 *
 * LOCKING: a look-up takes AccessShareLock on the table of consumers and its
 * index.  A change takes RowExclusiveLock on the table of consumers, then
 * ShareRowExclusiveLock on the table of claims, and keeps both as long as the
 * change stands.
 *
 * MEMORY: the remembered names, one entry for each consumer with private
 * locks.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/claim/consumer.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "claim/consumer.h"
#include "claim/state.h"
#include "shared/args.h"
#include "shared/catalog.h"
#include "shared/txn_owner.h"

/* Columns of idempotency_data.consumers */
#define COL_CONSUMER			1
#define COL_FOREIGN_LOCKERS		2
#define COL_PRIVATE_LOCKS		3

static IdemRelRef consumers = IDEM_RELREF("consumers");
static IdemRelRef consumers_pkey = IDEM_RELREF("consumers_pkey");
static IdemRelRef processed = IDEM_RELREF("processed");

/*
 * Names of the consumers with private locks.  They are up to date while the
 * count of invalidations equals names_read_at, which is 0 if the names were
 * never read.
 */
static HTAB *private_names = NULL;
static Oid	names_of = InvalidOid;	/* the table that the names were read from */
static uint64 invalidations = 1;
static uint64 names_read_at = 0;

/*
 * Invalidation callback: counts invalidations of the table that the names were
 * read from, or of all relations.
 */
static void
count_invalidation(Datum arg, Oid relid)
{
	if (relid == InvalidOid || relid == names_of)
		invalidations++;
}

void
idem_consumer_init(void)
{
	CacheRegisterRelcacheCallback(count_invalidation, (Datum) 0);
}

/* Free the names; the next look-up reads them again. */
static void
forget_names(void)
{
	HTAB	   *names = private_names;

	names_read_at = 0;
	private_names = NULL;
	if (names != NULL)
		hash_destroy(names);
}

/*
 * Make the key of a name in the hash table: the name with a zero byte at its
 * end.
 */
static char *
name_key(char *key, const char *consumer, int len)
{
	memcpy(key, consumer, len);
	key[len] = '\0';
	return key;
}

/* Enter a name.  A name that is longer than a claim's may be is left out. */
static void
remember_name(Datum consumer)
{
	char		key[IDEM_MAX_NAME_BYTES + 1];
	text	   *name = DatumGetTextPP(consumer);

	if (VARSIZE_ANY_EXHDR(name) <= IDEM_MAX_NAME_BYTES)
		(void) hash_search(private_names,
						   name_key(key, VARDATA_ANY(name), VARSIZE_ANY_EXHDR(name)),
						   HASH_ENTER, NULL);
}

/*
 * Read the names anew.  If an invalidation arrives meanwhile, the names count
 * as outdated.
 */
static void
read_names(void)
{
	Relation	rel = table_open(idem_relref_oid(&consumers), AccessShareLock);
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	HASHCTL		ctl = {.keysize = IDEM_MAX_NAME_BYTES + 1, .entrysize = IDEM_MAX_NAME_BYTES + 1};
	SysScanDesc scan;
	HeapTuple	tup;
	bool		isnull;
	uint64		at;

	forget_names();
	names_of = RelationGetRelid(rel);
	at = invalidations;
	private_names = hash_create("consumers with private locks", 16, &ctl,
								HASH_ELEM | HASH_STRINGS);
	scan = systable_beginscan(rel, InvalidOid, false, snapshot, 0, NULL);
	while (HeapTupleIsValid(tup = systable_getnext(scan)))
	{
		if (DatumGetBool(heap_getattr(tup, COL_PRIVATE_LOCKS, RelationGetDescr(rel), &isnull)))
			remember_name(heap_getattr(tup, COL_CONSUMER, RelationGetDescr(rel), &isnull));
	}
	systable_endscan(scan);
	UnregisterSnapshot(snapshot);
	table_close(rel, AccessShareLock);
	names_read_at = at;
}

bool
idem_consumer_private_locks(const char *consumer, int len)
{
	char		key[IDEM_MAX_NAME_BYTES + 1];

	if (consumer[0] == '@')
		return true;
	if (names_read_at != invalidations)
		read_names();
	return hash_get_num_entries(private_names) > 0 && len <= IDEM_MAX_NAME_BYTES &&
		hash_search(private_names, name_key(key, consumer, len), HASH_FIND, NULL) != NULL;
}

void
idem_consumer_change_locks(void)
{
	ResourceOwner saved;

	if (idem_state_used())
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the locks of a consumer cannot be changed in a transaction that has claimed events"),
				 errhint("Do it in a transaction of its own.")));
	saved = idem_txn_owner_enter();
	LockRelationOid(idem_relref_oid(&consumers), RowExclusiveLock);
	LockRelationOid(idem_relref_oid(&processed), ShareRowExclusiveLock);
	idem_txn_owner_leave(saved);
	CacheInvalidateRelcacheByRelid(idem_relref_oid(&consumers));
}

bool
idem_consumer_foreign_lockers(const char *consumer, int len)
{
	Relation	rel = table_open(idem_relref_oid(&consumers), AccessShareLock);
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	text	   *name = cstring_to_text_with_len(consumer, len);
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tup;
	bool		isnull;
	bool		foreign_lockers = false;

	ScanKeyInit(&key, COL_CONSUMER, BTEqualStrategyNumber, F_TEXTEQ,
				PointerGetDatum(name));
	scan = systable_beginscan(rel, idem_relref_oid(&consumers_pkey), true,
							  snapshot, 1, &key);
	tup = systable_getnext(scan);
	if (HeapTupleIsValid(tup))
		foreign_lockers = DatumGetBool(heap_getattr(tup, COL_FOREIGN_LOCKERS,
													RelationGetDescr(rel), &isnull));
	systable_endscan(scan);
	UnregisterSnapshot(snapshot);
	table_close(rel, AccessShareLock);
	pfree(name);
	return foreign_lockers;
}
