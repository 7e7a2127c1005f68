/*-------------------------------------------------------------------------
 *
 * report.h
 *		What a relay tells about itself: stat_relay and the server log.
 *
 * A failure that repeats is logged once per change of state; stat_relay always
 * has the last one.  No payload and no secret is ever part of a message.
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

/* All accept a NULL entry: the relay runs, but stat_relay had no room for it. */
extern void idem_report_state(IdemRelayEntry *entry, const char *relay,
							  IdemRelayState state, IdemRelayWait waiting);

/* In the state it is in, the relay waits for something else. */
extern void idem_report_waiting(IdemRelayEntry *entry, IdemRelayWait waiting);

extern void idem_report_error(IdemRelayEntry *entry, const char *message);

/*
 * This process, which has the entry, is ending for that reason: the entry stays
 * for stat_relay, without a process, until the next one takes it.
 */
extern void idem_report_ended(IdemRelayEntry *entry, const char *message);
extern void idem_report_sink_pid(IdemRelayEntry *entry, pid_t pid);
extern void idem_report_counts(IdemRelayEntry *entry, int64 sent, int64 retried);

extern const char *idem_state_name(IdemRelayState state);
extern const char *idem_wait_name(IdemRelayWait waiting);

#endif							/* IDEM_RELAY_REPORT_H */
