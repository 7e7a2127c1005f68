/*-------------------------------------------------------------------------
 *
 * output.h
 *		Turns a program's output into lines that are fit for the server log.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/program/output.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_RELAY_PROGRAM_OUTPUT_H
#define IDEM_RELAY_PROGRAM_OUTPUT_H

#include "postgres.h"

#define IDEM_OUTPUT_LINE_LEN 512	/* the rest of a line is dropped */

/* Our end of the pipe that a program's descriptors 1 and 2 lead to. */
typedef struct IdemOutput
{
	int			fd;				/* -1: closed */
	uint64		nread;			/* bytes read since it was opened */
	int			len;			/* length of the unfinished line */
	char		line[IDEM_OUTPUT_LINE_LEN];
} IdemOutput;

#define IDEM_OUTPUT_NONE {.fd = -1}

/* Called with a non-empty line of printable ASCII. */
typedef void (*IdemOutputTake) (const char *line, void *arg);

/*
 * Make the pipe.  *theirs is the program's end; the caller closes it after the
 * program is started.  False with errno if the pipe cannot be made.
 */
extern bool idem_output_open(IdemOutput *output, int *theirs);

/*
 * Read available bytes, about "limit" at most, without waiting.  At the end of
 * file the output is closed.
 */
extern void idem_output_read(IdemOutput *output, size_t limit,
							 IdemOutputTake take, void *arg);

/*
 * Hand over the unfinished line and close the output.  Safe on a closed
 * output.
 */
extern void idem_output_end(IdemOutput *output, IdemOutputTake take, void *arg);

/* Close the output and drop the unfinished line. */
extern void idem_output_close(IdemOutput *output);

#endif							/* IDEM_RELAY_PROGRAM_OUTPUT_H */
