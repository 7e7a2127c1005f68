/*-------------------------------------------------------------------------
 *
 * json_text.c
 *		A jsonb document as text.
 *
 * The server's own JsonbToCString() takes half of the time in which the worker
 * carries an event: it copies each key and value into a JsonbValue, and
 * appends strings character by character.  This file reads the document in
 * place, and copies strings by stretches (shared/json_string.c).
 *
 * Invariant: the text is that of JsonbToCString(), byte for byte.
 *
 * A level of nesting is an element of an array, not a level of recursion.
 * Otherwise a session with a larger max_stack_depth than the worker's could
 * enqueue an event that no worker can send.
 *
 * LOCKING: none.
 *
 * MEMORY: the text, and 40 bytes per level of nesting, in the caller's context.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/stream/json_text.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/numeric.h"

#include "relay/stream/json_text.h"
#include "shared/document.h"

#define FIRST_LEVELS	16		/* room for as many without a palloc */

/*
 * An array or object that is being written.  An object's keys are its first n
 * children, its values the next n.
 */
typedef struct Level
{
	const JEntry *children;
	const char *data;			/* what the children's offsets are relative to */
	uint32		n;				/* elements, or members */
	uint32		done;
	uint32		key_at;			/* offset of the next key */
	uint32		value_at;		/* offset of the next element or value */
	char		close;			/* ']' or '}'; 0: a scalar that is the
								 * document */
} Level;

typedef struct Writer
{
	StringInfo	out;
	Level	   *levels;
	int			depth;
	int			room;
	Level		first[FIRST_LEVELS];
} Writer;

/* Append a number as numeric's output function has it. */
static void
write_number(StringInfo out, Numeric number)
{
	char	   *digits = DatumGetCString(DirectFunctionCall1(numeric_out, NumericGetDatum(number)));

	appendStringInfoString(out, digits);
	pfree(digits);
}

/* The offset at which the child ends that begins at an offset. */
static uint32
end_of(JEntry child, uint32 at)
{
	JBE_ADVANCE_OFFSET(at, child);
	return at;
}

/* Begin an array or object. */
static void
open_level(Writer *w, const JsonbContainer *container)
{
	bool		is_object = JsonContainerIsObject(container);
	uint32		n = JsonContainerSize(container);
	Level	   *level;

	if (w->depth == w->room)
	{
		Level	   *larger = palloc(sizeof(Level) * w->room * 2);

		memcpy(larger, w->levels, w->depth * sizeof(Level));
		if (w->levels != w->first)
			pfree(w->levels);
		w->levels = larger;
		w->room *= 2;
	}
	level = &w->levels[w->depth++];
	level->children = container->children;
	level->data = (const char *) &container->children[is_object ? n * 2 : n];
	level->n = n;
	level->done = 0;
	level->key_at = 0;
	level->value_at = is_object ? getJsonbOffset(container, n) : 0;
	level->close = is_object ? '}' : JsonContainerIsScalar(container) ? '\0' : ']';
	if (level->close != '\0')
		appendStringInfoCharMacro(w->out, is_object ? '{' : '[');
}

/* Write the key of the next member. */
static void
write_key(StringInfo out, Level *level)
{
	uint32		end = end_of(level->children[level->done], level->key_at);

	idem_json_write_string(out, level->data + level->key_at, end - level->key_at);
	appendBinaryStringInfo(out, ": ", 2);
	level->key_at = end;
}

/* Write the next element or member; a container's own follow. */
static void
write_next(Writer *w, Level *level)
{
	StringInfo	out = w->out;
	uint32		at = level->value_at;
	JEntry		child;

	if (level->done > 0)
		appendBinaryStringInfo(out, ", ", 2);
	if (level->close == '}')
		write_key(out, level);
	child = level->children[level->close == '}' ? level->n + level->done : level->done];
	level->value_at = end_of(child, at);
	level->done++;

	if (JBE_ISSTRING(child))
		idem_json_write_string(out, level->data + at, level->value_at - at);
	else if (JBE_ISNUMERIC(child))
		write_number(out, (Numeric) (level->data + INTALIGN(at)));
	else if (JBE_ISCONTAINER(child))
		open_level(w, (const JsonbContainer *) (level->data + INTALIGN(at)));
	else if (JBE_ISBOOL_TRUE(child))
		appendBinaryStringInfo(out, "true", 4);
	else if (JBE_ISBOOL_FALSE(child))
		appendBinaryStringInfo(out, "false", 5);
	else if (JBE_ISNULL(child))
		appendBinaryStringInfo(out, "null", 4);
	else
		elog(ERROR, "unexpected type of a JSON value: %x", child & JENTRY_TYPEMASK);
}

void
idem_json_text(StringInfo out, const Jsonb *document)
{
	Writer		w = {.out = out, .room = FIRST_LEVELS};

	w.levels = w.first;
	enlargeStringInfo(out, VARSIZE(document));
	open_level(&w, &document->root);
	while (w.depth > 0)
	{
		Level	   *level = &w.levels[w.depth - 1];

		CHECK_FOR_INTERRUPTS();
		if (level->done < level->n)
			write_next(&w, level);
		else
		{
			if (level->close != '\0')
				appendStringInfoCharMacro(out, level->close);
			w.depth--;
		}
	}
	if (w.levels != w.first)
		pfree(w.levels);
}
