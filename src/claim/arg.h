/*-------------------------------------------------------------------------
 *
 * arg.h
 *		The arguments that functions of claims and of leases share.
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

/* A string that points into an argument, or was made from an argument. */
typedef struct IdemStr
{
	const char *data;
	int			len;
} IdemStr;

/* Labels of claim_result, in the order of IdemClaimResult */
#define IDEM_CLAIM_RESULTS	5
extern const char *const idem_claim_labels[IDEM_CLAIM_RESULTS];

extern IdemStr idem_arg_str(text *t);

/* Get the event's id; error unless it has 1 to IDEM_MAX_ID_BYTES bytes. */
extern IdemStr idem_arg_event_id(FunctionCallInfo fcinfo, int argno);

/*
 * Get the event's id from a uuid, as the canonical text: lower case, with
 * hyphens.
 */
extern IdemStr idem_arg_uuid_event_id(FunctionCallInfo fcinfo, int argno);

/* Get the consumer; the extension's own consumers are refused. */
extern IdemStr idem_arg_consumer(FunctionCallInfo fcinfo, int argno);

/*
 * Get the wait in milliseconds, rounded up, so that the shortest wait is one.
 */
extern long idem_arg_wait(FunctionCallInfo fcinfo, int argno);

/* The label of an enum type as a Datum: the OID of the label. */
extern Datum idem_arg_label(Oid enumtype, const char *label);

/*
 * Get the elements of a one-dimensional array, or of an empty array, and
 * return their number.  With nulls = NULL, an element that is null is an
 * error.
 */
extern int	idem_arg_array(FunctionCallInfo fcinfo, int argno, const char *name, Oid elemtype,
						   Datum **elems, bool **nulls);

/* The ids of an array argument, checked; palloc'd. */
extern IdemClaimItem *idem_arg_event_ids(FunctionCallInfo fcinfo, int argno, int *n);

#endif							/* IDEM_CLAIM_ARG_H */
