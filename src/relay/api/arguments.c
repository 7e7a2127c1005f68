/*-------------------------------------------------------------------------
 *
 * arguments.c
 *		The arguments of relay_create and relay_alter: checks them and makes
 *		them values of columns.
 *
 * IDEM_RELAY_ARGUMENTS (row.h) says all that is particular to an argument;
 * only the two backoffs are also compared with each other.
 *
 * A value that is out of range is refused before an argument that is not built:
 * only the first will still be an error when the argument is built.  Nothing
 * here reads or writes a table.
 *
 * MEMORY: values are in the context that is current at the call, or are the
 * arguments' own memory.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/api/arguments.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "relay/api/api.h"
#include "relay/kind.h"
#include "shared/args.h"

/* The kinds of arguments, as in IDEM_RELAY_ARGUMENTS */
typedef enum Kind
{
	KIND_none,
	KIND_names,
	KIND_label,
	KIND_count,
	KIND_size,
	KIND_interval,
	KIND_period
} Kind;

typedef struct Argument
{
	const char *name;
	Kind		kind;
	bool		needed;
	bool		later;			/* its feature is not built */
	int64		min;
	int64		max;
	const char *text;
} Argument;

#define OPTION(name, field, kind, needed, min, max, text) {#name, KIND_##kind, needed, false, min, max, text},
#define PLAIN(name, needed) {#name, KIND_none, needed, false, 0, 0, ""},
#define LATER(name, kind, text) {#name, KIND_##kind, false, true, 0, 0, text},
static const Argument arguments[IDEM_RELAY_NARGS] = {IDEM_RELAY_ARGUMENTS(OPTION, PLAIN, LATER)};

char *
idem_relay_args_name(FunctionCallInfo fcinfo)
{
	return text_to_cstring(idem_get_text_arg(fcinfo, IDEM_ARG_relay, "relay", IDEM_MAX_RELAY_NAME));
}

char *
idem_relay_args_begin(FunctionCallInfo fcinfo, const char *command)
{
	char	   *name = idem_relay_args_name(fcinfo);

	idem_prevent_read_only(psprintf("%s()", command));
	return name;
}

void
idem_relay_args_require(FunctionCallInfo fcinfo)
{
	for (int i = 0; i < IDEM_RELAY_NARGS; i++)
	{
		if (arguments[i].needed)
			idem_require_arg(fcinfo, i, arguments[i].name);
	}
}

/* The label of a value of any of our enum types. */
static char *
enum_label(Datum value)
{
	return DatumGetCString(DirectFunctionCall1(enum_out, value));
}

bool
idem_relay_args_latest(FunctionCallInfo fcinfo)
{
	return strcmp(enum_label(PG_GETARG_DATUM(IDEM_ARG_start_at)), "latest") == 0;
}

/* Refuse a value out of the argument's range, which counts in units.  more: what else is allowed. */
static void
check_range(const Argument *arg, int64 value, int unit, const char *more)
{
	if (value < arg->min * unit || value > arg->max * unit)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"%s\" is out of range", arg->name),
				 errhint("It must be %s%s.", arg->text, more)));
}

/*
 * The backoff in ms that a relay has after the call.  before: what NULL keeps;
 * otherwise: what 0 sets.
 */
static double
backoff_ms(FunctionCallInfo fcinfo, int argno, int before, int otherwise)
{
	double		ms;

	if (PG_ARGISNULL(argno))
		return before;
	ms = idem_interval_us(PG_GETARG_INTERVAL_P(argno)) / 1000.0;
	return ms == 0 ? otherwise : ms;
}

/*
 * Error if a call that sets a backoff leaves the first one longer than the last one.
 * Both have defaults by the kind that the relay has after the call.
 */
static void
check_backoff_order(FunctionCallInfo fcinfo, const IdemRelayConfig *config, const ForeignServer *server)
{
	IdemRelayConfig now = {0};
	IdemRelayConfig plain;
	double		min,
				max;

	if (PG_ARGISNULL(IDEM_ARG_min_backoff) && PG_ARGISNULL(IDEM_ARG_max_backoff))
		return;
	if (config != NULL)
		now = *config;
	if (server != NULL)
		now.kind = unconstify(char *, idem_sink_wrapper_kind(GetForeignDataWrapper(server->fdwid)->fdwname));
	plain = now;
	plain.min_backoff_ms = plain.max_backoff_ms = 0;
	min = backoff_ms(fcinfo, IDEM_ARG_min_backoff, idem_relay_min_backoff_ms(&now),
					 idem_relay_min_backoff_ms(&plain));
	max = backoff_ms(fcinfo, IDEM_ARG_max_backoff, idem_relay_max_backoff_ms(&now),
					 idem_relay_max_backoff_ms(&plain));
	if (min > max)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"min_backoff\" must not be greater than \"max_backoff\""),
				 errdetail("They would be %.0f ms and %.0f ms.", min, max),
				 errhint("Set both.")));
}

