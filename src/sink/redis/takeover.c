/*-------------------------------------------------------------------------
 *
 * takeover.c
 *		Connects to the server that takes writes, takes the relay's position over,
 *		and makes sure that writes are kept.
 *
 * The position is a hash: epoch, owner (the incarnation of the program that took over
 * last), relay, and the incarnation, row_id and k of the last batch.
 *
 * INVARIANT
 *		Each take-over raises the epoch, also that of a program which lost its
 *		connection: requests that are still on their way then change nothing.  It
 *		is raised only from the value that was just seen, so a take-over of a program
 *		that was killed, and that comes late, does not fence its successor.
 *		A position of another relay is left alone.
 *
 * A crash between look and take-over leaves nothing; behind it, a greater epoch.
 *
 * MEMORY
 *		Nothing is kept but p->found.  LOCKING: none; scripts are atomic.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/redis/takeover.c
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sink/redis/script.h"
#include "sink/redis/sink.h"

#define MAX_MOVES	5			/* redirections of a cluster in a row */
#define MAX_RACES	10			/* take-overs that another one came before */

/* What became of a server. */
typedef enum Trial
{
	TRIAL_TAKEN,
	TRIAL_NEXT,					/* another server may do: p->error */
	TRIAL_MOVED,				/* the cluster names another one: p->error */
	TRIAL_FAILED				/* p->failure */
} Trial;

/* Judge an answer that is an error, or none. */
static Trial
judge(RSink *p, RSinkAnswer answer, const char *doing)
{
	if (answer == RSINK_LOST || rsink_blame(p->error) == RSINK_BLAME_PLACE)
		return TRIAL_NEXT;
	if (rsink_blame(p->error) == RSINK_BLAME_MOVED)
		return TRIAL_MOVED;
	rsink_fail_for_error(p, doing, p->error);
	return TRIAL_FAILED;
}

/* The value of a member of HELLO's answer; "" if there is none. */
static const char *
hello_member(const RSink *p, const char *name)
{
	for (size_t i = 0; p->reply->type == REDIS_REPLY_ARRAY && i + 1 < p->reply->elements; i += 2)
		if (strcmp(rsink_element(p, i), name) == 0)
			return rsink_element(p, i + 1);
	return "";
}

/* Log in, look which server it is, and choose the database. */
static Trial
log_in(RSink *p)
{
	const RSinkConfig *c = &p->config;
	const char *hello[] = {"HELLO", "2", "AUTH", c->user ? c->user : "default", c->password};
	char		number[16];
	const char *database[] = {"SELECT", number};
	RSinkAnswer answer = rsink_ask(p, hello, c->password != NULL ? 5 : 2, NULL, c->timeout);
	char		version[32];

	if (answer != RSINK_ANSWERED)
		return judge(p, answer, "log in to the server");
	rsink_copy_error(version, sizeof(version), hello_member(p, "version"));
	if ((int) strtol(version, NULL, 10) < RSINK_LEAST_SERVER)
	{
		idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "0A000",
					   "server has version \"%s\": the redis sink needs Redis %d or later, or Valkey", version,
					   RSINK_LEAST_SERVER);
		return TRIAL_FAILED;
	}
	if (c->database == 0)
		return TRIAL_TAKEN;
	snprintf(number, sizeof(number), "%ld", c->database);
	answer = rsink_ask(p, database, 2, NULL, c->timeout);
	return answer == RSINK_ANSWERED ? TRIAL_TAKEN : judge(p, answer, "choose the database");
}

/* Read what the look found.  False: p->failure. */
static bool
read_found(RSink *p, int64_t *epoch, bool *ours, char *epoch_text, size_t cap)
{
	const char *relay = rsink_element(p, 4);
	char		clean[80];

	if (strcmp(rsink_element(p, 0), "wrong") == 0)
		return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "42809", "position key is not a hash");
	if (strcmp(rsink_element(p, 0), "ok") != 0)
		return idem_sink_fail(&p->failure, IDEM_PROTO_OUTAGE, "08P01", "server gave an answer that makes no sense");
	snprintf(p->sha, sizeof(p->sha), "%s", rsink_element(p, 1));
	if (relay[0] != '\0' && strcmp(relay, p->config.relay) != 0)
	{
		rsink_copy_error(clean, sizeof(clean), relay);
		return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "55000",
							  "position key is that of relay \"%s\"; set the option \"position_key\"", clean);
	}
	snprintf(epoch_text, cap, "%s", rsink_element(p, 2));
	*epoch = strtoll(epoch_text, NULL, 10);
	*ours = strcmp(rsink_element(p, 3), p->config.incarnation) == 0;
	snprintf(p->found.incarnation, sizeof(p->found.incarnation), "%s", rsink_element(p, 5));
	p->found.at.row_id = strtoll(rsink_element(p, 6), NULL, 10);
	p->found.at.k = strtoll(rsink_element(p, 7), NULL, 10);
	return true;
}

