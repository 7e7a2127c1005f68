/*-------------------------------------------------------------------------
 *
 * fault_file.h
 *		The file that arms a fault point; for the server and the sink
 *		programs.
 *
 * A point is armed by a file of its name in FAULT_ARMED, with a line "ACTION
 * SKIP".  The point is passed SKIP times; then the action is taken.
 * FAULT_ARMED and FAULT_HIT are relative to the working directory, which is
 * the server's data directory for all processes of the server and for the sink
 * programs.
 *
 * INVARIANT
 *		An action is taken once: the process that counted down to it moves the
 *		file to FAULT_HIT before it acts, so neither another process nor a
 *		restart takes the action again.  The file in FAULT_HIT tells which
 *		process reached the point; a stalled process goes on when that file is
 *		gone.
 *
 * LOCKING
 *		flock on the file.  The holder waits for nothing.
 *
 * Nothing here allocates memory or raises an error: the callers are commit
 * callbacks, and code between fork and exec.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/shared/fault_file.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_FAULT_FILE_H
#define IDEM_FAULT_FILE_H

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#define FAULT_ARMED	"idempotency_fault/armed/"
#define FAULT_HIT	"idempotency_fault/hit/"
#define FAULT_PATH	128

typedef enum IdemFault
{
	IDEM_FAULT_NONE,
	IDEM_FAULT_ERROR,
	IDEM_FAULT_KILL,
	IDEM_FAULT_STALL,
	IDEM_FAULT_CANCEL,
	IDEM_FAULT_TERMINATE
} IdemFault;

/* The action of that name; IDEM_FAULT_NONE if there is none. */
static inline IdemFault
idem_fault_action(const char *word)
{
	static const char *const words[] = {"", "error", "kill", "stall", "cancel", "terminate"};

	for (int i = IDEM_FAULT_ERROR; i <= IDEM_FAULT_TERMINATE; i++)
		if (strcmp(word, words[i]) == 0)
			return (IdemFault) i;
	return IDEM_FAULT_NONE;
}

/* Replace the file's line.  A failure leaves the point unarmed. */
static inline void
idem_fault_write(int fd, const char *line, int len)
{
	ssize_t		rc = ftruncate(fd, 0) == 0 ? pwrite(fd, line, (size_t) len, 0) : 0;

	(void) rc;
}

/* Count down at an armed point.  Returns the action if it is due. */
static inline IdemFault
idem_fault_count_down(int fd, const char *armed, const char *hit)
{
	char		line[64] = "";
	char		word[16] = "";
	int			skip = 0;

	while (flock(fd, LOCK_EX) != 0 && errno == EINTR)
		;
	if (pread(fd, line, sizeof(line) - 1, 0) <= 0 ||
		sscanf(line, "%15s %d", word, &skip) != 2)
		return IDEM_FAULT_NONE;
	if (skip > 0)
	{
		idem_fault_write(fd, line, snprintf(line, sizeof(line), "%s %d\n", word, skip - 1));
		return IDEM_FAULT_NONE;
	}
	/* a process that waits for the lock then finds no action in the file */
	idem_fault_write(fd, line, snprintf(line, sizeof(line), "%ld\n", (long) getpid()));
	return rename(armed, hit) == 0 ? idem_fault_action(word) : IDEM_FAULT_NONE;
}

/*
 * Pass a point: returns the action to take, if the point is armed and the
 * action is due.
 */
static inline IdemFault
idem_fault_take(const char *name)
{
	char		armed[FAULT_PATH];
	char		hit[FAULT_PATH];
	IdemFault	fault;
	int			fd;

	snprintf(armed, sizeof(armed), FAULT_ARMED "%s", name);
	fd = open(armed, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return IDEM_FAULT_NONE;
	snprintf(hit, sizeof(hit), FAULT_HIT "%s", name);
	fault = idem_fault_count_down(fd, armed, hit);
	(void) close(fd);
	return fault;
}

/* Is the process that stalls at the point still held? */
static inline bool
idem_fault_is_held(const char *name)
{
	char		hit[FAULT_PATH];

	snprintf(hit, sizeof(hit), FAULT_HIT "%s", name);
	return access(hit, F_OK) == 0;
}

#endif							/* IDEM_FAULT_FILE_H */
