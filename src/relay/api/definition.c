/*-------------------------------------------------------------------------
 *
 * definition.c
 *		SQL functions that create, change and operate relays.
 *
 * Privileges: grant_role('operator', ...) grants EXECUTE.  A function that
 * decides where data goes, or under whose rights (alter, drop, adopt), also
 * needs the rights of the relay's owner.  The functions write the tables as the
 * extension's owner, so nobody needs, or gets, rights on them.
 *
 * All changes are transactional: a worker acts on committed changes only.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/api/definition.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/pg_foreign_server.h"
#include "catalog/pg_type.h"
#include "commands/sequence.h"
#include "commands/trigger.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "storage/proc.h"
#include "tcop/tcopprot.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/rel.h"

#include "claim/lock.h"
#include "compat.h"
#include "relay/anchor.h"
#include "relay/api/api.h"
#include "relay/kind.h"
#include "relay/position/blocked.h"
#include "relay/position/parked.h"
#include "relay/position/retention.h"
#include "relay/worker/workers.h"
#include "relay/worker_slots.h"
#include "shared/args.h"
#include "shared/catalog.h"
#include "shared/fault.h"
#include "shared/spi.h"
#include "shared/txn_owner.h"

PG_FUNCTION_INFO_V1(idem_relay_create_fn);
PG_FUNCTION_INFO_V1(idem_relay_alter_fn);
PG_FUNCTION_INFO_V1(idem_relay_drop_fn);
PG_FUNCTION_INFO_V1(idem_relay_pause_fn);
PG_FUNCTION_INFO_V1(idem_relay_resume_fn);
PG_FUNCTION_INFO_V1(idem_relay_adopt_fn);
PG_FUNCTION_INFO_V1(idem_relays_restore_fn);

/* relay_create inserts its row, which is of no restore. */
static bool is_creating = false;

IdemRelayConfig *
idem_relay_get(const char *name)
{
	IdemRelayConfig *c = idem_relay_config_of(name);

	if (c == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("relay \"%s\" does not exist", name),
				 errhint("See the view idempotency.stat_relay.")));
	return c;
}

/* Refuse a relay whose row says nothing that can be believed: it can only be dropped. */
static void
require_sound(const IdemRelayConfig *c)
{
	if (c->unsound == NULL)
		return;
	ereport(ERROR,
			(errcode(ERRCODE_DATA_CORRUPTED),
			 errmsg("relay \"%s\" cannot be changed", c->name),
			 errdetail("The %s: a dump that was changed, or a role that may write all data, has brought it.", c->unsound),
			 errhint("Drop the relay with relay_drop, and create it anew; or have a superuser update the row.")));
}

/*
 * As idem_relay_get_locked, of a relay that may be unsound.  whole: also against its worker, which
 * changes parked events; for a command that changes all of them.
 */
static IdemRelayConfig *
get_locked(const char *name, bool whole)
{
	Oid			types[1] = {TEXTOID};
	Datum		values[1] = {CStringGetTextDatum(name)};

	SPI_connect();
	idem_spi_run(whole ? "SELECT 1 FROM %s.relays WHERE relay = $1 FOR UPDATE" :
				 "SELECT 1 FROM %s.relays WHERE relay = $1 FOR NO KEY UPDATE", 1, types, values, NULL);
	SPI_finish();
	CommandCounterIncrement();
	return idem_relay_get(name);
}

IdemRelayConfig *
idem_relay_get_locked(const char *name)
{
	IdemRelayConfig *c = get_locked(name, false);

	require_sound(c);
	return c;
}

/*
 * Refuse a caller without the rights of the relay's owner.  The owner of a
 * relay without its foreign table is the extension's owner.
 */
static void
require_owner(const IdemRelayConfig *c)
{
	Oid			owner = OidIsValid(c->anchor) ? c->owner : idem_extension_owner();

	if (!has_privs_of_role(GetUserId(), owner))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("must be owner of relay \"%s\"", c->name)));
}

/*
 * Like idem_relay_get_locked, for a relay that the caller owns.  The relay's
 * foreign table is locked as well, before the row: the order of DROP.
 */
