/*-------------------------------------------------------------------------
 *
 * relays.c
 *		The relays of a worker: which of them have turns.
 *
 * The cost of a turn of the loop grows with the relays that have something to
 * do.  Relays that rest, and relays that only a new configuration sets in
 * motion, are not looked at.  After a wake-up, one look at the outbox serves
 * all relays that rest (rest.c).
 *
 * Invariant: a relay is in the list "active" unless idem_engine_is_quiet says
 * that only a configuration, or rising from its rest, can give it something to
 * do.  Both put the relay into the list again.
 *
 * MEMORY: a hash in TopMemoryContext.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/worker/relays.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "common/pg_prng.h"
#include "miscadmin.h"
#include "storage/lwlock.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"

#include "compat.h"
#include "relay/child/process.h"
#include "relay/engine/engine.h"
#include "relay/function/function.h"
#include "relay/position/rest.h"
#include "relay/stream/stream.h"
#include "relay/worker/workers.h"
#include "relay/worker_slots.h"
#include "shared/error.h"

/*
 * How long the look for resting relays waits for results of events in flight.
 */
#define LOOK_DELAY_MS 2

/* How often to look whether a relay can give up its program. */
#define ROOM_POLL_MS 50

/*
 * A failed action is tried again after 200 ms, then after twice that, up to 10
 * s.  The server log gets each error when it first occurs, and again after 1 s,
 * 2 s, 4 s, up to an hour, as long as the error stays the same.
 */
#define FIRST_RETRY_MS 200
#define MAX_RETRY_MS 10000
#define FIRST_LOG_MS 1000
#define MAX_LOG_MS (60 * 60 * 1000)

/* An entry of the hash. */
typedef struct RelayOfId
{
	int			relay_id;		/* key */
	IdemRelay  *relay;
} RelayOfId;

static HTAB *relays = NULL;		/* of RelayOfId; NULL: no look at the
								 * configuration yet */
static dlist_head active = DLIST_STATIC_INIT(active);
static int	nactive = 0;
static IdemClock look_at = 0;	/* earliest look at the outbox for resting
								 * relays; 0: at once */
static uint32 looks = 0;		/* number of looks at the configuration */
static IdemComplaint rest_complaint;

void
idem_complaint_note(IdemComplaint *complaint)
{
	IdemClock	now = idem_clock();
	ErrorData  *edata = CopyErrorData();
	char		message[IDEM_ERROR_LEN];
	bool		same;

	idem_copy_error(message, edata->message ? edata->message : "", sizeof(message));
	FreeErrorData(edata);
	same = strcmp(message, complaint->message) == 0;
	if (!same || now >= complaint->log_at)
	{
		EmitErrorReport();
		complaint->log_gap_ms = same && complaint->log_gap_ms > 0 ?
			Min(complaint->log_gap_ms * 2, MAX_LOG_MS) : FIRST_LOG_MS;
		complaint->log_at = idem_clock_plus_ms(now, complaint->log_gap_ms);
		strlcpy(complaint->message, message, sizeof(complaint->message));
	}
	complaint->retry_at =
		idem_clock_plus_ms(now, Min(FIRST_RETRY_MS << Min(complaint->failures, 10),
									MAX_RETRY_MS));
	complaint->failures++;
}

/* Let the relay have turns, after the relays that have turns already. */
static void
activate(IdemRelay *relay)
{
	if (relay->active)
		return;
	relay->active = true;
	dlist_push_tail(&active, &relay->node);
	nactive++;
}

/*
 * Take the relay's turns away.  Only a new configuration, or rising, activates
 * it again.
 */
static void
deactivate(IdemRelay *relay)
{
	if (!relay->active)
		return;
	relay->active = false;
	dlist_delete(&relay->node);
	nactive--;
}

/*
 * Choose the courier of a relay. function: this worker serves one function
 * relay.  A relay of unknown kind, which has lost its anchor, keeps its
 * courier.
 */
static const IdemCourier *
courier_for(const IdemRelayConfig *config, bool function, const IdemRelay *before)
{
	if (function)
		return &idem_function_courier;
	if (config->kind == NULL && before != NULL)
		return before->courier;
	if (config->kind == NULL ? idem_slots_state(config->relay_id) != IDEM_SLOT_NOT_THERE :
		idem_relay_is_function(config))
		return &idem_delegate_courier;
	return &idem_program_courier;
}

/* End a relay and delete it from the hash. */
static void
drop(IdemRelay *relay)
{
	int			relay_id = relay->config->relay_id;

	deactivate(relay);
	idem_engine_destroy(relay);
	(void) hash_search(relays, &relay_id, HASH_REMOVE, NULL);
}

