/*-------------------------------------------------------------------------
 *
 * relay.c
 *		Settings of the relay, and what it installs at preload.
 *
 * Without the preload no process of the relay runs.  Claims and the outbox
 * work, relays can be inspected, and relay_create tells the caller to preload
 * the library.  No process runs during pg_upgrade either: pg_upgrade starts the
 * new server with the library loaded, and nobody else may write there.
 * Settings, the guard of servers' options and the provider of the databases'
 * label are installed wherever the library is loaded.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/relay.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/guc.h"

#include "outbox/outbox.h"
#include "relay/api/api.h"
#include "relay/child/process.h"
#include "relay/config.h"
#include "relay/engine/engine.h"
#include "relay/position/parked.h"
#include "relay/position/rest.h"
#include "relay/relay.h"
#include "relay/report.h"
#include "relay/row.h"
#include "relay/stream/pipe.h"
#include "relay/witness.h"
#include "relay/worker/workers.h"
#include "relay/worker_slots.h"

static void
define_settings(void)
{
	DefineCustomStringVariable("idempotency.sink_directory",
							   "Directory of sink programs that are not beside the library.",
							   "The directory idempotency-sinks beside the extension's library is looked in first.",
							   &idem_sink_directory,
							   "", PGC_SIGHUP, GUC_SUPERUSER_ONLY, NULL, NULL, NULL);
	DefineCustomStringVariable("idempotency.publish_as",
							   "Name under which this server publishes; the same on all members of one HA group.",
							   "Empty: derived from the machine and the place of the data directory.",
							   &idem_publish_as,
							   "", PGC_SIGHUP, 0, NULL, NULL, NULL);
	DefineCustomStringVariable("idempotency.publish_witness",
							   "Command that is asked whether this server may publish; status 0 is a yes, 1 a no.",
							   "Absolute path and arguments, without a shell.  Empty: nothing is asked.",
							   &idem_publish_witness,
							   "", PGC_SIGHUP, GUC_SUPERUSER_ONLY,
							   idem_publish_witness_check, NULL, NULL);
	DefineCustomIntVariable("idempotency.publish_witness_interval",
							"Time between two questions to the witness.",
							"A yes is valid for this long and the timeout, from when it was asked for.",
							&idem_publish_witness_interval_ms,
							3000, 100, 3600000, PGC_SIGHUP, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomIntVariable("idempotency.publish_witness_timeout",
							"Time after which a witness that has not ended is killed.",
							NULL,
							&idem_publish_witness_timeout_ms,
							2000, 100, 3600000, PGC_SIGHUP, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomIntVariable("idempotency.sink_timeout",
							"Time after which a sink program that does not answer is killed.",
							NULL,
							&idem_sink_timeout_ms,
							30000, 100, INT_MAX / 2, PGC_SIGHUP, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomIntVariable("idempotency.max_function_workers",
							"Processes that the function relays of a database may have at a time.",
							"Relays beyond that take turns.",
							&idem_max_function_workers,
							4, 1, 1024, PGC_SIGHUP, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("idempotency.sink_idle_timeout",
							"Time after which a sink program, or a function relay's worker, that has nothing to do is ended.",
							"It is started again when there is something to do.  With 0 it ends only when other relays wait for its place.",
							&idem_sink_idle_timeout_ms,
							60000, 0, INT_MAX / 2, PGC_SIGHUP, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomIntVariable("idempotency.max_sink_programs",
							"Sink programs that may run at a time for the relays of a database.",
							"Relays beyond that take turns.",
							&idem_max_sink_programs,
							100, 1, 10000, PGC_SIGHUP, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("idempotency.max_sink_starts",
							"Sink programs that may be started per second for the relays of a database.",
							"Relays whose program failed have a fifth of that.",
							&idem_max_sink_starts,
							50, 1, 1000, PGC_SIGHUP, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("idempotency.max_parked",
							"Copies of events that wait behind refused ones, of a relay.",
							"More of them wait in the outbox. With a hundred times as many parked events that are not dead a relay takes no new ones.",
							&idem_max_parked,
							10000, 1, 10000000, PGC_SIGHUP, 0, NULL, NULL, NULL);
}

void
idem_relay_init(void)
{
	define_settings();
	idem_relay_row_init();
	idem_outbox_greatest_hook = idem_parked_greatest_seq;
	idem_outbox_restored_hook = idem_relay_hold_for_restore;
	idem_launcher_init();
	if (!process_shared_preload_libraries_in_progress || IsBinaryUpgrade)
		return;

	/* The settings that size shared memory exist at preload only. */
	DefineCustomIntVariable("idempotency.max_workers",
							"Processes that all relays of the cluster may use.",
							"One per database that has relays, and one more per function relay with something to do.",
							&idem_relay_max_workers,
							16, 1, 1024, PGC_POSTMASTER, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("idempotency.max_relays",
							"Relays that the databases of the cluster may have together.",
							NULL,
							&idem_relay_max_relays,
							1024, 1, 4096, PGC_POSTMASTER, 0, NULL, NULL, NULL);
	idem_outbox_enqueued_hook = idem_wake_enqueued;
	idem_launcher_register();
}
