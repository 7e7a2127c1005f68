/*-------------------------------------------------------------------------
 *
 * server.c
 *		The areas of doctor() that look at the server: versions, settings, locks, disk,
 *		transactions, roles, what the store waits for, tables and their sequence, and counters.
 *
 * A threshold is one that a healthy server does not pass; a fault is what an operator
 * has to act on, or what takes a guarantee away.
 *
 * LOCKING: those of the views that the queries read, given back by each query.
 *
 * MEMORY: the caller's context.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/doctor/server.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/statvfs.h>
#include <unistd.h>

#include "access/twophase.h"
#include "common/relpath.h"
#include "common/string.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "storage/lock.h"
#include "utils/builtins.h"
#include "utils/guc.h"

#include "claim/count.h"
#include "doctor/doctor.h"
#include "outbox/number.h"
#include "shared/catalog.h"
#include "shared/guard.h"
#include "shared/spi.h"

/* The Makefile gives the version as a bare number. */
#define TEXT_OF(x) #x
#define AS_TEXT(x) TEXT_OF(x)
#define LIBRARY_VERSION AS_TEXT(IDEM_VERSION)

/* A disk of which less is free, in percent, is about to be full. */
#define MIN_FREE_PERCENT 5

/* A lock table of which more is in use, in percent, is about to be full. */
#define MAX_LOCKS_PERCENT 80

/* A transaction that is open for longer, and holds something up, is a finding. */
#define OPEN_TRANSACTION "1 min"

/* Run a query as the extension's owner; returns the number of rows.  Its end is end_query. */
static uint64
begin_query(const char *sql)
{
	SPI_connect();
	return idem_spi_read(sql, 0, NULL, NULL);
}

static void
end_query(void)
{
	SPI_finish();
}

/* The text of a column of a row of the query, in the context of SPI; "" if it is null. */
static char *
text_of(uint64 row, int column)
{
	char	   *value = SPI_getvalue(SPI_tuptable->vals[row], SPI_tuptable->tupdesc, column);

	return value != NULL ? value : "";
}

/* Return a fault for each row of a query that has a finding and a remedy. */
static void
put_faults(IdemDoctor *d, const char *sql)
{
	uint64		n = begin_query(sql);

	for (uint64 i = 0; i < n; i++)
		idem_doctor_put(d, IDEM_DOCTOR_PROBLEM, text_of(i, 1), text_of(i, 2));
	end_query();
}

/* Versions */

/* The version of an extension of this database; palloc'd, NULL if it is not there. */
static char *
version_of(const char *extension)
{
	Oid			types[1] = {TEXTOID};
	Datum		values[1] = {CStringGetTextDatum(extension)};
	MemoryContext caller = CurrentMemoryContext;
	char	   *version = NULL;

	SPI_connect();
	if (idem_spi_read("SELECT extversion FROM pg_catalog.pg_extension WHERE extname = $1", 1, types, values) > 0)
		version = MemoryContextStrdup(caller, text_of(0, 1));
	SPI_finish();
	return version;
}

void
idem_doctor_versions(IdemDoctor *d)
{
	char	   *ours = version_of(IDEM_EXTENSION_NAME);
	char	   *pgcrypto = version_of("pgcrypto");

	if (ours == NULL || strcmp(ours, LIBRARY_VERSION) != 0)
		idem_doctor_put(d, IDEM_DOCTOR_PROBLEM,
						psprintf("the loaded library is of version %s, the extension of this database of version %s",
								 LIBRARY_VERSION, ours != NULL ? ours : "none"),
						"Run ALTER EXTENSION idempotency UPDATE in this database. If it says that the version is installed already, restart the server: it has the former library loaded.");
	if (pgcrypto == NULL)
		idem_doctor_put(d, IDEM_DOCTOR_PROBLEM, "the extension pgcrypto is not in this database",
						"Run CREATE EXTENSION pgcrypto as a superuser.");
	if (!d->found)
		idem_doctor_put(d, IDEM_DOCTOR_OK,
						psprintf("PostgreSQL %s, idempotency %s, pgcrypto %s", GetConfigOption("server_version", false, false), ours, pgcrypto), NULL);
}

/* Settings */

