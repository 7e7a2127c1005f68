/*-------------------------------------------------------------------------
 *
 * job.c
 *		Runs functions of client libraries that may block, in a helper thread.
 *
 * The main thread waits in idem_sink_wait meanwhile, so PINGs are answered, and
 * takes the worker's frames into batches: the next batches are there as soon as
 * a commit is done.  The helper thread begins with the first job and stays: a job
 * may be as short as one message.
 *
 * INVARIANT
 *	One job at a time.  A job that has not ended in its time keeps running, and
 *	may still use its argument: the caller has to end the program.
 *
 * LOCKING
 *	Two eventfds hand the job over and back; each orders the writes before it before
 *	the reads behind it.  A job touches complete batches only, and of the intake
 *	neither first and last nor sink; keys.c has a lock.
 * MEMORY
 *	The thread is detached, and ends with the program.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/common/job.c
 *
 *-------------------------------------------------------------------------
 */
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/eventfd.h>
#include <poll.h>
#include <unistd.h>

#include "sink/common/batch.h"

static struct
{
	IdemJob		job;
	void	   *arg;
	bool		ok;
	int			begin;			/* eventfds */
	int			end;
	bool		runs;			/* the thread is there */
}			helper;

static void
ring(int fd)
{
	uint64_t	one = 1;
	ssize_t		rc;

	do
		rc = write(fd, &one, sizeof(one));
	while (rc < 0 && errno == EINTR);
}

/* Wait until the other side rings.  False: the descriptor is broken. */
static bool
await_ring(int fd)
{
	uint64_t	count;
	ssize_t		rc;

	do
		rc = read(fd, &count, sizeof(count));
	while (rc < 0 && errno == EINTR);
	return rc == sizeof(count);
}

/* The helper thread: run each job, then wake the main thread. */
static void *
run(void *arg)
{
	(void) arg;
	while (await_ring(helper.begin))
	{
		helper.ok = helper.job(helper.arg);
		ring(helper.end);
	}
	return NULL;
}

static void
start_helper(const IdemIntake *in)
{
	pthread_attr_t attr;
	pthread_t	thread;
	int			rc;

	helper.begin = eventfd(0, EFD_CLOEXEC);
	helper.end = eventfd(0, EFD_CLOEXEC);
	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	rc = helper.begin < 0 || helper.end < 0 ? errno : pthread_create(&thread, &attr, run, NULL);
	pthread_attr_destroy(&attr);
	if (rc != 0)
		idem_sink_broken(in->sink, "could not start a thread: %s", strerror(rc));
	helper.runs = true;
}

/* Wait for the end of the job.  False: it has not ended after timeout ms. */
static bool
await_end(IdemIntake *in, int timeout)
{
	int64_t		deadline = idem_sink_clock() + timeout;
	int64_t		left;

	while ((left = deadline - idem_sink_clock()) >= 0)
	{
		if (idem_sink_wait(in->sink, helper.end, POLLIN, (int) left, true) != 0)
			return true;
		idem_intake_take(in);
	}
	return false;
}

void
idem_intake_begin(IdemIntake *in, IdemJob job, void *arg)
{
	if (!helper.runs)
		start_helper(in);
	helper.job = job;
	helper.arg = arg;
	ring(helper.begin);
}

IdemJobEnd
idem_intake_end(IdemIntake *in, int timeout)
{
	if (!await_end(in, timeout))
		return IDEM_JOB_LATE;
	if (!await_ring(helper.end))
		idem_sink_broken(in->sink, "could not read from an eventfd: %s", strerror(errno));
	return helper.ok ? IDEM_JOB_DONE : IDEM_JOB_FAILED;
}

IdemJobEnd
idem_intake_run(IdemIntake *in, IdemJob job, void *arg, int timeout)
{
	idem_intake_begin(in, job, arg);
	return idem_intake_end(in, timeout);
}
