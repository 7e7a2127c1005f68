/*-------------------------------------------------------------------------
 *
 * transfer.c
 *		HTTP requests by libcurl's multi interface.
 *
 * libcurl tells which sockets it waits for; they are in one epoll descriptor,
 * for which the program waits beside the worker's socket.
 *
 * INVARIANT
 *		Whatever a server does, a request ends in its time, and takes at most
 *		max_bytes of headers and of body.  It follows no redirect, uses no proxy,
 *		cookie, stored login or other cache than open connections, and connects
 *		to addresses that address.c accepts, whatever a name resolves to and
 *		however often.
 *
 * A crash leaves requests that may have arrived.
 *
 * LOCKING
 *		None.  MEMORY: slots are made as they are needed, up to the option
 *		concurrency and one for tokens, and keep their buffers.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/http/transfer.c
 *
 *-------------------------------------------------------------------------
 */
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "sink/http/sink.h"

#define CLEAN_REUSE	0x080100	/* libcurl whose handles can be used again */
#define MAX_EVENTS	64			/* of epoll, at once */
#define MOST_DIGITS	18			/* of a number that surely has 64 bits */
#define KEPT_SECONDS	4L		/* receivers close idle connections after 5 s,
								 * and more */
#define DAY			86400		/* seconds */
#define BIG_BUFFER	(256 * 1024)	/* a slot keeps no larger buffer */

/* libcurl has bytes of the body. */
static size_t
take_body(char *data, size_t size, size_t n, void *opaque)
{
	HSinkRequest *r = opaque;
	size_t		room = r->keep - r->answer.len;

	idem_text_add(&r->answer, data, size * n < room ? size * n : room);
	r->body_bytes += size * n;
	r->cut = r->body_bytes > r->max_bytes;
	return r->cut ? 0 : size * n;
}

/* Is the line a Retry-After of more seconds than 64 bits have?  libcurl reads none there. */
static bool
waits_for_ever(const char *line, size_t len)
{
	static const char name[] = "retry-after:";
	size_t		at = sizeof(name) - 1;
	size_t		first;

	if (len < at || strncasecmp(line, name, at) != 0)
		return false;
	while (at < len && (line[at] == ' ' || line[at] == '\t'))
		at++;
	while (at < len && line[at] == '0')
		at++;
	first = at;
	while (at < len && line[at] >= '0' && line[at] <= '9')
		at++;
	return at - first > MOST_DIGITS;
}

/*
 * libcurl has a line of the headers.  An empty line ends them; behind an interim
 * response a status line begins the next ones, which "HTTP/" tells, since no name
 * of a header has a slash.  libcurl takes each line that begins with a CR for the
 * empty one, so what follows a broken header would be the body of a delivery.
 */
static size_t
take_header(char *data, size_t size, size_t n, void *opaque)
{
	HSinkRequest *r = opaque;

	if ((size * n == 1 && data[0] == '\n') || (size * n == 2 && memcmp(data, "\r\n", 2) == 0))
		r->headers_ended = true;
	else if (size * n >= 5 && memcmp(data, "HTTP/", 5) == 0)
		r->headers_ended = r->waits_for_ever = false;
	else if (waits_for_ever(data, size * n))
		r->waits_for_ever = true;
	r->header_bytes += size * n;
	r->headers_cut = r->header_bytes > r->max_bytes;
	return r->headers_cut ? 0 : size * n;
}

/* Remember a socket that libcurl is to connect.  Its number may have been another's. */
static void
note_socket(HSink *p, int fd)
{
	uint32_t	i = 0;

	while (i < p->nsockets && p->sockets[i].fd != fd)
		i++;
	if (i == p->nsockets)
	{
		p->sockets = idem_sink_realloc(p->sockets, (i + 1) * sizeof(HSinkSocket));
		p->nsockets++;
	}
	p->sockets[i] = (HSinkSocket)
	{
		.fd = fd
	};
}

