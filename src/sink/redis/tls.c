/*-------------------------------------------------------------------------
 *
 * tls.c
 *		TLS on a connection, where hiredis has it.
 *
 * hiredis checks a certificate's chain, and not whose it is.  So the session is made
 * here, by OpenSSL, which compares the name or the address, too.
 *
 * INVARIANT
 *		Nothing is sent to a server whose certificate was not verified for the host
 *		that the options, or the cluster, name.
 *
 * MEMORY
 *		p->tls is the context of the connection; hiredis owns the session.
 *		LOCKING: none; runs in the helper thread.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/redis/tls.c
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <string.h>

#include "sink/redis/sink.h"

#ifdef RSINK_TLS

#include <hiredis/hiredis_ssl.h>

#include "sink/common/tls.h"

/* Note what failed; false. */
static bool
tls_error(char *error, size_t cap, const char *doing)
{
	const char *reason = idem_tls_reason();

	snprintf(error, cap, "TLS: could not %s%s%s", doing, reason ? ": " : "", reason ? reason : "");
	return false;
}

bool
rsink_start_tls(RSink *p, char *error, size_t cap)
{
	const RSinkConfig *c = &p->config;
	const IdemTlsFiles files = {c->sslrootcert, c->sslcert, c->sslkey, c->sslpassword};
	SSL_CTX    *ctx = idem_tls_context();
	const char *doing;
	SSL		   *ssl;

	p->tls = ctx;
	if (ctx == NULL)
		return tls_error(error, cap, "begin");
	doing = idem_tls_load(ctx, &files);
	if (doing != NULL)
		return tls_error(error, cap, doing);
	ssl = idem_tls_session(ctx, p->peer.host);
	if (ssl == NULL)
		return tls_error(error, cap, "begin");
	if (redisInitiateSSL(p->conn, ssl) == REDIS_OK)
		return true;
	snprintf(error, cap, "TLS: %s", p->conn->errstr);
	ERR_clear_error();
	return false;
}

void
rsink_end_tls(RSink *p)
{
	if (p->tls != NULL)
		SSL_CTX_free(p->tls);
	p->tls = NULL;
}

#else

/* config.c refuses the option "tls". */
bool
rsink_start_tls(RSink *p, char *error, size_t cap)
{
	(void) p;
	snprintf(error, cap, "built without TLS");
	return false;
}

void
rsink_end_tls(RSink *p)
{
	(void) p;
}

#endif
