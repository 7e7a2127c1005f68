/*-------------------------------------------------------------------------
 *
 * config.c
 *		A relay's configuration, resolved: row, server, options, owner's rights.
 *
 * A relay acts as its owner, so what the owner may no longer do (USAGE on the
 * server) is a problem of the relay, and the user mapping is the owner's.  A
 * problem is a state to show, not an error: one broken relay must not keep the
 * others of its database from running.
 *
 * The owner of the server may be another role, and can point it elsewhere at
 * any time.  Then a function, or a connection without a password, would run
 * for that role with the rights of the relay's owner: neither is let through.
 *
 * MEMORY: all results in the caller's context.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/config.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/reloptions.h"
#include "catalog/pg_foreign_server.h"
#include "catalog/pg_foreign_data_wrapper.h"
#include "catalog/pg_user_mapping.h"
#include "common/pg_prng.h"
#include "commands/defrem.h"
#include "executor/spi.h"
#include "foreign/foreign.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "relay/config.h"
#include "relay/identity.h"
#include "relay/spi.h"
#include "shared/catalog.h"

#define WRAPPER_PREFIX "idempotency_"

static const char *const config_query =
"SELECT relay_id, relay, owner::pg_catalog.oid, server, aggregate_types,"
" ordering::text, on_dead::text, max_attempts,"
" (pg_catalog.date_part('epoch', min_backoff) * 1000)::int,"
" (pg_catalog.date_part('epoch', max_backoff) * 1000)::int,"
" batch_events, batch_bytes, COALESCE(max_lag_bytes, 0), paused, halted, epoch,"
" incarnation, identity, xmin"
" FROM %s.relays ORDER BY relay_id";

static List *
text_array_to_list(Datum array)
{
	Datum	   *elems;
	int			nelems;
	List	   *result = NIL;

	deconstruct_array(DatumGetArrayTypeP(array), TEXTOID, -1, false, TYPALIGN_INT,
					  &elems, NULL, &nelems);
	for (int i = 0; i < nelems; i++)
		result = lappend(result, TextDatumGetCString(elems[i]));
	return result;
}

static IdemRelayConfig *
config_from_row(HeapTuple tup, TupleDesc desc)
{
	IdemRelayConfig *c = palloc0(sizeof(*c));
	bool		isnull;
	Datum		types;

	c->relay_id = DatumGetInt32(idem_spi_value(tup, desc, 1));
	c->name = idem_spi_text(tup, desc, 2);
	c->owner = DatumGetObjectId(idem_spi_value(tup, desc, 3));
	c->server = idem_spi_text(tup, desc, 4);
	types = SPI_getbinval(tup, desc, 5, &isnull);
	c->aggregate_types = isnull ? NIL : text_array_to_list(types);
	c->ordering = strcmp(idem_spi_text(tup, desc, 6), "key") == 0 ?
		IDEM_ORDERING_KEY : IDEM_ORDERING_NONE;
	c->on_dead = strcmp(idem_spi_text(tup, desc, 7), "skip") == 0 ? IDEM_ON_DEAD_SKIP :
		strcmp(idem_spi_text(tup, desc, 7), "stop") == 0 ? IDEM_ON_DEAD_STOP :
		IDEM_ON_DEAD_BLOCK_KEY;
	c->max_attempts = DatumGetInt32(idem_spi_value(tup, desc, 8));
	c->min_backoff_ms = DatumGetInt32(idem_spi_value(tup, desc, 9));
	c->max_backoff_ms = DatumGetInt32(idem_spi_value(tup, desc, 10));
	c->batch_events = DatumGetInt32(idem_spi_value(tup, desc, 11));
	c->batch_bytes = DatumGetInt64(idem_spi_value(tup, desc, 12));
	c->max_lag_bytes = DatumGetInt64(idem_spi_value(tup, desc, 13));
	c->paused = DatumGetBool(idem_spi_value(tup, desc, 14));
	c->halted = idem_spi_text(tup, desc, 15);
	c->epoch = DatumGetInt64(idem_spi_value(tup, desc, 16));
	c->incarnation = idem_spi_text(tup, desc, 17);
	c->identity = idem_spi_text(tup, desc, 18);
	c->row_xmin = DatumGetTransactionId(idem_spi_value(tup, desc, 19));
	return c;
}

/* The owner's mapping, or the public one; unlike GetUserMapping, none is fine. */
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

