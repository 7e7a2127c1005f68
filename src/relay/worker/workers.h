/*-------------------------------------------------------------------------
 *
 * workers.h
 *		The processes of relays, and the commands that concern them.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/worker/workers.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_RELAY_WORKER_WORKERS_H
#define IDEM_RELAY_WORKER_WORKERS_H

#include "postgres.h"

#include "datatype/timestamp.h"
#include "nodes/pg_list.h"
#include "port.h"
#include "storage/latch.h"

#include "compat.h"
#include "relay/report.h"
#include "shared/clock.h"
#include "shared/statement.h"

/* The launcher */

/* Register the launcher with the postmaster; at preload only. */
extern void idem_launcher_register(void);

/* Register the label that marks databases with relays; in every process. */
extern void idem_launcher_init(void);

/*
 * Mark the current database as one with relays, or remove the mark.  The mark
 * is a security label of the database.  It is transactional like everything
 * else about relays, and the launcher finds it after a crash.
 */
extern void idem_launcher_enlist_database(void);

/* False, and the mark stays, if a transaction that has not ended wants the mark. */
extern bool idem_launcher_delist_database(void);

extern PGDLLEXPORT void idem_launcher_main(Datum arg);

/* Of witness_ask.c: asks whether this server may publish; in the launcher */

/*
 * Call it once, before signals are unblocked.  After this no command is left
 * behind.
 */
extern void idem_witness_ask_init(void);

/* Do all that can be done without waiting: ask, read, judge, kill, reap. */
extern void idem_witness_ask_serve(void);

/*
 * In how many ms to call idem_witness_ask_serve again if nothing happens
 * earlier; -1: no need.
 */
extern long idem_witness_ask_wait_ms(void);

/*
 * The descriptor of the command's output, to wait for; PGINVALID_SOCKET: none.
 */
extern pgsocket idem_witness_ask_fd(void);

/* The worker of a database, or of a function relay */

/* The argument is the number of its slot. */
extern PGDLLEXPORT void idem_worker_main(Datum arg);

/* Errors that a worker meets again and again: logs them seldom, sets the next try */

/* One per action that can fail; all zero: the action has not failed, or succeeded since. */
typedef struct IdemComplaint
{
	int			failures;		/* failures in a row */
	IdemClock	retry_at;		/* earliest next try; 0: at once */
	int64		log_gap_ms;		/* from log_at's report to the next of the
								 * same error */
	IdemClock	log_at;			/* earliest next report of the same error */
	char		message[IDEM_ERROR_LEN];	/* of the error that was logged
											 * last */
} IdemComplaint;

/*
 * In PG_CATCH, before FlushErrorState: log the error if it differs from the
 * last error, or if enough time has passed, and set the next try.
 */
extern void idem_complaint_note(IdemComplaint *complaint);

/* Of relays.c: the relays of a worker, and which of them have turns */

/*
 * Take over the configurations of all relays of this worker: relays may have
 * changed, come or gone. function: all of them are function relays.
 */
extern void idem_relays_configure(List *configs, bool function);

/*
 * In a transaction, after the first look at the configuration: let relays rest
 * that have nothing in flight.
 */
extern void idem_relays_begin_with_rest(void);

/* A transaction committed at that time; 0: the time is not known. */
extern void idem_relays_woken(TimestampTz stamp);

/* The witness's answer has changed: give each relay a turn, to look at it. */
extern void idem_relays_activate_all(void);

/*
 * Give each active relay a turn.  True if a relay wants another turn at once.
 * *failed: a relay raised an error.
 */
extern bool idem_relays_run(MemoryContext error_cxt, bool *failed);

/* When to run them next if nothing happens earlier; 0: no need. */
extern IdemClock idem_relays_next_time(void);

/*
 * In the worker of a function relay: may the process end and leave the relay
 * to a later worker?  *idle: the relay has nothing to do now.
 */
extern bool idem_relays_may_leave(bool *idle);

/*
 * In the worker of a database: has no relay a program, or something to start one for?
 * Function relays that have a worker of their own, or wait for one, do not count.
 */
extern bool idem_relays_at_rest(void);

/* Has a program events whose answers are worth a wait? */
extern bool idem_relays_may_be_answered(void);

/*
 * Let programs end that have nothing to do; all: also those that have, once what is in
 * flight is settled, and start no more.
 */
extern void idem_relays_make_way(bool all);

/* Write rows for positions that have moved in memory only. */
extern void idem_relays_persist(void);

/* What the worker waits for: its latch, and the descriptors of the programs. */
extern WaitEventSet *idem_relays_wait_set(void);

/* Of upkeep.c: work of a database's worker for all relays of the database */

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

/* Of ddl.c: commands of other sessions that concern relays */

/*
 * What a utility statement means for workers and relays.  Refuses a DROP SERVER without
 * CASCADE if relays send to the server.
 */
extern void idem_ddl_read(Node *stmt, IdemStatement *s);

/* An object was altered, or is dropped; looks at its class first. */
extern void idem_ddl_object_changed(Oid classid, Oid objid, bool dropped);

#endif							/* IDEM_RELAY_WORKER_WORKERS_H */
