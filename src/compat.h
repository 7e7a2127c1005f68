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

#endif							/* IDEM_COMPAT_H */
