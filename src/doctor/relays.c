/*-------------------------------------------------------------------------
 *
 * relays.c
 *		The areas of doctor() that look at relays: preload, workers, the witness,
 *		sink programs, and which relays do not get on.
 *
 * relay_check looks at one relay, and at its target.  This file looks at all relays of
 * the database, at no target, and says only what a monitor may know: what a sink or a
 * handler said is in stat_relay, for those who may read dead_letters.
 *
 * LOCKING: the lock of a reader on "relays" and "relay_parked", to the end of the area's
 * subtransaction.  Behind somebody who keeps the tables locked an area does not wait.
 *
 * MEMORY: the caller's context: the configurations of all relays.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/doctor/relays.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <unistd.h>

#include "access/xlog.h"
#include "commands/dbcommands.h"
#include "executor/spi.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"

#include "doctor/doctor.h"
#include "outbox/segment.h"
#include "relay/child/process.h"
#include "relay/config.h"
#include "relay/kind.h"
#include "relay/position/position.h"
#include "relay/report.h"
#include "relay/witness.h"
#include "relay/worker_slots.h"
#include "shared/catalog.h"
#include "shared/lock_wait.h"
#include "shared/spi.h"

/* Relays that get on wait for nothing but events for so long; as under "Look" in operate.md. */
#define PATIENCE "5 s"

/* Preload */

void
idem_doctor_preload(IdemDoctor *d)
{
	if (!idem_slots_exist())
		idem_doctor_put(d, IDEM_DOCTOR_PROBLEM, "the library \"idempotency\" is not preloaded, so no relay runs and no claim is counted",
						"Add idempotency to shared_preload_libraries, and restart the server.");
	else
		idem_doctor_put(d, IDEM_DOCTOR_OK, RecoveryInProgress() ?
						"the library is preloaded; this server is a standby, on which no relay runs" :
						"the library is preloaded", NULL);
}

/* Can the table be read at once?  If not, say who has it. */
static bool
is_free(IdemDoctor *d, IdemRelRef *table)
{
	Oid			oid = idem_relref_oid(table);
	LOCKTAG		tag;
	IdemHolder *holders;
	int			n;
	bool		by_session;

	if (ConditionalLockRelationOid(oid, AccessShareLock))
		return true;
	SET_LOCKTAG_RELATION(tag, MyDatabaseId, oid);
	holders = idem_holders(&tag, LOCKBIT_ON(AccessExclusiveLock), &n);
	by_session = n > 0 && holders[0].pid != 0;
	idem_doctor_put(d, IDEM_DOCTOR_PROBLEM,
					psprintf("%s keeps the table \"%s\" locked, so relays wait and nobody can look at them",
							 by_session ? psprintf("process %d", holders[0].pid) : "a transaction", table->name),
					by_session ? psprintf("Let it end its transaction, or SELECT pg_terminate_backend(%d).", holders[0].pid) :
					"COMMIT PREPARED or ROLLBACK PREPARED what pg_prepared_xacts shows.");
	return false;
}

/* All relays of the database; NULL in *readable if their table is locked, which then has a row. */
static List *
relays_of(IdemDoctor *d, bool *readable)
{
	static IdemRelRef relays = IDEM_RELREF("relays");
	static IdemRelRef parked = IDEM_RELREF("relay_parked");

	*readable = is_free(d, &relays) && is_free(d, &parked);
	if (!*readable)
		return NIL;
	idem_relay_identity_refresh();
	return idem_relay_configs();
}

/* Workers */

/* Is there a process for the relays of this database? */
static void
look_at_own_worker(IdemDoctor *d)
{
	IdemSlotState state = idem_slots_state(0);

	if (state == IDEM_SLOT_RUNS)
		return;
	if (!idem_slots_have_launcher())
		idem_doctor_put(d, IDEM_DOCTOR_PROBLEM,
						psprintf("the launcher of relays does not run: all max_worker_processes (%d) are in use, or it has just ended", max_worker_processes),
						"Look again in ten seconds. If it stays, raise max_worker_processes and restart the server.");
	else if (idem_slots_lack_process() || idem_slots_outnumber_processes())
		idem_doctor_put(d, IDEM_DOCTOR_PROBLEM,
						psprintf("the relays of this database have no worker: all max_worker_processes (%d) are in use", max_worker_processes),
						"Raise max_worker_processes by one for the launcher, one for each database with relays, idempotency.max_function_workers and two for upkeep, and restart the server.");
	else if (state == IDEM_SLOT_NOT_THERE)
		idem_doctor_put(d, IDEM_DOCTOR_PROBLEM,
						psprintf("the relays of this database have no worker: no slot of idempotency.max_workers (%d) is free, the database allows no connections, or it is not known to have relays", idem_relay_max_workers),
						psprintf("Look again in ten seconds. If it stays, as a superuser: SECURITY LABEL FOR idempotency ON DATABASE %s IS 'relays'; if that changes nothing within a minute, raise idempotency.max_workers and restart the server.",
								 quote_identifier(get_database_name(MyDatabaseId))));
	else
		idem_doctor_put(d, IDEM_DOCTOR_PROBLEM, "the worker of this database's relays does not run yet",
						"Look again in ten seconds. If it stays, the server log says why the worker ends.");
}

