/*-------------------------------------------------------------------------
 *
 * merge.c
 *		Merges the runs of a slot into one run of a higher level.
 *
 * All runs are read at once, in the order of (digest, turn).  Of the entries of
 * one event the highest turn stands: it decides wherever it is, so entries of
 * lower turns have no more use.  An entry may be in two runs, if a packer failed
 * between writing a run and marking its segment packed.  Then it has its details
 * in both.
 *
 * Invariant: whatever a search of the old runs decides, a search of the new run
 * decides as well.
 *
 * What a crash leaves: pages without an end mark, which do not count; or the new
 * run, whose mark lists the runs that it replaces.  These stay until cut.c
 * empties their slot.
 *
 * The merge is one transaction with an xid, of minutes if the runs are large.
 * It holds the xmin horizon back as any transaction of that length does.
 *
 * LOCKING: AccessShareLock on the old slot, RowExclusiveLock on the new one,
 * each only if it is free, kept to the end of the transaction.
 *
 * MEMORY: what the readers and the writer need, a few pages per run; one entry
 * with its details.  Of the shared buffers the old runs, which are read once and may
 * be gigabytes, get a ring: a merge does not drive out what others have there.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/store/merge.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "lib/binaryheap.h"
#include "storage/bufmgr.h"
#include "utils/datum.h"
#include "utils/memutils.h"

#include "shared/fault.h"
#include "store/merge.h"
#include "store/pace.h"

typedef struct Merge
{
	int			n;
	IdemRunReader *readers[IDEM_SLOT_RUNS];
	IdemEventEntry entries[IDEM_SLOT_RUNS]; /* the next one of each reader */
	binaryheap *order;			/* of the readers that are not at their end */
	IdemRunWriter *writer;

	/* The entry that stands so far for its event */
	bool		has_standing;
	IdemEventEntry standing;
	MemoryContext details;		/* what "standing" points to */
} Merge;

/* The order of entries: by digest, then by turn. */
static int
compare_entries(const IdemEventEntry *a, const IdemEventEntry *b)
{
	int			result = idem_digest_compare(&a->digest, &b->digest);

	return result != 0 ? result : a->turn - b->turn;
}

/* Order readers by their next entry; the heap has the greatest on top. */
static int
compare_readers(Datum a, Datum b, void *arg)
{
	const Merge *merge = arg;

	return compare_entries(&merge->entries[DatumGetInt32(b)], &merge->entries[DatumGetInt32(a)]);
}

/* Open the readers, and put those that have entries in order. */
static void
begin(Merge *merge, const IdemSlot *slot, const IdemRun *runs)
{
	merge->order = binaryheap_allocate(merge->n, compare_readers, merge);
	merge->details = AllocSetContextCreate(CurrentMemoryContext, "idempotency merge",
										   ALLOCSET_DEFAULT_SIZES);
	for (int i = 0; i < merge->n; i++)
	{
		merge->readers[i] = idem_run_read(slot, &runs[i]);
		if (idem_run_next(merge->readers[i], &merge->entries[i]))
			binaryheap_add_unordered(merge->order, Int32GetDatum(i));
	}
	binaryheap_build(merge->order);
}

/* Copy a value of an entry. */
static Datum
copy_value(Datum value)
{
	return value == 0 ? 0 : datumCopy(value, false, -1);
}

/* The entry stands for its event, in place of what stood before. */
static void
let_stand(Merge *merge, const IdemEventEntry *entry)
{
	merge->standing = *entry;
	merge->has_standing = true;
	if (entry->has_detail)
	{
		MemoryContext old;

		MemoryContextReset(merge->details);
		old = MemoryContextSwitchTo(merge->details);
		merge->standing.event_id = copy_value(entry->event_id);
		merge->standing.consumer = copy_value(entry->consumer);
		merge->standing.result = copy_value(entry->result);
		MemoryContextSwitchTo(old);
	}
}

/* Write the entry that stands. */
static void
write_standing(Merge *merge)
{
	if (merge->has_standing)
		idem_run_add(merge->writer, &merge->standing);
	merge->has_standing = false;
}

/* Take one more entry, in the order of (digest, turn). */
static void
add_entry(Merge *merge, const IdemEventEntry *entry)
{
	bool		same = merge->has_standing &&
	idem_digest_compare(&merge->standing.digest, &entry->digest) == 0;

	if (!same)
		write_standing(merge);
	if (!same || entry->turn > merge->standing.turn ||
		(entry->has_detail && !merge->standing.has_detail))
		let_stand(merge, entry);
}

/* Read all entries, and write those that stand. */
static void
merge_entries(Merge *merge)
{
	while (!binaryheap_empty(merge->order))
	{
		int			i = DatumGetInt32(binaryheap_first(merge->order));

		add_entry(merge, &merge->entries[i]);
		if (idem_run_next(merge->readers[i], &merge->entries[i]))
			binaryheap_replace_first(merge->order, Int32GetDatum(i));
		else
			(void) binaryheap_remove_first(merge->order);
		idem_pace_entry();
	}
	write_standing(merge);
}

/* Close the readers. */
static void
end(Merge *merge)
{
	for (int i = 0; i < merge->n; i++)
		idem_run_end_read(merge->readers[i]);
	binaryheap_free(merge->order);
	MemoryContextDelete(merge->details);
}

/* What the mark of the new run takes over from the old ones. */
static void
describe(IdemRun *run, const IdemRun *runs, int n, int level, int64 *expected)
{
	*run = (IdemRun)
	{
		.class = runs[0].class, .level = level, .stamp = runs[0].stamp,
			.oldest = runs[0].oldest, .newest = runs[0].newest,
			.last_xid = runs[0].last_xid, .nreplaces = n, .plain = true
	};
	*expected = 0;
	for (int i = 0; i < n; i++)
	{
		run->oldest = Min(run->oldest, runs[i].oldest);
		run->newest = Max(run->newest, runs[i].newest);
		run->stamp = Max(run->stamp, runs[i].stamp);
		if (FullTransactionIdPrecedes(run->last_xid, runs[i].last_xid))
			run->last_xid = runs[i].last_xid;
		run->plain = run->plain && runs[i].details == 0;
		run->replaces[i] = runs[i].number;
		*expected += runs[i].digests + runs[i].specials;
	}
}

bool
idem_merge_runs(int from, const IdemRun *runs, int n, int to, int level, int64 run_number)
{
	Merge		merge = {.n = n};
	IdemSlot	source;
	IdemSlot	target;
	IdemRun		run;
	int64		expected;

	if (!idem_slot_open_nowait(&source, from, AccessShareLock))
		return false;
	if (!idem_slot_open_nowait(&target, to, RowExclusiveLock))
	{
		idem_slot_close(&source, AccessShareLock);
		return false;
	}
	describe(&run, runs, n, level, &expected);
	run.number = run_number;
	idem_pace_begin();
	target.wrote = idem_pace_wrote;
	source.strategy = GetAccessStrategy(BAS_BULKREAD);
	begin(&merge, &source, runs);
	merge.writer = idem_run_begin(&target, &run, expected);
	merge_entries(&merge);
	IDEM_FAULT_POINT("store-merge-pages");
	idem_run_finish(merge.writer);
	IDEM_FAULT_POINT("store-merge-mark-written");
	end(&merge);
	FreeAccessStrategy(source.strategy);
	idem_slot_close(&target, NoLock);
	idem_slot_close(&source, NoLock);
	return true;
}