static IdemRelayConfig *
get_own_relay_and_anchor(const char *name, bool whole)
{
	IdemRelayConfig *c = idem_relay_get(name);
	Oid			anchor = c->anchor;

	require_owner(c);
	if (OidIsValid(anchor))
		idem_anchor_lock(anchor);
	c = get_locked(name, whole);
	require_owner(c);
	if (c->anchor != anchor)
		ereport(ERROR,
				(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
				 errmsg("relay \"%s\" was changed by another session", name),
				 errhint("Try again.")));
	return c;
}

/* Refuse without the preload: no worker would ever run the relay. */
static void
require_preload(void)
{
	if (!idem_slots_exist())
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("relays need the library \"idempotency\" to be preloaded"),
				 errhint("Add idempotency to shared_preload_libraries and restart the server. "
						 "Claims and the outbox work without it.")));
}

ForeignServer *
idem_relay_usable_server(const char *name)
{
	ForeignServer *server = GetForeignServerByName(name, true);

	if (server == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("server \"%s\" does not exist", name),
				 errhint("Create it with CREATE SERVER ... FOREIGN DATA WRAPPER idempotency_postgres, or another idempotency_ wrapper.")));
	if (idem_server_usage_check(server->serverid, GetUserId()) != ACLCHECK_OK)
		aclcheck_error(ACLCHECK_NO_PRIV, OBJECT_FOREIGN_SERVER, name);
	return server;
}

/*
 * Like idem_relay_usable_server, with the server locked against its DROP.  A caller that
 * may not use a server does not lock it.  The name may lead to another server
 * once the lock is held: then try again.
 */
static ForeignServer *
lock_server(const char *name)
{
	ForeignServer *server = idem_relay_usable_server(name);
	ResourceOwner saved = idem_txn_owner_enter();
	Oid			locked = InvalidOid;

	while (server->serverid != locked)
	{
		if (OidIsValid(locked))
			UnlockDatabaseObject(ForeignServerRelationId, locked, 0, AccessShareLock);
		CHECK_FOR_INTERRUPTS();
		locked = server->serverid;
		LockDatabaseObject(ForeignServerRelationId, locked, 0, AccessShareLock);
		server = idem_relay_usable_server(name);
	}
	idem_txn_owner_leave(saved);
	return server;
}

/*
 * Check that the server exists, is a sink, and that the caller may use it.  It
 * stays locked against its DROP.
 */
static ForeignServer *
check_server(const char *name)
{
	ForeignServer *server = lock_server(name);
	const char *wrapper = GetForeignDataWrapper(server->fdwid)->fdwname;
	const char *kind = idem_sink_wrapper_kind(wrapper);

	if (kind == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("server \"%s\" is not a sink", name),
				 errdetail("Its foreign-data wrapper is \"%s\".", wrapper),
				 errhint("Sinks are servers of the wrappers %s.", idem_sink_wrappers())));
	if (strcmp(kind, "function") == 0 &&
		!has_privs_of_role(server->owner, GetUserId()))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("server \"%s\" belongs to role \"%s\"",
						name, GetUserNameFromId(server->owner, false)),
				 errdetail("That role could make the relay run any function as \"%s\".",
						   GetUserNameFromId(GetUserId(), false)),
				 errhint("Let the owner of the server create the relay, or change the owner of the server.")));
	return server;
}

/* Append a position that an operator set, in the caller's transaction. */
static void
append_fresh_position(int relay_id, int64 epoch, IdemPositionFresh fresh, const IdemPosition *pos)
{
	IdemPositionRow row = {.relay_id = relay_id, .epoch = epoch,
	.kind = IDEM_POSITION_MOVED, .fresh = fresh, .pos = *pos};

	(void) idem_position_append(&row);
}

/*
 * Begin a new epoch, under which a position set by an operator counts.
 * other_server: the relay sends to another server from this epoch on.
 */
static int64
raise_epoch(const IdemRelayConfig *c, bool other_server)
{
	Oid			types[2] = {INT4OID, BOOLOID};
	Datum		values[2] = {Int32GetDatum(c->relay_id), BoolGetDatum(other_server)};
	int64		epoch;

	SPI_connect();
	idem_spi_run("WITH next AS MATERIALIZED (SELECT pg_catalog.nextval('%s.relay_log_id') AS epoch)"
				 " UPDATE %s.relays r SET epoch = next.epoch, replay_at = NULL,"
				 " server_epoch = CASE WHEN $2 THEN next.epoch ELSE r.server_epoch END"
				 " FROM next WHERE relay_id = $1 RETURNING r.epoch", 2, types, values, NULL);
	epoch = DatumGetInt64(idem_spi_value(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1));
	SPI_finish();
	return epoch;
}

