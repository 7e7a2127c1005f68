/*-------------------------------------------------------------------------
 *
 * config.c
 *		Turns the options of a postgres sink into its settings.
 *
 * INVARIANT
 *		libpq gets the parameters of this file and nothing else: no environment,
 *		no password file, no service file, no key file of the server's user.
 *
 * MEMORY
 *		Settings live as long as the program.  LOCKING: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/postgres/config.c
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sink/common/hide.h"
#include "sink/common/secret.h"
#include "sink/postgres/options.h"
#include "sink/postgres/sink.h"

#define LONG_MS			10000	/* a transaction of many events keeps its
								 * locks no longer */
#define REPLY_MARGIN	15000	/* ms to wait after statement_timeout, which
								 * the target itself keeps */

/* The options that are parameters of libpq, and their defaults. */
static const struct
{
	const char *name;
	const char *value;			/* NULL: leave it to libpq */
}			parameters[] = {
	{"host", NULL},
	{"hostaddr", NULL},
	{"port", NULL},
	{"dbname", NULL},
	{"user", NULL},
	{"application_name", "idempotency sink"},
	{"connect_timeout", "10"},
	{"tcp_user_timeout", "30000"},
	{"target_session_attrs", "read-write"},
	{"channel_binding", NULL},
	{"sslmode", NULL},
	{"ssl_min_protocol_version", NULL},
	{"sslpassword", NULL},
	/* by default libpq looks for these files in a home directory */
	{"sslrootcert", NULL},
	{"sslcrl", "/nonexistent/crl"},
	{"sslcert", "/nonexistent/cert"},
	{"sslkey", "/nonexistent/key"},
};

/* Add a parameter for libpq. */
static void
add(PgSinkConfig *c, const char *keyword, const char *value)
{
	int			n = 0;

	while (c->keywords[n] != NULL)
		n++;
	c->keywords[n] = keyword;
	c->values[n] = value;
	c->keywords[n + 1] = NULL;
}

/* Add the options that are parameters of libpq, and the fixed parameters. */
static void
add_parameters(PgSinkConfig *c, const IdemProtoHello *hello)
{
	for (size_t i = 0; i < sizeof(parameters) / sizeof(parameters[0]); i++)
	{
		char	   *value = idem_sink_option(hello, parameters[i].name, parameters[i].value);

		if (strcmp(parameters[i].name, "sslpassword") == 0)
			idem_sink_keep_secret(value);
		if (value != NULL)
			add(c, parameters[i].name, value);
	}
	add(c, "passfile", "/nonexistent/pgpass");
	add(c, "gssencmode", "disable");
	add(c, "client_encoding", "UTF8");
	add(c, "keepalives_idle", "20");
	add(c, "keepalives_interval", "5");
	add(c, "keepalives_count", "3");
}

/* Add the password, from its option or from secret_file.  False: p->failure. */
static bool
add_password(PgSink *p, const IdemProtoHello *hello)
{
	char	   *password = idem_sink_option(hello, "password", NULL);
	char	   *file = idem_sink_option(hello, "secret_file", NULL);

	if (password != NULL && file != NULL)
		return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "HV024",
							  "options \"password\" and \"secret_file\" exclude each other");
	if (file != NULL)
		password = idem_sink_read_secret(&p->sink, file);
	if (password == NULL && p->config.require_password)
		return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "2F003",
							  "password is required: the relay's owner is not a superuser; set the option \"password\" of his user mapping");
	idem_sink_keep_secret(password);
	if (password != NULL)
		add(&p->config, "password", password);
	return true;
}

/*
 * Read the names of function or table, and of the position table.  False:
 * p->failure.
 */
static bool
choose_target(PgSink *p, const IdemProtoHello *hello)
{
	PgSinkConfig *c = &p->config;
	char	   *function = idem_sink_option(hello, "function", NULL);
	char	   *table = idem_sink_option(hello, "table", NULL);
	char	   *position = idem_sink_option(hello, "position_table",
											IDEM_SINK_POSTGRES_POSITION_TABLE);

	if ((function == NULL) == (table == NULL))
		return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "HV00B",
							  "the postgres sink needs one of the options \"function\" and \"table\"");
	c->is_function = (function != NULL);
	c->omit_columns = idem_sink_option(hello, "omit_columns", NULL);
	if (c->is_function && c->omit_columns != NULL)
		return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "HV00B",
							  "option \"omit_columns\" is for a table; a function gets the fields that its arguments name");
	idem_sink_split_name(function ? function : table, c->schema, c->name, sizeof(c->name));
	idem_sink_split_name(position, c->position_schema, c->position_name,
						 sizeof(c->position_name));
	free(function);
	free(table);
	free(position);
	return true;
}

bool
pgsink_configure(PgSink *p, const IdemProtoHello *hello)
{
	PgSinkConfig *c = &p->config;
	long		timeout = idem_sink_option_int(hello, "statement_timeout", 60000);
	char	   *dbname = idem_sink_option(hello, "dbname", NULL);

	c->key_order = (hello->flags & IDEM_PROTO_KEY_ORDER) != 0;
	c->require_password = (hello->flags & IDEM_PROTO_REQUIRE_PASSWORD) != 0;
	if (!(hello->flags & IDEM_PROTO_WANT_POSITION))
		return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "0A000",
							  "the postgres sink stores positions and cannot do without");
	if (dbname == NULL)
		return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "HV00B",
							  "the postgres sink needs the option \"dbname\"");
	free(dbname);
	c->relay = idem_sink_strdup(hello->relay.data, hello->relay.len);
	c->incarnation = idem_sink_strdup(hello->incarnation.data, hello->incarnation.len);
	c->consumer = idem_sink_option(hello, "consumer", c->relay);
	c->claim = idem_sink_option(hello, "claim", "auto");
	snprintf(c->statement_timeout, sizeof(c->statement_timeout), "%ld", timeout);
	snprintf(c->many_timeout, sizeof(c->many_timeout), "%ld",
			 timeout > 0 && timeout < LONG_MS ? timeout : LONG_MS);
	snprintf(c->idle_timeout, sizeof(c->idle_timeout), "%ld",
			 idem_sink_option_int(hello, "idle_timeout", 60000));
	c->reply_timeout = timeout > 0 ? timeout + REPLY_MARGIN : 0;
	if (!choose_target(p, hello))
		return false;
	add_parameters(c, hello);
	return add_password(p, hello);
}
