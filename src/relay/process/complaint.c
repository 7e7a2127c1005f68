/*-------------------------------------------------------------------------
 *
 * complaint.c
 *		Errors that a worker meets again and again: logs them seldom, sets the
 *		next try.
 *
 * A failed action is tried again after 200 ms, then after twice that, up to 10
 * s.  The server log gets each error when it first occurs, and again after 1 s,
 * 2 s, 4 s, up to an hour, as long as the error stays the same.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/process/complaint.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "relay/process/complaint.h"
#include "shared/clock.h"
#include "shared/error.h"

#define FIRST_RETRY_MS 200
#define MAX_RETRY_MS 10000
#define FIRST_LOG_MS 1000
#define MAX_LOG_MS (60 * 60 * 1000)

void
idem_complaint_note(IdemComplaint *complaint)
{
	IdemClock	now = idem_clock();
	ErrorData  *edata = CopyErrorData();
	char		message[IDEM_ERROR_LEN];
	bool		same;

	idem_copy_error(message, edata->message ? edata->message : "", sizeof(message));
	FreeErrorData(edata);
	same = strcmp(message, complaint->message) == 0;
	if (!same || now >= complaint->log_at)
	{
		EmitErrorReport();
		complaint->log_gap_ms = same && complaint->log_gap_ms > 0 ?
			Min(complaint->log_gap_ms * 2, MAX_LOG_MS) : FIRST_LOG_MS;
		complaint->log_at = idem_clock_plus_ms(now, complaint->log_gap_ms);
		strlcpy(complaint->message, message, sizeof(complaint->message));
	}
	complaint->retry_at =
		idem_clock_plus_ms(now, Min(FIRST_RETRY_MS << Min(complaint->failures, 10),
									MAX_RETRY_MS));
	complaint->failures++;
}

void
idem_complaint_clear(IdemComplaint *complaint)
{
	memset(complaint, 0, sizeof(*complaint));
}
