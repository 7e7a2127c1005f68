/*-------------------------------------------------------------------------
 *
 * server.h
 *		The servers of a target, and the login there, as options name them.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/common/server.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_SINK_SERVER_H
#define IDEM_SINK_SERVER_H

#include "sink/common/program.h"

#define IDEM_MAX_SERVERS	16

typedef struct IdemServer
{
	char		host[256];
	int			port;
} IdemServer;

/*
 * Read "host", "host:port", "[host]" or "[host]:port".  port: where no port is named.
 * False: the text is no server.
 */
extern bool idem_server_read(IdemServer *server, const char *text, size_t len, int port);

/* Take the option "servers" apart.  Returns how many there are; 0: *failure. */
extern int	idem_servers_read(const IdemProtoHello *hello, IdemServer servers[IDEM_MAX_SERVERS], int port, IdemSinkFailure *failure);

/*
 * Read user and password, which the file of the option "secret_file" may have; each is
 * NULL if it is not there, and else the caller's.  False: *failure.  The program ends
 * if the file cannot be read.
 */
extern bool idem_login_read(IdemSink *s, const IdemProtoHello *hello, char **user, char **password, IdemSinkFailure *failure);

#endif							/* IDEM_SINK_SERVER_H */
