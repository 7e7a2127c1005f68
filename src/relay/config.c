/*-------------------------------------------------------------------------
 *
 * config.c
 *		A relay's configuration, resolved: row, server, options, owner's rights.
 *
 * Server and owner come from the relay's anchor (anchor.c).  The row also notes
 * the owner, for a restore: where the role is missing, pg_dump's script leaves
 * the anchor to the restoring role.  A relay is "disowned" if its anchor has
 * another owner than the row notes.  A disowned relay does not run and cannot
 * be adopted until ALTER FOREIGN TABLE has given the anchor an owner.
 *
 * A relay acts as its owner.  So a right that the owner has lost (USAGE on the
 * server) is a problem of the relay, and the user mapping is the owner's.  A
 * problem is a state to show, not an error: one broken relay must not keep the
 * other relays of its database from running.
 *
 * The owner of the server may be another role, which can point the server
 * elsewhere at any time.  A function, or a connection without a password, would
 * then run for that role with the rights of the relay's owner.  Neither is
 * allowed.
 *
 * A relay is bound to the publish identity under which it was created or
 * adopted, and does not run under another identity.  So a copy of a database does
 * not publish beside the original.  A restore may come into a database of the same
 * identity, e.g. into the one that was dumped.  So a relay that a restore has
 * brought, or brought events for, has no incarnation and does not run either, until
 * relay_adopt.
 *
 * MEMORY: all results are in the caller's context; a worker keeps the identity in
 * TopMemoryContext.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/config.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "access/reloptions.h"
#include "access/xlog.h"
#include "catalog/pg_foreign_data_wrapper.h"
#include "catalog/pg_foreign_server.h"
#include "catalog/pg_user_mapping.h"
#include "common/hashfn.h"
#include "common/pg_prng.h"
#include "executor/spi.h"
#include "foreign/foreign.h"
#include "miscadmin.h"
#include "storage/fd.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/syscache.h"

#include "compat.h"
#include "outbox/outbox.h"
#include "relay/anchor.h"
#include "relay/blame.h"
#include "relay/config.h"
#include "relay/kind.h"
#include "shared/spi.h"

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

/*
 * The options of the owner's user mapping, else of the public one.  Unlike
 * GetUserMapping, a missing mapping is no error.
 */
static List *
user_mapping_options(Oid owner, Oid serverid)
{
	HeapTuple	tup = SearchSysCache2(USERMAPPINGUSERSERVER,
									  ObjectIdGetDatum(owner),
									  ObjectIdGetDatum(serverid));
	List	   *options = NIL;
	Datum		datum;
	bool		isnull;

	if (!HeapTupleIsValid(tup))
		tup = SearchSysCache2(USERMAPPINGUSERSERVER,
							  ObjectIdGetDatum(InvalidOid),
							  ObjectIdGetDatum(serverid));
	if (!HeapTupleIsValid(tup))
		return NIL;
	datum = SysCacheGetAttr(USERMAPPINGUSERSERVER, tup,
							Anum_pg_user_mapping_umoptions, &isnull);
	if (!isnull)
		options = untransformRelOptions(datum);
	ReleaseSysCache(tup);
	return options;
}

/* The relay's server.  NULL if its anchor is gone. */
static ForeignServer *
find_server(IdemRelayConfig *c)
{
	IdemAnchor	anchor;
	ForeignServer *server = NULL;

	if (idem_anchor_find(c->relay_id, &anchor))
		server = GetForeignServerExtended(anchor.serverid, FSV_MISSING_OK);
	if (server == NULL)
		return NULL;
	c->anchor = anchor.relid;
	c->owner = anchor.owner;
	c->serverid = server->serverid;
	c->server = server->servername;
	return server;
}

/*
 * Resolve server, kind, options and program.  The kind decides which worker
 * has the relay, so the kind is set even where the owner may not use the
 * server.
 */
