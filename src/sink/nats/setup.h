/*-------------------------------------------------------------------------
 *
 * setup.h
 *		What the server needs before a nats sink can work.
 *
 * The sink creates nothing by itself.  The SQL function sink_setup(server, relay)
 * prints this text, and an operator runs it.  Each %s is quoted for a shell, or is a
 * part of a comment that has no line end.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/nats/setup.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_SINK_NATS_SETUP_H
#define IDEM_SINK_NATS_SETUP_H

/* In nats-server.conf. */
#define IDEM_SINK_NATS_CONF_SETUP \
	"# nats-server.conf: without sync_interval the server acknowledges what a loss of power can take back.\n" \
	"#   jetstream { sync_interval: always }\n"

/* The stream: servers, subject of the request, its JSON. */
#define IDEM_SINK_NATS_STREAM_SETUP \
	"# Creates the stream; for one that is there, replace STREAM.CREATE by STREAM.UPDATE, and add its other settings.\n" \
	"nats --server %s request %s \\\n    %s\n"

/* Rights of the user: JSON strings of subjects, separated by commas. */
#define IDEM_SINK_NATS_RIGHTS_SETUP \
	"# Rights of the user, in nats-server.conf:\n" \
	"#   permissions: { publish: [ %s ], subscribe: [ \"_INBOX.>\" ] }\n"

#endif							/* IDEM_SINK_NATS_SETUP_H */
