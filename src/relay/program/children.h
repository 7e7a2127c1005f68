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
 * Make this process the one that adopts, kills and reaps what its programs leave
 * behind.  Call it once, before signals are unblocked and before the first program.
 */
extern void idem_children_init(void);

/* Memory for one program more, so that idem_children_add cannot fail after a fork. */
extern void idem_children_make_room(void);

/* A program of that relay runs now. */
extern IdemChild *idem_children_add(pid_t pid, const char *relay);

/*
 * Has the program ended?  Then *status is set as by waitpid, and the child is
 * forgotten.  Does not wait.
 */
extern bool idem_child_ended(IdemChild *child, int *status);

/*
 * SIGKILL.  The caller forgets the child; it is reaped here whenever the kernel
 * lets go of it.
 */
extern void idem_child_kill(IdemChild *child);

/*
 * A program of that relay that was killed and is not reaped; 0: there is none.
 * *overdue: it takes longer than a process needs to die that nothing holds.
 */
extern pid_t idem_children_dying(const char *relay, bool *overdue);

/*
 * Programs that run or are about to die.  One that is overdue is the kernel's: it
 * takes no other relay's place.
 */
extern int	idem_children_count(void);

/* Reap what has ended, kill what nobody knows; bounded, and does not wait. */
extern void idem_children_serve(void);

/* Has a child ended since idem_children_serve looked? */
extern bool idem_children_have_ended(void);

/* When to call idem_children_serve next if no child ends before; 0: no need. */
extern IdemClock idem_children_next_time(void);

#endif							/* IDEM_RELAY_PROGRAM_CHILDREN_H */
