/*-------------------------------------------------------------------------
 *
 * program.c
 *		Finds the file of a sink program.
 *
 * Programs are looked for in the directory idempotency-sinks beside the library
 * that this process has loaded, then in idempotency.sink_directory.  Beside the
 * library first: library and programs are of one release and speak one version
 * of the protocol, and an image volume mounts both below a path of its own, which
 * no setting names.
 *
 * INVARIANT
 *		A program is one that the operating system's administrator installed, or a
 *		superuser's setting points to.  Nobody can put a file beside the library
 *		who could not replace the library.  Names are [a-z0-9_]+ behind a fixed
 *		prefix, so none leads out of the directory.
 *
 * MEMORY: results in the caller's context.  LOCKING: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/program.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <dlfcn.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/stringinfo.h"
#include "port.h"

#include "relay/kind.h"
#include "relay/program.h"

#define PROGRAM_PREFIX	"idempotency-sink-"
#define SUBDIRECTORY	"idempotency-sinks"
#define MAX_NAME_LEN	63

char	   *idem_sink_directory = NULL;

static bool
name_is_safe(const char *program)
{
	const char *p = program + strlen(PROGRAM_PREFIX);

	if (strlen(program) > MAX_NAME_LEN || *p == '\0')
		return false;
	return strspn(p, "abcdefghijklmnopqrstuvwxyz0123456789_") == strlen(p);
}

/*
 * The programs' directory beside the library, as the server loaded it: symbolic
 * links are not followed, so a library that is a link has its programs beside
 * the link.
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

/* The program's path in that directory, if it can be executed; else NULL. */
static char *
look_in(const char *dir, const char *program)
{
	char	   *path = psprintf("%s/%s", dir, program);
	struct stat st;

	if (stat(path, &st) == 0 && S_ISREG(st.st_mode) && access(path, X_OK) == 0)
		return path;
	pfree(path);
	return NULL;
}

/* What to install, ahead of the paths: a long message is cut off at its end. */
static char *
describe_missing(const char *program, const char *beside, const char *setting)
{
	const char *name = program + strlen(PROGRAM_PREFIX);
	const IdemSinkKind *kind = idem_sink_kind(name);
	StringInfoData buf;

	initStringInfo(&buf);
	appendStringInfo(&buf, "sink program \"%s\" is not installed", program);
	if (kind != NULL && (kind->flags & IDEM_KIND_HAS_PROGRAM) != 0)
		appendStringInfo(&buf, " (package %s, or \"make install-sink-%s\")", program, name);
	appendStringInfo(&buf, "; looked in \"%s\"", beside);
	if (setting != NULL)
		appendStringInfo(&buf, " and in idempotency.sink_directory, \"%s\"", setting);
	return buf.data;
}

char *
idem_program_path(const char *program, char **problem)
{
	char	   *beside = directory_beside_library();
	const char *setting = idem_sink_directory;
	char	   *path;

	if (!name_is_safe(program))
	{
		*problem = psprintf("\"%s\" is not a name of a sink program", program);
		return NULL;
	}
	if (setting != NULL && setting[0] == '\0')
		setting = NULL;
	path = look_in(beside, program);
	if (path == NULL && setting != NULL)
		path = look_in(setting, program);
	if (path == NULL)
		*problem = describe_missing(program, beside, setting);
	return path;
}