static void
resolve_server(IdemRelayConfig *c)
{
	ForeignServer *server = find_server(c);
	ForeignDataWrapper *wrapper;
	const IdemSinkKind *kind;
	const char *missing;

	if (server == NULL)
	{
		c->problem = psprintf("the relay's foreign table %s does not exist",
							  idem_anchor_name(c->relay_id));
		return;
	}
	wrapper = GetForeignDataWrapper(server->fdwid);
	if (idem_sink_wrapper_kind(wrapper->fdwname) == NULL)
	{
		c->problem = psprintf("server \"%s\" is of wrapper \"%s\", which is no sink",
							  c->server, wrapper->fdwname);
		return;
	}
	c->kind = pstrdup(idem_sink_wrapper_kind(wrapper->fdwname));
	if (!SearchSysCacheExists1(AUTHOID, ObjectIdGetDatum(c->owner)))
	{
		c->problem = pstrdup("the role that owns the relay does not exist");
		return;
	}
	if (idem_server_usage_check(c->serverid, c->owner) != ACLCHECK_OK)
	{
		c->problem = psprintf("owner \"%s\" has no USAGE on server \"%s\"",
							  GetUserNameFromId(c->owner, true), c->server);
		return;
	}
	c->options = list_concat(list_copy(server->options),
							 user_mapping_options(c->owner, server->serverid));

	/*
	 * The server's owner decides where the server leads.  That role must not
	 * gain, through this relay, rights that it does not have itself.
	 */
	if (strcmp(c->kind, "function") == 0 && !has_privs_of_role(server->owner, c->owner))
	{
		c->problem = psprintf("server \"%s\" belongs to \"%s\", who may not act as the relay's owner \"%s\"",
							  c->server, GetUserNameFromId(server->owner, true),
							  GetUserNameFromId(c->owner, true));
		return;
	}
	c->require_password = !superuser_arg(c->owner) || !superuser_arg(server->owner);

	/* An option of that name in the user mapping does not count. */
	kind = idem_sink_kind(c->kind);
	missing = kind ? idem_sink_missing_option(kind, server->options) : NULL;
	if (missing != NULL)
		c->problem = psprintf("server \"%s\" has no option \"%s\"", c->server, missing);
	else if (!idem_relay_is_function(c))
		c->program = psprintf("idempotency-sink-%s", strcmp(c->kind, "program") != 0 ? c->kind :
							  idem_sink_option_value(server->options, "program"));
}

/*
 * The anchor's owner counts as the noted owner if it has the noted name.  It
 * also counts if it has the noted OID under the identity under which the OID
 * was noted: then the role was renamed since.
 */
static void
check_owner(IdemRelayConfig *c)
{
	const char *owner = OidIsValid(c->owner) ? GetUserNameFromId(c->owner, true) : NULL;

	if (owner == NULL || strcmp(owner, c->noted_owner) == 0)
		return;
	if (c->owner == c->noted_owner_oid && strcmp(c->identity, idem_publish_identity()) == 0)
	{
		c->renamed = true;
		return;
	}
	c->disowned = true;
	if (OidIsValid(get_role_oid(c->noted_owner, true)))
		c->problem = psprintf("the relay was owned by role \"%s\", and foreign table %s belongs to \"%s\"",
							  c->noted_owner, idem_anchor_name(c->relay_id), owner);
	else
		c->problem = psprintf("the relay was owned by role \"%s\", which does not exist",
							  c->noted_owner);
}

/* The relays of the rows that a statement has returned, in the caller's context. */
static List *
take_rows(uint64 n, MemoryContext caller)
{
	MemoryContext old = MemoryContextSwitchTo(caller);
	List	   *relays = NIL;

	for (uint64 i = 0; i < n; i++)
		relays = lappend(relays, idem_relay_row_read(SPI_tuptable->vals[i], SPI_tuptable->tupdesc));
	MemoryContextSwitchTo(old);
	return relays;
}

/* The relays that "SELECT ... FROM relays <rest>" returns, resolved. */
static List *
read_configs(const char *rest, int nargs, Oid *types, Datum *values)
{
	MemoryContext caller = CurrentMemoryContext;
	List	   *configs;
	ListCell   *lc;

	SPI_connect();
	configs = take_rows(idem_spi_run(idem_relay_row_query(rest), nargs, types, values, NULL), caller);
	SPI_finish();

	foreach(lc, configs)
	{
		IdemRelayConfig *c = lfirst(lc);

		resolve_server(c);
		check_owner(c);
		if (c->unsound != NULL)
			c->problem = c->unsound;
	}
	return configs;
}

List *
idem_relay_configs(void)
{
	return read_configs("ORDER BY relay_id", 0, NULL, NULL);
}

IdemRelayConfig *
idem_relay_config_of(const char *name)
{
	Oid			types[1] = {TEXTOID};
	Datum		values[1] = {CStringGetTextDatum(name)};
	List	   *configs = read_configs("WHERE relay = $1", 1, types, values);

	return configs == NIL ? NULL : linitial(configs);
}

