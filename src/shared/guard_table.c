/*-------------------------------------------------------------------------
 *
 * guard_table.c
 *		Is a table as the install script made it?
 *
 * C code reads rows by the places of their columns, writes rows without the
 * executor, and relies on the WAL.  The hook in guard.c refuses commands that
 * would make a table unfit for that.  A session that has not loaded the library
 * has no hook.  So whoever reads a row asks the relcache first whether the table
 * is logged and has its columns.  Whoever writes one also asks for additions,
 * such as triggers and other indexes, which do no harm to most readers.
 *
 * The answer is remembered in the table's ref (catalog.h), and the callback of
 * invalidations clears it.  So a table that nobody alters costs one comparison.
 *
 * Invariant: C code reads no value of a column whose type is not that of the
 * install script, and no row that a crash might have emptied away.
 *
 * LOCKING: none.  The callers' locks keep those out who would alter what the
 * callers rely on, and bring the invalidations of those who have.
 *
 * MEMORY: nothing is kept.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/shared/guard_table.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/nbtree.h"
#include "access/tableam.h"
#include "catalog/dependency.h"
#include "catalog/pg_am.h"
#include "catalog/pg_index.h"
#include "catalog/pg_proc.h"
#include "commands/extension.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/reltrigger.h"

#include "compat.h"
#include "shared/catalog.h"
#include "shared/guard.h"

/* The constraint that the extension has on each of its tables. */
#define SOUND_CONSTRAINT	"sound"

/* Error 0A000: what somebody has made of a relation; remedy is a command. */
pg_noreturn static void
report_addition(Relation rel, const char *what, const char *detail, const char *remedy)
{
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("%s \"%s.%s\" is not supported", what, IDEM_DATA_SCHEMA_NAME, RelationGetRelationName(rel)),
			 errdetail("%s", detail),
			 errhint("Run %s.", remedy)));
}

/* The quoted name of the relation, as a command needs it. */
static char *
name_of(Relation rel)
{
	return quote_qualified_identifier(IDEM_DATA_SCHEMA_NAME, RelationGetRelationName(rel));
}

/* Report the first trigger that is not the extension's. */
static void
report_trigger(Relation heap)
{
	Oid			extension = idem_extension_oid();

	for (int i = 0; i < heap->trigdesc->numtriggers; i++)
	{
		const Trigger *trigger = &heap->trigdesc->triggers[i];
		char	   *constraint;

		if (!trigger->tgisinternal &&
			getExtensionOfObject(ProcedureRelationId, trigger->tgfoid) == extension)
			continue;
		constraint = trigger->tgisinternal ? get_constraint_name(trigger->tgconstraint) : NULL;
		if (constraint != NULL)
			report_addition(heap, psprintf("constraint \"%s\" on", constraint), IDEM_GUARD_INDEX_DETAIL,
							psprintf("ALTER TABLE %s DROP CONSTRAINT %s", name_of(heap), quote_identifier(constraint)));
		report_addition(heap, psprintf("trigger \"%s\" on", trigger->tgname), IDEM_GUARD_TRIGGER_DETAIL,
						psprintf("DROP TRIGGER %s ON %s", quote_identifier(trigger->tgname), name_of(heap)));
	}
}

/* Error 0A000: a table or a sequence is unlogged. */
pg_noreturn static void
report_unlogged(Relation rel)
{
	const char *kind = rel->rd_rel->relkind == RELKIND_SEQUENCE ? "SEQUENCE" : "TABLE";

	report_addition(rel, "unlogged relation", IDEM_GUARD_UNLOGGED_DETAIL,
					psprintf("ALTER %s %s SET LOGGED; but if the server has crashed since it was unlogged, restore it from a backup",
							 kind, name_of(rel)));
}

void
idem_guard_report_sequence(Relation sequence)
{
	if (!allowSystemTableMods)
		report_unlogged(sequence);
}

/* Columns */

/* Error 55000: the table lacks a part that it was made with; both texts are sentences. */
pg_noreturn static void
report_missing(Relation heap, const char *detail, const char *hint)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("table \"%s\" was altered", RelationGetRelationName(heap)),
			 errdetail("%s", detail),
			 errhint("%s", hint)));
}

