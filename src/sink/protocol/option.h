/*-------------------------------------------------------------------------
 *
 * option.h
 *		How a sink program describes the options that it takes.
 *
 * Each program has a table of IdemSinkOption in its options.h; a NULL name
 * ends the table.  The validators of the foreign-data wrappers in the server
 * read the same table.  So CREATE SERVER refuses the values that the program
 * would refuse.
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

/* The object that has the option in its OPTIONS clause. */
typedef enum IdemSinkOptionWhere
{
	IDEM_OPTION_SERVER,
	IDEM_OPTION_USER_MAPPING
} IdemSinkOptionWhere;

typedef enum IdemSinkOptionType
{
	IDEM_OPTION_TEXT,			/* not empty */
	IDEM_OPTION_FILE,			/* a file that a library reads; the program
								 * sees at its start whether it can */
	IDEM_OPTION_BOOL,			/* on or off, true or false */
	IDEM_OPTION_INT,			/* decimal digits, value from min to max */
	IDEM_OPTION_CHOICE,			/* one of the words in choices */
	IDEM_OPTION_CHOICES,		/* words in choices, separated by commas */
	IDEM_OPTION_QUALIFIED,		/* schema.name, each part quoted or not */
	IDEM_OPTION_WORD,			/* lower-case letters, digits, underscores */
	IDEM_OPTION_TEMPLATE,		/* text whose placeholders are in choices */
	IDEM_OPTION_URL,			/* http:// or https://, without a login; with
								 * choices: a template from the path on */
	IDEM_OPTION_SIGNING_SECRETS /* "whsec_" and base64, separated by blanks */
} IdemSinkOptionType;

typedef struct IdemSinkOption
{
	const char *name;
	IdemSinkOptionWhere where;
	IdemSinkOptionType type;
	bool		secret;			/* the value must not be shown or logged */
	bool		superuser;		/* only superusers may set it */
	const char *reason;			/* of superuser, as a sentence; NULL: the
								 * option names a file, to be read or written,
								 * or a program */
	bool		required;		/* the core starts no program without it; an
								 * option of the server */
	long		min;			/* for IDEM_OPTION_INT */
	long		max;
	const char *choices;		/* for IDEM_OPTION_CHOICE and CHOICES: words
								 * separated by spaces; for TEMPLATE and URL:
								 * placeholders, likewise; for FILE: a word
								 * that names no file, or NULL */
	const char *less_than;		/* the option whose value is larger, of the
								 * same object; it is less_than_default if it
								 * is not set */
	long		less_than_default;
	const char *unless;			/* an option of the same object; less_than
								 * does not hold if it has the value unless_is */
	const char *unless_is;
} IdemSinkOption;

/* Of a placeholder, what stands before the name of a header of the event */
#define IDEM_SINK_HEADER_PREFIX	"header:"

/*
 * What is wrong with a template, as the end of a sentence; NULL: nothing.  names: the
 * placeholders that it may have, as in "{relay} {aggregate_type} {header:NAME}".
 */
extern const char *idem_sink_check_template(const char *template, const char *names);

/* Has the value of an IDEM_OPTION_URL a login in it? */
extern bool idem_sink_url_has_login(const char *url);

/* Why only superusers may set the option, as a sentence. */
extern const char *idem_sink_option_reason(const IdemSinkOption *option);

/*
 * The options of a login that all sinks with one have, in the user mapping.  The
 * program reads secret_file: a file with the password in its first line.
 */
#define IDEM_SINK_LOGIN_OPTIONS \
	{.name = "user", .where = IDEM_OPTION_USER_MAPPING, .type = IDEM_OPTION_TEXT}, \
	{.name = "password", .where = IDEM_OPTION_USER_MAPPING, \
	.type = IDEM_OPTION_TEXT, .secret = true}, \
	{.name = "secret_file", .where = IDEM_OPTION_USER_MAPPING, \
	.type = IDEM_OPTION_TEXT, .superuser = true}, \
	{.name = "sslcert", .where = IDEM_OPTION_USER_MAPPING, \
	.type = IDEM_OPTION_FILE, .superuser = true}, \
	{.name = "sslkey", .where = IDEM_OPTION_USER_MAPPING, \
	.type = IDEM_OPTION_FILE, .superuser = true}, \
	{.name = "sslpassword", .where = IDEM_OPTION_USER_MAPPING, \
	.type = IDEM_OPTION_TEXT, .secret = true}

/* Return the option of that name; NULL if the table has none. */
extern const IdemSinkOption *idem_sink_option_find(const IdemSinkOption *table,
												   const char *name);

/*
 * May the option have the value?  If not, problem (a buffer of cap bytes)
 * states the rule: "must be an integer from 1 to 65535".  problem never
 * contains the value.
 */
extern bool idem_sink_option_check(const IdemSinkOption *option,
								   const char *value, char *problem, size_t cap);

/*
 * Is the word among those of an IDEM_OPTION_CHOICES?  No word is among the words of
 * NULL.
 */
extern bool idem_sink_option_names(const char *value, const char *word);

/* The value of an IDEM_OPTION_BOOL that idem_sink_option_check accepted. */
extern bool idem_sink_option_bool(const char *value);

/*
 * Split "schema.name" as SQL would: unquoted parts fold to lower case (ASCII
 * only), and "" in a quoted part is one quote.  Both buffers hold cap bytes.
 * False unless the value is exactly two non-empty parts that fit.
 */
extern bool idem_sink_split_name(const char *value, char *schema, char *name,
								 size_t cap);

#endif							/* IDEM_SINK_OPTION_H */
