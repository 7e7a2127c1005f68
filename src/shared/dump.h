/*-------------------------------------------------------------------------
 *
 * dump.h
 *		Does a dump of the database run?
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/shared/dump.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_DUMP_H
#define IDEM_DUMP_H

#include "postgres.h"

/*
 * Has another session of this database a snapshot that may not see everything that
 * was committed before "last" was the latest xid?  Errs to the side of yes.
 */
extern bool idem_dump_older_snapshot(TransactionId last);

/* The same, of sessions that look like a dump. */
extern bool idem_dump_is_older(TransactionId last);

#endif							/* IDEM_DUMP_H */
