/*-------------------------------------------------------------------------
 *
 * witness.h
 *		May this server publish now?  The answer of the site's own command.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/witness.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_RELAY_WITNESS_H
#define IDEM_RELAY_WITNESS_H

#include "postgres.h"

#include "utils/guc.h"

#include "relay/shmem.h"
#include "shared/clock.h"

/* The GUCs idempotency.publish_witness, ..._interval and ..._timeout. */
extern char *idem_publish_witness;
extern int	idem_publish_witness_interval_ms;
extern int	idem_publish_witness_timeout_ms;

/* Check hook of the first. */
extern bool idem_publish_witness_check(char **newval, void **extra, GucSource source);

/*
 * Microseconds of a clock that goes on while the machine sleeps, which the one
 * of clock.h does not: a lease runs out meanwhile.
 */
extern IdemClock idem_witness_clock(void);

/*
 * The command's words, without the quotes that kept blanks in them; palloc'd,
 * NULL-terminated.  NULL with *problem set (a constant) if it cannot be split.
 */
extern char **idem_witness_split(const char *command, const char **problem);

/* Is there a valid yes, or is no witness set? */
extern bool idem_witness_allows(void);

/* How long so, rounded up: 0 if not, -1 if no witness is set. */
extern long idem_witness_ms_left(void);

/* Show the relay as one that waits for the witness, with the reason. */
extern void idem_witness_report(IdemRelayEntry *entry, const char *relay);

/*
 * For the launcher: a yes that is valid until then, or why there is none.  A
 * reason that leaves the last yes valid is shown once that has run out.
 */
extern void idem_witness_allow(IdemClock until);
extern void idem_witness_forbid(const char *reason);
extern void idem_witness_note(const char *reason);

#endif							/* IDEM_RELAY_WITNESS_H */
