/*-------------------------------------------------------------------------
 *
 * position.c
 *		The position: a message of the stream, on a subject of the relay's own.
 *
 *		{"relay":"orders","epoch":3,"incarnation":"5f3c-1","row_id":70000,"k":17}
 *
 * Each write names the sequence number of the former position as its condition
 * (Nats-Expected-Last-Subject-Sequence), so it is made only if nobody else has
 * written, and if the former one is there.  At start the program writes the position
 * that it has read, with the epoch raised by one.
 *
 * INVARIANT
 *		The position that is reported in READY is the last one: behind the start's
 *		write no write of a predecessor can succeed, whatever of it is under way.
 *		A subject that is another relay's is read and never written.
 *
 * A crash between reading and writing leaves nothing; behind the write, an epoch.
 *
 * MEMORY
 *		The stored incarnation lives until the next one is read.  LOCKING: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/nats/position.c
 *
 *-------------------------------------------------------------------------
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sink/nats/sink.h"

#define MAX_TRIES	10			/* of the start, if others write meanwhile */
#define NO_MESSAGE	10037		/* err_code: the subject has none */

/* A position as it is stored. */
typedef struct Record
{
	uint64_t	seq;			/* of its message; 0: there is none */
	uint64_t	epoch;
	char	   *incarnation;	/* NULL: no position, but a start without one */
	IdemProtoPosition position;
} Record;

/* Read a whole number of the record. */
static int64_t
number_of(const char *json, size_t len, const char *name)
{
	const char *value;
	size_t		n;
	char		text[24];

	if (!idem_json_member(json, len, name, &value, &n) || n >= sizeof(text))
		return 0;
	memcpy(text, value, n);
	text[n] = '\0';
	return strtoll(text, NULL, 10);
}

/* Take the record from the message.  False: p->failure. */
static bool
take_record(NSink *p, natsMsg *msg, Record *r)
{
	const char *json = natsMsg_GetData(msg);
	size_t		len = (size_t) natsMsg_GetDataLength(msg);
	char	   *relay = len > 0 && idem_json_is_object(json, len) ? idem_json_string(json, len, "relay") : NULL;
	bool		ours = relay != NULL && strcmp(relay, p->config.relay) == 0;

	if (!ours)
		idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "55000",
					   "subject \"%s\" of stream \"%s\" has %s%.100s; set the option \"position_subject\"", p->config.position_subject,
					   p->config.stream, relay != NULL ? "the position of relay " : "messages that are no position", relay != NULL ? relay : "");
	free(relay);
	if (!ours)
		return false;
	r->seq = natsMsg_GetSequence(msg);
	r->epoch = (uint64_t) number_of(json, len, "epoch");
	r->incarnation = idem_json_string(json, len, "incarnation");
	r->position.row_id = number_of(json, len, "row_id");
	r->position.k = number_of(json, len, "k");
	return true;
}

/* Read the last record of the subject.  False: p->failure. */
static bool
read_record(NSink *p, int64_t timeout, Record *r)
{
	char		subject[NSINK_MAX_SUBJECT];
	jsOptions	options;
	jsCtx	   *js = NULL;
	jsErrCode	code = 0;
	natsMsg    *msg = NULL;
	natsStatus	s;
	bool		ok;

	memset(r, 0, sizeof(*r));
	jsOptions_Init(&options);
	options.Wait = timeout;
	s = natsConnection_JetStream(&js, p->nc, &options);
	if (s == NATS_OK)
		s = js_GetLastMsg(&msg, js, p->config.stream, p->config.position_subject, NULL, &code);
	jsCtx_Destroy(js);
	if (s == NATS_NOT_FOUND || (int) code == NO_MESSAGE)
		return true;
	snprintf(subject, sizeof(subject), "$JS.API.STREAM.MSG.GET.%s", p->config.stream);
	if (s != NATS_OK && nsink_was_denied(subject))
		return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "42501",
							  "the server does not let the user read stream \"%s\"; idempotency.sink_setup(server, relay) prints what the user needs",
							  p->config.stream);
	if (s != NATS_OK)
		return nsink_fail(p, s, "read the position");
	ok = take_record(p, msg, r);
	natsMsg_Destroy(msg);
	return ok;
}

