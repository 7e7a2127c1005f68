/*-------------------------------------------------------------------------
 *
 * arg.h
 *		The arguments that functions of claims, leases and requests share.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/claim/arg.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_CLAIM_ARG_H
#define IDEM_CLAIM_ARG_H

#include "postgres.h"

#include "fmgr.h"

#include "compat.h"
#include "claim/claim.h"

/* Labels of claim_result, in the order of IdemClaimResult */
#define IDEM_CLAIM_RESULTS	5
extern const char *const idem_claim_labels[IDEM_CLAIM_RESULTS];

/* Labels of lease_state, in the order of IdemLeaseState */
#define IDEM_LEASE_STATES	3
extern const char *const idem_lease_labels[IDEM_LEASE_STATES];

extern IdemStr idem_arg_str(text *t);

/* Gets the event's id from an argument. */
typedef IdemStr (*IdemGetId) (FunctionCallInfo fcinfo, int argno);

/*
 * Define the two forms of a SQL function, idem_NAME_fn for an id that is a text and
 * idem_NAME_uuid_fn for one that is a uuid, over the static function NAME.
 */
#define IDEM_EVENT_FUNCTIONS(name, get_text_id) \
	PG_FUNCTION_INFO_V1(idem_##name##_fn); \
	PG_FUNCTION_INFO_V1(idem_##name##_uuid_fn); \
	Datum \
	idem_##name##_fn(PG_FUNCTION_ARGS) \
	{ \
		return name(fcinfo, get_text_id); \
	} \
	Datum \
	idem_##name##_uuid_fn(PG_FUNCTION_ARGS) \
	{ \
		return name(fcinfo, idem_arg_uuid_event_id); \
	} \
	extern int	no_such_variable

/* Get the event's id; error unless it has 1 to IDEM_MAX_ID_BYTES bytes. */
extern IdemStr idem_arg_event_id(FunctionCallInfo fcinfo, int argno);

/*
 * Get the event's id from a uuid, as the canonical text: lower case, with
 * hyphens.
 */
extern IdemStr idem_arg_uuid_event_id(FunctionCallInfo fcinfo, int argno);

/*
 * Get the consumer for which the current user claims: error 42501 if the consumer
 * has an owner for whom the current user may not act.  The extension's own
 * consumers are refused.  Call this before anything is locked or looked up.
 */
extern IdemStr idem_arg_consumer(FunctionCallInfo fcinfo, int argno);

/*
 * Get a consumer, whoever owns it: for functions of operators, who can change the
 * owner, and for functions that look nothing up.
 */
extern IdemStr idem_arg_any_consumer(FunctionCallInfo fcinfo, int argno);

/*
 * Get the wait in milliseconds, rounded up, so that the shortest wait is one.
 */
extern long idem_arg_wait(FunctionCallInfo fcinfo, int argno);

/*
 * Get an interval in microseconds; otherwise, if the argument is NULL.  Error 22023 if it
 * is negative, or zero unless it may be, or more than 366 days.
 */
extern int64 idem_arg_interval(FunctionCallInfo fcinfo, int argno, const char *name,
							   bool may_be_zero, int64 otherwise);

/* Get a text of 1 to IDEM_MAX_NAME_BYTES bytes; NULL if the argument is. */
extern text *idem_arg_name(FunctionCallInfo fcinfo, int argno, const char *name);

/* Get the text of an error, cut off if it is long; NULL if the argument is. */
extern text *idem_arg_error(FunctionCallInfo fcinfo, int argno);

/*
 * Get a jsonb that the log keeps for the next attempt; NULL if the argument is.  Error
 * 54000 if it is over 1 MB.
 */
extern struct varlena *idem_arg_work(FunctionCallInfo fcinfo, int argno, const char *name);

/* Get the token; error if it is NULL. */
extern int64 idem_arg_token(FunctionCallInfo fcinfo, int argno);

/* The label of an enum type as a Datum: the OID of the label. */
extern Datum idem_arg_label(Oid enumtype, const char *label);

/* The ids of an array argument, checked; palloc'd. */
extern IdemClaimItem *idem_arg_event_ids(FunctionCallInfo fcinfo, int argno, int *n);

#endif							/* IDEM_CLAIM_ARG_H */
