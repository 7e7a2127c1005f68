/*-------------------------------------------------------------------------
 *
 * progress.c
 *		Reports of long jobs, in the place that the server has for its own commands.
 *
 * A process shows its activity in shared memory of the server: in pg_stat_activity, and
 * in numbers behind pg_stat_progress_*.  A job of ours puts its numbers there, under a
 * kind of command that is none of the server's, so that no view of the server takes them
 * for its own.  That needs no preload, ends with the process, and costs no lock.  Like the
 * server's, reports need track_activities.
 *
 * A command of the server in the same process takes the place over, and our numbers are
 * gone until the job's next report begins anew.
 *
 * MEMORY: none of ours.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/shared/progress.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/backend_progress.h"
#include "utils/backend_status.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "shared/progress.h"

/* No kind of command that the server has, or will have soon. */
#define COMMAND ((ProgressCommandType) 0x4944)

enum
{
	PARAM_JOB, PARAM_OBJECT, PARAM_DONE, PARAM_TOTAL, PARAM_SINCE
};

/* Of entries, so many are done between two reports. */
#define ENTRIES_PER_REPORT 256

const char *const idem_job_names[] = {NULL, "packing", "merging", "filling", "import"};
const char *const idem_job_units[] = {NULL, "entries", "entries", "pages", NULL};

static int64 added = 0;

void
idem_progress_begin(IdemJob job, int64 object, int64 total)
{
	static const int params[] = {PARAM_JOB, PARAM_OBJECT, PARAM_DONE, PARAM_TOTAL, PARAM_SINCE};
	const int64 values[] = {job, object, 0, total, GetCurrentTimestamp()};

	added = 0;
	pgstat_progress_start_command(COMMAND, InvalidOid);
	pgstat_progress_update_multi_param(lengthof(params), params, values);
}

void
idem_progress_set(int64 done)
{
	pgstat_progress_update_param(PARAM_DONE, done);
}

void
idem_progress_add(void)
{
	if (++added % ENTRIES_PER_REPORT == 0)
		idem_progress_set(added);
}

void
idem_progress_end(void)
{
	pgstat_progress_end_command();
}

/* Does this process show an import?  Another command, or an error, may have ended its report. */
static bool
shows_import(void)
{
	return MyBEEntry != NULL && MyBEEntry->st_progress_command == COMMAND &&
		MyBEEntry->st_progress_param[PARAM_JOB] == IDEM_JOB_IMPORT;
}

/* When the import began that this process shows, or has shown. */
static TimestampTz import_since = 0;

void
idem_progress_import(int64 done, int64 total)
{
	if (done >= total)
	{
		if (shows_import())
			idem_progress_end();
		import_since = 0;
		return;
	}
	if (import_since == 0)
		import_since = GetCurrentTimestamp();
	if (!shows_import())
		idem_progress_begin(IDEM_JOB_IMPORT, 0, total);
	pgstat_progress_update_param(PARAM_TOTAL, total);
	pgstat_progress_update_param(PARAM_SINCE, import_since);
	idem_progress_set(done);
}

/* Is it a report of ours, from this database? */
static bool
is_ours(const PgBackendStatus *status)
{
	return status->st_procpid > 0 && status->st_databaseid == MyDatabaseId &&
		status->st_progress_command == COMMAND &&
		status->st_progress_param[PARAM_JOB] >= IDEM_JOB_PACKING &&
		status->st_progress_param[PARAM_JOB] <= IDEM_JOB_IMPORT;
}

IdemProgress *
idem_progress_all(int *n)
{
	int			nbackends = pgstat_fetch_stat_numbackends();
	IdemProgress *all = palloc(sizeof(IdemProgress) * Max(nbackends, 1));

	*n = 0;
	for (int i = 1; i <= nbackends; i++)
	{
		const LocalPgBackendStatus *local = idem_compat_local_beentry(i);
		const int64 *params;

		if (local == NULL || !is_ours(&local->backendStatus))
			continue;
		params = local->backendStatus.st_progress_param;
		all[(*n)++] = (IdemProgress)
		{
			.pid = local->backendStatus.st_procpid, .job = params[PARAM_JOB], .object = params[PARAM_OBJECT],
				.done = params[PARAM_DONE], .total = params[PARAM_TOTAL], .since = params[PARAM_SINCE]
		};
	}
	return all;
}
