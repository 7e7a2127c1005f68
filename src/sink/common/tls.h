/*-------------------------------------------------------------------------
 *
 * tls.h
 *		What programs that make a session of OpenSSL by themselves have in common: the
 *		files that the options name, and whose certificate the server's must be.
 *
 * The functions are here, and not in a C file, because most programs are not linked
 * with OpenSSL.
 *
 * INVARIANT
 *		A context of idem_tls_context takes no session with a server whose chain is not
 *		verified, and idem_tls_session none with a certificate of another host.
 *
 * MEMORY
 *		Context and session belong to the caller; the password has to live as long as
 *		the context.  LOCKING: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/common/tls.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_SINK_TLS_H
#define IDEM_SINK_TLS_H

#include <arpa/inet.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <stdbool.h>
#include <string.h>

/* The options; each may be NULL. */
typedef struct IdemTlsFiles
{
	const char *rootcert;		/* NULL: the authorities of the system */
	const char *cert;
	const char *key;
	char	   *password;		/* of the key */
} IdemTlsFiles;

/* The password of the key: of the option, and never asked for at a terminal. */
static int
idem_tls_give_password(char *buf, int size, int writing, void *arg)
{
	const char *password = arg;

	(void) writing;
	if (password == NULL || strlen(password) >= (size_t) size)
		return -1;
	strcpy(buf, password);
	return (int) strlen(password);
}

/* Load the files into the context.  Returns what cannot be done, or NULL. */
static inline const char *
idem_tls_load(SSL_CTX *ctx, const IdemTlsFiles *files)
{
	SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER, NULL);
	SSL_CTX_set_default_passwd_cb(ctx, idem_tls_give_password);
	SSL_CTX_set_default_passwd_cb_userdata(ctx, files->password);
	if (files->rootcert != NULL ? SSL_CTX_load_verify_locations(ctx, files->rootcert, NULL) != 1 :
		SSL_CTX_set_default_verify_paths(ctx) != 1)
		return "read the certificates of the option \"sslrootcert\"";
	if (files->cert != NULL && SSL_CTX_use_certificate_chain_file(ctx, files->cert) != 1)
		return "read the file of the option \"sslcert\"";
	if (files->key != NULL && SSL_CTX_use_PrivateKey_file(ctx, files->key, SSL_FILETYPE_PEM) != 1)
		return "read the file of the option \"sslkey\"";
	return NULL;
}

/* A context with TLS 1.2 at least; NULL if OpenSSL makes none. */
static inline SSL_CTX *
idem_tls_context(void)
{
	SSL_CTX    *ctx = SSL_CTX_new(TLS_client_method());

	if (ctx != NULL && SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION) == 1)
		return ctx;
	SSL_CTX_free(ctx);
	return NULL;
}

/* A session with the host, a name or an address, which OpenSSL compares; NULL if it makes none. */
static inline SSL *
idem_tls_session(SSL_CTX *ctx, const char *host)
{
	SSL		   *ssl = SSL_new(ctx);
	unsigned char address[16];
	bool		ok;

	if (ssl == NULL)
		return NULL;
	if (inet_pton(AF_INET, host, address) == 1 || inet_pton(AF_INET6, host, address) == 1)
		ok = X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), host) == 1;
	else
		ok = SSL_set_tlsext_host_name(ssl, host) == 1 && SSL_set1_host(ssl, host) == 1;
	if (ok)
		return ssl;
	SSL_free(ssl);
	return NULL;
}

/* The reason of OpenSSL's last error, which is forgotten; NULL: none. */
static inline const char *
idem_tls_reason(void)
{
	unsigned long code = ERR_get_error();

	ERR_clear_error();
	return code != 0 ? ERR_reason_error_string(code) : NULL;
}

#endif							/* IDEM_SINK_TLS_H */
