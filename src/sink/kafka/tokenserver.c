/*-------------------------------------------------------------------------
 *
 * tokenserver.c
 *		Asks a token server for an access token: OAuth 2.0, client credentials.
 *
 * librdkafka can ask by itself where it was built with libcurl, which Debian's is
 * not; its versions differ in what they encode, verify and show of an answer.
 *
 * INVARIANT
 *		The server is not trusted with more than the client's id and secret.  A
 *		request ends in its time and takes at most MAX_BYTES of headers and of answer,
 *		follows no redirect, and uses no proxy, cookie or stored login.  Without TLS
 *		it goes to an address of this machine only, whatever its name resolves to.
 *		No message has a byte of the answer, or a part of the URL but its host.
 *
 * A crash leaves a token that nobody uses.
 *
 * LOCKING
 *		None; several threads may ask.  MEMORY: a request owns its buffers.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/kafka/tokenserver.c
 *
 *-------------------------------------------------------------------------
 */
#include "sink/kafka/sink.h"

#ifdef KSINK_OAUTHBEARER

#include <arpa/inet.h>
#include <curl/curl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "sink/common/form.h"

#define MAX_BYTES	(64 * 1024)

typedef struct Request
{
	IdemText	answer;
	size_t		header_bytes;
	bool		headers_ended;
	bool		too_large;
} Request;

/* A part of the URL, or NULL; the caller frees it with curl_free. */
static char *
part_of(CURLU *url, CURLUPart part)
{
	char	   *text = NULL;

	return curl_url_get(url, part, &text, part == CURLUPART_PORT ? CURLU_DEFAULT_PORT : 0) == CURLUE_OK ? text : NULL;
}

/* What is wrong with the URL, or NULL; its host goes into s->origin. */
static const char *
judge_url(KSinkTokenServer *s, CURLU *url)
{
	char	   *scheme = part_of(url, CURLUPART_SCHEME);
	char	   *host = part_of(url, CURLUPART_HOST);
	char	   *port = part_of(url, CURLUPART_PORT);
	char	   *user = part_of(url, CURLUPART_USER);
	char	   *password = part_of(url, CURLUPART_PASSWORD);
	const char *problem = NULL;

	s->plain = scheme != NULL && strcmp(scheme, "http") == 0;
	if (scheme == NULL || host == NULL || port == NULL || (!s->plain && strcmp(scheme, "https") != 0))
		problem = "must be a URL that begins with https://";
	else if (user != NULL || password != NULL)
		problem = "must not have a user or a password in it";
	else if (s->plain && strcmp(host, "localhost") != 0 && strcmp(host, "127.0.0.1") != 0 && strcmp(host, "[::1]") != 0)
		problem = "must begin with https://, unless the token server is on this machine";
	else
		snprintf(s->origin, sizeof(s->origin), "%s://%.200s:%s", scheme, host, port);
	curl_free(scheme);
	curl_free(host);
	curl_free(port);
	curl_free(user);
	curl_free(password);
	return problem;
}

const char *
ksink_check_token_server(KSinkTokenServer *s)
{
	const char *problem = "must be a URL that begins with https://";
	CURLU	   *url;

	if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK || (url = curl_url()) == NULL)
		return "cannot be used: libcurl does not start";
	if (curl_url_set(url, CURLUPART_URL, s->url, 0) == CURLUE_OK)
		problem = judge_url(s, url);
	curl_url_cleanup(url);
	return problem;
}

/* libcurl has bytes of the answer. */
static size_t
take_answer(char *data, size_t size, size_t n, void *opaque)
{
	Request    *r = opaque;

	if (size * n > MAX_BYTES - r->answer.len)
	{
		r->too_large = true;
		return 0;
	}
	idem_text_add(&r->answer, data, size * n);
	return size * n;
}

/* libcurl has a line of the headers; an empty line ends them, a status line begins the next ones. */
static size_t
take_header(char *data, size_t size, size_t n, void *opaque)
{
	Request    *r = opaque;

	if (size * n > 0 && (data[0] == '\r' || data[0] == '\n'))
		r->headers_ended = true;
	else if (size * n >= 5 && memcmp(data, "HTTP/", 5) == 0)
		r->headers_ended = false;
	r->header_bytes += size * n;
	r->too_large = r->too_large || r->header_bytes > MAX_BYTES;
	return r->too_large ? 0 : size * n;
}