/* A value of a setting that takes a guarantee away. */
typedef struct BadSetting
{
	const char *name;
	const char *value;
	const char *what;			/* it does */
	IdemDoctorOk ok;
	bool		per_session;	/* a database or a role may have it */
} BadSetting;

static const BadSetting bad_settings[] = {
	{"fsync", "off", "a crash of the machine may lose or double events, or leave the database damaged", IDEM_DOCTOR_PROBLEM, false},
	{"full_page_writes", "off", "a crash of the machine may damage tables, unless the file system never writes a part of a page", IDEM_DOCTOR_UNKNOWN, false},
	{"zero_damaged_pages", "on", "events and remembered ids on a damaged page are lost without an error", IDEM_DOCTOR_PROBLEM, true},
	{"ignore_checksum_failure", "on", "damaged pages are taken for sound", IDEM_DOCTOR_PROBLEM, true},
	{"allow_system_table_mods", "on", "tables of the extension may be altered in ways that its code does not see", IDEM_DOCTOR_PROBLEM, true},
	{"idempotency.durable_complete", "off", "a completion that was acknowledged may be lost in a crash, and its event has its effect once more", IDEM_DOCTOR_PROBLEM, true},
	{"idempotency.uncompleted_claims", "keep", "a handler that forgets to complete its claim has its effect at each delivery", IDEM_DOCTOR_PROBLEM, true},
	{"idempotency.store_maintenance", "off", "what claims remember is not packed, and grows", IDEM_DOCTOR_PROBLEM, true},
};

/* The value with which a session begins here. */
static void
look_at_value(IdemDoctor *d, const BadSetting *bad)
{
	const char *value = GetConfigOptionResetString(bad->name);

	if (value == NULL || strcmp(value, bad->value) != 0)
		return;
	idem_doctor_put(d, bad->ok, psprintf("%s is %s: %s", bad->name, bad->value, bad->what),
					psprintf("As a superuser: ALTER SYSTEM RESET %s; SELECT pg_reload_conf(); then see by SHOW in a new session whether a configuration file, the database or the role sets it.", bad->name));
}

/* What databases and roles set for themselves, where that is not what this session has. */
static void
look_at_roles(IdemDoctor *d, const BadSetting *bad)
{
	const char *value = GetConfigOptionResetString(bad->name);
	Oid			types[2] = {TEXTOID, TEXTOID};
	Datum		values[2] = {CStringGetTextDatum(bad->name), CStringGetTextDatum(bad->value)};
	uint64		n;

	if (value != NULL && strcmp(value, bad->value) == 0)
		return;
	SPI_connect();
	n = idem_spi_read("SELECT CASE WHEN s.setrole = 0 THEN '' ELSE ' for role ' || pg_catalog.quote_ident(r.rolname) END,"
					  " CASE WHEN s.setrole = 0 THEN 'DATABASE ' || pg_catalog.quote_ident(pg_catalog.current_database())"
					  "  WHEN s.setdatabase = 0 THEN 'ROLE ' || pg_catalog.quote_ident(r.rolname)"
					  "  ELSE 'ROLE ' || pg_catalog.quote_ident(r.rolname) || ' IN DATABASE '"
					  "   || pg_catalog.quote_ident(pg_catalog.current_database()) END"
					  " FROM pg_catalog.pg_db_role_setting s LEFT JOIN pg_catalog.pg_roles r ON r.oid = s.setrole"
					  " WHERE $1 || '=' || $2 = ANY (s.setconfig) AND s.setdatabase IN (0,"
					  "  (SELECT b.oid FROM pg_catalog.pg_database b WHERE b.datname = pg_catalog.current_database()))"
					  " ORDER BY 1, 2", 2, types, values);
	for (uint64 i = 0; i < n; i++)
		idem_doctor_put(d, bad->ok,
						psprintf("%s is %s%s: %s", bad->name, bad->value, text_of(i, 1), bad->what),
						psprintf("ALTER %s RESET %s; then let its sessions connect anew.", text_of(i, 2), bad->name));
	SPI_finish();
}

