/*-------------------------------------------------------------------------
 *
 * path.h
 *		Names the paths at which the file of a sink program may be.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/program/path.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_RELAY_PROGRAM_PATH_H
#define IDEM_RELAY_PROGRAM_PATH_H

#include "postgres.h"

/* The GUC idempotency.sink_directory. */
extern char *idem_sink_directory;

#define IDEM_MAX_PROGRAM_LEN 63

/*
 * Absolute paths at which the file may be; the child tries them in this order.
 */
typedef struct IdemProgramPaths
{
	char	   *beside;			/* beside the loaded library */
	char	   *other;			/* in idempotency.sink_directory; NULL if the
								 * setting is empty */
} IdemProgramPaths;

/*
 * The paths of the program "idempotency-sink-<name>", palloc'd.  False, with
 * *problem set (palloc'd), if the name is not that of a program.  The function
 * does not look whether the files exist: a directory may be on a file system
 * that does not answer, and only the program's own process may wait for that.
 */
extern bool idem_program_paths(const char *program, IdemProgramPaths *paths, char **problem);

/*
 * A message that the program is at neither path: what to install, and where
 * the program was looked for; palloc'd.
 */
extern char *idem_program_missing(const char *program);

#endif							/* IDEM_RELAY_PROGRAM_PATH_H */
