/*-------------------------------------------------------------------------
 *
 * witness_ask.h
 *		Asks the site's command whether this server may publish; the launcher's.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/process/witness_ask.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_RELAY_PROCESS_WITNESS_ASK_H
#define IDEM_RELAY_PROCESS_WITNESS_ASK_H

#include "postgres.h"

#include "port.h"

/* Once, before signals are unblocked: from then on no command is left behind. */
extern void idem_witness_ask_init(void);

/* Do what can be done without waiting: ask, read, judge, kill, reap. */
extern void idem_witness_ask_serve(void);

/* When to call that again if nothing happens before, in ms; -1: no need. */
extern long idem_witness_ask_wait_ms(void);

/* The command's output, to wait for; PGINVALID_SOCKET: none. */
extern pgsocket idem_witness_ask_fd(void);

#endif							/* IDEM_RELAY_PROCESS_WITNESS_ASK_H */