/* The local port of a socket, 0 if it has none. */
static int
local_port_of(HSinkSocket *s)
{
	union
	{
		struct sockaddr any;
		struct sockaddr_in v4;
		struct sockaddr_in6 v6;
	}			address;
	socklen_t	len = sizeof(address);

	memset(&address, 0, sizeof(address));
	if (s->port == 0 && getsockname(s->fd, &address.any, &len) == 0)
		s->port = address.any.sa_family == AF_INET ? ntohs(address.v4.sin_port) :
			address.any.sa_family == AF_INET6 ? ntohs(address.v6.sin6_port) : 0;
	return s->port;
}

/*
 * Has the connection, which was kept from another request, bytes before this one
 * asks?  Of a server that answered the other request twice they would be taken for the
 * answer to this one.  HTTP/2 has numbers for that, and says things unasked.  libcurl
 * tells the local port, and of a handle that is new no socket.  A port may be that of
 * two connections: then one of them is opened anew for nothing.
 */
static bool
has_unasked_bytes(const HSinkRequest *r, int local_port)
{
	HSink	   *p = r->p;
	char		byte;

	if (r->opened || (p->config.http2 && !r->is_token))
		return false;
	for (uint32_t i = 0; i < p->nsockets; i++)
		if (local_port_of(&p->sockets[i]) == local_port &&
			recv(p->sockets[i].fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0)
			return true;
	return false;
}

/*
 * There is a connection, new or kept, and the request is sent on it next.
 * libcurl 8.22 reports times of the transfer even if no connection came about.
 *
 * A kept connection may end under the request.  libcurl then sends the request again by
 * itself, up to five times, and the receiver may have read each of them.  One attempt is
 * one request, so the second call ends it.
 */
static int
note_connection(void *opaque, char *address, char *local_address, int port, int local_port)
{
	HSinkRequest *r = opaque;

	(void) address;
	(void) local_address;
	(void) port;
	if (r->was_sent)
	{
		r->ended_under = true;
		return CURL_PREREQFUNC_ABORT;
	}
	if (has_unasked_bytes(r, local_port))
	{
		r->unasked = true;
		return CURL_PREREQFUNC_ABORT;
	}
	r->was_sent = true;
	return CURL_PREREQFUNC_OK;
}

/* Open a socket to the address, if it may be connected to. */
static curl_socket_t
open_socket(void *opaque, curlsocktype purpose, struct curl_sockaddr *address)
{
	HSinkRequest *r = opaque;
	const char *refused = hsink_refuse_address(&r->p->config, (const struct sockaddr *) &address->addr, r->listed_only);
	int			fd;

	if (purpose != CURLSOCKTYPE_IPCXN)
		return CURL_SOCKET_BAD;
	if (refused != NULL)
	{
		r->refused = refused;
		return CURL_SOCKET_BAD;
	}
	r->opened = true;
	fd = socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
	if (fd >= 0)
		note_socket(r->p, fd);
	return fd;
}

/* libcurl waits for other events of a socket, or for none any more. */
static int
watch_socket(CURL *easy, curl_socket_t fd, int what, void *opaque, void *socket_data)
{
	HSink	   *p = opaque;
	struct epoll_event event = {.data.fd = fd};

	(void) easy;
	(void) socket_data;
	if (what == CURL_POLL_REMOVE)
	{
		(void) epoll_ctl(p->epoll_fd, EPOLL_CTL_DEL, fd, NULL);
		return 0;
	}
	event.events = (what & CURL_POLL_IN ? EPOLLIN : 0) | (what & CURL_POLL_OUT ? EPOLLOUT : 0);
	if (epoll_ctl(p->epoll_fd, EPOLL_CTL_MOD, fd, &event) != 0 &&
		epoll_ctl(p->epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0)
		idem_sink_broken(&p->sink, "could not watch a socket: %s", strerror(errno));
	return 0;
}

/* libcurl wants to be called after so many ms; -1: not by a timer. */
static int
set_timer(CURLM *multi, long ms, void *opaque)
{
	HSink	   *p = opaque;

	(void) multi;
	p->timer_at = ms < 0 ? -1 : idem_sink_clock() + ms;
	return 0;
}

bool
hsink_open_transfers(HSink *p)
{
	const curl_version_info_data *version;

	if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK || (p->multi = curl_multi_init()) == NULL)
		return idem_sink_fail(&p->failure, IDEM_PROTO_OUTAGE, "58000", "libcurl does not start");
	version = curl_version_info(CURLVERSION_NOW);
	if (version->version_num < HSINK_LEAST_VERSION)
		return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "0A000",
							  "libcurl %s of this machine is too old: the http sink needs " HSINK_LEAST_VERSION_TEXT " or later",
							  version->version);
	/* without it a slow resolver would keep the program from answering PINGs */
	if (!(version->features & CURL_VERSION_ASYNCHDNS))
		return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "0A000",
							  "libcurl of this machine resolves names without threads (AsynchDNS)");
	p->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	if (p->epoll_fd < 0)
		return idem_sink_fail(&p->failure, IDEM_PROTO_OUTAGE, "58000", "could not open an epoll descriptor: %s", strerror(errno));
	p->timer_at = -1;
	curl_multi_setopt(p->multi, CURLMOPT_SOCKETFUNCTION, watch_socket);
	curl_multi_setopt(p->multi, CURLMOPT_SOCKETDATA, p);
	curl_multi_setopt(p->multi, CURLMOPT_TIMERFUNCTION, set_timer);
	curl_multi_setopt(p->multi, CURLMOPT_TIMERDATA, p);
	curl_multi_setopt(p->multi, CURLMOPT_MAX_TOTAL_CONNECTIONS, p->config.concurrency + 1);
	curl_multi_setopt(p->multi, CURLMOPT_MAXCONNECTS, p->config.concurrency + 1);
	return true;
}

