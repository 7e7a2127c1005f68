/*-------------------------------------------------------------------------
 *
 * process.h
 *		Starts programs as children; watches and ends those that are sinks.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/process.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_RELAY_PROCESS_H
#define IDEM_RELAY_PROCESS_H

#include "postgres.h"

#include "relay/output.h"
#include "shared/args.h"
#include "shared/clock.h"

/* What the server log may still get of what a relay's programs print. */
typedef struct IdemPrinted
{
	char		relay[IDEM_MAX_NAME_BYTES + 1];
	IdemClock	paid_until;		/* each line adds to it, time takes it off */
	int64		dropped;		/* lines since the last that was logged */
} IdemPrinted;

typedef struct IdemSinkProcess
{
	pid_t		pid;			/* 0: none */
	int			fd;				/* our end of the socket pair; -1: none */
	IdemOutput	output;
	IdemPrinted printed;		/* outlives the process: the next one's, too */
} IdemSinkProcess;

#define IDEM_SINK_PROCESS_NONE {.fd = -1, .output = IDEM_OUTPUT_NONE}

/* A program to start: what it is given, and nothing else. */
typedef struct IdemSpawn
{
	const char *path;
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

/* Kills what is left when this process ends, however it ends. */
extern void idem_process_init(void);

/*
 * Start the program at that absolute path for that relay.  False with *problem
 * set (palloc'd) if it cannot be started; that the program itself fails shows as
 * end of file.
 */
extern bool idem_process_start(IdemSinkProcess *process, const char *relay,
							   const char *path, char **problem);

/* Log what the program has printed; bounded, and does not wait. */
extern void idem_process_log_output(IdemSinkProcess *process);

/* Close our ends; SIGKILL, reap and log.  Safe on one that is not running. */
extern void idem_process_kill(IdemSinkProcess *process);

/* Reap without waiting.  True if it has ended; *how then tells how, palloc'd. */
extern bool idem_process_ended(IdemSinkProcess *process, char **how);

#endif							/* IDEM_RELAY_PROCESS_H */
