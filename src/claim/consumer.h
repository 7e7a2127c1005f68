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

#include "utils/timestamp.h"

#include "claim/change.h"
#include "claim/lock.h"
#include "shared/catalog.h"

/* The table idempotency_data.consumers, which is not locked. */
extern IdemRelRef *idem_consumers_ref(void);

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

#endif							/* IDEM_CLAIM_CONSUMER_H */
