/*-------------------------------------------------------------------------
 *
 * keys_head.c
 *		The head of the keys of a segment, and what a session remembers of it.
 *
 * keys.c has the rules, which are numbered there.
 *
 * LOCKING, MEMORY: keys.c.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/store/keys_head.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/pg_class.h"
#include "catalog/pg_trigger.h"
#include "commands/trigger.h"
#include "storage/bufmgr.h"
#include "utils/fmgroids.h"
#include "utils/inval.h"
#include "utils/rel.h"

#include "compat.h"
#include "shared/catalog.h"
#include "store/keys_head.h"

/* The trigger that tells of rows that others bring. */
#define TRIGGER_NAME		"store_keyed"
#define TRIGGER_TYPE \
	(TRIGGER_TYPE_ROW | TRIGGER_TYPE_AFTER | TRIGGER_TYPE_INSERT | TRIGGER_TYPE_UPDATE | TRIGGER_TYPE_DELETE)

#define KEYS_REF(n)			IDEM_RELREF("store_keys_" n)

IdemRelRef	idem_store_keys[IDEM_STORE_SEGMENTS] =
{
	KEYS_REF("0"), KEYS_REF("1"), KEYS_REF("2"), KEYS_REF("3"),
	KEYS_REF("4"), KEYS_REF("5"), KEYS_REF("6"), KEYS_REF("7")
};

/* What this session remembers of the keys. */
static struct
{
	uint64		seed;			/* of the keys "of" */
	uint32		of;				/* keys that were READY; 0: none */
	uint32		pages;
	uint32		heap_changes;	/* when the trigger was looked at */
	uint32		keys_changes;
	IdemKeysWitness witness;	/* the trigger's row */
	bool		looked;			/* the trigger was looked at, */
	bool		trusted;		/* and fires always */
	bool		warned;
}			known[IDEM_STORE_SEGMENTS];

void
idem_keys_open(IdemKeys *keys, int number, Relation heap)
{
	keys->number = number;
	keys->heap = heap;

	/* no lock: rule 7 */
	keys->rel = RelationIdGetRelation(idem_relref_oid(&idem_store_keys[number]));
	if (!RelationIsValid(keys->rel) || keys->rel->rd_rel->relpersistence != RELPERSISTENCE_UNLOGGED)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("sequence \"%s.%s\" has to be unlogged", IDEM_DATA_SCHEMA_NAME, idem_store_keys[number].name),
				 errdetail("Its pages are not logged, so after a crash they have to be empty."),
				 errhint("Run ALTER SEQUENCE %s.%s SET UNLOGGED.", IDEM_DATA_SCHEMA_NAME, idem_store_keys[number].name)));
}

void
idem_keys_close(IdemKeys *keys)
{
	RelationClose(keys->rel);
}

IdemKeysWitness
idem_keys_witness(const IdemKeys *keys)
{
	return known[keys->number].witness;
}

uint64
idem_keys_seed(const IdemKeys *keys)
{
	return known[keys->number].seed;
}

/* Trust */

/* Find the row of the trigger; false if the trigger does not fire always. */
static bool
find_witness(Relation heap, IdemKeysWitness *witness)
{
	Relation	catalog = table_open(TriggerRelationId, AccessShareLock);
	ScanKeyData key[2];
	SysScanDesc scan;
	HeapTuple	row;
	bool		fires = false;

	ScanKeyInit(&key[0], Anum_pg_trigger_tgrelid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(RelationGetRelid(heap)));
	ScanKeyInit(&key[1], Anum_pg_trigger_tgname, BTEqualStrategyNumber, F_NAMEEQ,
				CStringGetDatum(TRIGGER_NAME));
	scan = systable_beginscan(catalog, TriggerRelidNameIndexId, true, NULL, lengthof(key), key);
	row = systable_getnext(scan);
	if (HeapTupleIsValid(row))
	{
		Form_pg_trigger trigger = (Form_pg_trigger) GETSTRUCT(row);

		fires = trigger->tgenabled == TRIGGER_FIRES_ALWAYS && trigger->tgtype == TRIGGER_TYPE &&
			trigger->tgattr.dim1 == 0 &&
			heap_attisnull(row, Anum_pg_trigger_tgqual, RelationGetDescr(catalog));
		witness->xmin = HeapTupleHeaderGetRawXmin(row->t_data);
		witness->block = ItemPointerGetBlockNumber(&row->t_self);
		witness->offset = ItemPointerGetOffsetNumber(&row->t_self);
	}
	systable_endscan(scan);
	table_close(catalog, AccessShareLock);
	return fires;
}

