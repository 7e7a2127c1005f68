/*-------------------------------------------------------------------------
 *
 * schedule.c
 *		Which relay of a worker gets a program, or a worker of its own, next.
 *
 * A start costs a fork of the worker, and each program costs a process and two
 * descriptors.  So starts are rationed per worker, by a bucket of tokens that
 * fills at idempotency.max_sink_starts per second, and the number of programs
 * is bounded.  Relays wait in the order in which they asked.  A relay that
 * fails asks again when its backoff is over, so the ration goes round.  A relay
 * that was just made, or that starts after a crash of the server, starts its
 * program only to look whether all is well.  Such relays have one turn of four
 * while others wait.
 *
 * Relays whose last program came to nothing have a queue and a bucket of their
 * own: a fifth of the other bucket's tokens, and a quarter of the room.  So two
 * hundred relays to a closed port, or to a host that does not answer, do not
 * keep the other relays waiting.  At a relay's first start nobody knows whether
 * it will fail.  So a program that is not ready within a second ends when
 * others wait for room (relays.c).  The relay tries again from the queue of
 * failing relays, where its program has all the time of sink_timeout.
 *
 * Where there is no room, the worker ends programs of relays that have nothing
 * to send, and after a while makes the others give up their programs in turn
 * (relays.c).
 *
 * A function relay with something to do has a process of its own.  A database
 * may have idempotency.max_function_workers such processes, and its function
 * relays take turns, in the order in which they asked; worker_slots.c shares the slots
 * out among the databases.  If the database may have more than one worker, the
 * relays of one owner are not given the last worker while other owners have
 * function relays there.  Workers that the relays have already are not taken
 * away for that reason.  A worker counts for the owner whose handler it runs until its
 * process has ended, also when its relay was dropped meanwhile.
 *
 * MEMORY: none of its own; the tickets are embedded in the relays.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/engine/schedule.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "storage/fd.h"

#include "relay/child/process.h"
#include "relay/engine/engine.h"
#include "relay/worker_slots.h"
#include "shared/fault.h"

/*
 * The divisors for the share of failing relays: of starts per second, and of
 * room.
 */
#define FAILING_STARTS 5
#define FAILING_ROOM 4

/* At least so many starts may come at once. */
#define MIN_BURST 10

/*
 * One of so many starts is for a relay that only looks whether all is well.
 */
#define LOOKING_TURNS 4

/* A program's end of the socket pair and of the pipe. */
#define FDS_PER_PROGRAM 2

/* How often the server log says that programs are too few. */
#define COMPLAIN_MS 60000

int			idem_max_sink_programs = 100;
int			idem_max_sink_starts = 50;

typedef struct IdemQueue
{
	dlist_head	tickets;
	dlist_head	looking;		/* relays that start to look whether all is
								 * well */
	int			waiting;
	uint32		turns;
	double		tokens;
	IdemClock	filled_at;		/* 0: never */
} IdemQueue;

/* Relays that wait for a program, two queues, and those that wait for a worker. */
static IdemQueue healthy = {DLIST_STATIC_INIT(healthy.tickets), DLIST_STATIC_INIT(healthy.looking)};
static IdemQueue failing = {DLIST_STATIC_INIT(failing.tickets), DLIST_STATIC_INIT(failing.looking)};
static IdemQueue functions = {DLIST_STATIC_INIT(functions.tickets)};

/* How many relays of this worker have programs, now or at times. */
static int	nprograms = 0;

/* All function relays. */
static dlist_head all_functions = DLIST_STATIC_INIT(all_functions);

/*
 * When to ask again for workers, unless something happens before: a relay that
 * was asked to give way may be unable to.
 */
static IdemClock ask_at = 0;
static bool changed = false;	/* "functions" changed, or a relay was taken
								 * back, since we asked last */

static bool closed = false;		/* the worker is about to leave: no program is
								 * started */
static int	granted = 0;		/* starts granted and not used yet */
static int	trying = 0;			/* programs of failing relays that are not
								 * ready yet */
static IdemClock complain_at = 0;

/*
 * How many programs may run at a time.  A third of a process's descriptors may
 * be used for purposes other than the server's own files; AcquireExternalFD
 * allows as much.
 */
static int
program_room(void)
{
	return Max(1, Min(idem_max_sink_programs, max_safe_fds / 3 / FDS_PER_PROGRAM));
}

void
idem_schedule_count_programs(int change)
{
	nprograms += change;
}

bool
idem_schedule_shares_places(void)
{
	return nprograms > program_room() || idem_slot_asked().in_turn;
}

/* The queue's starts per second; the setting may change at any time. */
static double
rate_of(const IdemQueue *queue)
{
	return queue == &failing ? Max(1.0, (double) idem_max_sink_starts / FAILING_STARTS) :
		idem_max_sink_starts;
}