/* Write the record of a position; of none, if incarnation is NULL. */
static natsMsg *
make_record(NSink *p, const char *incarnation, IdemProtoPosition position)
{
	IdemText	t = {NULL, 0, 0};
	natsMsg    *msg = NULL;
	char		text[96];
	natsStatus	s;

	idem_text_puts(&t, "{\"relay\":");
	idem_text_add_json(&t, p->config.relay, strlen(p->config.relay));
	snprintf(text, sizeof(text), ",\"epoch\":%" PRIu64, p->epoch);
	idem_text_puts(&t, text);
	if (incarnation != NULL)
	{
		idem_text_puts(&t, ",\"incarnation\":");
		idem_text_add_json(&t, incarnation, strlen(incarnation));
		snprintf(text, sizeof(text), ",\"row_id\":%" PRId64 ",\"k\":%" PRId64, position.row_id, position.k);
		idem_text_puts(&t, text);
	}
	idem_text_puts(&t, "}");
	s = natsMsg_Create(&msg, p->config.position_subject, NULL, t.data, (int) t.len);
	free(t.data);
	snprintf(text, sizeof(text), "%" PRIu64, p->seq);
	if (s == NATS_OK)
		s = natsMsgHeader_Set(msg, "Nats-Expected-Last-Subject-Sequence", text);
	if (s == NATS_OK)
		s = natsMsgHeader_Set(msg, "Nats-Expected-Stream", p->config.stream);

	/*
	 * replaces the former position, and does not expire while the relay is
	 * idle
	 */
	if (s == NATS_OK && p->stream.keeps_position)
		s = natsMsgHeader_Set(msg, "Nats-Rollup", "sub");
	if (s == NATS_OK && p->stream.keeps_position)
		s = natsMsgHeader_Set(msg, "Nats-TTL", "never");
	if (s != NATS_OK)
		idem_sink_broken(&p->sink, "could not make a message: %s", natsStatus_GetText(s));
	return msg;
}

natsMsg *
nsink_position_message(NSink *p, const IdemProtoPosition *position)
{
	return make_record(p, p->config.incarnation, *position);
}

/* Keep what was read as what is stored. */
static void
keep_record(NSink *p, Record *r)
{
	free(p->stored_incarnation);
	p->stored_incarnation = r->incarnation;
	p->has_position = r->incarnation != NULL;
	p->stored = r->position;
	p->seq = r->seq;
	p->epoch = r->epoch + 1;
}

/* Write the start.  *taken: false if somebody else has written meanwhile. */
static bool
write_start(NSink *p, int64_t timeout, bool *taken)
{
	natsMsg    *msg = make_record(p, p->stored_incarnation, p->stored);
	natsMsg    *reply = NULL;
	NSinkAnswer a;
	bool		ok = nsink_request(p, msg, timeout, &reply);

	natsMsg_Destroy(msg);
	if (!ok)
		return false;
	nsink_read_answer(reply, &a);
	natsMsg_Destroy(reply);
	*taken = a.code == 0;
	if (a.code == 0)
		p->seq = a.seq;
	if (a.code == 0 || a.code == NSINK_WRONG_SEQUENCE || a.code == NSINK_SEQUENCE_BUSY)
		return true;
	return idem_sink_fail(&p->failure, nsink_is_out(&a) ? IDEM_PROTO_OUTAGE : IDEM_PROTO_REJECTED,
						  nsink_is_out(&a) ? "08006" : "55000", "could not write the position to stream \"%s\": %s", p->config.stream, a.text);
}

bool
nsink_take_over(NSink *p, int64_t deadline)
{
	bool		taken = false;

	for (int i = 0; i < MAX_TRIES && !taken; i++)
	{
		int64_t		left = deadline - idem_sink_clock();
		Record		r;

		if (left <= 0)
			break;
		if (!read_record(p, left, &r))
			return false;
		keep_record(p, &r);
		IDEM_SINK_FAULT_POINT(&p->sink, "nats-position-read");
		if (!write_start(p, left, &taken))
			return false;
	}
	return taken || idem_sink_fail(&p->failure, IDEM_PROTO_OUTAGE, "08006",
								   "could not take over subject \"%s\": others write to it", p->config.position_subject);
}

bool
nsink_check_owner(NSink *p, int64_t deadline)
{
	Record		r;

	if (!read_record(p, deadline - idem_sink_clock(), &r))
		return false;
	free(r.incarnation);
	return true;
}

NSinkFate
nsink_look(NSink *p, IdemProtoPosition position)
{
	NSinkFate	fate = NSINK_FATE_FAILED;
	Record		r;

	if (!read_record(p, p->config.timeout, &r))
		return NSINK_FATE_FAILED;
	if (r.seq == p->seq)
		fate = NSINK_FATE_OURS;
	else if (r.epoch == p->epoch && r.incarnation != NULL && strcmp(r.incarnation, p->config.incarnation) == 0 &&
			 r.position.row_id == position.row_id && r.position.k == position.k)
	{
		p->seq = r.seq;
		fate = NSINK_FATE_STORED;
	}
	else if (r.epoch > p->epoch)
		idem_sink_fail(&p->failure, IDEM_PROTO_FENCED, "55000", "another instance has taken over subject \"%s\"", p->config.position_subject);
	else
		idem_sink_fail(&p->failure, IDEM_PROTO_OUTAGE, "55000", "the position on subject \"%s\" is %s", p->config.position_subject,
					   r.seq == 0 ? "gone" : "not the one that was stored last");
	free(r.incarnation);
	return fate;
}
