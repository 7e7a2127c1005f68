/*-------------------------------------------------------------------------
 *
 * row.c
 *		A relay's row in the table "relays": its columns, and how they are read.
 *
 * The columns that an operator sets come from IDEM_RELAY_ARGUMENTS (row.h), the
 * others from RELAYS_COLUMNS below.  Form, query and reader are made of the two
 * lists.
 *
 * A row that relay_create cannot have written is "unsound": its relay does not
 * run, and the other relays of the database do.
 *
 * MEMORY: all results are in the caller's context.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/row.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type_d.h"
#include "executor/spi.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "relay/row.h"
#include "shared/args.h"
#include "shared/catalog.h"
#include "shared/guard.h"
#include "shared/sound.h"
#include "shared/spi.h"

/*
 * The columns of "relays" before those of the options (row.h): name, type,
 * NOT NULL.  InvalidOid stands for the extension's types.
 */
#define RELAYS_COLUMNS(COLUMN) \
	COLUMN(relay_id, INT4OID, true) \
	COLUMN(relay, TEXTOID, true) \
	COLUMN(owner, TEXTOID, true) \
	COLUMN(owner_oid, OIDOID, true) \
	COLUMN(paused, BOOLOID, true) \
	COLUMN(halted, InvalidOid, false) \
	COLUMN(halt_message, TEXTOID, false) \
	COLUMN(epoch, INT8OID, true) \
	COLUMN(server_epoch, INT8OID, true) \
	COLUMN(incarnation, TEXTOID, true) \
	COLUMN(identity, TEXTOID, true) \
	COLUMN(created_at, TIMESTAMPTZOID, true)

#define NO_COLUMN(...)

/* The types of the options' columns, by kind */
#define TYPE_names TEXTARRAYOID
#define TYPE_label InvalidOid
#define TYPE_count INT4OID
#define TYPE_size INT8OID
#define TYPE_interval INTERVALOID
#define TYPE_period INTERVALOID

/* The columns' types: "relays" is read by these only. */
#define COLUMN_FORM(name, type, not_null) {type, not_null},
#define OPTION_FORM(name, field, kind, needed, ...) {TYPE_##kind, needed},
static const IdemColumn relays_columns[] = {
	RELAYS_COLUMNS(COLUMN_FORM)
	IDEM_RELAY_ARGUMENTS(OPTION_FORM, NO_COLUMN, NO_COLUMN)
};

/* The columns' numbers in idem_relay_row_query */
#define COLUMN_NUMBER(name, ...) COLUMN_##name,
enum
{
	COLUMN_NONE,
	RELAYS_COLUMNS(COLUMN_NUMBER)
	IDEM_RELAY_ARGUMENTS(COLUMN_NUMBER, NO_COLUMN, NO_COLUMN)
	COLUMN_xmin,
	COLUMN_ctid
};

/* The other tables with rows of relays, in the order of the install script */
static const IdemColumn parked_columns[] = {
	{INT8OID, true},			/* parked_id */
	{INT4OID, true},			/* relay_id */
	{InvalidOid, true},			/* state */
	{INT4OID, true},			/* attempts */
	{TIMESTAMPTZOID, false},	/* next_attempt_at */
	{INT8OID, false},			/* batch_row */
	{INT8OID, false},			/* batch_life */
	{XID8OID, true},			/* xid */
	{INT8OID, true},			/* seq */
	{UUIDOID, true},			/* event_id */
	{TIMESTAMPTZOID, true},		/* enqueued_at */
	{TEXTOID, true},			/* aggregate_type */
	{TEXTOID, true},			/* aggregate_id */
	{TEXTOID, true},			/* event_type */
	{JSONBOID, false},			/* payload */
	{BYTEAOID, false},			/* payload_bytes */
	{TEXTOID, false},			/* content_type */
	{JSONBOID, false},			/* headers */
	{TEXTOID, false},			/* sqlstate */
	{TEXTOID, false},			/* error */
	{TIMESTAMPTZOID, false},	/* first_failed_at */
	{TIMESTAMPTZOID, false},	/* last_failed_at */
	{INT4OID, true},			/* crashes */
	{INT4OID, true},			/* deferrals */
	{TIMESTAMPTZOID, false},	/* relay_created_at */
	{INTERVALOID, true}			/* tried_for */
};
static const IdemColumn blocked_columns[] = {
	{INT8OID, true},			/* blocked_id */
	{INT4OID, true},			/* relay_id */
	{TEXTOID, true},			/* aggregate_type */
	{TEXTOID, true},			/* aggregate_id */
	{PG_SNAPSHOTOID, true},		/* base */
	{PG_SNAPSHOTOID, false},	/* target */
	{INT8OID, true},			/* seq */
	{TIMESTAMPTZOID, true}		/* since */
};
static const IdemColumn attempts_columns[] = {
	{INT4OID, true},			/* relay_id */
	{INT8OID, true},			/* attempt */
	{UUIDOID, false}			/* event_id */
};

