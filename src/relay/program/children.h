/*-------------------------------------------------------------------------
 *
 * children.h
 *		The child processes of a database's worker: running, dying, adopted.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/program/children.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_RELAY_PROGRAM_CHILDREN_H
#define IDEM_RELAY_PROGRAM_CHILDREN_H

#include "postgres.h"

#include "shared/clock.h"

/* A program that was started; opaque. */
typedef struct IdemChild IdemChild;

/*
 * Make this process adopt, kill and reap the orphans of its programs.  Call it
 * once, before signals are unblocked and before the first program starts.
 */
extern void idem_children_init(void);

/*
 * Allocate memory for one more program, so that idem_children_add cannot fail
 * after a fork.
 */
extern void idem_children_make_room(void);

/* Note that a program of that relay runs now. */
extern IdemChild *idem_children_add(pid_t pid, const char *relay);

/*
 * Has the program ended?  Then *status is set as by waitpid, and the child is
 * freed.  Does not wait.
 */
extern bool idem_child_ended(IdemChild *child, int *status);

/*
 * Kill the program by SIGKILL.  The caller forgets the child.  It is reaped
 * here when the kernel lets it end.
 */
extern void idem_child_kill(IdemChild *child);

/*
 * The pid of a program of that relay that was killed and is not reaped; 0:
 * there is none.  *overdue: it takes longer to die than a process that the
 * kernel does not hold.
 */
extern pid_t idem_children_dying(const char *relay, bool *overdue);

/*
 * The number of programs that run or are dying.  A program that is overdue to
 * die is left out: the kernel holds it, and it takes no other relay's place.
 */
extern int	idem_children_count(void);

/* Reap ended children and kill orphans; bounded, and does not wait. */
extern void idem_children_serve(void);

/* Has a child ended since idem_children_serve looked? */
extern bool idem_children_have_ended(void);

/* When to call idem_children_serve next if no child ends before; 0: no need. */
extern IdemClock idem_children_next_time(void);

#endif							/* IDEM_RELAY_PROGRAM_CHILDREN_H */
