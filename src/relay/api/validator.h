/*-------------------------------------------------------------------------
 *
 * validator.h
 *		Lets only superusers change servers' options that are for superusers.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/api/validator.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_RELAY_API_VALIDATOR_H
#define IDEM_RELAY_API_VALIDATOR_H

#include "postgres.h"

/* An object was created or altered; looks at its class first. */
extern void idem_option_guard_check(Oid classid, Oid objid, bool created);

#endif							/* IDEM_RELAY_API_VALIDATOR_H */
