/*-------------------------------------------------------------------------
 *
 * upkeep.h
 *		Work of a database's worker for all relays of the database.
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

#include "shared/clock.h"

/*
 * Write a tick about every IDEM_TICK_EVENTS events, at which a long backlog can
 * be cut.
 */
extern void idem_upkeep_tick(IdemClock now);

/* Take the present relays over, to find out which were dropped. */
extern void idem_upkeep_note_relays(List *configs);

/*
 * Keep the log of positions short, halt relays that are too far behind, delete
 * the rows that dropped relays left, empty segments that no relay needs, and
 * see to it that the store of claims is packed.
 * Runs in transactions of its own, and allocates in work_cxt.
 */
extern void idem_upkeep_run(MemoryContext work_cxt);

/*
 * Before the last worker leaves the database: finish what a crash has
 * interrupted in the outbox and in the log of positions, since no other process
 * will.  False if a lock of somebody prevents it.
 */
extern bool idem_upkeep_finish_emptying(void);

#endif							/* IDEM_RELAY_PROCESS_UPKEEP_H */
