/*-------------------------------------------------------------------------
 *
 * setup.h
 *		What a broker needs before an mqtt sink can work, in the words of mosquitto.
 *
 * The SQL function sink_setup(server, relay) prints this text, and an operator puts it
 * into the files that it names.  No %s has a line end in it.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/mqtt/setup.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_SINK_MQTT_SETUP_H
#define IDEM_SINK_MQTT_SETUP_H

/*
 * Settings without which a broker acknowledges what it then drops.  max_queued_messages
 * is not 0, which stands for no limit: mosquitto then ends the connection with each
 * message that it refuses (seen on 2.0.11-1.2+deb12u2).
 */
#define IDEM_SINK_MQTT_CONF_SETUP \
	"# mosquitto.conf: by default the broker acknowledges messages, keeps 1000 for a subscriber that is away, and\n" \
	"# drops the others.  A crash takes what it has not stored for autosave_interval seconds.\n" \
	"persistence true\n" \
	"autosave_interval 10\n" \
	"max_queued_messages 1000000\n" \
	"max_inflight_messages %s\n"

/* Rights of the user: name, filter of the topics. */
#define IDEM_SINK_MQTT_ACL_SETUP \
	"# The file that acl_file names:\n" \
	"user %s\n" \
	"topic write %s\n"

#endif							/* IDEM_SINK_MQTT_SETUP_H */
