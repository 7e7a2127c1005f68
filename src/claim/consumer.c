/*-------------------------------------------------------------------------
 *
 * consumer.c
 *		The registered properties of a consumer.
 *
 * Consumers need no registration: a row of idempotency_data.consumers only
 * says how a consumer differs from the defaults.
 *
 * The choice of the lock that guards an event must not change while a claim of
 * the event is undecided.  Otherwise two transactions could each hold "the"
 * lock at the same time.  change.c has how a change of private_locks, and one that
 * sets foreign_lockers, goes on beside claims.  A process remembers the registered
 * consumers until a change sends an invalidation.  Claims that run beside another
 * change may still go by what was before.
 *
 * A consumer may have an owner (below).  Who may use the consumer is asked for at
 * each call, before the store's lock; so a change of the owner need not wait for
 * claims in flight.
 *
 * LOCKING: a look-up takes AccessShareLock on the table of consumers and its
 * index.  A change takes RowExclusiveLock on the table of consumers, then the locks of
 * change.c, and keeps both as long as the change stands.  TRUNCATE of the table takes
 * the store's lock against all writers.
 *
 * MEMORY: what is remembered, one entry of 320 bytes for each registered
 * consumer.
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
#include "access/xlog.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

#include "claim/consumer.h"
#include "claim/setting.h"
#include "claim/state.h"
#include "shared/args.h"
#include "shared/catalog.h"
#include "shared/guard.h"
#include "shared/sound.h"
#include "shared/table.h"
#include "shared/txn_owner.h"
#include "store/retention.h"
#include "store/store.h"

/*
 * The role that owns a consumer.
 *
 * The row of a consumer notes its owner by name, by OID, and by the cluster in
 * which the role has that OID.  In that cluster the OID decides: a role that was
 * renamed is still the owner, and a new role with the former name is not.  A role
 * that was dropped leaves a consumer whose owner does not exist.  Only superusers
 * claim for such a consumer, until an operator gives it another owner.
 *
 * Each change of the row notes the owner anew: its present name, which the next
 * dump names, or that the role does not exist.  What was noted as missing stays so,
 * even if the OID is given to another role when OIDs have wrapped around.
 *
 * A dump brings the row to another cluster, where the OID may be another role's.
 * The trigger of the table looks the name up when the row arrives, and notes the
 * OID that the role has there.  If no role has the name then, the owner does not
 * exist, and does not begin to exist when a role of that name is made later.
 * Rows that arrive without the trigger (pg_upgrade, pg_restore --disable-triggers)
 * have an owner if the role has both the noted name and the noted OID.
 *
 * The column is no regrole: a role that is missing would make a restore fail.
 * There is no entry in pg_shdepend, which cannot describe a row of a table.
 */

/* Is the OID of a note that of this cluster? */
static bool
is_from_here(const IdemOwnerNote *note)
{
	return note->cluster == (int64) GetSystemIdentifier();
}

static bool
owner_exists(Oid role)
{
	return OidIsValid(role) && SearchSysCacheExists1(AUTHOID, ObjectIdGetDatum(role));
}

Oid
idem_owner_role(const IdemOwnerNote *note)
{
	const char *name;

	if (!OidIsValid(note->oid) || is_from_here(note))
		return note->oid;
	name = GetUserNameFromId(note->oid, true);
	return name != NULL && strcmp(name, note->role) == 0 ? note->oid : InvalidOid;
}

bool
idem_owner_allows(Oid owner)
{
	if (owner_exists(owner))
		return has_privs_of_role(GetUserId(), owner);
	return superuser_arg(GetUserId());
}

