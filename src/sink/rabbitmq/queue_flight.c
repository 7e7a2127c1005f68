/*-------------------------------------------------------------------------
 *
 * queue_flight.c
 *		The messages that are in flight, and what the server says of them.
 *
 * The server numbers the messages of a channel, from 1.  It confirms a number, or all up
 * to a number, and refuses likewise.  A message that no queue takes is returned, and
 * then confirmed: the return comes first and has the event's id.
 *
 * INVARIANT
 *		Only a message that was confirmed and not returned is delivered.
 *
 * A crash leaves messages that the server may have; the worker sends their events again.
 *
 * MEMORY
 *		The library keeps frames in pools of the channel, which are released when all
 *		frames have been taken.  LOCKING: none; all is part of a job.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/rabbitmq/queue_flight.c
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <string.h>
#include <sys/time.h>

#include "sink/rabbitmq/queue.h"

#define ROOM_FOR_FIELDS	1024	/* bytes that properties have besides texts
								 * and headers */
#define MAX_FRAMES		10000	/* that are taken before sending goes on */

/* The message has its answer. */
static void
close_message(BQueue *q, IdemBatchEvent *e)
{
	e->sent = false;
	e->batch->open--;
	q->open--;
}

bool
bqueue_send_next(BSink *p, BQueue *q)
{
	IdemBatchEvent *e = q->wave[q->n_sent];
	BQueueMessage m;
	int			status;

	if (!bqueue_make_message(p, e, (size_t) amqp_get_frame_max(q->conn) - ROOM_FOR_FIELDS, &m))
	{
		/* it has no number: the ones behind it move up */
		bqueue_free_message(&m);
		memmove(&q->wave[q->n_sent], &q->wave[q->n_sent + 1], (q->n_wave - q->n_sent - 1) * sizeof(q->wave[0]));
		q->n_wave--;
		return true;
	}
	status = amqp_basic_publish(q->conn, BQUEUE_CHANNEL, amqp_cstring_bytes(e->target->exchange),
								amqp_cstring_bytes(e->target->routing_key), 1, 0, &m.properties, m.body);
	bqueue_free_message(&m);
	if (status != AMQP_STATUS_OK)
		return bqueue_fail(p, status, "send a message");
	e->sent = true;
	e->refusal = 0;
	e->batch->open++;
	q->open++;
	q->n_sent++;
	return true;
}

void
bqueue_forget_wave(BQueue *q)
{
	for (uint32_t i = q->lowest; i < q->n_sent; i++)
		if (q->wave[i]->sent)
			close_message(q, q->wave[i]);
	q->first_tag += q->n_sent;
	q->n_wave = q->n_sent = q->lowest = q->returned_at = 0;
	q->returning = false;
}

/* The server has answered the message at this index of the wave. */
static void
take_answer(BSink *p, BQueue *q, uint32_t index, bool confirmed)
{
	IdemBatchEvent *e = q->wave[index];
	char		text[700];

	if (!e->sent)
		return;
	close_message(q, e);
	if (!confirmed)
		idem_intake_decide(&p->in, e, IDEM_PROTO_RETRY, "53000",
						   "the server refused the message for now: a queue is full, or has no leader");
	else if (e->refusal != 0)
	{
		snprintf(text, sizeof(text), "no queue is bound to exchange \"%s\" for routing key \"%s\"", e->target->exchange,
				 e->target->routing_key);
		idem_intake_decide(&p->in, e, IDEM_PROTO_REJECTED, "42704", text);
	}
	else
		e->delivered = true;
}

/* Take a confirm, or a refusal.  False: p->failure */
static bool
take_answers(BSink *p, BQueue *q, uint64_t tag, bool multiple, bool confirmed)
{
	uint64_t	end = q->first_tag + q->n_sent;

	/* 0 with the flag stands for all */
	if (multiple && tag == 0)
		tag = end - 1;
	/* the messages of a channel that was closed have no answers to come */
	if (tag >= end || tag == 0)
		return idem_sink_fail(&p->failure, IDEM_PROTO_OUTAGE, "08P01", "the server answered a message that was not sent");
	if (tag < q->first_tag)
		return true;
	if (!multiple)
		take_answer(p, q, (uint32_t) (tag - q->first_tag), confirmed);
	else
		for (uint32_t i = q->lowest; i <= tag - q->first_tag; i++)
			take_answer(p, q, i, confirmed);
	while (q->lowest < q->n_sent && !q->wave[q->lowest]->sent)
		q->lowest++;
	return true;
}

/* Note of the event that the server has returned it.  Returns come in the order of the messages. */
static void
note_returned(BQueue *q, amqp_bytes_t id)
{
	for (uint32_t n = 0; n < q->n_sent; n++)
	{
		IdemBatchEvent *e = q->wave[(q->returned_at + n) % q->n_sent];
		char		own[IDEM_UUID_TEXT];

		if (!e->sent || e->refusal != 0)
			continue;
		idem_write_uuid(own, e->id);
		if (id.len != strlen(own) || memcmp(id.bytes, own, id.len) != 0)
			continue;
		e->refusal = q->returned_code > 0 ? q->returned_code : AMQP_NO_ROUTE;
		q->returned_at = (q->returned_at + n + 1) % q->n_sent;
		return;
	}
}

