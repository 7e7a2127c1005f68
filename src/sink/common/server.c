/*-------------------------------------------------------------------------
 *
 * server.c
 *		Reads the options that say where the servers of a target are, and how to log in.
 *
 * INVARIANT
 *		A server has neither scheme nor login: everybody can read the option.
 *
 * MEMORY
 *		What is read belongs to the caller.  LOCKING: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/common/server.c
 *
 *-------------------------------------------------------------------------
 */
#include "sink/common/server.h"

#include <stdlib.h>
#include <string.h>

#include "sink/common/hide.h"
#include "sink/common/secret.h"

bool
idem_server_read(IdemServer *server, const char *text, size_t len, int port)
{
	const char *end = text + len;
	bool		bracket = len > 0 && *text == '[';
	const char *host = text + bracket;
	const char *host_end = memchr(text, bracket ? ']' : ':', len);
	const char *rest;
	long		number = 0;

	if (host_end == NULL && bracket)
		return false;
	if (host_end == NULL)
		host_end = end;
	rest = host_end + bracket;
	if (host_end == host || (size_t) (host_end - host) >= sizeof(server->host) || memchr(host, '/', (size_t) (end - host)) != NULL ||
		memchr(host, '@', (size_t) (end - host)) != NULL)
		return false;
	memcpy(server->host, host, (size_t) (host_end - host));
	server->host[host_end - host] = '\0';
	server->port = port;
	if (rest == end)
		return true;
	if (*rest++ != ':' || rest == end)
		return false;
	/* of an IPv6 address without brackets nobody knows what is the port */
	for (; rest < end; rest++)
	{
		if (*rest < '0' || *rest > '9' || number > 65535)
			return false;
		number = number * 10 + (*rest - '0');
	}
	server->port = (int) number;
	return number > 0 && number <= 65535;
}

int
idem_servers_read(const IdemProtoHello *hello, IdemServer servers[IDEM_MAX_SERVERS], int port, IdemSinkFailure *failure)
{
	char	   *text = idem_sink_option(hello, "servers", "");
	const char *at = text;
	bool		more = true;
	int			n = 0;

	while (more)
	{
		size_t		len;

		at += strspn(at, " ");
		len = strcspn(at, ", ");
		if (n == IDEM_MAX_SERVERS || !idem_server_read(&servers[n], at, len, port))
		{
			idem_sink_fail(failure, IDEM_PROTO_REJECTED, "HV024",
						   "option \"servers\" must be host:port, up to %d of them separated by commas, without scheme and login", IDEM_MAX_SERVERS);
			n = 0;
			break;
		}
		n++;
		at += len;
		at += strspn(at, " ");
		more = *at != '\0';
		/* behind a comma another one has to come */
		at += *at == ',';
	}
	free(text);
	return n;
}

bool
idem_login_read(IdemSink *s, const IdemProtoHello *hello, char **user, char **password, IdemSinkFailure *failure)
{
	char	   *file = idem_sink_option(hello, "secret_file", NULL);

	*user = idem_sink_option(hello, "user", NULL);
	*password = idem_sink_option(hello, "password", NULL);
	if (file != NULL && *password != NULL)
		return idem_sink_fail(failure, IDEM_PROTO_REJECTED, "HV024", "options \"password\" and \"secret_file\" exclude each other");
	if (file != NULL)
		*password = idem_sink_read_secret(s, file);
	free(file);
	idem_sink_keep_secret(*password);
	return true;
}
