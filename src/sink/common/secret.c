/*-------------------------------------------------------------------------
 *
 * secret.c
 *		Reads a secret out of a file.
 *
 * Each start of a program reads the file, so the next start finds a rotated
 * secret.  Opening the file does not block on a FIFO, and only regular files
 * are read.  No byte of the file goes into a message.
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
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_SECRET	4096

char *
idem_sink_read_secret(IdemSink *s, const char *path)
{
	char		buf[MAX_SECRET + 1];
	struct stat st;
	size_t		len = 0;
	size_t		line;
	ssize_t		n = 0;
	int			fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);

	if (fd < 0)
		idem_sink_failed(s, IDEM_PROTO_REJECTED, "58030",
						 "could not open secret_file \"%s\": %s", path, strerror(errno));
	if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))
		idem_sink_failed(s, IDEM_PROTO_REJECTED, "58030",
						 "secret_file \"%s\" is not a regular file", path);
	while (len < sizeof(buf) && (n = read(fd, buf + len, sizeof(buf) - len)) > 0)
		len += (size_t) n;
	if (n < 0)
		idem_sink_failed(s, IDEM_PROTO_REJECTED, "58030",
						 "could not read secret_file \"%s\": %s", path, strerror(errno));
	close(fd);
	for (line = 0; line < len && buf[line] != '\n' && buf[line] != '\r' && buf[line] != '\0';)
		line++;
	if (line == 0 || line > MAX_SECRET)
		idem_sink_failed(s, IDEM_PROTO_REJECTED, "58030",
						 "secret_file \"%s\" must begin with a line of 1 to %d bytes",
						 path, MAX_SECRET);
	return idem_sink_strdup(buf, line);
}
