/*-------------------------------------------------------------------------
 *
 * job.c
 *		Runs functions of client libraries that may block, in a helper thread.
 *
 * The main thread waits in idem_sink_wait meanwhile, so PINGs are answered, and
 * takes the worker's frames into batches: the next batches are there as soon as
 * a commit is done.
 *
 * INVARIANT
 *	One job at a time.  A job that has not ended in its time keeps running, and
 *	may still use its argument: the caller has to end the program.
 *
 * LOCKING
 *	The eventfd orders the job's writes before the main thread's reads.  A job
 *	touches complete batches only, and neither first and last of the intake nor its sink.
 * MEMORY
 *	The job's thread is detached; its argument is static.
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
	int			fd;
	bool		ok;
}			helper = {.fd = -1};

/* The helper thread: run the job, then wake the main thread. */
static void *
run(void *arg)
{
	uint64_t	one = 1;
	ssize_t		rc;

	(void) arg;
	helper.ok = helper.job(helper.arg);
	do
		rc = write(helper.fd, &one, sizeof(one));
	while (rc < 0 && errno == EINTR);
	return NULL;
}

/* Wait for the end of the job.  False: it has not ended after timeout ms. */
static bool
await_end(IdemIntake *in, int timeout)
{
	int64_t		deadline = idem_sink_clock() + timeout;
	int64_t		left;

	while ((left = deadline - idem_sink_clock()) >= 0)
	{
		if (idem_sink_wait(in->sink, helper.fd, POLLIN, (int) left, true) != 0)
			return true;
		idem_intake_take(in);
	}
	return false;
}

IdemJobEnd
idem_intake_run(IdemIntake *in, IdemJob job, void *arg, int timeout)
{
	pthread_attr_t attr;
	pthread_t	thread;
	uint64_t	count;
	int			rc;

	if (helper.fd < 0)
		helper.fd = eventfd(0, EFD_CLOEXEC);
	helper.job = job;
	helper.arg = arg;
	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	rc = helper.fd < 0 ? errno : pthread_create(&thread, &attr, run, NULL);
	pthread_attr_destroy(&attr);
	if (rc != 0)
		idem_sink_broken(in->sink, "could not start a thread: %s", strerror(rc));
	if (!await_end(in, timeout))
		return IDEM_JOB_LATE;
	if (read(helper.fd, &count, sizeof(count)) != sizeof(count))
		idem_sink_broken(in->sink, "could not read from an eventfd: %s", strerror(errno));
	return helper.ok ? IDEM_JOB_DONE : IDEM_JOB_FAILED;
}