#define FORM(which) {.columns = (which), .ncolumns = lengthof(which), .by_sql = true}

static const IdemTableForm relays_form = FORM(relays_columns);
static const IdemTableForm parked_form = FORM(parked_columns);
static const IdemTableForm blocked_form = FORM(blocked_columns);
static const IdemTableForm attempts_form = FORM(attempts_columns);

static IdemRelRef relay_tables[] = {
	IDEM_TABLEREF("relays", &relays_form), IDEM_TABLEREF("relay_parked", &parked_form),
	IDEM_TABLEREF("relay_blocked", &blocked_form), IDEM_TABLEREF("relay_attempts", &attempts_form),
	IDEM_RELREF("relay_id_seq"), IDEM_RELREF("relay_parked_parked_id_seq"),
	IDEM_RELREF("relay_blocked_blocked_id_seq")
};

void
idem_relay_row_init(void)
{
	idem_spi_guard(relay_tables, lengthof(relay_tables));
}

char *
idem_relay_row_query(const char *rest)
{
#define COLUMN_NAME(name, ...) #name ", "
	static const char columns[] =
	RELAYS_COLUMNS(COLUMN_NAME)
	IDEM_RELAY_ARGUMENTS(COLUMN_NAME, NO_COLUMN, NO_COLUMN) "xmin, ctid";

	return psprintf("SELECT %s FROM %%s.relays %s", columns, rest);
}

/* A row that is being read.  sound: relay_create can have written what has been read of it. */
typedef struct RelaysRow
{
	HeapTuple	tup;
	TupleDesc	desc;
	bool		sound;
} RelaysRow;

/* A number; min, or max, and not sound, if it is out of range.  NULL is 0, unless needed. */
static int64
read_number(RelaysRow *row, int column, bool needed, int64 min, int64 max)
{
	bool		isnull;
	Datum		value = SPI_getbinval(row->tup, row->desc, column, &isnull);
	int64		number;

	if (isnull && !needed)
		return 0;
	number = isnull ? PG_INT64_MIN : SPI_gettypeid(row->desc, column) == INT8OID ?
		DatumGetInt64(value) : DatumGetInt32(value);
	if (number < min || number > max)
		row->sound = false;
	return Max(min, Min(number, max));
}

/* A text; empty, and not sound, if it is NULL. */
static char *
read_text(RelaysRow *row, int column)
{
	char	   *value = idem_spi_text(row->tup, row->desc, column);

	if (value != NULL)
		return value;
	row->sound = false;
	return pstrdup("");
}

/*
 * Options, by kind.
 */
#define read_count(row, column, needed, min, max, text) read_number(row, column, needed, min, max)
#define read_size(row, column, needed, min, max, text) read_number(row, column, needed, min, max)
#define read_period(row, column, needed, min, max, text) read_interval(row, column, needed, min, max, text)

/* In milliseconds, between min and max whatever the row says; 0 if it is NULL or not positive. */
static int64
read_interval(RelaysRow *row, int column, bool needed, int64 min, int64 max, const char *hint)
{
	bool		isnull;
	Datum		value = SPI_getbinval(row->tup, row->desc, column, &isnull);
	int64		us = isnull ? 0 : idem_interval_us(DatumGetIntervalP(value));

	return us <= 0 ? 0 : Max(min, Min(us / 1000, max));
}

/* A list of strings.  Not sound if there are NULL elements, which relay_create refuses. */
static List *
read_names(RelaysRow *row, int column, bool needed, int64 min, int64 max, const char *hint)
{
	bool		isnull;
	Datum		array = SPI_getbinval(row->tup, row->desc, column, &isnull);
	Datum	   *elems;
	bool	   *nulls;
	int			nelems;
	List	   *result = NIL;

	if (isnull)
		return NIL;
	deconstruct_array(DatumGetArrayTypeP(array), TEXTOID, -1, false, TYPALIGN_INT,
					  &elems, &nulls, &nelems);
	for (int i = 0; i < nelems; i++)
	{
		if (nulls[i])
			row->sound = false;
		else
			result = lappend(result, TextDatumGetCString(elems[i]));
	}
	return result;
}

/* The number of the label in the list; 0, and not sound, if it is not there. */
static int
read_label(RelaysRow *row, int column, bool needed, int64 min, int64 max, const char *labels)
{
	const char *label = read_text(row, column);

	for (int i = 0;; i++)
	{
		size_t		len = strcspn(labels, ",");

		if (strlen(label) == len && strncmp(label, labels, len) == 0)
			return i;
		if (labels[len] == '\0')
			break;
		labels += len + 1;
	}
	row->sound = false;
	return 0;
}

