/*-------------------------------------------------------------------------
 *
 * arguments.c
 *		The arguments of relay_create and relay_alter: checks them and makes
 *		them values of columns.
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

#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "relay/api/arguments.h"
#include "shared/args.h"

#define MAX_BACKOFF_US (INT64CONST(24) * USECS_PER_HOUR)

char *
idem_relay_args_name(FunctionCallInfo fcinfo)
{
	return text_to_cstring(idem_get_text_arg(fcinfo, IDEM_ARG_RELAY, "relay", IDEM_MAX_NAME_BYTES));
}

void
idem_relay_args_require(FunctionCallInfo fcinfo)
{
	static const struct
	{
		int			arg;
		const char *name;
	}			needed[] = {
		{IDEM_ARG_START, "start_at"}, {IDEM_ARG_ORDERING, "ordering"}, {IDEM_ARG_ON_DEAD, "on_dead"},
		{IDEM_ARG_MAX_ATTEMPTS, "max_attempts"}, {IDEM_ARG_BATCH_EVENTS, "batch_events"},
		{IDEM_ARG_BATCH_SIZE, "batch_size"},
	};

	for (int i = 0; i < lengthof(needed); i++)
		idem_require_arg(fcinfo, needed[i].arg, needed[i].name);
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
	return strcmp(enum_label(PG_GETARG_DATUM(IDEM_ARG_START)), "latest") == 0;
}

/* Refuse an argument; "range" completes the hint. */
static void
range_error(const char *name, const char *range)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("argument \"%s\" is out of range", name),
			 errhint("It must be %s.", range)));
}

/* Refuse an interval out of range.  In relay_alter 0 goes back to the default. */
static void
check_backoff(FunctionCallInfo fcinfo, bool alter, int argno, const char *name)
{
	int64		us;

	if (PG_ARGISNULL(argno))
		return;
	us = idem_interval_us(PG_GETARG_INTERVAL_P(argno));
	if (alter && us == 0)
		return;
	if (us < 1000 || us > MAX_BACKOFF_US)
		range_error(name, alter ? "between 1 ms and 1 day, or 0 for the default" :
					"between 1 ms and 1 day");
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

/* Error if a call that sets a backoff leaves the first one longer than the last one. */
static void
check_backoff_order(FunctionCallInfo fcinfo, const IdemRelayConfig *config)
{
	double		min,
				max;

	if (PG_ARGISNULL(IDEM_ARG_MIN_BACKOFF) && PG_ARGISNULL(IDEM_ARG_MAX_BACKOFF))
		return;
	min = backoff_ms(fcinfo, IDEM_ARG_MIN_BACKOFF,
					 config ? config->min_backoff_ms : IDEM_DEFAULT_MIN_BACKOFF_MS,
					 IDEM_DEFAULT_MIN_BACKOFF_MS);
	max = backoff_ms(fcinfo, IDEM_ARG_MAX_BACKOFF,
					 config ? config->max_backoff_ms : IDEM_DEFAULT_MAX_BACKOFF_MS,
					 IDEM_DEFAULT_MAX_BACKOFF_MS);
	if (min > max)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"min_backoff\" must not be greater than \"max_backoff\""),
				 errdetail("They would be %.0f ms and %.0f ms.", min, max),
				 errhint("Set both.")));
}

/* An argument like "1MB", in bytes; "range" names the bounds to the user. */
static int64
size_arg(FunctionCallInfo fcinfo, int argno, const char *name, int64 min, int64 max,
		 const char *range)
{
	int64		bytes = DatumGetInt64(DirectFunctionCall1(pg_size_bytes, PG_GETARG_DATUM(argno)));

	if (bytes < min || bytes > max)
		range_error(name, range);
	return bytes;
}

/* max_lag_size in bytes.  "0" and "none" give 0, which removes the limit. */
static int64
max_lag_arg(FunctionCallInfo fcinfo)
{
	char	   *size = text_to_cstring(PG_GETARG_TEXT_PP(IDEM_ARG_MAX_LAG));

	if (pg_strcasecmp(size, "none") == 0 ||
		DatumGetInt64(DirectFunctionCall1(pg_size_bytes, PG_GETARG_DATUM(IDEM_ARG_MAX_LAG))) == 0)
		return 0;
	return size_arg(fcinfo, IDEM_ARG_MAX_LAG, "max_lag_size", 1024 * 1024, PG_INT64_MAX,
					"at least 1MB, or 0 for no limit");
}

/*
 * Check numbers.  NULL is accepted: relay_alter then keeps the relay's value.
 */