List *
idem_relay_config_with_id(int relay_id)
{
	Oid			types[1] = {INT4OID};
	Datum		values[1] = {Int32GetDatum(relay_id)};

	return read_configs("WHERE relay_id = $1", 1, types, values);
}

List *
idem_relay_rows(void)
{
	MemoryContext caller = CurrentMemoryContext;
	List	   *relays;

	SPI_connect();
	relays = take_rows(idem_spi_read(idem_relay_row_query(""), 0, NULL, NULL), caller);
	SPI_finish();
	return relays;
}

List *
idem_relay_ids(const List *configs)
{
	List	   *ids = NIL;
	ListCell   *lc;

	foreach(lc, configs)
		ids = lappend_int(ids, ((IdemRelayConfig *) lfirst(lc))->relay_id);
	return ids;
}

List *
idem_relay_function_ids(const List *configs)
{
	List	   *ids = NIL;
	ListCell   *lc;

	foreach(lc, configs)
	{
		const IdemRelayConfig *c = lfirst(lc);

		if (c->kind == NULL || idem_relay_is_function(c))
			ids = lappend_int(ids, c->relay_id);
	}
	return ids;
}

bool
idem_relay_halt(int relay_id, IdemHalt reason, const char *message, bool skip_locked)
{
	Oid			types[3] = {INT4OID, TEXTOID, TEXTOID};
	Datum		values[3] = {Int32GetDatum(relay_id), CStringGetTextDatum(idem_relay_halts[reason].label),
	CStringGetTextDatum(message ? message : "")};
	uint64		n;

	SPI_connect();
	n = idem_spi_run(skip_locked ?
					 "UPDATE %s.relays SET halted = $2::%t.relay_halt, halt_message = NULLIF($3, '') WHERE relay_id ="
					 " (SELECT relay_id FROM %s.relays WHERE relay_id = $1 FOR UPDATE SKIP LOCKED)" :
					 "UPDATE %s.relays SET halted = $2::%t.relay_halt, halt_message = NULLIF($3, '') WHERE relay_id = $1",
					 3, types, values, NULL);
	SPI_finish();
	return n > 0;
}

/*
 * This is the one place that knows which tables have rows of a relay.  Each part
 * of the statement sees the rows as they were before the statement.
 */
void
idem_relay_forget(int relay_id, bool with_row)
{
	Oid			types[2] = {INT4OID, BOOLOID};
	Datum		values[2] = {Int32GetDatum(relay_id), BoolGetDatum(with_row)};

	SPI_connect();
	idem_spi_run_latest("SELECT FROM %s.relays WHERE relay_id = $1 FOR UPDATE", 1, types, values);
	idem_spi_run_latest("WITH ended AS (SELECT WHERE $2"
						" OR NOT EXISTS (SELECT FROM %s.relays WHERE relay_id = $1)),"
						" gone AS (DELETE FROM %s.relays WHERE relay_id = $1 AND EXISTS (TABLE ended)),"
						" record AS (DELETE FROM %s.relay_attempts WHERE relay_id = $1 AND EXISTS (TABLE ended)),"
						" blocked AS (DELETE FROM %s.relay_blocked WHERE relay_id = $1 AND EXISTS (TABLE ended))"
						" DELETE FROM %s.relay_parked WHERE relay_id = $1 AND EXISTS (TABLE ended)",
						2, types, values);
	SPI_finish();
}

/* Write only a change: a new version of the row closes an open breaker. */
void
idem_relay_note_owner(int relay_id, Oid owner)
{
	Oid			types[3] = {INT4OID, OIDOID, TEXTOID};
	Datum		values[3];

	values[0] = Int32GetDatum(relay_id);
	values[1] = ObjectIdGetDatum(owner);
	values[2] = CStringGetTextDatum(GetUserNameFromId(owner, false));
	SPI_connect();
	idem_spi_run_latest("UPDATE %s.relays SET owner_oid = $2, owner = $3"
						" WHERE relay_id = $1 AND (owner_oid, owner) IS DISTINCT FROM ($2, $3)",
						3, types, values);
	SPI_finish();
}

bool
idem_relay_is_function(const IdemRelayConfig *config)
{
	return config->kind != NULL && strcmp(config->kind, "function") == 0;
}