/* Error 0A000: a column has another type. */
pg_noreturn static void
report_type(Relation heap, Form_pg_attribute att, Oid type)
{
	const char *column = quote_identifier(NameStr(att->attname));

	report_addition(heap, psprintf("type %s of column %s of", format_type_be(att->atttypid), column),
					IDEM_GUARD_TYPE_DETAIL,
					psprintf("SET allow_system_table_mods = on; ALTER TABLE %s ALTER COLUMN %s TYPE %s", name_of(heap), column, format_type_be(type)));
}

/* Report the first column that the table was not made with; dropped ones do no harm. */
static void
check_added_columns(Relation heap, const IdemTableForm *form)
{
	TupleDesc	desc = RelationGetDescr(heap);

	for (int i = form->ncolumns; i < desc->natts; i++)
	{
		const char *column = quote_identifier(NameStr(TupleDescAttr(desc, i)->attname));

		if (!TupleDescAttr(desc, i)->attisdropped)
			report_addition(heap, psprintf("column %s of", column), IDEM_GUARD_COLUMN_DETAIL,
							psprintf("ALTER TABLE %s DROP COLUMN %s", name_of(heap), column));
	}
}

/* Nothing may be read by its place before this. */
static void
check_columns(Relation heap, const IdemTableForm *form)
{
	TupleDesc	desc = RelationGetDescr(heap);

	if (heap->rd_tableam != GetHeapamTableAmRoutine())
		report_addition(heap, "access method of", "C code reads pages as those of heap tables.",
						psprintf("ALTER TABLE %s SET ACCESS METHOD heap", name_of(heap)));
	for (int i = 0; i < form->ncolumns; i++)
	{
		Form_pg_attribute att = i < desc->natts ? TupleDescAttr(desc, i) : NULL;

		if (att == NULL || att->attisdropped)
			report_missing(heap, psprintf("C code reads the %d columns that the table was made with.", form->ncolumns),
						   "A column that was dropped cannot be given back: save what can be read by other means, and restore the database from a backup.");
		if (OidIsValid(form->columns[i].type) && att->atttypid != form->columns[i].type)
			report_type(heap, att, form->columns[i].type);
		if (form->columns[i].plain && att->attstorage != TYPSTORAGE_PLAIN)
			report_addition(heap, psprintf("storage of column %s of", quote_identifier(NameStr(att->attname))),
							"C code reads the values of the column in place.",
							psprintf("ALTER TABLE %s ALTER COLUMN %s SET STORAGE PLAIN", name_of(heap),
									 quote_identifier(NameStr(att->attname))));
	}
	if (form->exact)
		check_added_columns(heap, form);
}

/* Constraints */

void
idem_guard_report_constraint(Relation heap, const char *what, const char *name, const char *hint)
{
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("%s \"%s\" on \"%s.%s\" is not supported",
					what, name, IDEM_DATA_SCHEMA_NAME, RelationGetRelationName(heap)),
			 errdetail("C code writes the rows without the executor, which would enforce it."),
			 errhint("%s", hint)));
}

/* Is the column NOT NULL in the install script?  Columns that somebody added are not. */
static bool
is_not_null(const IdemTableForm *form, int column)
{
	return column < form->ncolumns && form->columns[column].not_null;
}

/* Refuse constraints that somebody added, since nothing here evaluates them. */
static void
check_constraints(Relation heap, const IdemTableForm *form)
{
	TupleDesc	desc = RelationGetDescr(heap);
	TupleConstr *constr = desc->constr;

	if (constr == NULL)
		return;
	for (int i = 0; i < constr->num_check; i++)
	{
		/* the extension's own is for rows that others bring */
		if (strcmp(constr->check[i].ccname, SOUND_CONSTRAINT) != 0)
			idem_guard_report_constraint(heap, "check constraint", constr->check[i].ccname, "Drop the constraint.");
	}
	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, i);

		if (att->attisdropped || is_not_null(form, i))
			continue;
		if (att->attnotnull)
			idem_guard_report_constraint(heap, "not-null constraint of column", NameStr(att->attname), "Drop the constraint.");
		if (att->attgenerated == ATTRIBUTE_GENERATED_STORED)
			idem_guard_report_constraint(heap, "generated column", NameStr(att->attname), "Drop the column.");
	}
}

/* Additions */

