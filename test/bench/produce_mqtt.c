/*-------------------------------------------------------------------------
 *
 * produce_mqtt.c
 *		libmosquitto's own producer: publishes events from memory with QoS 1, with the
 *		properties that the mqtt sink makes.
 *
 *	produce_mqtt ADDRESS:PORT TOPIC EVENTS PAYLOAD
 *
 * What is printed: produce.h.  The library's external loop is used, the fastest way
 * with one thread.  So many messages as the sink has in flight by default have no
 * acknowledgement yet: the library looks at all of them for each that it sends.
 *
 * MEMORY: the library's copies of the messages in flight.  LOCKING: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		test/bench/produce_mqtt.c
 *
 *-------------------------------------------------------------------------
 */
#include <mosquitto.h>
#if LIBMOSQUITTO_VERSION_NUMBER < 2001000
#include <mqtt_protocol.h>		/* mosquitto.h has it from 2.1 on */
#endif
#include <poll.h>

#include "produce.h"

#define IN_FLIGHT	100

static bool connected;

static void
check(const char *what, int rc)
{
	if (rc != MOSQ_ERR_SUCCESS)
		die(what, mosquitto_strerror(rc));
}

static void
on_connect(struct mosquitto *m, void *arg, int code, int flags, const mosquitto_property *properties)
{
	(void) m;
	(void) arg;
	(void) flags;
	(void) properties;
	if (code != 0)
		die("connect", mosquitto_reason_string(code));
	connected = true;
}

static void
on_answer(struct mosquitto *m, void *arg, int mid, int code, const mosquitto_property *properties)
{
	(void) m;
	(void) arg;
	(void) mid;
	(void) properties;
	if (code >= 128)
		die("publish", mosquitto_reason_string(code));
	produce_answered(1);
}

static void
send_event(struct mosquitto *m, const char *topic, long n)
{
	mosquitto_property *properties = NULL;
	char		id[PRODUCE_ID];
	char		key[24];

	produce_id(id, n);
	snprintf(key, sizeof(key), "%ld", n % PRODUCE_KEYS);
	check("property", mosquitto_property_add_string(&properties, MQTT_PROP_CONTENT_TYPE, "application/json"));
	check("property", mosquitto_property_add_byte(&properties, MQTT_PROP_PAYLOAD_FORMAT_INDICATOR, 1));
	check("property", mosquitto_property_add_string_pair(&properties, MQTT_PROP_USER_PROPERTY, "Event-Id", id));
	check("property", mosquitto_property_add_string_pair(&properties, MQTT_PROP_USER_PROPERTY, "Event-Type", "OrderCreated"));
	check("property", mosquitto_property_add_string_pair(&properties, MQTT_PROP_USER_PROPERTY, "Aggregate-Type", "order"));
	check("property", mosquitto_property_add_string_pair(&properties, MQTT_PROP_USER_PROPERTY, "Aggregate-Id", key));
	check("publish", mosquitto_publish_v5(m, NULL, topic, (int) strlen(payload), payload, 1, false, properties));
	mosquitto_property_free_all(&properties);
}

/* Wait for the broker, and take what it says. */
static void
turn(struct mosquitto *m)
{
	struct pollfd p = {.fd = mosquitto_socket(m), .events = POLLIN};

	if (mosquitto_want_write(m))
		p.events |= POLLOUT;
	(void) poll(&p, 1, 1000);
	if (p.revents & POLLIN)
		check("read", mosquitto_loop_read(m, 1));
	if (p.revents & POLLOUT)
		check("write", mosquitto_loop_write(m, 1));
	check("loop", mosquitto_loop_misc(m));
}

int
main(int argc, char **argv)
{
	int			port = produce_arguments(argc, argv);
	struct mosquitto *m;

	mosquitto_lib_init();
	m = mosquitto_new("bench-producer", true, NULL);
	if (m == NULL)
		die("mosquitto_new", "no memory");
	check("option", mosquitto_int_option(m, MOSQ_OPT_PROTOCOL_VERSION, MQTT_PROTOCOL_V5));
	check("option", mosquitto_int_option(m, MOSQ_OPT_SEND_MAXIMUM, IN_FLIGHT));
	check("option", mosquitto_int_option(m, MOSQ_OPT_TCP_NODELAY, 1));
	mosquitto_connect_v5_callback_set(m, on_connect);
	mosquitto_publish_v5_callback_set(m, on_answer);
	check("connect", mosquitto_connect(m, argv[1], port, 60));
	while (!connected)
		turn(m);
	produce_begin();
	for (long n = 0; answered < events;)
	{
		for (; n < events && n - answered < IN_FLIGHT; n++)
			send_event(m, argv[2], n);
		turn(m);
	}
	produce_report();
	mosquitto_destroy(m);
	return 0;
}
