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

/* Why a relay stands until an operator acts; labels of the type relay_halt. */
typedef enum IdemHalt
{
	IDEM_HALT_NOT,
	IDEM_HALT_DEAD_LETTER,		/* under on_dead => 'stop' */
	IDEM_HALT_LAG				/* it was further behind than max_lag_size */
} IdemHalt;

typedef enum IdemOnDead
{
	IDEM_ON_DEAD_SKIP,
	IDEM_ON_DEAD_BLOCK_KEY,
	IDEM_ON_DEAD_STOP
} IdemOnDead;

/* Everything palloc'd in the context the list was asked for in. */
typedef struct IdemRelayConfig
{
	int			relay_id;
	TransactionId row_xmin;		/* of the transaction that wrote the row */
	char	   *name;
	char	   *noted_owner;	/* the owner as last noted in the row: name, */
	Oid			noted_owner_oid;	/* and OID, which means nothing elsewhere */
	List	   *aggregate_types;	/* of char *; NIL: all */
	IdemOrdering ordering;
	IdemOnDead	on_dead;
	int			max_attempts;
	int			min_backoff_ms;
	int			max_backoff_ms;
	int			batch_events;
	int64		batch_bytes;
	int64		max_lag_bytes;	/* 0: unlimited */
	bool		start_latest;
	bool		paused;
	IdemHalt	halted;
	int64		epoch;
	char	   *incarnation;
	char	   *identity;

	/* resolved from the anchor; InvalidOid and NULL without one */
	Oid			anchor;
	Oid			owner;
	Oid			serverid;
	char	   *server;			/* name */

	/* resolved from the server */
	char	   *kind;			/* function, postgres, ...; NULL: see problem */
	char	   *program;		/* file name; NULL: none */
	List	   *options;		/* of DefElem, server's then user mapping's */
	bool		require_password;	/* an owner, of relay or server, is no
									 * superuser */
	char	   *problem;		/* why it cannot run; NULL: nothing */
	bool		disowned;		/* the problem is a restored relay's owner */
	bool		renamed;		/* the owner has another name than the noted
								 * one */
} IdemRelayConfig;

/* Every relay of this database, in order of relay_id.  In a transaction. */
extern List *idem_relay_configs(void);

/* The relay of that name, or NULL.  In a transaction. */
extern IdemRelayConfig *idem_relay_config_of(const char *name);

/* The relay of that id in a list, which is empty if there is none. */
extern List *idem_relay_config_with_id(int relay_id);

/* What keeping the log in order needs of a relay; its server is not looked at. */
typedef struct IdemRelayBrief
{
	int			relay_id;
	int64		epoch;
	IdemHalt	halted;
	int64		max_lag_bytes;	/* 0: unlimited */
} IdemRelayBrief;

/* All relays there are, as a list of IdemRelayBrief.  In a transaction. */
extern List *idem_relay_briefs(void);

/*
 * Halt a relay, without a wait for its row if so told.  Returns whether it was done.
 * The workers are to be told by idem_relay_config_changed.
 */
extern bool idem_relay_halt(int relay_id, IdemHalt reason, bool skip_locked);

/*
 * A relay ends: delete its row and all that belongs to it.  Its rows in the log of
 * positions go when the log takes turns; its anchor is the caller's.
 */
extern void idem_relay_forget(int relay_id);

/*
 * Delete what a worker wrote for a relay whose row was being deleted.  Does nothing
 * if there is a relay of that id.
 */
extern void idem_relay_forget_rest(int relay_id);

/* Note in the row of a relay that this role owns it. */
extern void idem_relay_note_owner(int relay_id, Oid owner);

/* A deep copy in the current context. */
extern IdemRelayConfig *idem_relay_config_copy(const IdemRelayConfig *config);

/* The value of an option, or NULL. */
extern const char *idem_relay_option(const IdemRelayConfig *config, const char *name);

/* Two configurations that need no restart of the sink to get from one to the other. */
extern bool idem_relay_config_same_sink(const IdemRelayConfig *a, const IdemRelayConfig *b);

/*
 * Has anything of the relay changed: its row, even to the same values, its
 * server, mapping, owner, or what is wrong with them?
 */
extern bool idem_relay_config_changed_from(const IdemRelayConfig *old,
										   const IdemRelayConfig *new);

/* Is it a relay to a SQL function?  False if that is not known. */
extern bool idem_relay_is_function(const IdemRelayConfig *config);

/* Is the event of a type the relay sends? */
extern bool idem_relay_wants(const IdemRelayConfig *config, const IdemEvent *event);

/*
 * The delay after so many failures in a row: doubled each time from
 * min_backoff to max_backoff, less up to half of it by chance, so that relays
 * do not come back as one.
 */
extern int64 idem_relay_backoff_ms(const IdemRelayConfig *config, int failures);

/*
 * Does anything forbid the relay to run at all, the operator's wish included?
 * Then *state says what, and *message why, or is NULL.
 */
extern bool idem_relay_is_barred(const IdemRelayConfig *config, IdemRelayState *state,
								 const char **message);

#endif							/* IDEM_RELAY_CONFIG_H */