/* Bound what the server can do. */
static void
set_limits(CURL *easy)
{
	curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
	curl_easy_setopt(easy, CURLOPT_REDIR_PROTOCOLS_STR, "https");
	curl_easy_setopt(easy, CURLOPT_FOLLOWLOCATION, 0L);
	curl_easy_setopt(easy, CURLOPT_PROXY, "");
	curl_easy_setopt(easy, CURLOPT_NETRC, (long) CURL_NETRC_IGNORED);
	curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
	curl_easy_setopt(easy, CURLOPT_HTTP09_ALLOWED, 0L);
	curl_easy_setopt(easy, CURLOPT_PATH_AS_IS, 1L);
	curl_easy_setopt(easy, CURLOPT_QUICK_EXIT, 1L); /* await no resolver */
	curl_easy_setopt(easy, CURLOPT_SSLVERSION, (long) CURL_SSLVERSION_TLSv1_2);
	curl_easy_setopt(easy, CURLOPT_SSL_VERIFYPEER, 1L);
	curl_easy_setopt(easy, CURLOPT_SSL_VERIFYHOST, 2L);
	curl_easy_setopt(easy, CURLOPT_TCP_KEEPALIVE, 1L);
	curl_easy_setopt(easy, CURLOPT_MAXAGE_CONN, KEPT_SECONDS);
}

