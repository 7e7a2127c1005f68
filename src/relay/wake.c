/*-------------------------------------------------------------------------
 *
 * wake.c
 *		Wakes the workers of a database at commits that concern them.
 *
 * A transaction that enqueued wakes the workers of its database after its
 * commit has become visible.  The commit callback must not fail: it touches
 * shared atomics and sets latches, nothing else.  A transaction that changed
 * relays also announces the change before it commits (difference_end.c).  A session
 * that ran COMMIT PREPARED does not know whether that transaction enqueued or
 * changed relays, so it always wakes the workers.  So does a worker that applies a
 * subscription's prepared transactions: their ends pass no utility hook.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/wake.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_subscription.h"
#include "miscadmin.h"
#include "replication/logicalworker.h"
#include "replication/worker_internal.h"
#include "utils/resowner.h"

#include "relay/difference_end.h"
#include "relay/worker_slots.h"
#include "shared/fault.h"

/* What the current transaction is to announce at its commit. */
static bool enqueued = false;
static bool config_changed = false;
static bool tell_launcher = false;
static bool callback_registered = false;

/*
 * The same for a transaction that has committed, until release_callback runs.
 */
static bool config_committed = false;
static bool launcher_due = false;

void
idem_wake_committing(void)
{
	if (config_changed)
		idem_config_committing(GetTopFullTransactionIdIfAny());
}

void
idem_wake_committed(void)
{
	if (enqueued)
	{
		IDEM_FAULT_POINT_NO_ERROR("commit-wake");
		idem_wake_database(MyDatabaseId, false);
	}
	config_committed = config_changed;
	launcher_due = tell_launcher;
	enqueued = config_changed = tell_launcher = false;
}

void
idem_wake_prepared(void)
{
	if (config_changed || tell_launcher)
	{
		IDEM_FAULT_POINT_NO_ERROR("ddl-prepare");
		idem_config_prepared();
	}
	enqueued = config_changed = tell_launcher = false;
}

void
idem_wake_aborted(void)
{
	if (config_changed)
		idem_config_committed();
	enqueued = config_changed = tell_launcher = false;
}

/*
 * Wake workers and launcher for a change of relays.  They look at the
 * catalogs, so the invalidation messages of this transaction must be sent
 * before.  PostgreSQL sends the messages between the commit callbacks and the
 * last release phase, which is this one.
 */
static void
release_callback(ResourceReleasePhase phase, bool is_commit, bool is_top_level, void *arg)
{
	if (phase != RESOURCE_RELEASE_AFTER_LOCKS || !is_top_level)
		return;
	if (is_commit && config_committed)
	{
		IDEM_FAULT_POINT_NO_ERROR("ddl-wake");
		idem_wake_database(MyDatabaseId, true);
		idem_config_committed();
	}
	if (is_commit && launcher_due)
		idem_wake_launcher();
	config_committed = launcher_due = false;
}

/*
 * Register the callback once per backend, when it has something to announce first:
 * PostgreSQL calls it thrice for each statement.  Registering allocates memory, so it
 * cannot wait until the commit.
 */
static void
ensure_callback(void)
{
	if (callback_registered)
		return;
	RegisterResourceReleaseCallback(release_callback, NULL);
	callback_registered = true;
}

/*
 * Note an enqueue, in the producer's transaction, where registering may still
 * allocate.
 */
void
idem_wake_enqueued(void)
{
	ensure_callback();
	enqueued = true;
}

void
idem_relay_config_changed(void)
{
	ensure_callback();
	config_changed = true;
}

void
idem_wake_launcher_at_commit(void)
{
	ensure_callback();
	tell_launcher = true;
}

void
idem_wake_committed_prepared(void)
{
	bool		config = idem_config_was_prepared();

	IDEM_FAULT_POINT_NO_ERROR("commit-prepared-wake");
	idem_wake_database(MyDatabaseId, config);
	if (config)
		idem_wake_launcher();
}

bool
idem_wake_applies_prepared(void)
{
	return IsLogicalWorker() && MySubscription != NULL &&
		MySubscription->twophasestate == LOGICALREP_TWOPHASE_STATE_ENABLED;
}
