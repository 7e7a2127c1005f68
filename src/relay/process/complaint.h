/*-------------------------------------------------------------------------
 *
 * complaint.h
 *		Errors that a worker meets again and again: said seldom, tried again later.
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

#include "relay/shmem.h"
#include "shared/clock.h"

/* One per thing that can fail; all zero: it has not. */
typedef struct IdemComplaint
{
	int			failures;		/* in a row */
	IdemClock	retry_at;		/* not before; 0: at once */
	int64		log_gap_ms;		/* to the next report of the same error */
	IdemClock	log_at;			/* not before */
	char		message[IDEM_ERROR_LEN];	/* that was logged last */
} IdemComplaint;

/*
 * In PG_CATCH, before FlushErrorState: log the error if it is another than
 * the last one, or if enough time has passed, and say when to try again.
 */
extern void idem_complaint_note(IdemComplaint *complaint);

/* It worked. */
extern void idem_complaint_clear(IdemComplaint *complaint);

#endif							/* IDEM_RELAY_PROCESS_COMPLAINT_H */