/* Set what stays the same for all requests of a slot. */
static void
set_up(HSinkRequest *r)
{
	const HSinkConfig *c = &r->p->config;
	const char *rootcert = r->is_token ? c->token_rootcert : c->rootcert;
	CURL	   *easy = r->easy;

	r->listed_only = r->is_token ? c->token_plain : c->plain && c->has_login;
	set_limits(easy);
	curl_easy_setopt(easy, CURLOPT_PRIVATE, r);
	curl_easy_setopt(easy, CURLOPT_OPENSOCKETFUNCTION, open_socket);
	curl_easy_setopt(easy, CURLOPT_OPENSOCKETDATA, r);
	curl_easy_setopt(easy, CURLOPT_PREREQFUNCTION, note_connection);
	curl_easy_setopt(easy, CURLOPT_PREREQDATA, r);
	curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, take_body);
	curl_easy_setopt(easy, CURLOPT_WRITEDATA, r);
	curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, take_header);
	curl_easy_setopt(easy, CURLOPT_HEADERDATA, r);
	curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, c->timeout);
	curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, c->connect_timeout);
	curl_easy_setopt(easy, CURLOPT_EXPECT_100_TIMEOUT_MS, 1L);
	curl_easy_setopt(easy, CURLOPT_POST, 1L);
	if (rootcert != NULL)
	{
		/* these certificates and no others */
		curl_easy_setopt(easy, CURLOPT_CAINFO, rootcert);
		curl_easy_setopt(easy, CURLOPT_CAPATH, NULL);
	}
	if (r->is_token)
	{
		curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, (long) CURL_HTTP_VERSION_1_1);
		return;
	}
	curl_easy_setopt(easy, CURLOPT_CUSTOMREQUEST, c->method);
	curl_easy_setopt(easy, CURLOPT_HTTP_VERSION,
					 !c->http2 ? (long) CURL_HTTP_VERSION_1_1 :
					 c->plain ? (long) CURL_HTTP_VERSION_2_PRIOR_KNOWLEDGE :
					 (long) CURL_HTTP_VERSION_2TLS);
	/* rather share a connection than open one more */
	curl_easy_setopt(easy, CURLOPT_PIPEWAIT, c->http2 && !c->plain ? 1L : 0L);
	curl_easy_setopt(easy, CURLOPT_FORBID_REUSE, c->http2 && c->plain ? 1L : 0L);
	curl_easy_setopt(easy, CURLOPT_SSLCERT, c->sslcert);
	curl_easy_setopt(easy, CURLOPT_SSLKEY, c->sslkey);
	curl_easy_setopt(easy, CURLOPT_KEYPASSWD, c->sslpassword);
}

void
hsink_free_headers(HSinkRequest *r)
{
	curl_slist_free_all(r->headers);
	r->headers = NULL;
	r->header_size = 0;
	r->header_failed = false;
}

/* Make the slot as good as new, but for its buffers. */
static void
clear(HSinkRequest *r)
{
	IdemText   *texts[] = {&r->url, &r->body, &r->answer};

	for (int i = 0; i < 3; i++)
	{
		texts[i]->len = 0;
		if (texts[i]->size <= BIG_BUFFER)
			continue;
		free(texts[i]->data);
		*texts[i] = (IdemText)
		{
			NULL, 0, 0
		};
	}
	hsink_free_headers(r);
	r->payload = NULL;
	r->payload_len = 0;
	r->weight = 0;
	r->count = 0;
	r->body_bytes = r->header_bytes = 0;
	r->cut = r->headers_cut = r->headers_ended = false;
	r->refused = NULL;
	r->code = CURLE_OK;
	r->status = 0;
	r->retry_after = 0;
	r->was_sent = r->ended_under = r->whole = r->opened = r->unasked = r->waits_for_ever = false;
}

HSinkRequest *
hsink_new_request(HSink *p)
{
	HSinkRequest *r = p->free_requests;

	if (r != NULL)
	{
		p->free_requests = r->next;
		return r;
	}
	if (p->in_flight >= p->config.concurrency)
		return NULL;
	r = idem_sink_alloc(sizeof(*r));
	memset(r, 0, sizeof(*r));
	r->p = p;
	r->events = idem_sink_alloc(p->most * sizeof(HSinkEvent *));
	r->max_bytes = p->config.max_response_bytes;
	r->keep = p->service->reads_answer ? r->max_bytes : HSINK_SHOWN_BYTES;
	return r;
}

void
hsink_add_header(HSinkRequest *r, const char *name, const void *value, size_t len)
{
	IdemText	line = {NULL, 0, 0};
	struct curl_slist *list;

	/* libcurl takes "Name:" as an order to leave the header out */
	idem_text_puts(&line, name);
	idem_text_puts(&line, len > 0 ? ": " : ";");
	idem_text_add(&line, value, len);
	idem_text_terminate(&line);
	list = curl_slist_append(r->headers, line.data);
	if (list == NULL)
		r->header_failed = true;
	else
		r->headers = list;
	r->header_size += line.len + 2;
	free(line.data);
}

