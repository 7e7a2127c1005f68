/*-------------------------------------------------------------------------
 *
 * process.c
 *		Starts programs as children; logs the output of sink programs and ends
 *		them.
 *
 * A program talks to the world, so it gets nothing of the server's: no shared
 * memory, no descriptor but the three that its starter names, no environment
 * but the one that its starter gives.  A sink program gets one end of a socket
 * pair and one end of a pipe, and no arguments.  Text that the program prints
 * into the pipe, or sends in frames for the log, goes to the server log as
 * lines of its relay: as many as idem_report_may_log allows, with the number of
 * dropped lines.
 *
 * Between fork and exec only async-signal-safe calls are made.  Signals are
 * blocked across the fork, so that a signal handler of the server never runs in
 * the child.  A sink program stays in the worker's process group and session:
 * signals that the postmaster sends to the group at a crash reach it as well.
 * SIGINT is ignored, because pg_cancel_backend also signals the group.
 *
 * Nothing here waits for a program, not even for its start: the child looks for
 * the file, and a fork does not copy the tables of pages that map shared
 * memory.  (vfork would be quicker, but its parent waits for the child's exec.)
 * children.c keeps track of a program that was killed.
 *
 * A program is in the directory idempotency-sinks beside the library that this
 * process has loaded, or in idempotency.sink_directory.  No function here looks
 * at a file, because the file system may not answer.  The child that is to
 * become the program tries execve at both paths, in this order.
 *
 * The path beside the library comes first: the programs there are of the
 * library's release and speak the same version of the protocol.  An image
 * volume mounts library and programs below a path of its own, which no setting
 * names.
 *
 * A program's text may come from the system that the program talks to.  So the
 * program's descriptors do not lead to the server log itself, where one line
 * could look like a message of the server.  They lead to a pipe, and the reader
 * of the pipe decides what to do with each line.  A program waits in its write
 * while the pipe is full, until the reader's next turn.
 *
 * INVARIANTS
 *		A program is a file that the operating system's administrator installed,
 *		or that a superuser's setting points to.  A user who can put a file
 *		beside the library can replace the library as well.  Names are
 *		[a-z0-9_]+ behind a fixed prefix, so no name leads out of the directory.
 *
 *		A line of output is printable ASCII and shorter than
 *		IDEM_OUTPUT_LINE_LEN, although the bytes may be of any encoding, or of
 *		none.
 *
 * If the worker dies by SIGKILL, the kernel sends PDEATHSIG to the program.
 * The comparison of getppid covers a worker that died before PDEATHSIG was set.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/child/process.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/stringinfo.h"
#include "libpq/pqsignal.h"
#include "miscadmin.h"
#include "port.h"

#include "relay/child/process.h"
#include "relay/kind.h"
#include "relay/report.h"
#include "shared/fault.h"

#define PROGRAM_PREFIX	"idempotency-sink-"
#define SUBDIRECTORY	"idempotency-sinks"
#define NOT_EXECUTED 127		/* exit status that a shell uses for this */
#define MAX_PRINTED (64 * 1024) /* bytes read at once: the capacity of a pipe */

char	   *idem_sink_directory = NULL;

/* Paths */

/*
 * The programs' directory beside the library, at the path by which the server
 * loaded the library.  Symbolic links are not followed: a library that is a
 * link has its programs beside the link.
 */
static char *
directory_beside_library(void)
{
	Dl_info		info;
	char	   *path;

	/* Any address of the library will do. */
	if (dladdr((void *) &idem_sink_directory, &info) == 0)
		elog(ERROR, "could not find the path of the library");
	path = pstrdup(info.dli_fname);
	get_parent_directory(path);
	return psprintf("%s/" SUBDIRECTORY, path[0] != '\0' ? path : ".");
}

/* idempotency.sink_directory; NULL if it is empty. */
static const char *
other_directory(void)
{
	return idem_sink_directory != NULL && idem_sink_directory[0] != '\0' ? idem_sink_directory : NULL;
}

/*
 * A message that the program is at neither path: what to install, and where it
 * was looked for; palloc'd.  The package comes before the paths, since a long
 * message is cut off at its end.
 */
