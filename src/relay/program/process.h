/*-------------------------------------------------------------------------
 *
 * process.h
 *		Starts programs as children; listens to and ends those that are sinks.
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

/* What the server log may still get of what a relay's programs print and say. */
typedef struct IdemPrinted
{
	char		relay[IDEM_MAX_NAME_BYTES + 1];
	IdemClock	paid_until;		/* each line adds to it, time takes it off */
	int64		dropped;		/* lines since the last that was logged */
} IdemPrinted;

typedef struct IdemSinkProcess
{
	pid_t		pid;			/* 0: none */
	IdemChild  *child;			/* the same; NULL: none */
	int			fd;				/* our end of the socket pair; -1: none */
	char		program[IDEM_MAX_PROGRAM_LEN + 1];
	bool		missing;		/* it ended since there was no file to execute */
	IdemOutput	output;
	IdemPrinted printed;		/* outlives the process: the next one's, too */
} IdemSinkProcess;

#define IDEM_SINK_PROCESS_NONE {.fd = -1, .output = IDEM_OUTPUT_NONE}

/* A program to start: what it is given, and nothing else. */
typedef struct IdemSpawn
{
	const char *path;
	const char *other_path;		/* if that cannot be executed; or NULL */
	char	  **argv;			/* NULL-terminated, and so is envp */
	char	  **envp;
	int			in;				/* descriptors that become its 0, 1 and 2 */
	int			out;
	int			err;
	bool		own_group;		/* lead a process group, to be killed as one */
} IdemSpawn;

/* What every program's environment begins with. */
#define IDEM_PROCESS_ENVIRONMENT "PATH=/usr/bin:/bin", "LC_ALL=C"

/*
 * Start it.  *pid is set before any signal can be handled.  False with errno if
 * the fork failed; that the program cannot be executed shows as its exit with
 * status 127.  To reap it, on the way out as well, is the caller's.
 */
extern bool idem_process_spawn(const IdemSpawn *spawn, volatile pid_t *pid);

/* "exited with status 2", "was terminated by signal 9"; palloc'd. */
extern char *idem_process_describe_end(int status);

/*
 * Start the sink program of that name for that relay.  False with *problem set
 * (palloc'd) if it cannot be started; that the program is missing or fails shows as
 * end of file.
 */
extern bool idem_process_start(IdemSinkProcess *process, const char *relay,
							   const char *program, char **problem);

/* Log what the program has printed; bounded, and does not wait. */
extern void idem_process_log_output(IdemSinkProcess *process);

/* May the server log have a line more of that relay's programs?  Counts it. */
extern bool idem_process_may_log(IdemPrinted *printed);

/* Close our end of the socket pair, and nothing else. */
extern void idem_process_hang_up(IdemSinkProcess *process);

/*
 * Close our ends; SIGKILL, and log what was printed.  Does not wait for its death:
 * idem_children_dying.  Safe on one that is not running.
 */
extern void idem_process_kill(IdemSinkProcess *process);

/*
 * Does not wait.  True if it has ended; *how then tells how, a sentence, palloc'd.
 */
extern bool idem_process_ended(IdemSinkProcess *process, char **how);

#endif							/* IDEM_RELAY_PROGRAM_PROCESS_H */
