/*-------------------------------------------------------------------------
 *
 * output.h
 *		What a program prints, as lines that are fit for the server log.
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
	uint64		nread;			/* bytes, since it was opened */
	int			len;			/* of the line that has not ended yet */
	char		line[IDEM_OUTPUT_LINE_LEN];
} IdemOutput;

#define IDEM_OUTPUT_NONE {.fd = -1}

/* Called with a line of printable ASCII that is not empty. */
typedef void (*IdemOutputTake) (const char *line, void *arg);

/*
 * Make the pipe; *theirs is the program's end, for the caller to close once the
 * program is started.  False with errno if there is no pipe.
 */
extern bool idem_output_open(IdemOutput *output, int *theirs);

/*
 * Take in what is there, without waiting and about "limit" bytes at most.  At the
 * end of file the output is closed.
 */
extern void idem_output_read(IdemOutput *output, size_t limit,
							 IdemOutputTake take, void *arg);

/* Close it; the line that has not ended is handed over.  Safe on a closed one. */
extern void idem_output_end(IdemOutput *output, IdemOutputTake take, void *arg);

/* Close it and forget the line. */
extern void idem_output_close(IdemOutput *output);

#endif							/* IDEM_RELAY_PROGRAM_OUTPUT_H */
