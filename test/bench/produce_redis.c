/*-------------------------------------------------------------------------
 *
 * produce_redis.c
 *		hiredis' own producer: adds events from memory to a stream by XADD, in a
 *		pipeline, with the fields that the redis sink makes.
 *
 *	produce_redis ADDRESS:PORT STREAM EVENTS PAYLOAD
 *
 * What is printed: produce.h.  While a thousand commands are on their way, the answers
 * of the thousand before are read.
 *
 * MEMORY: the library's buffers.  LOCKING: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		test/bench/produce_redis.c
 *
 *-------------------------------------------------------------------------
 */
#include <hiredis/hiredis.h>

#include "produce.h"

#define AT_ONCE	1000
#define FIELDS	6

/* Write the command of an event into the library's buffer. */
static void
append(redisContext *c, const char *stream, long n)
{
	const char *args[3 + 2 * FIELDS];
	size_t		lengths[3 + 2 * FIELDS];
	char		id[PRODUCE_ID];
	char		key[24];
	int			count = 0;

	produce_id(id, n);
	snprintf(key, sizeof(key), "%ld", n % PRODUCE_KEYS);
	{
		const char *all[] = {"XADD", stream, "*", "event_id", id, "aggregate_type", "order", "aggregate_id", key,
		"event_type", "OrderCreated", "enqueued_at", "2026-11-29T12:00:00.000000Z", "payload", payload};

		for (; count < 3 + 2 * FIELDS; count++)
		{
			args[count] = all[count];
			lengths[count] = strlen(all[count]);
		}
	}
	if (redisAppendCommandArgv(c, count, args, lengths) != REDIS_OK)
		die("redisAppendCommandArgv", c->errstr);
}

static void
flush(redisContext *c)
{
	int			done = 0;

	while (!done)
		if (redisBufferWrite(c, &done) != REDIS_OK)
			die("redisBufferWrite", c->errstr);
}

static void
take(redisContext *c)
{
	redisReply *reply = NULL;

	if (redisGetReply(c, (void **) &reply) != REDIS_OK)
		die("redisGetReply", c->errstr);
	if (reply->type == REDIS_REPLY_ERROR)
		die("XADD", reply->str);
	freeReplyObject(reply);
	produce_answered(1);
}

int
main(int argc, char **argv)
{
	int			port = produce_arguments(argc, argv);
	redisContext *c = redisConnect(argv[1], port);

	if (c == NULL || c->err != 0)
		die("redisConnect", c != NULL ? c->errstr : "no memory");
	produce_begin();
	for (long n = 0; n < events;)
	{
		for (int i = 0; i < AT_ONCE && n < events; i++, n++)
			append(c, argv[2], n);
		flush(c);
		while (n - answered > AT_ONCE)
			take(c);
	}
	while (answered < events)
		take(c);
	produce_report();
	redisFree(c);
	return 0;
}
