/*-------------------------------------------------------------------------
 *
 * config.h
 *		A relay's configuration, resolved: row, server, options, owner's rights.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/config.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_RELAY_CONFIG_H
#define IDEM_RELAY_CONFIG_H

#include "postgres.h"

#include "outbox/reader.h"
#include "relay/report.h"
#include "relay/row.h"

/* All relays of this database, in order of relay_id.  In a transaction. */
extern List *idem_relay_configs(void);

/* The ids of relays, as a list in the current context. */
extern List *idem_relay_ids(const List *configs);

/* Those of the function relays, as far as is known: a relay of unknown kind stays with the worker that has it. */
extern List *idem_relay_function_ids(const List *configs);

/* The relay of that name.  NULL if there is none.  In a transaction. */
extern IdemRelayConfig *idem_relay_config_of(const char *name);

/*
 * A list with the relay of that id.  NIL if there is none.  In a transaction.
 */
extern List *idem_relay_config_with_id(int relay_id);

/*
 * All relays of this database, as their rows say: server and owner are not
 * resolved.  In a transaction; the locks are given back.
 */
extern List *idem_relay_rows(void);

/*
 * Halt a relay. skip_locked: do not wait for its row, and return false if
 * another transaction has the row locked.  Returns whether the relay was
 * halted.  message says more of the reason, or is NULL.  The caller tells the
 * workers by idem_relay_config_changed.
 */
extern bool idem_relay_halt(int relay_id, IdemHalt reason, const char *message, bool skip_locked);

/*
 * Delete all rows of a relay that ends; with_row: its row in "relays", too.  Else
 * nothing happens while that row exists: then it is for rows that a worker wrote
 * while the relay's row was being deleted.  Its rows in the log of positions go
 * when the log takes turns.  The caller drops its anchor.
 */
extern void idem_relay_forget(int relay_id, bool with_row);

/* Note this role as the owner in the relay's row. */
extern void idem_relay_note_owner(int relay_id, Oid owner);

/*
 * Can the sink go on without a restart when one configuration replaces the
 * other?
 */
extern bool idem_relay_config_same_sink(const IdemRelayConfig *a, const IdemRelayConfig *b);

/* Is this a relay to a SQL function?  False if the kind is not known. */
extern bool idem_relay_is_function(const IdemRelayConfig *config);

/* Does the relay send events of this event's type? */
extern bool idem_relay_wants(const IdemRelayConfig *config, const IdemEvent *event);

/* The relay's backoffs: what the operator has set, or those of its kind. */
extern int	idem_relay_min_backoff_ms(const IdemRelayConfig *config);
extern int	idem_relay_max_backoff_ms(const IdemRelayConfig *config);

/*
 * The delay after that many failures in a row.  It doubles with each failure
 * from min_backoff to max_backoff.  A random part of up to a half is taken
 * off, so that relays do not all come back at the same moment.
 */
extern int64 idem_relay_backoff_ms(const IdemRelayConfig *config, int failures);

/*
 * The same where the target may be to blame: never longer than the pause before
 * a probe.  ..._probe: the pause before a target that is down is tried again, which
 * goes by the operator's backoffs only if these are shorter.
 */
extern int64 idem_relay_deferral_ms(const IdemRelayConfig *config, int failures);
extern int64 idem_relay_probe_ms(const IdemRelayConfig *config, int failures);

/*
 * Does anything, the operator's wish included, forbid the relay to run at all?
 * Then *state is the state to show.  *message is the reason, or NULL.
 */
extern bool idem_relay_is_barred(const IdemRelayConfig *config, IdemRelayState *state,
								 const char **message);

/* Is the relay bound to this identity, and not restored? */
extern bool idem_relay_is_adopted(const IdemRelayConfig *config, const char *here);

/* Why a relay is not adopted; here: the identity of this database. */
extern char *idem_relay_unadopted_message(const IdemRelayConfig *config, const char *here);

/* Has no relay_adopt followed the restore that brought the relay's row, or events? */
extern bool idem_relay_is_restored(const IdemRelayConfig *config);

/* The publish identity: a name for this server and database */

/* The GUC idempotency.publish_as. */
extern char *idem_publish_as;

/* The present identity of this server and database; palloc'd. */
extern char *idem_publish_identity(void);

/*
 * Store the present identity, by which idem_relay_is_barred judges.  A worker does
 * so each time it reads the relays.
 */
extern void idem_relay_identity_refresh(void);

/* A new incarnation for a relay, a UUID that the sinks store; palloc'd. */
extern char *idem_relay_new_incarnation(void);

#endif							/* IDEM_RELAY_CONFIG_H */
