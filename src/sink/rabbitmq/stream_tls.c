/*-------------------------------------------------------------------------
 *
 * stream_tls.c
 *		Bytes to the server and from it, by TLS or without it.
 *
 * INVARIANT
 *		Nothing is sent to a server whose certificate was not verified for the host
 *		that the options, or the stream's leader, name.
 *
 * MEMORY
 *		s->tls is the session of the connection.  LOCKING: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/rabbitmq/stream_tls.c
 *
 *-------------------------------------------------------------------------
 */
#include <errno.h>
#include <poll.h>
#include <sys/socket.h>

#include "sink/common/tls.h"
#include "sink/rabbitmq/stream.h"

/* Note what failed; false. */
static bool
tls_fail(BSink *p, IdemProtoOutcome outcome, const char *doing)
{
	const char *reason = idem_tls_reason();

	return idem_sink_fail(&p->failure, outcome, "08006", "TLS: could not %s%s%s", doing, reason ? ": " : "", reason ? reason : "");
}

/* What a call that has to wait waits for; 0: it has failed. */
static short
waits_for(SSL *ssl, int rc)
{
	switch (SSL_get_error(ssl, rc))
	{
		case SSL_ERROR_WANT_READ:
			return POLLIN;
		case SSL_ERROR_WANT_WRITE:
			return POLLOUT;
		default:
			return 0;
	}
}

bool
bstream_start_tls(BSink *p, BStream *s, int64_t deadline)
{
	const BSinkConfig *c = &p->config;
	const IdemTlsFiles files = {c->sslrootcert, c->sslcert, c->sslkey, c->sslpassword};
	SSL_CTX    *ctx = idem_tls_context();
	const char *doing = ctx != NULL ? idem_tls_load(ctx, &files) : NULL;
	SSL		   *ssl = ctx != NULL && doing == NULL ? idem_tls_session(ctx, s->peer.host) : NULL;
	bool		ok = ssl != NULL && SSL_set_fd(ssl, s->fd) == 1;

	if (!ok)
		tls_fail(p, doing != NULL ? IDEM_PROTO_REJECTED : IDEM_PROTO_OUTAGE, doing != NULL ? doing : "begin");
	SSL_CTX_free(ctx);
	s->tls = ssl;
	while (ok)
	{
		int			rc = SSL_connect(ssl);
		struct pollfd fd = {.fd = s->fd, .events = rc == 1 ? 0 : waits_for(ssl, rc)};
		int64_t		left = deadline - idem_sink_clock();
		long		verified = SSL_get_verify_result(ssl);

		if (rc == 1)
			break;
		if (verified != X509_V_OK)
			ok = idem_sink_fail(&p->failure, IDEM_PROTO_OUTAGE, "08006", "TLS: the certificate of %s is refused: %s", s->peer.host,
								X509_verify_cert_error_string(verified));
		else if (fd.events == 0)
			ok = tls_fail(p, IDEM_PROTO_OUTAGE, "connect");
		else if (left <= 0 || poll(&fd, 1, (int) left) == 0)
			ok = idem_sink_fail(&p->failure, IDEM_PROTO_OUTAGE, "08006", "TLS: %s gave no answer in time", s->peer.host);
	}
	return ok;
}

void
bstream_end_tls(BStream *s)
{
	SSL_free(s->tls);
	s->tls = NULL;
}

ssize_t
bstream_write(BStream *s, const void *data, size_t len, short *wait_for)
{
	ssize_t		rc;

	*wait_for = POLLOUT;
	if (s->tls == NULL)
		return send(s->fd, data, len, MSG_NOSIGNAL);
	ERR_clear_error();
	errno = 0;
	rc = SSL_write(s->tls, data, len > INT32_MAX ? INT32_MAX : (int) len);
	if (rc > 0)
		return rc;
	*wait_for = waits_for(s->tls, (int) rc);
	if (*wait_for != 0)
		errno = EAGAIN;
	else if (errno == 0 || errno == EAGAIN)
		errno = ECONNRESET;
	return -1;
}

ssize_t
bstream_read(BStream *s, void *data, size_t len, short *wait_for)
{
	ssize_t		rc;

	*wait_for = POLLIN;
	if (s->tls == NULL)
		return recv(s->fd, data, len, 0);
	ERR_clear_error();
	errno = 0;
	rc = SSL_read(s->tls, data, len > INT32_MAX ? INT32_MAX : (int) len);
	if (rc > 0)
		return rc;
	if (SSL_get_error(s->tls, (int) rc) == SSL_ERROR_ZERO_RETURN)
		return 0;
	*wait_for = waits_for(s->tls, (int) rc);
	if (*wait_for != 0)
		errno = EAGAIN;
	else if (errno == 0 || errno == EAGAIN)
		errno = ECONNRESET;
	return -1;
}