void
idem_doctor_settings(IdemDoctor *d)
{
	const char *defer;			/* not in PostgreSQL 16 and later */

	for (int i = 0; i < lengthof(bad_settings); i++)
	{
		look_at_value(d, &bad_settings[i]);
		if (bad_settings[i].per_session)
			look_at_roles(d, &bad_settings[i]);
	}
	defer = GetConfigOption("vacuum_defer_cleanup_age", true, false);
	if (defer != NULL && strcmp(defer, "0") != 0)
		idem_doctor_put(d, IDEM_DOCTOR_PROBLEM,
						psprintf("vacuum_defer_cleanup_age is %s: packed ids are emptied only so many transactions later", defer),
						"As a superuser: ALTER SYSTEM RESET vacuum_defer_cleanup_age; SELECT pg_reload_conf();");
	if (!d->found)
		idem_doctor_put(d, IDEM_DOCTOR_OK,
						psprintf("fsync %s, wal_level %s, synchronous_commit %s",
								 GetConfigOption("fsync", false, false), GetConfigOption("wal_level", false, false),
								 GetConfigOption("synchronous_commit", false, false)), NULL);
}

/* The lock table */

/*
 * For how many locks the server has room at least.  Claims need this table, and so does
 * everybody else.
 */
static int64
lock_table_size(void)
{
	return (int64) max_locks_per_xact * (MaxBackends + max_prepared_xacts);
}

/* Claims of one transaction must not be able to use up the lock table. */
static void
look_at_budget(IdemDoctor *d, int64 room)
{
	int			budget = strtoint(GetConfigOption("idempotency.max_claim_locks", false, false), NULL, 10);

	if (budget < 0 || budget <= room / 2)
		return;
	idem_doctor_put(d, IDEM_DOCTOR_PROBLEM,
					psprintf("idempotency.max_claim_locks is %d, and the server has room for about " INT64_FORMAT " locks: one transaction may use them up for everybody",
							 budget, room),
					"Set idempotency.max_claim_locks to -1, or raise max_locks_per_transaction and restart the server.");
}

/* Whoever has the most locks is named. */
static void
look_at_use(IdemDoctor *d, int64 room)
{
	uint64		n = begin_query("SELECT COALESCE(pg_catalog.sum(h.held), 0), (pg_catalog.array_agg(h.pid ORDER BY h.held DESC))[1], pg_catalog.max(h.held)"
								" FROM (SELECT l.pid, pg_catalog.count(*) AS held FROM pg_catalog.pg_locks l"
								"  WHERE NOT l.fastpath GROUP BY l.pid) h");
	int64		used = n > 0 ? strtoll(text_of(0, 1), NULL, 10) : 0;
	const char *pid = n > 0 ? text_of(0, 2) : "";

	if (used * 100 > room * MAX_LOCKS_PERCENT)
		idem_doctor_put(d, IDEM_DOCTOR_PROBLEM,
						psprintf(INT64_FORMAT " locks are held, and the server has room for about " INT64_FORMAT "; %s holds %s of them",
								 used, room, pid[0] != '\0' ? psprintf("process %s", pid) : "a prepared transaction", text_of(0, 3)),
						pid[0] != '\0' ?
						psprintf("Let that process end its transaction, or SELECT pg_terminate_backend(%s). If it needs so many locks, raise max_locks_per_transaction and restart the server.", pid) :
						"COMMIT PREPARED or ROLLBACK PREPARED what pg_prepared_xacts shows.");
	else if (!d->found)
		idem_doctor_put(d, IDEM_DOCTOR_OK,
						psprintf(INT64_FORMAT " of about " INT64_FORMAT " locks are held", used, room), NULL);
	end_query();
}

void
idem_doctor_locks(IdemDoctor *d)
{
	int64		room = lock_table_size();

	look_at_budget(d, room);
	look_at_use(d, room);
}

/* Disk */

/* Look at the file system of a directory; returns its free share, in percent, or -1. */
static int
look_at_disk(IdemDoctor *d, const char *what, const char *path)
{
	struct statvfs disk;
	int			free_percent;

	if (statvfs(path, &disk) != 0 || disk.f_blocks == 0)
	{
		idem_doctor_put(d, IDEM_DOCTOR_UNKNOWN, psprintf("could not look at the disk of %s: %m", what),
						"Look at it by df on the server's machine.");
		return -1;
	}
	free_percent = (int) (disk.f_bavail * 100.0 / disk.f_blocks);
	if (free_percent < MIN_FREE_PERCENT)
		idem_doctor_put(d, IDEM_DOCTOR_PROBLEM,
						psprintf("%d %% of the disk of %s are free", free_percent, what),
						"Make room on the disk, or enlarge it. See doc/howto/disk.md for what the extension holds, and why.");
	return free_percent;
}