/* A handler of a relay that no view shows has one of the database's places. */
static void
look_at_strays(IdemDoctor *d, List *relays)
{
	int			n;
	IdemFunctionSlot *slots = idem_slots_functions(&n);
	List	   *functions = idem_relay_function_ids(relays);

	for (int i = 0; i < n; i++)
	{
		if (!slots[i].hung || list_member_int(functions, slots[i].relay_id))
			continue;
		idem_doctor_put(d, IDEM_DOCTOR_PROBLEM,
						psprintf("process %d still runs the handler of a function relay that was dropped or altered, and is one of idempotency.max_function_workers (%d)",
								 (int) slots[i].pid, idem_max_function_workers),
						psprintf("Let the handler come to its end, or as a superuser: SELECT pg_terminate_backend(%d).", (int) slots[i].pid));
	}
}

void
idem_doctor_workers(IdemDoctor *d)
{
	bool		readable;
	List	   *relays = NIL;

	if (!idem_slots_exist() || RecoveryInProgress())
	{
		idem_doctor_put(d, IDEM_DOCTOR_OK, "none is needed here", NULL);
		return;
	}
	relays = relays_of(d, &readable);
	if (!readable)
		return;
	if (relays != NIL)
		look_at_own_worker(d);
	look_at_strays(d, relays);
	if (!d->found)
		idem_doctor_put(d, IDEM_DOCTOR_OK,
						psprintf("%d relays in this database; idempotency.max_workers %d, idempotency.max_relays %d, max_worker_processes %d",
								 list_length(relays), idem_relay_max_workers, idem_relay_max_relays, max_worker_processes), NULL);
}

/* The witness */

void
idem_doctor_witness(IdemDoctor *d)
{
	if (idem_publish_witness == NULL || idem_publish_witness[0] == '\0')
		idem_doctor_put(d, IDEM_DOCTOR_OK, "no witness is set: idempotency.publish_witness is empty", NULL);
	else if (!idem_slots_exist() || RecoveryInProgress())
		idem_doctor_put(d, IDEM_DOCTOR_OK, "a witness is set, and not asked here", NULL);
	else if (idem_witness_allows())
		idem_doctor_put(d, IDEM_DOCTOR_OK, "the witness says yes", NULL);
	else
		idem_doctor_put(d, IDEM_DOCTOR_PROBLEM, "there is no valid yes of idempotency.publish_witness, so no relay of this server sends anything",
						"Run the command of idempotency.publish_witness as the server's user: it has to exit with 0 within idempotency.publish_witness_timeout. last_error of stat_relay has its last words.");
}

/* Programs */

/* Is the program where the worker looks for it? */
static bool
is_installed(const char *program)
{
	IdemSpawn	spawn = {0};
	char	   *problem;

	return idem_process_find(program, &spawn, &problem) &&
		(access(spawn.path, X_OK) == 0 || (spawn.other_path != NULL && access(spawn.other_path, X_OK) == 0));
}

/* The kinds of sinks whose program is there, or is not; palloc'd. */
static char *
kinds(bool installed)
{
#define KIND_NAME(name, options, flags) {#name, flags},
	static const struct
	{
		const char *name;
		int			flags;
	}			all[] = {IDEM_SINK_KINDS(KIND_NAME)};
	StringInfoData buf;

	initStringInfo(&buf);
	for (int i = 0; i < lengthof(all); i++)
	{
		if ((all[i].flags & IDEM_KIND_HAS_PROGRAM) != 0 &&
			is_installed(psprintf("idempotency-sink-%s", all[i].name)) == installed)
			appendStringInfo(&buf, "%s%s", buf.len > 0 ? ", " : "", all[i].name);
	}
	return buf.len > 0 ? buf.data : pstrdup("none");
}

