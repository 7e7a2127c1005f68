/*-------------------------------------------------------------------------
 *
 * compat.h
 *		The only place that tests PG_VERSION_NUM.
 *
 * Each entry names the upstream change it bridges.  Supported: 15 to 19.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/compat.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_COMPAT_H
#define IDEM_COMPAT_H

#include "postgres.h"

#if PG_VERSION_NUM < 150000
#error "idempotency needs PostgreSQL 15 or newer"
#endif

/*
 * Are synchronous standbys configured, as the checkpointer told everybody?
 * Needs walsender_private.h.  15.13, 16.9, 17.5: "Fix race condition with
 * synchronous_standby_names at startup" turned the flag into a bit mask.
 */
#ifdef SYNC_STANDBY_DEFINED
#define IDEM_SYNC_STANDBYS_DEFINED() \
	((((volatile WalSndCtlData *) WalSndCtl)->sync_standbys_status & \
	  SYNC_STANDBY_DEFINED) != 0)
#else
#define IDEM_SYNC_STANDBYS_DEFINED() \
	(((volatile WalSndCtlData *) WalSndCtl)->sync_standbys_defined)
#endif

#endif							/* IDEM_COMPAT_H */
