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
#include <arpa/inet.h>
#include <errno.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#include "sink/rabbitmq/stream.h"

/* Note what failed; false. */
static bool
tls_fail(BSink *p, IdemProtoOutcome outcome, const char *doing)
{
	unsigned long code = ERR_get_error();
	const char *reason = code != 0 ? ERR_reason_error_string(code) : NULL;

	ERR_clear_error();
	return idem_sink_fail(&p->failure, outcome, "08006", "TLS: could not %s%s%s", doing, reason ? ": " : "", reason ? reason : "");
}

/* The password of the key: of the option, and never asked for at a terminal. */
static int
give_password(char *buf, int size, int writing, void *arg)
{
	const char *password = arg;

	(void) writing;
	if (password == NULL || strlen(password) >= (size_t) size)
		return -1;
	strcpy(buf, password);
	return (int) strlen(password);
}

/* Load what the options name.  False: p->failure */
static bool
load_files(BSink *p, SSL_CTX *ctx)
{
	const BSinkConfig *c = &p->config;

	SSL_CTX_set_default_passwd_cb(ctx, give_password);
	SSL_CTX_set_default_passwd_cb_userdata(ctx, c->sslpassword);
	if (c->sslrootcert != NULL ? SSL_CTX_load_verify_locations(ctx, c->sslrootcert, NULL) != 1 :
		SSL_CTX_set_default_verify_paths(ctx) != 1)
		return tls_fail(p, IDEM_PROTO_REJECTED, "read the certificates of the option \"sslrootcert\"");
	if (c->sslcert != NULL && SSL_CTX_use_certificate_chain_file(ctx, c->sslcert) != 1)
		return tls_fail(p, IDEM_PROTO_REJECTED, "read the file of the option \"sslcert\"");
	if (c->sslkey != NULL && SSL_CTX_use_PrivateKey_file(ctx, c->sslkey, SSL_FILETYPE_PEM) != 1)
		return tls_fail(p, IDEM_PROTO_REJECTED, "read the file of the option \"sslkey\"");
	return true;
}

/* Let OpenSSL compare the host, a name or an address. */
static bool
expect_host(SSL *ssl, const char *host)
{
	unsigned char address[16];

	if (inet_pton(AF_INET, host, address) == 1 || inet_pton(AF_INET6, host, address) == 1)
		return X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), host) == 1;
	return SSL_set_tlsext_host_name(ssl, host) == 1 && SSL_set1_host(ssl, host) == 1;
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
	SSL_CTX    *ctx = SSL_CTX_new(TLS_client_method());
	SSL		   *ssl = NULL;
	bool		ok = ctx != NULL && SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION) == 1;

	if (!ok)
		tls_fail(p, IDEM_PROTO_OUTAGE, "begin");
	else if ((ok = load_files(p, ctx)))
	{
		SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER, NULL);
		ssl = SSL_new(ctx);
		ok = ssl != NULL && expect_host(ssl, s->peer.host) && SSL_set_fd(ssl, s->fd) == 1;
		if (!ok)
			tls_fail(p, IDEM_PROTO_OUTAGE, "begin");
	}
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
