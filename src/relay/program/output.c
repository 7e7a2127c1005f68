/*-------------------------------------------------------------------------
 *
 * output.c
 *		Turns a program's output into lines that are fit for the server log.
 *
 * A program's text may come from the system that the program talks to.  So the
 * program's descriptors do not lead to the server log itself, where one line
 * could look like a message of the server.  They lead to a pipe, and the reader
 * of the pipe decides what to do with each line.
 *
 * INVARIANT
 *		A line is printable ASCII and shorter than IDEM_OUTPUT_LINE_LEN,
 *		although the bytes may be of any encoding, or of none.
 *
 * Nothing here waits.  A program waits in its write while the pipe is full,
 * until the reader's next turn.
 *
 * LOCKING: none.
 *
 * MEMORY: one line, in the caller's structure.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/program/output.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "relay/program/output.h"

bool
idem_output_open(IdemOutput *output, int *theirs)
{
	int			fds[2];

	if (pipe2(fds, O_CLOEXEC) != 0)
		return false;

	/*
	 * O_NONBLOCK for our end only: a program might take a write that cannot
	 * be done at once for an error.
	 */
	(void) fcntl(fds[0], F_SETFL, O_NONBLOCK);
	output->fd = fds[0];
	output->nread = 0;
	output->len = 0;
	*theirs = fds[1];
	return true;
}

void
idem_output_close(IdemOutput *output)
{
	if (output->fd >= 0)
		(void) close(output->fd);
	output->fd = -1;
	output->len = 0;
}

/* End a line and hand it over; an empty line is dropped. */
static void
end_line(IdemOutput *output, IdemOutputTake take, void *arg)
{
	if (output->len == 0)
		return;
	output->line[output->len] = '\0';
	output->len = 0;
	take(output->line, arg);
}

void
idem_output_end(IdemOutput *output, IdemOutputTake take, void *arg)
{
	end_line(output, take, arg);
	idem_output_close(output);
}

/*
 * Cut bytes into lines.  The end of a long line is dropped; an unprintable
 * byte becomes "?".
 */
static void
add_bytes(IdemOutput *output, const char *data, size_t n, IdemOutputTake take, void *arg)
{
	for (size_t i = 0; i < n; i++)
	{
		if (data[i] == '\n' || data[i] == '\r')
			end_line(output, take, arg);
		else if (output->len < IDEM_OUTPUT_LINE_LEN - 1)
			output->line[output->len++] = data[i] >= ' ' && data[i] <= '~' ? data[i] : '?';
	}
}

void
idem_output_read(IdemOutput *output, size_t limit, IdemOutputTake take, void *arg)
{
	char		buf[4096];
	size_t		total = 0;

	while (output->fd >= 0 && total < limit)
	{
		ssize_t		n = read(output->fd, buf, sizeof(buf));

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
			return;
		if (n <= 0)
		{
			idem_output_end(output, take, arg);
			return;
		}
		output->nread += n;
		total += n;
		add_bytes(output, buf, n, take, arg);
	}
}
