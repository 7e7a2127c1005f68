/*-------------------------------------------------------------------------
 *
 * relay.c
 *		Settings of the relay, and what it installs at preload.
 *
 * Without the preload nothing of it runs: claims and outbox work, relays can
 * be inspected, and relay_create says what to do.  Nothing is installed during
 * pg_upgrade, which starts the new server with the library loaded and must
 * find no process that writes.
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

#include "relay/option_guard.h"
#include "relay/hooks.h"
#include "relay/identity.h"
#include "outbox/outbox.h"
#include "relay/launcher.h"
#include "relay/parked.h"
#include "relay/program.h"
#include "relay/relay.h"
#include "relay/shmem.h"
#include "relay/stream.h"
#include "relay/wake.h"
#include "relay/witness.h"

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
	DefineCustomIntVariable("idempotency.max_parked",
							"Parked events at which a relay takes no new events from the outbox.",
							NULL,
							&idem_max_parked,
							10000, 1, 10000000, PGC_SIGHUP, 0, NULL, NULL, NULL);
}

void
idem_relay_init(void)
{
	define_settings();
	idem_option_guard_init();
	idem_outbox_greatest_hook = idem_parked_greatest_seq;
	idem_launcher_init();
	if (!process_shared_preload_libraries_in_progress || IsBinaryUpgrade)
		return;
	idem_shmem_init();
	idem_wake_init();
	idem_hooks_init();
	idem_launcher_register();
}
