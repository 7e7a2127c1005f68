/*-------------------------------------------------------------------------
 *
 * doctor_fn.c
 *		doctor(): is this server set up right, and does anything stand still?
 *
 * One area after the other returns a row for each fault, or else one row that says what
 * was found.  The rows are the same for every caller, since a report of a fault begins
 * with them: they name relays, roles, processes and settings, and have nothing that the
 * kind "monitor" may not see.
 *
 * An area looks before it reads.  Whatever it could not foresee, such as a table that
 * somebody altered or keeps locked, is an error in the area's subtransaction, and becomes
 * a row.  So the call does not fail, unless it is cancelled.
 *
 * INVARIANT
 *		Nothing is changed.  No lock outlives the area that took it, and no area waits for
 *		a lock of a table for longer than LOCK_MS.
 *
 * LOCKING: locks of readers, one area at a time.
 *
 * MEMORY: rows go to the function's tuplestore.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/doctor/doctor_fn.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/resowner.h"

#include "compat.h"
#include "doctor/doctor.h"
#include "shared/lock_wait.h"

PG_FUNCTION_INFO_V1(idem_doctor_fn);

/* An area waits for a lock for at most so long. */
#define LOCK_MS 1000

typedef void (*Look) (IdemDoctor *d);

/* The areas, in the order of their rows: what others depend on comes first. */
static const struct
{
	const char *name;
	Look		look;
}			areas[] =

{
	{"version", idem_doctor_versions},
	{"preload", idem_doctor_preload},
	{"settings", idem_doctor_settings},
	{"locks", idem_doctor_locks},
	{"disk", idem_doctor_disk},
	{"transactions", idem_doctor_transactions},
	{"roles", idem_doctor_roles},
	{"store", idem_doctor_store},
	{"tables", idem_doctor_tables},
	{"counters", idem_doctor_counters},
	{"workers", idem_doctor_workers},
	{"witness", idem_doctor_witness},
	{"programs", idem_doctor_programs},
	{"relays", idem_doctor_relays},
};

/* What an area is looked at by, through idem_work_with_timeout. */
typedef struct Work
{
	IdemDoctor *d;
	Look		look;
} Work;

static void
work(void *arg)
{
	((Work *) arg)->look(((Work *) arg)->d);
}

/* Look at an area.  The end of the subtransaction gives its locks back. */
static void
look_at(IdemDoctor *d, Look look)
{
	Work		job = {d, look};
	ResourceOwner owner = CurrentResourceOwner;
	ErrorData  *volatile error = NULL;

	BeginInternalSubTransaction(NULL);
	PG_TRY();
	{
		idem_work_with_timeout(LOCK_MS, work, NULL, &job);
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(d->cxt);
		error = CopyErrorData();
		FlushErrorState();
	}
	PG_END_TRY();
	RollbackAndReleaseCurrentSubTransaction();
	MemoryContextSwitchTo(d->cxt);
	CurrentResourceOwner = owner;
	if (error == NULL)
		return;
	if (error->sqlerrcode == ERRCODE_QUERY_CANCELED)
		ReThrowError(error);
	idem_doctor_put(d, IDEM_DOCTOR_PROBLEM, psprintf("could not look: %s", error->message),
					error->sqlerrcode == ERRCODE_LOCK_NOT_AVAILABLE ?
					"End the transaction that keeps the table locked: see pg_locks, where \"granted\" is true." :
					error->hint != NULL ? error->hint :
					"Send this row, and the server log of this moment, with a report of the fault.");
}

Datum
idem_doctor_fn(PG_FUNCTION_ARGS)
{
	IdemDoctor	d = {.rsinfo = (ReturnSetInfo *) fcinfo->resultinfo, .cxt = CurrentMemoryContext};

	InitMaterializedSRF(fcinfo, 0);
	for (int i = 0; i < lengthof(areas); i++)
	{
		CHECK_FOR_INTERRUPTS();
		d.area = areas[i].name;
		d.found = false;
		look_at(&d, areas[i].look);
	}
	PG_RETURN_NULL();
}
