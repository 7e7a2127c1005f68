/*-------------------------------------------------------------------------
 *
 * main.c
 *		The life cycle of the postgres sink, which brings events into another
 *		PostgreSQL, exactly once.
 *
 * One transaction of the target commits the effects of a batch, the relay's
 * position and the claims of the batch.  There are claims only where the target
 * has the extension.  Batches are applied one after the other, as a whole.
 * Frames that come meanwhile wait in the buffer of common/program.c, within the
 * credit.
 *
 * INVARIANT
 *		Only this file ends the program for a fault of the target or the
 *		options.  The other files return false, with the reason in p->failure.
 *
 * A crash leaves nothing here; apply.c describes what it leaves at the target.
 *
 * MEMORY
 *		A batch is kept until its verdict, so READY limits a batch's size.  The
 *		credit covers two batches.  LOCKING: see position.c.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/postgres/main.c
 *
 *-------------------------------------------------------------------------
 */
#include <poll.h>
#include <string.h>

#include "sink/postgres/options.h"
#include "sink/postgres/sink.h"

#define MAX_BATCH_EVENTS	10000
#define MAX_BATCH_BYTES		(8 * 1024 * 1024)

static void stop(PgSink *p) __attribute__((noreturn));
static void look(PgSink *p) __attribute__((noreturn));

/* End the program because of p->failure. */
static void
stop(PgSink *p)
{
	idem_sink_failed(&p->sink, p->failure.outcome, p->failure.sqlstate, "%s",
					 p->failure.message);
}

/* Answer LOOK: the first thing that is wrong ends the look if the next ones need it. */
static void
look(PgSink *p)
{
	idem_sink_found(&p->sink, true, NULL);
	idem_sink_look_at(&p->sink, "connection", "Put right what the message names: host and port, user mapping, or the target.");
	if (!pgsink_connect(p))
	{
		pgsink_fail_for_error(p, "connect to the target");
		stop(p);
	}
	idem_sink_found(&p->sink, true, NULL);
	idem_sink_look_at(&p->sink, p->config.is_function ? "function" : "table",
					  "Put it right at the target, or in the server's options. For an inbox sink_setup_sql prints what to run at the target.");
	if (!pgsink_describe_target(p) || !pgsink_rehearse_calls(p))
	{
		idem_sink_found(&p->sink, false, p->failure.message);
		if (p->conn == NULL)
			idem_sink_finish(&p->sink);
		memset(&p->failure, 0, sizeof(p->failure));
		pgsink_rollback(p);
	}
	else
		idem_sink_found(&p->sink, true, NULL);
	idem_sink_look_at(&p->sink, "position table", "Run at the target what sink_setup_sql prints. It leaves a table that is there as it is: do what the problem says then.");
	if (!pgsink_rehearse_position(p))
		stop(p);
	idem_sink_found(&p->sink, true, NULL);
	idem_sink_look_at(&p->sink, "position",
					  "If the relay was adopted or moved to this target just now, its first batch replaces the position. Else see the state \"diverged\" of stat_relay.");
	if (!pgsink_look_at_position(p))
		stop(p);
	idem_sink_found(&p->sink, true, NULL);
	idem_sink_finish(&p->sink);
}

/*
 * Answer HELLO: connect, look the target up, take the position over, send
 * READY.
 */
static void
greet(PgSink *p)
{
	IdemProtoHello hello = idem_sink_hello(&p->sink, idem_sink_postgres_options);
	IdemProtoReady ready = {
		.capabilities = IDEM_PROTO_STORES_POSITION | IDEM_PROTO_TRANSACTIONAL,
		.incarnation = {"", 0},
		.max_batch_events = MAX_BATCH_EVENTS,
		.max_batch_bytes = MAX_BATCH_BYTES,
		.credit_messages = 2 * MAX_BATCH_EVENTS,
		.credit_bytes = 2 * MAX_BATCH_BYTES
	};

	if (!pgsink_configure(p, &hello))
		stop(p);
	if (idem_sink_looks(&p->sink))
		look(p);
	IDEM_SINK_FAULT_POINT(&p->sink, "postgres-hello");
	if (!pgsink_connect(p))
	{
		pgsink_fail_for_error(p, "connect to the target");
		stop(p);
	}
	if (!pgsink_describe_target(p))
		stop(p);
	IDEM_SINK_FAULT_POINT(&p->sink, "postgres-connected");
	if (!pgsink_take_position(p, &ready))
		stop(p);
	IDEM_SINK_FAULT_POINT(&p->sink, "postgres-position-taken");
	if (p->claim_sql != NULL || !p->config.is_function)
		ready.capabilities |= IDEM_PROTO_DEDUPLICATES;
	idem_sink_ready(&p->sink, &ready);
}

/* Add the event to the batch; its data may follow in CHUNKs. */
static void
take_event(PgSink *p, const IdemProtoEvent *event, size_t size)
{
	if (p->batch.count >= MAX_BATCH_EVENTS || p->batch.bytes >= MAX_BATCH_BYTES)
		idem_sink_broken(&p->sink, "protocol error: batch is larger than READY allows");
	p->batch.batch = event->batch;
	pgsink_batch_add(&p->batch, event);
	p->batch.bytes += size;
}

/* Apply the batch, which END completes, and give its credit back. */
static void
take_end(PgSink *p, const IdemProtoEnd *end)
{
	uint32_t	count = p->batch.count;
	uint64_t	bytes = p->batch.bytes;

	p->batch.position = end->position;
	IDEM_SINK_FAULT_POINT(&p->sink, "postgres-batch");
	if (!pgsink_apply(p))
		stop(p);
	IDEM_SINK_FAULT_POINT(&p->sink, "postgres-verdict");
	pgsink_batch_reset(&p->batch);
	idem_sink_grant(&p->sink, count, bytes, false);
}

/* Act on a frame of the worker. */
static void
take_frame(PgSink *p, const IdemProtoFrame *frame, size_t size)
{
	switch (frame->type)
	{
		case IDEM_PROTO_EVENT:
			take_event(p, &frame->u.event, size);
			break;
		case IDEM_PROTO_CHUNK:
			pgsink_batch_add_data(&p->batch, frame->u.chunk.data, frame->u.chunk.len);
			p->batch.bytes += size;
			break;
		case IDEM_PROTO_END:
			take_end(p, &frame->u.end);
			break;
		case IDEM_PROTO_SETTLE:
			pgsink_keys_settle(&p->failed, &frame->u.settle);
			break;
		case IDEM_PROTO_BYE:
			idem_sink_finish(&p->sink);
		default:
			break;
	}
}

int
main(void)
{
	static PgSink p;
	IdemProtoFrame frame;
	size_t		size;

	idem_sink_start(&p.sink, "postgres");
	greet(&p);
	for (;;)
	{
		while (idem_sink_poll(&p.sink, &frame, &size))
			take_frame(&p, &frame, size);

		/*
		 * A target that ends the session of an idle program may have been set
		 * back.  The next program compares its position.
		 */
		if (idem_sink_wait(&p.sink, p.batch.count == 0 ? PQsocket(p.conn) : -1, POLLIN, -1, true) != 0 &&
			!pgsink_is_alive(&p))
			stop(&p);
	}
}
