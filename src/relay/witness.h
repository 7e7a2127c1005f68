/*-------------------------------------------------------------------------
 *
 * witness.h
 *		May this server publish now?  The answer of the publish witness.
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

#include "relay/report.h"
#include "shared/clock.h"

/* The GUCs idempotency.publish_witness, ..._interval and ..._timeout. */
extern char *idem_publish_witness;
extern int	idem_publish_witness_interval_ms;
extern int	idem_publish_witness_timeout_ms;

extern Size idem_witness_shmem_size(void);
extern void idem_witness_shmem_attach(void *segment, bool found);

/* The check hook of idempotency.publish_witness. */
extern bool idem_publish_witness_check(char **newval, void **extra, GucSource source);

/*
 * Microseconds of a clock that goes on while the machine sleeps.  The clock of
 * clock.h does not: a yes of the witness runs out during the sleep as well.
 */
extern IdemClock idem_witness_clock(void);

/*
 * The command's words; quotes that kept blanks together are removed. palloc'd,
 * NULL-terminated.  NULL, with *problem set to a constant, if the command
 * cannot be split.
 */
extern char **idem_witness_split(const char *command, const char **problem);

/* Is there a valid yes, or is no witness set? */
extern bool idem_witness_allows(void);

/*
 * For how many ms the yes is still valid, rounded up.  0: no valid yes. -1: no
 * witness is set.
 */
extern long idem_witness_ms_left(void);

/*
 * Changes with each answer, or reason, that relays have to show, before the workers are
 * woken for it.
 */
extern uint32 idem_witness_news(void);

/*
 * Show that the relay is unwitnessed, with the reason.  False, and nothing is shown, if the
 * witness has not answered yet: nothing is wrong then.
 */
extern bool idem_witness_report(IdemRelayEntry *entry, const char *relay);

/*
 * For the launcher.  ..._allow: a yes that is valid until "until".
 * ..._forbid: no yes is valid, for this reason.  ..._note: a reason that
 * leaves the last yes valid; it is shown once that yes has run out.  Reason "": the witness has
 * not answered yet.
 */
extern void idem_witness_allow(IdemClock until);
extern void idem_witness_forbid(const char *reason);
extern void idem_witness_note(const char *reason);

#endif							/* IDEM_RELAY_WITNESS_H */
