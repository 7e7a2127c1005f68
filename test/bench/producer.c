/*-------------------------------------------------------------------------
 *
 * producer.c
 *		librdkafka's own producer, as a program would use it: sends events from
 *		memory, with the records that the kafka sink makes.
 *
 *	producer BROKERS TOPIC EVENTS PAYLOAD plain|transactions
 *
 * Keys are 0 to 999 by turns.  The properties are librdkafka's, with idempotence
 * and the sink's queue.  "transactions": one for each 50,000 events, as many as
 * the sink has in one.  Prints the events per second between the report of the
 * first tenth and of the last event, and the CPU seconds of this process, less
 * those until the first event was sent.
 *
 * MEMORY: librdkafka's queue.  LOCKING: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		test/bench/producer.c
 *
 *-------------------------------------------------------------------------
 */
#include <librdkafka/rdkafka.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "usage.h"

#define PER_TRANSACTION	50000
#define KEYS			1000
#define LIMIT			60000	/* ms for everything that waits */

static long events;
static long delivered;
static double tenth_at;

static void
die(const char *what, const char *why)
{
	fprintf(stderr, "producer: %s: %s\n", what, why);
	exit(1);
}

static void
check(const char *what, rd_kafka_error_t *error)
{
	if (error != NULL)
		die(what, rd_kafka_error_string(error));
}

static void
set(rd_kafka_conf_t *conf, const char *name, const char *value)
{
	char		why[512];

	if (rd_kafka_conf_set(conf, name, value, why, sizeof(why)) != RD_KAFKA_CONF_OK)
		die(name, why);
}

static void
on_report(rd_kafka_t *rk, const rd_kafka_message_t *m, void *opaque)
{
	(void) rk;
	(void) opaque;
	if (m->err != RD_KAFKA_RESP_ERR_NO_ERROR)
		die("report", rd_kafka_err2str(m->err));
	if (++delivered == events / 10)
		tenth_at = now();
}

static rd_kafka_t *
open_producer(const char *brokers, bool transactions)
{
	rd_kafka_conf_t *conf = rd_kafka_conf_new();
	rd_kafka_t *rk;
	char		why[512];

	set(conf, "bootstrap.servers", brokers);
	set(conf, "enable.idempotence", "true");
	set(conf, "partitioner", "murmur2_random");
	set(conf, "queue.buffering.max.messages", "1000000");
	set(conf, "queue.buffering.max.kbytes", "2097151");
	if (transactions)
		set(conf, "transactional.id", "bench-producer");
	rd_kafka_conf_set_dr_msg_cb(conf, on_report);
	rk = rd_kafka_new(RD_KAFKA_PRODUCER, conf, why, sizeof(why));
	if (rk == NULL)
		die("rd_kafka_new", why);
	if (transactions)
		check("init_transactions", rd_kafka_init_transactions(rk, LIMIT));
	return rk;
}

static void
send_event(rd_kafka_t *rk, const char *topic, long n, const char *payload, size_t len)
{
	rd_kafka_headers_t *headers = rd_kafka_headers_new(8);
	char		key[24];
	char		id[48];
	rd_kafka_error_t *error;

	snprintf(key, sizeof(key), "%ld", n % KEYS);
	snprintf(id, sizeof(id), "00000000-0000-4000-8000-%012ld", n);
	rd_kafka_header_add(headers, "id", -1, id, -1);
	rd_kafka_header_add(headers, "type", -1, topic, -1);
	for (;;)
	{
		rd_kafka_vu_t vus[] = {
			{.vtype = RD_KAFKA_VTYPE_TOPIC,.u.cstr = topic},
			{.vtype = RD_KAFKA_VTYPE_KEY,.u.mem = {key, strlen(key)}},
			{.vtype = RD_KAFKA_VTYPE_VALUE,.u.mem = {(void *) payload, len}},
			{.vtype = RD_KAFKA_VTYPE_MSGFLAGS,.u.i = RD_KAFKA_MSG_F_COPY},
			{.vtype = RD_KAFKA_VTYPE_HEADERS,.u.headers = headers},
		};

		error = rd_kafka_produceva(rk, vus, sizeof(vus) / sizeof(vus[0]));
		if (error == NULL)
			return;
		if (rd_kafka_error_code(error) != RD_KAFKA_RESP_ERR__QUEUE_FULL)
			check("produce", error);
		rd_kafka_error_destroy(error);
		rd_kafka_poll(rk, 10);
	}
}

int
main(int argc, char **argv)
{
	bool		transactions = argc == 6 && strcmp(argv[5], "transactions") == 0;
	const struct rd_kafka_metadata *metadata;
	rd_kafka_t *rk;
	double		cpu_before;
	double		end;

	if (argc != 6)
		die("usage", "producer BROKERS TOPIC EVENTS PAYLOAD plain|transactions");
	events = atol(argv[3]);
	rk = open_producer(argv[1], transactions);
	/* connect before the clock starts */
	if (rd_kafka_metadata(rk, 1, NULL, &metadata, LIMIT) != RD_KAFKA_RESP_ERR_NO_ERROR)
		die("metadata", argv[1]);
	rd_kafka_metadata_destroy(metadata);
	cpu_before = cpu();
	for (long n = 0; n < events; n++)
	{
		if (transactions && n % PER_TRANSACTION == 0)
			check("begin_transaction", rd_kafka_begin_transaction(rk));
		send_event(rk, argv[2], n, argv[4], strlen(argv[4]));
		if (n % 100 == 0)
			rd_kafka_poll(rk, 0);
		if (transactions && (n % PER_TRANSACTION == PER_TRANSACTION - 1 || n == events - 1))
			check("commit_transaction", rd_kafka_commit_transaction(rk, LIMIT));
	}
	while (delivered < events)
		rd_kafka_poll(rk, 100);
	end = now();
	printf("%.1f\t%.6f\n", (double) (events - events / 10) / (end - tenth_at), cpu() - cpu_before);
	rd_kafka_destroy(rk);
	return 0;
}