/* Is it an address of this machine? */
static bool
is_loopback(const struct curl_sockaddr *address)
{
	if (address->family == AF_INET)
		return (ntohl(((const struct sockaddr_in *) &address->addr)->sin_addr.s_addr) >> 24) == 127;
	return address->family == AF_INET6 &&
		IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *) &address->addr)->sin6_addr);
}

/* Open the socket of a request without TLS. */
static curl_socket_t
open_loopback(void *opaque, curlsocktype purpose, struct curl_sockaddr *address)
{
	(void) opaque;
	(void) purpose;
	return is_loopback(address) ? socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol) :
		CURL_SOCKET_BAD;
}

/* Allow the scheme of the URL only. */
static void
restrict_protocols(CURL *curl, const KSinkTokenServer *s)
{
#if LIBCURL_VERSION_NUM >= 0x075500
	curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, s->plain ? "http" : "https");
#else
	curl_easy_setopt(curl, CURLOPT_PROTOCOLS, s->plain ? CURLPROTO_HTTP : CURLPROTO_HTTPS);
#endif
	if (s->plain)
		curl_easy_setopt(curl, CURLOPT_OPENSOCKETFUNCTION, open_loopback);
}

/* Bound what the server can do. */
static void
set_limits(CURL *curl, const KSinkTokenServer *s, int timeout, Request *r)
{
	restrict_protocols(curl, s);
	curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, 0L);
	curl_easy_setopt(curl, CURLOPT_PROXY, "");
	curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
	curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS, (long) timeout);
	curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, (long) timeout);
	curl_easy_setopt(curl, CURLOPT_HTTP_VERSION, (long) CURL_HTTP_VERSION_1_1);
	curl_easy_setopt(curl, CURLOPT_MAXFILESIZE, (long) MAX_BYTES);
	curl_easy_setopt(curl, CURLOPT_HTTP09_ALLOWED, 0L);
	curl_easy_setopt(curl, CURLOPT_SSLVERSION, (long) CURL_SSLVERSION_TLSv1_2);
	curl_easy_setopt(curl, CURLOPT_SSL_VERIFYPEER, 1L);
	curl_easy_setopt(curl, CURLOPT_SSL_VERIFYHOST, 2L);
	if (s->rootcert != NULL)
	{
		/* these certificates and no others */
		curl_easy_setopt(curl, CURLOPT_CAINFO, s->rootcert);
		curl_easy_setopt(curl, CURLOPT_CAPATH, NULL);
	}
	curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, take_answer);
	curl_easy_setopt(curl, CURLOPT_WRITEDATA, r);
	curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, take_header);
	curl_easy_setopt(curl, CURLOPT_HEADERDATA, r);
#if LIBCURL_VERSION_NUM >= 0x075700
	curl_easy_setopt(curl, CURLOPT_QUICK_EXIT, 1L);
#endif
}

/* Let libcurl add the header with the client's login, as RFC 6749 2.3.1 encodes it. */
static void
set_login(CURL *curl, const KSinkTokenServer *s)
{
	IdemText	client = {NULL, 0, 0};
	IdemText	secret = {NULL, 0, 0};

	idem_text_add_encoded(&client, s->client, strlen(s->client));
	idem_text_add_encoded(&secret, s->secret, strlen(s->secret));
	curl_easy_setopt(curl, CURLOPT_HTTPAUTH, (long) CURLAUTH_BASIC);
	curl_easy_setopt(curl, CURLOPT_USERNAME, idem_text_terminate(&client));
	curl_easy_setopt(curl, CURLOPT_PASSWORD, idem_text_terminate(&secret));
	free(client.data);
	free(secret.data);
}

/* Note what became of a request. */
static KSinkTokenEnd
end_with(const KSinkTokenServer *s, KSinkTokenEnd end, const char *what, char *problem, size_t cap)
{
	snprintf(problem, cap, "token server %s: %s", s->origin, what);
	return end;
}

