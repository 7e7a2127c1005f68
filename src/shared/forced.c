/*-------------------------------------------------------------------------
 *
 * forced.c
 *		The settings that each of our workers needs.
 *
 * A worker is a session of its database, so settings of the database apply to
 * it, which are meant for the sessions of users.
 *
 * LOCKING, MEMORY: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/shared/forced.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/guc.h"

#include "shared/forced.h"

typedef struct Setting
{
	const char *name;
	const char *value;
} Setting;

/* Set those that this server has. */
static void
force(const Setting *settings, int n)
{
	for (int i = 0; i < n; i++)
	{
		if (GetConfigOption(settings[i].name, true, false) != NULL)
			SetConfigOption(settings[i].name, settings[i].value, PGC_SUSET, PGC_S_OVERRIDE);
	}
}

void
idem_forced_settings(void)
{
	static const Setting settings[] = {
		{"role", "none"},
		{"search_path", "pg_catalog, pg_temp"},
		{"lock_timeout", "0"},
		{"statement_timeout", "0"},
		{"idle_in_transaction_session_timeout", "0"},
		{"transaction_timeout", "0"},
		{"idle_session_timeout", "0"},
		{"exit_on_error", "off"},
		{"synchronous_commit", "local"},
		{"default_transaction_isolation", "read committed"},
		{"default_transaction_read_only", "off"},
		{"default_transaction_deferrable", "off"},
		{"session_replication_role", "origin"},
		{"row_security", "on"},
		{"jit", "off"},
		{"max_parallel_workers_per_gather", "0"},
		{"debug_parallel_query", "off"},
		{"force_parallel_mode", "off"},
		{"standard_conforming_strings", "on"},
		{"transform_null_equals", "off"},
		{"debug_print_parse", "off"},
		{"debug_print_rewritten", "off"},
		{"debug_print_plan", "off"},
		{"idempotency.uncompleted_claims", "error"},
	};

	force(settings, lengthof(settings));
}

/*
 * These workers sort what others have written, so a limit on temporary files would stop
 * them for ever.  They wait for no lock of ours; if a catalog is locked, not for long.
 */
void
idem_forced_maintenance(void)
{
	static const Setting settings[] = {
		{"lock_timeout", "1s"},
		{"temp_file_limit", "-1"},
	};

	idem_forced_settings();
	force(settings, lengthof(settings));
}