static void
check_numbers(FunctionCallInfo fcinfo)
{
	if (!PG_ARGISNULL(IDEM_ARG_MAX_ATTEMPTS) &&
		(PG_GETARG_INT32(IDEM_ARG_MAX_ATTEMPTS) < 0 || PG_GETARG_INT32(IDEM_ARG_MAX_ATTEMPTS) > 1000000))
		range_error("max_attempts", "between 1 and 1000000, or 0 for no limit");
	if (!PG_ARGISNULL(IDEM_ARG_BATCH_EVENTS) &&
		(PG_GETARG_INT32(IDEM_ARG_BATCH_EVENTS) < 1 || PG_GETARG_INT32(IDEM_ARG_BATCH_EVENTS) > 10000))
		range_error("batch_events", "between 1 and 10000");
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

/*
 * Refuse arguments whose feature is not built.  The list is in the order of
 * the arguments.  The hints say how to do without them.
 */
static void
reject_later(FunctionCallInfo fcinfo)
{
	static const struct
	{
		int			arg;
		const char *name;
		const char *hint;
	}			later[] = {
		{IDEM_ARG_EVENT_TYPES, "event_types",
		"Choose events by aggregate_types, and let the receiver skip other types."},
		{IDEM_ARG_FILTER, "filter",
		"Choose events by aggregate_types, and let the receiver skip what it does not want."},
		{IDEM_ARG_RETRY_FOR, "retry_for",
		"Set max_attempts, min_backoff and max_backoff, which together say how long an event is tried."},
		{IDEM_ARG_MAX_RATE, "max_rate",
		"Leave it out: the relay waits for the sink's answers, so a sink slows it down by answering later."},
		{IDEM_ARG_MAX_KEY_RATE, "max_key_rate",
		"Leave it out: a sink slows the relay down, for all keys, by answering later."},
		{IDEM_ARG_MAX_IN_FLIGHT, "max_in_flight",
		"Lower batch_events, which bounds what is in flight."},
	};

	for (int i = 0; i < lengthof(later); i++)
		idem_reject_arg(fcinfo, later[i].arg, later[i].name, later[i].hint);
}

/* The value of a setting, whose argument is not NULL, as its column has it. */
static Datum
setting_value(FunctionCallInfo fcinfo, int argno)
{
	switch (argno)
	{
		case IDEM_ARG_ORDERING:
		case IDEM_ARG_ON_DEAD:
			return CStringGetTextDatum(enum_label(PG_GETARG_DATUM(argno)));
		case IDEM_ARG_BATCH_SIZE:
			return Int64GetDatum(size_arg(fcinfo, argno, "batch_size", 1024, 16 * 1024 * 1024,
										  "between 1kB and 16MB"));
		case IDEM_ARG_MAX_LAG:
			return Int64GetDatum(max_lag_arg(fcinfo));
		default:
			return PG_GETARG_DATUM(argno);
	}
}

void
idem_relay_args_settings(FunctionCallInfo fcinfo, const IdemRelayConfig *config, Datum *values, char *nulls)
{
	static const int args[IDEM_NSETTINGS] = {
		[IDEM_SET_RELAY] = IDEM_ARG_RELAY,
		[IDEM_SET_AGGREGATE_TYPES] = IDEM_ARG_AGGREGATE_TYPES,
		[IDEM_SET_ORDERING] = IDEM_ARG_ORDERING,
		[IDEM_SET_ON_DEAD] = IDEM_ARG_ON_DEAD,
		[IDEM_SET_MAX_ATTEMPTS] = IDEM_ARG_MAX_ATTEMPTS,
		[IDEM_SET_MIN_BACKOFF] = IDEM_ARG_MIN_BACKOFF,
		[IDEM_SET_MAX_BACKOFF] = IDEM_ARG_MAX_BACKOFF,
		[IDEM_SET_BATCH_EVENTS] = IDEM_ARG_BATCH_EVENTS,
		[IDEM_SET_BATCH_SIZE] = IDEM_ARG_BATCH_SIZE,
		[IDEM_SET_MAX_LAG] = IDEM_ARG_MAX_LAG,
	};

	idem_relay_args_check_names(fcinfo, IDEM_ARG_AGGREGATE_TYPES, "aggregate_types");
	idem_relay_args_check_names(fcinfo, IDEM_ARG_EVENT_TYPES, "event_types");
	check_numbers(fcinfo);
	check_backoff(fcinfo, config != NULL, IDEM_ARG_MIN_BACKOFF, "min_backoff");
	check_backoff(fcinfo, config != NULL, IDEM_ARG_MAX_BACKOFF, "max_backoff");
	check_backoff_order(fcinfo, config);
	for (int i = 0; i < IDEM_NSETTINGS; i++)
	{
		nulls[i] = PG_ARGISNULL(args[i]) ? 'n' : ' ';
		values[i] = PG_ARGISNULL(args[i]) ? (Datum) 0 : setting_value(fcinfo, args[i]);
	}
	reject_later(fcinfo);
}
