/*-------------------------------------------------------------------------
 *
 * process.c
 *		Starts programs as children; watches and ends those that are sinks.
 *
 * A program talks to the world, so it has nothing of the server's: no shared
 * memory, no descriptor but the three that its starter names, no environment
 * but the one its starter gives.  A sink program has one end of a socket pair
 * and of a pipe, and no arguments.  What the program prints into the pipe goes to
 * the server log as lines of its relay, LOG_BURST at once and then one per
 * LOG_INTERVAL_MS, with the number of those that were dropped.
 *
 * Between fork and exec only async-signal-safe calls are made.  Signals are
 * blocked across the fork, so that a handler of the server can never run in
 * the child.  A sink program stays in the worker's process group and session:
 * what the postmaster signals to the group at a crash reaches it as well; SIGINT
 * is ignored, because pg_cancel_backend signals the group, too.
 *
 * The worker kills and reaps its programs on every way out.  If the worker
 * dies by SIGKILL the kernel delivers PDEATHSIG; the comparison of getppid
 * closes the gap before it is set.  That matters most where the postmaster is
 * process 1: an orphan that dies of a signal would make it restart the cluster.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/process.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "libpq/pqsignal.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "utils/memutils.h"

#include "compat.h"
#include "relay/process.h"
#include "shared/fault.h"

#define LOG_BURST 20
#define LOG_INTERVAL_MS 1000
#define MAX_PRINTED (64 * 1024) /* bytes taken in at once: what a pipe holds */

/* Running programs of this process, for the way out. */
static pid_t *running = NULL;
static int	nrunning = 0;
static int	running_allocated = 0;

static void
kill_all(int code, Datum arg)
{
	for (int i = 0; i < nrunning; i++)
		(void) kill(running[i], SIGKILL);
	for (int i = 0; i < nrunning; i++)
	{
		while (waitpid(running[i], NULL, 0) < 0 && errno == EINTR)
			;
	}
	nrunning = 0;
}

void
idem_process_init(void)
{
	before_shmem_exit(kill_all, (Datum) 0);
}

static void
remember(pid_t pid)
{
	running[nrunning++] = pid;
}

static void
forget(pid_t pid)
{
	for (int i = 0; i < nrunning; i++)
	{
		if (running[i] == pid)
		{
			running[i] = running[--nrunning];
			return;
		}
	}
}

/* Room for one more, allocated before the fork and not after. */
static void
make_room(void)
{
	if (nrunning < running_allocated)
		return;
	running_allocated = running_allocated ? running_allocated * 2 : 16;
	if (running == NULL)
		running = MemoryContextAlloc(TopMemoryContext,
									 sizeof(pid_t) * running_allocated);
	else
		running = repalloc(running, sizeof(pid_t) * running_allocated);
}

/*
 * Everything above standard error goes: a child inherits descriptors of the
 * data directory otherwise.  close_range is not everywhere; the fallback asks
 * the limit, which is what the server's own use of descriptors is bounded by.
 */
static void
close_from_3(long max_fd)
{
#ifdef SYS_close_range
	if (syscall(SYS_close_range, 3U, ~0U, 0U) == 0)
		return;
#endif
	for (long fd = 3; fd < max_fd; fd++)
		(void) close((int) fd);
}

/* The program may be sacrificed before the database is. */
static void
raise_oom_score(void)
{
	int			fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);

	if (fd >= 0)
	{
		ssize_t		rc pg_attribute_unused() = write(fd, "500", 3);

		(void) close(fd);
	}
}

pg_noreturn static void
run_child(const IdemSpawn *spawn, pid_t parent, long max_fd)
{
	struct sigaction dfl;
	sigset_t	none;

	memset(&dfl, 0, sizeof(dfl));
	dfl.sa_handler = SIG_DFL;
	for (int sig = 1; sig < NSIG; sig++)
		(void) sigaction(sig, &dfl, NULL);
	dfl.sa_handler = SIG_IGN;
	(void) sigaction(SIGINT, &dfl, NULL);

	if (dup2(spawn->in, 0) < 0 || dup2(spawn->out, 1) < 0 || dup2(spawn->err, 2) < 0)
		_exit(126);
	close_from_3(max_fd);
	if (spawn->own_group && setpgid(0, 0) != 0)
		_exit(126);
	if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent)
		_exit(126);
	raise_oom_score();
	sigemptyset(&none);
	(void) sigprocmask(SIG_SETMASK, &none, NULL);
	IDEM_FAULT_POINT_CHILD("sink-exec");
	(void) execve(spawn->path, spawn->argv, spawn->envp);
	_exit(127);
}

bool
idem_process_spawn(const IdemSpawn *spawn, volatile pid_t *pid)
{
	sigset_t	all,
				saved;
	pid_t		parent = MyProcPid;
	long		max_fd = sysconf(_SC_OPEN_MAX);
	pid_t		child;
	int			save_errno;

	sigfillset(&all);
	(void) sigprocmask(SIG_BLOCK, &all, &saved);
	child = fork();
	if (child == 0)
		run_child(spawn, parent, max_fd);
	save_errno = errno;
	if (child > 0)
	{
		/* Whichever of the two is first; a kill must find the group. */
		if (spawn->own_group)
			(void) setpgid(child, child);
		*pid = child;
	}
	(void) sigprocmask(SIG_SETMASK, &saved, NULL);
	errno = save_errno;
	return child > 0;
}

