/*-------------------------------------------------------------------------
 *
 * anchor.h
 *		The foreign table that stands for a relay in the catalogs.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/anchor.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_RELAY_ANCHOR_H
#define IDEM_RELAY_ANCHOR_H

#include "postgres.h"

#include "foreign/foreign.h"

typedef struct IdemAnchor
{
	Oid			relid;			/* InvalidOid: the relay has no anchor */
	Oid			serverid;		/* the server that the relay sends to */
	Oid			owner;			/* the role that the relay acts as */
} IdemAnchor;

/*
 * Find the anchor of a relay.  False, and all OIDs invalid, if the relay has
 * none.  Takes no lock.
 */
extern bool idem_anchor_find(int relay_id, IdemAnchor *anchor);

/*
 * Is the relation an anchor in the schema of "relays"?  Then *relay_id is its
 * relay.
 */
extern bool idem_anchor_is(Oid relid, int *relay_id);

/* The anchor's qualified name, quoted, palloc'd. */
extern char *idem_anchor_name(int relay_id);

/*
 * Make the anchor of a relay to a server.  The current user becomes its owner
 * and needs USAGE on the server.  An anchor of the same id that a restore left
 * without a relay is replaced.  The caller holds the server's lock.
 */
extern void idem_anchor_create(int relay_id, const ForeignServer *server);

/*
 * Lock an anchor against all other use, to the end of the (sub)transaction.
 */
extern void idem_anchor_lock(Oid relid);

/* Bind an anchor to another server.  The caller holds the anchor's lock. */
extern void idem_anchor_redirect(const IdemAnchor *anchor, Oid serverid);

/*
 * Drop an anchor and all objects that depend on it.  The caller holds the
 * anchor's lock.
 */
extern void idem_anchor_drop(const IdemAnchor *anchor);

#endif							/* IDEM_RELAY_ANCHOR_H */
