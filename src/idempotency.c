/*-------------------------------------------------------------------------
 *
 * idempotency.c
 *		Entry point of the library.  It only initialises each subsystem.
 *
 * Every subsystem is initialised in the backend that loads the library.  If
 * the library is preloaded, it is initialised in the postmaster, too.  Claims
 * and the outbox work with and without preloading.  The relay needs shared
 * memory and background workers, and therefore the preload.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/idempotency.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "utils/guc.h"

#include "compat.h"
#include "claim/claim.h"
#include "cursor/log.h"
#include "cursor/setting.h"
#include "lease/log.h"
#include "lease/setting.h"
#include "outbox/outbox.h"
#include "relay/relay.h"
#include "request/flight.h"
#include "request/response.h"
#include "shared/catalog.h"
#include "shared/guard.h"
#include "shared/keyed_worker.h"
#include "store/setting.h"

PG_MODULE_MAGIC;

extern PGDLLEXPORT void _PG_init(void);

void
_PG_init(void)
{
	idem_catalog_init();
	idem_guard_init();
	idem_store_setting_init();
	idem_lease_setting_init();
	idem_keyed_worker_add(&idem_lease_log);
	idem_keyed_worker_add(&idem_cursor_log);
	idem_cursor_setting_init();
	idem_claim_init();
	idem_outbox_init();
	idem_flight_init();
	idem_response_init();
	idem_relay_init();

	MarkGUCPrefixReserved("idempotency");
}
