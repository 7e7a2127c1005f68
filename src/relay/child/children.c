/*-------------------------------------------------------------------------
 *
 * children.c
 *		The child processes of a database's worker: running, dying, adopted.
 *
 *		running --it ends--> ended --the relay looks--> forgotten
 *		   |                                               ^
 *		   `--killed--> dying --reaped--------------------'
 *
 * INVARIANTS
 *		The worker's loop never waits for a child.  A process that was killed
 *		may take as long to die as the kernel holds it (state D: a disk or a
 *		network file system that does not answer).  Until it is reaped it is
 *		"dying", and holds up the start of its relay's next program and nothing
 *		else.
 *
 *		No process that a program started outlives the program.  The worker is a
 *		"child subreaper", and so is each program: a running program adopts its
 *		orphans, and the worker adopts those of a program that has ended.  A
 *		child that the worker did not start is such an orphan.  The worker kills
 *		it at once.  It may leave orphans in turn, which the worker sees when it
 *		reaps the child.
 *
 * Why orphans matter: an orphan that nobody adopts becomes a child of process
 * 1.  Where the postmaster is process 1, an unknown child that ends by a
 * signal, or with a status other than 0 and 1, counts as a crash: the
 * postmaster restarts all its processes.
 *
 * A worker that ends kills its children and waits for all of them together, for
 * EXIT_WAIT_MS at most: a command that wants the database empty waits for the
 * worker.  On SIGQUIT, where no callback runs, the worker does the same.  A
 * child that is left after that is killed, and the kernel still holds it.
 * Below an ordinary process 1 that harms nobody.  Below a postmaster that is
 * process 1 the worker stays as a mere process, which holds no slot, no lock
 * and no shared memory by then, until the last child is reaped or the
 * postmaster stops the worker.
 *
 * What a crash leaves: a worker that dies of SIGKILL leaves programs, which the
 * kernel kills (PDEATHSIG), and orphans of those programs, which nobody kills.
 * README.md, "Children", names the consequences.
 *
 * LOCKING: none.  Signal handlers set a flag and the latch.  The handler of
 * SIGQUIT asks the kernel for the children and does not read the lists here.
 *
 * MEMORY: one small chunk per child in a context of its own.  A relay has at
 * most a running and a dying program, besides programs that were sent BYE.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/child/children.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/ilist.h"
#include "libpq/pqsignal.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "utils/memutils.h"

#include "relay/child/process.h"

#define EXIT_WAIT_MS 1000
#define LINGER_POLL_MS 100
#define OVERDUE_MS 1000			/* a process that the kernel does not hold
								 * dies sooner */
#define LOOK_AGAIN_MS 1000		/* while something is dying */
#define MAX_REAPED 256			/* in one call; the next turn reaps the others */

struct IdemChild
{
	dlist_node	node;
	pid_t		pid;
	bool		ended;			/* reaped; "status" is its exit status */
	int			status;
	IdemClock	overdue_at;		/* of a dying child */
	char		relay[IDEM_MAX_RELAY_NAME + 1];
};

static MemoryContext children_cxt = NULL;
static IdemChild *spare = NULL;
static dlist_head running = DLIST_STATIC_INIT(running);
static dlist_head dying = DLIST_STATIC_INIT(dying);
static int	nknown = 0;			/* children in both lists that are not reaped */
static int	nstrangers = 0;		/* children that this worker did not start, at
								 * the last look */
static IdemClock next_look = 0;

static volatile sig_atomic_t child_ended = false;
static volatile sig_atomic_t told_to_leave = false;

/* Set a flag for the next turn: a signal handler must not change lists. */
static void
on_sigchld(SIGNAL_ARGS)
{
	int			save_errno = errno;

	child_ended = true;
	SetLatch(MyLatch);
	errno = save_errno;
}

/* SIGTERM while lingering.  Not die(), since there is nothing to roll back. */
static void
on_sigterm_while_lingering(SIGNAL_ARGS)
{
	told_to_leave = true;
}