static bool
make_socket_pair(int fds[2], char **problem)
{
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) != 0)
	{
		*problem = psprintf("could not create a socket pair: %m");
		return false;
	}
	return true;
}

/* May another line of that relay's programs be logged?  It counts if so. */
static bool
may_log(IdemPrinted *printed)
{
	IdemClock	now = idem_clock();

	printed->paid_until = Max(printed->paid_until, now);
	if (printed->paid_until > idem_clock_plus_ms(now, (LOG_BURST - 1) * LOG_INTERVAL_MS))
		return false;
	printed->paid_until = idem_clock_plus_ms(printed->paid_until, LOG_INTERVAL_MS);
	return true;
}

/* How many were dropped, if the log may have a line about it. */
static void
log_dropped(IdemPrinted *printed)
{
	if (printed->dropped == 0 || !may_log(printed))
		return;
	ereport(LOG,
			(errmsg("relay \"%s\": " INT64_FORMAT " lines that its sink program printed were not logged",
					printed->relay, printed->dropped)));
	printed->dropped = 0;
}

static void
log_line(const char *line, void *arg)
{
	IdemPrinted *printed = arg;

	log_dropped(printed);
	if (may_log(printed))
		ereport(LOG,
				(errmsg("relay \"%s\": sink program prints: %s", printed->relay, line)));
	else
		printed->dropped++;
}

void
idem_process_log_output(IdemSinkProcess *process)
{
	idem_output_read(&process->output, MAX_PRINTED, log_line, &process->printed);
	log_dropped(&process->printed);
}

/* Start the program with its end of the socket pair and of the pipe. */
static bool
spawn_sink(IdemSinkProcess *process, IdemSpawn *spawn, char **problem)
{
	volatile pid_t pid = 0;

	if (!idem_output_open(&process->output, &spawn->out))
	{
		*problem = psprintf("could not create a pipe: %m");
		return false;
	}
	spawn->err = spawn->out;
	if (!idem_process_spawn(spawn, &pid))
	{
		*problem = psprintf("could not fork for sink program \"%s\": %m", spawn->argv[0]);
		idem_output_close(&process->output);
	}
	(void) close(spawn->out);
	process->pid = pid;
	return pid != 0;
}

bool
idem_process_start(IdemSinkProcess *process, const char *relay, const char *path,
				   char **problem)
{
	const char *name = last_dir_separator(path);
	char	   *argv[2] = {unconstify(char *, name + 1), NULL};
	char	   *envp[3] = {IDEM_PROCESS_ENVIRONMENT, NULL};
	IdemSpawn	spawn = {path, argv, envp, -1, -1, -1, false};
	int			fds[2];

	Assert(process->pid == 0 && process->fd < 0 && process->output.fd < 0);
	strlcpy(process->printed.relay, relay, sizeof(process->printed.relay));
	make_room();
	if (!make_socket_pair(fds, problem))
		return false;

	IDEM_FAULT_POINT_NO_ERROR("sink-fork");
	spawn.in = fds[1];
	if (!spawn_sink(process, &spawn, problem))
	{
		(void) close(fds[1]);
		(void) close(fds[0]);
		return false;
	}
	remember(process->pid);
	(void) close(fds[1]);
	process->fd = fds[0];
	IDEM_FAULT_POINT("sink-forked");
	return true;
}

void
idem_process_kill(IdemSinkProcess *process)
{
	if (process->fd >= 0)
	{
		(void) close(process->fd);
		process->fd = -1;
	}
	if (process->pid != 0)
	{
		IDEM_FAULT_POINT_NO_ERROR("sink-reap");
		(void) kill(process->pid, SIGKILL);
		while (waitpid(process->pid, NULL, 0) < 0 && errno == EINTR)
			;
		forget(process->pid);
		process->pid = 0;
	}
	idem_process_log_output(process);
	idem_output_end(&process->output, log_line, &process->printed);
}

char *
idem_process_describe_end(int status)
{
	if (WIFEXITED(status))
		return psprintf("exited with status %d", WEXITSTATUS(status));
	return psprintf("was terminated by signal %d", WTERMSIG(status));
}

bool
idem_process_ended(IdemSinkProcess *process, char **how)
{
	int			status;
	pid_t		rc;

	if (process->pid == 0)
	{
		*how = pstrdup("is not running");
		return true;
	}
	rc = waitpid(process->pid, &status, WNOHANG);
	if (rc == 0 || (rc < 0 && errno == EINTR))
		return false;
	*how = rc < 0 ? psprintf("could not be waited for: %m") :
		idem_process_describe_end(status);
	forget(process->pid);
	process->pid = 0;
	return true;
}
