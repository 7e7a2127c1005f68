/*-------------------------------------------------------------------------
 *
 * clock.c
 *		A wall clock that is off by what a file says.
 *
 * To be preloaded into a server: gettimeofday, time and clock_gettime of the
 * real-time clocks are answered with the number of seconds added that the file
 * named by CRASH_CLOCK holds in its first eight bytes.  The file is mapped, so
 * that a change is seen by every process at its next look at the clock.  The
 * monotonic clocks stay as they are, as they do when a clock is set.
 *
 * The real time comes from the kernel, not from the functions replaced.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		test/crash/machine/clock.c
 *
 *-------------------------------------------------------------------------
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *offset;

__attribute__((constructor)) static void
map_offset(void)
{
	const char *path = getenv("CRASH_CLOCK");
	int			fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
	void	   *map;

	if (fd < 0)
		return;
	map = mmap(NULL, sizeof(*offset), PROT_READ, MAP_SHARED, fd, 0);
	(void) close(fd);
	if (map != MAP_FAILED)
		offset = map;
}

static int64_t
seconds_off(void)
{
	return offset ? *offset : 0;
}

int
clock_gettime(clockid_t id, struct timespec *ts)
{
	int			rc = (int) syscall(SYS_clock_gettime, id, ts);

	if (rc == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE))
		ts->tv_sec += seconds_off();
	return rc;
}

int
gettimeofday(struct timeval *restrict tv, void *restrict tz)
{
	struct timespec ts;

	(void) tz;
	if (clock_gettime(CLOCK_REALTIME, &ts) != 0)
		return -1;
	tv->tv_sec = ts.tv_sec;
	tv->tv_usec = ts.tv_nsec / 1000;
	return 0;
}

time_t
time(time_t *t)
{
	struct timespec ts;

	if (clock_gettime(CLOCK_REALTIME, &ts) != 0)
		return -1;
	if (t)
		*t = ts.tv_sec;
	return ts.tv_sec;
}
