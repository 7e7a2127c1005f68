/*-------------------------------------------------------------------------
 *
 * program.h
 *		Finds the file of a sink program.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/program.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_RELAY_PROGRAM_H
#define IDEM_RELAY_PROGRAM_H

#include "postgres.h"

/* The GUC idempotency.sink_directory. */
extern char *idem_sink_directory;

/*
 * The path of the program "idempotency-sink-<name>", palloc'd.  NULL, with *problem
 * set (palloc'd), if it is not installed; the problem names the program, what to
 * install, and where the program was looked for.
 */
extern char *idem_program_path(const char *program, char **problem);

#endif							/* IDEM_RELAY_PROGRAM_H */
