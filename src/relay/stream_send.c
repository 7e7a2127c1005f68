/*-------------------------------------------------------------------------
 *
 * stream_send.c
 *		Events of the log, and parked ones that are due -> frames to a sink.
 *
 * A batch is read in one short transaction, encoded into the output buffer,
 * and written after that transaction has ended and the gate is open.  What
 * cannot be sent because an earlier event of its key is parked, is parked
 * behind it in the same transaction.
 *
 * To a sink that stores positions, the row of a difference is flushed before
 * its first frame, and a difference is begun only when the one before is
 * settled; so the last row's "done" is settled always, and emptying the
 * outbox can go by it.
 *
 * MEMORY: strings and payload of one event at a time, in a context that is
 * reset after each.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/stream_send.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "commands/defrem.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "relay/position.h"
#include "relay/relay.h"
#include "relay/stream.h"
#include "shared/durable.h"

#define MAX_BATCHES 8
#define MAX_REPEATS 100
/* Events read in one transaction at most, whatever is filtered out. */
#define MAX_SCANNED 100000
/* Microseconds from 1970-01-01 to 2000-01-01. */
#define EPOCH_DIFF_US (INT64CONST(10957) * USECS_PER_DAY)

/* What is being put together. */
typedef struct Builder
{
	IdemStream *stream;
	IdemBatch  *batch;			/* NULL: no event yet */
	int			limit;			/* events */
	int64		bytes;			/* of frames */
	XLogRecPtr	lsn;			/* largest commit LSN of what is in it */
	FullTransactionId last_xid;
	bool		synchronous;	/* the transaction wrote what must be durable */
} Builder;

static IdemProtoStr
to_utf8(const char *data, int len)
{
	IdemProtoStr s;
	char	   *converted = pg_server_to_any(data, len, PG_UTF8);

	s.data = converted;
	s.len = converted == data ? len : strlen(converted);
	return s;
}

static IdemProtoStr
cstring_to_utf8(const char *s)
{
	return to_utf8(s, strlen(s));
}

void
idem_stream_send_hello(IdemStream *stream)
{
	IdemRelayConfig *c = stream->config;
	IdemProtoHello hello = {0};
	MemoryContext tmp = AllocSetContextCreate(stream->run_cxt, "hello", ALLOCSET_SMALL_SIZES);
	MemoryContext old = MemoryContextSwitchTo(tmp);
	IdemProtoStr *keys = palloc(sizeof(IdemProtoStr) * (list_length(c->options) + 1));
	IdemProtoStr *values = palloc(sizeof(IdemProtoStr) * (list_length(c->options) + 1));
	ListCell   *lc;
	size_t		n;

	hello.version = IDEM_PROTO_VERSION;
	hello.flags = IDEM_PROTO_WANT_POSITION |
		(c->ordering == IDEM_ORDERING_KEY ? IDEM_PROTO_KEY_ORDER : 0) |
		(c->require_password ? IDEM_PROTO_REQUIRE_PASSWORD : 0);
	hello.relay = cstring_to_utf8(c->name);
	hello.incarnation = cstring_to_utf8(c->incarnation);
	foreach(lc, c->options)
	{
		DefElem    *def = lfirst(lc);

		/* That chose the program, which knows its own options only. */
		if (strcmp(c->kind, "program") == 0 && strcmp(def->defname, "program") == 0)
			continue;
		keys[hello.noptions] = cstring_to_utf8(def->defname);
		values[hello.noptions++] = cstring_to_utf8(defGetString(def));
	}
	hello.keys = keys;
	hello.values = values;
	n = idem_proto_encode_hello(idem_stream_reserve(stream, IDEM_PROTO_MAX_FRAME),
								IDEM_PROTO_MAX_FRAME, &hello);
	MemoryContextSwitchTo(old);
	MemoryContextDelete(tmp);
	if (n == 0 || n > IDEM_PROTO_MAX_FRAME)
		idem_stream_stick(stream, IDEM_RELAY_MISCONFIGURED,
						  "the options of the server do not fit into one frame");
	else
		stream->out_end += n;
}

static IdemBatch *
make_batch(IdemStream *stream, int limit, bool repeats)
{
	MemoryContext cxt = AllocSetContextCreate(stream->run_cxt, "batch", ALLOCSET_SMALL_SIZES);
	IdemBatch  *batch = MemoryContextAllocZero(cxt, sizeof(*batch));

	batch->cxt = cxt;
	batch->no = ++stream->next_batch;
	batch->repeats = repeats;
	batch->flights = MemoryContextAlloc(cxt, sizeof(IdemFlight) * limit);
	return batch;
}

