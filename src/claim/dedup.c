/*-------------------------------------------------------------------------
 *
 * dedup.c
 *		Remembers a value per id for a while: the first one counts.
 *
 * An id is an event of one of the extension's own consumers, "@dedup/" and the
 * scope.  The first occurrence writes a completed row at once, with the value
 * and the window as its result, in the caller's transaction.  The row alone
 * says that the id is taken; no lock is kept.  So one transaction can write any
 * number of ids, and ROLLBACK TO frees those that it undoes.
 *
 * Invariant: of the committed rows of an id, each was written after the window
 * of the one before was over, or it is the first.  The probe and the writing
 * of an id run under the id's lock, so they are totally ordered.  A call that
 * finds a row of a transaction in progress gives the lock back, waits for the
 * end of that transaction as a unique index does, and looks again.
 *
 * The window runs from the first call to the beginning of the second one, by
 * the wall clock.  The time that the second call waits does not count: a
 * repeat that was made in time stays a repeat, however long the first
 * transaction takes.  The class of the row is not shorter than the window, and
 * the store forgets by a clock that is never faster than the wall clock, so the
 * row is there as long as its window.  A row whose window is over decides
 * nothing, whether the store has it still or not.
 *
 * A row that is written after a window has the next turn.  Turns end at 32,767;
 * an id that is used anew every few seconds gets there in days.  Then the rows
 * go on in the next chain: under the same id, for the consumer "@dedup-1/",
 * then "@dedup-2/".  The last row of a chain is remembered for ever, since it
 * leads to the next chain.  The lock of the first chain guards them all.
 *
 * A crash leaves the committed rows.  A prepared transaction keeps the lock on
 * its transaction id, for which others wait.
 *
 * LOCKING: the locks of a store that writes (store.c); under them the id's
 * lock, one at a time, for the probe and the writing.  While it waits for
 * another transaction, and for durability, the call has neither the id's lock
 * nor the store open.  Ids of a call are taken in their order, so two calls for
 * the same ids do not wait for each other in a circle; calls of one transaction
 * may, and the deadlock detector ends that.
 *
 * MEMORY: the caller's context; what one id takes is freed with it.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/claim/dedup.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"
#include "utils/memutils.h"
#include "utils/numeric.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"

#include "claim/call.h"
#include "claim/claim.h"
#include "claim/dedup.h"
#include "shared/args.h"
#include "shared/catalog.h"
#include "shared/durable.h"
#include "shared/fault.h"
#include "store/retention.h"
#include "store/store.h"

/* Keys of the result of a row */
#define KEY_VALUE	"event_id"
#define KEY_WINDOW	"window_us"

/* The last turn of a chain. */
#define LAST_TURN	PG_INT16_MAX

/* "@dedup-", a number, "/" and the scope */
#define MAX_CONSUMER_BYTES	(32 + IDEM_MAX_NAME_BYTES)

/* The work of one call. */
typedef struct Dedup
{
	IdemStore  *store;			/* NULL: not open */
	const char *scope;
	int			scopelen;
	int64		window;
	TimestampTz now;			/* the beginning of the call */
	MemoryContext item_context; /* of results; reset after each id */

	/* The rows that must be durable before their values are given out */
	bool		saw_committed;
	XLogRecPtr	commit_lsn;
} Dedup;

/* The newest row of an id. */
typedef struct IdNewest
{
	char		consumer[MAX_CONSUMER_BYTES];	/* of the chain below, unless
												 * it is the first */
	IdemClaimKey key;			/* in the chain that the next row goes to */
	int16		turn;			/* of the next row there */
	pg_uuid_t	digest;			/* of the newest row, if any */
	IdemRow		row;
} IdNewest;

/* Make the key of an id in a chain.  consumer has room for the consumer's name. */
static void
make_key(const Dedup *dedup, const IdemDedupItem *item, int chain, char *consumer,
		 IdemClaimKey *key)
{
	IdemKeyMaker keys;
	int			len;

	if (chain == 0)
		len = snprintf(consumer, MAX_CONSUMER_BYTES, "@dedup/");
	else
		len = snprintf(consumer, MAX_CONSUMER_BYTES, "@dedup-%d/", chain);
	memcpy(consumer + len, dedup->scope, dedup->scopelen);
	idem_keymaker_begin(&keys, consumer, len + dedup->scopelen);
	keys.locks = IDEM_LOCKS_PRIVATE;
	idem_keymaker_make(&keys, item->id.data, item->id.len, key);
	idem_keymaker_end(&keys);
}

