/*-------------------------------------------------------------------------
 *
 * path.c
 *		Names the paths at which the file of a sink program may be.
 *
 * A program is in the directory idempotency-sinks beside the library that this
 * process has loaded, or in idempotency.sink_directory.  No function here looks
 * at a file, because the file system may not answer.  The child that is to
 * become the program tries execve at both paths, in this order (process.c).
 *
 * The path beside the library comes first: the programs there are of the
 * library's release and speak the same version of the protocol.  An image
 * volume mounts library and programs below a path of its own, which no setting
 * names.
 *
 * INVARIANT
 *		A program is a file that the operating system's administrator installed,
 *		or that a superuser's setting points to.  A user who can put a file
 *		beside the library can replace the library as well.  Names are
 *		[a-z0-9_]+ behind a fixed prefix, so no name leads out of the directory.
 *
 * MEMORY: results are in the caller's context.  LOCKING: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/program/path.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <dlfcn.h>

#include "lib/stringinfo.h"
#include "port.h"

#include "relay/kind.h"
#include "relay/program/path.h"

#define PROGRAM_PREFIX	"idempotency-sink-"
#define SUBDIRECTORY	"idempotency-sinks"

char	   *idem_sink_directory = NULL;

/*
 * Is it a safe name?  It may be a user's option, and must not lead out of the
 * directory.
 */
static bool
name_is_safe(const char *program)
{
	const char *p = program + strlen(PROGRAM_PREFIX);

	if (strlen(program) > IDEM_MAX_PROGRAM_LEN || *p == '\0')
		return false;
	return strspn(p, "abcdefghijklmnopqrstuvwxyz0123456789_") == strlen(p);
}

/*
 * The programs' directory beside the library, at the path by which the server
 * loaded the library.  Symbolic links are not followed: a library that is a
 * link has its programs beside the link.
 */
static char *
directory_beside_library(void)
{
	Dl_info		info;
	char	   *path;

	/* Any address of the library will do. */
	if (dladdr((void *) &idem_sink_directory, &info) == 0)
		elog(ERROR, "could not find the path of the library");
	path = pstrdup(info.dli_fname);
	get_parent_directory(path);
	return psprintf("%s/" SUBDIRECTORY, path[0] != '\0' ? path : ".");
}

/* idempotency.sink_directory; NULL if it is empty. */
static const char *
other_directory(void)
{
	return idem_sink_directory != NULL && idem_sink_directory[0] != '\0' ? idem_sink_directory : NULL;
}

bool
idem_program_paths(const char *program, IdemProgramPaths *paths, char **problem)
{
	const char *other = other_directory();

	if (!name_is_safe(program))
	{
		*problem = psprintf("\"%s\" is not a name of a sink program", program);
		return false;
	}
	paths->beside = psprintf("%s/%s", directory_beside_library(), program);
	paths->other = other == NULL ? NULL : psprintf("%s/%s", other, program);
	return true;
}

/*
 * The message names the package before the paths, since a long message is cut
 * off at its end.
 */
char *
idem_program_missing(const char *program)
{
	const char *name = program + strlen(PROGRAM_PREFIX);
	const IdemSinkKind *kind = idem_sink_kind(name);
	const char *other = other_directory();
	StringInfoData buf;

	initStringInfo(&buf);
	appendStringInfo(&buf, "sink program \"%s\" is not installed", program);
	if (kind != NULL && (kind->flags & IDEM_KIND_HAS_PROGRAM) != 0)
		appendStringInfo(&buf, " (package %s, or \"make install-sink-%s\")", program, name);
	appendStringInfo(&buf, "; looked in \"%s\"", directory_beside_library());
	if (other != NULL)
		appendStringInfo(&buf, " and in idempotency.sink_directory, \"%s\"", other);
	return buf.data;
}
