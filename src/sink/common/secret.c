/*-------------------------------------------------------------------------
 *
 * secret.c
 *		Reads a secret out of a file.
 *
 * Each start of a program reads the file, so the next start finds a rotated
 * secret.  Opening the file does not block on a FIFO.  No byte of the file goes into a message.
 *
 * MEMORY
 *		The result belongs to the caller.  LOCKING: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/common/secret.c
 *
 *-------------------------------------------------------------------------
 */
#include "sink/common/secret.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#define MAX_SECRET	4096
#define MAX_TEXT	65536

/*
 * Read a file of at most max bytes into buf, which has one byte more.  Returns
 * how many bytes it has; more than max: the file is larger.
 */
static size_t
read_file(IdemSink *s, const char *option, const char *path, char *buf, size_t max)
{
	size_t		len = 0;
	ssize_t		n = 0;
	int			fd = idem_sink_open_file(s, option, path);

	while (len < max + 1 && (n = read(fd, buf + len, max + 1 - len)) > 0)
		len += (size_t) n;
	if (n < 0)
		idem_sink_failed(s, IDEM_PROTO_REJECTED, "58030",
						 "could not read %s \"%s\": %s", option, path, strerror(errno));
	close(fd);
	return len;
}

char *
idem_sink_read_secret_of(IdemSink *s, const char *option, const char *path)
{
	char		buf[MAX_SECRET + 1];
	size_t		len = read_file(s, option, path, buf, MAX_SECRET);
	size_t		line;

	for (line = 0; line < len && buf[line] != '\n' && buf[line] != '\r' && buf[line] != '\0';)
		line++;
	if (line == 0 || line > MAX_SECRET)
		idem_sink_failed(s, IDEM_PROTO_REJECTED, "58030",
						 "%s \"%s\" must begin with a line of 1 to %d bytes",
						 option, path, MAX_SECRET);
	return idem_sink_strdup(buf, line);
}

char *
idem_sink_read_secret(IdemSink *s, const char *path)
{
	return idem_sink_read_secret_of(s, "secret_file", path);
}

char *
idem_sink_read_secret_text(IdemSink *s, const char *option, const char *path)
{
	static char buf[MAX_TEXT + 1];
	size_t		len = read_file(s, option, path, buf, MAX_TEXT);

	if (len == 0 || len > MAX_TEXT || memchr(buf, '\0', len) != NULL)
		idem_sink_failed(s, IDEM_PROTO_REJECTED, "58030",
						 "%s \"%s\" must be a text of 1 to %d bytes", option, path, MAX_TEXT);
	return idem_sink_strdup(buf, len);
}
