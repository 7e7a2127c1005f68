/*-------------------------------------------------------------------------
 *
 * witness_ask.c
 *		Asks the publish witness whether this server may publish; runs in the
 *		launcher.
 *
 *		IDLE --time to ask--> ASKING --it ended, timeout--> ENDING --reaped--> IDLE
 *
 * Exit status 0 is a yes.  It is valid for interval and timeout from the moment
 * the command was started, since the facts that the command looked at may have
 * changed after that moment.  Exit status 1 is a no, from the command's end on.
 * Every other end, a signal, and a timeout are no answer: the last yes stays
 * valid until it runs out by itself, since a witness that restarts must not
 * stop the relays.
 *
 * At most one command runs at a time.  It leads a process group, which is
 * killed when the command has ended or the launcher ends.  The launcher adopts
 * and reaps the orphans of the command: where the postmaster is process 1, an
 * orphan that dies of a signal would make the postmaster restart the cluster.
 *
 * A crash of the launcher leaves nothing: the kernel kills the command by
 * PDEATHSIG, and the answer runs out.
 *
 * LOCKING: none.
 *
 * MEMORY: a context that is reset before each question.  The last seen command
 * is in TopMemoryContext.  One line of the output is kept.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/worker/witness_ask.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "access/xlog.h"
#include "libpq/pqsignal.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "utils/guc.h"
#include "utils/memutils.h"

#include "relay/child/process.h"
#include "relay/config.h"
#include "relay/witness.h"
#include "relay/worker/workers.h"
#include "shared/error.h"
#include "shared/fault.h"

#define LINE_LEN 160			/* length of the kept line, for the log and
								 * last_error */
#define MAX_OUTPUT (64 * 1024)	/* a command that prints more is killed */
#define RETRY_MS 500			/* after no answer, while a yes is valid */
#define RELOG_MS 60000			/* between log lines that differ in words only */
#define EXIT_WAIT_MS 1000

typedef enum WitnessPhase
{
	WITNESS_IDLE,
	WITNESS_ASKING,				/* the command runs */
	WITNESS_ENDING				/* judged and killed, not yet reaped */
} WitnessPhase;

typedef enum WitnessAnswer
{
	WITNESS_YES,
	WITNESS_NO,
	WITNESS_NONE
} WitnessAnswer;

static WitnessPhase phase = WITNESS_IDLE;
static volatile pid_t child = 0;	/* the command, leader of its group; 0:
									 * none, or reaped */
static IdemOutput output = IDEM_OUTPUT_NONE;
static char line[LINE_LEN];		/* the first line of output that is not empty */
static IdemClock asked_at = 0;
static IdemClock next_ask = 0;
static char *command = NULL;	/* the setting, as last seen */
static MemoryContext ask_cxt = NULL;

/* The last answer in the server log. */
static bool logged = false;
static WitnessAnswer logged_answer = WITNESS_YES;
static char logged_text[IDEM_ERROR_LEN];
static IdemClock logged_at = 0;

/*
 * Kill the command's whole group.  "child" is not reaped, so no other group
 * has its number.
 */
static void
kill_group(void)
{
	if (child == 0)
		return;
	(void) kill(-child, SIGKILL);
	(void) kill(child, SIGKILL);
}

/* Wake the launcher, which reaps in its turn. */
static void
on_sigchld(SIGNAL_ARGS)
{
	int			save_errno = errno;

	SetLatch(MyLatch);
	errno = save_errno;
}

/*
 * SIGQUIT: an immediate shutdown, or a crash of another process.  No callback
 * runs, so kill the command here.
 */
static void
on_sigquit(SIGNAL_ARGS)
{
	kill_group();
	_exit(2);
}

/*
 * Reap all children that have ended, orphans included.  The command is looked
 * at before it is reaped: until then no other process or group can have its
 * number.  True, with its *status, if the command has ended.
 */
static bool
reap(int *status)
{
	bool		found = false;
	siginfo_t	info;

	for (;;)
	{
		int			one;
		bool		is_leader;

		info.si_pid = 0;
		if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0)
			return found;
		is_leader = info.si_pid == child;
		if (is_leader)
		{
			kill_group();
			child = 0;
		}
		if (waitpid(info.si_pid, &one, 0) != info.si_pid)
			return found;
		if (is_leader)
		{
			*status = one;
			found = true;
		}
	}
}

/*
 * As the launcher ends: kill the command and reap.  The wait is short, since a
 * shutdown waits for the launcher.
 */
