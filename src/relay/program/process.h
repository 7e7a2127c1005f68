/*-------------------------------------------------------------------------
 *
 * process.h
 *		Starts programs as children; logs the output of sink programs and ends
 *		them.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/program/process.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_RELAY_PROGRAM_PROCESS_H
#define IDEM_RELAY_PROGRAM_PROCESS_H

#include "postgres.h"

#include "relay/program/children.h"
#include "relay/program/output.h"
#include "relay/program/path.h"
#include "shared/args.h"
#include "shared/clock.h"

/* How many lines of a relay's programs the server log may still get. */
typedef struct IdemPrinted
{
	char		relay[IDEM_MAX_NAME_BYTES + 1];
	IdemClock	paid_until;		/* each logged line adds LOG_INTERVAL_MS; a
								 * line may be logged unless this is too far
								 * ahead of the clock */
	int64		dropped;		/* lines dropped since that number was logged */
} IdemPrinted;

typedef struct IdemSinkProcess
{
	pid_t		pid;			/* 0: none */
	IdemChild  *child;			/* the same program; NULL: none */
	int			fd;				/* our end of the socket pair; -1: none */
	char		program[IDEM_MAX_PROGRAM_LEN + 1];
	bool		missing;		/* it ended because there was no file to
								 * execute */
	IdemOutput	output;
	IdemPrinted printed;		/* outlives the process: also for the relay's
								 * next program */
} IdemSinkProcess;

#define IDEM_SINK_PROCESS_NONE {.fd = -1, .output = IDEM_OUTPUT_NONE}

/* A program to start, and all that it is given. */
typedef struct IdemSpawn
{
	const char *path;
	const char *other_path;		/* tried if "path" cannot be executed; or NULL */
	char	  **argv;			/* NULL-terminated, and so is envp */
	char	  **envp;
	int			in;				/* descriptors that become the program's 0, 1
								 * and 2 */
	int			out;
	int			err;
	bool		own_group;		/* the program leads a process group, to be
								 * killed as one */
} IdemSpawn;

/* The beginning of every program's environment. */
#define IDEM_PROCESS_ENVIRONMENT "PATH=/usr/bin:/bin", "LC_ALL=C"

/*
 * Start a program.  *pid is set before any signal can be handled.  False with
 * errno if the fork failed.  A program that cannot be executed exits with
 * status 127.  The caller reaps the program, also when the caller itself ends.
 */
extern bool idem_process_spawn(const IdemSpawn *spawn, volatile pid_t *pid);

/* "exited with status 2", "was terminated by signal 9"; palloc'd. */
extern char *idem_process_describe_end(int status);

/*
 * Start the sink program of that name for that relay.  False with *problem set
 * (palloc'd) if it cannot be started.  A program that is missing or fails
 * shows as end of file.
 */
extern bool idem_process_start(IdemSinkProcess *process, const char *relay,
							   const char *program, char **problem);

/* Log what the program has printed; bounded, and does not wait. */
extern void idem_process_log_output(IdemSinkProcess *process);

/* May one more line of that relay's programs be logged?  Counts the line. */
extern bool idem_process_may_log(IdemPrinted *printed);

/* Close our end of the socket pair only. */
extern void idem_process_hang_up(IdemSinkProcess *process);

/*
 * Close our end of the socket pair, kill the program by SIGKILL, log the rest
 * of its output and close the pipe.  Does not wait for the program's death:
 * see idem_children_dying.  Safe if no program runs.
 */
extern void idem_process_kill(IdemSinkProcess *process);

/*
 * Has the program ended?  Then *how tells how, as a sentence, palloc'd.  Does
 * not wait.
 */
extern bool idem_process_ended(IdemSinkProcess *process, char **how);

#endif							/* IDEM_RELAY_PROGRAM_PROCESS_H */
