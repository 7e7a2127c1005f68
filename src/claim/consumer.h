/*-------------------------------------------------------------------------
 *
 * consumer.h
 *		The registered properties of a consumer.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/claim/consumer.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_CLAIM_CONSUMER_H
#define IDEM_CLAIM_CONSUMER_H

#include "postgres.h"

#include "access/htup.h"
#include "access/tupdesc.h"
#include "utils/timestamp.h"

#include "claim/change.h"
#include "claim/lock.h"
#include "shared/catalog.h"

extern IdemRelRef idem_consumers;

typedef struct IdemConsumerPolicy
{
	IdemLockSpace locks;		/* of its events */
	bool		foreign_lockers;	/* clients without this extension take the
									 * locks of its events, or soon may */
	bool		is_changing;	/* foreign_lockers is set by a transaction
								 * that has not ended */
	bool		keep_ids;		/* ids stay in clear when they are packed */
	bool		expire_by_id_age;
	int64		retention;		/* seconds; 0: for ever */
	int16		class;			/* of that retention: store/retention.h */
	int64		lease_duration; /* microseconds */
	int			max_attempts;	/* 0: no limit */
	int64		min_backoff;	/* microseconds */
	int64		max_backoff;
} IdemConsumerPolicy;

/*
 * The policy of a consumer, registered or not.  The extension's own consumers
 * always have private locks.  If the caller has the store open for writing, a change of
 * the locks and of foreign_lockers waits for the end of its transaction, or is in
 * the answer already (change.h).
 */
extern IdemConsumerPolicy idem_consumer_policy(const char *consumer, int len);

/*
 * May the current user claim for the consumer?  Yes if the consumer has no owner,
 * if the current user has the privileges of its owner, and for a superuser.
 */
extern bool idem_consumer_is_accessible(const char *consumer, int len);

/* The same of a column that has its name. */
extern bool idem_consumer_value_is_accessible(Datum consumer);

/*
 * May the current user see what the views have of all consumers?  Who may read
 * processed_events, which has the events of all, may.
 */
extern bool idem_consumer_sees_all(void);

/*
 * Error 42501 unless the current user may claim for the consumer.  Every function
 * that consumers call for an event calls this before it takes a lock, opens the
 * store or looks for the event.  The message is the same whatever became of events.
 */
extern void idem_consumer_check_access(const char *consumer, int len);

/*
 * The class of a registered retention (store/retention.h); NULL: of the default
 * by setting.
 */
extern int	idem_consumer_class(const Interval *retention);

/*
 * Call before the locks of a consumer change: announces it, and waits for the claims in
 * flight (idem_change_announce); all processes read the policies anew after the
 * transaction.  Error 55000 in a transaction that has claimed.
 */
extern void idem_consumer_change_locks(const char *consumer, int len, IdemChange change);

/*
 * Call before the policies of all consumers change.  Waits for the claims in flight, and
 * keeps new claims out until the transaction ends.  Error 55000 in a transaction that has
 * claimed.
 */
extern void idem_consumer_change_all(void);

/*
 * Call before any other property of a consumer changes, to have all processes
 * read it anew after the transaction.
 */
extern void idem_consumer_change_policy(void);

/* Registers for invalidations; called once per process. */
extern void idem_consumer_init(void);

/* A cluster of consumer_create and consumer_alter, which leave it to the trigger. */
#define IDEM_OWNER_CLUSTER_UNNOTED	0

/* What the row of a consumer notes of its owner. */
typedef struct IdemOwnerNote
{
	const char *role;			/* name; NULL: the consumer has no owner */
	Oid			oid;			/* InvalidOid: the role does not exist */
	int64		cluster;		/* system identifier of the cluster where the
								 * role has that OID */
} IdemOwnerNote;

/* Read the note of a row of the table of consumers; the name is palloc'd. */
extern IdemOwnerNote idem_owner_read(HeapTuple row, TupleDesc desc);

/*
 * The role that owns the consumer, or InvalidOid if that role does not exist.  The
 * note has a role.  A role that was dropped since may still be returned.
 */
extern Oid	idem_owner_role(const IdemOwnerNote *note);

/*
 * May the current user act for the owner of a consumer?  owner: what
 * idem_owner_role returned.  Only superusers act for an owner that does not exist.
 */
extern bool idem_owner_allows(Oid owner);

/*
 * For the trigger of the table of consumers: the row as it is to be stored, with
 * the owner's present name, and its OID in this cluster.  If the row notes no
 * cluster, its OID is of this cluster.  added: a new row from another cluster goes
 * by the name of its owner.
 */
extern HeapTuple idem_owner_localize(HeapTuple row, TupleDesc desc, bool added);

/* Columns of the table idempotency_data.consumers */
#define IDEM_CONSUMERS_CONSUMER			1
#define IDEM_CONSUMERS_FOREIGN_LOCKERS	2
#define IDEM_CONSUMERS_PRIVATE_LOCKS	3
#define IDEM_CONSUMERS_RETENTION		4
#define IDEM_CONSUMERS_KEEP_IDS			5
#define IDEM_CONSUMERS_EXPIRE_BY_ID_AGE	6
#define IDEM_CONSUMERS_LEASE_DURATION	7
#define IDEM_CONSUMERS_MAX_ATTEMPTS		8
#define IDEM_CONSUMERS_MIN_BACKOFF		9
#define IDEM_CONSUMERS_MAX_BACKOFF		10
#define IDEM_CONSUMERS_OWNER			11
#define IDEM_CONSUMERS_OWNER_OID		12
#define IDEM_CONSUMERS_OWNER_CLUSTER	13
#define IDEM_CONSUMERS_NATTS			13

#endif							/* IDEM_CLAIM_CONSUMER_H */
