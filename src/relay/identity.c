/*-------------------------------------------------------------------------
 *
 * identity.c
 *		The publish identity: a name for this server and database.
 *
 * A relay is bound to the identity under which it was created or adopted, and
 * does not run under another identity.  So a copy or a restore of a database
 * does not publish beside the original.
 *
 * MEMORY: a worker keeps one string in TopMemoryContext.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/identity.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "access/xlog.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "storage/fd.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/uuid.h"

#include "outbox/outbox.h"
#include "relay/identity.h"

char	   *idem_publish_as = NULL;

static char *identity = NULL;

/*
 * Without publish_as the identity is the machine and place of this data
 * directory.  A copy elsewhere, or beside the original, has another identity.
 * The system identifier alone is not enough, since a copy keeps it.
 */
static uint64
place_hash(void)
{
	char		buf[MAXPGPATH + 256];
	char		machine[64] = "";
	struct stat st;
	int			fd = OpenTransientFile("/etc/machine-id", O_RDONLY);

	if (fd >= 0)
	{
		ssize_t		n = read(fd, machine, sizeof(machine) - 1);

		machine[n > 0 ? n : 0] = '\0';
		CloseTransientFile(fd);
	}
	if (stat(DataDir, &st) != 0)
		memset(&st, 0, sizeof(st));
	snprintf(buf, sizeof(buf), UINT64_FORMAT "|%s|%s|%llu|%llu",
			 GetSystemIdentifier(), machine, DataDir,
			 (unsigned long long) st.st_dev, (unsigned long long) st.st_ino);
	return hash_bytes_extended((unsigned char *) buf, strlen(buf), 0);
}

char *
idem_publish_identity(void)
{
	if (idem_publish_as != NULL && idem_publish_as[0] != '\0')
		return psprintf("%s/%u", idem_publish_as, MyDatabaseId);
	return psprintf("auto-%016llx/%u", (unsigned long long) place_hash(), MyDatabaseId);
}

const char *
idem_relay_identity(void)
{
	return identity;
}

void
idem_relay_identity_refresh(void)
{
	char	   *now = idem_publish_identity();

	if (identity != NULL)
		pfree(identity);
	identity = MemoryContextStrdup(TopMemoryContext, now);
	pfree(now);
}

char *
idem_relay_new_incarnation(void)
{
	pg_uuid_t	uuid;

	idem_uuid7_generate(&uuid);
	return DatumGetCString(DirectFunctionCall1(uuid_out, UUIDPGetDatum(&uuid)));
}