static void
resolve_server(IdemRelayConfig *c)
{
	ForeignServer *server = GetForeignServerByName(c->server, true);
	ForeignDataWrapper *wrapper;

	if (server == NULL)
	{
		c->problem = psprintf("server \"%s\" does not exist", c->server);
		return;
	}
	if (!SearchSysCacheExists1(AUTHOID, ObjectIdGetDatum(c->owner)))
	{
		c->problem = pstrdup("the role that owns the relay does not exist");
		return;
	}
	if (idem_server_usage_check(server->serverid, c->owner) != ACLCHECK_OK)
	{
		c->problem = psprintf("owner \"%s\" has no USAGE on server \"%s\"",
							  GetUserNameFromId(c->owner, true), c->server);
		return;
	}
	wrapper = GetForeignDataWrapper(server->fdwid);
	if (strncmp(wrapper->fdwname, WRAPPER_PREFIX, strlen(WRAPPER_PREFIX)) != 0)
	{
		c->problem = psprintf("server \"%s\" is of wrapper \"%s\", which is no sink",
							  c->server, wrapper->fdwname);
		return;
	}
	c->kind = pstrdup(wrapper->fdwname + strlen(WRAPPER_PREFIX));
	c->options = list_concat(list_copy(server->options),
							 user_mapping_options(c->owner, server->serverid));

	/*
	 * Who owns the server decides where it leads: nobody may thereby be led
	 * to do what that role could not do itself.
	 */
	if (strcmp(c->kind, "function") == 0 && !has_privs_of_role(server->owner, c->owner))
	{
		c->problem = psprintf("server \"%s\" belongs to \"%s\", who may not act as the relay's owner \"%s\"",
							  c->server, GetUserNameFromId(server->owner, true),
							  GetUserNameFromId(c->owner, true));
		return;
	}
	c->require_password = !superuser_arg(c->owner) || !superuser_arg(server->owner);
	if (strcmp(c->kind, "program") == 0)
	{
		const char *name = idem_relay_option(c, "program");

		if (name == NULL)
			c->problem = psprintf("server \"%s\" has no option \"program\"", c->server);
		else
			c->program = psprintf("idempotency-sink-%s", name);
	}
	else if (strcmp(c->kind, "function") != 0)
		c->program = psprintf("idempotency-sink-%s", c->kind);
}

List *
idem_relay_configs(void)
{
	MemoryContext caller = CurrentMemoryContext;
	List	   *configs = NIL;
	ListCell   *lc;
	MemoryContext old;

	SPI_connect();
	(void) idem_spi_run(config_query, 0, NULL, NULL, NULL);
	old = MemoryContextSwitchTo(caller);
	for (uint64 i = 0; i < SPI_processed; i++)
		configs = lappend(configs, config_from_row(SPI_tuptable->vals[i],
												   SPI_tuptable->tupdesc));
	MemoryContextSwitchTo(old);
	SPI_finish();

	foreach(lc, configs)
		resolve_server(lfirst(lc));
	return configs;
}

static char *
copy_string(const char *s)
{
	return s ? pstrdup(s) : NULL;
}

IdemRelayConfig *
idem_relay_config_copy(const IdemRelayConfig *config)
{
	IdemRelayConfig *c = palloc(sizeof(*c));
	ListCell   *lc;

	*c = *config;
	c->name = copy_string(config->name);
	c->server = copy_string(config->server);
	c->halted = copy_string(config->halted);
	c->incarnation = copy_string(config->incarnation);
	c->identity = copy_string(config->identity);
	c->kind = copy_string(config->kind);
	c->program = copy_string(config->program);
	c->problem = copy_string(config->problem);
	c->aggregate_types = NIL;
	foreach(lc, config->aggregate_types)
		c->aggregate_types = lappend(c->aggregate_types, pstrdup(lfirst(lc)));
	c->options = copyObject(config->options);
	return c;
}

const char *
idem_relay_option(const IdemRelayConfig *config, const char *name)
{
	ListCell   *lc;

	foreach(lc, config->options)
	{
		DefElem    *def = lfirst(lc);

		if (strcmp(def->defname, name) == 0)
			return defGetString(def);
	}
	return NULL;
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

int64
idem_relay_backoff_ms(const IdemRelayConfig *config, int failures)
{
	double		ms = config->min_backoff_ms;

	for (int i = 0; i < failures && ms < config->max_backoff_ms; i++)
		ms *= 2;
	ms = Min(ms, config->max_backoff_ms);
	return (int64) (ms * (0.5 + 0.5 * pg_prng_double(&pg_global_prng_state)));
}

bool
idem_relay_is_barred(const IdemRelayConfig *config, IdemRelayState *state,
					 const char **message)
{
	*message = NULL;
	if (strcmp(config->identity, idem_relay_identity()) != 0)
	{
		*state = IDEM_RELAY_UNADOPTED;
		*message = psprintf("bound to \"%s\", this database is \"%s\"",
							config->identity, idem_relay_identity());
	}
	else if (config->problem)
	{
		*state = IDEM_RELAY_MISCONFIGURED;
		*message = config->problem;
	}
	else if (config->halted)
	{
		*state = IDEM_RELAY_HALTED;
		*message = config->halted;
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
	ListCell   *la,
			   *lb;

	if (a->epoch != b->epoch || a->owner != b->owner ||
		a->batch_events != b->batch_events || a->batch_bytes != b->batch_bytes ||
		a->ordering != b->ordering || a->require_password != b->require_password ||
		strcmp(a->server, b->server) != 0 ||
		strcmp(a->incarnation, b->incarnation) != 0 ||
		strcmp(a->kind ? a->kind : "", b->kind ? b->kind : "") != 0 ||
		list_length(a->options) != list_length(b->options))
		return false;
	forboth(la, a->options, lb, b->options)
	{
		DefElem    *da = lfirst(la);
		DefElem    *db = lfirst(lb);

		if (strcmp(da->defname, db->defname) != 0 ||
			strcmp(defGetString(da), defGetString(db)) != 0)
			return false;
	}
	return true;
}

bool
idem_relay_config_changed_from(const IdemRelayConfig *old, const IdemRelayConfig *new)
{
	return old->row_xmin != new->row_xmin ||
		strcmp(old->problem ? old->problem : "", new->problem ? new->problem : "") != 0 ||
		!idem_relay_config_same_sink(old, new);
}