/* Add the tokens for the time that has passed, up to a burst. */
static void
fill(IdemQueue *queue)
{
	IdemClock	now = idem_clock();
	double		burst = Max(rate_of(queue), MIN_BURST);

	if (queue->filled_at == 0)
		queue->tokens = burst;
	else
		queue->tokens = Min(burst, queue->tokens +
							rate_of(queue) * (now - queue->filled_at) / 1000000.0);
	queue->filled_at = now;
}

/* How many more programs of this queue may run; negative if too many do. */
static int
free_room(const IdemQueue *queue)
{
	int			room = program_room();
	int			left = room - idem_children_count() - granted;

	if (queue == &failing)
		left = Min(left, Max(1, room / FAILING_ROOM) - trying);
	return left;
}

/* Grant starts while there are tokens and room.  True if any was granted. */
static bool
serve_queue(IdemQueue *queue)
{
	bool		any = false;

	if (queue->waiting == 0 || closed)
		return false;
	fill(queue);
	while (queue->waiting > 0 && queue->tokens >= 1 && free_room(queue) > 0)
	{
		bool		looking = dlist_is_empty(&queue->tickets) ||
		(++queue->turns % LOOKING_TURNS == 0 && !dlist_is_empty(&queue->looking));
		IdemTicket *ticket = dlist_container(IdemTicket, node,
											 dlist_pop_head_node(looking ? &queue->looking : &queue->tickets));

		queue->waiting--;
		queue->tokens -= 1;
		ticket->queue = NULL;
		ticket->granted = true;
		granted++;
		ticket->trying = queue == &failing;
		trying += ticket->trying;
		any = true;
	}
	return any;
}

/*
 * The queues take turns at being first, in case there is room for one program
 * only.
 */
bool
idem_schedule_programs(void)
{
	static bool failing_first = false;
	bool		any;

	failing_first = !failing_first;
	any = serve_queue(failing_first ? &failing : &healthy);
	any |= serve_queue(failing_first ? &healthy : &failing);
	return any;
}

/* Join a queue, behind those that wait already or before them. */
static void
join(IdemQueue *queue, dlist_head *list, IdemTicket *ticket, bool first)
{
	ticket->queue = queue;
	queue->waiting++;
	changed |= queue == &functions;
	if (first)
		dlist_push_head(list, &ticket->node);
	else
		dlist_push_tail(list, &ticket->node);
}

bool
idem_schedule_ask_program(IdemTicket *ticket, bool is_failing, bool looking)
{
	if (!ticket->granted && ticket->queue == NULL)
	{
		IdemQueue  *queue = is_failing ? &failing : &healthy;

		join(queue, looking ? &queue->looking : &queue->tickets, ticket, false);
		(void) idem_schedule_programs();
	}
	if (!ticket->granted)
		return false;
	ticket->granted = false;
	granted--;
	return true;
}

void
idem_schedule_ask_worker(IdemRelay *relay, bool first)
{
	if (relay->ticket.queue == NULL)
		join(&functions, &functions.tickets, &relay->ticket, first);
}

void
idem_schedule_withdraw(IdemTicket *ticket)
{
	if (ticket->queue != NULL)
	{
		dlist_delete(&ticket->node);
		ticket->queue->waiting--;
		changed |= ticket->queue == &functions;
	}
	granted -= ticket->granted;
	trying -= ticket->trying;
	ticket->queue = NULL;
	ticket->granted = ticket->trying = false;
}

void
idem_schedule_add_function(IdemRelay *relay)
{
	relay->ticket.is_function = true;
	dlist_push_tail(&all_functions, &relay->ticket.all_node);
}

void
idem_schedule_worker_given(IdemRelay *relay)
{
	relay->away = true;
}

void
idem_schedule_worker_ended(IdemRelay *relay)
{
	if (!relay->away)
		return;
	relay->away = false;
	changed = true;
}

void
idem_schedule_remove(IdemRelay *relay)
{
	idem_schedule_withdraw(&relay->ticket);
	idem_schedule_worker_ended(relay);
	if (relay->ticket.is_function)
		dlist_delete(&relay->ticket.all_node);
}

bool
idem_schedule_program_awaited(void)
{
	return !closed && healthy.waiting + failing.waiting + granted > 0;
}

void
idem_schedule_close(void)
{
	closed = true;
}

