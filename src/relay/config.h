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

#include "nodes/pg_list.h"

#include "outbox/reader.h"
#include "relay/shmem.h"

typedef enum IdemOrdering
{
	IDEM_ORDERING_NONE,
	IDEM_ORDERING_KEY
} IdemOrdering;

/*
 * Why a relay is halted until an operator acts; labels of the type relay_halt.
 */
typedef enum IdemHalt
{
	IDEM_HALT_NOT,
	IDEM_HALT_DEAD_LETTER,		/* under on_dead => 'stop' */
	IDEM_HALT_SINK,				/* the sink's target wants no more events */
	IDEM_HALT_LAG,				/* the relay was further behind than
								 * max_lag_size */
	IDEM_HALT_HISTORY			/* the relay's position was ahead of the
								 * cluster's transaction ids; shown as
								 * "diverged", ended by relay_adopt only */
} IdemHalt;

typedef enum IdemOnDead
{
	IDEM_ON_DEAD_SKIP,
	IDEM_ON_DEAD_BLOCK_KEY,
	IDEM_ON_DEAD_STOP
} IdemOnDead;

/* The backoffs of a relay that sets none, in ms */
#define IDEM_DEFAULT_MIN_BACKOFF_MS 100
#define IDEM_DEFAULT_MAX_BACKOFF_MS 60000

/*
 * All fields are palloc'd in the context that is current when the list is
 * read.
 */
typedef struct IdemRelayConfig
{
	int			relay_id;
	TransactionId row_xmin;		/* xmin of the row */
	char	   *name;
	char	   *noted_owner;	/* the owner's name, as last noted in the row */
	Oid			noted_owner_oid;	/* the owner's OID, noted with the name;
									 * meaningless in another cluster */
	List	   *aggregate_types;	/* of char *; NIL: all */
	IdemOrdering ordering;
	IdemOnDead	on_dead;
	int			max_attempts;	/* 0: unlimited */
	int			min_backoff_ms;
	int			max_backoff_ms;
	int			batch_events;
	int64		batch_bytes;
	int64		max_lag_bytes;	/* 0: unlimited */
	bool		start_latest;
	bool		paused;
	IdemHalt	halted;
	char	   *halt_message;	/* what the sink said of it, or NULL */
	int64		epoch;
	int64		server_epoch;	/* since when the relay sends to its server;
								 * 0: since it was created or adopted */
	char	   *incarnation;
	char	   *identity;

	/* resolved from the anchor; without an anchor InvalidOid and NULL */
	Oid			anchor;
	Oid			owner;
	Oid			serverid;
	char	   *server;			/* name */

	/* resolved from the server */
	char	   *kind;			/* function, postgres, ...; NULL: see problem */
	char	   *program;		/* file name; NULL: none */
	List	   *options;		/* of DefElem, server's then user mapping's */
	bool		require_password;	/* the relay's or the server's owner is no
									 * superuser */
	char	   *problem;		/* why the relay cannot run; NULL: no problem */
	char	   *unsound;		/* a problem: the extension has not written
								 * the row; NULL: it has */
	bool		disowned;		/* the anchor's owner is not the noted owner:
								 * a restore */
	bool		renamed;		/* the owner was renamed since its name was
								 * noted */
} IdemRelayConfig;

/* All relays of this database, in order of relay_id.  In a transaction. */
extern List *idem_relay_configs(void);

/* The relay of that name.  NULL if there is none.  In a transaction. */
extern IdemRelayConfig *idem_relay_config_of(const char *name);

/*
 * A list with the relay of that id.  NIL if there is none.  In a transaction.
 */
extern List *idem_relay_config_with_id(int relay_id);

/*
 * The part of a relay's row that the upkeep of the log of positions and the
 * statistics need.  Its server is not resolved.
 */
typedef struct IdemRelayBrief
{
	int			relay_id;
	int64		epoch;
	IdemHalt	halted;
	int64		max_lag_bytes;	/* 0: unlimited */
	char	   *identity;		/* that the relay is bound to */
} IdemRelayBrief;

/*
 * All relays of this database, as a list of IdemRelayBrief.  In a transaction.
 */
extern List *idem_relay_briefs(void);

/*
 * Halt a relay. skip_locked: do not wait for its row, and return false if
 * another transaction has the row locked.  Returns whether the relay was
 * halted.  message says more of the reason, or is NULL.  The caller tells the
 * workers by idem_relay_config_changed.
 */
extern bool idem_relay_halt(int relay_id, IdemHalt reason, const char *message, bool skip_locked);

/*
 * A relay ends: delete its row and all rows that belong to it.  Its rows in
 * the log of positions go when the log takes turns.  The caller drops its
 * anchor.
 */
extern void idem_relay_forget(int relay_id);

/*
 * Delete rows that a worker wrote for a relay while the relay's row was being
 * deleted.  Does nothing if there is a relay of that id.
 */
extern void idem_relay_forget_rest(int relay_id);

/* Note this role as the owner in the relay's row. */
extern void idem_relay_note_owner(int relay_id, Oid owner);

/* A deep copy in the current context. */
extern IdemRelayConfig *idem_relay_config_copy(const IdemRelayConfig *config);

/*
 * The value of an option, of the server or the user mapping.  NULL if it is
 * not set.
 */
extern const char *idem_relay_option(const IdemRelayConfig *config, const char *name);

/*
 * Can the sink go on without a restart when one configuration replaces the
 * other?
 */
extern bool idem_relay_config_same_sink(const IdemRelayConfig *a, const IdemRelayConfig *b);

/*
 * Has anything of the relay changed: its row (even if written with the same
 * values), its server, mapping, owner, or its problem?
 */
extern bool idem_relay_config_changed_from(const IdemRelayConfig *old,
										   const IdemRelayConfig *new);

/* Is this a relay to a SQL function?  False if the kind is not known. */
extern bool idem_relay_is_function(const IdemRelayConfig *config);

/* Does the relay send events of this event's type? */
extern bool idem_relay_wants(const IdemRelayConfig *config, const IdemEvent *event);

/*
 * The delay after that many failures in a row.  It doubles with each failure
 * from min_backoff to max_backoff.  A random part of up to a half is taken
 * off, so that relays do not all come back at the same moment.
 */
extern int64 idem_relay_backoff_ms(const IdemRelayConfig *config, int failures);

/*
 * Does anything, the operator's wish included, forbid the relay to run at all?
 * Then *state is the state to show.  *message is the reason, or NULL.
 */
extern bool idem_relay_is_barred(const IdemRelayConfig *config, IdemRelayState *state,
								 const char **message);

/* Why a relay is unadopted: the identity that it is bound to, and that of this database. */
extern char *idem_relay_unadopted_message(const char *bound, const char *here);

#endif							/* IDEM_RELAY_CONFIG_H */
