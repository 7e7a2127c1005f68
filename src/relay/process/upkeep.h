/*-------------------------------------------------------------------------
 *
 * upkeep.h
 *		What the worker of a database does for all relays of it.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/process/upkeep.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_RELAY_PROCESS_UPKEEP_H
#define IDEM_RELAY_PROCESS_UPKEEP_H

#include "postgres.h"

#include "nodes/pg_list.h"

/* Note where the log is, now and then, so that a long backlog can be cut there. */
extern void idem_upkeep_tick(void);

/* The relays there are now, so that the upkeep sees which were dropped. */
extern void idem_upkeep_note_relays(List *configs);

/*
 * Keep the log of positions short, halt relays that are too far behind, forget
 * what dropped relays left, and empty what no relay needs.  In transactions of its own; what it allocates
 * is in work_cxt.
 */
extern void idem_upkeep_run(MemoryContext work_cxt);

/*
 * Before the last worker leaves the database: finish what a crash has interrupted
 * in the outbox, since nobody else will.  False if somebody's lock stands in the way.
 */
extern bool idem_upkeep_finish_emptying(void);

#endif							/* IDEM_RELAY_PROCESS_UPKEEP_H */
