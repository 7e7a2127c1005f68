/*-------------------------------------------------------------------------
 *
 * fault.h
 *		Named points at which tests break a process of the server.
 *
 * Fault points are compiled in by "make FAULT_POINTS=1" only; other builds
 * have none of their code.  A point is declared where it stands, by a name
 * that occurs once:
 *
 *		IDEM_FAULT_POINT("x")			anything may happen here
 *		IDEM_FAULT_POINT_NO_ERROR("x")	nothing may be raised here: commit
 *										callbacks, ways out of a process
 *		IDEM_FAULT_POINT_CHILD("x")		between fork and exec
 *
 * test/crash/points.sh finds the names in the sources, and must reach each of
 * them.  fault_file.h tells how a point is armed.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/shared/fault.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_FAULT_H
#define IDEM_FAULT_H

#ifdef IDEMPOTENCY_FAULT_POINTS

extern void idem_fault_point(const char *name, bool may_raise);
extern void idem_fault_point_child(const char *name);

#define IDEM_FAULT_POINT(name)			idem_fault_point(name, true)
#define IDEM_FAULT_POINT_NO_ERROR(name)	idem_fault_point(name, false)
#define IDEM_FAULT_POINT_CHILD(name)	idem_fault_point_child(name)

#else

#define IDEM_FAULT_POINT(name)			((void) 0)
#define IDEM_FAULT_POINT_NO_ERROR(name)	((void) 0)
#define IDEM_FAULT_POINT_CHILD(name)	((void) 0)

#endif

#endif							/* IDEM_FAULT_H */
