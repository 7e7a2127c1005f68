/*-------------------------------------------------------------------------
 *
 * target.c
 *		What is known of a relay's target at once: options, login, function, types.
 *
 * relay_create and relay_alter refuse what cannot work, warn of what only the
 * target can tell, and note a type that no event has.  The relay's row and anchor
 * are written by then, so the relay is judged as its worker will resolve it; an
 * error undoes them.
 *
 * An option of a server was checked by the validator when it was set.  It is checked
 * again here, because a wrapper may have been without its validator, and an
 * earlier release may have had other rules.
 *
 * INVARIANT
 *		No message has the value of an option, which may be a secret.
 *
 * LOCKING: the locks of a statement on the outbox are given back at its end.
 *
 * MEMORY: of the current context.  Of each segment of the outbox only the last
 * RECENT_PAGES pages are read, so the time is bounded.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/api/target.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "commands/defrem.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"

#include "relay/api/api.h"
#include "relay/function/function.h"
#include "relay/kind.h"
#include "shared/spi.h"

#define RECENT_PAGES	1024
#define SEGMENTS		8
#define SHOWN_TYPES		10		/* a notice names no more */

/* A relay's target: its server, and its options apart from those of the login. */
typedef struct Target
{
	const IdemRelayConfig *relay;
	const IdemSinkKind *kind;
	ForeignServer *server;
	List	   *login;			/* options of the user mapping */
} Target;

/* Refuse a server without an option that the kind needs. */
pg_noreturn static void
lacks_option(const Target *t, const char *name)
{
	ereport(ERROR,
			(errcode(ERRCODE_FDW_OPTION_NAME_NOT_FOUND),
			 errmsg("server \"%s\" has no option \"%s\"", t->server->servername, name),
			 errhint("Run ALTER SERVER %s OPTIONS (ADD %s '...').",
					 quote_identifier(t->server->servername), name)));
}

/* Refuse options that the kind does not have, or with values that it does not take. */
static void
check_options(const Target *t, List *options, bool login)
{
	const char *of = login ? "the user mapping for server" : "server";
	const char *name = quote_identifier(t->server->servername);
	const char *role = quote_identifier(GetUserNameFromId(t->relay->owner, false));
	char	   *command = login ? psprintf("ALTER USER MAPPING FOR %s SERVER %s", role, name) : psprintf("ALTER SERVER %s", name);
	ListCell   *lc;

	foreach(lc, options)
	{
		DefElem    *def = lfirst(lc);
		const IdemSinkOption *option = idem_sink_option_find(t->kind->options, def->defname);
		char		problem[256];

		if (option == NULL && (t->kind->flags & IDEM_KIND_OPEN) == 0)
			ereport(ERROR,
					(errcode(ERRCODE_FDW_INVALID_OPTION_NAME),
					 errmsg("%s \"%s\" has an option \"%s\", which the sink does not know",
							of, t->server->servername, def->defname),
					 errhint("Run %s OPTIONS (DROP %s).", command, quote_identifier(def->defname))));
		if (option != NULL && !idem_sink_option_check(option, defGetString(def), problem, sizeof(problem)))
			ereport(ERROR,
					(errcode(ERRCODE_FDW_INVALID_ATTRIBUTE_VALUE),
					 errmsg("option \"%s\" of %s \"%s\" %s", def->defname, of, t->server->servername, problem),
					 errhint("Run %s OPTIONS (SET %s '...').", command, def->defname)));
	}
}

/* A sink that is a PostgreSQL calls a function or fills a table. */
static void
check_postgres(const Target *t)
{
	bool		function = idem_sink_option_value(t->server->options, "function") != NULL;
	bool		table = idem_sink_option_value(t->server->options, "table") != NULL;

	if (!function && !table)
		ereport(ERROR,
				(errcode(ERRCODE_FDW_OPTION_NAME_NOT_FOUND),
				 errmsg("server \"%s\" has neither the option \"function\" nor \"table\"", t->server->servername),
				 errhint("Name what gets the events: ALTER SERVER %s OPTIONS (ADD \"table\" 'schema.inbox').",
						 quote_identifier(t->server->servername))));
	if (function && table)
		ereport(ERROR,
				(errcode(ERRCODE_FDW_INVALID_ATTRIBUTE_VALUE),
				 errmsg("server \"%s\" has both options \"function\" and \"table\"", t->server->servername),
				 errhint("Drop one of them.")));
}