IdemOwnerNote
idem_owner_read(HeapTuple row, TupleDesc desc)
{
	IdemOwnerNote note = {NULL, InvalidOid, IDEM_OWNER_CLUSTER_UNNOTED};
	bool		isnull;
	Datum		value = heap_getattr(row, IDEM_CONSUMERS_OWNER, desc, &isnull);

	if (!isnull)
		note.role = TextDatumGetCString(value);
	value = heap_getattr(row, IDEM_CONSUMERS_OWNER_OID, desc, &isnull);
	if (!isnull)
		note.oid = DatumGetObjectId(value);
	value = heap_getattr(row, IDEM_CONSUMERS_OWNER_CLUSTER, desc, &isnull);
	if (!isnull)
		note.cluster = DatumGetInt64(value);
	return note;
}

/*
 * The role that a row which is about to be stored names.  A row of consumer_create
 * or consumer_alter has the OID of this cluster, and no cluster yet.
 */
static Oid
role_of_new_row(const IdemOwnerNote *note, bool added)
{
	if (note->cluster == IDEM_OWNER_CLUSTER_UNNOTED)
		return note->oid;
	if (added && !is_from_here(note))
		return get_role_oid(note->role, true);
	return idem_owner_role(note);
}

HeapTuple
idem_owner_localize(HeapTuple row, TupleDesc desc, bool added)
{
	int			columns[3] = {
		IDEM_CONSUMERS_OWNER, IDEM_CONSUMERS_OWNER_OID, IDEM_CONSUMERS_OWNER_CLUSTER
	};
	bool		nulls[3] = {false, false, false};
	Datum		values[3];
	IdemOwnerNote note = idem_owner_read(row, desc);
	const char *name;
	Oid			role;

	if (note.role == NULL)
		return row;
	role = role_of_new_row(&note, added);
	name = OidIsValid(role) ? GetUserNameFromId(role, true) : NULL;
	values[0] = CStringGetTextDatum(name != NULL ? name : note.role);
	values[1] = ObjectIdGetDatum(name != NULL ? role : InvalidOid);
	values[2] = Int64GetDatum((int64) GetSystemIdentifier());
	return heap_modify_tuple_by_cols(row, desc, 3, columns, values, nulls);
}

/* Policies */

/* What a consumer does with leases unless it is registered with something else */
#define DEFAULT_LEASE_DURATION	(30 * USECS_PER_SEC)
#define DEFAULT_MIN_BACKOFF		(1 * USECS_PER_SEC)
#define DEFAULT_MAX_BACKOFF		(300 * USECS_PER_SEC)

static const IdemColumn columns[IDEM_CONSUMERS_NATTS] = {
	[IDEM_CONSUMERS_CONSUMER - 1] = {TEXTOID, true},
	[IDEM_CONSUMERS_FOREIGN_LOCKERS - 1] = {BOOLOID, true},
	[IDEM_CONSUMERS_PRIVATE_LOCKS - 1] = {BOOLOID, true},
	[IDEM_CONSUMERS_RETENTION - 1] = {INTERVALOID, false},
	[IDEM_CONSUMERS_KEEP_IDS - 1] = {BOOLOID, true},
	[IDEM_CONSUMERS_EXPIRE_BY_ID_AGE - 1] = {BOOLOID, true},
	[IDEM_CONSUMERS_LEASE_DURATION - 1] = {INTERVALOID, true},
	[IDEM_CONSUMERS_MAX_ATTEMPTS - 1] = {INT4OID, true},
	[IDEM_CONSUMERS_MIN_BACKOFF - 1] = {INTERVALOID, true},
	[IDEM_CONSUMERS_MAX_BACKOFF - 1] = {INTERVALOID, true},
	[IDEM_CONSUMERS_OWNER - 1] = {TEXTOID, false},
	[IDEM_CONSUMERS_OWNER_OID - 1] = {OIDOID, false},
	[IDEM_CONSUMERS_OWNER_CLUSTER - 1] = {INT8OID, false}
};

static const IdemTableForm form = {
	.columns = columns, .ncolumns = IDEM_CONSUMERS_NATTS, .by_sql = true
};

IdemRelRef	idem_consumers = IDEM_TABLEREF("consumers", &form);

/*
 * The registered consumers.  They are up to date while the count of
 * invalidations equals policies_read_at, which is 0 if they were never read.
 */