void
idem_doctor_programs(IdemDoctor *d)
{
	bool		readable;
	List	   *relays = relays_of(d, &readable);
	ListCell   *lc;

	foreach(lc, relays)
	{
		const IdemRelayConfig *c = lfirst(lc);

		if (c->program == NULL || is_installed(c->program))
			continue;
		idem_doctor_put(d, IDEM_DOCTOR_PROBLEM,
						psprintf("sink program \"%s\" of relay \"%s\" is not installed", c->program, c->name),
						idem_process_missing_remedy(c->program));
	}
	if (readable && !d->found)
		idem_doctor_put(d, IDEM_DOCTOR_OK, psprintf("installed: %s; not installed: %s", kinds(true), kinds(false)), NULL);
}

/* Relays */

/* What to do about a relay's state. */
static char *
remedy_of(IdemRelayState state, const char *relay)
{
	const char *name = quote_literal_cstr(relay);

	switch (state)
	{
		case IDEM_RELAY_PAUSED:
			return psprintf("SELECT idempotency.relay_resume(%s), when it may go on.", name);
		case IDEM_RELAY_UNADOPTED:
			return psprintf("Make sure that the server that this one is a copy of does not publish any more; then, as the relay's owner, SELECT idempotency.relay_adopt(%s).", name);
		case IDEM_RELAY_DIVERGED:
			return psprintf("Read \"diverged\" under States in doc/reference/relay.md first: target and database differ. Then, as the relay's owner, SELECT idempotency.relay_adopt(%s); if the target was set back, SELECT idempotency.relay_replay(%s, since => '-infinity') as well, without which it does not get again what it lost.", name, name);
		case IDEM_RELAY_FENCED:
			return psprintf("Find the other server that publishes as this relay, and stop one of the two. To let this one go on: SELECT idempotency.relay_resume(%s).", name);
		case IDEM_RELAY_HALTED:
			return psprintf("As an operator read last_error of stat_relay and put right what it names; then SELECT idempotency.relay_resume(%s).", name);
		case IDEM_RELAY_UNWITNESSED:
			return "See the area \"witness\".";
		default:
			return psprintf("As an operator: SELECT * FROM idempotency.relay_check(%s) WHERE ok IS NOT TRUE, which says what to do.", name);
	}
}

/* Does a state need somebody? */
static bool
is_fault(IdemRelayState state)
{
	return state != IDEM_RELAY_STARTING && state != IDEM_RELAY_STREAMING && state != IDEM_RELAY_IDLE;
}

/*
 * The state of a relay, if it is one that needs somebody.  A worker's entry says more than
 * the configuration, of which it may know nothing yet.
 */
static bool
needs_somebody(const IdemRelayConfig *c, const IdemRelayEntry *entries, int n, IdemRelayState *state)
{
	const char *message;

	if (idem_relay_is_barred(c, state, &message))
		return true;
	for (int i = 0; i < n; i++)
	{
		*state = entries[i].state;
		if (entries[i].relay_id == c->relay_id)
			return is_fault(*state);
	}
	return false;
}

/* Why the configuration bars the relay; "" where only the sink knows.  A halt may quote the sink. */
static const char *
reason_of(const IdemRelayConfig *c, IdemRelayState state)
{
	IdemRelayState barred;
	const char *message;

	if (!idem_relay_is_barred(c, &barred, &message) || message == NULL)
		return "";
	return psprintf(": %s", barred == IDEM_RELAY_HALTED || barred == IDEM_RELAY_DIVERGED ?
					idem_relay_halts[c->halted].message : message);
}

/* A relay that fails may fail for want of its position. */
static bool
lost_position(const IdemRelayConfig *c)
{
	IdemRelayState barred;
	const char *message;

	return !idem_relay_is_barred(c, &barred, &message) && idem_position_last(c->relay_id, c->epoch) == NULL;
}

static void
put_state(IdemDoctor *d, const IdemRelayConfig *c, IdemRelayState state)
{
	bool		lost = lost_position(c);

	idem_doctor_put(d, IDEM_DOCTOR_PROBLEM,
					psprintf("relay \"%s\" is %s%s", c->name, idem_state_names[state],
							 lost ? ": the log of positions has no position of it" : reason_of(c, state)),
					lost ? IDEM_LOST_POSITION_REMEDY : remedy_of(state, c->name));
}

