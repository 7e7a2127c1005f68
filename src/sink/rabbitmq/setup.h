/*-------------------------------------------------------------------------
 *
 * setup.h
 *		What the server needs before a rabbitmq sink can work.
 *
 * The sink creates nothing by itself.  The SQL function sink_setup(server, relay)
 * prints this text, and an operator runs it.  Each %s is quoted for a shell.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/rabbitmq/setup.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_SINK_RABBITMQ_SETUP_H
#define IDEM_SINK_RABBITMQ_SETUP_H

/* Before commands with a name in which the fields of events are not filled in. */
#define IDEM_SINK_RABBITMQ_NAMES_SETUP \
	"# Events choose the exchange: repeat the next command for each, and replace what is in braces.\n"

/* Exchange, queue and binding, as JSON. */
#define IDEM_SINK_RABBITMQ_OBJECTS_SETUP \
	"printf '%%s\\n' %s |\n    rabbitmqctl import_definitions\n"

/* Rights: virtual host, user, pattern of the exchange. */
#define IDEM_SINK_RABBITMQ_RIGHTS_SETUP \
	"rabbitmqctl set_permissions -p %s %s '^$' %s '^$'\n"

/* A stream: the plugin, and the stream as JSON. */
#define IDEM_SINK_RABBITMQ_PLUGIN_SETUP \
	"rabbitmq-plugins enable rabbitmq_stream\n"

/* Rights on a stream: virtual host, user, pattern to write, pattern to read. */
#define IDEM_SINK_RABBITMQ_STREAM_RIGHTS_SETUP \
	"rabbitmqctl set_permissions -p %s %s '^$' %s %s\n"

#endif							/* IDEM_SINK_RABBITMQ_SETUP_H */