void
idem_relay_move_position(const IdemRelayConfig *c, IdemPositionFresh fresh, bool other_server,
						 const IdemPosition *pos)
{
	IdemPositionRow row = {.relay_id = c->relay_id, .kind = IDEM_POSITION_MOVED,
	.fresh = fresh, .life = c->server_epoch, .pos = *pos};
	IdemPositionName nothing = {0};
	IdemSinkRows told;

	idem_position_look_up(c->relay_id, c->epoch, &nothing, &told);
	if (told.last != NULL && told.last->fresh == IDEM_FRESH_ADOPTED)
		row.fresh = IDEM_FRESH_ADOPTED;

	else if (fresh == IDEM_FRESH_MOVED && told.last != NULL &&
			 (other_server || told.last->fresh == IDEM_FRESH_SERVER || told.last->fresh == IDEM_FRESH_BOTH))
		row.fresh = IDEM_FRESH_BOTH;

	/*
	 * A move does not accept that the target was set back.  So the row names
	 * what the sink had stored.
	 */
	if (told.naming != NULL)
	{
		Assert(told.last != NULL);
		row.acked_row = told.naming->acked_row;
		row.acked_k = told.naming->acked_k;
		if (told.last->fresh != IDEM_FRESH_CONFIRMED)
			row.life = told.naming->life;
	}
	row.epoch = raise_epoch(c, other_server);
	(void) idem_position_append(&row);
}

/*
 * The first position: "latest" counts all events up to now as delivered,
 * "earliest" none.
 */
static IdemPosition
start_position(FunctionCallInfo fcinfo)
{
	IdemPosition pos = {idem_relay_args_latest(fcinfo) ? idem_snap_current() : idem_snap_empty(), NULL, 0};

	return pos;
}

/* IdemLockTitle of the lock on ids of relays. */
static char *
numbers_title(const void *arg)
{
	return pstrdup("the ids of relays");
}

/* The greatest relay_id that the constraint "sound" of the tables takes */
#define MAX_RELAY_ID	1999999999

/*
 * The id of a new relay.  This also makes the relay's foreign table.  It is
 * made before the row: replacing an old foreign table of that name deletes any
 * row of that id.
 *
 * The lock on the numbers is given back at once: an operator's open transaction
 * does not hold up another relay_create.  The sequence is past the number by then,
 * whether the transaction commits or not.  The lock on the table, which stays, keeps
 * the last worker from leaving (worker.c).
 */
static int
new_relay_id(const ForeignServer *server)
{
	static const char lock_name[] = "\0@relay ids";
	IdemClaimKey lock;
	int			relay_id;

	idem_lock_key_of(lock_name, sizeof(lock_name) - 1, &lock);
	SPI_connect();
	idem_spi_run("LOCK TABLE %s.relays IN ROW EXCLUSIVE MODE", 0, NULL, NULL, NULL);
	idem_lock_wait_as(&lock, LockTimeout, numbers_title, NULL);
	idem_spi_run("SELECT pg_catalog.setval('%s.relay_id_seq', GREATEST(pg_catalog.nextval('%s.relay_id_seq'),"
				 "  (SELECT pg_catalog.max(relay_id) + 1 FROM %s.relays),"
				 "  (SELECT pg_catalog.max(relay_id) + 1 FROM %s.relay_parked)))::int,"
				 " (SELECT pg_catalog.count(*) FROM %s.relays)", 0, NULL, NULL, NULL);
	relay_id = DatumGetInt32(idem_spi_value(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1));
	idem_relay_entries_check(DatumGetInt64(idem_spi_value(SPI_tuptable->vals[0],
														  SPI_tuptable->tupdesc, 2)));
	SPI_finish();
	idem_lock_release(&lock);
	if (relay_id > MAX_RELAY_ID)
		ereport(ERROR,
				(errcode(ERRCODE_SEQUENCE_GENERATOR_LIMIT_EXCEEDED),
				 errmsg("no ids are left for relays"),
				 errdetail("A row with a relay_id near %d, of a dump that was changed or of a role that may write all data, or setval led there.", MAX_RELAY_ID),
				 errhint("Drop that relay, and delete its rows of %s.relay_parked. Then run SELECT pg_catalog.setval('%s.relay_id_seq', COALESCE(pg_catalog.max(relay_id), 1)) FROM %s.relays.",
						 IDEM_DATA_SCHEMA_NAME, IDEM_DATA_SCHEMA_NAME, IDEM_DATA_SCHEMA_NAME)));
	idem_anchor_create(relay_id, server);
	return relay_id;
}