/* Does the option have a value, and one that begins otherwise? */
static bool
begins_otherwise(List *options, const char *name, const char *prefix)
{
	const char *value = idem_sink_option_value(options, name);

	return value != NULL && strncmp(value, prefix, strlen(prefix)) != 0;
}

/* Do the server's options say that the target asks for a login, or may they? */
static bool
wants_login(const Target *t)
{
	List	   *options = t->server->options;
	const char *protocol;

	if (strcmp(t->kind->name, "postgres") == 0)
		return true;
	if (strcmp(t->kind->name, "http") == 0)
		return begins_otherwise(options, "auth", "none") || begins_otherwise(options, "service", "webhook");
	protocol = idem_sink_option_value(options, "security_protocol");
	return strcmp(t->kind->name, "kafka") == 0 && protocol != NULL && strncmp(protocol, "sasl_", 5) == 0;
}

/* Find the target.  False: the relay has a problem, or its wrapper is of others, and nothing is known. */
static bool
find_target(const IdemRelayConfig *relay, Target *t)
{
	if (!OidIsValid(relay->serverid) || relay->kind == NULL)
		return false;
	t->relay = relay;
	t->kind = idem_sink_kind(relay->kind);
	t->server = GetForeignServer(relay->serverid);
	t->login = list_copy_tail(relay->options, list_length(t->server->options));
	return t->kind != NULL;
}

void
idem_target_check_options(const IdemRelayConfig *relay)
{
	Target		t;
	bool		found = find_target(relay, &t);
	const char *missing = found ? idem_sink_missing_option(t.kind, t.server->options) : NULL;

	if (missing != NULL)
		lacks_option(&t, missing);
	if (relay->problem != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("relay \"%s\" could not run", relay->name),
				 errdetail("%s.", relay->problem),
				 errhint("Put it right, and try again.")));
	if (!found)
		return;
	check_options(&t, t.server->options, false);
	check_options(&t, t.login, true);
	if (strcmp(relay->kind, "postgres") == 0)
		check_postgres(&t);
}

void
idem_target_check(const IdemRelayConfig *relay)
{
	idem_target_check_options(relay);
	if (idem_relay_is_function(relay))
		idem_handler_verify(relay);
}

void
idem_target_warn(const IdemRelayConfig *relay)
{
	Target		t;
	const char *role;

	if (!find_target(relay, &t) || t.login != NIL || !wants_login(&t))
		return;
	role = GetUserNameFromId(relay->owner, false);
	ereport(WARNING,
			(errmsg("role \"%s\" has no user mapping with a login for server \"%s\"", role, t.server->servername),
			 errdetail("Only the target knows whether it lets the relay in without."),
			 errhint("Run CREATE USER MAPPING FOR %s SERVER %s OPTIONS (user '...', password '...'), or ask the target by relay_check.",
					 quote_identifier(role), quote_identifier(t.server->servername))));
}

/* The query for those types of $1 that the last pages of the outbox do not have, as one text. */
static char *
unseen_types_query(void)
{
	StringInfoData sql;

	initStringInfo(&sql);
	appendStringInfoString(&sql, "WITH recent AS MATERIALIZED (");
	for (int i = 0; i < SEGMENTS; i++)
		appendStringInfo(&sql, "%sSELECT aggregate_type AS type FROM %%s.outbox_segment_%d WHERE ctid >= (SELECT"
						 " ('(' || GREATEST(pg_catalog.pg_relation_size('%%s.outbox_segment_%d')"
						 " / pg_catalog.current_setting('block_size')::int8 - %d, 0)::text || ',0)')::tid)",
						 i > 0 ? " UNION " : "", i, i, RECENT_PAGES);
	appendStringInfo(&sql, ") SELECT pg_catalog.string_agg('\"' || u.type || '\"', ', ') FROM ("
					 "SELECT DISTINCT w.type FROM pg_catalog.unnest($1) AS w(type)"
					 " WHERE w.type NOT IN (SELECT r.type FROM recent r) AND EXISTS (SELECT FROM recent)"
					 " ORDER BY 1 LIMIT %d) u", SHOWN_TYPES);
	return sql.data;
}

void
idem_target_note_types(Datum types)
{
	Oid			argtypes[1] = {TEXTARRAYOID};
	char	   *unseen;

	SPI_connect();
	idem_spi_read(unseen_types_query(), 1, argtypes, &types);
	unseen = idem_spi_text(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1);
	if (unseen != NULL)
		ereport(NOTICE,
				(errmsg("no recent event in the outbox has the aggregate type %s", unseen),
				 errhint("Types are compared byte by byte. The relay sends such events when they come.")));
	SPI_finish();
}
