/*-------------------------------------------------------------------------
 *
 * url.c
 *		Checks the URL of the options, and makes the URL of a request.
 *
 * INVARIANT
 *		The host is the option's: placeholders stand behind it, and their values are
 *		percent-encoded.  No value makes a segment of the path that servers
 *		resolve, "." or "..".  What may be connected to is not checked here, but
 *		in address.c.
 *
 * MEMORY
 *		None of its own.  LOCKING: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/http/url.c
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sink/http/sink.h"

/* A part of the URL, or NULL; the caller frees it with curl_free. */
static char *
part_of(CURLU *url, CURLUPart part)
{
	char	   *text = NULL;

	return curl_url_get(url, part, &text, part == CURLUPART_PORT ? CURLU_DEFAULT_PORT : 0) == CURLUE_OK ? text : NULL;
}

/* What is wrong with scheme and host, or NULL. */
static const char *
judge_parts(CURLU *url, char *origin, size_t cap)
{
	char	   *scheme = part_of(url, CURLUPART_SCHEME);
	char	   *host = part_of(url, CURLUPART_HOST);
	char	   *port = part_of(url, CURLUPART_PORT);
	char	   *user = part_of(url, CURLUPART_USER);
	char	   *password = part_of(url, CURLUPART_PASSWORD);
	const char *problem = NULL;

	if (scheme == NULL || host == NULL || port == NULL ||
		(strcmp(scheme, "https") != 0 && strcmp(scheme, "http") != 0))
		problem = "must be a URL that begins with https:// or http://";
	else if (user != NULL || password != NULL)
		problem = "must not have a user or a password in it";
	else
		snprintf(origin, cap, "%s://%.200s:%s", scheme, host, port);
	curl_free(scheme);
	curl_free(host);
	curl_free(port);
	curl_free(user);
	curl_free(password);
	return problem;
}

/*
 * Libcurl judges scheme and host, without what stands behind them: a template is
 * no URL yet.
 */
static const char *
judge_authority(const char *text, size_t len, char *origin, size_t cap)
{
	char	   *copy = idem_sink_strdup(text, len);
	CURLU	   *url = curl_url();
	const char *problem = "must be a URL that begins with https:// or http://";

	if (url != NULL && curl_url_set(url, CURLUPART_URL, copy, CURLU_DISALLOW_USER) == CURLUE_OK)
		problem = judge_parts(url, origin, cap);
	else if (memchr(text, '@', len) != NULL)
		problem = "must not have a user or a password in it";
	curl_url_cleanup(url);
	free(copy);
	return problem;
}

const char *
hsink_check_url(const char *url, char *origin, size_t cap)
{
	const char *host = strstr(url, "://");
	size_t		authority;

	if (host == NULL)
		return "must be a URL that begins with https:// or http://";
	for (const char *s = url; *s != '\0'; s++)
		if ((unsigned char) *s <= ' ' || (unsigned char) *s >= 0x7F || *s == '\\' || *s == '#')
			return "must consist of the characters of a URL, percent-encoded if need be, without a fragment";
	if (strlen(url) > HSINK_MAX_URL)
		return "is too long";
	authority = (size_t) (host + 3 - url) + strcspn(host + 3, "/?");
	if (memchr(url, '{', authority) != NULL)
		return "must not have a placeholder before the path";
	return judge_authority(url, authority, origin, cap);
}

/* Has the path a segment of dots only? */
static bool
has_dot_segment(const char *path)
{
	size_t		end = strcspn(path, "?");

	for (size_t at = 0; at < end;)
	{
		size_t		len = strcspn(path + at, "/?");

		if ((len == 1 && path[at] == '.') || (len == 2 && memcmp(path + at, "..", 2) == 0))
			return true;
		at += len + 1;
	}
	return false;
}

bool
hsink_make_url(const HSink *p, const HSinkEvent *e, IdemText *url, HSinkProblem *problem)
{
	const char *path;

	url->len = 0;
	if (!hsink_expand(p, e, p->config.url, HSINK_IN_URL, url, problem))
		return false;
	idem_text_terminate(url);
	problem->sqlstate = "22023";
	snprintf(problem->text, sizeof(problem->text), "URL of the event has a segment of dots in its path");
	path = strstr(url->data, "://") + 3;
	path += strcspn(path, "/?");
	if (strchr(p->config.url, '{') != NULL && has_dot_segment(path))
		return false;
	problem->sqlstate = "54000";
	snprintf(problem->text, sizeof(problem->text), "URL of the event is longer than %d bytes", HSINK_MAX_URL);
	return url->len <= HSINK_MAX_URL;
}
