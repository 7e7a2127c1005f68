/*-------------------------------------------------------------------------
 *
 * post.c
 *		libcurl's own fastest loop, as a program would use it: posts events from
 *		memory, with the headers that the http sink makes.
 *
 *	post URL EVENTS CONCURRENCY PAYLOAD
 *
 * The loop is curl_multi_socket_action on one epoll descriptor.  So many requests
 * are under way at once; each easy handle posts one event after the other, and
 * connections are kept.  Prints the events per second between the first tenth and
 * the last event, and the CPU seconds of this process, less those until the first
 * event was sent.
 *
 * MEMORY: a handle per request that is under way.  LOCKING: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		test/bench/post.c
 *
 *-------------------------------------------------------------------------
 */
#include <curl/curl.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "usage.h"

#define MOST	256				/* requests at once */

typedef struct Post
{
	CURL	   *easy;
	struct curl_slist *headers;
	char		url[1024];
} Post;

static const char *url;
static const char *payload;
static long events;
static long begun;
static long done;
static long timeout = -1;		/* ms, of libcurl */
static double tenth_at;
static int	epoll_fd;
static CURLM *multi;

static void die(const char *what, const char *why) __attribute__((noreturn));

static void
die(const char *what, const char *why)
{
	fprintf(stderr, "post: %s: %s\n", what, why);
	exit(1);
}

static size_t
ignore(char *data, size_t size, size_t n, void *arg)
{
	(void) data;
	(void) arg;
	return size * n;
}

static int
on_socket(CURL *easy, curl_socket_t fd, int what, void *arg, void *known)
{
	struct epoll_event e = {.data.fd = fd};

	(void) easy;
	(void) arg;
	if (what == CURL_POLL_REMOVE)
		epoll_ctl(epoll_fd, EPOLL_CTL_DEL, fd, NULL);
	else
	{
		e.events = (what & CURL_POLL_IN ? EPOLLIN : 0) | (what & CURL_POLL_OUT ? EPOLLOUT : 0);
		if (epoll_ctl(epoll_fd, known != NULL ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, fd, &e) != 0)
			die("epoll_ctl", strerror(errno));
		curl_multi_assign(multi, fd, &epoll_fd);
	}
	return 0;
}

static int
on_timer(CURLM *m, long ms, void *arg)
{
	(void) m;
	(void) arg;
	timeout = ms;
	return 0;
}

/* Begin to post the next event. */
static void
begin(Post *p)
{
	char		id[64];
	char		line[128];

	snprintf(id, sizeof(id), "00000000-0000-4000-8000-%012ld", begun);
	curl_slist_free_all(p->headers);
	p->headers = NULL;
	snprintf(line, sizeof(line), "webhook-id: %s", id);
	p->headers = curl_slist_append(p->headers, line);
	snprintf(line, sizeof(line), "Idempotency-Key: %s", id);
	p->headers = curl_slist_append(p->headers, line);
	p->headers = curl_slist_append(p->headers, "Content-Type: application/json");
	p->headers = curl_slist_append(p->headers, "Expect:");
	snprintf(p->url, sizeof(p->url), "%s/order/%ld", url, begun % 1000);
	curl_easy_setopt(p->easy, CURLOPT_URL, p->url);
	curl_easy_setopt(p->easy, CURLOPT_HTTPHEADER, p->headers);
	if (curl_multi_add_handle(multi, p->easy) != CURLM_OK)
		die("curl_multi_add_handle", p->url);
	begun++;
}

static Post *
make(void)
{
	Post	   *p = calloc(1, sizeof(Post));

	if (p == NULL || (p->easy = curl_easy_init()) == NULL)
		die("curl_easy_init", "no memory");
	curl_easy_setopt(p->easy, CURLOPT_PRIVATE, p);
	curl_easy_setopt(p->easy, CURLOPT_NOSIGNAL, 1L);
	curl_easy_setopt(p->easy, CURLOPT_POSTFIELDS, payload);
	curl_easy_setopt(p->easy, CURLOPT_POSTFIELDSIZE, (long) strlen(payload));
	curl_easy_setopt(p->easy, CURLOPT_WRITEFUNCTION, ignore);
	curl_easy_setopt(p->easy, CURLOPT_PROXY, "");
	return p;
}

/* Take the answers that are there, and post the next events. */
static void
take(void)
{
	CURLMsg    *m;
	int			left;

	while ((m = curl_multi_info_read(multi, &left)) != NULL)
	{
		long		status = 0;
		Post	   *p;

		if (m->data.result != CURLE_OK)
			die(url, curl_easy_strerror(m->data.result));
		curl_easy_getinfo(m->easy_handle, CURLINFO_RESPONSE_CODE, &status);
		curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, (char **) &p);
		if (status < 200 || status > 299)
			die(url, "the status is not 2xx");
		if (++done == events / 10)
			tenth_at = now();
		curl_multi_remove_handle(multi, p->easy);
		if (begun < events)
			begin(p);
	}
}

int
main(int argc, char **argv)
{
	struct epoll_event ready[MOST];
	double		cpu_before;
	int			running;
	int			concurrency;

	if (argc != 5)
		die("usage", "post URL EVENTS CONCURRENCY PAYLOAD");
	url = argv[1];
	events = atol(argv[2]);
	concurrency = atoi(argv[3]);
	payload = argv[4];
	if (concurrency < 1 || concurrency > MOST || events < 10)
		die("usage", "CONCURRENCY is 1 to 256, EVENTS 10 or more");
	epoll_fd = epoll_create1(0);
	curl_global_init(CURL_GLOBAL_ALL);
	multi = curl_multi_init();
	curl_multi_setopt(multi, CURLMOPT_SOCKETFUNCTION, on_socket);
	curl_multi_setopt(multi, CURLMOPT_TIMERFUNCTION, on_timer);
	curl_multi_setopt(multi, CURLMOPT_MAXCONNECTS, (long) concurrency);
	cpu_before = cpu();
	for (int i = 0; i < concurrency && begun < events; i++)
		begin(make());
	while (done < events)
	{
		int			n = epoll_wait(epoll_fd, ready, MOST, timeout < 0 ? 1000 : (int) timeout);

		if (n < 0 && errno != EINTR)
			die("epoll_wait", strerror(errno));
		if (n <= 0)
			curl_multi_socket_action(multi, CURL_SOCKET_TIMEOUT, 0, &running);
		for (int i = 0; i < n; i++)
			curl_multi_socket_action(multi, ready[i].data.fd, (ready[i].events & (EPOLLIN | EPOLLHUP) ? CURL_CSELECT_IN : 0) |
									 (ready[i].events & EPOLLOUT ? CURL_CSELECT_OUT : 0) |
									 (ready[i].events & EPOLLERR ? CURL_CSELECT_ERR : 0), &running);
		take();
	}
	printf("%.1f\t%.6f\n", (double) (events - events / 10) / (now() - tenth_at), cpu() - cpu_before);
	return 0;
}
