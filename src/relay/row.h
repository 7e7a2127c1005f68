/*-------------------------------------------------------------------------
 *
 * row.h
 *		A relay's options, and its row in the table "relays".
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/row.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_RELAY_ROW_H
#define IDEM_RELAY_ROW_H

#include "postgres.h"

#include "access/htup.h"
#include "access/tupdesc.h"
#include "nodes/pg_list.h"

#include "shared/args.h"

/*
 * The bytes that a relay's name may have grown to when a dump was restored into
 * another encoding.  A new name has at most IDEM_MAX_NAME_BYTES.
 */
#define IDEM_MAX_RELAY_NAME (4 * IDEM_MAX_NAME_BYTES)

/*
 * How many types an operator may give a relay.  Whatever reads relays, as stat_relay does for
 * anybody, reads their types as well.  A relay of a dump may have more.
 */
#define IDEM_MAX_RELAY_TYPES 10000

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

/* The backoffs of a relay that sets none, in ms: to a program, and to a function */
#define IDEM_PROGRAM_MIN_BACKOFF_MS 1000
#define IDEM_PROGRAM_MAX_BACKOFF_MS 3600000
#define IDEM_FUNCTION_MIN_BACKOFF_MS 100
#define IDEM_FUNCTION_MAX_BACKOFF_MS 60000

/* The longest backoff, and the longest time for which an event is tried, in ms */
#define IDEM_MAX_BACKOFF_MS 86400000
#define IDEM_MAX_RETRY_FOR_MS 3155760000000

/*
 * The arguments of relay_create and relay_alter, in their order; one line each.
 *
 * OPTION(name, field, kind, needed, min, max, text)
 *		is kept in the column "name" of "relays" and in the field of
 *		IdemRelayConfig.  needed: the column is NOT NULL, and relay_create
 *		refuses NULL.  min and max are what an operator may give, and what the
 *		table's CHECK allows; text completes the hint of the error.  Kinds:
 *		  names		a list of names of types, at most IDEM_MAX_RELAY_TYPES; {} or
 *					NULL: all
 *		  label		a label of the enum type relay_<name>; text has the labels,
 *					in the order of the C enum
 *		  count		an int
 *		  size		text like '1MB', kept as bytes; if not needed, '0' and
 *					'none' take the limit away
 *		  interval	kept as it is, read as ms; in relay_alter '0' goes back
 *					to NULL, which is read as 0
 *		  period	the same, but 0 is a value: no limit
 * PLAIN(name, needed)
 *		has no column; its code is in api/definition.c.
 * LATER(name, kind, text)
 *		has no feature yet; the hint says how to do without.
 *
 * "make lint" compares the lines with sql/install/60_relay.sql.
 */
#define IDEM_RELAY_ARGUMENTS(OPTION, PLAIN, LATER) \
	PLAIN(relay, false) \
	PLAIN(server, false) \
	OPTION(aggregate_types, aggregate_types, names, false, 0, 0, "") \
	LATER(event_types, names, "Choose events by aggregate_types, and let the receiver skip other types.") \
	LATER(filter, none, "Choose events by aggregate_types, and let the receiver skip what it does not want.") \
	PLAIN(start_at, true) \
	OPTION(ordering, ordering, label, true, 0, 0, "none,key") \
	OPTION(on_dead, on_dead, label, true, 0, 0, "skip,block_key,stop") \
	OPTION(retry_for, retry_for_ms, period, true, 1, IDEM_MAX_RETRY_FOR_MS, "between 1 ms and 100 years, or 0 for no limit") \
	OPTION(max_attempts, max_attempts, count, true, 0, 1000000, "between 1 and 1000000, or 0 for no limit") \
	OPTION(min_backoff, min_backoff_ms, interval, false, 1, IDEM_MAX_BACKOFF_MS, "between 1 ms and 1 day") \
	OPTION(max_backoff, max_backoff_ms, interval, false, 1, IDEM_MAX_BACKOFF_MS, "between 1 ms and 1 day") \
	OPTION(batch_events, batch_events, count, true, 1, 10000, "between 1 and 10000") \
	OPTION(batch_size, batch_bytes, size, true, 1024, 16777216, "between 1kB and 16MB") \
	OPTION(max_lag_size, max_lag_bytes, size, false, 1048576, PG_INT64_MAX, "at least 1MB, or 0 for no limit") \
	LATER(max_rate, none, "Leave it out: the relay waits for the sink's answers, so a sink slows it down by answering later.") \
	LATER(max_key_rate, none, "Leave it out: a sink slows the relay down, for all keys, by answering later.") \
	LATER(max_in_flight, none, "Lower batch_events, which bounds what is in flight.")

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
	bool		paused;
	IdemHalt	halted;
	char	   *halt_message;	/* what the sink said of it, or NULL */
	int64		epoch;
	int64		server_epoch;	/* since when the relay sends to its server;
								 * 0: since it was created or adopted */
	char	   *incarnation;	/* empty: a restore brought the row, or
								 * events, and nobody has adopted the relay
								 * since */
	char	   *identity;

	/* the options */
	List	   *aggregate_types;	/* of char *; NIL: all */
	IdemOrdering ordering;
	IdemOnDead	on_dead;
	int64		retry_for_ms;	/* 0: unlimited */
	int			max_attempts;	/* 0: unlimited */
	int			min_backoff_ms; /* 0: the kind's; see config.h */
	int			max_backoff_ms;
	int			batch_events;
	int64		batch_bytes;
	int64		max_lag_bytes;	/* 0: unlimited */

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

/* The labels of the type relay_halt, and the messages that stat_relay shows. */
typedef struct IdemHaltText
{
	const char *label;
	const char *message;
} IdemHaltText;

extern const IdemHaltText idem_relay_halts[];

/* The reason for a halt, from its label.  A label NULL means: not halted. */
extern IdemHalt idem_relay_halt_of(const char *label);

/* Name the relays' tables to shared/spi.c, which refuses other forms of them. */
extern void idem_relay_row_init(void);

/*
 * A query for rows that idem_relay_row_read reads; "rest" follows "FROM relays".  %s is to
 * be replaced as in shared/spi.h.
 */
extern char *idem_relay_row_query(const char *rest);

/* What such a row says.  Fields that the anchor decides are empty. */
extern IdemRelayConfig *idem_relay_row_read(HeapTuple tup, TupleDesc desc);

/* A deep copy in the current context. */
extern IdemRelayConfig *idem_relay_config_copy(const IdemRelayConfig *config);

#endif							/* IDEM_RELAY_ROW_H */
