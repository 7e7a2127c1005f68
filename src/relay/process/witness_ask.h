/*-------------------------------------------------------------------------
 *
 * witness_ask.h
 *		Asks the publish witness whether this server may publish; runs in the
 *		launcher.
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

#endif							/* IDEM_RELAY_PROCESS_WITNESS_ASK_H */