/*
 * Refuse a relay with a new server that cannot work, and say what looks wrong.  The
 * command has done its work by then, and an error undoes it.
 */
static void
judge_relay(FunctionCallInfo fcinfo, const char *name)
{
	if (!PG_ARGISNULL(IDEM_ARG_server))
	{
		IdemRelayConfig *c = idem_relay_get(name);

		if (!c->disowned)
			idem_target_check(c);
		idem_target_warn(c);
	}
	if (!PG_ARGISNULL(IDEM_ARG_aggregate_types))
		idem_target_note_types(PG_GETARG_DATUM(IDEM_ARG_aggregate_types));
}

/* The name of the server, which is not NULL. */
static char *
server_arg(FunctionCallInfo fcinfo)
{
	return text_to_cstring(idem_get_text_arg(fcinfo, IDEM_ARG_server, "server", NAMEDATALEN - 1));
}

/* Insert the row of a new relay; SPI_tuptable has its epoch.  False if the name is taken. */
static bool
insert_relay(IdemRelayColumns *row)
{
	const char *sql = psprintf("INSERT INTO %%s.relays (%s, epoch) VALUES (%s, pg_catalog.nextval('%%s.relay_log_id'))"
							   " ON CONFLICT (relay) DO NOTHING RETURNING epoch",
							   row->names.data, row->params.data);
	uint64		n = 0;

	is_creating = true;
	PG_TRY();
	{
		n = idem_spi_run(sql, row->n, row->types, row->values, row->nulls);
	}
	PG_FINALLY();
	{
		is_creating = false;
	}
	PG_END_TRY();
	return n > 0;
}

/*
 * Trigger before insert on "relays".  A row that relay_create has not made comes from
 * a dump.  It gets no incarnation, so that the relay does not run before relay_adopt.
 * Its epoch counts positions of another log.  Rows of this log may have that number,
 * of a former life of the relay or of another relay; so the row gets a new epoch.  Its
 * owner's OID is of another cluster, or of another time.
 */
Datum
idem_relays_restore_fn(PG_FUNCTION_ARGS)
{
	static IdemRelRef relays = IDEM_RELREF("relays");
	static IdemRelRef sequence = IDEM_RELREF("relay_log_id");
	static const char *const columns[] = {"incarnation", "epoch", "server_epoch", "owner_oid"};
	TriggerData *trigger = idem_require_insert_trigger(fcinfo, "relays_restore");
	TupleDesc	desc = RelationGetDescr(trigger->tg_relation);
	int			numbers[lengthof(columns)];
	Datum		values[lengthof(columns)];
	bool		nulls[lengthof(columns)] = {false};

	(void) idem_require_table(fcinfo, "relays_restore", &relays, 1);
	if (is_creating)
		return PointerGetDatum(trigger->tg_trigtuple);
	for (int i = 0; i < lengthof(columns); i++)
		numbers[i] = SPI_fnumber(desc, columns[i]);
	values[0] = CStringGetTextDatum("");
	values[1] = Int64GetDatum(nextval_internal(idem_relref_oid(&sequence), false));
	values[2] = Int64GetDatum(0);
	values[3] = ObjectIdGetDatum(InvalidOid);
	idem_relay_config_changed();
	return PointerGetDatum(heap_modify_tuple_by_cols(trigger->tg_trigtuple, desc,
													 lengthof(columns), numbers, values, nulls));
}

/*
 * Refuse a name that is too long, here or in UTF-8, in which it goes to sinks: a postgres sink
 * claims as the consumer of that name.  Error 22P05 if UTF-8 lacks a character of it.
 */
