/*-------------------------------------------------------------------------
 *
 * main.c
 *		The postgres sink: events into another PostgreSQL, exactly once.
 *
 * Effects, the relay's position and, where the extension is installed there,
 * the claims of a batch commit in one transaction of the target.  Batches are
 * applied one after the other, as a whole; what comes meanwhile waits in the
 * framework's buffer, within the credit.
 *
 * A crash leaves nothing here; at the target see apply.c.
 *
 * MEMORY
 *		A batch is kept until its verdict, so READY limits its size; credit
 *		covers two.  LOCKING: see position.c.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/postgres/main.c
 *
 *-------------------------------------------------------------------------
 */
#include "sink/postgres/options.h"
#include "sink/postgres/sink.h"

#define MAX_BATCH_EVENTS	10000
#define MAX_BATCH_BYTES		(8 * 1024 * 1024)

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

	pg_configure(p, &hello);
	IDEM_SINK_FAULT_POINT(&p->sink, "postgres-hello");
	if (!pg_connect(p))
		pg_give_up(p, "connect to the target");
	pg_describe_target(p);
	IDEM_SINK_FAULT_POINT(&p->sink, "postgres-connected");
	pg_take_position(p, &ready);
	IDEM_SINK_FAULT_POINT(&p->sink, "postgres-position-taken");
	if (p->claim_sql != NULL || !p->config.is_function)
		ready.capabilities |= IDEM_PROTO_DEDUPLICATES;
	idem_sink_ready(&p->sink, &ready);
}

static void
take_event(PgSink *p, const IdemProtoEvent *event, size_t size)
{
	if (p->batch.count >= MAX_BATCH_EVENTS || p->batch.bytes >= MAX_BATCH_BYTES)
		idem_sink_broken(&p->sink, "protocol error: batch is larger than READY allows");
	p->batch.batch = event->batch;
	pg_batch_add(&p->batch, event);
	p->batch.bytes += size;
}

static void
take_end(PgSink *p, const IdemProtoEnd *end)
{
	uint32_t	count = p->batch.count;
	uint64_t	bytes = p->batch.bytes;

	p->batch.position = end->position;
	IDEM_SINK_FAULT_POINT(&p->sink, "postgres-batch");
	pg_apply(p);
	IDEM_SINK_FAULT_POINT(&p->sink, "postgres-verdict");
	pg_batch_reset(&p->batch);
	idem_sink_grant(&p->sink, count, bytes, false);
}

static void
take_frame(PgSink *p, const IdemProtoFrame *frame, size_t size)
{
	switch (frame->type)
	{
		case IDEM_PROTO_EVENT:
			take_event(p, &frame->u.event, size);
			break;
		case IDEM_PROTO_CHUNK:
			pg_batch_add_data(&p->batch, frame->u.chunk.data, frame->u.chunk.len);
			p->batch.bytes += size;
			break;
		case IDEM_PROTO_END:
			take_end(p, &frame->u.end);
			break;
		case IDEM_PROTO_SETTLE:
			pg_keys_settle(&p->failed, frame->u.settle.batch);
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
		idem_sink_wait(&p.sink, -1, 0, -1, true);
	}
}
