/*-------------------------------------------------------------------------
 *
 * identity.h
 *		The publish identity: a name for this server and database.
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

/* The present identity of this server and database; palloc'd. */
extern char *idem_publish_identity(void);

/*
 * idem_relay_identity_refresh stores the present identity; idem_relay_identity
 * returns the stored one, which stays valid until the next refresh.  A worker
 * refreshes it each time it reads the relays.
 */
extern const char *idem_relay_identity(void);
extern void idem_relay_identity_refresh(void);

/* A new incarnation for a relay, a UUID that the sinks store; palloc'd. */
extern char *idem_relay_new_incarnation(void);

#endif							/* IDEM_RELAY_IDENTITY_H */
