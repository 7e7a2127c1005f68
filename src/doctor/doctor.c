/*-------------------------------------------------------------------------
 *
 * doctor.c
 *		Returns a finding of doctor().
 *
 * MEMORY: the row goes to the function's tuplestore; its values are in the context of
 * the call.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/doctor/doctor.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/tuplestore.h"

#include "doctor/doctor.h"

#define COLUMNS 4

void
idem_doctor_put(IdemDoctor *d, IdemDoctorOk ok, const char *finding, const char *remedy)
{
	MemoryContext old = MemoryContextSwitchTo(d->cxt);
	Datum		values[COLUMNS] = {0};
	bool		nulls[COLUMNS] = {false, ok == IDEM_DOCTOR_UNKNOWN, false, remedy == NULL};

	values[0] = CStringGetTextDatum(d->area);
	values[1] = BoolGetDatum(ok == IDEM_DOCTOR_OK);
	values[2] = CStringGetTextDatum(finding);
	if (remedy != NULL)
		values[3] = CStringGetTextDatum(remedy);
	tuplestore_putvalues(d->rsinfo->setResult, d->rsinfo->setDesc, values, nulls);
	MemoryContextSwitchTo(old);
	d->found = true;
}