/* What to do about a relay that has waited for this for longer than it should. */
static char *
remedy_of_wait(const char *waiting, const char *relay)
{
	if (strncmp(waiting, idem_wait_names[IDEM_WAIT_SLOT], strlen(idem_wait_names[IDEM_WAIT_SLOT])) == 0)
		return strcmp(waiting, idem_wait_names[IDEM_WAIT_SLOT]) == 0 ?
			"Raise idempotency.max_workers, of which each database with relays and each function relay at work has one, and restart the server." :
			"Raise max_worker_processes and restart the server, or end the sessions whose parallel queries have the processes.";
	if (strcmp(waiting, idem_wait_names[IDEM_WAIT_SYNC_STANDBY]) == 0)
		return "Bring a standby of synchronous_standby_names back, or take it out of this setting and SELECT pg_reload_conf().";
	if (strcmp(waiting, idem_wait_names[IDEM_WAIT_PARKED_ROOM]) == 0)
		return "As an operator read last_error of stat_relay and mend the cause; or raise idempotency.max_parked and SELECT pg_reload_conf().";
	if (strcmp(waiting, idem_wait_names[IDEM_WAIT_TURN]) == 0)
		return IDEM_HUNG_REMEDY;
	if (strcmp(waiting, idem_wait_names[IDEM_WAIT_LOCK]) == 0 || strcmp(waiting, idem_wait_names[IDEM_WAIT_FUNCTION]) == 0)
		return "End the transaction that pg_blocking_pids() names for the relay's process, pid of stat_relay; if there is none, the function itself takes so long.";
	return psprintf("As an operator: SELECT * FROM idempotency.relay_check(%s) WHERE ok IS NOT TRUE; and read last_error of stat_relay.", quote_literal_cstr(relay));
}

/*
 * Relays in a good state that do not get on: those of the query under "Look" in
 * doc/howto/operate.md.
 */
static void
look_at_waits(IdemDoctor *d)
{
	uint64		n;

	SPI_connect();
	n = idem_spi_read("SELECT r.relay, r.waiting_for, CASE WHEN w.waits THEN"
					  "  pg_catalog.format('has waited for %1$s since %2$s', r.waiting_for, pg_catalog.date_trunc('second', r.waiting_since))"
					  "  ELSE pg_catalog.format('has refused events that wait since %1$s', pg_catalog.date_trunc('second', r.oldest_waiting)) END"
					  " FROM %t.stat_relay r CROSS JOIN LATERAL (SELECT COALESCE("
					  "   r.waiting_for = 'room for parked events' OR r.waiting_for LIKE 'worker slot%'"
					  "   OR (r.waiting_for NOT IN ('events', 'retry') AND r.waiting_since < pg_catalog.now() - interval '" PATIENCE "'), false)) AS w (waits)"
					  " WHERE r.state IN ('streaming', 'idle', 'starting') AND (w.waits OR (r.retrying > 0"
					  "  AND ((r.delivered_at > r.last_error_at) IS NOT TRUE OR r.oldest_waiting < pg_catalog.now() - interval '" PATIENCE "')))"
					  " ORDER BY r.relay", 0, NULL, NULL);
	for (uint64 i = 0; i < n; i++)
	{
		char	   *relay = SPI_getvalue(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 1);
		char	   *waiting = SPI_getvalue(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 2);

		idem_doctor_put(d, IDEM_DOCTOR_PROBLEM,
						psprintf("relay \"%s\" %s", relay, SPI_getvalue(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 3)),
						remedy_of_wait(waiting != NULL ? waiting : "", relay));
	}
	SPI_finish();
}

/*
 * Only setval brings these sequences near their end, where relays stop.  What drew a number since
 * may be deleted; so the remedy goes back to what is there.
 */