/* Look at the position. */
static RSinkAnswer
look(RSink *p)
{
	static const char *const head[] = {"EVAL", RSINK_LOOK_SCRIPT};
	RSinkRequest r = {{NULL, 0, 0}, 0};
	RSinkAnswer answer;

	rsink_add_number(&r, p->config.exactly_once ? 1 : 0);
	if (p->config.exactly_once)
		rsink_add_text(&r, p->config.position_key);
	rsink_add_text(&r, RSINK_BATCH_SCRIPT);
	answer = rsink_ask(p, head, 2, &r, p->config.timeout);
	free(r.text.data);
	return answer;
}

/* Raise the epoch from what was seen. */
static RSinkAnswer
raise_epoch(RSink *p, const char *seen, int64_t epoch)
{
	static const char *const head[] = {"EVAL", RSINK_TAKE_SCRIPT};
	RSinkRequest r = {{NULL, 0, 0}, 0};
	RSinkAnswer answer;

	rsink_add_number(&r, 1);
	rsink_add_text(&r, p->config.position_key);
	rsink_add_text(&r, seen);
	rsink_add_number(&r, epoch);
	rsink_add_text(&r, p->config.incarnation);
	rsink_add_text(&r, p->config.relay);
	answer = rsink_ask(p, head, 2, &r, p->config.timeout);
	free(r.text.data);
	return answer;
}

/* Another program has taken the position over since, or it was set back. */
static Trial
not_ours(RSink *p, int64_t epoch)
{
	if (epoch > p->epoch)
		idem_sink_fail(&p->failure, IDEM_PROTO_FENCED, "55000",
					   "another instance has taken over relay \"%s\"", p->config.relay);
	else
		idem_sink_fail(&p->failure, IDEM_PROTO_OUTAGE, "55000",
					   "position of relay \"%s\" was set back, or is gone", p->config.relay);
	return TRIAL_FAILED;
}

/* Take the position over on this connection. */
static Trial
take(RSink *p, bool again)
{
	for (int races = 0; races < MAX_RACES; races++)
	{
		RSinkAnswer answer = look(p);
		char		seen[32];
		int64_t		epoch = 0;
		bool		ours = false;

		if (answer != RSINK_ANSWERED)
			return judge(p, answer, "read the relay's position");
		if (!p->config.exactly_once)
		{
			snprintf(p->sha, sizeof(p->sha), "%s", rsink_element(p, 1));
			return TRIAL_TAKEN;
		}
		if (strcmp(rsink_element(p, 0), "denied") == 0)
		{
			snprintf(p->error, sizeof(p->error), "%s", rsink_element(p, 1));
			return judge(p, RSINK_REFUSED, "write to the server");
		}
		if (!read_found(p, &epoch, &ours, seen, sizeof(seen)))
			return TRIAL_FAILED;
		if (idem_sink_looks(&p->sink))
			return TRIAL_TAKEN;
		if (again && !ours)
			return not_ours(p, epoch);
		answer = raise_epoch(p, seen, epoch + 1);
		if (answer != RSINK_ANSWERED)
			return judge(p, answer, "take the relay's position over");
		if (strcmp(rsink_element(p, 0), "ok") == 0)
		{
			p->epoch = epoch + 1;
			return TRIAL_TAKEN;
		}
	}
	idem_sink_fail(&p->failure, IDEM_PROTO_OUTAGE, "55000",
				   "other instances take over relay \"%s\" all the time", p->config.relay);
	return TRIAL_FAILED;
}