/* Create, configure or replace a relay that the catalog has. */
static void
configure(const IdemRelayConfig *config, bool function)
{
	RelayOfId  *found = hash_search(relays, &config->relay_id, HASH_FIND, NULL);
	IdemRelay  *relay = found == NULL ? NULL : found->relay;
	const IdemCourier *courier = courier_for(config, function, relay);

	if (relay != NULL && courier != relay->courier && idem_engine_is_elsewhere(relay))
	{
		/*
		 * The new courier must wait until the function relay's own worker is
		 * gone.
		 */
		relay->outdated = true;
	}
	else if (relay != NULL && courier == relay->courier)
	{
		/* The relay may have been changed to another kind and back. */
		relay->outdated = false;
		idem_engine_configure(relay, config);
	}
	else
	{
		if (relay != NULL)
			drop(relay);
		relay = idem_engine_create(courier, config);

		/* All other functions take an entry for complete. */
		found = hash_search(relays, &config->relay_id, HASH_ENTER, NULL);
		found->relay = relay;
	}
	relay->seen = looks;
	activate(relay);
}

/*
 * Relays wait in the order in which they come here.  Where a database has a worker for moments
 * only, the same relay would be first in each of its turns, so a new worker begins with any.
 */
static List *
begin_anywhere(List *configs)
{
	int			n = (int) pg_prng_uint64_range(&pg_global_prng_state, 0, list_length(configs) - 1);

	return list_concat(list_copy_tail(configs, n), list_truncate(list_copy(configs), n));
}

