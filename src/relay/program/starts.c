/*-------------------------------------------------------------------------
 *
 * starts.c
 *		Which relay of a worker may start its program now.
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
 * others wait for room (runners.c).  The relay tries again from the queue of
 * failing relays, where its program has all the time of sink_timeout.
 *
 * Where there is no room, the worker ends programs of relays that have nothing
 * to send, and after a while makes the others give up their programs in turn
 * (runners.c).
 *
 * MEMORY: none of its own; the tickets are embedded in the relays.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/program/starts.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "storage/fd.h"

#include "relay/program/children.h"
#include "relay/program/starts.h"

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

typedef struct Queue
{
	dlist_head	tickets;
	dlist_head	looking;		/* relays that start to look whether all is
								 * well */
	int			waiting;
	uint32		turns;
	double		tokens;
	IdemClock	filled_at;		/* 0: never */
} Queue;

static Queue healthy = {DLIST_STATIC_INIT(healthy.tickets), DLIST_STATIC_INIT(healthy.looking)};
static Queue failing = {DLIST_STATIC_INIT(failing.tickets), DLIST_STATIC_INIT(failing.looking)};
static int	granted = 0;		/* starts granted and not used yet */
static int	trying = 0;			/* programs of failing relays that are not
								 * ready yet */
static IdemClock complain_at = 0;

/*
 * How many programs may run at a time.  A third of a process's descriptors may
 * be used for purposes other than the server's own files; AcquireExternalFD
 * allows as much.
 */
int
idem_start_room(void)
{
	return Max(1, Min(idem_max_sink_programs, max_safe_fds / 3 / FDS_PER_PROGRAM));
}

/*
 * A relay whose last program came to nothing waits in the queue of failing
 * relays.
 */
static Queue *
queue_of(const IdemStartTicket *ticket)
{
	return ticket->failing ? &failing : &healthy;
}

/* The queue's starts per second; the setting may change at any time. */
static double
rate_of(const Queue *queue)
{
	return queue == &failing ? Max(1.0, (double) idem_max_sink_starts / FAILING_STARTS) :
		idem_max_sink_starts;
}

/* Add the tokens for the time that has passed, up to a burst. */
static void
fill(Queue *queue)
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
free_room(const Queue *queue)
{
	int			room = idem_start_room();
	int			left = room - idem_children_count() - granted;

	if (queue == &failing)
		left = Min(left, Max(1, room / FAILING_ROOM) - trying);
	return left;
}

/* The relay whose turn it is; the queue is not empty. */
static IdemStartTicket *
pop_ticket(Queue *queue)
{
	bool		looking = dlist_is_empty(&queue->tickets) ||
	(++queue->turns % LOOKING_TURNS == 0 && !dlist_is_empty(&queue->looking));

	queue->waiting--;
	return dlist_container(IdemStartTicket, node,
						   dlist_pop_head_node(looking ? &queue->looking : &queue->tickets));
}

/* Grant starts while there are tokens and room.  True if any was granted. */
static bool
serve_queue(Queue *queue)
{
	bool		any = false;

	if (queue->waiting == 0)
		return false;
	fill(queue);
	while (queue->waiting > 0 && queue->tokens >= 1 && free_room(queue) > 0)
	{
		IdemStartTicket *ticket = pop_ticket(queue);

		queue->tokens -= 1;
		ticket->queued = false;
		ticket->granted = true;
		granted++;
		ticket->trying = ticket->failing;
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
idem_start_serve(void)
{
	static bool failing_first = false;
	bool		any;

	failing_first = !failing_first;
	any = serve_queue(failing_first ? &failing : &healthy);
	any |= serve_queue(failing_first ? &healthy : &failing);
	return any;
}

bool
idem_start_ask(IdemStartTicket *ticket, bool is_failing, bool looking)
{
	if (!ticket->granted && !ticket->queued)
	{
		Queue	   *queue;

		ticket->failing = is_failing;
		ticket->queued = true;
		queue = queue_of(ticket);
		dlist_push_tail(looking ? &queue->looking : &queue->tickets, &ticket->node);
		queue->waiting++;
		(void) idem_start_serve();
	}
	if (!ticket->granted)
		return false;
	ticket->granted = false;
	granted--;
	return true;
}

void
idem_start_withdraw(IdemStartTicket *ticket)
{
	if (ticket->queued)
	{
		dlist_delete(&ticket->node);
		queue_of(ticket)->waiting--;
	}
	granted -= ticket->granted;
	trying -= ticket->trying;
	ticket->queued = ticket->granted = ticket->trying = false;
}

int
idem_start_lacking_room(void)
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
						lacking, idem_start_room()),
				 idem_start_room() < idem_max_sink_programs ?
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
token_time(Queue *queue)
{
	if (queue->waiting == 0 || free_room(queue) <= 0)
		return 0;
	fill(queue);
	if (queue->tokens >= 1)
		return 1;
	return idem_clock() + (IdemClock) ((1 - queue->tokens) / rate_of(queue) * 1000000) + 1000;
}

IdemClock
idem_start_next_time(void)
{
	IdemClock	a = token_time(&healthy);
	IdemClock	b = token_time(&failing);

	return a == 0 || b == 0 ? Max(a, b) : Min(a, b);
}