/* Error 40001: the transaction's snapshot does not see what became of the id. */
pg_noreturn static void
report_conflict(const IdemDedupItem *item)
{
	ereport(ERROR,
			(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
			 errmsg("could not serialize access due to concurrent use of dedup id \"%s\"",
					pnstrdup(item->id.data, item->id.len)),
			 errdetail("Another transaction committed an event with it after this one took its snapshot."),
			 errhint("Retry the transaction.")));
}

/*
 * Find the newest row of an id, whose lock is held, and the place of the next
 * one.  False if another transaction is writing the id: newest->row.busy_xid.
 */
static bool
find_newest(Dedup *dedup, const IdemDedupItem *item, const IdemClaimKey *first, IdNewest *newest)
{
	IdemRow		row;
	int			chain = 0;

	memset(&newest->row, 0, sizeof(newest->row));
	newest->key = *first;
	for (;;)
	{
		idem_store_probe(dedup->store, &newest->key.digest, &row);
		if (row.status == IDEM_ROW_BUSY)
		{
			newest->row = row;
			return false;
		}
		if (!row.in_snapshot)
			report_conflict(item);
		if (row.turn > 0)
		{
			newest->row = row;
			newest->digest = newest->key.digest;
		}
		if (row.turn < LAST_TURN)
			break;
		make_key(dedup, item, ++chain, newest->consumer, &newest->key);
	}
	newest->turn = row.turn + 1;
	return true;
}

/* Error XX001: a row lacks its result, or a field of it. */
pg_noreturn static void
report_without(const char *what)
{
	ereport(ERROR,
			(errcode(ERRCODE_DATA_CORRUPTED),
			 errmsg("a dedup id is remembered without its %s", what),
			 errdetail("It stands in the column \"result\" of a table \"%s.store_segment_...\" or \"%s.store_slot_...\".",
					   IDEM_DATA_SCHEMA_NAME, IDEM_DATA_SCHEMA_NAME),
			 errhint("Restore the row of the dedup id from a backup, or delete the row if its window is over: without it, the dedup id counts as new.")));
}

/* A field of the result of a row. */
static JsonbValue
get_field(Jsonb *result, const char *name, enum jbvType type)
{
	JsonbValue	value;

	if (!JB_ROOT_IS_OBJECT(result) ||
		getKeyJsonValueFromContainer(&result->root, name, strlen(name), &value) == NULL ||
		value.type != type)
		report_without(psprintf("\"%s\"", name));
	return value;
}

/*
 * Does the window of a row still run, by the row's result?  If so, set the
 * item's value.
 */
static bool
read_result(const Dedup *dedup, IdemDedupItem *item, TimestampTz first, Datum result)
{
	Jsonb	   *fields = DatumGetJsonbP(result);
	JsonbValue	window = get_field(fields, KEY_WINDOW, jbvNumeric);
	JsonbValue	value = get_field(fields, KEY_VALUE, jbvString);
	char	   *text;

	if (dedup->now - first >=
		DatumGetInt64(DirectFunctionCall1(numeric_int8, NumericGetDatum(window.val.numeric))))
		return false;
	text = pnstrdup(value.val.string.val, value.val.string.len);

	item->value = *DatumGetUUIDP(DirectFunctionCall1(uuid_in, CStringGetDatum(text)));
	return true;
}

/*
 * Is the id a repeat, by its newest row?  If so, set its value.  The id's lock
 * is held, so a look-up finds the row that the probe found, unless the store
 * has dropped the row meanwhile because it had expired: then its window is
 * over, and so are those of older rows.
 */
static bool
is_repeat(Dedup *dedup, IdemDedupItem *item, const IdNewest *newest)
{
	IdemRow		row;
	Datum		result;
	bool		has_result;
	bool		repeat;
	MemoryContext old;

	if (newest->row.status != IDEM_ROW_COMPLETED)
		return false;
	idem_store_look_up(dedup->store, &newest->digest, &row, &result, &has_result);
	if (row.status != IDEM_ROW_COMPLETED)
		return false;
	if (!has_result)
		report_without("result");
	old = MemoryContextSwitchTo(dedup->item_context);
	repeat = read_result(dedup, item, row.completed_at, result);
	MemoryContextSwitchTo(old);
	pfree(DatumGetPointer(result));
	return repeat;
}

/* The result of a new row, in the context of the item. */
static Datum
make_result(const Dedup *dedup, const IdemDedupItem *item)
{
	MemoryContext old = MemoryContextSwitchTo(dedup->item_context);
	Datum		value = DirectFunctionCall1(uuid_out, UUIDPGetDatum(&item->value));
	char	   *text = psprintf("{\"%s\": \"%s\", \"%s\": " INT64_FORMAT "}", KEY_VALUE,
								DatumGetCString(value), KEY_WINDOW, dedup->window);
	Datum		result = DirectFunctionCall1(jsonb_in, CStringGetDatum(text));

	MemoryContextSwitchTo(old);
	return result;
}

