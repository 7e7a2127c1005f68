/*-------------------------------------------------------------------------
 *
 * fault.c
 *		The effect of an armed fault point on a sink program.
 *
 *		error		FAILED with an outage
 *		kill		SIGKILL
 *		stall		hangs until it is released
 *		cancel		SIGTERM
 *
 * A program that hangs answers no PING, so its worker kills it in time.  The
 * system kills a program that has lost its worker.
 *
 * MEMORY: none.  LOCKING: see shared/fault_file.h.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/common/fault.c
 *
 *-------------------------------------------------------------------------
 */
#include "sink/common/program.h"

#ifdef IDEMPOTENCY_FAULT_POINTS

#include <poll.h>
#include <signal.h>

#include "shared/fault_file.h"

#define LOOK_AGAIN_MS	2

void
idem_sink_fault_point(IdemSink *s, const char *name)
{
	switch (idem_fault_take(name))
	{
		case IDEM_FAULT_ERROR:
			idem_sink_failed(s, IDEM_PROTO_OUTAGE, "58030", "fault point \"%s\"", name);
		case IDEM_FAULT_KILL:
			raise(SIGKILL);
			break;
		case IDEM_FAULT_CANCEL:
		case IDEM_FAULT_TERMINATE:
			raise(SIGTERM);
			break;
		case IDEM_FAULT_STALL:
			while (idem_fault_is_held(name))
				(void) poll(NULL, 0, LOOK_AGAIN_MS);
			break;
		case IDEM_FAULT_NONE:
			break;
	}
}

#endif
