/*-------------------------------------------------------------------------
 *
 * fault.c
 *		The faults of a server process at an armed fault point.
 *
 *		error		an I/O error is raised
 *		kill		SIGKILL
 *		stall		waits until it is released, or the postmaster is gone
 *		cancel		as by pg_cancel_backend at this very moment
 *		terminate	as by pg_terminate_backend
 *
 * Where no error may be raised, cancel and terminate are noted as the signal
 * handlers note them, and take effect where the server looks for them next.
 *
 * MEMORY: none.  LOCKING: see fault_file.h.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/shared/fault.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "shared/fault.h"

#ifdef IDEMPOTENCY_FAULT_POINTS

#include <signal.h>

#include "miscadmin.h"
#include "storage/pmsignal.h"

#include "compat.h"
#include "shared/fault_file.h"

#define LOOK_AGAIN_US	2000

/* End the process as kill -9 does. */
pg_noreturn static void
die_now(void)
{
	(void) kill(getpid(), SIGKILL);
	for (;;)
		(void) pause();
}

/* Wait until the file is removed.  A latch that is set meanwhile stays set. */
static void
stall(const char *name, bool interruptible)
{
	while (idem_fault_is_held(name))
	{
		if (interruptible)
			CHECK_FOR_INTERRUPTS();
		if (!PostmasterIsAlive())
			_exit(1);
		pg_usleep(LOOK_AGAIN_US);
	}
}

/* Note the fault as the handler of its signal would. */
static void
note_interrupt(IdemFault fault)
{
	InterruptPending = true;
	if (fault == IDEM_FAULT_CANCEL)
		QueryCancelPending = true;
	else
		ProcDiePending = true;
}

/* Take the action that the point was armed with. */
static void
act(const char *name, IdemFault fault, bool may_raise)
{
	if (fault == IDEM_FAULT_KILL)
		die_now();
	if (fault == IDEM_FAULT_STALL)
		stall(name, may_raise);
	if (fault == IDEM_FAULT_CANCEL || fault == IDEM_FAULT_TERMINATE)
	{
		note_interrupt(fault);
		if (may_raise)
			CHECK_FOR_INTERRUPTS();
	}
	if (fault == IDEM_FAULT_ERROR && may_raise)
		ereport(ERROR,
				(errcode(ERRCODE_IO_ERROR),
				 errmsg("fault point \"%s\"", name)));
}

void
idem_fault_point(const char *name, bool may_raise)
{
	int			save_errno = errno;

	act(name, idem_fault_take(name), may_raise);
	errno = save_errno;
}

/*
 * The process is a copy of the server that must not run any of the server's
 * code.
 */
void
idem_fault_point_child(const char *name)
{
	IdemFault	fault = idem_fault_take(name);

	if (fault == IDEM_FAULT_KILL)
		die_now();
	while (fault == IDEM_FAULT_STALL && idem_fault_is_held(name))
		(void) usleep(LOOK_AGAIN_US);
}

#endif