char *
idem_process_missing(const char *program)
{
	const char *name = program + strlen(PROGRAM_PREFIX);
	const IdemSinkKind *kind = idem_sink_kind(name);
	const char *other = other_directory();
	StringInfoData buf;

	initStringInfo(&buf);
	appendStringInfo(&buf, "sink program \"%s\" is not installed", program);
	if (kind != NULL && (kind->flags & IDEM_KIND_HAS_PROGRAM) != 0)
		appendStringInfo(&buf, " (package %s, or \"make install-sink-%s\")", program, name);
	appendStringInfo(&buf, "; looked in \"%s\"", directory_beside_library());
	if (other != NULL)
		appendStringInfo(&buf, " and in idempotency.sink_directory, \"%s\"", other);
	return buf.data;
}

char *
idem_process_missing_remedy(const char *program)
{
	return psprintf("Install the package %s, or put the program into idempotency-sinks beside the library, or into the directory of idempotency.sink_directory.", program);
}

/* Output */

bool
idem_output_open(IdemOutput *output, int *theirs)
{
	int			fds[2];

	if (pipe2(fds, O_CLOEXEC) != 0)
		return false;

	/*
	 * O_NONBLOCK for our end only: a program might take a write that cannot
	 * be done at once for an error.
	 */
	(void) fcntl(fds[0], F_SETFL, O_NONBLOCK);
	output->fd = fds[0];
	output->nread = 0;
	output->len = 0;
	*theirs = fds[1];
	return true;
}

void
idem_output_close(IdemOutput *output)
{
	if (output->fd >= 0)
		(void) close(output->fd);
	output->fd = -1;
	output->len = 0;
}

/* End a line and hand it over; an empty line is dropped. */
static void
end_line(IdemOutput *output, IdemOutputTake take, void *arg)
{
	if (output->len == 0)
		return;
	output->line[output->len] = '\0';
	output->len = 0;
	take(output->line, arg);
}

void
idem_output_end(IdemOutput *output, IdemOutputTake take, void *arg)
{
	end_line(output, take, arg);
	idem_output_close(output);
}

/*
 * Cut bytes into lines.  The end of a long line is dropped; an unprintable
 * byte becomes "?".
 */
static void
add_bytes(IdemOutput *output, const char *data, size_t n, IdemOutputTake take, void *arg)
{
	for (size_t i = 0; i < n; i++)
	{
		if (data[i] == '\n' || data[i] == '\r')
			end_line(output, take, arg);
		else if (output->len < IDEM_OUTPUT_LINE_LEN - 1)
			output->line[output->len++] = data[i] >= ' ' && data[i] <= '~' ? data[i] : '?';
	}
}

void
idem_output_read(IdemOutput *output, size_t limit, IdemOutputTake take, void *arg)
{
	char		buf[4096];
	size_t		total = 0;

	while (output->fd >= 0 && total < limit)
	{
		ssize_t		n = read(output->fd, buf, sizeof(buf));

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
			return;
		if (n <= 0)
		{
			idem_output_end(output, take, arg);
			return;
		}
		output->nread += n;
		total += n;
		add_bytes(output, buf, n, take, arg);
	}
}

/* Programs */

/*
 * Close all descriptors above standard error: a child inherits descriptors of
 * files in the data directory otherwise.  Where close_range is missing, close
 * up to max_fd, the limit that also bounds the server's own descriptors.
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

/*
 * Let the kernel kill the program before the database when memory is short.
 */
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

/* The child between fork and exec: async-signal-safe calls only. */
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

	/*
	 * The program adopts its own orphans; children.c kills those that become
	 * the worker's.
	 */
	if (!spawn->own_group)
		(void) prctl(PR_SET_CHILD_SUBREAPER, 1);
	if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent)
		_exit(126);
	raise_oom_score();
	sigemptyset(&none);
	(void) sigprocmask(SIG_SETMASK, &none, NULL);
	IDEM_FAULT_POINT_CHILD("sink-exec");
	(void) execve(spawn->path, spawn->argv, spawn->envp);
	if (spawn->other_path != NULL)
		(void) execve(spawn->other_path, spawn->argv, spawn->envp);
	_exit(NOT_EXECUTED);
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
		/*
		 * Parent and child both set the group, since either may run first,
		 * and a kill must find the group.
		 */
		if (spawn->own_group)
			(void) setpgid(child, child);
		*pid = child;
	}
	(void) sigprocmask(SIG_SETMASK, &saved, NULL);
	errno = save_errno;
	return child > 0;
}

