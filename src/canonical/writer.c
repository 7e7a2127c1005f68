/*-------------------------------------------------------------------------
 *
 * writer.c
 *		JSON values in canonical form.
 *
 * Invariant: the text of a value depends on the value alone, not on how the
 * document was written, nor on the order in which jsonb keeps members, which is
 * by the length of the keys.  Two values have the same text if and only if they
 * are equal.
 *
 * A level of nesting is a level of recursion, which the server's check of the
 * stack bounds.
 *
 * LOCKING: none.
 *
 * MEMORY: the members of the objects that are open, in the caller's context;
 * freed with each object.  An array of members is no larger than the array that
 * jsonb itself needed to make the object.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/canonical/writer.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "port.h"

#include "canonical/number.h"
#include "canonical/string.h"
#include "canonical/writer.h"
#include "shared/document.h"

StaticAssertDecl(sizeof(IdemMember) <= sizeof(JsonbPair),
				 "any object of jsonb has room as an array of IdemMember");

void
idem_canonical_set_key(IdemMember *member, const char *key, int keylen)
{
	member->key = key;
	member->keylen = keylen;
	member->utf8 = idem_canonical_utf8(key, keylen, &member->utf8len);
}

/* Order of members (callback of qsort_interruptible) */
static int
compare_members(const void *a, const void *b, void *arg)
{
	const IdemMember *x = a;
	const IdemMember *y = b;

	return idem_canonical_compare(x->utf8, x->utf8len, y->utf8, y->utf8len);
}

void
idem_canonical_sort(IdemMember *members, int n)
{
	qsort_interruptible(members, n, sizeof(IdemMember), compare_members, NULL);
}

void
idem_canonical_write_object(StringInfo out, const IdemMember *members, int n)
{
	appendStringInfoChar(out, '{');
	for (int i = 0; i < n; i++)
	{
		if (i > 0)
			appendStringInfoChar(out, ',');
		idem_json_write_string(out, members[i].key, members[i].keylen);
		appendStringInfoChar(out, ':');
		idem_canonical_write(out, &members[i].value);
	}
	appendStringInfoChar(out, '}');
}

/* Append an object of the document. */
static void
write_object(StringInfo out, JsonbContainer *container)
{
	int			n = JsonContainerSize(container);
	IdemMember *members = palloc(Max(n, 1) * sizeof(IdemMember));
	JsonbIterator *it = JsonbIteratorInit(container);
	JsonbValue	value;
	int			i = 0;

	(void) JsonbIteratorNext(&it, &value, true);	/* WJB_BEGIN_OBJECT */
	while (JsonbIteratorNext(&it, &value, true) == WJB_KEY)
	{
		CHECK_FOR_INTERRUPTS();
		idem_canonical_set_key(&members[i], value.val.string.val, value.val.string.len);
		(void) JsonbIteratorNext(&it, &members[i].value, true); /* WJB_VALUE */
		i++;
	}
	Assert(i == n);
	idem_canonical_sort(members, n);
	idem_canonical_write_object(out, members, n);

	for (i = 0; i < n; i++)
	{
		if (members[i].utf8 != members[i].key)
			pfree(unconstify(char *, members[i].utf8));
	}
	pfree(members);
}

/* Append an array of the document. */
static void
write_array(StringInfo out, JsonbContainer *container)
{
	JsonbIterator *it = JsonbIteratorInit(container);
	JsonbValue	value;
	bool		first = true;

	appendStringInfoChar(out, '[');
	(void) JsonbIteratorNext(&it, &value, true);	/* WJB_BEGIN_ARRAY */
	while (JsonbIteratorNext(&it, &value, true) == WJB_ELEM)
	{
		if (!first)
			appendStringInfoChar(out, ',');
		first = false;
		idem_canonical_write(out, &value);
	}
	appendStringInfoChar(out, ']');
}

void
idem_canonical_write(StringInfo out, const JsonbValue *value)
{
	check_stack_depth();
	CHECK_FOR_INTERRUPTS();

	switch (value->type)
	{
		case jbvNull:
			appendStringInfoString(out, "null");
			break;
		case jbvBool:
			appendStringInfoString(out, value->val.boolean ? "true" : "false");
			break;
		case jbvNumeric:
			idem_canonical_write_number(out, value->val.numeric);
			break;
		case jbvString:
			idem_json_write_string(out, value->val.string.val, value->val.string.len);
			break;
		case jbvBinary:
			if (JsonContainerIsObject(value->val.binary.data))
				write_object(out, value->val.binary.data);
			else
				write_array(out, value->val.binary.data);
			break;
		default:
			elog(ERROR, "unexpected type of a JSON value: %d", (int) value->type);
	}
}
