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

/* Where the file may be, absolute: the child tries them in this order. */
typedef struct IdemProgramPaths
{
	char	   *beside;			/* beside the loaded library */
	char	   *other;			/* in idempotency.sink_directory; NULL if that
								 * is not set */
} IdemProgramPaths;

/*
 * The paths of the program "idempotency-sink-<name>", palloc'd.  False, with
 * *problem set (palloc'd), if that is no name of a program.  Nobody looks whether
 * the files are there: a directory may be on a file system that does not answer,
 * and only the program's own process may wait for that.
 */
extern bool idem_program_paths(const char *program, IdemProgramPaths *paths, char **problem);

/* That it is at neither place: what to install, and where it was looked for; palloc'd. */
extern char *idem_program_missing(const char *program);

#endif							/* IDEM_RELAY_PROGRAM_PATH_H */
