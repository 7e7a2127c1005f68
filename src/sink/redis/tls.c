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

#include <arpa/inet.h>
#include <hiredis/hiredis_ssl.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

/* Note what failed; false. */
static bool
tls_error(char *error, size_t cap, const char *doing)
{
	unsigned long code = ERR_get_error();
	const char *reason = code != 0 ? ERR_reason_error_string(code) : NULL;

	snprintf(error, cap, "TLS: could not %s%s%s", doing, reason ? ": " : "", reason ? reason : "");
	ERR_clear_error();
	return false;
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

/* Load what the options name.  False: error. */
static bool
load_files(void *ctx, const RSinkConfig *c, char *error, size_t cap)
{
	SSL_CTX_set_default_passwd_cb(ctx, give_password);
	SSL_CTX_set_default_passwd_cb_userdata(ctx, c->sslpassword);
	if (c->sslrootcert != NULL ? SSL_CTX_load_verify_locations(ctx, c->sslrootcert, NULL) != 1 :
		SSL_CTX_set_default_verify_paths(ctx) != 1)
		return tls_error(error, cap, "read the certificates of the option \"sslrootcert\"");
	if (c->sslcert != NULL && SSL_CTX_use_certificate_chain_file(ctx, c->sslcert) != 1)
		return tls_error(error, cap, "read the file of the option \"sslcert\"");
	if (c->sslkey != NULL && SSL_CTX_use_PrivateKey_file(ctx, c->sslkey, SSL_FILETYPE_PEM) != 1)
		return tls_error(error, cap, "read the file of the option \"sslkey\"");
	return true;
}

/* Let OpenSSL compare the host, a name or an address. */
static bool
expect_host(void *ssl, const char *host)
{
	unsigned char address[16];

	if (inet_pton(AF_INET, host, address) == 1 || inet_pton(AF_INET6, host, address) == 1)
		return X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), host) == 1;
	return SSL_set_tlsext_host_name(ssl, host) == 1 && SSL_set1_host(ssl, host) == 1;
}

bool
rsink_start_tls(RSink *p, char *error, size_t cap)
{
	SSL_CTX    *ctx = SSL_CTX_new(TLS_client_method());
	SSL		   *ssl;

	p->tls = ctx;
	if (ctx == NULL || SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION) != 1)
		return tls_error(error, cap, "begin");
	SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER, NULL);
	if (!load_files(ctx, &p->config, error, cap))
		return false;
	ssl = SSL_new(ctx);
	if (ssl == NULL || !expect_host(ssl, p->peer.host))
	{
		SSL_free(ssl);
		return tls_error(error, cap, "begin");
	}
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