/* Look at the trigger, and remember nothing else. */
static void
look_anew(IdemKeys *keys, uint32 heap_changes, uint32 keys_changes)
{
	int			number = keys->number;

	known[number].looked = false;
	known[number].of = 0;
	known[number].trusted = find_witness(keys->heap, &known[number].witness);
	known[number].heap_changes = heap_changes;
	known[number].keys_changes = keys_changes;
	known[number].looked = true;
	if (!known[number].trusted && !known[number].warned)
	{
		known[number].warned = true;
		ereport(WARNING,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("trigger \"%s\" on \"%s.%s\" does not fire always",
						TRIGGER_NAME, IDEM_DATA_SCHEMA_NAME, RelationGetRelationName(keys->heap)),
				 errdetail("Rows may come that no key tells of, so claims read the whole table."),
				 errhint("Run ALTER TABLE %s.%s ENABLE ALWAYS TRIGGER %s.",
						 IDEM_DATA_SCHEMA_NAME, RelationGetRelationName(keys->heap), TRIGGER_NAME)));
	}
}

bool
idem_keys_are_trusted(IdemKeys *keys)
{
	IdemRelRef *heap = &idem_store_segments[keys->number];
	IdemRelRef *rel = &idem_store_keys[keys->number];
	uint32		heap_changes;
	uint32		keys_changes;

	AcceptInvalidationMessages();

	/*
	 * Changes are counted of relations whose OIDs are known.  To look for one
	 * may bring news of the other one, so the counts are from before.
	 */
	heap_changes = heap->changes;
	keys_changes = rel->changes;
	(void) idem_relref_oid(heap);
	(void) idem_relref_oid(rel);
	if (!known[keys->number].looked || heap_changes != known[keys->number].heap_changes || keys_changes != known[keys->number].keys_changes)
		look_anew(keys, heap_changes, keys_changes);
	return known[keys->number].trusted && !IDEM_REL_GOT_NEW_FILE(keys->rel);
}

bool
idem_keys_is_ours(IdemKeys *keys, const IdemKeysHead *head)
{
	const IdemKeysWitness *witness = &known[keys->number].witness;

	return head->layout == IDEM_KEYS_LAYOUT && head->of == IDEM_REL_FILE_NUMBER(keys->heap) &&
		head->witness.xmin == witness->xmin &&
		head->witness.block == witness->block && head->witness.offset == witness->offset;
}

IdemKeysState
idem_keys_read_head(IdemKeys *keys, IdemKeysShape *shape)
{
	IdemKeysState state = IDEM_KEYS_ABSENT;
	Buffer		buffer;
	IdemKeysHead *head;

	if (RelationGetNumberOfBlocks(keys->rel) <= IDEM_KEYS_FIRST_PAGE)
		return IDEM_KEYS_ABSENT;
	buffer = idem_keypage_lock(keys->rel, IDEM_KEYS_HEAD_BLOCK, BUFFER_LOCK_SHARE);
	head = idem_keypage_data(buffer);
	if (!PageIsNew(BufferGetPage(buffer)) && idem_keys_is_ours(keys, head))
	{
		state = head->state;
		shape->pages = head->pages;
		shape->seed = head->seed;
	}
	UnlockReleaseBuffer(buffer);
	if (state == IDEM_KEYS_READY)
	{
		known[keys->number].of = IDEM_REL_FILE_NUMBER(keys->heap);
		known[keys->number].pages = shape->pages;
		known[keys->number].seed = shape->seed;
	}
	return state;
}

IdemKeysState
idem_keys_get_head(IdemKeys *keys, IdemKeysShape *shape)
{
	if (known[keys->number].of == IDEM_REL_FILE_NUMBER(keys->heap))
	{
		shape->pages = known[keys->number].pages;
		shape->seed = known[keys->number].seed;
		return IDEM_KEYS_READY;
	}
	return idem_keys_read_head(keys, shape);
}

Buffer
idem_keys_lock_page(IdemKeys *keys, uint32 hash, IdemKeysShape *shape, int mode)
{
	uint64		seed = shape->seed;

	for (;;)
	{
		uint32		number = idem_keypage_number(hash, shape->pages);
		Buffer		buffer = idem_keypage_lock(keys->rel, IDEM_KEYS_FIRST_PAGE + number, mode);

		const IdemKeyPage *page = idem_keypage_of(buffer);

		/* is it a page of these keys, and was not split since? */
		if (page->seed == seed && (hash & idem_keypage_mask(page->bits)) == number)
			return buffer;
		UnlockReleaseBuffer(buffer);
		known[keys->number].of = 0;
		/* with another seed the hash would be another one */
		if (idem_keys_read_head(keys, shape) == IDEM_KEYS_ABSENT || shape->seed != seed)
			return InvalidBuffer;
	}
}

bool
idem_keys_are_unchanged(IdemKeys *keys)
{
	AcceptInvalidationMessages();
	return idem_store_segments[keys->number].changes == known[keys->number].heap_changes &&
		idem_store_keys[keys->number].changes == known[keys->number].keys_changes;
}
