/*-------------------------------------------------------------------------
 *
 * report.h
 *		What relays report about themselves: stat_relay and the server log.
 *
 * Each relay that runs has an entry in shared memory.  An entry is this process's to
 * write from ..._take to ..._release or ..._leave; and it keeps what the next worker of
 * a function relay has to know.  Liveness only: a crash leaves no entry.
 *
 * A failure that repeats is logged once per change of state; stat_relay always
 * shows the last error.  No payload and no secret is ever part of a line of the
 * log, so what a handler or a receiver says of an event is for stat_relay only.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/report.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_RELAY_REPORT_H
#define IDEM_RELAY_REPORT_H

#include "postgres.h"

#include "datatype/timestamp.h"
#include "nodes/pg_list.h"
#include "storage/spin.h"
#include "utils/uuid.h"

#include "relay/blame.h"
#include "shared/clock.h"

#define IDEM_ERROR_LEN 256

/* The LWLocks of the tranche "idempotency", in the order in which they are taken. */
typedef enum IdemLock
{
	IDEM_LOCK_SLOTS,			/* of worker_slots.c */
	IDEM_LOCK_ENTRIES,			/* of report.c */
	IDEM_LOCKS
} IdemLock;

typedef enum IdemRelayState
{
	IDEM_RELAY_STARTING,
	IDEM_RELAY_STREAMING,
	IDEM_RELAY_IDLE,			/* nothing to send, and no process for it */
	IDEM_RELAY_OUTAGE,			/* breaker open */
	IDEM_RELAY_PAUSED,
	IDEM_RELAY_HALTED,			/* on_dead = stop, or max_lag_size */
	IDEM_RELAY_UNADOPTED,
	IDEM_RELAY_DIVERGED,
	IDEM_RELAY_FENCED,
	IDEM_RELAY_MISCONFIGURED,	/* server, mapping, function or privilege */
	IDEM_RELAY_UNWITNESSED		/* idempotency.publish_witness does not allow
								 * it */
} IdemRelayState;

typedef enum IdemRelayWait
{
	IDEM_WAIT_NOTHING,
	IDEM_WAIT_EVENTS,
	IDEM_WAIT_ANSWER,			/* of the program: READY, results, credit */
	IDEM_WAIT_FUNCTION,			/* the handler is at work on an event */
	IDEM_WAIT_BACKOFF,
	IDEM_WAIT_LOCK,				/* a transaction has locked the relay's rows */
	IDEM_WAIT_PROGRAM_END,		/* the former program was killed and is not
								 * reaped */
	IDEM_WAIT_RETRY,			/* a parked event is to be tried again later */
	IDEM_WAIT_SYNC_STANDBY,
	IDEM_WAIT_OPERATOR,
	IDEM_WAIT_PARKED_ROOM,		/* too many parked events */
	IDEM_WAIT_WITNESS,			/* for a yes of idempotency.publish_witness */
	IDEM_WAIT_TURN,				/* for the worker, which hangs; no entry has
								 * it */
	IDEM_WAIT_PROGRAM,			/* for its turn to start a program */
	IDEM_WAIT_WORKER,			/* for one of the database's function workers */
	IDEM_WAIT_SLOT,				/* all idempotency.max_workers slots are in
								 * use */
	IDEM_WAIT_PROCESS			/* all max_worker_processes are in use */
} IdemRelayWait;

/* What a relay's last failures mean for its next tries. */
typedef struct IdemBreaker
{
	IdemRelayState fault;		/* state that the last failure put the relay
								 * in, until something disproves it; STARTING:
								 * none */
	int			failures;		/* failures in a row */
	IdemClock	not_before;		/* end of the backoff; 0: none */
	int			stepwise;		/* batches still to be tried one at a time:
								 * one of them may have raised the last error */
} IdemBreaker;

/* An event that alone made a commit fail, and that is to be parked untried. */
typedef struct IdemSuspect
{
	bool		is_set;
	pg_uuid_t	event_id;
	char		sqlstate[6];	/* of that failure; its message is last_error */
} IdemSuspect;

/* How the workers of a function relay ended, between two slots for it. */
typedef struct IdemFunctionEnds
{
	int			ends;			/* in a row, that nobody asked for */
	bool		ended_in_handler;	/* its last worker ended in a handler, and
									 * no event has committed since */
	bool		unserved;		/* its slot was freed before a process had it */
} IdemFunctionEnds;

/* What the next worker of a function relay needs to know. */
typedef struct IdemFunctionKept
{
	IdemBreaker breaker;
	IdemBlame	blame;
	IdemSuspect suspect;
	IdemFunctionEnds ends;
	bool		passed_crash;	/* a worker has passed the events in flight at
								 * the crash; without an entry each worker is
								 * careful, which only costs time */
	bool		repeats_turn;	/* the last transaction was the outbox's alone */
} IdemFunctionKept;

/* A relay's entry, which stat_relay shows. */
typedef struct IdemRelayEntry
{
	Oid			dboid;			/* InvalidOid: free */
	int			relay_id;
	bool		function;		/* a function relay: the entry outlives the
								 * relay's worker and the database's */
	slock_t		mutex;			/* guards the fields below */
	IdemRelayState state;
	IdemRelayWait waiting;
	TimestampTz waiting_since;	/* since when the relay waits for that,
								 * without having got on */
	pid_t		pid;
	pid_t		sink_pid;
	int64		sent;
	int64		retried;
	double		rate;			/* events per second, smoothed */
	double		rate_sum;		/* events that "rate" does not include yet */
	TimestampTz rate_at;		/* the time up to which "rate" is computed */
	TimestampTz delivered_at;	/* when "sent" rose last; 0: never */
	IdemRelayState logged;		/* last state in the server log; for the
								 * worker only */
	IdemFunctionKept kept;
	TimestampTz last_error_at;
	bool		error_quotes;	/* last_error may quote an event: not for the
								 * server log */
	char		last_error[IDEM_ERROR_LEN];
} IdemRelayEntry;