/* Try a server, and those that the cluster names instead. */
static Trial
try_server(RSink *p, IdemServer address, bool again)
{
	Trial		trial = TRIAL_NEXT;

	for (int moves = 0; moves <= MAX_MOVES; moves++)
	{
		if (!rsink_connect(p, &address))
			return TRIAL_NEXT;
		trial = log_in(p);
		if (trial == TRIAL_TAKEN)
			trial = take(p, again);
		if (trial != TRIAL_MOVED)
			return trial;
		if (!rsink_moved_to(p, p->error, &address))
			break;
	}
	return TRIAL_NEXT;
}

bool
rsink_take_over(RSink *p, bool again)
{
	IdemServer	moved;
	char		text[512];

	p->aof = p->config.wait_aof != RSINK_AOF_OFF;
	/* a batch was told where its keys are now */
	if (again && rsink_moved_to(p, p->error, &moved))
		switch (try_server(p, moved, again))
		{
			case TRIAL_TAKEN:
				return rsink_confirm(p);
			case TRIAL_FAILED:
				return false;
			default:
				break;
		}
	for (int i = 0; i < p->config.n_servers; i++)
		switch (try_server(p, p->config.servers[i], again))
		{
			case TRIAL_TAKEN:
				return rsink_confirm(p);
			case TRIAL_FAILED:
				return false;
			default:
				break;
		}
	rsink_disconnect(p);
	rsink_copy_error(text, sizeof(text), p->error);
	return idem_sink_fail(&p->failure, IDEM_PROTO_OUTAGE, "08006", "no server takes the relay's events; the last one: %s",
						  text);
}

bool
rsink_has_to_confirm(const RSink *p)
{
	return p->aof || p->config.wait_replicas > 0;
}

/* The server cannot say that its file is synced.  False: p->failure. */
static bool
without_aof(RSink *p)
{
	char		text[512];

	rsink_copy_error(text, sizeof(text), p->error);
	if (p->config.wait_aof == RSINK_AOF_ON)
		return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "0A000",
							  "option \"wait_aof\" is on, and the server refuses WAITAOF: %s", text);
	p->aof = false;
	if (!p->told_unsynced)
		idem_sink_log(&p->sink, IDEM_PROTO_LOG_INFO,
					  "redis sink: events count as delivered without WAITAOF, which the server refuses: %s", text);
	p->told_unsynced = true;
	return true;
}

bool
rsink_confirm(RSink *p)
{
	char		replicas[16];
	char		timeout[16];
	const char *wait_aof[] = {"WAITAOF", "1", replicas, timeout};
	const char *wait_replicas[] = {"WAIT", replicas, timeout};
	RSinkAnswer answer;
	long long	synced = 1;
	long long	count = 0;

	snprintf(replicas, sizeof(replicas), "%d", p->config.wait_replicas);
	snprintf(timeout, sizeof(timeout), "%d", p->config.timeout - p->config.timeout / 4);
	if (idem_sink_looks(&p->sink))
		return true;
	if (p->aof)
	{
		answer = rsink_ask(p, wait_aof, 4, NULL, p->config.timeout);
		if (answer == RSINK_REFUSED && (rsink_is_unknown_command(p->error) || strstr(p->error, "appendonly is disabled") ||
										strncmp(p->error, "NOPERM", 6) == 0))
			return without_aof(p) && rsink_confirm(p);
		if (answer == RSINK_ANSWERED && p->reply->type == REDIS_REPLY_ARRAY && p->reply->elements == 2)
		{
			synced = p->reply->element[0]->integer;
			count = p->reply->element[1]->integer;
		}
	}
	else if (p->config.wait_replicas > 0)
	{
		answer = rsink_ask(p, wait_replicas, 3, NULL, p->config.timeout);
		if (answer == RSINK_ANSWERED)
			count = p->reply->integer;
	}
	else
		return true;
	if (answer != RSINK_ANSWERED)
		return rsink_fail_for_error(p, "wait until the server has kept the batch", p->error);
	if (synced < 1 || count < p->config.wait_replicas)
		return idem_sink_fail(&p->failure, IDEM_PROTO_OUTAGE, "57P03",
							  "server has not kept the batch in time: synced %lld, on %lld of %d replicas", synced, count,
							  p->config.wait_replicas);
	return true;
}

bool
rsink_is_at(const RSinkPosition *position, const char *incarnation, IdemProtoPosition at)
{
	return strcmp(position->incarnation, incarnation) == 0 && position->at.row_id == at.row_id && position->at.k == at.k;
}
