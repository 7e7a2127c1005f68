/*-------------------------------------------------------------------------
 *
 * error.h
 *		The extension's own SQLSTATEs, and how much of an error's text is kept.
 *
 * SQLSTATEs of class ID are the extension's; the rest are PostgreSQL's.
 *
 * A standard code is used wherever one exists:
 *		22004	a NULL where a value is needed (the message names it)
 *		22023	a value that is empty, over-long, out of range or malformed
 *		23505	an event id given by the caller was enqueued before
 *		24000	COMMIT calls the function, for a cursor that it keeps
 *		25006	a write on a standby or in a read-only transaction
 *		40001	the snapshot is too old to answer; retry the transaction
 *		42704 / 42710	a relay that does not exist / exists already
 *		53400	a resource limit that a setting governs
 *		54000	a payload over idempotency.max_payload_size
 *		55000	the library is not preloaded, or an object has the wrong state
 *		55P03	another transaction holds what is needed just now
 *		0A000	an argument whose feature is not built
 *
 * doc/reference/errors.md has the table of all of them.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/shared/error.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_ERROR_H
#define IDEM_ERROR_H

#include "mb/pg_wchar.h"
#include "utils/elog.h"

/* COMMIT or PREPARE with a claim neither completed nor released */
#define ERRCODE_IDEM_UNCOMPLETED_CLAIM		MAKE_SQLSTATE('I','D','0','0','1')
/* complete_event or release_event without a claim of this transaction */
#define ERRCODE_IDEM_CLAIM_NOT_HELD			MAKE_SQLSTATE('I','D','0','0','2')
/* the database is not the one the relay was created or adopted in */
#define ERRCODE_IDEM_RELAY_UNADOPTED		MAKE_SQLSTATE('I','D','0','0','3')
/* the sink's position and the log of positions contradict each other */
#define ERRCODE_IDEM_RELAY_DIVERGED			MAKE_SQLSTATE('I','D','0','0','4')
/* the sink refused the message */
#define ERRCODE_IDEM_SINK_REJECTED			MAKE_SQLSTATE('I','D','0','0','5')
/* the sink cannot be reached or broke the protocol */
#define ERRCODE_IDEM_SINK_OUTAGE			MAKE_SQLSTATE('I','D','0','0','6')
/* the token is not that of a lease that the event is in */
#define ERRCODE_IDEM_LEASE_LOST				MAKE_SQLSTATE('I','D','0','0','7')
/* an update does not raise the version of its row */
#define ERRCODE_IDEM_STALE_VERSION			MAKE_SQLSTATE('I','D','0','0','8')
/* idempotency.publish_witness does not allow this server to publish */
#define ERRCODE_IDEM_RELAY_UNWITNESSED		MAKE_SQLSTATE('I','D','0','0','9')

/* Bytes of an error's text that a row keeps */
#define IDEM_MAX_ERROR_BYTES	1024

/*
 * Copy as much of a text as fits into "size" bytes, and end the copy.  The text
 * is in the server encoding and is cut between two characters: a row or message
 * with half a character is refused, and the refusal hides the cause.
 */
static inline void
idem_copy_error(char *copy, const char *message, int size)
{
	int			len = pg_mbcliplen(message, strlen(message), size - 1);

	memcpy(copy, message, len);
	copy[len] = '\0';
}

#endif							/* IDEM_ERROR_H */
