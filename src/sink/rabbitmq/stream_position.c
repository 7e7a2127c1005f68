/*-------------------------------------------------------------------------
 *
 * stream_position.c
 *		The position: the note of the last batch in the stream.
 *
 * The server drops an entry whose publishing id is not greater than the last one of the
 * publisher's name, and confirms it all the same.  So a program takes over by an entry with an
 * id far beyond the last one, a fence, which is a message without an event: what a
 * predecessor has sent and the server has not read is dropped from then on.  Behind
 * the confirm the program reads what has come up to its fence: the last batch in front of
 * the fence is the position.
 *
 * INVARIANT
 *		The position that is reported in READY is the last one: no batch of a predecessor
 *		comes behind the fence.  All that follows under our name is the program's own, as
 *		long as the server's sequence is the last id that the program used.  A stream of
 *		another relay is read and never written.
 *
 * A crash leaves nothing, or a fence.
 *
 * MEMORY
 *		A chunk at a time.  LOCKING: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/rabbitmq/stream_position.c
 *
 *-------------------------------------------------------------------------
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "sink/rabbitmq/stream.h"

#define MAX_RACES		10		/* take-overs that another one came before */
#define FIRST_STEP		256		/* messages to go back at first */
#define MAX_BACK		2000000 /* messages behind our last batch */

/* Ids of a program are above this bound; the next program's bound is beyond it. */
#define ID_STEP			(UINT64_C(1) << 32)

/* What reading looks for. */
typedef struct Search
{
	BSink	   *p;
	BStreamFound *found;
	uint64_t	from;			/* messages before this offset do not count */
	uint64_t	until;			/* nor do messages from this offset on */
	uint64_t	first;			/* offset of the first chunk */
	const char *owner;			/* the fence that ends the search, or NULL */
	uint64_t	id;
	bool		fence_found;
	bool		overtaken;		/* another program's entry is in its place */
	bool		foreign;		/* a note of another relay: p->failure */
	bool		begun;
} Search;

/* Take the note of an entry. */
static void
take_note(Search *q, const BStreamNote *note)
{
	BStreamFound *f = q->found;

	if (strcmp(note->relay, q->p->config.relay) != 0)
	{
		char		relay[80];

		idem_proto_clean_text(relay, sizeof(relay), IDEM_STR(note->relay));
		idem_sink_fail(&q->p->failure, IDEM_PROTO_REJECTED, "55000",
					   "the stream is that of relay \"%s\"; set the option \"stream\", or \"delivery\" to \"at_least_once\"", relay);
		q->foreign = true;
		return;
	}
	if (note->id > f->id)
		f->id = note->id;
	if (q->owner != NULL && note->id >= q->id)
	{
		q->fence_found = note->fence && strcmp(note->owner, q->owner) == 0;
		q->overtaken = !q->fence_found;
	}
	else if (!note->fence)
	{
		f->has_batch = true;
		f->last = *note;
	}
}

/* Look at each entry of a chunk.  True: the search has ended. */
static bool
visit(BStream *s, BStreamChunk *chunk, void *arg)
{
	Search	   *q = arg;
	BStreamFound *f = q->found;
	BStreamEntry entry;
	BStreamNote note;
	uint64_t	at = chunk->offset;

	(void) s;
	if (!q->begun)
		q->first = at;
	q->begun = true;
	while (!q->foreign && !q->fence_found && !q->overtaken && bstream_next_entry(chunk, &entry))
	{
		if (at >= q->from && at < q->until)
		{
			if (entry.message != NULL && bstream_read_note(entry.message, entry.len, &note))
				take_note(q, &note);
			else
				f->others = true;
			f->read_any = true;
		}
		at += entry.records;
	}
	if (at > f->end)
		f->end = at;
	return q->foreign || q->fence_found || q->overtaken || at >= q->until;
}

/*
 * The last chunk has no batch of ours, but fences, or what others wrote: go back, in
 * steps that grow.  False: p->failure
 */