/* Bytes [from, from + len) of headers followed by payload. */
static void
copy_data(uint8 *dst, IdemProtoStr headers, IdemProtoStr payload, uint32 from, uint32 len)
{
	if (from < headers.len)
	{
		uint32		n = Min(len, headers.len - from);

		memcpy(dst, headers.data + from, n);
		dst += n;
		from += n;
		len -= n;
	}
	if (len > 0)
		memcpy(dst, payload.data + (from - headers.len), len);
}

static IdemProtoStr
jsonb_to_utf8(Datum datum)
{
	Jsonb	   *jb = DatumGetJsonbP(datum);
	char	   *s = JsonbToCString(NULL, &jb->root, VARSIZE(jb));

	return cstring_to_utf8(s);
}

static IdemProtoStr
payload_bytes(const IdemEvent *ev)
{
	struct varlena *v;
	IdemProtoStr s;

	if (ev->is_json)
		return jsonb_to_utf8(ev->payload);
	v = PG_DETOAST_DATUM_PACKED(ev->payload);
	s.data = VARDATA_ANY(v);
	s.len = VARSIZE_ANY_EXHDR(v);
	return s;
}

/* What the encoder wrote, before anything is put into it. */
static void
append_frame(Builder *b, size_t n)
{
	if (n == 0 || n > IDEM_PROTO_MAX_FRAME)
		elog(ERROR, "an event cannot be expressed in the sink protocol");
	b->stream->out_end += n;
	b->bytes += n;
	b->stream->credit_bytes -= n;
}

static void
encode_chunks(Builder *b, IdemProtoEvent *f, IdemProtoStr headers, IdemProtoStr payload)
{
	uint32		total = headers.len + payload.len;
	uint32		offset = f->chunk_len;

	while (offset < total)
	{
		uint32		len = Min(total - offset, IDEM_PROTO_MAX_FRAME - IDEM_PROTO_CHUNK_HEAD);
		IdemProtoChunk chunk = {f->batch, f->index, offset, NULL, len};
		uint8	   *buf = idem_stream_reserve(b->stream, IDEM_PROTO_MAX_FRAME);
		size_t		n = idem_proto_encode_chunk(buf, IDEM_PROTO_MAX_FRAME, &chunk);

		append_frame(b, n);
		copy_data(buf + n - len, headers, payload, offset, len);
		offset += len;
	}
}

static void
encode_event(Builder *b, const IdemEvent *ev, int index)
{
	MemoryContext old = MemoryContextSwitchTo(b->stream->event_cxt);
	IdemProtoStr none = {"", 0};
	IdemProtoStr headers = ev->has_headers ? jsonb_to_utf8(ev->headers) : none;
	IdemProtoStr payload = payload_bytes(ev);
	IdemProtoEvent f = {0};
	uint8	   *buf;
	size_t		n;

	f.batch = b->batch->no;
	f.index = index;
	f.flags = (ev->is_json ? IDEM_PROTO_PAYLOAD_JSON : 0) |
		(ev->has_headers ? IDEM_PROTO_HAS_HEADERS : 0) |
		(ev->has_content_type ? IDEM_PROTO_HAS_CONTENT_TYPE : 0);
	f.event_id = ev->event_id.data;
	f.seq = ev->seq;
	f.enqueued_at = ev->enqueued_at + EPOCH_DIFF_US;
	f.committed_at = b->stream->stamp == 0 || b->batch->repeats ? 0 :
		b->stream->stamp + EPOCH_DIFF_US;
	f.headers_len = headers.len;
	f.payload_len = payload.len;
	f.aggregate_type = to_utf8(ev->aggregate_type.data, ev->aggregate_type.len);
	f.aggregate_id = to_utf8(ev->aggregate_id.data, ev->aggregate_id.len);
	f.event_type = to_utf8(ev->event_type.data, ev->event_type.len);
	f.content_type = ev->has_content_type ?
		to_utf8(ev->content_type.data, ev->content_type.len) : none;
	f.chunk_len = (uint32) Min((size_t) headers.len + payload.len, idem_proto_event_room(&f));

	buf = idem_stream_reserve(b->stream, IDEM_PROTO_MAX_FRAME);
	n = idem_proto_encode_event(buf, IDEM_PROTO_MAX_FRAME, &f);
	append_frame(b, n);
	copy_data(buf + n - f.chunk_len, headers, payload, 0, f.chunk_len);
	encode_chunks(b, &f, headers, payload);
	b->stream->credit_messages--;

	MemoryContextSwitchTo(old);
	MemoryContextReset(b->stream->event_cxt);
}