void
idem_relays_configure(List *configs, bool function)
{
	HASHCTL		ctl = {.keysize = sizeof(int), .entrysize = sizeof(RelayOfId),
	.hcxt = TopMemoryContext};
	HASH_SEQ_STATUS scan;
	RelayOfId  *entry;
	ListCell   *lc;

	if (relays == NULL && configs != NIL)
		configs = begin_anywhere(configs);
	if (relays == NULL)
		relays = hash_create("relays of a worker", 64, &ctl,
							 HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	looks++;
	foreach(lc, configs)
		configure(lfirst(lc), function);
	hash_seq_init(&scan, relays);
	while ((entry = hash_seq_search(&scan)) != NULL)
	{
		if (entry->relay->seen != looks)
			drop(entry->relay);
	}
	idem_rest_woken();
}

void
idem_relays_begin_with_rest(void)
{
	HTAB	   *rows = idem_position_all_last();
	HASH_SEQ_STATUS scan;
	RelayOfId  *entry;

	hash_seq_init(&scan, relays);
	while ((entry = hash_seq_search(&scan)) != NULL)
		idem_engine_rest_at(entry->relay, idem_position_of(rows, entry->relay_id,
														   entry->relay->config->epoch));
}

void
idem_relays_activate_all(void)
{
	HASH_SEQ_STATUS scan;
	RelayOfId  *entry;

	if (relays == NULL)
		return;
	hash_seq_init(&scan, relays);
	while ((entry = hash_seq_search(&scan)) != NULL)
		activate(entry->relay);
}

void
idem_relays_woken(TimestampTz stamp)
{
	dlist_iter	iter;

	dlist_foreach(iter, &active)
	{
		IdemRelay  *relay = dlist_container(IdemRelay, node, iter.cur);

		if (relay->courier->woken != NULL)
			relay->courier->woken(relay, stamp);
	}
	idem_rest_woken();
}

/*
 * Look at the outbox for the relays that rest.  An error is caught here, and
 * counts against no relay.  Returns whether there is more to look at.
 */
static bool
try_look(MemoryContext error_cxt, bool *failed)
{
	volatile bool more = false;

	PG_TRY();
	{
		more = idem_rest_look();
		memset(&rest_complaint, 0, sizeof(rest_complaint));
	}
	PG_CATCH();
	{
		int			sqlerrcode = geterrcode();

		MemoryContextSwitchTo(error_cxt);
		idem_complaint_note(&rest_complaint);
		FlushErrorState();
		AbortCurrentTransaction();
		MemoryContextSwitchTo(error_cxt);
		LWLockReleaseAll();
		idem_rest_reset(sqlerrcode);
		*failed = true;
	}
	PG_END_TRY();
	return more;
}

/*
 * Look at the outbox for the relays that rest, and activate those that rise.
 * True if a relay rose or there is more to look at.
 */
static bool
look_for_resters(MemoryContext error_cxt, bool *failed)
{
	bool		again = try_look(error_cxt, failed);
	IdemRester *rester;
	IdemSnap   *done;

	while ((rester = idem_rest_take_risen(&done)) != NULL)
	{
		IdemRelay  *relay = (IdemRelay *) ((char *) rester - offsetof(IdemRelay, rester));

		idem_engine_rise(relay, done);
		activate(relay);
		again = true;
	}
	return again;
}

/*
 * May the outbox be read for the relays that rest, or are results to come
 * first?  A look would keep answers of programs waiting, which mostly arrive
 * sooner than a look takes.  A relay that rises has a program to start anyway,
 * so it can wait.
 */
static bool
may_look(void)
{
	dlist_iter	iter;

	dlist_foreach(iter, &active)
	{
		const struct IdemStream *stream =
		idem_stream_of(dlist_container(IdemRelay, node, iter.cur));

		if (stream == NULL || !idem_stream_is_sending(stream))
			continue;
		if (look_at == 0)
			look_at = idem_clock_plus_ms(idem_clock(), LOOK_DELAY_MS);
		if (idem_clock() < look_at)
			return false;
		break;
	}
	look_at = 0;
	return true;
}

/* Find the relay with the earliest of these times; NULL: the time of each is 0. */
static struct IdemStream *
find_first_by(IdemClock (*since) (const struct IdemStream *))
{
	struct IdemStream *first = NULL;
	dlist_iter	iter;

	dlist_foreach(iter, &active)
	{
		struct IdemStream *stream =
		idem_stream_of(dlist_container(IdemRelay, node, iter.cur));

		if (stream == NULL || since(stream) == 0)
			continue;
		if (first == NULL || since(stream) < since(first))
			first = stream;
	}
	return first;
}

/*
 * How many programs will soon end by themselves, because they were sent BYE or
 * give way.  A program whose sink does not answer, or that waits for a lock,
 * may never get so far, and is not counted.
 */
static int
count_leaving(void)
{
	int			leaving = idem_children_count();
	dlist_iter	iter;

	dlist_foreach(iter, &active)
	{
		struct IdemStream *stream =
		idem_stream_of(dlist_container(IdemRelay, node, iter.cur));

		if (stream != NULL && idem_stream_keeps_program(stream))
			leaving--;
	}
	return Max(0, leaving);
}

/*
 * End a program that has not become ready for some time, of a relay that is
 * not known to fail: the program may never become ready.
 */
static bool
end_slow_start(void)
{
	dlist_iter	iter;

	dlist_foreach(iter, &active)
	{
		struct IdemStream *stream =
		idem_stream_of(dlist_container(IdemRelay, node, iter.cur));

		if (stream != NULL && idem_stream_end_slow_start(stream))
			return true;
	}
	return false;
}

/*
 * If relays wait for programs of others to end, end some: of the relay whose
 * program has had nothing to do for longest; else one that is slow to start; else
 * of the relay, idle or not, whose program has run for longest.
 */
static void
make_room(void)
{
	int			lacking = idem_schedule_lacking_room();

	if (lacking > 0)
		lacking -= count_leaving();
	for (; lacking > 0; lacking--)
	{
		struct IdemStream *stream = find_first_by(idem_stream_idle_since);

		if (stream != NULL)
		{
			idem_stream_end_idle(stream);
			continue;
		}
		if (end_slow_start())
			continue;
		stream = find_first_by(idem_stream_ready_since);
		if (stream == NULL || !idem_stream_make_yield(stream))
			break;
	}
}

bool
idem_relays_run(MemoryContext error_cxt, bool *failed)
{
	bool		again = false;
	dlist_mutable_iter iter;

	(void) idem_schedule_programs();
	dlist_foreach_modify(iter, &active)
	{
		IdemRelay  *relay = dlist_container(IdemRelay, node, iter.cur);
		IdemRelayTurn turn;

		if (relay->outdated)
		{
			*failed |= !idem_engine_is_elsewhere(relay);
			continue;
		}
		turn = idem_engine_turn(relay, error_cxt);
		idem_slot_takes_turn();
		again |= turn == IDEM_TURN_AGAIN;
		*failed |= turn == IDEM_TURN_FAILED;
		if (turn != IDEM_TURN_FAILED && idem_engine_is_quiet(relay))
			deactivate(relay);
	}

	/* Relays with events in flight come first. */
	if (idem_rest_next_time() != 0 && may_look())
		again |= look_for_resters(error_cxt, failed);
	make_room();
	idem_schedule_workers();
	return again | idem_schedule_programs();
}

IdemClock
idem_relays_next_time(void)
{
	IdemClock	rest = idem_rest_next_time();
	IdemClock	t = idem_clock_earlier(rest == 0 ? 0 : Max(rest, look_at), idem_schedule_next_time());
	dlist_iter	iter;

	dlist_foreach(iter, &active)
	{
		IdemRelay  *relay = dlist_container(IdemRelay, node, iter.cur);

		t = idem_clock_earlier(t, relay->courier->next_time == NULL ? idem_engine_run_time(relay) :
							   relay->courier->next_time(relay));
	}
	if (idem_schedule_lacking_room() > 0)
		t = idem_clock_earlier(t, idem_clock_plus_ms(idem_clock(), ROOM_POLL_MS));
	return t;
}

void
idem_relays_persist(void)
{
	dlist_iter	iter;

	dlist_foreach(iter, &active)
	{
		IdemRelay  *relay = dlist_container(IdemRelay, node, iter.cur);

		if (relay->courier->persist != NULL)
			relay->courier->persist(relay);
	}
	idem_rest_persist();
}

/* The program of a relay of the list; NULL: none runs. */
static const IdemSinkProcess *
process_of(dlist_node *node, bool *writable)
{
	IdemRelay  *relay = dlist_container(IdemRelay, node, node);

	*writable = false;
	return relay->courier->process == NULL ? NULL : relay->courier->process(relay, writable);
}

/*
 * The set is built anew if a program came or went, or began or ceased to wait for
 * room to write, and after each look at the configuration.
 */
WaitEventSet *
idem_relays_wait_set(void)
{
	static WaitEventSet *set = NULL;
	static uint64 built_for = 0;	/* a number that tells the programs */
	static uint32 built_after = 0;	/* as "looks" */
	uint64		sig = 0;
	dlist_iter	iter;
	const IdemSinkProcess *process;
	bool		writable;

	dlist_foreach(iter, &active)
	{
		process = process_of(iter.cur, &writable);
		sig *= 31;
		if (process != NULL)
			sig += (uint64) process->pid * 4 + (process->output.fd >= 0 ? 2 : 0) + writable;
	}
	if (set != NULL && sig == built_for && looks == built_after)
		return set;
	if (set != NULL)
		FreeWaitEventSet(set);
	set = NULL;
	set = IDEM_CREATE_WAIT_EVENT_SET(2 * nactive + 2);
	AddWaitEventToSet(set, WL_LATCH_SET, PGINVALID_SOCKET, MyLatch, NULL);
	AddWaitEventToSet(set, WL_EXIT_ON_PM_DEATH, PGINVALID_SOCKET, NULL, NULL);
	dlist_foreach(iter, &active)
	{
		process = process_of(iter.cur, &writable);
		if (process != NULL)
			AddWaitEventToSet(set, WL_SOCKET_READABLE | (writable ? WL_SOCKET_WRITEABLE : 0),
							  process->fd, NULL, NULL);
		if (process != NULL && process->output.fd >= 0)
			AddWaitEventToSet(set, WL_SOCKET_READABLE, process->output.fd, NULL, NULL);
	}
	built_for = sig;
	built_after = looks;
	return set;
}

bool
idem_relays_at_rest(void)
{
	IdemClock	look = idem_rest_next_time();

	return idem_children_count() == 0 && !idem_schedule_program_awaited() &&
		(look == 0 || look > idem_clock());
}

bool
idem_relays_may_be_answered(void)
{
	dlist_iter	iter;

	dlist_foreach(iter, &active)
	{
		const struct IdemStream *stream =
		idem_stream_of(dlist_container(IdemRelay, node, iter.cur));

		if (stream != NULL && idem_stream_may_be_answered(stream))
			return true;
	}
	return false;
}

void
idem_relays_make_way(bool all)
{
	dlist_mutable_iter iter;

	if (all)
		idem_schedule_close();
	dlist_foreach_modify(iter, &active)
	{
		struct IdemStream *stream =
		idem_stream_of(dlist_container(IdemRelay, node, iter.cur));

		if (stream != NULL && !idem_stream_end_idle(stream) && all &&
			!idem_stream_end_slow_start(stream))
			(void) idem_stream_make_yield(stream);
	}
}

bool
idem_relays_may_leave(bool *idle)
{
	dlist_iter	iter;

	*idle = true;
	dlist_foreach(iter, &active)
	{
		IdemRelay  *relay = dlist_container(IdemRelay, node, iter.cur);

		if (relay->courier->may_leave != NULL && !relay->courier->may_leave(relay, idle))
			return false;
	}
	return true;
}
