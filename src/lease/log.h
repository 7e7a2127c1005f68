/*-------------------------------------------------------------------------
 *
 * log.h
 *		The log of leases: what is open of an event.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/lease/log.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_LEASE_LOG_H
#define IDEM_LEASE_LOG_H

#include "postgres.h"

#include "datatype/timestamp.h"
#include "utils/uuid.h"

#include "shared/keyed_log.h"
#include "shared/keyed_scan.h"

/* The states of an event, as the column "state" has them. */
#define IDEM_LEASE_LEASED	'l'
#define IDEM_LEASE_WAITING	'w'
#define IDEM_LEASE_DEAD		'd'
#define IDEM_LEASE_FREE		'f'

/*
 * The event or the request that a row is about.  Text is in the server encoding.
 * id: of the event, or the key of the request.
 */
typedef struct IdemLeaseName
{
	pg_uuid_t	digest;
	const char *scope;			/* of the request */
	int			scopelen;		/* 0: an event */
	const char *id;
	int			idlen;
	const char *consumer;
	int			consumerlen;
} IdemLeaseName;

/* What is open of an event.  Pointers may be NULL. */
typedef struct IdemLease
{
	char		state;
	int64		token;			/* number of the row that has the state */
	int			attempt;		/* leases taken and not given back */
	bool		redriven;		/* attempts have begun that a redrive has
								 * given back */
	TimestampTz until;			/* leased: when the lease ends; waiting: when
								 * the event may be leased again */
	TimestampTz at;				/* when it got into that state */
	int64		kept;			/* for so many seconds after "until" it is
								 * kept at least, if nothing happens; 0: until
								 * something happens.  Not read, only written */
	int64		expires;		/* seconds of uptime.h from which on it may be
								 * dropped; 0: never.  Read, not written */
	text	   *holder;
	text	   *error;
	text	   *recovery_point;
	struct varlena *work;		/* jsonb */
	struct varlena *fingerprint;	/* bytea; of a request */
	struct varlena *request;	/* jsonb; of a request */
	bool		in_snapshot;	/* the transaction's snapshot sees the state */
	bool		point_in_snapshot;	/* and the recovery point */
} IdemLease;

/* Defines the setting; called once per process. */
extern void idem_lease_setting_init(void);

/* The log, for the one who maintains it. */
extern const IdemKeyedLog idem_lease_log;

/*
 * Get what is open of an event, as of now, in the current context; false if
 * nothing is.  lease->state is FREE then, and in_snapshot tells whether the
 * transaction's snapshot sees that.  The caller holds the event's lock.  log: NULL if the
 * log is not open; the look-up locks it for itself then.
 */
extern bool idem_lease_find(IdemKeyedAccess *log, const pg_uuid_t *digest, IdemLease *lease);

/* Nothing is open of an event. */
extern void idem_lease_none(IdemLease *lease);

/*
 * Free what idem_lease_find has put into a lease, which may be megabytes.  Whoever looks at
 * many events, or at one again and again, does this before he looks at the next.
 */
extern void idem_lease_free_values(IdemLease *lease);

/*
 * Write a state.  lease->token is the number of the row; idem_token_draw gives
 * the number of a lease, idem_token_draw_unflushed that of another state.  The
 * caller holds the event's lock exclusively, to the end of the transaction.
 */
extern void idem_lease_write(IdemKeyedAccess *log, const IdemLeaseName *name, const IdemLease *lease);

/*
 * Call a function for each event and request of a consumer that is dead, until it
 * returns false.  scope: NULL of an event.  The caller does not hold their locks, so
 * one may be something else by then.
 */
typedef bool (*IdemLeaseVisit) (const text *scope, const text *id, void *arg);
extern void idem_lease_scan_dead(const char *consumer, int consumerlen,
								 IdemLeaseVisit visit, void *arg);

/*
 * An event or a request that is open.  Values of variable length are those of the
 * tables, perhaps toasted, or 0 for NULL.
 */
typedef struct IdemOpenLease
{
	IdemLease	lease;			/* but for what snapshots see */
	Datum		consumer;
	Datum		scope;			/* 0: an event */
	Datum		id;
} IdemOpenLease;

/*
 * Get the next of all that is open, by a scan of the log (keyed_scan.h): each event and
 * request once.  Valid until the next call; false at the end.  wants: chooses by what the
 * row of a state has, before more is looked up; the row may be an old one.
 */
typedef bool (*IdemLeaseWants) (const IdemOpenLease *open, void *arg);
extern bool idem_lease_scan_next(IdemKeyedScan *scan, IdemLeaseWants wants, void *arg,
								 IdemOpenLease *open);

/* Write that nothing is open of an event; locks as of idem_lease_write. */
extern void idem_lease_free(IdemKeyedAccess *log, const IdemLeaseName *name);

/*
 * Write another end of a lease, or another recovery point.  kept: as in IdemLease.  The
 * caller holds the event's lock, at least in share mode, to the end of the transaction.
 */
extern void idem_lease_write_end(IdemKeyedAccess *log, const IdemLeaseName *name, int64 token, TimestampTz until,
								 int64 kept);
extern void idem_lease_write_point(IdemKeyedAccess *log, const IdemLeaseName *name, int64 token,
								   text *recovery_point, struct varlena *work);

/*
 * A row that is restored from a dump, as it is to be stored: it is kept from now on for
 * as long as it was to be when it was written.
 */
extern HeapTuple idem_lease_restamp(HeapTuple tuple, TupleDesc desc);

#endif							/* IDEM_LEASE_LOG_H */