bool
idem_relay_wants(const IdemRelayConfig *config, const IdemEvent *event)
{
	ListCell   *lc;

	if (config->aggregate_types == NIL)
		return true;
	foreach(lc, config->aggregate_types)
	{
		const char *type = lfirst(lc);

		if (strlen(type) == event->aggregate_type.len &&
			memcmp(type, event->aggregate_type.data, event->aggregate_type.len) == 0)
			return true;
	}
	return false;
}

int
idem_relay_min_backoff_ms(const IdemRelayConfig *config)
{
	if (config->min_backoff_ms != 0)
		return config->min_backoff_ms;
	return idem_relay_is_function(config) ? IDEM_FUNCTION_MIN_BACKOFF_MS : IDEM_PROGRAM_MIN_BACKOFF_MS;
}

int
idem_relay_max_backoff_ms(const IdemRelayConfig *config)
{
	if (config->max_backoff_ms != 0)
		return config->max_backoff_ms;
	return idem_relay_is_function(config) ? IDEM_FUNCTION_MAX_BACKOFF_MS : IDEM_PROGRAM_MAX_BACKOFF_MS;
}

/* Take a random part of up to a half off. */
static int64
with_jitter(double ms)
{
	return (int64) (ms * (0.5 + 0.5 * pg_prng_double(&pg_global_prng_state)));
}

/* The backoff without jitter. */
static double
plain_backoff(const IdemRelayConfig *config, int failures)
{
	int			max = idem_relay_max_backoff_ms(config);
	double		ms = idem_relay_min_backoff_ms(config);

	for (int i = 0; i < failures && ms < max; i++)
		ms *= 2;
	return Min(ms, max);
}

int64
idem_relay_backoff_ms(const IdemRelayConfig *config, int failures)
{
	return with_jitter(plain_backoff(config, failures));
}

int64
idem_relay_deferral_ms(const IdemRelayConfig *config, int failures)
{
	return with_jitter(Min(plain_backoff(config, failures), IDEM_BLAME_MAX_PAUSE_MS));
}

int64
idem_relay_probe_ms(const IdemRelayConfig *config, int failures)
{
	return with_jitter(Min(idem_blame_pause_ms(failures), idem_relay_max_backoff_ms(config)));
}

bool
idem_relay_is_restored(const IdemRelayConfig *config)
{
	return config->incarnation[0] == '\0';
}

bool
idem_relay_is_adopted(const IdemRelayConfig *config, const char *here)
{
	return !idem_relay_is_restored(config) && strcmp(config->identity, here) == 0;
}

char *
idem_relay_unadopted_message(const IdemRelayConfig *config, const char *here)
{
	if (strcmp(config->identity, here) == 0)
		return pstrdup("the relay or events were restored from a dump");
	return psprintf("bound to \"%s\", this database is \"%s\"", config->identity, here);
}

bool
idem_relay_is_barred(const IdemRelayConfig *config, IdemRelayState *state,
					 const char **message)
{
	*message = NULL;
	if (config->disowned)
	{
		*state = IDEM_RELAY_MISCONFIGURED;
		*message = config->problem;
	}
	else if (!idem_relay_is_adopted(config, identity))
	{
		*state = IDEM_RELAY_UNADOPTED;
		*message = idem_relay_unadopted_message(config, identity);
	}
	else if (config->problem)
	{
		*state = IDEM_RELAY_MISCONFIGURED;
		*message = config->problem;
	}
	else if (config->halted != IDEM_HALT_NOT)
	{
		*state = config->halted == IDEM_HALT_HISTORY ? IDEM_RELAY_DIVERGED : IDEM_RELAY_HALTED;
		*message = config->halt_message ? config->halt_message : idem_relay_halts[config->halted].message;
	}
	else if (config->paused)
		*state = IDEM_RELAY_PAUSED;
	else
		return false;
	return true;
}

bool
idem_relay_config_same_sink(const IdemRelayConfig *a, const IdemRelayConfig *b)
{
	return a->epoch == b->epoch && a->owner == b->owner &&
		a->batch_events == b->batch_events && a->batch_bytes == b->batch_bytes &&
		a->ordering == b->ordering && a->require_password == b->require_password &&
		a->serverid == b->serverid &&
		strcmp(a->incarnation, b->incarnation) == 0 &&
		strcmp(a->kind ? a->kind : "", b->kind ? b->kind : "") == 0 &&
		equal(a->options, b->options);
}