void
idem_relay_args_check_names(FunctionCallInfo fcinfo, int argno, const char *name)
{
	Datum	   *elems;
	bool	   *nulls;
	int			n;

	if (PG_ARGISNULL(argno))
		return;
	deconstruct_array(PG_GETARG_ARRAYTYPE_P(argno), TEXTOID, -1, false, TYPALIGN_INT,
					  &elems, &nulls, &n);
	for (int i = 0; i < n; i++)
	{
		if (nulls[i])
			idem_null_element(name, i + 1);
		idem_check_length(name, VARSIZE_ANY_EXHDR(DatumGetPointer(elems[i])),
						  IDEM_MAX_NAME_BYTES);
	}
}

void
idem_relay_columns_init(IdemRelayColumns *columns)
{
	initStringInfo(&columns->names);
	initStringInfo(&columns->params);
	columns->n = 0;
}

void
idem_relay_columns_add(IdemRelayColumns *columns, const char *name, Oid type, Datum value)
{
	int			i = columns->n++;

	Assert(i < lengthof(columns->values));
	appendStringInfo(&columns->names, "%s%s", i > 0 ? ", " : "", name);
	appendStringInfo(&columns->params, "%s$%d", i > 0 ? ", " : "", i + 1);
	columns->types[i] = type;
	columns->values[i] = value;
	columns->nulls[i] = ' ';
}

/* Add a number of bytes.  "0" and "none" take a limit away, where there need not be one. */
static void
add_bytes(IdemRelayColumns *columns, const Argument *arg, Datum value)
{
	bool		none = !arg->needed && pg_strcasecmp(TextDatumGetCString(value), "none") == 0;
	int64		bytes = none ? 0 : DatumGetInt64(DirectFunctionCall1(pg_size_bytes, value));

	if (arg->needed || bytes != 0)
		check_range(arg, bytes, 1, "");
	idem_relay_columns_add(columns, arg->name, INT8OID, Int64GetDatum(bytes));
	if (bytes == 0)
		columns->nulls[columns->n - 1] = 'n';
}

/* Add an interval.  In relay_alter 0 goes back to the default. */
static void
add_interval(IdemRelayColumns *columns, const Argument *arg, Datum value, bool alter)
{
	int64		us = idem_interval_us(DatumGetIntervalP(value));

	if (!alter || us != 0)
		check_range(arg, us, 1000, alter ? ", or 0 for the default" : "");
	idem_relay_columns_add(columns, arg->name, INTERVALOID, value);
	if (us == 0)
		columns->nulls[columns->n - 1] = 'n';
}

/* Add an interval of which 0 is a value. */
static void
add_period(IdemRelayColumns *columns, const Argument *arg, Datum value)
{
	int64		us = idem_interval_us(DatumGetIntervalP(value));

	if (us != 0)
		check_range(arg, us, 1000, "");
	idem_relay_columns_add(columns, arg->name, INTERVALOID, value);
}

/* Refuse a list of more types than a relay may have. */
static void
check_number(FunctionCallInfo fcinfo, int argno, const char *name)
{
	ArrayType  *array = PG_GETARG_ARRAYTYPE_P(argno);
	int			n = ArrayGetNItems(ARR_NDIM(array), ARR_DIMS(array));

	if (n > IDEM_MAX_RELAY_TYPES)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("argument \"%s\" has too many elements", name),
				 errdetail("It has %d elements; at most %d are allowed.", n, IDEM_MAX_RELAY_TYPES),
				 errhint("Send all types, with an empty array, and let the receiver skip what it does not want. What tells one aggregate from the next belongs in aggregate_id.")));
}

/* Check an argument that is not NULL, and add its column, if it has one. */
static void
take_argument(FunctionCallInfo fcinfo, int argno, bool alter, IdemRelayColumns *columns)
{
	const Argument *arg = &arguments[argno];
	Datum		value = PG_GETARG_DATUM(argno);

	switch (arg->kind)
	{
		case KIND_none:
			break;
		case KIND_names:
			if (!arg->later)
				check_number(fcinfo, argno, arg->name);
			idem_relay_args_check_names(fcinfo, argno, arg->name);
			if (!arg->later)
				idem_relay_columns_add(columns, arg->name, TEXTARRAYOID, value);
			break;
		case KIND_label:
			/* as a value of the enum type that is named after the column */
			idem_relay_columns_add(columns, arg->name, TEXTOID, CStringGetTextDatum(enum_label(value)));
			appendStringInfo(&columns->params, "::%%t.relay_%s", arg->name);
			break;
		case KIND_count:
			check_range(arg, DatumGetInt32(value), 1, "");
			idem_relay_columns_add(columns, arg->name, INT4OID, value);
			break;
		case KIND_size:
			add_bytes(columns, arg, value);
			break;
		case KIND_interval:
			add_interval(columns, arg, value, alter);
			break;
		case KIND_period:
			add_period(columns, arg, value);
			break;
	}
}

void
idem_relay_args_options(FunctionCallInfo fcinfo, const IdemRelayConfig *config,
						const ForeignServer *server, IdemRelayColumns *columns)
{
	for (int i = 0; i < IDEM_RELAY_NARGS; i++)
	{
		if (!PG_ARGISNULL(i))
			take_argument(fcinfo, i, config != NULL, columns);
	}
	check_backoff_order(fcinfo, config, server);
	for (int i = 0; i < IDEM_RELAY_NARGS; i++)
	{
		if (arguments[i].later)
			idem_reject_arg(fcinfo, i, arguments[i].name, arguments[i].text);
	}
}
