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

void
idem_forced_settings(void)
{
	static const char *const settings[][2] = {
		{"role", "none"},
		{"search_path", "pg_catalog, pg_temp"},
		{"lock_timeout", "0"},
		{"statement_timeout", "0"},
		{"idle_in_transaction_session_timeout", "0"},
		{"transaction_timeout", "0"},
		{"idle_session_timeout", "0"},
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

	for (int i = 0; i < lengthof(settings); i++)
	{
		if (GetConfigOption(settings[i][0], true, false) != NULL)
			SetConfigOption(settings[i][0], settings[i][1], PGC_SUSET, PGC_S_OVERRIDE);
	}
}