typedef struct KnownConsumer
{
	char		name[IDEM_MAX_NAME_BYTES + 1];
	IdemConsumerPolicy policy;
	bool		owned;
	Oid			owner;			/* InvalidOid: the owner does not exist */
	bool		unsound;		/* nothing of the row can be believed but the
								 * name */
	ItemPointerData tid;
} KnownConsumer;

static HTAB *policies = NULL;
static Oid	policies_of = InvalidOid;	/* the table that they were read from */
static uint64 invalidations = 1;
static uint64 policies_read_at = 0;

/*
 * Invalidation callback: counts invalidations of the table that the policies
 * were read from, or of all relations.
 */
static void
count_invalidation(Datum arg, Oid relid)
{
	if (relid == InvalidOid || relid == policies_of)
	{
		invalidations++;
		idem_change_note();
	}
}

void
idem_consumer_init(void)
{
	CacheRegisterRelcacheCallback(count_invalidation, (Datum) 0);
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

/*
 * The length of a retention in seconds, rounded up; 0: for ever.  consumer_check
 * refuses a retention that is not positive; one that came by another way is for ever,
 * the safe side.
 */
static int64
retention_seconds(const Interval *interval)
{
	int64		us = idem_interval_us(interval);

	return us <= 0 || us >= IDEM_FOR_EVER_US ? 0 : (us + USECS_PER_SEC - 1) / USECS_PER_SEC;
}

/* Is a row one that consumer_create could have written?  The table's constraint says the same. */
static bool
is_sound(const Datum *values, const bool *nulls)
{
	for (int i = 0; i < IDEM_CONSUMERS_NATTS; i++)
	{
		if ((columns[i].not_null && nulls[i]) ||
			(columns[i].not_null && columns[i].type == INTERVALOID && !idem_sound_duration(values[i], false)))
			return false;
	}
	return nulls[IDEM_CONSUMERS_OWNER - 1] || !nulls[IDEM_CONSUMERS_OWNER_OID - 1];
}

/* Enter a consumer.  A name that is longer than a claim's may be is left out. */
static void
remember_policy(HeapTuple tup, TupleDesc desc)
{
	char		key[IDEM_MAX_NAME_BYTES + 1];
	Datum		values[IDEM_CONSUMERS_NATTS];
	bool		nulls[IDEM_CONSUMERS_NATTS];
	text	   *name;
	KnownConsumer *known;
	IdemConsumerPolicy *policy;
	IdemOwnerNote owner;

	idem_table_take_apart(desc, IDEM_CONSUMERS_NATTS, tup, values, nulls);
	name = nulls[IDEM_CONSUMERS_CONSUMER - 1] ? NULL : DatumGetTextPP(values[IDEM_CONSUMERS_CONSUMER - 1]);
	if (name == NULL || VARSIZE_ANY_EXHDR(name) > IDEM_MAX_NAME_BYTES)
		return;
	known = hash_search(policies, name_key(key, VARDATA_ANY(name), VARSIZE_ANY_EXHDR(name)),
						HASH_ENTER, NULL);
	known->tid = tup->t_self;
	known->unsound = !is_sound(values, nulls);
	if (known->unsound)
		return;
	policy = &known->policy;
	policy->locks = DatumGetBool(values[IDEM_CONSUMERS_PRIVATE_LOCKS - 1]) ?
		IDEM_LOCKS_PRIVATE : IDEM_LOCKS_PUBLISHED;
	policy->foreign_lockers = DatumGetBool(values[IDEM_CONSUMERS_FOREIGN_LOCKERS - 1]);
	policy->keep_ids = DatumGetBool(values[IDEM_CONSUMERS_KEEP_IDS - 1]);
	policy->expire_by_id_age = DatumGetBool(values[IDEM_CONSUMERS_EXPIRE_BY_ID_AGE - 1]);
	policy->lease_duration = idem_interval_us(DatumGetIntervalP(values[IDEM_CONSUMERS_LEASE_DURATION - 1]));
	policy->min_backoff = idem_interval_us(DatumGetIntervalP(values[IDEM_CONSUMERS_MIN_BACKOFF - 1]));
	policy->max_backoff = idem_interval_us(DatumGetIntervalP(values[IDEM_CONSUMERS_MAX_BACKOFF - 1]));
	policy->max_attempts = DatumGetInt32(values[IDEM_CONSUMERS_MAX_ATTEMPTS - 1]);
	policy->retention = nulls[IDEM_CONSUMERS_RETENTION - 1] ? -1 :
		retention_seconds(DatumGetIntervalP(values[IDEM_CONSUMERS_RETENTION - 1]));
	owner = idem_owner_read(tup, desc);
	known->owned = owner.role != NULL;
	known->owner = known->owned ? idem_owner_role(&owner) : InvalidOid;
}

/*
 * Read the consumers anew.  If an invalidation arrives meanwhile, they count as
 * outdated.
 */
static void
read_policies(void)
{
	Relation	rel = table_open(idem_relref_oid(&idem_consumers), AccessShareLock);
	Snapshot	snapshot;
	HASHCTL		ctl = {.keysize = IDEM_MAX_NAME_BYTES + 1, .entrysize = sizeof(KnownConsumer)};
	SysScanDesc scan;
	HeapTuple	tup;
	uint64		at;
	HTAB	   *known = policies;	/* freed, and read again */

	policies_read_at = 0;
	policies = NULL;
	if (known != NULL)
		hash_destroy(known);
	idem_guard_table(&idem_consumers, rel, IDEM_GUARD_READ);
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	policies_of = RelationGetRelid(rel);
	at = invalidations;
	policies = hash_create("registered consumers", 16, &ctl, HASH_ELEM | HASH_STRINGS);
	scan = systable_beginscan(rel, InvalidOid, false, snapshot, 0, NULL);
	while (HeapTupleIsValid(tup = systable_getnext(scan)))
		remember_policy(tup, RelationGetDescr(rel));
	systable_endscan(scan);
	UnregisterSnapshot(snapshot);
	table_close(rel, AccessShareLock);
	policies_read_at = at;
}

/* Fill in what follows from the retention, -1 if the consumer has none. */
static IdemConsumerPolicy
finish_policy(IdemConsumerPolicy policy)
{
	if (policy.retention < 0)
		policy.retention = idem_claim_retention;
	policy.class = policy.retention == 0 ? IDEM_RETENTION_FOR_EVER :
		idem_retention_class(policy.retention);
	return policy;
}

int
idem_consumer_class(const Interval *retention)
{
	IdemConsumerPolicy policy = {.retention = retention == NULL ? -1 : retention_seconds(retention)};

	return finish_policy(policy).class;
}

/*
 * The entry of a consumer as of now, until the next call, sound or not; NULL if the
 * consumer is not registered, or is the extension's own.
 */
static const KnownConsumer *
find_any(const char *consumer, int len)
{
	char		key[IDEM_MAX_NAME_BYTES + 1];

	if (consumer[0] == '@')
		return NULL;

	/*
	 * A transaction that has the store's locks already takes no lock that
	 * would bring the invalidations of others.
	 */
	AcceptInvalidationMessages();
	if (policies_read_at != invalidations)
		read_policies();
	if (hash_get_num_entries(policies) == 0 || len > IDEM_MAX_NAME_BYTES)
		return NULL;
	return hash_search(policies, name_key(key, consumer, len), HASH_FIND, NULL);
}

/* The same; error XX001 if it is not sound. */
static const KnownConsumer *
find_known(const char *consumer, int len)
{
	const KnownConsumer *known = find_any(consumer, len);

	if (known != NULL && known->unsound)
		idem_report_row(ERROR, policies_of, &known->tid,
						"Update the row to what the consumer is to be, or delete it and register the consumer with consumer_create.");
	return known;
}

/* A change that ends after the look has sent its invalidation before find_known(). */
IdemConsumerPolicy
idem_consumer_policy(const char *consumer, int len)
{
	IdemConsumerPolicy policy = {
		.retention = -1,
		.lease_duration = DEFAULT_LEASE_DURATION,
		.min_backoff = DEFAULT_MIN_BACKOFF,
		.max_backoff = DEFAULT_MAX_BACKOFF
	};
	IdemConsumerPolicy own = {.locks = IDEM_LOCKS_PRIVATE};
	const KnownConsumer *known;
	IdemChange	change;

	if (consumer[0] == '@')
		return own;

	/*
	 * Invalidations of the table are counted before the question what others
	 * change, and not only when the table was read.
	 */
	if (policies_read_at != invalidations)
		policies_of = idem_relref_oid(&idem_consumers);
	change = idem_change_look(consumer, len);
	known = find_known(consumer, len);
	if (known != NULL)
		policy = known->policy;
	if (change.locks)
		policy.locks = IDEM_LOCKS_BOTH;
	policy.is_changing = change.foreign_lockers && !policy.foreign_lockers;
	policy.foreign_lockers = policy.foreign_lockers || change.foreign_lockers;
	return finish_policy(policy);
}

bool
idem_consumer_is_accessible(const char *consumer, int len)
{
	const KnownConsumer *known = find_any(consumer, len);

	if (known != NULL && known->unsound)
		return superuser_arg(GetUserId());
	return known == NULL || !known->owned || idem_owner_allows(known->owner);
}

bool
idem_consumer_value_is_accessible(Datum consumer)
{
	text	   *name = DatumGetTextPP(consumer);
	bool		accessible = idem_consumer_is_accessible(VARDATA_ANY(name), VARSIZE_ANY_EXHDR(name));

	if (PointerGetDatum(name) != consumer)
		pfree(name);
	return accessible;
}

bool
idem_consumer_sees_all(void)
{
	static IdemRelRef processed_events = IDEM_VIEWREF("processed_events");

	return pg_class_aclcheck(idem_relref_oid(&processed_events), GetUserId(),
							 ACL_SELECT) == ACLCHECK_OK;
}

void
idem_consumer_check_access(const char *consumer, int len)
{
	const KnownConsumer *known = find_known(consumer, len);

	if (known == NULL || !known->owned || idem_owner_allows(known->owner))
		return;
	ereport(ERROR,
			(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
			 errmsg("permission denied for consumer \"%s\"", pnstrdup(consumer, len)),
			 owner_exists(known->owner) ?
			 errdetail("The current user has not the privileges of the role that owns the consumer.") :
			 errdetail("The role that owned the consumer does not exist."),
			 owner_exists(known->owner) ?
			 errhint("Act as a member of that role; an operator sees it in claim_consumers. For another consumer the same events are claimed anew.") :
			 errhint("An operator gives the consumer another owner, or none, with consumer_alter(owner => ...).")));
}

/*
 * Lock the table as a change of a row does.  Error 55000 in a transaction that has claimed: it
 * cannot wait for its own claims.
 */
static void
lock_unclaimed(void)
{
	if (idem_state_used())
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the locks of a consumer cannot be changed in a transaction that has claimed events"),
				 errhint("Do it in a transaction of its own.")));
	idem_txn_lock(idem_relref_oid(&idem_consumers), RowExclusiveLock);
}

void
idem_consumer_change_locks(const char *consumer, int len, IdemChange change)
{
	lock_unclaimed();
	idem_change_announce(idem_relref_oid(&idem_consumers), consumer, len, change);
	idem_consumer_change_policy();
}

void
idem_consumer_change_all(void)
{
	lock_unclaimed();

	/*
	 * nobody writes until the transaction ends; waits for the transactions
	 * that have written
	 */
	idem_txn_lock(idem_store_lock_oid(), ShareRowExclusiveLock);
	idem_consumer_change_policy();
}

void
idem_consumer_change_policy(void)
{
	CacheInvalidateRelcacheByRelid(idem_relref_oid(&idem_consumers));
}
