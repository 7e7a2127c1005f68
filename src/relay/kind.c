/*-------------------------------------------------------------------------
 *
 * kind.c
 *		The kinds of sink that the core knows: wrapper, options, program.
 *
 * The core knows the options of every sink, also where the sink's program is
 * not installed: a server is created, dumped and restored without the program.
 * The table of options of a kind with a program of ours is beside that program
 * (src/sink/<kind>/options.h).  The tables of the other kinds are in this file.
 *
 * MEMORY: none of its own.  LOCKING: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/kind.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "commands/defrem.h"
#include "lib/stringinfo.h"
#include "utils/formatting.h"

#include "relay/kind.h"

#define WRAPPER_PREFIX "idempotency_"

/* The kind "function", which has no program. */
static const IdemSinkOption idem_sink_function_options[] = {
	{.name = "function", .where = IDEM_OPTION_SERVER, .type = IDEM_OPTION_QUALIFIED, .required = true},
	/* the longest time of a call, in milliseconds */
	{.name = "timeout", .where = IDEM_OPTION_SERVER,
	.type = IDEM_OPTION_INT, .min = 1, .max = 86400000},
	{.name = NULL}
};

/*
 * The kind "program", for programs of others.  The core knows one option, the
 * program's name.
 */
static const IdemSinkOption idem_sink_program_options[] = {
	{.name = "program", .where = IDEM_OPTION_SERVER, .type = IDEM_OPTION_WORD,
	.superuser = true, .required = true},
	{.name = NULL}
};

#define KIND(kind, table, kind_flags) {#kind, table, kind_flags},
static const IdemSinkKind kinds[] = {IDEM_SINK_KINDS(KIND)};

#undef KIND

const IdemSinkKind *
idem_sink_kind(const char *name)
{
	for (int i = 0; i < lengthof(kinds); i++)
	{
		if (strcmp(kinds[i].name, name) == 0)
			return &kinds[i];
	}
	return NULL;
}

const char *
idem_sink_wrapper_kind(const char *wrapper)
{
	if (strncmp(wrapper, WRAPPER_PREFIX, strlen(WRAPPER_PREFIX)) != 0)
		return NULL;
	return wrapper + strlen(WRAPPER_PREFIX);
}

char *
idem_sink_wrappers(void)
{
	StringInfoData buf;

	initStringInfo(&buf);
	for (int i = 0; i < lengthof(kinds); i++)
		appendStringInfo(&buf, "%s" WRAPPER_PREFIX "%s", i > 0 ? ", " : "", kinds[i].name);
	return buf.data;
}

const char *
idem_sink_option_value(List *options, const char *name)
{
	ListCell   *lc;

	foreach(lc, options)
	{
		DefElem    *def = lfirst(lc);

		if (strcmp(def->defname, name) == 0)
			return defGetString(def);
	}
	return NULL;
}

const char *
idem_sink_missing_option(const IdemSinkKind *kind, List *options)
{
	for (const IdemSinkOption *o = kind->options; o->name != NULL; o++)
	{
		if (o->required && o->where == IDEM_OPTION_SERVER &&
			idem_sink_option_value(options, o->name) == NULL)
			return o->name;
	}
	return NULL;
}

/*
 * Could an option of that name, known or mistyped, have a secret as its value?
 */
static bool
looks_secret(const IdemSinkKind *kind, const char *name)
{
	static const char *const parts[] = {
		"pass", "pwd", "pw", "secret", "token", "key", "cred", "auth", "sasl", "cert"
	};
	const IdemSinkOption *option = idem_sink_option_find(kind->options, name);
	char	   *lower = asc_tolower(name, strlen(name));

	if (option != NULL && option->where == IDEM_OPTION_SERVER && !option->secret)
		return false;
	for (int i = 0; i < lengthof(parts); i++)
	{
		if (strstr(lower, parts[i]) != NULL)
			return true;
	}
	return false;
}

bool
idem_sink_options_look_secret(const IdemSinkKind *kind, List *options)
{
	ListCell   *lc;

	foreach(lc, options)
	{
		if (looks_secret(kind, ((DefElem *) lfirst(lc))->defname))
			return true;
	}
	return false;
}
