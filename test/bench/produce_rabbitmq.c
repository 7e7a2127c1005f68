/*-------------------------------------------------------------------------
 *
 * produce_rabbitmq.c
 *		librabbitmq's own producer: publishes events from memory to the exchange
 *		"bench", with confirms, persistent and mandatory, and with the properties that
 *		the rabbitmq sink makes.
 *
 *	produce_rabbitmq ADDRESS:PORT ROUTING_KEY EVENTS PAYLOAD
 *
 * What is printed: produce.h.  So many messages as the sink has in flight are not yet
 * confirmed; confirms are taken as they come.
 *
 * MEMORY: the library's buffers.  LOCKING: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		test/bench/produce_rabbitmq.c
 *
 *-------------------------------------------------------------------------
 */
#if __has_include(<rabbitmq-c/amqp.h>)
#include <rabbitmq-c/amqp.h>
#include <rabbitmq-c/tcp_socket.h>
#else							/* before 0.12 */
#include <amqp.h>
#include <amqp_tcp_socket.h>
#endif
#include <stdbool.h>
#include <stdint.h>

#include "produce.h"

#define CHANNEL		1
#define IN_FLIGHT	4000
#define PERSISTENT	2

/* Is the message with this tag confirmed?  By its place in the window. */
static bool confirmed[IN_FLIGHT];

static void
check(const char *what, int status)
{
	if (status != AMQP_STATUS_OK)
		die(what, amqp_error_string2(status));
}

static void
check_reply(const char *what, amqp_rpc_reply_t reply)
{
	if (reply.reply_type != AMQP_RESPONSE_NORMAL)
		die(what, "the server refused it");
}

static amqp_connection_state_t
connect_to(const char *host, int port)
{
	amqp_connection_state_t conn = amqp_new_connection();
	amqp_socket_t *socket = amqp_tcp_socket_new(conn);

	check("connect", amqp_socket_open(socket, host, port));
	check_reply("log in", amqp_login(conn, "/", 0, 131072, 0, AMQP_SASL_METHOD_PLAIN, "admin", "admin"));
	amqp_channel_open(conn, CHANNEL);
	check_reply("open a channel", amqp_get_rpc_reply(conn));
	amqp_confirm_select(conn, CHANNEL);
	check_reply("ask for confirms", amqp_get_rpc_reply(conn));
	return conn;
}

static void
send_event(amqp_connection_state_t conn, const char *routing_key, long n)
{
	char		id[PRODUCE_ID];
	char		key[24];
	amqp_table_entry_t headers[] = {
		{.key = amqp_cstring_bytes("aggregate_type"), .value = {.kind = AMQP_FIELD_KIND_UTF8,.value.bytes = amqp_cstring_bytes("order")}},
		{.key = amqp_cstring_bytes("aggregate_id"), .value = {.kind = AMQP_FIELD_KIND_UTF8}}
	};
	amqp_basic_properties_t properties = {
		._flags = AMQP_BASIC_CONTENT_TYPE_FLAG | AMQP_BASIC_HEADERS_FLAG | AMQP_BASIC_DELIVERY_MODE_FLAG |
		AMQP_BASIC_MESSAGE_ID_FLAG | AMQP_BASIC_TIMESTAMP_FLAG | AMQP_BASIC_TYPE_FLAG,
		.content_type = amqp_cstring_bytes("application/json"),
		.headers = {2, headers},
		.delivery_mode = PERSISTENT,
		.timestamp = 1796000000,
		.type = amqp_cstring_bytes("OrderCreated")
	};

	produce_id(id, n);
	snprintf(key, sizeof(key), "%ld", n % PRODUCE_KEYS);
	headers[1].value.value.bytes = amqp_cstring_bytes(key);
	properties.message_id = amqp_cstring_bytes(id);
	check("publish", amqp_basic_publish(conn, CHANNEL, amqp_cstring_bytes("bench"), amqp_cstring_bytes(routing_key), 1, 0,
										&properties, amqp_cstring_bytes(payload)));
}

/* Note a confirm; tags begin with 1, and below *first all are confirmed. */
static void
confirm(uint64_t tag, bool multiple, uint64_t *first)
{
	for (uint64_t t = multiple ? *first : tag; t <= tag; t++)
		confirmed[t % IN_FLIGHT] = true;
	while (confirmed[*first % IN_FLIGHT])
	{
		confirmed[*first % IN_FLIGHT] = false;
		(*first)++;
		produce_answered(1);
	}
}

/* Take the confirms that are there; wait for one if the window is full. */
static void
take(amqp_connection_state_t conn, bool wait, uint64_t *first)
{
	const struct timeval at_once = {0, 0};
	amqp_frame_t f;

	for (;; wait = false)
	{
		int			status = wait ? amqp_simple_wait_frame(conn, &f) : amqp_simple_wait_frame_noblock(conn, &f, &at_once);
		const amqp_basic_ack_t *ack;

		if (status == AMQP_STATUS_TIMEOUT)
			return;
		check("hear of the server", status);
		if (f.frame_type != AMQP_FRAME_METHOD || f.payload.method.id != AMQP_BASIC_ACK_METHOD)
			die("hear of the server", "an answer that is no confirm");
		ack = f.payload.method.decoded;
		confirm(ack->delivery_tag, ack->multiple != 0, first);
		amqp_maybe_release_buffers(conn);
	}
}

int
main(int argc, char **argv)
{
	int			port = produce_arguments(argc, argv);
	amqp_connection_state_t conn = connect_to(argv[1], port);
	uint64_t	first = 1;

	produce_begin();
	for (long n = 0; answered < events;)
	{
		for (int i = 0; i < 100 && n < events && (uint64_t) n + 1 < first + IN_FLIGHT; i++, n++)
			send_event(conn, argv[2], n);
		take(conn, n == events || (uint64_t) n + 1 >= first + IN_FLIGHT, &first);
	}
	produce_report();
	amqp_destroy_connection(conn);
	return 0;
}