static void
look_at_sequences(IdemDoctor *d)
{
	uint64		n = idem_spi_read("SELECT 'relay_log_id', s.last_value, 1152921504606846975,"
								  " GREATEST(1, (SELECT pg_catalog.max(id) FROM %s.relay_log_0), (SELECT pg_catalog.max(id) FROM %s.relay_log_1),"
								  "  (SELECT pg_catalog.max(epoch) FROM %s.relays), (SELECT pg_catalog.max(attempt) FROM %s.relay_attempts))"
								  " FROM %s.relay_log_id s WHERE s.last_value > 1152921504606846975 / 2"
								  " UNION ALL SELECT 'relay_parked_parked_id_seq', s.last_value, 9223372036854775807,"
								  " GREATEST(1, (SELECT pg_catalog.max(parked_id) FROM %s.relay_parked))"
								  " FROM %s.relay_parked_parked_id_seq s WHERE s.last_value > 9223372036854775807 / 2", 0, NULL, NULL);

	for (uint64 i = 0; i < n; i++)
	{
		char	   *column[4];

		for (int k = 0; k < lengthof(column); k++)
			column[k] = SPI_getvalue(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, k + 1);
		idem_doctor_put(d, IDEM_DOCTOR_PROBLEM,
						psprintf("sequence " IDEM_DATA_SCHEMA_NAME ".%s stands at %s, and its last number is %s: relays stop there; setval led there",
								 column[0], column[1], column[2]),
						psprintf("As a superuser: SELECT pg_catalog.setval('" IDEM_DATA_SCHEMA_NAME ".%s', %s); if that is no less, relays have used such numbers: drop them, and create them anew.",
								 column[0], column[3]));
	}
}

/*
 * Ids of the log of positions come from its sequence, which is never behind a row that can
 * be seen.  A row with a greater id is the last one of its relay, whatever the relay writes.
 */
static void
look_at_positions(IdemDoctor *d)
{
	uint64		n;

	SPI_connect();
	n = idem_spi_read("SELECT l.log, l.id FROM %s.relay_log_id s, (SELECT 'relay_log_0', pg_catalog.max(id) FROM %s.relay_log_0"
					  " UNION ALL SELECT 'relay_log_1', pg_catalog.max(id) FROM %s.relay_log_1) AS l (log, id)"
					  " WHERE l.id > s.last_value", 0, NULL, NULL);
	for (uint64 i = 0; i < n; i++)
	{
		char	   *table = SPI_getvalue(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 1);
		char	   *id = SPI_getvalue(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 2);

		idem_doctor_put(d, IDEM_DOCTOR_PROBLEM,
						psprintf("a row of %s has the id %s, which was never given out: its relay keeps that position for ever", table, id),
						psprintf("As a superuser: DELETE FROM " IDEM_DATA_SCHEMA_NAME ".%s WHERE id = %s; then look again.", table, id));
	}
	look_at_sequences(d);
	SPI_finish();
}

static void
look_at_dead_letters(IdemDoctor *d)
{
	uint64		n;

	SPI_connect();
	n = idem_spi_read("SELECT r.relay, pg_catalog.count(*) FROM %s.relay_parked p JOIN %s.relays r USING (relay_id)"
					  " WHERE p.state = 'dead' GROUP BY r.relay ORDER BY r.relay", 0, NULL, NULL);
	for (uint64 i = 0; i < n; i++)
	{
		char	   *relay = SPI_getvalue(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 1);

		idem_doctor_put(d, IDEM_DOCTOR_PROBLEM,
						psprintf("relay \"%s\" has %s dead letters", relay, SPI_getvalue(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 2)),
						psprintf("As an operator read their errors in idempotency.dead_letters and mend the cause; then SELECT idempotency.relay_redrive(%s), or relay_discard.", quote_literal_cstr(relay)));
	}
	SPI_finish();
}

void
idem_doctor_relays(IdemDoctor *d)
{
	bool		readable;
	List	   *relays = relays_of(d, &readable);
	IdemRelayEntry *entries = NULL;
	int			n = 0;
	ListCell   *lc;

	if (!readable)
		return;
	if (idem_slots_exist() && !RecoveryInProgress())
		entries = idem_relay_entries_copy(idem_slots_state(0) == IDEM_SLOT_RUNS, &n);
	foreach(lc, relays)
	{
		const IdemRelayConfig *c = lfirst(lc);
		IdemRelayState state;

		if (needs_somebody(c, entries, n, &state))
			put_state(d, c, state);
	}
	look_at_waits(d);
	look_at_positions(d);
	look_at_dead_letters(d);
	if (relays == NIL && idem_outbox_last_seq() > 0)
		idem_doctor_put(d, IDEM_DOCTOR_PROBLEM, "events are enqueued and no relay is there, so the outbox grows",
						"Create a relay with relay_create; where nobody wants the events, one to a server of idempotency_null.");
	if (!d->found)
		idem_doctor_put(d, IDEM_DOCTOR_OK, relays == NIL ? "there is none" :
						entries != NULL && n > 0 ? "each gets on, and has no dead letter" :
						"nothing bars one, and there is no dead letter; none runs here at the moment", NULL);
}