const IdemHaltText idem_relay_halts[] = {
	[IDEM_HALT_NOT] = {NULL, NULL},
	[IDEM_HALT_DEAD_LETTER] = {"dead_letter", "a dead letter"},
	[IDEM_HALT_SINK] = {"sink", "the target wants no more events"},
	[IDEM_HALT_LAG] = {"max_lag_size", "max_lag_size was exceeded"},
	[IDEM_HALT_HISTORY] = {"history", "this cluster's transaction ids went back (pg_resetwal), and the relay's position is ahead of them,"
	" so it does not tell what was delivered; look what the target lacks and call relay_adopt, which sends all that the outbox has"}
};

IdemHalt
idem_relay_halt_of(const char *label)
{
	if (label == NULL)
		return IDEM_HALT_NOT;
	for (IdemHalt h = IDEM_HALT_NOT + 1; h < lengthof(idem_relay_halts); h++)
	{
		if (strcmp(idem_relay_halts[h].label, label) == 0)
			return h;
	}
	elog(ERROR, "unknown label \"%s\" of type relay_halt", label);
}

IdemRelayConfig *
idem_relay_row_read(HeapTuple tup, TupleDesc desc)
{
	RelaysRow	row = {tup, desc, true};
	IdemRelayConfig *c = palloc0(sizeof(*c));
	bool		isnull;
	Datum		value;

	c->relay_id = read_number(&row, COLUMN_relay_id, false, PG_INT32_MIN, PG_INT32_MAX);
	row.sound = c->relay_id > 0;
	c->name = read_text(&row, COLUMN_relay);
	c->noted_owner = read_text(&row, COLUMN_owner);
	value = SPI_getbinval(tup, desc, COLUMN_owner_oid, &isnull);
	c->noted_owner_oid = isnull ? InvalidOid : DatumGetObjectId(value);
	value = SPI_getbinval(tup, desc, COLUMN_paused, &isnull);
	c->paused = isnull || DatumGetBool(value);
	c->halted = idem_relay_halt_of(idem_spi_text(tup, desc, COLUMN_halted));
	c->halt_message = idem_spi_text(tup, desc, COLUMN_halt_message);
	c->epoch = read_number(&row, COLUMN_epoch, true, 0, IDEM_SOUND_NUMBER);
	c->server_epoch = read_number(&row, COLUMN_server_epoch, true, 0, IDEM_SOUND_NUMBER);
	c->incarnation = read_text(&row, COLUMN_incarnation);
	c->identity = read_text(&row, COLUMN_identity);
	c->row_xmin = DatumGetTransactionId(idem_spi_value(tup, desc, COLUMN_xmin));

#define READ_OPTION(name, field, kind, needed, min, max, text) \
	c->field = read_##kind(&row, COLUMN_##name, needed, min, max, text);
	IDEM_RELAY_ARGUMENTS(READ_OPTION, NO_COLUMN, NO_COLUMN)

		if (!row.sound || strlen(c->name) > IDEM_MAX_RELAY_NAME)
		c->unsound = psprintf("row %s of table \"%s.relays\" is not one that the extension has written",
							  idem_spi_text(tup, desc, COLUMN_ctid), IDEM_DATA_SCHEMA_NAME);
	return c;
}

/* Copy a string into the current context; NULL stays NULL. */
static char *
copy_string(const char *s)
{
	return s ? pstrdup(s) : NULL;
}

/* Copy a list of strings into the current context. */
static List *
copy_strings(const List *strings)
{
	List	   *copy = NIL;
	ListCell   *lc;

	foreach(lc, strings)
		copy = lappend(copy, pstrdup(lfirst(lc)));
	return copy;
}

IdemRelayConfig *
idem_relay_config_copy(const IdemRelayConfig *config)
{
	IdemRelayConfig *c = palloc(sizeof(*c));

	*c = *config;
	c->name = copy_string(config->name);
	c->noted_owner = copy_string(config->noted_owner);
	c->server = copy_string(config->server);
	c->incarnation = copy_string(config->incarnation);
	c->identity = copy_string(config->identity);
	c->kind = copy_string(config->kind);
	c->program = copy_string(config->program);
	c->problem = copy_string(config->problem);
	c->unsound = copy_string(config->unsound);
	c->halt_message = copy_string(config->halt_message);

#define COPY_OPTION(name, field, kind, ...) COPY_##kind(field)
#define COPY_names(field) c->field = copy_strings(config->field);
#define COPY_label(field)
#define COPY_count(field)
#define COPY_size(field)
#define COPY_interval(field)
#define COPY_period(field)
	IDEM_RELAY_ARGUMENTS(COPY_OPTION, NO_COLUMN, NO_COLUMN)

		c->options = copyObject(config->options);
	return c;
}
