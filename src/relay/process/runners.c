/*-------------------------------------------------------------------------
 *
 * runners.c
 *		The relays of a worker: which of them have turns.
 *
 * The cost of a turn of the loop grows with the relays that have something to
 * do.  Relays that rest, and relays that only a new configuration sets in
 * motion, are not looked at.  After a wake-up, one look at the outbox serves
 * all relays that rest (rest.c).
 *
 * Invariant: a relay is in the list "active" unless idem_runner_is_quiet says
 * that only a configuration, or rising from its rest, can give it something to
 * do.  Both put the relay into the list again.
 *
 * MEMORY: a hash in TopMemoryContext.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/process/runners.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "storage/lwlock.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"

#include "compat.h"
#include "relay/function/function_relay.h"
#include "relay/function/pool.h"
#include "relay/position/rest.h"
#include "relay/process/complaint.h"
#include "relay/process/runner.h"
#include "relay/process/runners.h"
#include "relay/program/children.h"
#include "relay/program/starts.h"
#include "relay/slots.h"
#include "relay/stream/stream.h"

/*
 * How long the look for resting relays waits for results of events in flight.
 */
#define LOOK_DELAY_MS 2

/* How often to look whether a relay can give up its program. */
#define ROOM_POLL_MS 50

static HTAB *runners = NULL;	/* of IdemRunner */
static dlist_head active = DLIST_STATIC_INIT(active);
static int	nactive = 0;
static IdemClock look_at = 0;	/* earliest look at the outbox for resting
								 * relays; 0: at once */
static uint32 looks = 0;		/* number of looks at the configuration */
static IdemComplaint rest_complaint;

/* Make the hash at its first use: a worker that ends at once needs none. */
static void
init(void)
{
	HASHCTL		ctl = {.keysize = sizeof(int), .entrysize = sizeof(IdemRunner),
	.hcxt = TopMemoryContext};

	if (runners == NULL)
		runners = hash_create("relays of a worker", 64, &ctl,
							  HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
}

/* Let the relay have turns, after the relays that have turns already. */
static void
activate(IdemRunner *runner)
{
	if (runner->active)
		return;
	runner->active = true;
	dlist_push_tail(&active, &runner->node);
	nactive++;
}

/*
 * Take the relay's turns away.  Only a new configuration, or rising, activates
 * it again.
 */
static void
deactivate(IdemRunner *runner)
{
	if (!runner->active)
		return;
	runner->active = false;
	dlist_delete(&runner->node);
	nactive--;
}

/*
 * Choose the kind of runner for a relay. function: this worker serves one
 * function relay.  A relay of unknown kind, which has lost its anchor, keeps
 * its runner.
 */
static const IdemRunnerOps *
ops_for(const IdemRelayConfig *config, bool function, const IdemRunner *before)
{
	if (function)
		return &idem_function_ops;
	if (config->kind == NULL && before != NULL)
		return before->ops;
	if (config->kind == NULL ? idem_slots_have_function(config->relay_id) :
		idem_relay_is_function(config))
		return &idem_delegate_ops;
	return &idem_stream_ops;
}

/* End a relay's runner and delete it from the hash. */
static void
drop_runner(IdemRunner *runner)
{
	deactivate(runner);
	idem_runner_clear(runner);
	(void) hash_search(runners, &runner->relay_id, HASH_REMOVE, NULL);
}

/*
 * Make a runner.  An error must leave no entry in the hash: all other
 * functions take an entry for complete.
 */
static IdemRunner *
make_runner(const IdemRelayConfig *config, const IdemRunnerOps *ops)
{
	IdemRunner *runner = hash_search(runners, &config->relay_id, HASH_ENTER, NULL);

	PG_TRY();
	{
		idem_runner_init(runner, config, ops);
	}
	PG_CATCH();
	{
		(void) hash_search(runners, &config->relay_id, HASH_REMOVE, NULL);
		PG_RE_THROW();
	}
	PG_END_TRY();
	return runner;
}

/* Create, configure or replace the runner of a relay that the catalog has. */
static void
configure(const IdemRelayConfig *config, bool function)
{
	IdemRunner *runner = hash_search(runners, &config->relay_id, HASH_FIND, NULL);
	bool		found = runner != NULL;
	const IdemRunnerOps *ops = ops_for(config, function, runner);

	if (found && ops != runner->ops && idem_runner_is_elsewhere(runner))
	{
		/*
		 * The new runner must wait until the function relay's own worker is
		 * gone.
		 */
		runner->outdated = true;
	}
	else if (found && ops == runner->ops)
	{
		/* The relay may have been changed to another kind and back. */
		runner->outdated = false;
		idem_runner_configure(runner, config);
	}
	else
	{
		if (found)
			drop_runner(runner);
		runner = make_runner(config, ops);
	}
	runner->seen = looks;
	activate(runner);
}

void
idem_runners_configure(List *configs, bool function)
{
	HASH_SEQ_STATUS scan;
	IdemRunner *runner;
	ListCell   *lc;

	init();
	looks++;
	foreach(lc, configs)
		configure(lfirst(lc), function);
	hash_seq_init(&scan, runners);
	while ((runner = hash_seq_search(&scan)) != NULL)
	{
		if (runner->seen == looks)
			continue;
		drop_runner(runner);
	}
	idem_rest_woken();
}

void
idem_runners_begin_with_rest(void)
{
	HTAB	   *rows = idem_position_all_last();
	HASH_SEQ_STATUS scan;
	IdemRunner *runner;

	hash_seq_init(&scan, runners);
	while ((runner = hash_seq_search(&scan)) != NULL)
	{
		idem_runner_rest_at(runner,
							idem_position_of(rows, runner->relay_id, runner->config->epoch));
	}
}

void
idem_runners_activate_all(void)
{
	HASH_SEQ_STATUS scan;
	IdemRunner *runner;

	init();
	hash_seq_init(&scan, runners);
	while ((runner = hash_seq_search(&scan)) != NULL)
		activate(runner);
}

void
idem_runners_woken(TimestampTz stamp)
{
	dlist_iter	iter;

	dlist_foreach(iter, &active)
		idem_runner_woken(dlist_container(IdemRunner, node, iter.cur), stamp);
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
		idem_complaint_clear(&rest_complaint);
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
		IdemRunner *runner = hash_search(runners, &rester->config->relay_id, HASH_FIND, NULL);

		Assert(runner != NULL);
		idem_runner_rise(runner, done);
		activate(runner);
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
		idem_runner_stream(dlist_container(IdemRunner, node, iter.cur));

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
		idem_runner_stream(dlist_container(IdemRunner, node, iter.cur));

		if (stream == NULL || since(stream) == 0)
			continue;
		if (first == NULL || since(stream) < since(first))
			first = stream;
	}
	return first;
}

