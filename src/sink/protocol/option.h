/*-------------------------------------------------------------------------
 *
 * option.h
 *		How a sink program describes the options it takes.
 *
 * Each program has a table of these in its options.h, ended by a NULL name.
 * The validators of the foreign-data wrappers in the server read the same
 * table, so that CREATE SERVER refuses the values that the program would refuse.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/protocol/option.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_SINK_OPTION_H
#define IDEM_SINK_OPTION_H

#include <stdbool.h>
#include <stddef.h>

/* The object whose OPTIONS clause the option stands in. */
typedef enum IdemSinkOptionWhere
{
	IDEM_OPTION_SERVER,
	IDEM_OPTION_USER_MAPPING
} IdemSinkOptionWhere;

typedef enum IdemSinkOptionType
{
	IDEM_OPTION_TEXT,			/* not empty */
	IDEM_OPTION_BOOL,			/* on or off, true or false */
	IDEM_OPTION_INT,			/* decimal, min to max */
	IDEM_OPTION_CHOICE,			/* one of choices */
	IDEM_OPTION_QUALIFIED,		/* schema.name, each quoted or not */
	IDEM_OPTION_WORD			/* lower-case letters, digits, underscores */
} IdemSinkOptionType;

typedef struct IdemSinkOption
{
	const char *name;
	IdemSinkOptionWhere where;
	IdemSinkOptionType type;
	bool		secret;			/* value must not be shown or logged */
	bool		superuser;		/* names a program, or a file that the
								 * server's OS user can read: for superusers
								 * to set */
	bool		required;		/* of the server: no relay runs without it */
	long		min;			/* IDEM_OPTION_INT */
	long		max;
	const char *choices;		/* IDEM_OPTION_CHOICE: separated by spaces */
} IdemSinkOption;

/* The option of that name, or NULL. */
extern const IdemSinkOption *idem_sink_option_find(const IdemSinkOption *table,
												   const char *name);

/*
 * May the option have the value?  If not, problem, of cap bytes, states the rule
 * ("must be an integer from 1 to 65535"), and never contains the value.
 */
extern bool idem_sink_option_check(const IdemSinkOption *option,
								   const char *value, char *problem, size_t cap);

/* The value of a checked IDEM_OPTION_BOOL. */
extern bool idem_sink_option_bool(const char *value);

/*
 * Split "schema.name" as SQL would: unquoted parts fold to lower case (ASCII),
 * "" in a quoted part is one quote.  Both buffers hold cap bytes.  False if it
 * is not exactly two non-empty parts that fit.
 */
extern bool idem_sink_split_name(const char *value, char *schema, char *name,
								 size_t cap);

#endif							/* IDEM_SINK_OPTION_H */