static void
add_event(Builder *b, const IdemEvent *ev, int64 parked_id)
{
	IdemBatch  *batch = b->batch;
	IdemFlight *flight = &batch->flights[batch->n];

	encode_event(b, ev, batch->n);
	flight->xid = ev->xid;
	flight->seq = ev->seq;
	flight->parked_id = parked_id;
	flight->outcome = 0;
	flight->failure = -1;
	batch->n++;
	batch->open++;

	/* What was parked is durable; events of one transaction stand together. */
	if (!batch->repeats && !FullTransactionIdEquals(b->last_xid, ev->xid))
	{
		XLogRecPtr	lsn = idem_durable_commit_lsn(ev->xid);

		b->lsn = Max(b->lsn, lsn);
		b->last_xid = ev->xid;
	}
}

static bool
builder_has_room(Builder *b)
{
	return (b->batch == NULL || b->batch->n < b->limit) &&
		b->bytes < b->stream->max_batch_bytes &&
		b->stream->credit_messages > 0 && b->stream->credit_bytes > 0;
}

static void
send_end(IdemStream *stream, IdemBatch *batch, int64 k)
{
	IdemProtoEnd end = {batch->no, batch->n, {stream->storing ? stream->row_id : 0, k}};
	uint8	   *buf = idem_stream_reserve(stream, 64);

	stream->out_end += idem_proto_encode_end(buf, 64, &end);
	dlist_push_tail(&stream->batches, &batch->node);
	stream->nbatches++;
}

/* Flush what is in the batch, and hold it back until a standby has it. */
static void
close_gate(Builder *b)
{
	XLogRecPtr	target = idem_durable_target(b->lsn);

	if (!idem_durable_reached(target))
		b->stream->gate = target;
}

/* Append the row that positions of the current difference refer to. */
static void
append_row(Builder *b)
{
	IdemStream *stream = b->stream;
	IdemPosition row = stream->sent;

	if (stream->fresh)
		row.k = IDEM_POSITION_FRESH;
	stream->row_id = idem_position_append(stream->config->relay_id,
										  stream->config->epoch, &row);
	b->synchronous = true;
}

/*
 * The later snapshot of the next difference, or false if nothing is new.  A
 * long backlog is cut at the ticks that were taken while it grew, so that its
 * events need no sorting.
 */
static bool
begin_difference(IdemStream *stream)
{
	IdemSnap   *cur = idem_snap_current();
	IdemPosition next = {stream->sent.done, cur, 0};

	if (idem_snap_equal(cur, stream->sent.done))
		return false;
	stream->row_id = 0;
	stream->done_last_seq = stream->cur_last_seq;
	stream->cur_last_seq = idem_outbox_last_seq();
	if (stream->catching_up ||
		stream->cur_last_seq - stream->done_last_seq > IDEM_TICK_EVENTS)
	{
		IdemPositionRow *tick = idem_position_tick_after(stream->sent.done);

		stream->catching_up = tick != NULL;
		if (tick != NULL && !idem_snap_equal(tick->pos.done, stream->sent.done))
			next.cur = tick->pos.done;
	}
	idem_position_assign(stream->cxt, &stream->sent, &next);
	return true;
}

/* Read events into the batch; true if the difference came to its end. */
static bool
read_events(Builder *b, int64 *last_seq)
{
	IdemStream *stream = b->stream;
	IdemEvent	ev;

	for (int scanned = 0; scanned < MAX_SCANNED && builder_has_room(b); scanned++)
	{
		CHECK_FOR_INTERRUPTS();
		if (!idem_reader_next(stream->reader, &ev))
			return true;
		*last_seq = ev.seq;
		if (!idem_relay_wants(stream->config, &ev) ||
			idem_parked_has_seq(stream->parked, ev.seq))
			continue;
		if (idem_parked_blocks(stream->parked, &ev))
		{
			idem_parked_add_waiting(stream->config, &ev);
			stream->parked->total++;
			stream->parked_dirty = true;
			b->synchronous = true;
			continue;
		}
		if (b->batch == NULL)
		{
			if (stream->storing && stream->row_id == 0)
				append_row(b);
			b->batch = make_batch(stream, b->limit, false);
		}
		add_event(b, &ev, 0);
	}
	return false;
}

/*
 * The batch, or nothing to send, moved "sent"; make "settled" follow.  The
 * new position may be made of the snapshots in "sent", which the assignment
 * frees, so it is not looked at again.
 */
static void
advance(IdemStream *stream, IdemBatch *batch, const IdemPosition *position)
{
	const IdemPosition *after = &stream->sent;

	idem_position_assign(stream->cxt, &stream->sent, position);
	if (batch != NULL)
		idem_position_assign(batch->cxt, &batch->after, after);
	else if (stream->nbatches == 0)
	{
		idem_position_assign(stream->cxt, &stream->settled, after);
		stream->settled_dirty = true;
	}
	else
	{
		IdemBatch  *last = dlist_tail_element(IdemBatch, node, &stream->batches);

		if (!last->repeats)
			idem_position_assign(last->cxt, &last->after, after);
	}
}

