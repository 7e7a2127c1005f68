/*-------------------------------------------------------------------------
 *
 * produce_nats.c
 *		libnats' own producer: publishes events from memory into a stream of
 *		JetStream by js_PublishMsgAsync, with the headers that the nats sink makes.
 *
 *	produce_nats ADDRESS:PORT SUBJECT EVENTS PAYLOAD
 *
 * What is printed: produce.h.  At most 4,000 messages have no acknowledgement yet.
 *
 * MEMORY: the library owns a message once it is published.
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

#define PENDING	4000

static void
check(const char *what, natsStatus s)
{
	if (s != NATS_OK)
		die(what, natsStatus_GetText(s));
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
	natsMsg_Destroy(msg);
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

int
main(int argc, char **argv)
{
	int			port = produce_arguments(argc, argv);
	natsConnection *nc = NULL;
	jsOptions	options;
	jsCtx	   *js = NULL;
	char		url[256];

	snprintf(url, sizeof(url), "nats://%s:%d", argv[1], port);
	check(url, natsConnection_ConnectTo(&nc, url));
	check("jsOptions_Init", jsOptions_Init(&options));
	options.PublishAsync.MaxPending = PENDING;
	options.PublishAsync.AckHandler = on_answer;
	check("JetStream", natsConnection_JetStream(&js, nc, &options));
	produce_begin();
	for (long n = 0; n < events; n++)
	{
		natsMsg    *msg = make_message(argv[2], n);

		check("js_PublishMsgAsync", js_PublishMsgAsync(js, &msg, NULL));
	}
	check("js_PublishAsyncComplete", js_PublishAsyncComplete(js, NULL));
	if (answered != events)
		die(argv[2], "the server did not acknowledge all events");
	produce_report();
	return 0;
}
