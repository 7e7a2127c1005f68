/*-------------------------------------------------------------------------
 *
 * ddl.h
 *		Commands of other sessions that concern relays.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/process/ddl.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_RELAY_PROCESS_DDL_H
#define IDEM_RELAY_PROCESS_DDL_H

#include "postgres.h"

#include "shared/statement.h"

/*
 * What a utility statement means for workers and relays.  Refuses a DROP SERVER without
 * CASCADE if relays send to the server.
 */
extern void idem_ddl_read(Node *stmt, IdemStatement *s);

/* An object was altered, or is dropped; looks at its class first. */
extern void idem_ddl_object_changed(Oid classid, Oid objid, bool dropped);

#endif							/* IDEM_RELAY_PROCESS_DDL_H */
