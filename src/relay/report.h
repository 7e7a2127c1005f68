/*-------------------------------------------------------------------------
 *
 * report.h
 *		What relays report about themselves: stat_relay and the server log.
 *
 * A failure that repeats is logged once per change of state; stat_relay always
 * shows the last error.  No payload and no secret is ever part of a message.
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

#include "relay/shmem.h"

/* Seconds over which the rate is smoothed. */
#define IDEM_RATE_TAU 5.0

/*
 * All functions here accept a NULL entry: the relay runs, but shared memory
 * had no entry left for it.  This one sets state and wait, and logs a change
 * of state.
 */
extern void idem_report_state(IdemRelayEntry *entry, const char *relay,
							  IdemRelayState state, IdemRelayWait waiting);

/* Set what the relay waits for; its state stays. */
extern void idem_report_waiting(IdemRelayEntry *entry, IdemRelayWait waiting);

/* Set the relay's last error. */
extern void idem_report_error(IdemRelayEntry *entry, const char *message);

/*
 * The process that has the entry ends, for the reason in "message".  The entry
 * stays for stat_relay, without a process, until the relay's next process
 * takes it.
 */
extern void idem_report_ended(IdemRelayEntry *entry, const char *message);

/* The relay's sink program; 0: none runs. */
extern void idem_report_sink_pid(IdemRelayEntry *entry, pid_t pid);

/*
 * Add to the relay's counters of sent and repeated events, and to its rate.
 */
extern void idem_report_counts(IdemRelayEntry *entry, int64 sent, int64 retried);

/*
 * Names of states and waits, as stat_relay shows them; NULL: the relay waits
 * for nothing.
 */
extern const char *idem_state_name(IdemRelayState state);
extern const char *idem_wait_name(IdemRelayWait waiting);

#endif							/* IDEM_RELAY_REPORT_H */