static void
kill_and_reap(int code, Datum arg)
{
	kill_group();
	child = 0;
	for (int ms = 0; ms < EXIT_WAIT_MS; ms++)
	{
		pid_t		pid = waitpid(-1, NULL, WNOHANG);

		if (pid < 0 && errno == ECHILD)
			return;
		if (pid <= 0)
			pg_usleep(1000L);
	}
}

void
idem_witness_ask_init(void)
{
	pqsignal(SIGCHLD, on_sigchld);
	pqsignal(SIGQUIT, on_sigquit);
	(void) prctl(PR_SET_CHILD_SUBREAPER, 1);
	before_shmem_exit(kill_and_reap, (Datum) 0);
	ask_cxt = AllocSetContextCreate(TopMemoryContext, "publish witness",
									ALLOCSET_SMALL_SIZES);
}

/* Keep the first line of the output: it gives the reason. */
static void
keep_line(const char *said, void *arg)
{
	if (line[0] == '\0')
		strlcpy(line, said, sizeof(line));
}

/* Read available output.  False if the command has printed too much. */
static bool
read_output(void)
{
	if (output.nread <= MAX_OUTPUT)
		idem_output_read(&output, MAX_OUTPUT + 1 - output.nread, keep_line, NULL);
	return output.nread <= MAX_OUTPUT;
}

/*
 * Log an answer if it is new.  The same answer in other words is logged again
 * only after a while.
 */
static void
log_answer(WitnessAnswer answer, const char *said)
{
	IdemClock	now = idem_witness_clock();
	bool		same = logged && answer == logged_answer;

	if (same && (strcmp(said, logged_text) == 0 ||
				 now < idem_clock_plus_ms(logged_at, RELOG_MS)))
		return;
	logged = true;
	logged_answer = answer;
	logged_at = now;
	strlcpy(logged_text, said, sizeof(logged_text));
	if (answer == WITNESS_YES)
		ereport(LOG,
				(errmsg("the publish witness says yes"),
				 said[0] ? errdetail_internal("%s", said) : 0));
	else
		ereport(LOG,
				(errcode(ERRCODE_IDEM_RELAY_UNWITNESSED),
				 errmsg("%s", said)));
}

/*
 * When a yes runs out.  It counts from the command's start: the facts that the
 * command saw may have changed since.
 */
static IdemClock
valid_until(void)
{
	return idem_clock_plus_ms(asked_at, (int64) idem_publish_witness_interval_ms +
							  idem_publish_witness_timeout_ms);
}

/*
 * Store the answer, and set the time of the next question.  "why" says how the
 * command ended if there is no answer.
 */
static void
take_answer(WitnessAnswer answer, const char *why)
{
	const char *colon = line[0] != '\0' ? ": " : "";
	char	   *said;

	next_ask = idem_clock_plus_ms(asked_at, idem_publish_witness_interval_ms);
	if (answer == WITNESS_YES)
	{
		said = line;
		idem_witness_allow(valid_until());
	}
	else if (answer == WITNESS_NO)
	{
		said = psprintf("the publish witness says no%s%s", colon, line);
		idem_witness_forbid(said);
	}
	else
	{
		said = psprintf("the publish witness gives no answer: it %s%s%s", why, colon, line);
		idem_witness_note(said);
		if (idem_witness_allows())
			next_ask = Min(next_ask, idem_clock_plus_ms(idem_witness_clock(), RETRY_MS));
	}
	IDEM_FAULT_POINT("witness-answered");
	log_answer(answer, said);
}

/*
 * The command's environment: facts that a witness may want to know, and
 * nothing else of the server's.
 */
static char **
environment(void)
{
	char	   *values[] = {IDEM_PROCESS_ENVIRONMENT,
		psprintf("PGDATA=%s", DataDir),
		psprintf("IDEMPOTENCY_PUBLISH_AS=%s", idem_publish_as ? idem_publish_as : ""),
		psprintf("IDEMPOTENCY_SYSTEM_IDENTIFIER=" UINT64_FORMAT, GetSystemIdentifier()),
		psprintf("IDEMPOTENCY_CLUSTER_NAME=%s", cluster_name ? cluster_name : ""),
	NULL};
	char	  **env = palloc(sizeof(values));

	memcpy(env, values, sizeof(values));
	return env;
}

/*
 * Start the command with its output in our pipe.  Returns NULL, or the step
 * that failed.
 */
