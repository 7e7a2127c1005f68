/*-------------------------------------------------------------------------
 *
 * owner.h
 *		The role that owns a consumer.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/claim/owner.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_CLAIM_OWNER_H
#define IDEM_CLAIM_OWNER_H

#include "postgres.h"

#include "access/htup.h"
#include "access/tupdesc.h"

/* A cluster of consumer_create and consumer_alter, which leave it to the trigger. */
#define IDEM_OWNER_CLUSTER_UNNOTED	0

/* What the row of a consumer notes of its owner. */
typedef struct IdemOwnerNote
{
	const char *role;			/* name; NULL: the consumer has no owner */
	Oid			oid;			/* InvalidOid: the role does not exist */
	int64		cluster;		/* system identifier of the cluster where the
								 * role has that OID */
} IdemOwnerNote;

/* Read the note of a row of the table of consumers; the name is palloc'd. */
extern IdemOwnerNote idem_owner_read(HeapTuple row, TupleDesc desc);

/*
 * The role that owns the consumer, or InvalidOid if that role does not exist.  The
 * note has a role.  A role that was dropped since may still be returned.
 */
extern Oid	idem_owner_role(const IdemOwnerNote *note);

/* Does the role exist? */
extern bool idem_owner_exists(Oid role);

/*
 * May the current user act for the owner of a consumer?  owner: what
 * idem_owner_role returned.  Only superusers act for an owner that does not exist.
 */
extern bool idem_owner_allows(Oid owner);

/*
 * For the trigger of the table of consumers: the row as it is to be stored, with
 * the owner's present name, and its OID in this cluster.  If the row notes no
 * cluster, its OID is of this cluster.  added: a new row from another cluster goes
 * by the name of its owner.
 */
extern HeapTuple idem_owner_localize(HeapTuple row, TupleDesc desc, bool added);

#endif							/* IDEM_CLAIM_OWNER_H */
