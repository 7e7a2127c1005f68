/*-------------------------------------------------------------------------
 *
 * fault_file.h
 *		The file by which a fault point is armed; for server and programs.
 *
 * A point is armed by a file of its name in FAULT_ARMED, with a line
 * "ACTION SKIP": how often it is to be passed before the action is taken.
 * Both names are relative to the working directory, which is the data
 * directory of the server for all its processes and for the sink programs.
 *
 * INVARIANT
 *		An action is taken once: the process that counted down to it moves the
 *		file to FAULT_HIT before it acts, so neither another process nor a
 *		restart takes it again.  The file there tells that the point was
 *		reached, and by which process; a stalled one goes on when it is gone.
 *
 * LOCKING
 *		flock on the file.  What holds it waits for nothing.
 *
 * Nothing here allocates or raises: it is called in commit callbacks and
 * between fork and exec.
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

static inline IdemFault
idem_fault_action(const char *word)
{
	static const char *const words[] = {"", "error", "kill", "stall", "cancel", "terminate"};

	for (int i = IDEM_FAULT_ERROR; i <= IDEM_FAULT_TERMINATE; i++)
		if (strcmp(word, words[i]) == 0)
			return (IdemFault) i;
	return IDEM_FAULT_NONE;
}

static inline void
idem_fault_write(int fd, const char *line, int len)
{
	ssize_t		rc = ftruncate(fd, 0) == 0 ? pwrite(fd, line, (size_t) len, 0) : 0;

	(void) rc;
}

/* Count the armed point down; its action if that is due. */
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
	/* Who waits for the lock finds no action in it. */
	idem_fault_write(fd, line, snprintf(line, sizeof(line), "%ld\n", (long) getpid()));
	return rename(armed, hit) == 0 ? idem_fault_action(word) : IDEM_FAULT_NONE;
}

/* What is to happen to this process, which passes the point now. */
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

/* Is a process that was told to stall to go on doing so? */
static inline bool
idem_fault_is_held(const char *name)
{
	char		hit[FAULT_PATH];

	snprintf(hit, sizeof(hit), FAULT_HIT "%s", name);
	return access(hit, F_OK) == 0;
}

#endif							/* IDEM_FAULT_FILE_H */