static const char *
start(char **words)
{
	IdemSpawn	spawn = {.path = words[0], .argv = words, .envp = environment(),
	.in = -1, .out = -1, .err = -1, .own_group = true};
	const char *failed = NULL;

	spawn.in = open("/dev/null", O_RDONLY | O_CLOEXEC);
	if (spawn.in < 0)
		return "open /dev/null";
	if (!idem_output_open(&output, &spawn.out))
	{
		(void) close(spawn.in);
		return "create a pipe";
	}
	spawn.err = spawn.out;
	if (!idem_process_spawn(&spawn, &child))
	{
		idem_output_close(&output);
		failed = "fork";
	}
	(void) close(spawn.out);
	(void) close(spawn.in);
	return failed;
}

/* Start the command; the answer is taken in a later turn. */
static void
ask(void)
{
	const char *problem = NULL;
	const char *failed;
	char	  **words;

	MemoryContextReset(ask_cxt);
	asked_at = idem_witness_clock();
	line[0] = '\0';
	words = idem_witness_split(command, &problem);
	Assert(words != NULL && words[0] != NULL);	/* the check hook split it */
	failed = start(words);
	if (failed != NULL)
	{
		take_answer(WITNESS_NONE, psprintf("could not be started, \"%s\" failed: %m", failed));
		return;
	}
	phase = WITNESS_ASKING;
	IDEM_FAULT_POINT("witness-started");
}

/* The command ended with this status: find out its answer. */
static void
judge(int status)
{
	WitnessAnswer answer = WITNESS_NONE;
	const char *why = "wrote more than 64 kB";

	bool		too_much = !read_output();

	idem_output_end(&output, keep_line, NULL);
	if (!too_much)
	{
		why = idem_process_describe_end(status);
		if (WIFEXITED(status) && WEXITSTATUS(status) <= 1)
			answer = WEXITSTATUS(status) == 0 ? WITNESS_YES : WITNESS_NO;
		else if (WIFEXITED(status) && WEXITSTATUS(status) == 127 && line[0] == '\0')
			why = psprintf("%s, as a program does that cannot be executed", why);
	}
	phase = WITNESS_IDLE;
	take_answer(answer, why);
}

/*
 * Kill a command that takes too long or prints too much; it gave no answer.
 */
static void
give_up(const char *why)
{
	kill_group();
	idem_output_close(&output);
	phase = WITNESS_ENDING;
	take_answer(WITNESS_NONE, why);
}

/*
 * Notice a change of the setting.  It voids the answer of the former command.
 * A new launcher leaves valid a yes that the former launcher got, until the
 * yes runs out.
 */
static void
follow_setting(void)
{
	const char *now = idem_publish_witness ? idem_publish_witness : "";

	if (command != NULL && strcmp(command, now) == 0)
		return;
	/* It has not answered yet. */
	if (command == NULL)
		idem_witness_note("");
	else
	{
		idem_witness_forbid("");
		pfree(command);
	}
	command = MemoryContextStrdup(TopMemoryContext, now);
	if (phase == WITNESS_ASKING)
	{
		kill_group();
		idem_output_close(&output);
		phase = WITNESS_ENDING;
	}
	logged = false;
	next_ask = 0;
}

void
idem_witness_ask_serve(void)
{
	MemoryContext old = MemoryContextSwitchTo(ask_cxt);
	int			status;
	bool		ended;

	follow_setting();
	ended = reap(&status);
	if (ended && phase == WITNESS_ASKING)
		judge(status);
	else if (ended)
		phase = WITNESS_IDLE;
	else if (phase == WITNESS_ASKING && !read_output())
		give_up("wrote more than 64 kB");
	else if (phase == WITNESS_ASKING &&
			 idem_witness_clock() >= idem_clock_plus_ms(asked_at, idem_publish_witness_timeout_ms))
		give_up(psprintf("did not end within %d ms", idem_publish_witness_timeout_ms));
	if (phase == WITNESS_IDLE && idem_witness_ms_left() >= 0 && idem_witness_clock() >= next_ask)
		ask();
	MemoryContextSwitchTo(old);
}

long
idem_witness_ask_wait_ms(void)
{
	IdemClock	then = next_ask;
	IdemClock	left;

	if (phase == WITNESS_ENDING || idem_witness_ms_left() < 0)
		return -1;				/* SIGCHLD wakes us; a reload as well */
	if (phase == WITNESS_ASKING)
		then = idem_clock_plus_ms(asked_at, idem_publish_witness_timeout_ms);
	left = then - idem_witness_clock();
	return left <= 0 ? 0 : (long) Min((left + 999) / 1000, INT_MAX);
}

pgsocket
idem_witness_ask_fd(void)
{
	return output.fd;
}