static void
check_new_name(const char *name)
{
	int			len = strlen(name);

	idem_check_length("relay", len, IDEM_MAX_NAME_BYTES);
	(void) idem_lock_utf8(name, &len);
	idem_check_length("relay", len, IDEM_MAX_NAME_BYTES);
}

Datum
idem_relay_create_fn(PG_FUNCTION_ARGS)
{
	char	   *name = idem_relay_args_begin(fcinfo, "relay_create");
	ForeignServer *server;
	IdemRelayColumns row;
	int			relay_id;
	IdemPosition start;
	int64		epoch;

	idem_relay_args_require(fcinfo);
	check_new_name(name);
	if (name[0] == '@')
		ereport(ERROR,
				(errcode(ERRCODE_RESERVED_NAME),
				 errmsg("relay name \"%s\" is reserved", name),
				 errhint("Names that begin with \"@\" belong to the extension.")));
	idem_check_no_script("a relay");
	require_preload();
	server = PG_ARGISNULL(IDEM_ARG_server) ? NULL : check_server(server_arg(fcinfo));
	idem_relay_columns_init(&row);
	idem_relay_args_options(fcinfo, NULL, server, &row);
	if (server == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("relays without a server are not supported by this version"),
				 errhint("Name a server. For workers that fetch events, let a function of an idempotency_function server put the events into a table.")));

	relay_id = new_relay_id(server);
	idem_relay_columns_add(&row, "relay_id", INT4OID, Int32GetDatum(relay_id));
	idem_relay_columns_add(&row, "relay", TEXTOID, CStringGetTextDatum(name));
	idem_relay_columns_add(&row, "owner", TEXTOID, CStringGetTextDatum(GetUserNameFromId(GetUserId(), false)));
	idem_relay_columns_add(&row, "owner_oid", OIDOID, ObjectIdGetDatum(GetUserId()));
	idem_relay_columns_add(&row, "incarnation", TEXTOID, CStringGetTextDatum(idem_relay_new_incarnation()));
	idem_relay_columns_add(&row, "identity", TEXTOID, CStringGetTextDatum(idem_publish_identity()));
	SPI_connect();
	if (!insert_relay(&row))
		ereport(ERROR,
				(errcode(ERRCODE_DUPLICATE_OBJECT),
				 errmsg("relay \"%s\" exists already", name),
				 errhint("Change it with relay_alter. relay_drop would lose its position and its dead letters.")));
	epoch = DatumGetInt64(idem_spi_value(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1));
	start = start_position(fcinfo);
	append_fresh_position(relay_id, epoch, IDEM_FRESH_MOVED, &start);
	SPI_finish();
	judge_relay(fcinfo, name);
	IDEM_FAULT_POINT("relay-create-enlist");
	idem_launcher_enlist_database();
	idem_wake_launcher_at_commit();
	IDEM_FAULT_POINT("relay-created");
	idem_relay_command_done("relay_create", name);
	PG_RETURN_VOID();
}

/*
 * Send to another server from now on.  A relay that has lost its foreign table
 * gets a new one and belongs to the caller.  True if the server differs from
 * the former server, as far as anybody knows.
 */
static bool
change_server(IdemRelayConfig *c, const ForeignServer *server)
{
	IdemAnchor	anchor;

	if (!idem_anchor_find(c->relay_id, &anchor))
	{
		idem_anchor_create(c->relay_id, server);
		idem_relay_note_owner(c->relay_id, GetUserId());
		return false;
	}
	if (anchor.serverid == server->serverid)
		return false;
	idem_anchor_redirect(&anchor, server->serverid);
	return true;
}

/*
 * A paused or halted relay is altered so that nothing comes to both targets.  Refuse that if its
 * program ended without telling what the former one has stored.
 */
static void
require_told(const IdemRelayConfig *c, const IdemPositionRow *last)
{
	if (last == NULL || idem_position_tells(last) ||
		(!c->paused && (c->halted == IDEM_HALT_NOT || c->halted == IDEM_HALT_HISTORY)))
		return;
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("the target of relay \"%s\" may have events that the relay's position does not tell of", c->name),
			 errdetail("The relay's sink program ended before it was paused, or has not come to rest yet."),
			 errhint("Call relay_resume, wait until the relay is streaming, call relay_pause, and wait until it is paused. If that target is lost, alter the relay while it is not paused: what was sent to it since its last position is sent again.")));
}

