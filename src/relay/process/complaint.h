/*-------------------------------------------------------------------------
 *
 * complaint.h
 *		Errors that a worker meets again and again: logs them seldom, sets the
 *		next try.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/process/complaint.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_RELAY_PROCESS_COMPLAINT_H
#define IDEM_RELAY_PROCESS_COMPLAINT_H

#include "postgres.h"

#include "datatype/timestamp.h"

#include "relay/report.h"
#include "shared/clock.h"

/* One per action that can fail; all zero: the action has not failed. */
typedef struct IdemComplaint
{
	int			failures;		/* failures in a row */
	IdemClock	retry_at;		/* earliest next try; 0: at once */
	int64		log_gap_ms;		/* from log_at's report to the next of the
								 * same error */
	IdemClock	log_at;			/* earliest next report of the same error */
	char		message[IDEM_ERROR_LEN];	/* of the error that was logged
											 * last */
} IdemComplaint;

/*
 * In PG_CATCH, before FlushErrorState: log the error if it differs from the
 * last error, or if enough time has passed, and set the next try.
 */
extern void idem_complaint_note(IdemComplaint *complaint);

/* The action succeeded. */
extern void idem_complaint_clear(IdemComplaint *complaint);

#endif							/* IDEM_RELAY_PROCESS_COMPLAINT_H */
