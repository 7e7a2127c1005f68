/*-------------------------------------------------------------------------
 *
 * relay.h
 *		Settings and entry points of the relay.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/relay.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_RELAY_H
#define IDEM_RELAY_H

#include "postgres.h"

/* A tick is written each time so many events were enqueued. */
#define IDEM_TICK_EVENTS 100000

/* The GUC idempotency.sink_timeout: milliseconds a sink has to say anything. */
extern int	idem_sink_timeout_ms;

/* Defines the subsystem's settings and hooks; called once per process. */
extern void idem_relay_init(void);

/* idem_publish_identity() as of the worker's last look, lasting. */
extern const char *idem_relay_identity(void);

/*
 * The current transaction changed relays: at its commit the database's
 * workers look again, and the launcher if databases came or went.
 */
extern void idem_relay_config_changed(bool launcher_too);

extern PGDLLEXPORT void idem_worker_main(Datum arg);

#endif							/* IDEM_RELAY_H */