Datum
idem_relay_alter_fn(PG_FUNCTION_ARGS)
{
	char	   *name = idem_relay_args_begin(fcinfo, "relay_alter");
	ForeignServer *server = NULL;
	IdemRelayColumns row;
	IdemRelayConfig *c;
	bool		changed;

	if (PG_ARGISNULL(IDEM_ARG_server))
	{
		c = idem_relay_get_locked(name);
		require_owner(c);
	}
	else
	{
		require_owner(idem_relay_get(name));
		server = check_server(server_arg(fcinfo));
		c = get_own_relay_and_anchor(name, false);
		require_sound(c);
	}
	idem_relay_columns_init(&row);
	idem_relay_columns_add(&row, "relay", TEXTOID, CStringGetTextDatum(name));
	idem_relay_args_options(fcinfo, c, server, &row);
	SPI_connect();
	idem_spi_run(psprintf("UPDATE %%s.relays SET (%s) = ROW(%s) WHERE relay = $1",
						  row.names.data, row.params.data), row.n, row.types, row.values, row.nulls);
	SPI_finish();
	changed = server != NULL && change_server(c, server);
	if (!PG_ARGISNULL(IDEM_ARG_start_at))
	{
		IdemPosition start = start_position(fcinfo);

		idem_retention_check_move(idem_relay_get(name), &start);
		idem_relay_move_position(c, IDEM_FRESH_MOVED,
								 changed || (server != NULL && !OidIsValid(c->anchor)), &start);
	}
	else if (changed)
	{
		/*
		 * The new server's target knows nothing of the events that the former
		 * target confirmed.  So append the present position again, as one
		 * that an operator set.
		 */
		IdemPositionRow *last = idem_position_last(c->relay_id, c->epoch);

		require_told(c, last);
		if (last != NULL)
			idem_relay_move_position(c, IDEM_FRESH_SERVER, true, &last->pos);
	}
	judge_relay(fcinfo, name);
	idem_relay_command_done("relay_alter", name);
	PG_RETURN_VOID();
}

void
idem_relay_command_done(const char *command, const char *relay)
{
	idem_relay_config_changed();
	if (log_statement == LOGSTMT_NONE)
		return;
	ereport(LOG,
			(errmsg("%s of relay \"%s\" by role \"%s\"", command, relay,
					GetUserNameFromId(GetUserId(), false))));
}

Datum
idem_relay_drop_fn(PG_FUNCTION_ARGS)
{
	char	   *name = idem_relay_args_begin(fcinfo, "relay_drop");
	IdemRelayConfig *c;
	IdemAnchor	anchor;

	c = get_own_relay_and_anchor(name, true);
	idem_relay_forget(c->relay_id, true);
	if (idem_anchor_find(c->relay_id, &anchor))
		idem_anchor_drop(&anchor);
	IDEM_FAULT_POINT("relay-dropped");
	idem_relay_command_done("relay_drop", name);
	PG_RETURN_VOID();
}

/* Run a command that is one statement, whose $1 is the relay's name. */
static Datum
run_command(FunctionCallInfo fcinfo, const char *command, const char *sql)
{
	char	   *name = idem_relay_args_begin(fcinfo, command);
	Oid			types[1] = {TEXTOID};
	Datum		values[1] = {CStringGetTextDatum(name)};

	(void) idem_relay_get_locked(name);
	SPI_connect();
	idem_spi_run(sql, 1, types, values, NULL);
	SPI_finish();
	idem_relay_command_done(command, name);
	PG_RETURN_VOID();
}

Datum
idem_relay_pause_fn(PG_FUNCTION_ARGS)
{
	return run_command(fcinfo, "relay_pause", "UPDATE %s.relays SET paused = true WHERE relay = $1");
}

Datum
idem_relay_resume_fn(PG_FUNCTION_ARGS)
{
	return run_command(fcinfo, "relay_resume",
					   "UPDATE %s.relays SET paused = false, halt_message = NULL,"
					   " halted = CASE WHEN halted = 'history' THEN halted END WHERE relay = $1");
}