void
idem_doctor_disk(IdemDoctor *d)
{
	char	   *path = GetDatabasePath(MyDatabaseId, MyDatabaseTableSpace);
	int			data = look_at_disk(d, "the database", path);
	int			wal = look_at_disk(d, "the write-ahead log", "pg_wal");

	if (!d->found)
		idem_doctor_put(d, IDEM_DOCTOR_OK,
						psprintf("free: %d %% for the database, %d %% for the write-ahead log", data, wal), NULL);
}

/* Transactions */

/*
 * Sessions in a transaction that holds something up.  Readers and writers of the tables hold
 * them up.  So do sessions that have changed a table's row in pg_class by GRANT or REVOKE, which
 * lock no table (shared/empty.c).  A snapshot holds up what waits for one.
 */
#define HOLDING \
	"held AS MATERIALIZED (SELECT EXISTS (SELECT FROM %t.stat_claim_segments s" \
	"   WHERE s.held_by IN ('snapshot', 'transaction')) AS by_snapshot)," \
	" ours AS MATERIALIZED (SELECT c.oid, c.xmax FROM pg_catalog.pg_class c" \
	"   JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = '" IDEM_DATA_SCHEMA_NAME "')," \
	" lockers AS MATERIALIZED (SELECT l.pid, pg_catalog.bool_or(l.locktype = 'relation') AS of_table FROM pg_catalog.pg_locks l" \
	"  WHERE l.granted AND (l.locktype = 'transactionid' AND l.transactionid IN (SELECT o.xmax FROM ours o)" \
	"   OR l.relation IN (SELECT o.oid FROM ours o) AND l.database = (SELECT b.oid FROM pg_catalog.pg_database b" \
	"    WHERE b.datname = pg_catalog.current_database())) GROUP BY l.pid)," \
	" holding AS (SELECT a.pid, a.usename, a.state, a.backend_start, a.xact_start, CASE WHEN k.of_table THEN 'with locks on tables of the extension'" \
	"   WHEN k.pid IS NOT NULL THEN 'with a GRANT or REVOKE on tables of the extension' ELSE 'and keeps packed ids from being emptied' END AS what" \
	"  FROM pg_catalog.pg_stat_activity a CROSS JOIN held h LEFT JOIN lockers k ON k.pid = a.pid" \
	"  WHERE a.datname = pg_catalog.current_database() AND a.pid <> pg_catalog.pg_backend_pid() AND a.backend_type = 'client backend'" \
	"   AND (k.pid IS NOT NULL OR h.by_snapshot AND (a.backend_xmin IS NOT NULL OR a.backend_xid IS NOT NULL)))"

/*
 * While track_activities is off the server does not note when a transaction begins, nor later
 * when it is on again.
 */
static void
look_at_untracked(IdemDoctor *d)
{
	uint64		n = begin_query("WITH " HOLDING
								" SELECT s.pid, s.usename, s.what FROM holding s WHERE s.xact_start IS NULL AND s.state IN ('disabled', 'idle in transaction', 'idle in transaction (aborted)')"
								"  AND s.backend_start < pg_catalog.clock_timestamp() - interval '" OPEN_TRANSACTION "' ORDER BY s.pid");

	for (uint64 i = 0; i < n; i++)
		idem_doctor_put(d, IDEM_DOCTOR_UNKNOWN,
						psprintf("nobody can tell how long process %s of role %s has been in a transaction, %s: track_activities is off for it, or was when the transaction began",
								 text_of(i, 1), quote_identifier(text_of(i, 2)), text_of(i, 3)),
						psprintf("As a superuser: ALTER SYSTEM RESET track_activities; SELECT pg_reload_conf(); and ALTER ROLE or ALTER DATABASE ... RESET track_activities, if pg_db_role_setting has it. If the process is still in this list after a minute, end its transaction in its client, or SELECT pg_terminate_backend(%s).", text_of(i, 1)));
	end_query();
}