/* Find the relay whose program has had nothing to do for longest. */
static struct IdemStream *
find_idle_longest(void)
{
	return find_first_by(idem_stream_idle_since);
}

/* Find the relay, idle or not, whose program has run for longest. */
static struct IdemStream *
find_running_longest(void)
{
	return find_first_by(idem_stream_ready_since);
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
		idem_runner_stream(dlist_container(IdemRunner, node, iter.cur));

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
		idem_runner_stream(dlist_container(IdemRunner, node, iter.cur));

		if (stream != NULL && idem_stream_end_slow_start(stream))
			return true;
	}
	return false;
}

/* If relays wait for programs of others to end, end some. */
static void
make_room(void)
{
	int			lacking = idem_start_lacking_room();

	if (lacking > 0)
		lacking -= count_leaving();
	for (; lacking > 0; lacking--)
	{
		struct IdemStream *stream = find_idle_longest();

		if (stream != NULL)
		{
			idem_stream_end_idle(stream);
			continue;
		}
		if (end_slow_start())
			continue;
		stream = find_running_longest();
		if (stream == NULL || !idem_stream_make_yield(stream))
			break;
	}
}

bool
idem_runners_run(MemoryContext error_cxt, bool *failed)
{
	bool		again = false;
	dlist_mutable_iter iter;

	init();
	(void) idem_start_serve();
	dlist_foreach_modify(iter, &active)
	{
		IdemRunner *runner = dlist_container(IdemRunner, node, iter.cur);
		IdemRunnerTurn turn;

		if (runner->outdated)
		{
			*failed |= !idem_runner_is_elsewhere(runner);
			continue;
		}
		turn = idem_runner_turn(runner, error_cxt);
		again |= turn == IDEM_TURN_AGAIN;
		*failed |= turn == IDEM_TURN_FAILED;
		if (turn != IDEM_TURN_FAILED && idem_runner_is_quiet(runner))
			deactivate(runner);
	}

	/* Relays with events in flight come first. */
	if (idem_rest_next_time() != 0 && may_look())
		again |= look_for_resters(error_cxt, failed);
	make_room();
	idem_pool_serve();
	return again | idem_start_serve();
}

/* The earlier of two times; 0 means no time. */
static IdemClock
earlier(IdemClock a, IdemClock b)
{
	return a == 0 || b == 0 ? Max(a, b) : Min(a, b);
}

IdemClock
idem_runners_next_time(void)
{
	IdemClock	rest = idem_rest_next_time();
	IdemClock	t = earlier(rest == 0 ? 0 : Max(rest, look_at), idem_start_next_time());
	dlist_iter	iter;

	dlist_foreach(iter, &active)
		t = earlier(t, idem_runner_next_time(dlist_container(IdemRunner, node, iter.cur)));
	if (idem_start_lacking_room() > 0)
		t = earlier(t, idem_clock_plus_ms(idem_clock(), ROOM_POLL_MS));
	return t;
}

void
idem_runners_persist(void)
{
	dlist_iter	iter;

	dlist_foreach(iter, &active)
		idem_runner_persist(dlist_container(IdemRunner, node, iter.cur));
	idem_rest_persist();
}

int
idem_runners_max_events(void)
{
	return 2 * nactive;
}

void
idem_runners_add_events(WaitEventSet *set)
{
	dlist_iter	iter;

	dlist_foreach(iter, &active)
	{
		bool		writable;
		const IdemSinkProcess *process =
		idem_runner_process(dlist_container(IdemRunner, node, iter.cur), &writable);

		if (process != NULL)
			AddWaitEventToSet(set, WL_SOCKET_READABLE |
							  (writable ? WL_SOCKET_WRITEABLE : 0),
							  process->fd, NULL, NULL);
		if (process != NULL && process->output.fd >= 0)
			AddWaitEventToSet(set, WL_SOCKET_READABLE, process->output.fd, NULL, NULL);
	}
}

uint64
idem_runners_signature(void)
{
	uint64		sig = 0;
	dlist_iter	iter;

	dlist_foreach(iter, &active)
	{
		bool		writable;
		const IdemSinkProcess *process =
		idem_runner_process(dlist_container(IdemRunner, node, iter.cur), &writable);

		sig *= 31;
		if (process != NULL)
			sig += (uint64) process->pid * 4 + (process->output.fd >= 0 ? 2 : 0) + writable;
	}
	return sig;
}

bool
idem_runners_may_leave(bool *idle)
{
	dlist_iter	iter;

	*idle = true;
	dlist_foreach(iter, &active)
	{
		if (!idem_runner_may_leave(dlist_container(IdemRunner, node, iter.cur), idle))
			return false;
	}
	return true;
}
