/*-------------------------------------------------------------------------
 *
 * progress_fn.c
 *		The function behind the view stat_progress.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/doctor/progress_fn.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "funcapi.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "compat.h"
#include "shared/args.h"
#include "shared/progress.h"

PG_FUNCTION_INFO_V1(idem_progress_reports_fn);

/* Columns of the function */
enum
{
	COL_PID, COL_JOB, COL_OBJECT, COL_DONE, COL_TOTAL, COL_UNIT, COL_SINCE, NCOLS
};

/* progress_reports() -> setof (pid, job, object, done, total, unit, since) */
Datum
idem_progress_reports_fn(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	IdemProgress *all;
	int			n;

	InitMaterializedSRF(fcinfo, 0);
	all = idem_progress_all(&n);
	for (int i = 0; i < n; i++)
	{
		Datum		values[NCOLS] = {0};
		bool		nulls[NCOLS];

		memset(nulls, true, sizeof(nulls));
		idem_set_column(values, nulls, COL_PID, Int32GetDatum(all[i].pid));
		idem_set_column(values, nulls, COL_JOB, CStringGetTextDatum(idem_job_names[all[i].job]));
		if (all[i].job != IDEM_JOB_IMPORT)
		{
			idem_set_column(values, nulls, COL_OBJECT, Int64GetDatum(all[i].object));
			idem_set_column(values, nulls, COL_UNIT, CStringGetTextDatum(idem_job_units[all[i].job]));
		}
		idem_set_column(values, nulls, COL_DONE, Int64GetDatum(all[i].done));
		idem_set_column(values, nulls, COL_TOTAL, Int64GetDatum(all[i].total));
		idem_set_column(values, nulls, COL_SINCE, TimestampTzGetDatum(all[i].since));
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	PG_RETURN_NULL();
}
