/*-------------------------------------------------------------------------
 *
 * look.c
 *		Runs a sink program in a backend, for a look at its target.
 *
 * relay_check is asked most where no worker runs: the library is not preloaded, the
 * database has no slot, the relay is paused.  So the backend starts the program itself,
 * as a worker does (process.c), and hands it one LOOK.  The program answers with FOUND
 * frames and ends.
 *
 *		start --LOOK--> frames --end of file--> reaped
 *		                   `--time is over, cancel, error, FATAL--> killed, reaped
 *
 * A backend has children of others, too: COPY ... PROGRAM in an open cursor, a
 * procedural language.  So nothing here waits for any child, and SIGCHLD keeps the
 * server's handler: the program leads a process group, and only that group is waited
 * for.  The backend is a "subreaper" meanwhile, so that orphans of the program become
 * its children, and are killed and reaped with the group.
 *
 * INVARIANT
 *		When idem_child_look returns, raises an error or ends the backend, the program
 *		is reaped, and its descriptors are closed, unless the kernel holds the process
 *		for more than EXIT_WAIT_MS (children.c).  The kernel kills the program if the
 *		backend dies (PDEATHSIG).
 *
 * LOCKING: none, and the caller holds no lock that others wait for.
 *
 * MEMORY: one buffer of two frames, in the current context.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/child/look.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <errno.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "miscadmin.h"
#include "pgstat.h"
#include "storage/fd.h"
#include "storage/ipc.h"
#include "storage/latch.h"

#include "relay/child/process.h"

#define POLL_MS			100		/* between looks at the program's output */
#define EXIT_WAIT_MS	1000
#define MAX_OUTPUT		(64 * 1024) /* read at once */
#define MAX_FRAMES		256		/* a program that sends more is broken */
#define DESCRIPTORS		2

typedef struct Looker
{
	volatile pid_t pid;			/* leader of its group; 0: none, or reaped */
	int			fd;				/* our end of the socket pair; -1: none */
	IdemOutput	output;
	char		said[IDEM_OUTPUT_LINE_LEN]; /* the first line of output */
	int			status;			/* as by waitpid, once pid is 0 */
	int			subreaper;		/* what this process was before */
	uint8	   *in;
	size_t		n;				/* bytes in "in" */
	int			nframes;
	const char *broken;			/* how the program broke the protocol, or NULL */
} Looker;

/* Keep the first line of the output. */
static void
keep_line(const char *line, void *arg)
{
	Looker	   *l = arg;

	if (l->said[0] == '\0')
		strlcpy(l->said, line, sizeof(l->said));
}

/*
 * Reap the program and its orphans for up to "ms"; kill: by SIGKILL.  True if none is
 * left.  A group whose leader was reaped has its number as long as it has members.
 */
static bool
reap(Looker *l, pid_t group, bool kill_them, int ms)
{
	for (; ms >= 0; ms--)
	{
		int			status;
		pid_t		pid = waitpid(-group, &status, WNOHANG);

		if (pid == l->pid && pid > 0)
		{
			l->status = status;
			l->pid = 0;
			kill_them = true;	/* what it started ends with it */
		}
		if (pid < 0 && errno == ECHILD)
			return true;
		if (pid != 0)
			continue;
		if (kill_them)
			(void) kill(-group, SIGKILL);
		pg_usleep(1000L);
	}
	return false;
}

/* The end of a look, however it comes about. */
static void
end_look(int code, Datum arg)
{
	Looker	   *l = (Looker *) DatumGetPointer(arg);
	pid_t		group = l->pid;

	if (l->fd >= 0)
		(void) close(l->fd);
	l->fd = -1;
	if (group > 0 && !reap(l, group, true, EXIT_WAIT_MS))
		ereport(LOG,
				(errmsg("sink program %d was killed and did not end within %d ms", (int) group, EXIT_WAIT_MS),
				 errdetail("The kernel holds it, for example for a file system that does not answer.")));
	l->pid = 0;
	idem_output_close(&l->output);
	(void) prctl(PR_SET_CHILD_SUBREAPER, l->subreaper);
	for (int i = 0; i < DESCRIPTORS; i++)
		ReleaseExternalFD();
}

/* Start the program.  NULL, or why it could not be started. */
static char *
start(Looker *l, const char *program)
{
	char	   *argv[2] = {unconstify(char *, program), NULL};
	char	   *envp[3] = {IDEM_PROCESS_ENVIRONMENT, NULL};
	IdemSpawn	spawn = {.argv = argv, .envp = envp, .in = -1, .out = -1, .err = -1, .own_group = true};
	char	   *problem = NULL;
	int			fds[2];

	if (!idem_process_find(program, &spawn, &problem))
		return problem;
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) != 0)
		return psprintf("could not create a socket pair: %m");
	l->fd = fds[0];
	spawn.in = fds[1];
	if (!idem_output_open(&l->output, &spawn.out))
		problem = psprintf("could not create a pipe: %m");
	else
	{
		spawn.err = spawn.out;
		if (!idem_process_spawn(&spawn, &l->pid))
			problem = psprintf("could not fork for sink program \"%s\": %m", program);
		(void) close(spawn.out);
	}
	(void) close(fds[1]);
	return problem;
}