void
idem_doctor_transactions(IdemDoctor *d)
{
	put_faults(d,
			   "SELECT pg_catalog.format('prepared transaction %1$L of role %2$I is open since %3$s', p.gid, p.owner, pg_catalog.date_trunc('second', p.prepared)),"
			   " pg_catalog.format('Ask its transaction manager for the outcome, then COMMIT PREPARED %1$L or ROLLBACK PREPARED %2$L in this database.', p.gid, p.gid)"
			   " FROM pg_catalog.pg_prepared_xacts p WHERE p.database = pg_catalog.current_database()"
			   "  AND p.prepared < pg_catalog.clock_timestamp() - interval '" OPEN_TRANSACTION "' ORDER BY p.prepared");

	put_faults(d,
			   "WITH " HOLDING
			   " SELECT pg_catalog.format('process %1$s of role %2$I has been in a transaction since %3$s (%4$s), %5$s', s.pid, s.usename,"
			   "   pg_catalog.date_trunc('second', s.xact_start), s.state, s.what),"
			   "  pg_catalog.format('If it is a dump or another command that goes on, let it end. Else end it in its client, or SELECT pg_terminate_backend(%1$s).', s.pid)"
			   " FROM holding s WHERE s.xact_start < pg_catalog.clock_timestamp() - interval '" OPEN_TRANSACTION "' ORDER BY s.xact_start");
	look_at_untracked(d);
	put_faults(d,
			   "SELECT pg_catalog.format('replication slot %1$I, which is %2$s, keeps packed ids from being emptied', s.slot_name,"
			   "   CASE WHEN s.active THEN 'in use' ELSE 'not in use' END),"
			   "  CASE WHEN s.active THEN 'End the long query or transaction at its standby, which has hot_standby_feedback.'"
			   "   ELSE pg_catalog.format('Let its standby connect again; if it is gone, SELECT pg_drop_replication_slot(%1$L).', s.slot_name) END"
			   " FROM pg_catalog.pg_replication_slots s WHERE s.xmin IS NOT NULL"
			   "  AND EXISTS (SELECT FROM %t.stat_claim_segments g WHERE g.held_by = 'transaction')"
			   "  AND NOT EXISTS (SELECT FROM pg_catalog.pg_stat_activity a WHERE a.backend_xid IS NOT NULL AND pg_catalog.age(a.backend_xid) >= pg_catalog.age(s.xmin))"
			   " ORDER BY s.slot_name");
	if (!d->found)
		idem_doctor_put(d, IDEM_DOCTOR_OK, "no transaction that holds something up has been open for more than " OPEN_TRANSACTION, NULL);
}

/* Roles */

void
idem_doctor_roles(IdemDoctor *d)
{
	/* what a view reads has to be granted with it */
	put_faults(d,
			   "SELECT DISTINCT pg_catalog.format('role %1$I may read the view %2$s, and not execute the function %3$s that it reads', g.rolname, v.oid::pg_catalog.regclass, p.oid::pg_catalog.regprocedure),"
			   " pg_catalog.format('GRANT EXECUTE ON FUNCTION %1$s TO %2$I;', p.oid::pg_catalog.regprocedure, g.rolname)"
			   " FROM pg_catalog.pg_class v CROSS JOIN pg_catalog.aclexplode(v.relacl) a"
			   " JOIN pg_catalog.pg_roles g ON g.oid = a.grantee"
			   " JOIN pg_catalog.pg_rewrite w ON w.ev_class = v.oid"
			   " JOIN pg_catalog.pg_depend e ON e.classid = 'pg_catalog.pg_rewrite'::pg_catalog.regclass AND e.objid = w.oid"
			   "  AND e.refclassid = 'pg_catalog.pg_proc'::pg_catalog.regclass"
			   " JOIN pg_catalog.pg_proc p ON p.oid = e.refobjid"
			   " JOIN pg_catalog.pg_namespace n ON n.oid = v.relnamespace"
			   " WHERE n.nspname = '" IDEM_API_SCHEMA_NAME "' AND v.relkind = 'v' AND a.privilege_type = 'SELECT'"
			   "  AND NOT pg_catalog.has_function_privilege(g.oid, p.oid, 'EXECUTE') ORDER BY 1");
	put_faults(d,
			   "SELECT pg_catalog.format('role %1$I may use objects of the schema %2$I, and has no USAGE on the schema', r.rolname, n.nspname),"
			   " pg_catalog.format('GRANT USAGE ON SCHEMA %1$I TO %2$I;', n.nspname, r.rolname)"
			   " FROM pg_catalog.pg_namespace n JOIN"
			   " (SELECT v.relnamespace AS nsp, a.grantee FROM pg_catalog.pg_class v CROSS JOIN pg_catalog.aclexplode(v.relacl) a"
			   "  UNION SELECT p.pronamespace, a.grantee FROM pg_catalog.pg_proc p CROSS JOIN pg_catalog.aclexplode(p.proacl) a) o ON o.nsp = n.oid"
			   " JOIN pg_catalog.pg_roles r ON r.oid = o.grantee"
			   " WHERE n.nspname = '" IDEM_API_SCHEMA_NAME "' AND NOT pg_catalog.has_schema_privilege(r.oid, n.oid, 'USAGE') ORDER BY 1");
	put_faults(d,
			   "SELECT pg_catalog.format('consumer %1$L belongs to role %2$I, which does not exist: nobody but superusers may claim', c.consumer, c.owner),"
			   " pg_catalog.format('SELECT idempotency.consumer_alter(%1$L, owner => ''role'') with the role that is to own it.', c.consumer)"
			   " FROM %t.claim_consumers c WHERE c.owner_missing ORDER BY 1");
	if (!d->found)
		idem_doctor_put(d, IDEM_DOCTOR_OK, "no role lacks a privilege that goes with what it was granted", NULL);
}

