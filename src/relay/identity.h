/*-------------------------------------------------------------------------
 *
 * identity.h
 *		The publish identity: what this server and database are to a relay.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/identity.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_RELAY_IDENTITY_H
#define IDEM_RELAY_IDENTITY_H

#include "postgres.h"

/* The GUC idempotency.publish_as. */
extern char *idem_publish_as;

/* What this server and database are now; palloc'd. */
extern char *idem_publish_identity(void);

/* The same as of the worker's last look, lasting; and that look. */
extern const char *idem_relay_identity(void);
extern void idem_relay_identity_refresh(void);

/* A number that names one life of a relay's log to the sinks; palloc'd. */
extern char *idem_relay_new_incarnation(void);

#endif							/* IDEM_RELAY_IDENTITY_H */