/* Judge a request without an answer. */
static KSinkTokenEnd
judge_failure(const KSinkTokenServer *s, CURL *curl, CURLcode rc, const Request *r, char *problem, size_t cap)
{
	char		what[256];
	long		error = 0;

	if (r->too_large || rc == CURLE_FILESIZE_EXCEEDED)
		return end_with(s, KSINK_TOKEN_REFUSED, "its answer is too large", problem, cap);
	curl_easy_getinfo(curl, CURLINFO_OS_ERRNO, &error);
	if (rc == CURLE_COULDNT_CONNECT && error != 0)
		return end_with(s, KSINK_TOKEN_OUTAGE, strerror((int) error), problem, cap);
	/* curl_easy_strerror has fixed texts; CURLOPT_ERRORBUFFER quotes headers */
	snprintf(what, sizeof(what), "%s", curl_easy_strerror(rc));
	switch (rc)
	{
		case CURLE_PEER_FAILED_VERIFICATION:
			return end_with(s, KSINK_TOKEN_REFUSED,
							"its certificate is not trusted, or not for this host; see the option \"token_rootcert\"", problem, cap);
		case CURLE_SSL_CACERT_BADFILE:
			return end_with(s, KSINK_TOKEN_REFUSED, "could not read the certificates of the option \"token_rootcert\"", problem, cap);
		case CURLE_UNSUPPORTED_PROTOCOL:
		case CURLE_WEIRD_SERVER_REPLY:
		case CURLE_URL_MALFORMAT:
			return end_with(s, KSINK_TOKEN_REFUSED, what, problem, cap);
		default:
			return end_with(s, KSINK_TOKEN_OUTAGE, what, problem, cap);
	}
}

/* Judge an answer by its status. */
static KSinkTokenEnd
judge_answer(const KSinkTokenServer *s, long status, const Request *r, IdemGrant *grant, char *problem, size_t cap)
{
	const char *wrong;
	char		what[256];

	if (status == 200)
	{
		wrong = idem_read_grant(r->answer.data, r->answer.len, grant);
		return wrong == NULL ? KSINK_TOKEN_GRANTED : end_with(s, KSINK_TOKEN_REFUSED, wrong, problem, cap);
	}
	if (status >= 300 && status < 400)
		snprintf(what, sizeof(what), "it answers with a redirect, HTTP %ld, which is not followed; set the option \"token_url\" to the final URL", status);
	else if (status >= 400 && status < 500)
	{
		wrong = idem_read_denial(r->answer.data, r->answer.len);
		snprintf(what, sizeof(what), "it refuses the request, HTTP %ld%s%s", status, wrong != NULL ? ", " : "", wrong != NULL ? wrong : "");
	}
	else
		snprintf(what, sizeof(what), "it answers with HTTP %ld", status);
	/* too early, too slow and too often are no refusals */
	return end_with(s, status >= 500 || status == 408 || status == 425 || status == 429 ? KSINK_TOKEN_OUTAGE : KSINK_TOKEN_REFUSED,
					what, problem, cap);
}

KSinkTokenEnd
ksink_ask_token_server(const KSinkTokenServer *s, int timeout, IdemGrant *grant, char *problem, size_t cap)
{
	CURL	   *curl = curl_easy_init();
	struct curl_slist *headers = curl_slist_append(NULL, "Accept: application/json");
	IdemText	form = {NULL, 0, 0};
	Request		r = {0};
	KSinkTokenEnd end;
	CURLcode	rc;
	long		status = 0;

	if (curl == NULL || headers == NULL)
	{
		curl_easy_cleanup(curl);
		curl_slist_free_all(headers);
		return end_with(s, KSINK_TOKEN_OUTAGE, "libcurl has no memory", problem, cap);
	}
	idem_form_ask_by_credentials(&form, s->scope, s->audience);
	set_limits(curl, s, timeout, &r);
	if (s->login_in_body)
		idem_form_add_login(&form, s->client, s->secret);
	else
		set_login(curl, s);
	curl_easy_setopt(curl, CURLOPT_URL, s->url);
	curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
	curl_easy_setopt(curl, CURLOPT_POST, 1L);
	curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE, (long) form.len);
	curl_easy_setopt(curl, CURLOPT_POSTFIELDS, form.data);
	rc = curl_easy_perform(curl);
	/* libcurl takes the end of the connection for the end of the headers */
	if (rc == CURLE_OK && !r.headers_ended)
		rc = CURLE_PARTIAL_FILE;
	curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
	end = rc == CURLE_OK ? judge_answer(s, status, &r, grant, problem, cap) :
		judge_failure(s, curl, rc, &r, problem, cap);
	curl_easy_cleanup(curl);
	curl_slist_free_all(headers);
	free(form.data);
	free(r.answer.data);
	return end;
}

#else							/* !KSINK_OAUTHBEARER */

const char *
ksink_check_token_server(KSinkTokenServer *s)
{
	(void) s;
	return "cannot be used";
}

KSinkTokenEnd
ksink_ask_token_server(const KSinkTokenServer *s, int timeout, IdemGrant *grant, char *problem, size_t cap)
{
	(void) s;
	(void) timeout;
	(void) grant;
	(void) problem;
	(void) cap;
	return KSINK_TOKEN_REFUSED;
}

#endif