/* The GUC idempotency.max_relays: the number of entries. */
extern int	idem_relay_max_relays;

extern Size idem_relay_entries_size(void);
extern void idem_relay_entries_attach(void *segment, bool found);

/*
 * Take the entry of a relay for this process; the entry may exist already.
 * NULL if all entries are taken.  function: the entry outlives the relay's worker
 * and the database's.
 */
extern IdemRelayEntry *idem_relay_entry_take(Oid dboid, int relay_id, bool function);

/* Free the entry of a relay, unless another process has it. */
extern void idem_relay_entry_forget(Oid dboid, int relay_id);

/*
 * Free the entries of a database that no process has and whose relays are not in
 * the list.  A worker that ended leaves such an entry, perhaps before
 * the relay was dropped.
 */
extern void idem_relay_entries_forget(Oid dboid, List *relay_ids);

/* The same for all databases that are not in the list. */
extern void idem_relay_entries_forget_others(List *databases);

/*
 * This process ends and gives up all of its entries.  ended: the reason, if it is the
 * relay's failure.  keep: the entries of function relays stay, without a process.
 */
extern void idem_relay_entries_leave(const char *ended, bool keep);

/*
 * May this database, which has n relays, have another?  Error 53400 if all
 * databases together have as many relays as idempotency.max_relays allows.
 */
extern void idem_relay_entries_check(int64 n);

/*
 * Copies of this database's entries, in the current context; all: those without a
 * process, too.
 */
extern IdemRelayEntry *idem_relay_entries_copy(bool all, int *n);

/* The relay's last error. */
extern void idem_relay_entry_error(IdemRelayEntry *entry, char error[IDEM_ERROR_LEN]);

/*
 * For who serves a function relay: a worker of its own, or the database's.  NULL: nothing is
 * kept.
 */
extern IdemFunctionKept idem_relay_entry_kept(IdemRelayEntry *entry);
extern void idem_relay_entry_keep(IdemRelayEntry *entry, const IdemBreaker *breaker, const IdemBlame *blame,
								  const IdemSuspect *suspect, bool passed_crash, bool repeats_turn);
extern void idem_relay_entry_forget_failures(IdemRelayEntry *entry);

/*
 * How a function relay's workers ended: kept when its slot is freed, not_before being the
 * launcher's delay; recalled for its next slot, with the entry's number, or -1.
 */
extern void idem_relay_ends_keep(Oid dboid, int relay_id, const IdemFunctionEnds *ends,
								 IdemClock not_before);
extern int	idem_relay_ends_recall(Oid dboid, int relay_id, IdemFunctionEnds *ends);

/* Is that entry the relay's, and has the relay nothing to do just now? */
extern bool idem_relay_entry_is_idle(int number, Oid dboid, int relay_id);

/* Seconds over which the rate is smoothed. */
#define IDEM_RATE_TAU 5.0

/*
 * All functions here accept a NULL entry: the relay runs, but shared memory
 * had no entry left for it.  This one sets state and wait, and logs a change
 * of state.
 */
extern void idem_report_state(IdemRelayEntry *entry, const char *relay,
							  IdemRelayState state, IdemRelayWait waiting);

/*
 * Set what the relay waits for; its state stays.  ..._waiting_anew: the wait begins now, also
 * if the relay has waited for the same before.
 */
extern void idem_report_waiting(IdemRelayEntry *entry, IdemRelayWait waiting);
extern void idem_report_waiting_anew(IdemRelayEntry *entry, IdemRelayWait waiting);

/*
 * Set the relay's last error.  ..._refusal: what a handler or a receiver said of an
 * event, which may quote the event.
 */
extern void idem_report_error(IdemRelayEntry *entry, const char *message);
extern void idem_report_refusal(IdemRelayEntry *entry, const char *message);

/* Does the entry show this state and error?  For the process that has the entry. */
extern bool idem_report_shows(const IdemRelayEntry *entry, IdemRelayState state,
							  const char *error);

/*
 * May the server log get one more line of this kind?  Then the allowance, zero at first,
 * is charged: 20 lines at once, then one per second.
 */
extern bool idem_report_may_log(IdemClock *paid_until);

/* The relay's sink program; 0: none runs. */
extern void idem_report_sink_pid(IdemRelayEntry *entry, pid_t pid);

/* The relay got on: its present wait begins now. */
extern void idem_report_got_on(IdemRelayEntry *entry);

/*
 * Add to the relay's counters of sent and repeated events, and to its rate.  Whether it got on is
 * another question: it may still wait for the answer to an earlier event.
 */
extern void idem_report_counts(IdemRelayEntry *entry, int64 sent, int64 retried);

/*
 * Names of states and waits, as stat_relay shows them; NULL: the relay waits
 * for nothing.
 */
extern const char *const idem_state_names[];
extern const char *const idem_wait_names[];

#endif							/* IDEM_RELAY_REPORT_H */
