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
 *		The worker never waits for a child in its loop.  A process that was
 *		killed may take as long to die as the kernel holds it (state D: a disk
 *		or a network file system that does not answer); until it is reaped it is
 *		"dying", and holds up the start of its relay's next program and nothing
 *		else.
 *
 *		No process that a program started outlives the program.  The worker is a
 *		"child subreaper", and so is each program: an orphan of a program that
 *		runs is the program's, and one of a program that has ended is the
 *		worker's.  A child that the worker did not start is such an orphan; it
 *		is killed at once.  It may leave orphans in turn, which are seen when it
 *		is reaped.
 *
 * Why it matters: an orphan that nobody adopts becomes a child of process 1.
 * Where that is the postmaster, a child that the postmaster does not know and
 * that ends by a signal, or with a status other than 0 and 1, is a crash to it:
 * the postmaster restarts all its processes.
 *
 * A worker that ends kills its children and waits for all of them together,
 * EXIT_WAIT_MS at most: a command that wants the database empty waits for the
 * worker.  The same on SIGQUIT, where no callback runs.  What is left then is
 * killed and still held by the kernel.  Below an ordinary process 1 that is
 * nobody's business any more.  Below a postmaster that is process 1 the worker,
 * which holds no slot, no lock and no shared memory by then, stays as a mere
 * process until the last child is reaped or the postmaster stops it.
 *
 * What a crash leaves: a worker that dies of SIGKILL leaves programs that the
 * kernel kills (PDEATHSIG), and orphans of theirs that nobody kills.  README.md,
 * "Children", says what follows from that.
 *
 * LOCKING: none.  Signal handlers set a flag and the latch; the one of SIGQUIT
 * asks the kernel for the children, not the lists here.
 *
 * MEMORY: one small chunk per child in a context of its own; at most a running
 * and a dying program per relay, and those that were sent BYE.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/program/children.c
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

#include "relay/program/children.h"
#include "shared/args.h"

#define EXIT_WAIT_MS 1000
#define LINGER_POLL_MS 100
#define OVERDUE_MS 1000			/* a process that is not held dies sooner */
#define LOOK_AGAIN_MS 1000		/* while something is dying */
#define MAX_REAPED 256			/* in one call; the rest has the next turn */

struct IdemChild
{
	dlist_node	node;
	pid_t		pid;
	bool		ended;			/* reaped, and "status" is how */
	int			status;
	IdemClock	overdue_at;		/* of one that is dying */
	char		relay[IDEM_MAX_NAME_BYTES + 1];
};

static MemoryContext children_cxt = NULL;
static IdemChild *spare = NULL;
static dlist_head running = DLIST_STATIC_INIT(running);
static dlist_head dying = DLIST_STATIC_INIT(dying);
static int	nknown = 0;			/* of both lists, not reaped */
static int	nstrangers = 0;		/* at the last look */
static IdemClock next_look = 0;

static volatile sig_atomic_t child_ended = false;
static volatile sig_atomic_t told_to_leave = false;

/* Set a flag for the next turn: lists are not to be changed in a handler. */
static void
on_sigchld(SIGNAL_ARGS)
{
	int			save_errno = errno;

	child_ended = true;
	SetLatch(MyLatch);
	errno = save_errno;
}

/* Nothing is left to roll back, so this is not die(). */
static void
on_sigterm_while_lingering(SIGNAL_ARGS)
{
	told_to_leave = true;
}

/*
 * Visit the children of this process as the kernel lists them; returns how many
 * there are, 0 where it keeps no such list (CONFIG_PROC_CHILDREN).
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

/* Only a child: /proc may count processes as another namespace does. */
static void
kill_one(pid_t pid)
{
	siginfo_t	info;

	if (waitid(P_PID, pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0)
		(void) kill(pid, SIGKILL);
}

/*
 * Kill all children and what they leave, and reap them: until no child is left,
 * or for EXIT_WAIT_MS.  Async-signal-safe.  True if none is left.
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

/* An immediate shutdown, or a crash elsewhere: no callback runs. */
static void
on_sigquit(SIGNAL_ARGS)
{
	(void) end_children();
	_exit(2);
}

/*
 * The last callback: shared memory is released.  A fast shutdown tells us to
 * leave as it tells any worker.
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

/* Kill by our own list, which is there without CONFIG_PROC_CHILDREN as well. */
static void
kill_list(dlist_head *list)
{
	dlist_iter	iter;

	dlist_foreach(iter, list)
	{
		IdemChild  *child = dlist_container(IdemChild, node, iter.cur);

		if (!child->ended)
			(void) kill(child->pid, SIGKILL);
	}
}

/* The way out of a worker. */
static void
leave(int code, Datum arg)
{
	kill_list(&running);
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

/* The child was reaped, and nobody asks for its status any more. */
static void
forget(IdemChild *child)
{
	dlist_delete(&child->node);
	pfree(child);
}

/* Only children that are not reaped: the number of another may be in use again. */
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

/* It was reaped; its number may be somebody else's from now on. */
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
		child_ended = true;		/* what it left is to be looked for */
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

/* Bounded, so that a storm of orphans does not hold the relays up. */
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

/* Kill a child that this worker did not start: an orphan of a program. */
static void
kill_stranger(pid_t pid)
{
	if (find(&running, pid) != NULL || find(&dying, pid) != NULL)
		return;
	kill_one(pid);
	nstrangers++;
}

/* A list of known children has no stranger in it, which is the usual case. */
static void
kill_strangers(void)
{
	nstrangers = 0;
	if (walk_children(NULL) > nknown)
		(void) walk_children(kill_stranger);
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
	kill_strangers();
	next_look = idem_clock_plus_ms(idem_clock(), LOOK_AGAIN_MS);
}