/* What somebody has added to a table that C code writes to. */
static void
check_additions(Relation heap, const IdemTableForm *form)
{
	if (heap->rd_rules != NULL)
		report_addition(heap, "a rule on", IDEM_GUARD_RULE_DETAIL,
						psprintf("DROP RULE ... ON %s; \\d shows its name", name_of(heap)));
	if (heap->rd_rel->relreplident != REPLICA_IDENTITY_DEFAULT &&
		heap->rd_rel->relreplident != REPLICA_IDENTITY_NOTHING)
		report_addition(heap, "replica identity of", IDEM_GUARD_IDENTITY_DETAIL,
						psprintf("ALTER TABLE %s REPLICA IDENTITY DEFAULT", name_of(heap)));
	if (heap->trigdesc != NULL && heap->trigdesc->numtriggers > form->triggers)
		report_trigger(heap);
	if (heap->rd_rel->relispartition)
		report_addition(heap, "partition", IDEM_GUARD_ATTACH_DETAIL,
						psprintf("ALTER TABLE ... DETACH PARTITION %s; \\d+ shows of which table", name_of(heap)));
}

/* Is the index of the form?  NULL: no index is. */
static bool
is_of_form(Relation index, const IdemIndexForm *form)
{
	Form_pg_index key = index->rd_index;

	if (form == NULL || index->rd_rel->relam != BTREE_AM_OID || key->indisunique ||
		key->indnatts != form->n || key->indnkeyatts != form->n ||
		!heap_attisnull(index->rd_indextuple, Anum_pg_index_indpred, NULL))
		return false;
	for (int i = 0; i < form->n; i++)
	{
		if (key->indkey.values[i] != form->columns[i] || index->rd_indoption[i] != form->options[i] ||
			index_getprocid(index, i + 1, BTORDER_PROC) != form->compare[i])
			return false;
	}
	return true;
}

/* Error 0A000: the table has an index that it was not made with. */
pg_noreturn static void
report_index(Relation heap, Relation index)
{
	Oid			constraint = get_index_constraint(RelationGetRelid(index));

	report_addition(heap, psprintf("index \"%s\" on", RelationGetRelationName(index)), IDEM_GUARD_INDEX_DETAIL,
					OidIsValid(constraint) ?
					psprintf("ALTER TABLE %s DROP CONSTRAINT %s", name_of(heap),
							 quote_identifier(get_constraint_name(constraint))) :
					psprintf("DROP INDEX %s", name_of(index)));
}

/*
 * Refuse indexes that nobody would maintain.  Who opens one later need not look again:
 * an index that is announced meanwhile gets no entries before our lock on the table is
 * gone, and announcing it invalidates the answer.
 */
static void
check_indexes(Relation heap, const IdemTableForm *form)
{
	List	   *indexes = heap->rd_rel->relhasindex ? RelationGetIndexList(heap) : NIL;
	ListCell   *lc;

	foreach(lc, indexes)
	{
		Relation	index = RelationIdGetRelation(lfirst_oid(lc));

		if (!RelationIsValid(index))
			continue;			/* dropped by now */
		if (!is_of_form(index, form->index))
			report_index(heap, index);
		RelationClose(index);
	}
	list_free(indexes);
}

void
idem_guard_report_no_index(Relation heap, const IdemIndexForm *form)
{
	report_missing(heap, psprintf("The table has no valid index on %s, by which its rows are found.", form->text),
				   psprintf("Create an index on %s, or build one that is invalid again with REINDEX.", form->text));
}

void
idem_guard_examine(IdemRelRef *ref, Relation rel, IdemGuardUse use)
{
	const IdemTableForm *form = ref->form;
	bool		writes = use == IDEM_GUARD_WRITE && form != NULL && !form->by_sql;

	if (!allowSystemTableMods && rel->rd_rel->relpersistence != RELPERSISTENCE_PERMANENT)
		report_unlogged(rel);
	if (!allowSystemTableMods && writes)
		check_additions(rel, form);
	if (form != NULL)
		check_columns(rel, form);
	if (writes)
		check_constraints(rel, form);
	if (writes || (form != NULL && form->exact))
		check_indexes(rel, form);

	/* an invalidation may have taken the OID away while the lock was awaited */
	if (!allowSystemTableMods && ref->oid == RelationGetRelid(rel))
		ref->checked = use;
}

/*
 * Whoever alters the table after the look sends an invalidation, so no lock is
 * needed.  The table may be missing: then the caller's statement says so.
 */
void
idem_guard_ref(IdemRelRef *ref)
{
	Relation	rel;

	if (ref->checked >= IDEM_GUARD_READ)
		return;
	rel = RelationIdGetRelation(idem_relref_oid(ref));
	if (!RelationIsValid(rel))
		return;
	idem_guard_table(ref, rel, IDEM_GUARD_READ);
	RelationClose(rel);
}