/* Log the number of dropped lines, if the allowance has a line for it. */
static void
log_dropped(IdemPrinted *printed)
{
	if (printed->dropped == 0 || !idem_report_may_log(&printed->paid_until))
		return;
	ereport(LOG,
			(errmsg("relay \"%s\": " INT64_FORMAT " lines of its sink program were not logged",
					printed->relay, printed->dropped)));
	printed->dropped = 0;
}

bool
idem_process_may_log(IdemPrinted *printed)
{
	log_dropped(printed);
	if (idem_report_may_log(&printed->paid_until))
		return true;
	printed->dropped++;
	return false;
}

/* Log a line that the program printed, within the relay's allowance. */
static void
log_line(const char *line, void *arg)
{
	IdemPrinted *printed = arg;

	if (idem_process_may_log(printed))
		ereport(LOG,
				(errmsg("relay \"%s\": sink program prints: %s", printed->relay, line)));
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
idem_process_find(const char *program, IdemSpawn *spawn, char **problem)
{
	const char *other = other_directory();
	const char *name = program + strlen(PROGRAM_PREFIX);

	/*
	 * The name may be a user's option, and must not lead out of the
	 * directory.
	 */
	if (strlen(program) > IDEM_MAX_PROGRAM_LEN || *name == '\0' ||
		strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_") != strlen(name))
	{
		*problem = psprintf("\"%s\" is not a name of a sink program", program);
		return false;
	}
	spawn->path = psprintf("%s/%s", directory_beside_library(), program);
	spawn->other_path = other == NULL ? NULL : psprintf("%s/%s", other, program);
	return true;
}

/* The status of a child whose exec failed, which prints nothing */
bool
idem_process_was_missing(int status, const IdemOutput *output)
{
	return WIFEXITED(status) && WEXITSTATUS(status) == NOT_EXECUTED && output->nread == 0;
}

bool
idem_process_start(IdemSinkProcess *process, const char *relay, const char *program,
				   char **problem)
{
	char	   *argv[2] = {unconstify(char *, program), NULL};
	char	   *envp[3] = {IDEM_PROCESS_ENVIRONMENT, NULL};
	IdemSpawn	spawn = {.argv = argv, .envp = envp, .in = -1, .out = -1, .err = -1};
	int			fds[2];

	Assert(process->pid == 0 && process->fd < 0 && process->output.fd < 0);
	if (!idem_process_find(program, &spawn, problem))
		return false;
	process->missing = false;
	strlcpy(process->printed.relay, relay, sizeof(process->printed.relay));
	strlcpy(process->program, program, sizeof(process->program));
	idem_children_make_room();

	/* The worker's end must not block, since a program may hang. */
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) != 0)
	{
		*problem = psprintf("could not create a socket pair: %m");
		return false;
	}

	IDEM_FAULT_POINT_NO_ERROR("sink-fork");
	spawn.in = fds[1];
	if (!spawn_sink(process, &spawn, problem))
	{
		(void) close(fds[1]);
		(void) close(fds[0]);
		return false;
	}
	process->child = idem_children_add(process->pid, relay);
	(void) close(fds[1]);
	process->fd = fds[0];
	IDEM_FAULT_POINT("sink-forked");
	return true;
}

void
idem_process_hang_up(IdemSinkProcess *process)
{
	if (process->fd >= 0)
		(void) close(process->fd);
	process->fd = -1;
}

void
idem_process_kill(IdemSinkProcess *process)
{
	idem_process_hang_up(process);
	if (process->child != NULL)
	{
		IDEM_FAULT_POINT_NO_ERROR("sink-reap");
		idem_child_kill(process->child);
	}
	process->child = NULL;
	process->pid = 0;
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

	if (process->child == NULL)
	{
		*how = pstrdup("the sink program is not running");
		return true;
	}
	if (!idem_child_ended(process->child, &status))
		return false;
	process->child = NULL;
	process->pid = 0;
	idem_process_log_output(process);

	process->missing = idem_process_was_missing(status, &process->output);
	*how = process->missing ? idem_process_missing(process->program) :
		psprintf("the sink program %s", idem_process_describe_end(status));
	return true;
}