/*
 * Visit the children of this process as the kernel lists them.  Returns their
 * number, 0 where the kernel keeps no such list (CONFIG_PROC_CHILDREN).
 * Async-signal-safe if "visit" is.
 */
static int
walk_children(void (*visit) (pid_t pid))
{
	char		buf[1024];
	int			fd = open("/proc/thread-self/children", O_RDONLY | O_CLOEXEC);
	pid_t		pid = 0;
	int			count = 0;
	ssize_t		n;

	if (fd < 0)
		return 0;
	while ((n = read(fd, buf, sizeof(buf))) > 0)
	{
		for (ssize_t i = 0; i < n; i++)
		{
			if (buf[i] >= '0' && buf[i] <= '9')
			{
				pid = pid * 10 + (buf[i] - '0');
				continue;
			}
			if (pid > 0)
				count++;
			if (pid > 0 && visit != NULL)
				visit(pid);
			pid = 0;
		}
	}
	(void) close(fd);
	return count;
}

/*
 * Kill a process if it is a child: /proc may number processes as another
 * namespace does.
 */
static void
kill_one(pid_t pid)
{
	siginfo_t	info;

	if (waitid(P_PID, pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0)
		(void) kill(pid, SIGKILL);
}

/*
 * Kill and reap all children, and the orphans that they leave, until no child
 * is left or EXIT_WAIT_MS have passed.  Async-signal-safe.  True if none is
 * left.
 */
static bool
end_children(void)
{
	for (int ms = 0; ms < EXIT_WAIT_MS; ms++)
	{
		pid_t		pid;

		(void) walk_children(kill_one);
		do
			pid = waitpid(-1, NULL, WNOHANG);
		while (pid > 0);
		if (pid < 0 && errno == ECHILD)
			return true;
		(void) usleep(1000);
	}
	return false;
}

/*
 * SIGQUIT: an immediate shutdown, or a crash of another process.  No callback
 * runs, so end the children here.
 */
static void
on_sigquit(SIGNAL_ARGS)
{
	(void) end_children();
	_exit(2);
}

/*
 * Reap children until none is left.  This is the last callback: shared memory
 * is released.  A fast shutdown ends this process by SIGTERM, as it ends any
 * worker.
 */
static void
linger(int code, Datum arg)
{
	pqsignal(SIGTERM, on_sigterm_while_lingering);
	while (!told_to_leave)
	{
		pid_t		pid = waitpid(-1, NULL, WNOHANG);

		if (pid < 0 && errno == ECHILD)
			return;
		if (pid > 0)
			(void) walk_children(kill_one);
		else
			pg_usleep(LINGER_POLL_MS * 1000L);
	}
}

/* End all children as the worker ends. */
static void
leave(int code, Datum arg)
{
	dlist_iter	iter;

	/* Kill those of our own list: works without CONFIG_PROC_CHILDREN as well. */
	dlist_foreach(iter, &running)
	{
		IdemChild  *child = dlist_container(IdemChild, node, iter.cur);

		if (!child->ended)
			(void) kill(child->pid, SIGKILL);
	}
	if (end_children())
		return;
	ereport(LOG,
			(errmsg("sink programs were killed and did not end within %d ms", EXIT_WAIT_MS),
			 errdetail("The kernel holds them, for example for a file system that does not answer.")));
	if (PostmasterPid == 1)
		on_proc_exit(linger, (Datum) 0);
}

void
idem_children_init(void)
{
	children_cxt = AllocSetContextCreate(TopMemoryContext, "child processes",
										 ALLOCSET_SMALL_SIZES);
	(void) prctl(PR_SET_CHILD_SUBREAPER, 1);
	pqsignal(SIGCHLD, on_sigchld);
	pqsignal(SIGQUIT, on_sigquit);
	before_shmem_exit(leave, (Datum) 0);
}

void
idem_children_make_room(void)
{
	if (spare == NULL)
		spare = MemoryContextAllocZero(children_cxt, sizeof(IdemChild));
}

IdemChild *
idem_children_add(pid_t pid, const char *relay)
{
	IdemChild  *child = spare;

	Assert(child != NULL);
	spare = NULL;
	child->pid = pid;
	strlcpy(child->relay, relay, sizeof(child->relay));
	dlist_push_tail(&running, &child->node);
	nknown++;
	return child;
}

/* Free a child that was reaped and whose status nobody asks for any more. */
static void
forget(IdemChild *child)
{
	dlist_delete(&child->node);
	pfree(child);
}

/*
 * The child with that pid.  Reaped children are left out: their pid may be in
 * use again.
 */
static IdemChild *
find(dlist_head *list, pid_t pid)
{
	dlist_iter	iter;

	dlist_foreach(iter, list)
	{
		IdemChild  *child = dlist_container(IdemChild, node, iter.cur);

		if (child->pid == pid && !child->ended)
			return child;
	}
	return NULL;
}

/*
 * Note that a process was reaped; its pid may be another process's from now
 * on.
 */
static void
note_end(pid_t pid, int status)
{
	IdemChild  *child = find(&running, pid);

	if (child != NULL)
	{
		child->ended = true;
		child->status = status;
		nknown--;
	}
	else if ((child = find(&dying, pid)) != NULL)
	{
		forget(child);
		nknown--;
	}
}

bool
idem_child_ended(IdemChild *child, int *status)
{
	int			one;

	if (!child->ended && waitpid(child->pid, &one, WNOHANG) == child->pid)
	{
		note_end(child->pid, one);
		child_ended = true;		/* look for orphans that it left */
	}
	if (!child->ended)
		return false;
	*status = child->status;
	forget(child);
	return true;
}

void
idem_child_kill(IdemChild *child)
{
	if (child->ended)
	{
		forget(child);
		return;
	}
	(void) kill(child->pid, SIGKILL);
	child->overdue_at = idem_clock_plus_ms(idem_clock(), OVERDUE_MS);
	next_look = child->overdue_at;
	dlist_delete(&child->node);
	dlist_push_tail(&dying, &child->node);
}

pid_t
idem_children_dying(const char *relay, bool *overdue)
{
	dlist_iter	iter;

	*overdue = false;
	dlist_foreach(iter, &dying)
	{
		IdemChild  *child = dlist_container(IdemChild, node, iter.cur);

		if (strcmp(child->relay, relay) != 0)
			continue;
		*overdue = idem_clock() >= child->overdue_at;
		return child->pid;
	}
	return 0;
}

/*
 * Reap children that have ended.  Bounded, so that a storm of orphans does not
 * hold up the relays.
 */
static void
reap(void)
{
	for (int i = 0; i < MAX_REAPED; i++)
	{
		int			status;
		pid_t		pid = waitpid(-1, &status, WNOHANG);

		if (pid <= 0)
			return;
		note_end(pid, status);
	}
	child_ended = true;
}

/* Kill a child if this worker did not start it: an orphan of a program. */
static void
kill_stranger(pid_t pid)
{
	if (find(&running, pid) != NULL || find(&dying, pid) != NULL)
		return;
	kill_one(pid);
	nstrangers++;
}

int
idem_children_count(void)
{
	IdemClock	now = idem_clock();
	int			n = nknown;
	dlist_iter	iter;

	dlist_foreach(iter, &dying)
		n -= now >= dlist_container(IdemChild, node, iter.cur)->overdue_at;
	return n;
}

bool
idem_children_have_ended(void)
{
	return child_ended;
}

IdemClock
idem_children_next_time(void)
{
	return dlist_is_empty(&dying) && nstrangers == 0 ? 0 : next_look;
}

void
idem_children_serve(void)
{
	IdemClock	due = idem_children_next_time();

	if (!child_ended && (due == 0 || idem_clock() < due))
		return;
	child_ended = false;		/* before the look: the next SIGCHLD counts */
	reap();

	/*
	 * Kill orphans.  Usually the kernel lists as many children as we know,
	 * and there is none.
	 */
	nstrangers = 0;
	if (walk_children(NULL) > nknown)
		(void) walk_children(kill_stranger);
	next_look = idem_clock_plus_ms(idem_clock(), LOOK_AGAIN_MS);
}