/* A look sends nothing, so there is nothing to sign. */
static bool
is_signed_for_aws(const HSinkRequest *r)
{
	return r->p->config.auth == HSINK_AUTH_AWS && !r->is_token && !r->looks;
}

/*
 * Log in with a signature of AWS.  Libcurl signs the path that it has made free of
 * segments of dots, so from 8.14 on it refuses to sign one that is sent as it is.
 */
static void
set_aws(HSinkRequest *r)
{
	const HSinkConfig *c = &r->p->config;
	IdemText	provider = {NULL, 0, 0};

	idem_text_puts(&provider, "aws:amz:");
	idem_text_puts(&provider, c->region);
	idem_text_puts(&provider, ":");
	idem_text_puts(&provider, r->p->service->aws);
	idem_text_terminate(&provider);
	curl_easy_setopt(r->easy, CURLOPT_PATH_AS_IS, 0L);
	curl_easy_setopt(r->easy, CURLOPT_AWS_SIGV4, provider.data);
	curl_easy_setopt(r->easy, CURLOPT_USERNAME, c->user);
	curl_easy_setopt(r->easy, CURLOPT_PASSWORD, c->password);
	free(provider.data);
}

bool
hsink_start_request(HSink *p, HSinkRequest *r)
{
	struct curl_slist *list;

	if (r->easy == NULL)
		r->easy = curl_easy_init();

	/*
	 * No waiting for "100 Continue".  libcurl would sign this line for AWS,
	 * and not send it; there only EXPECT_100_TIMEOUT_MS bounds the wait.
	 */
	list = is_signed_for_aws(r) ? r->headers : curl_slist_append(r->headers, "Expect:");
	if (r->easy == NULL || r->header_failed || list == NULL)
		return idem_sink_fail(&p->failure, IDEM_PROTO_OUTAGE, "53200", "libcurl has no memory");
	r->headers = list;
	if (!r->is_set_up)
	{
		set_up(r);
		if (is_signed_for_aws(r))
			set_aws(r);
		r->is_set_up = true;
	}
	if (r->payload == NULL)
	{
		r->payload = r->body.data != NULL ? r->body.data : "";
		r->payload_len = r->body.len;
	}
	idem_text_terminate(&r->url);
	curl_easy_setopt(r->easy, CURLOPT_URL, r->url.data);
	curl_easy_setopt(r->easy, CURLOPT_HTTPHEADER, r->headers);
	curl_easy_setopt(r->easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t) r->payload_len);
	curl_easy_setopt(r->easy, CURLOPT_POSTFIELDS, r->payload);

	/*
	 * libcurl 7.88 fails when it uses a connection of HTTP/2 without TLS
	 * again
	 */
	curl_easy_setopt(r->easy, CURLOPT_FRESH_CONNECT, p->config.http2 && p->config.plain && !r->is_token ? 1L : 0L);
	curl_easy_setopt(r->easy, CURLOPT_CONNECT_ONLY, r->looks ? 1L : 0L);
	if (curl_multi_add_handle(p->multi, r->easy) != CURLM_OK)
		return idem_sink_fail(&p->failure, IDEM_PROTO_OUTAGE, "53200", "libcurl takes no request");
	if (!r->is_token)
		p->in_flight++;
	IDEM_SINK_FAULT_POINT(&p->sink, "http-request-started");
	return true;
}

/*
 * Is the response whole although the request has failed?  A server may answer before
 * it has read the body, and RFC 9113 8.1 wants the response to count.  Over HTTP/2 it
 * resets the stream then; over HTTP/1.1 libcurl goes on sending until the timeout.
 */
