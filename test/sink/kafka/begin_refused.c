/*-------------------------------------------------------------------------
 *
 * begin_refused.c
 *		Preloaded into the kafka sink: a call of librdkafka fails once.
 *
 * rd_kafka_begin_transaction() fails without a fault of the brokers, at the call
 * whose number the environment variable BEGIN_REFUSED has, and says so on standard
 * error.  No broker makes it fail at a certain transaction.
 *
 * LOCKING: none; the sink begins one transaction at a time.  MEMORY: the caller
 * destroys the error.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		test/sink/kafka/begin_refused.c
 *
 *-------------------------------------------------------------------------
 */
#define _GNU_SOURCE				/* RTLD_NEXT */

#include <dlfcn.h>
#include <librdkafka/rdkafka.h>
#include <stdio.h>
#include <stdlib.h>

static int	refused = 0;		/* the number of the call */

/* The program clears its environment when it starts. */
__attribute__((constructor)) static void
read_environment(void)
{
	const char *value = getenv("BEGIN_REFUSED");

	if (value != NULL)
		refused = atoi(value);
}

rd_kafka_error_t *
rd_kafka_begin_transaction(rd_kafka_t *rk)
{
	static int	calls = 0;
	rd_kafka_error_t *(*begin) (rd_kafka_t *);

	if (++calls == refused)
	{
		fprintf(stderr, "begin refused\n");
		return rd_kafka_error_new(RD_KAFKA_RESP_ERR__STATE, "refused by the test");
	}
	*(void **) &begin = dlsym(RTLD_NEXT, "rd_kafka_begin_transaction");
	return begin(rk);
}