/* One batch of the log; true if there may be more at once. */
static bool
send_log_batch(IdemStream *stream)
{
	Builder		b = {stream, NULL};
	IdemPosition after;
	bool		ended;
	int64		last_seq = stream->sent.k;

	/* One difference at a time for sinks that store positions. */
	if (stream->storing && stream->sent.cur == NULL && stream->nbatches > 0)
		return false;
	b.limit = stream->max_batch_events;
	if (stream->batch_limit != 0)
		b.limit = Min(b.limit, stream->batch_limit);

	idem_stream_begin();
	if (stream->sent.cur == NULL && !begin_difference(stream))
	{
		stream->drained = true;
		stream->stamp = 0;
		idem_stream_commit(false);
		return false;
	}
	idem_reader_seek(stream->reader, &stream->sent);
	ended = read_events(&b, &last_seq);
	idem_reader_suspend(stream->reader);
	idem_stream_commit(b.synchronous);

	after.done = ended ? stream->sent.cur : stream->sent.done;
	after.cur = ended ? NULL : stream->sent.cur;
	after.k = ended ? 0 : last_seq;
	if (b.batch != NULL)
	{
		send_end(stream, b.batch, last_seq);
		close_gate(&b);
	}
	if (ended)
		stream->stamp = 0;
	advance(stream, b.batch, &after);
	return true;
}

/* Parked events that are due, as a batch of their own. */
static bool
send_repeats(IdemStream *stream)
{
	Builder		b = {stream, NULL};
	MemoryContext work = AllocSetContextCreate(stream->run_cxt, "repeats", ALLOCSET_DEFAULT_SIZES);
	MemoryContext old = MemoryContextSwitchTo(work);
	List	   *due;
	List	   *taken = NIL;
	ListCell   *lc;

	b.limit = Min(stream->max_batch_events, MAX_REPEATS);
	if (stream->batch_limit != 0)
		b.limit = Min(b.limit, stream->batch_limit);
	idem_stream_begin();
	MemoryContextSwitchTo(work);
	due = idem_parked_due(stream->config, b.limit);
	if (due != NIL)
	{
		b.batch = make_batch(stream, b.limit, true);
		foreach(lc, due)
		{
			IdemParkedEvent *p = lfirst(lc);

			if (!builder_has_room(&b))
				break;
			add_event(&b, &p->event, p->parked_id);
			taken = lappend(taken, p);
		}
		if (stream->storing)
		{
			append_row(&b);
			idem_parked_mark(taken, stream->row_id);
		}
		stream->repeating = true;
	}
	idem_stream_commit(b.synchronous);
	if (b.batch != NULL)
	{
		/* An event may have been parked before it was ever let through. */
		send_end(stream, b.batch, stream->sent.k);
		close_gate(&b);
	}
	MemoryContextSwitchTo(old);
	MemoryContextDelete(work);
	return b.batch != NULL;
}

static void
reload_parked(IdemStream *stream)
{
	idem_stream_begin();
	idem_parked_index_load(stream->parked, stream->config);
	idem_stream_commit(false);
	stream->parked_dirty = false;
	stream->check_due = true;
}

static bool
repeats_are_due(IdemStream *stream)
{
	if (stream->repeating || stream->parked->total == 0)
		return false;
	return stream->check_due ||
		(stream->parked->next_due != 0 && stream->parked->next_due <= GetCurrentTimestamp());
}

static bool
has_room(IdemStream *stream)
{
	return stream->nbatches < MAX_BATCHES &&
		(stream->batch_limit == 0 || stream->nbatches == 0) &&
		stream->out_end - stream->out_start < stream->max_batch_bytes &&
		stream->credit_messages > 0 && stream->credit_bytes > 0 &&
		stream->gate == InvalidXLogRecPtr;
}

void
idem_stream_fill(IdemStream *stream)
{
	if (!has_room(stream))
		return;
	if (stream->parked_dirty)
		reload_parked(stream);
	if (stream->drained && !repeats_are_due(stream))
		return;

	while (has_room(stream))
	{
		if (repeats_are_due(stream))
		{
			stream->check_due = false;
			stream->parked->next_due = 0;
			if (send_repeats(stream))
				continue;
			reload_parked(stream);
			stream->check_due = false;
		}
		if (stream->drained || stream->parked->total >= idem_max_parked)
			break;
		if (!send_log_batch(stream))
			break;
		/* Hand it over at once: the sink works while the next one is read. */
		idem_stream_flush(stream);
		if (stream->parked_dirty)
			reload_parked(stream);
	}
}