/* Take a frame of the message that is being returned.  False: p->failure */
static bool
take_returned(BSink *p, BQueue *q, const amqp_frame_t *f)
{
	if (f->frame_type == AMQP_FRAME_HEADER && !q->returned_header)
	{
		const amqp_basic_properties_t *properties = f->payload.properties.decoded;

		if (f->payload.properties.class_id == AMQP_BASIC_CLASS && (properties->_flags & AMQP_BASIC_MESSAGE_ID_FLAG))
			note_returned(q, properties->message_id);
		q->returned_header = true;
		q->returned_left = f->payload.properties.body_size;
	}
	else if (f->frame_type == AMQP_FRAME_BODY && q->returned_header && f->payload.body_fragment.len <= q->returned_left)
		q->returned_left -= f->payload.body_fragment.len;
	else
		return idem_sink_fail(&p->failure, IDEM_PROTO_OUTAGE, "08P01", "the server returned a message in a wrong order of frames");
	q->returning = !q->returned_header || q->returned_left > 0;
	return true;
}

/* Take a method of the channel.  False: p->failure */
static bool
take_method(BSink *p, BQueue *q, const amqp_method_t *m)
{
	switch (m->id)
	{
		case AMQP_BASIC_ACK_METHOD:
			{
				const amqp_basic_ack_t *ack = m->decoded;

				return take_answers(p, q, ack->delivery_tag, ack->multiple != 0, true);
			}
		case AMQP_BASIC_NACK_METHOD:
			{
				const amqp_basic_nack_t *nack = m->decoded;

				return take_answers(p, q, nack->delivery_tag, nack->multiple != 0, false);
			}
		case AMQP_BASIC_RETURN_METHOD:
			q->returning = true;
			q->returned_header = false;
			q->returned_code = ((const amqp_basic_return_t *) m->decoded)->reply_code;
			return true;
		case AMQP_CHANNEL_CLOSE_METHOD:
			return bqueue_agree_to_close(p, q, m->decoded);
		default:
			/* RabbitMQ sends no other method to a channel that only publishes */
			return idem_sink_fail(&p->failure, IDEM_PROTO_OUTAGE, "08P01", "the server sent a method that does not belong here");
	}
}

/* Take a method of the connection.  False: p->failure */
static bool
take_connection_method(BSink *p, BQueue *q, const amqp_method_t *m)
{
	switch (m->id)
	{
		case AMQP_CONNECTION_BLOCKED_METHOD:
			bqueue_copy_text(q->blocked, sizeof(q->blocked), ((const amqp_connection_blocked_t *) m->decoded)->reason);
			if (q->blocked[0] == '\0')
				snprintf(q->blocked, sizeof(q->blocked), "no reason given");
			return true;
		case AMQP_CONNECTION_UNBLOCKED_METHOD:
			q->blocked[0] = '\0';
			q->told_blocked = false;
			return true;
		case AMQP_CONNECTION_CLOSE_METHOD:
			return bqueue_fail_for_close(p, m->decoded, "go on");
		default:
			return idem_sink_fail(&p->failure, IDEM_PROTO_OUTAGE, "08P01", "the server sent a method that does not belong here");
	}
}

static bool
take_frame(BSink *p, BQueue *q, const amqp_frame_t *f)
{
	bool		is_method = f->frame_type == AMQP_FRAME_METHOD;

	if (f->channel == 0)
		return !is_method || take_connection_method(p, q, &f->payload.method);
	if (f->channel != BQUEUE_CHANNEL || q->closed.code != 0)
		return true;
	if (q->returning && !(is_method && f->payload.method.id == AMQP_CHANNEL_CLOSE_METHOD))
		return take_returned(p, q, f);
	if (!is_method)
		return idem_sink_fail(&p->failure, IDEM_PROTO_OUTAGE, "08P01", "the server sent a part of a message that it does not return");
	return take_method(p, q, &f->payload.method);
}

bool
bqueue_take_frames(BSink *p, BQueue *q, bool *heard)
{
	const struct timeval at_once = {0, 0};
	amqp_frame_t f;

	*heard = false;
	for (int n = 0; n < MAX_FRAMES; n++)
	{
		int			status = amqp_simple_wait_frame_noblock(q->conn, &f, &at_once);

		if (status == AMQP_STATUS_TIMEOUT)
			break;
		if (status != AMQP_STATUS_OK)
			return bqueue_fail(p, status, "hear of the server");
		*heard = true;
		if (!take_frame(p, q, &f))
			return false;
		amqp_maybe_release_buffers(q->conn);
	}
	return true;
}
