/*-------------------------------------------------------------------------
 *
 * job.c
 *		Runs functions of librdkafka that may block, in a helper thread.
 *
 * The main thread waits in idem_sink_wait meanwhile, so PINGs are answered, and
 * takes the worker's frames into batches: the next flight has its events as soon as
 * a commit is done.
 *
 * INVARIANT
 *	One job at a time.  A job that has not ended in its time keeps running, and
 *	may still use p: the caller has to end the program.
 *
 * LOCKING
 *	The eventfd orders the job's writes before the main thread's reads.  A job
 *	touches complete batches only, and neither p->first, p->last nor p->sink.
 * MEMORY
 *	The job's thread is detached; its argument is static.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/kafka/job.c
 *
 *-------------------------------------------------------------------------
 */
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/eventfd.h>
#include <poll.h>
#include <unistd.h>

#include "sink/kafka/sink.h"

static struct
{
	KSink	   *p;
	KSinkJob	job;
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
	helper.ok = helper.job(helper.p);
	do
		rc = write(helper.fd, &one, sizeof(one));
	while (rc < 0 && errno == EINTR);
	return NULL;
}

/* Wait for the end of the job.  False: it has not ended after timeout ms. */
static bool
await_end(KSink *p, int timeout)
{
	int64_t		deadline = idem_sink_clock() + timeout;
	int64_t		left;

	while ((left = deadline - idem_sink_clock()) >= 0)
	{
		if (idem_sink_wait(&p->sink, helper.fd, POLLIN, (int) left, true) != 0)
			return true;
		ksink_take_frames(p);
	}
	return false;
}

bool
ksink_run(KSink *p, KSinkJob job, int timeout, const char *doing)
{
	char		more[IDEM_PROTO_MAX_MESSAGE];
	pthread_attr_t attr;
	pthread_t	thread;
	uint64_t	count;
	int			rc;

	if (helper.fd < 0)
		helper.fd = eventfd(0, EFD_CLOEXEC);
	helper.p = p;
	helper.job = job;
	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	rc = helper.fd < 0 ? errno : pthread_create(&thread, &attr, run, NULL);
	pthread_attr_destroy(&attr);
	if (rc != 0)
		idem_sink_broken(&p->sink, "could not start a thread: %s", strerror(rc));
	if (!await_end(p, timeout))
	{
		/* p->failure belongs to the job: end here */
		ksink_last_complaint(more, sizeof(more));
		idem_sink_failed(&p->sink, IDEM_PROTO_OUTAGE, "08006", "could not %s within %d ms%s%.600s",
						 doing, timeout, more[0] != '\0' ? ": " : "", more);
	}
	if (read(helper.fd, &count, sizeof(count)) != sizeof(count))
		idem_sink_broken(&p->sink, "could not read from an eventfd: %s", strerror(errno));
	return helper.ok;
}
