/*-------------------------------------------------------------------------
 *
 * queue.h
 *		The types and functions that the files of the mode for queues share.
 *
 * The order of the declarations is that of README.md.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/rabbitmq/queue.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_SINK_RABBITMQ_QUEUE_H
#define IDEM_SINK_RABBITMQ_QUEUE_H

/* Since 0.12 the headers are in a directory of their own. */
#if __has_include(<rabbitmq-c/amqp.h>)
#include <rabbitmq-c/amqp.h>
#include <rabbitmq-c/ssl_socket.h>
#include <rabbitmq-c/tcp_socket.h>
#else
#include <amqp.h>
#include <amqp_ssl_socket.h>
#include <amqp_tcp_socket.h>
#endif

#include "sink/rabbitmq/sink.h"

/* The oldest librabbitmq that the sink works with; checked at build and start. */
#define BQUEUE_LEAST_VERSION		0x000b0000
#define BQUEUE_LEAST_VERSION_TEXT	"0.11.0"

#if AMQP_VERSION < BQUEUE_LEAST_VERSION
#error "the rabbitmq sink needs librabbitmq 0.11.0 or later"
#endif

#define BQUEUE_CHANNEL			1
#define BQUEUE_MAX_NAME			255 /* bytes of an exchange or a routing key */
#define BQUEUE_MAX_BATCH_EVENTS	1000
#define BQUEUE_MAX_BATCH_BYTES	(4 * 1024 * 1024)
#define BQUEUE_CREDIT_BATCHES	8
#define BQUEUE_MAX_WAVE			4000	/* messages without an answer */

/* Where an event goes. */
typedef struct IdemTarget
{
	char	   *exchange;
	char	   *routing_key;
} BQueueTarget;

/* What the server said when it closed the channel or refused something. */
typedef struct BQueueReply
{
	int			code;			/* 0: nothing */
	char		text[400];
} BQueueReply;

typedef struct BQueue
{
	amqp_connection_state_t conn;
	amqp_socket_t *socket;
	BQueueReply closed;			/* of the channel; code 0: it is open */
	char		blocked[200];	/* why the server takes nothing; "": it does */
	bool		told_blocked;	/* it has been logged */

	/*
	 * The wave: messages that are in flight together.  The one at index i has
	 * the delivery tag first_tag + i.
	 */
	IdemBatchEvent **wave;
	uint32_t	n_wave;
	uint32_t	n_sent;			/* of the wave */
	uint32_t	open;			/* sent, and not answered */
	uint32_t	lowest;			/* the messages before this index are answered */
	uint64_t	first_tag;

	/* The message that the server is returning. */
	bool		returning;
	bool		returned_header;	/* its header has come */
	uint64_t	returned_left;	/* bytes of its body that are to come */
	int			returned_code;
	uint32_t	returned_at;	/* where in the wave the next one is looked
								 * for */

	/* Events that go one by one: one of them may have closed the channel. */
	uint32_t	suspects;
} BQueue;

/* queue_flight.c */

/* Send a message of the wave, the next one.  False: p->failure */
extern bool bqueue_send_next(BSink *p, BQueue *q);

/*
 * Take what the server has sent, without waiting.  *heard: something has come.
 * False: p->failure
 */
extern bool bqueue_take_frames(BSink *p, BQueue *q, bool *heard);

/* Nothing answers the messages that are in flight any more: they are as if not sent. */
extern void bqueue_forget_wave(BQueue *q);

/* queue_connect.c */

/* Parts of jobs.  False: p->failure */
extern bool bqueue_connect(BSink *p, BQueue *q);
extern bool bqueue_open_channel(BSink *p, BQueue *q);

/* Is the exchange there?  If not, the channel is closed.  False: p->failure */
extern bool bqueue_check_exchange(BSink *p, BQueue *q);

/* The server has closed the channel: agree. */
extern bool bqueue_agree_to_close(BSink *p, BQueue *q, const amqp_channel_close_t *m);

/* Note a status of the library.  Always false. */
extern bool bqueue_fail(BSink *p, int status, const char *doing);

/* Note why the server ends the connection.  Always false. */
extern bool bqueue_fail_for_close(BSink *p, const amqp_connection_close_t *m, const char *doing);

/* Note that the server refuses the exchange of all events.  Always false. */
extern bool bqueue_fail_for_exchange(BSink *p, const BQueueReply *reply);

/* Copy a text of the server, fit for a message. */
extern void bqueue_copy_text(char *dst, size_t cap, amqp_bytes_t text);

/* queue_message.c */

/*
 * Name exchange and routing key of the events of a batch that have no target yet, and
 * are not decided; decide those that can have none.
 */
extern void bqueue_prepare(BSink *p, IdemBatch *b);
extern void bqueue_free_targets(IdemBatch *b);

/* The event's exchange, if events choose it, and routing key; p is a BSink. */
extern void bqueue_destination(void *p, const IdemBatchEvent *e, char buf[IDEM_SINK_DESTINATION + 1]);

/* An event's properties and body, for as long as it is being sent. */
typedef struct BQueueMessage
{
	amqp_basic_properties_t properties;
	amqp_bytes_t body;
	bool		owns_body;
	IdemText	names;			/* the texts of the properties */
	amqp_table_entry_t *headers;
	int			n_headers;
} BQueueMessage;

/*
 * Make the message; its properties may have about room bytes.  False: the event was
 * decided.  The caller frees the message in any case.
 */
extern bool bqueue_make_message(BSink *p, IdemBatchEvent *e, size_t room, BQueueMessage *m);
extern void bqueue_free_message(BQueueMessage *m);

#endif							/* IDEM_SINK_RABBITMQ_QUEUE_H */
