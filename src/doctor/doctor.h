/*-------------------------------------------------------------------------
 *
 * doctor.h
 *		What the areas of doctor() share: how a finding is returned.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/doctor/doctor.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_DOCTOR_DOCTOR_H
#define IDEM_DOCTOR_DOCTOR_H

#include "postgres.h"

#include "nodes/execnodes.h"

/* An examination under way. */
typedef struct IdemDoctor
{
	ReturnSetInfo *rsinfo;
	MemoryContext cxt;			/* of the call: outlives the area's
								 * subtransaction */
	const char *area;			/* that is being looked at */
	bool		found;			/* the area has a row */
} IdemDoctor;

/* Does a finding say that all is well?  Where nobody can tell, ok is null. */
typedef enum IdemDoctorOk
{
	IDEM_DOCTOR_OK,
	IDEM_DOCTOR_PROBLEM,
	IDEM_DOCTOR_UNKNOWN
} IdemDoctorOk;

/*
 * Return a row.  Neither text has a secret, a payload, a key, or what a sink or a handler
 * said.  remedy: an instruction; NULL if all is well.
 */
extern void idem_doctor_put(IdemDoctor *d, IdemDoctorOk ok, const char *finding, const char *remedy);

/* Of server.c: the server and its settings */
extern void idem_doctor_versions(IdemDoctor *d);
extern void idem_doctor_settings(IdemDoctor *d);
extern void idem_doctor_locks(IdemDoctor *d);
extern void idem_doctor_disk(IdemDoctor *d);
extern void idem_doctor_transactions(IdemDoctor *d);
extern void idem_doctor_roles(IdemDoctor *d);
extern void idem_doctor_store(IdemDoctor *d);
extern void idem_doctor_tables(IdemDoctor *d);
extern void idem_doctor_counters(IdemDoctor *d);

/* Of relays.c: relays, and what they need */
extern void idem_doctor_preload(IdemDoctor *d);
extern void idem_doctor_workers(IdemDoctor *d);
extern void idem_doctor_witness(IdemDoctor *d);
extern void idem_doctor_programs(IdemDoctor *d);
extern void idem_doctor_relays(IdemDoctor *d);

#endif							/* IDEM_DOCTOR_DOCTOR_H */
