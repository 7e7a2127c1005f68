/*-------------------------------------------------------------------------
 *
 * process.h
 *		Starts, watches and ends sink programs.
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

typedef struct IdemSinkProcess
{
	pid_t		pid;			/* 0: none */
	int			fd;				/* our end of the socket pair; -1: none */
} IdemSinkProcess;

#define IDEM_SINK_PROCESS_NONE {0, -1}

/* The GUC idempotency.sink_directory. */
extern char *idem_sink_directory;

/* Kills what is left when this process ends, however it ends. */
extern void idem_process_init(void);

/*
 * Start a program of sink_directory.  False with *problem set (palloc'd) if
 * it cannot be started; that the program itself fails shows as end of file.
 */
extern bool idem_process_start(IdemSinkProcess *process, const char *program,
							   char **problem);

/* Close our end; SIGKILL and reap.  Safe on one that is not running. */
extern void idem_process_kill(IdemSinkProcess *process);

/*
 * Reap without waiting.  True if it has ended; *how is then palloc'd words
 * ("exited with status 2", "was terminated by signal 9").
 */
extern bool idem_process_ended(IdemSinkProcess *process, char **how);

#endif							/* IDEM_RELAY_PROCESS_H */