static bool
search_back(BSink *p, BStream *s, uint64_t until)
{
	uint64_t	end = until;
	uint64_t	step = FIRST_STEP;

	while (until > 0 && !s->found.has_batch)
	{
		Search		q = {.p = p, .found = &s->found, .until = until};

		if (end - until > MAX_BACK)
			return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "55000",
								  "the last %d messages of stream \"%.100s\" are not of relay \"%s\": exactly once needs a stream of its own",
								  MAX_BACK, s->name, p->config.relay);
		q.from = until > step ? until - step : 0;
		if (!bstream_read_from(p, s, BSTREAM_FROM_OFFSET, q.from, visit, &q) || q.foreign)
			return false;
		/* the stream begins later */
		if (q.first > q.from)
			break;
		until = q.from;
		step *= 4;
	}
	return true;
}

bool
bstream_look(BSink *p, BStream *s)
{
	Search		q = {.p = p, .found = &s->found, .until = UINT64_MAX};

	if (!bstream_connect(p, s))
		return false;
	memset(&s->found, 0, sizeof(s->found));
	if (!s->exactly_once)
		return true;
	if (!bstream_read_last(p, s, visit, &q, &s->highest) || q.foreign)
		return false;
	if (q.begun && !s->found.has_batch && !search_back(p, s, q.first))
		return false;
	if (s->found.id > s->highest)
		s->highest = s->found.id;
	if (s->found.others && !s->told_others)
	{
		snprintf(s->news, sizeof(s->news),
				 "rabbitmq sink: stream \"%.100s\" has messages that are not of relay \"%.63s\"; exactly once needs a stream of its own",
				 s->name, p->config.relay);
		s->told_others = true;
	}
	return true;
}

/* Keep what was found as what is known. */
static void
keep(BStream *s)
{
	const BStreamNote *n = &s->found.last;

	s->has_position = s->found.has_batch;
	memcpy(s->incarnation, n->incarnation, sizeof(s->incarnation));
	s->at = n->at;
}

/* Is what was found what is known? */
static bool
is_as_known(const BStream *s)
{
	const BStreamNote *n = &s->found.last;

	if (!s->found.has_batch || !s->has_position)
		return s->found.has_batch == s->has_position;
	return n->at.row_id == s->at.row_id && n->at.k == s->at.k && strcmp(n->incarnation, s->incarnation) == 0;
}

/* Write a fence, and read up to it.  *ours: the fence is there.  False: p->failure */
static bool
write_fence(BSink *p, BStream *s, bool *ours)
{
	BStreamFound between = {.end = 0};
	Search		q = {.p = p, .found = &between, .from = s->found.end, .until = UINT64_MAX, .owner = s->owner};
	uint64_t	sequence;

	*ours = false;
	s->id = q.id = (s->highest / ID_STEP + 1) * ID_STEP;
	bstream_write_entry(p, s, NULL, s->id);
	if (!bstream_publish(p, s, s->id) || !bstream_await_confirms(p, s) || !bstream_ask_sequence(p, s, &sequence))
		return false;
	/* another one was faster, or the server has lost what it confirmed */
	if (sequence != s->id)
		return true;

	/*
	 * a twin may have used the same id: then its fence is there, and ours was
	 * dropped
	 */
	if (!bstream_read_from(p, s, s->found.end > 0 ? BSTREAM_FROM_OFFSET : BSTREAM_FROM_FIRST, s->found.end, visit, &q) || q.foreign)
		return false;
	*ours = q.fence_found;
	if (between.has_batch)
	{
		s->found.has_batch = true;
		s->found.last = between.last;
	}
	return true;
}

bool
bstream_take_over(BSink *p, BStream *s, bool again)
{
	bool		ours = false;

	for (int races = 0; races < MAX_RACES && !ours; races++)
	{
		if (!bstream_look(p, s))
			return false;
		if (!s->exactly_once)
			return true;
		/* nothing is written where the position is not ours */
		if (again && !is_as_known(s))
			break;
		if (!write_fence(p, s, &ours))
			return false;
	}
	if (again && !is_as_known(s))
		return idem_sink_fail(&p->failure, IDEM_PROTO_OUTAGE, "55000",
							  "the last batch in stream \"%.100s\" is not the one that was stored last: another instance, or the stream was made anew",
							  s->name);
	if (!ours)
		return idem_sink_fail(&p->failure, IDEM_PROTO_OUTAGE, "55000", "other instances take over relay \"%s\" all the time", p->config.relay);
	keep(s);
	return true;
}