int
idem_schedule_lacking_room(void)
{
	int			lacking = healthy.waiting - Max(0, free_room(&healthy));
	IdemClock	now = idem_clock();

	if (failing.waiting > 0 && trying == 0)
		lacking = Max(lacking, 1 - free_room(&failing));
	if (lacking <= 0)
		return 0;
	if (now >= complain_at)
	{
		complain_at = idem_clock_plus_ms(now, COMPLAIN_MS);
		ereport(LOG,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("%d relays wait for one of the %d sink programs that may run at a time in this database",
						lacking, program_room()),
				 program_room() < idem_max_sink_programs ?
				 errhint("Raise max_files_per_process: a sink program takes %d descriptors.", FDS_PER_PROGRAM) :
				 errhint("Raise idempotency.max_sink_programs.")));
	}
	return lacking;
}

/*
 * When the queue has its next token.  0 if no relay waits, or if there is no
 * room.
 */
static IdemClock
token_time(IdemQueue *queue)
{
	if (queue->waiting == 0 || closed || free_room(queue) <= 0)
		return 0;
	fill(queue);
	if (queue->tokens >= 1)
		return 1;
	return idem_clock() + (IdemClock) ((1 - queue->tokens) / rate_of(queue) * 1000000) + 1000;
}

IdemClock
idem_schedule_next_time(void)
{
	IdemClock	t = idem_clock_earlier(token_time(&healthy), token_time(&failing));

	return functions.waiting == 0 ? t : idem_clock_earlier(t, ask_at);
}

/* The relay of a ticket in one of the lists. */
static IdemRelay *
relay_of(dlist_node *node)
{
	return dlist_container(IdemRelay, ticket.node, node);
}

/* Do the function relays of this database have different owners? */
static bool
owners_differ(void)
{
	dlist_iter	iter;
	Oid			first = InvalidOid;

	dlist_foreach(iter, &all_functions)
	{
		Oid			owner = dlist_container(IdemRelay, ticket.all_node, iter.cur)->config->owner;

		if (!OidIsValid(first))
			first = owner;
		else if (owner != first)
			return true;
	}
	return false;
}

/*
 * Choose the relay that has waited longest.  An owner does not get the last
 * worker while other owners have relays: handlers that take hours would stop
 * all of those.
 */
static IdemRelay *
choose_next(void)
{
	int			limit = idem_max_function_workers;
	int			n;
	IdemFunctionSlot *slots = idem_slots_functions(&n);
	IdemRelay  *next = NULL;
	dlist_iter	iter;

	if (limit > 1 && owners_differ())
		limit--;
	dlist_foreach(iter, &functions.tickets)
	{
		IdemRelay  *relay = relay_of(iter.cur);
		int			held = 0;	/* workers that the owner has, or is about to
								 * have */

		for (int i = 0; i < n; i++)
			held += slots[i].owner == relay->config->owner;
		if (held < limit)
		{
			next = relay;
			break;
		}
	}
	pfree(slots);
	return next;
}

void
idem_schedule_workers(void)
{
	static uint32 news_seen = 0;
	static bool told = false;	/* other databases know that relays wait here */
	uint32		news = idem_slot_asked().news;
	bool		must_ask = changed || news != news_seen || idem_clock() >= ask_at;
	IdemSlotAnswer answer = IDEM_SLOT_GIVEN;
	IdemRelayWait what;
	IdemRelay  *relay = NULL;
	dlist_iter	iter;

	/*
	 * Asking looks at all slots, under the lock that all workers take; a turn
	 * of the loop alone is no reason.
	 */
	news_seen = news;
	changed = false;
	if (!must_ask)
		return;
	while (functions.waiting > 0)
	{
		relay = choose_next();
		if (relay == NULL)
			break;
		told = true;
		answer = idem_slots_give_function(relay->config->relay_id, relay->config->owner,
										  functions.waiting);
		if (answer != IDEM_SLOT_GIVEN)
			break;
		idem_schedule_withdraw(&relay->ticket);
		idem_schedule_worker_given(relay);
		IDEM_FAULT_POINT("pool-given");
	}
	if (functions.waiting > 0 ? relay == NULL : told)
	{
		idem_slots_wait_no_more(functions.waiting);
		told = false;
	}
	ask_at = idem_clock_plus_ms(idem_clock(), IDEM_SLICE_MS);

	/* Report what the others wait for; a relay that failed stays in outage. */
	what = answer == IDEM_SLOT_NO_PROCESS ? IDEM_WAIT_PROCESS :
		answer == IDEM_SLOT_NONE_LEFT ? IDEM_WAIT_SLOT : IDEM_WAIT_WORKER;
	dlist_foreach(iter, &functions.tickets)
	{
		relay = relay_of(iter.cur);
		if (relay->breaker.not_before == 0)
			idem_engine_show_trying(relay, IDEM_RELAY_STARTING, what);
		else
			idem_report_waiting(relay->entry, what);
	}
}