/* The dedup store and the logs */

void
idem_doctor_store(IdemDoctor *d)
{
	put_faults(d,
			   "SELECT pg_catalog.format('%1$s of what claims remember wait to be packed, and no packer is at work', pg_catalog.pg_size_pretty(pg_catalog.sum(s.bytes))),"
			   " 'SELECT idempotency.claims_maintain(); if it returns false, raise max_worker_processes and restart the server.'"
			   " FROM %t.stat_claim_segments s WHERE s.state IN ('current', 'closed') AND s.held_by = 'no packer' HAVING pg_catalog.count(*) > 0");
	put_faults(d,
			   "SELECT 'a restore of the database has not brought all rows of what claims remember',"
			   " 'Let the restore end. If it broke off, repeat it: see \"Dumps and restores\" in doc/reference/how-ids-are-remembered.md.'"
			   " FROM %t.stat_claim_segments s WHERE s.held_by = 'restore' HAVING pg_catalog.count(*) > 0");
	put_faults(d,
			   "SELECT pg_catalog.format('the log of %1$s waits to be shortened, and no worker is at work', s.log),"
			   " 'Raise max_worker_processes and restart the server, if this stays while claims come.'"
			   " FROM (SELECT 'leases' AS log, l.held_by FROM %t.stat_leases l UNION ALL SELECT 'cursors', c.held_by FROM %t.stat_cursors c) s"
			   " WHERE s.held_by = 'no worker'");
	if (!d->found)
		idem_doctor_put(d, IDEM_DOCTOR_OK, "what claims remember is packed as it comes", NULL);
}

/* Tables */

/* The tables of the extension, as "c" and, quoted, t. */
#define OF_TABLES(columns, joined) \
	"SELECT " columns ", c.oid FROM pg_catalog.pg_class c" \
	" JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace AND n.nspname = '" IDEM_DATA_SCHEMA_NAME "'" \
	" JOIN pg_catalog.pg_depend e ON e.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND e.objid = c.oid" \
	"  AND e.objsubid = 0 AND e.deptype = 'e'" \
	" CROSS JOIN LATERAL (SELECT pg_catalog.format('%1$I.%2$I', n.nspname, c.relname)) AS q (t)" \
	joined " ORDER BY c.relname"

/*
 * Sessions without the library, and other extensions, can add to a table what makes each
 * claim or event fail that writes to it.  An error of theirs names one table, and the
 * next error the next one.
 */