/*
 * Refuse a relay whose owner is not the noted one.  In a restore the owner's
 * role may have been missing, or the restore was told to leave all objects to
 * its own role.  Relays must not run as that role.
 */
static void
require_noted_owner(const IdemRelayConfig *c)
{
	if (c->disowned)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("relay \"%s\" has not the owner that it had", c->name),
				 errdetail("%s.", c->problem),
				 errhint("Name the role that the relay is to act as: ALTER FOREIGN TABLE %s OWNER TO ...",
						 idem_anchor_name(c->relay_id))));
}

/*
 * Refuse a restored relay with parked events of another relay, which had its id in
 * another database.  The restore of parked events refuses them as well, but the relay's
 * row may be restored later.
 */
static void
require_own_parked(const IdemRelayConfig *c)
{
	Oid			types[1] = {INT4OID};
	Datum		values[1] = {Int32GetDatum(c->relay_id)};
	uint64		n;

	SPI_connect();
	n = idem_spi_run("SELECT 1 FROM %s.relay_parked p JOIN %s.relays r USING (relay_id)"
					 " WHERE r.relay_id = $1 AND p.relay_created_at IS DISTINCT FROM r.created_at LIMIT 1",
					 1, types, values, NULL);
	SPI_finish();
	if (n > 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("relay \"%s\" has parked events of another relay", c->name),
				 errdetail("They were restored from another dump, in which that relay has the id %d.", c->relay_id),
				 errhint("Restore each dump into a new database of its own; or drop the relay, which forgets these events, and create it again.")));
}

/*
 * Bind the relay to the present identity.  It goes on from its own last
 * position, under a new incarnation, so that a position which a sink stored
 * for the former incarnation does not contradict.  Without a position, or with
 * a position ahead of this cluster's transactions, now or when the worker
 * looked, the relay comes from another history (a logical restore).  Then all events in the outbox are
 * sent, since nobody here knows which of them were delivered.
 *
 * A restored relay has a position if an operator has set one since, or if the restore
 * brought events only.  Its parked events are of another history all the same.
 */
Datum
idem_relay_adopt_fn(PG_FUNCTION_ARGS)
{
	char	   *name = idem_relay_args_begin(fcinfo, "relay_adopt");
	Oid			types[3] = {INT4OID, TEXTOID, TEXTOID};
	Datum		values[3];
	IdemRelayConfig *c;
	IdemPositionRow *row;
	IdemPosition adopted = {0};
	bool		is_lost;

	require_preload();
	c = idem_relay_get_locked(name);
	require_owner(c);
	require_noted_owner(c);
	require_own_parked(c);
	row = idem_position_last(c->relay_id, c->epoch);
	adopted.base = row ? row->pos.base : NULL;
	is_lost = row == NULL || c->halted == IDEM_HALT_HISTORY || !idem_position_is_possible(&row->pos);
	if (is_lost || idem_relay_is_restored(c))
	{
		(void) get_locked(name, true);
		idem_parked_restamp(c->relay_id);
	}
	if (is_lost)
	{
		adopted.base = idem_snap_empty();
		idem_retention_check_move(c, &adopted);
		idem_blocked_forget(c->relay_id);
		ereport(WARNING,
				(errmsg("relay \"%s\" has no position of this cluster", name),
				 errdetail("It sends everything that is in the outbox.")));
	}
	values[0] = Int32GetDatum(c->relay_id);
	values[1] = CStringGetTextDatum(idem_relay_new_incarnation());
	values[2] = CStringGetTextDatum(idem_publish_identity());
	SPI_connect();
	idem_spi_run("UPDATE %s.relays SET incarnation = $2, identity = $3, server_epoch = 0,"
				 " halted = NULLIF(halted, 'history') WHERE relay_id = $1",
				 3, types, values, NULL);
	SPI_finish();
	if (OidIsValid(c->anchor))
		idem_relay_note_owner(c->relay_id, c->owner);
	append_fresh_position(c->relay_id, raise_epoch(c, false), IDEM_FRESH_ADOPTED, &adopted);
	idem_launcher_enlist_database();
	idem_wake_launcher_at_commit();
	idem_relay_command_done("relay_adopt", name);
	PG_RETURN_VOID();
}