/* Remember the value of an id that is new. */
static void
write_row(Dedup *dedup, const IdemDedupItem *item, const IdNewest *newest)
{
	int16		class = newest->turn == LAST_TURN ? IDEM_RETENTION_FOR_EVER :
	idem_retention_class((dedup->window - 1) / USECS_PER_SEC + 1);
	IdemNewEntry row = idem_claim_entry(&newest->key, newest->turn, IDEM_ENTRY_COMPLETED, class, dedup->now);

	row.completed_at = dedup->now;
	row.has_result = true;
	row.result = make_result(dedup, item);
	IDEM_FAULT_POINT("dedup-probed");
	idem_store_insert(dedup->store, &row, 1);
	IDEM_FAULT_POINT("dedup-written");
}

/*
 * Decide about one id under its lock, without waiting for transactions.  If
 * another transaction is writing the id, return its xid, else 0.
 */
static TransactionId
decide(Dedup *dedup, IdemDedupItem *item, const IdemClaimKey *key)
{
	IdNewest	newest;
	TransactionId busy = InvalidTransactionId;

	idem_lock_wait(key);
	if (!find_newest(dedup, item, key, &newest))
		busy = newest.row.busy_xid;
	else if (is_repeat(dedup, item, &newest))
	{
		item->is_repeat = true;
		if (!newest.row.own)
		{
			dedup->saw_committed = true;
			dedup->commit_lsn = Max(dedup->commit_lsn, newest.row.commit_lsn);
		}
	}
	else
		write_row(dedup, item, &newest);
	idem_lock_release(key);
	MemoryContextReset(dedup->item_context);
	return busy;
}

/* Close the store, which gives back its locks on tables that were only read. */
static void
close_store(Dedup *dedup)
{
	if (dedup->store != NULL)
		idem_store_close(dedup->store);
	dedup->store = NULL;
}

/* Error context: what the call waits for. */
static void
add_wait_context(void *arg)
{
	const IdemDedupItem *item = arg;

	errcontext("while waiting for the transaction that uses dedup id \"%s\"",
			   pnstrdup(item->id.data, item->id.len));
}

/* Wait until a transaction that is writing the id has ended. */
static void
wait_for_writer(IdemDedupItem *item, TransactionId xid)
{
	ErrorContextCallback context = {
		.previous = error_context_stack, .callback = add_wait_context, .arg = item
	};

	IDEM_FAULT_POINT("dedup-waits");
	error_context_stack = &context;
	XactLockTableWait(xid, NULL, NULL, XLTW_None);
	error_context_stack = context.previous;
}

/* Decide about one id; wait for the transactions that are writing it. */
static void
decide_one(Dedup *dedup, IdemDedupItem *item)
{
	char		consumer[MAX_CONSUMER_BYTES];
	IdemClaimKey key;
	TransactionId busy;

	item->is_repeat = false;
	make_key(dedup, item, 0, consumer, &key);
	for (;;)
	{
		if (dedup->store == NULL)
			dedup->store = idem_store_open(true);
		busy = decide(dedup, item, &key);
		if (!TransactionIdIsValid(busy))
			break;
		close_store(dedup);
		wait_for_writer(item, busy);
	}
}

/* Decide about all items, in the order of their ids. */
static void
decide_all(Dedup *dedup, IdemDedupItem *items, int n)
{
	IdemDedupItem **sorted = idem_sort_by_id(items, sizeof(*items), n);

	for (int i = 0; i < n; i++)
	{
		IdemDedupItem *last = i > 0 ? sorted[i - 1] : NULL;

		CHECK_FOR_INTERRUPTS();
		if (last != NULL && idem_str_equal(last->id, sorted[i]->id))
		{
			sorted[i]->value = last->value;
			sorted[i]->is_repeat = true;
		}
		else
			decide_one(dedup, sorted[i]);
	}
	pfree(sorted);
}

void
idem_dedup(IdemDedupItem *items, int n, const char *scope, int scopelen, int64 window)
{
	Dedup		dedup = {
		.scope = scope, .scopelen = scopelen, .window = window, .now = GetCurrentTimestamp()
	};

	Assert(scopelen <= IDEM_MAX_NAME_BYTES && window > 0);
	dedup.item_context = AllocSetContextCreate(CurrentMemoryContext, "dedup id",
											   ALLOCSET_SMALL_SIZES);
	if (n == 1)
		decide_one(&dedup, items);
	else
		decide_all(&dedup, items, n);
	close_store(&dedup);
	MemoryContextDelete(dedup.item_context);
	if (dedup.saw_committed)
	{
		IDEM_FAULT_POINT("dedup-repeat-seen");
		idem_durable_wait(idem_durable_target(dedup.commit_lsn));
	}
}
