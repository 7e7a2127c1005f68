/*-------------------------------------------------------------------------
 *
 * produce_nats.c
 *		libnats' own producer: publishes events from memory into a stream of
 *		JetStream, with the headers that the nats sink makes.
 *
 *	produce_nats ADDRESS:PORT SUBJECT EVENTS PAYLOAD [atomic]
 *
 * What is printed: produce.h.  By js_PublishMsgAsync, each with the id by which the
 * server drops repeats, and with at most 4,000 messages that have no acknowledgement
 * yet; or in atomic batches of 1,000, the most that the server
 * takes, one after the other, as the functions of newer libraries send them.
 *
 * The library frees a message in a thread of its own, which the first of many wakes: so
 * they are freed by PER_BATCH, which is cheaper.
 *
 * MEMORY: the library owns a message that it acknowledges until it hands it back.
 * LOCKING: the library counts acknowledgements in a thread of its own; the main thread
 * looks only after js_PublishAsyncComplete.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		test/bench/produce_nats.c
 *
 *-------------------------------------------------------------------------
 */
#include <nats/nats.h>

#include "produce.h"

#define PENDING		4000
#define PER_BATCH	1000

static void
check(const char *what, natsStatus s)
{
	if (s != NATS_OK)
		die(what, natsStatus_GetText(s));
}

/* Free the message, sooner or later. */
static void
free_message(natsMsg *msg)
{
	static natsMsg *list[PER_BATCH];
	static int	n;

	list[n++] = msg;
	if (n < PER_BATCH)
		return;
	while (n > 0)
		natsMsg_Destroy(list[--n]);
}

static void
on_answer(jsCtx *js, natsMsg *msg, jsPubAck *ack, jsPubAckErr *error, void *closure)
{
	(void) js;
	(void) ack;
	(void) closure;
	if (error != NULL)
		die("acknowledgement", error->ErrText);
	produce_answered(1);
	free_message(msg);
}

static natsMsg *
make_message(const char *subject, long n)
{
	natsMsg    *msg = NULL;
	char		id[PRODUCE_ID];
	char		key[24];

	produce_id(id, n);
	snprintf(key, sizeof(key), "%ld", n % PRODUCE_KEYS);
	check("natsMsg_Create", natsMsg_Create(&msg, subject, NULL, payload, (int) strlen(payload)));
	check("header", natsMsgHeader_Set(msg, "Content-Type", "application/json"));
	check("header", natsMsgHeader_Set(msg, "Event-Id", id));
	check("header", natsMsgHeader_Set(msg, "Event-Type", "OrderCreated"));
	check("header", natsMsgHeader_Set(msg, "Aggregate-Type", "order"));
	check("header", natsMsgHeader_Set(msg, "Aggregate-Id", key));
	return msg;
}

static void
publish_each(natsConnection *nc, const char *subject)
{
	jsOptions	options;
	jsPubOptions each;
	jsCtx	   *js = NULL;
	char		stream[64];
	char		id[PRODUCE_ID];

	check("jsOptions_Init", jsOptions_Init(&options));
	options.PublishAsync.MaxPending = PENDING;
	options.PublishAsync.AckHandler = on_answer;
	options.PublishAsync.StallWait = 60000; /* ms */
	check("JetStream", natsConnection_JetStream(&js, nc, &options));
	check("jsPubOptions_Init", jsPubOptions_Init(&each));
	snprintf(stream, sizeof(stream), "%.*s", (int) strcspn(subject, "."), subject);
	each.ExpectStream = stream;
	each.MsgId = id;
	produce_begin();
	for (long n = 0; n < events; n++)
	{
		natsMsg    *msg = make_message(subject, n);

		produce_id(id, n);
		check("js_PublishMsgAsync", js_PublishMsgAsync(js, &msg, &each));
	}
	check("js_PublishAsyncComplete", js_PublishAsyncComplete(js, NULL));
}

static void
publish_batches(natsConnection *nc, const char *subject)
{
	produce_begin();
	for (long n = 0; n < events; n++)
	{
		natsMsg    *msg = make_message(subject, n);
		natsMsg    *reply = NULL;
		char		batch[24];
		char		number[24];

		snprintf(batch, sizeof(batch), "%ld", n / PER_BATCH);
		snprintf(number, sizeof(number), "%ld", n % PER_BATCH + 1);
		check("header", natsMsgHeader_Set(msg, "Nats-Batch-Id", batch));
		check("header", natsMsgHeader_Set(msg, "Nats-Batch-Sequence", number));
		if (n % PER_BATCH < PER_BATCH - 1 && n < events - 1)
			check("publish", natsConnection_PublishMsg(nc, msg));
		else
		{
			check("header", natsMsgHeader_Set(msg, "Nats-Batch-Commit", "1"));
			check("commit", natsConnection_RequestMsg(&reply, nc, msg, 60000));
			if (strstr(natsMsg_GetData(reply), "\"error\"") != NULL)
				die("commit", natsMsg_GetData(reply));
			natsMsg_Destroy(reply);
			produce_answered(n % PER_BATCH + 1);
		}
		free_message(msg);
	}
}

int
main(int argc, char **argv)
{
	int			port = produce_arguments(argc, argv);
	natsConnection *nc = NULL;
	char		url[256];

	snprintf(url, sizeof(url), "nats://%s:%d", argv[1], port);
	check(url, natsConnection_ConnectTo(&nc, url));
	if (argc == 6 && strcmp(argv[5], "atomic") == 0)
		publish_batches(nc, argv[2]);
	else
		publish_each(nc, argv[2]);
	if (answered != events)
		die(argv[2], "the server did not acknowledge all events");
	produce_report();
	return 0;
}