static bool
is_whole(const HSinkRequest *r)
{
	curl_off_t	length = -1;

	if ((r->code != CURLE_HTTP2_STREAM && r->code != CURLE_OPERATION_TIMEDOUT) || r->status < 200 || !r->headers_ended)
		return false;
	curl_easy_getinfo(r->easy, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &length);
	return r->status == 204 || r->status == 304 || (length >= 0 && (size_t) length == r->body_bytes);
}

/*
 * libcurl has closed the connection that had unasked bytes; start the request once more,
 * on a new one.
 */
static bool
ask_anew(HSink *p, HSinkRequest *r)
{
	curl_multi_remove_handle(p->multi, r->easy);
	curl_easy_setopt(r->easy, CURLOPT_FRESH_CONNECT, 1L);
	r->opened = true;
	return curl_multi_add_handle(p->multi, r->easy) == CURLM_OK;
}

/* The request has ended: note how. */
static void
end_request(HSink *p, CURL *easy, CURLcode code)
{
	HSinkRequest *r = NULL;
	curl_off_t	seconds = 0;

	curl_easy_getinfo(easy, CURLINFO_PRIVATE, (char **) &r);
	if (r->unasked && !r->opened && ask_anew(p, r))
		return;
	curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &r->status);
	curl_easy_getinfo(easy, CURLINFO_RETRY_AFTER, &seconds);

	/* libcurl takes the end of the connection for the end of the headers */
	r->code = code == CURLE_OK && !r->headers_ended && !r->looks ? CURLE_PARTIAL_FILE : code;
	r->whole = is_whole(r);
	if (r->waits_for_ever || seconds > DAY)
		seconds = DAY;
	r->retry_after = seconds <= 0 ? 0 : (int64_t) seconds * 1000;
	curl_multi_remove_handle(p->multi, easy);
	if (!r->is_token)
		p->in_flight--;
	r->next = NULL;
	if (p->done_requests == NULL)
		p->done_requests = r;
	else
		p->last_done->next = r;
	p->last_done = r;
	IDEM_SINK_FAULT_POINT(&p->sink, "http-request-ended");
}

void
hsink_drive(HSink *p)
{
	struct epoll_event events[MAX_EVENTS];
	int			n = epoll_wait(p->epoll_fd, events, MAX_EVENTS, 0);
	int			running;
	int			left;
	CURLMsg    *message;

	for (int i = 0; i < n; i++)
		curl_multi_socket_action(p->multi, events[i].data.fd,
								 (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR) ? CURL_CSELECT_IN : 0) |
								 (events[i].events & EPOLLOUT ? CURL_CSELECT_OUT : 0) |
								 (events[i].events & EPOLLERR ? CURL_CSELECT_ERR : 0), &running);
	if (p->timer_at >= 0 && idem_sink_clock() >= p->timer_at)
	{
		p->timer_at = -1;
		curl_multi_socket_action(p->multi, CURL_SOCKET_TIMEOUT, 0, &running);
	}
	while ((message = curl_multi_info_read(p->multi, &left)) != NULL)
		if (message->msg == CURLMSG_DONE)
			end_request(p, message->easy_handle, message->data.result);
}

HSinkRequest *
hsink_next_done(HSink *p)
{
	HSinkRequest *r = p->done_requests;

	if (r != NULL)
		p->done_requests = r->next;
	return r;
}

/*
 * libcurl before 8.1.0 keeps a pointer into the headers of a handle's last
 * response, and follows it if the next response begins with a folded line.  So
 * such a libcurl gets a new handle for each request; connections stay.
 */
static void
renew_handle(HSinkRequest *r)
{
	if (curl_version_info(CURLVERSION_NOW)->version_num >= CLEAN_REUSE || r->easy == NULL)
		return;
	curl_easy_cleanup(r->easy);
	r->easy = NULL;
	r->is_set_up = false;
}

void
hsink_free_request(HSink *p, HSinkRequest *r)
{
	renew_handle(r);
	clear(r);
	if (r->is_token)
		return;					/* p->token_request keeps it */
	r->next = p->free_requests;
	p->free_requests = r;
}