/* Hand complete frames over. */
static void
take_frames(Looker *l, IdemLookTake take, void *arg)
{
	size_t		at = 0;

	while (l->broken == NULL)
	{
		IdemProtoFrame frame;
		size_t		size;
		IdemProtoStatus status = idem_proto_next(IDEM_PROTO_FROM_SINK, l->in + at, l->n - at, &frame, &size);

		if (status == IDEM_PROTO_NEED_MORE)
			break;
		if (status != IDEM_PROTO_OK)
			l->broken = idem_proto_status_text(status);
		else if (++l->nframes > MAX_FRAMES)
			l->broken = "too many frames";
		else
		{
			take(&frame, arg);
			at += size;
		}
	}
	memmove(l->in, l->in + at, l->n - at);
	l->n -= at;
}

/* Read what has come, without waiting.  False at the end of file, or of the protocol. */
static bool
read_frames(Looker *l, IdemLookTake take, void *arg)
{
	for (;;)
	{
		ssize_t		n = recv(l->fd, l->in + l->n, 2 * IDEM_PROTO_MAX_FRAME - l->n, MSG_DONTWAIT);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
			return true;
		if (n <= 0)
			return false;
		l->n += n;
		take_frames(l, take, arg);
		if (l->broken != NULL)
			return false;
	}
}

/* Send what is left of the LOOK, without waiting; returns how much is left. */
static size_t
send_rest(const Looker *l, const uint8 *look, size_t left)
{
	ssize_t		n;

	if (left == 0)
		return 0;
	n = send(l->fd, look, left, MSG_DONTWAIT | MSG_NOSIGNAL);
	return n > 0 ? left - n : left; /* an error shows as end of file */
}

/* Talk to the program until it hangs up; false if the time is over before. */
static bool
talk(Looker *l, const uint8 *look, size_t len, int timeout_ms, IdemLookTake take, void *arg)
{
	IdemClock	deadline = idem_clock_plus_ms(idem_clock(), timeout_ms);
	size_t		left = len;

	for (;;)
	{
		long		ms = idem_clock_ms_until(deadline);

		CHECK_FOR_INTERRUPTS();
		left = send_rest(l, look + len - left, left);
		idem_output_read(&l->output, MAX_OUTPUT, keep_line, l);
		if (!read_frames(l, take, arg))
			return true;
		if (ms == 0)
			return false;
		(void) WaitLatchOrSocket(MyLatch, WL_LATCH_SET | WL_SOCKET_READABLE | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH |
								 (left > 0 ? WL_SOCKET_WRITEABLE : 0),
								 l->fd, Min(ms, POLL_MS), PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
	}
}

/* Say how the program ended, which was reaped. */
static IdemLookEnd
judge_end(const Looker *l, const char *program, char **how)
{
	if (l->broken != NULL)
	{
		*how = psprintf("the sink program broke the protocol: %s", l->broken);
		return IDEM_LOOK_FAILED;
	}
	if (idem_process_was_missing(l->status, &l->output))
	{
		*how = idem_process_missing(program);
		return IDEM_LOOK_MISSING;
	}
	if (WIFEXITED(l->status) && WEXITSTATUS(l->status) == 0)
		return l->nframes > 0 ? IDEM_LOOK_DONE : IDEM_LOOK_UNKNOWN;

	/* the status of a program that gets a frame which it does not know */
	if (WIFEXITED(l->status) && WEXITSTATUS(l->status) == 2 && l->nframes == 0)
		return IDEM_LOOK_UNKNOWN;
	*how = psprintf("the sink program %s%s%s", idem_process_describe_end(l->status),
					l->said[0] != '\0' ? "; it prints: " : "", l->said);
	return IDEM_LOOK_FAILED;
}

IdemLookEnd
idem_child_look(const char *program, const uint8 *look, size_t len, int timeout_ms,
				IdemLookTake take, void *arg, char **how)
{
	Looker	   *l = palloc0(sizeof(Looker));
	bool		in_time = true;
	bool		ended = true;

	*how = NULL;
	l->fd = -1;
	l->output = (IdemOutput) IDEM_OUTPUT_NONE;
	l->in = palloc(2 * IDEM_PROTO_MAX_FRAME);
	for (int i = 0; i < DESCRIPTORS; i++)
		ReserveExternalFD();
	(void) prctl(PR_GET_CHILD_SUBREAPER, &l->subreaper);
	PG_ENSURE_ERROR_CLEANUP(end_look, PointerGetDatum(l));
	{
		(void) prctl(PR_SET_CHILD_SUBREAPER, 1);
		*how = start(l, program);
		if (*how == NULL)
		{
			pid_t		group = l->pid;

			in_time = talk(l, look, len, timeout_ms, take, arg);
			idem_output_read(&l->output, MAX_OUTPUT, keep_line, l);
			ended = reap(l, group, !in_time || l->broken != NULL, EXIT_WAIT_MS);
			idem_output_end(&l->output, keep_line, l);
		}
	}
	PG_END_ENSURE_ERROR_CLEANUP(end_look, PointerGetDatum(l));
	end_look(0, PointerGetDatum(l));
	if (*how == NULL && !in_time)
		*how = psprintf("the sink program did not answer within %d ms", timeout_ms);
	else if (*how == NULL && !ended)
		*how = pstrdup("the sink program closed its socket and did not end");
	return *how != NULL ? IDEM_LOOK_FAILED : judge_end(l, program, how);
}