static const char *const additions[] = {
	OF_TABLES("pg_catalog.format('trigger %1$I on table %2$s', g.tgname, q.t),"
			  " CASE WHEN k.oid IS NOT NULL THEN pg_catalog.format('ALTER TABLE %1$s DROP CONSTRAINT %2$I;', q.t, k.conname)"
			  "  ELSE pg_catalog.format('DROP TRIGGER %1$I ON %2$s;', g.tgname, q.t) END",
			  " JOIN pg_catalog.pg_trigger g ON g.tgrelid = c.oid LEFT JOIN pg_catalog.pg_constraint k ON k.oid = g.tgconstraint"
			  " WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_depend f WHERE f.classid = 'pg_catalog.pg_proc'::pg_catalog.regclass"
			  "  AND f.objid = g.tgfoid AND f.refclassid = e.refclassid AND f.refobjid = e.refobjid AND f.deptype = 'e')"),
	OF_TABLES("pg_catalog.format('rule %1$I on table %2$s', r.rulename, q.t), pg_catalog.format('DROP RULE %1$I ON %2$s;', r.rulename, q.t)",
			  " JOIN pg_catalog.pg_rewrite r ON r.ev_class = c.oid WHERE c.relkind = 'r'"),
	OF_TABLES("pg_catalog.format('constraint %1$I of table %2$s', k.conname, q.t), pg_catalog.format('ALTER TABLE %1$s DROP CONSTRAINT %2$I;', q.t, k.conname)",
			  " JOIN pg_catalog.pg_constraint k ON k.conrelid = c.oid AND k.contype <> 'n' AND k.conname <> 'sound'"),
};

/* One row with a number near the end is enough, also if its transaction was rolled back. */
static void
look_at_numbers(IdemDoctor *d)
{
	int64		value;
	char	   *table;

	if (!idem_number_is_exhausted(&value))
		return;
	table = idem_number_exhausted_by();
	idem_doctor_put(d, IDEM_DOCTOR_PROBLEM,
					psprintf("sequence " IDEM_DATA_SCHEMA_NAME ".outbox_seq has no numbers left for events: it is at " INT64_FORMAT "%s%s",
							 value, table ? ", after a row of " : "", table ? table : ""),
					psprintf("As a superuser: %sSELECT pg_catalog.setval('" IDEM_DATA_SCHEMA_NAME ".outbox_seq', 1); SELECT idempotency.outbox_mend_seq();",
							 table == NULL ? "" :
							 psprintf("SELECT ctid, * FROM %s WHERE seq >= " INT64_FORMAT " ORDER BY seq, and DELETE the first row, which nobody enqueued; rows after it are events: let them be delivered and emptied first. No row: one that was rolled back, which counts until VACUUM. Then VACUUM (INDEX_CLEANUP ON) %s; ",
									  table, IDEM_NUMBERS_FEW, table)));
}

void
idem_doctor_tables(IdemDoctor *d)
{
	int64		value;

	if (idem_number_is_set_by_hand(&value))
		idem_doctor_put(d, IDEM_DOCTOR_PROBLEM,
						psprintf("sequence " IDEM_DATA_SCHEMA_NAME ".outbox_seq was set by others than the outbox, to " INT64_FORMAT ": what enqueues events is refused", value),
						"As a superuser: SELECT idempotency.outbox_mend_seq();");
	look_at_numbers(d);
	for (int i = 0; i < lengthof(additions); i++)
	{
		uint64		n = begin_query(additions[i]);

		for (uint64 row = 0; row < n; row++)
			if (idem_guard_written_by_c(DatumGetObjectId(idem_spi_value(SPI_tuptable->vals[row], SPI_tuptable->tupdesc, 3))))
				idem_doctor_put(d, IDEM_DOCTOR_PROBLEM,
								psprintf("%s: what writes to this table is refused", text_of(row, 1)),
								psprintf("As a superuser: %s", text_of(row, 2)));
		end_query();
	}
	if (!d->found)
		idem_doctor_put(d, IDEM_DOCTOR_OK, "nothing was added to the tables of the extension, and the numbers of events are as the outbox gave them", NULL);
}

/* Counters of verdicts */

void
idem_doctor_counters(IdemDoctor *d)
{
	int64		uncounted = idem_count_uncounted();
	int			n;

	(void) idem_counts(&n);
	if (uncounted > 0)
		idem_doctor_put(d, IDEM_DOCTOR_PROBLEM,
						psprintf(INT64_FORMAT " verdicts were counted for no consumer: more than idempotency.max_counted_consumers (%d) consumers claim on this server",
								 uncounted, idem_max_counted_consumers),
						"Give consumers names that do not change from message to message; or raise idempotency.max_counted_consumers and restart the server.");
	else
		idem_doctor_put(d, IDEM_DOCTOR_OK, psprintf("verdicts of %d consumers of this database are counted", n), NULL);
}
