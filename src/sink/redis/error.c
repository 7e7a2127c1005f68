/*-------------------------------------------------------------------------
 *
 * error.c
 *		Who is to blame for an error of the server.
 *
 * Redis has no codes: an error begins with a word in capitals.  Errors of commands
 * that a script calls begin with the same words.
 *
 * INVARIANT
 *		A text of the server goes into a message as one line, without secrets.
 *
 * MEMORY and LOCKING: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/redis/error.c
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <string.h>

#include "sink/common/hide.h"
#include "sink/redis/sink.h"

/* The first line whose text the error begins with counts. */
static const struct
{
	const char *begins;
	RSinkBlame	blame;
	const char *sqlstate;
	const char *hint;			/* or NULL */
}			known[] = {
	{"NOAUTH", RSINK_BLAME_CONFIG, "28P01", "set \"user\" and \"password\" in the user mapping"},
	{"WRONGPASS", RSINK_BLAME_CONFIG, "28P01", NULL},
	{"NOPERM", RSINK_BLAME_CONFIG, "42501", "sink_setup() prints the rights"},
	{"ERR The user executing the script", RSINK_BLAME_CONFIG, "42501", "sink_setup() prints the rights"},
	{"ERR ACL failure in script", RSINK_BLAME_CONFIG, "42501", "sink_setup() prints the rights"},
	{"WRONGTYPE", RSINK_BLAME_CONFIG, "42809", NULL},
	{"CROSSSLOT", RSINK_BLAME_CONFIG, "0A000", "in a cluster the options \"stream\" and \"position_key\" need {relay}, which keeps the keys in one slot"},
	{"NOPROTO", RSINK_BLAME_CONFIG, "0A000", NULL},
	{"MOVED", RSINK_BLAME_MOVED, "08006", NULL},
	{"READONLY", RSINK_BLAME_PLACE, "25006", "the server is a replica"},
	{"MASTERDOWN", RSINK_BLAME_PLACE, "57P03", NULL},
	{"LOADING", RSINK_BLAME_PLACE, "57P03", NULL},
	{"ERR max number of clients", RSINK_BLAME_PLACE, "53300", NULL},
	{"CLUSTERDOWN", RSINK_BLAME_OUTAGE, "57P03", NULL},
	{"TRYAGAIN", RSINK_BLAME_OUTAGE, "57P03", "the slot is being moved"},
	{"ASK", RSINK_BLAME_OUTAGE, "57P03", "the slot is being moved"},
	{"OOM", RSINK_BLAME_OUTAGE, "53200", "raise maxmemory, or trim streams"},
	{"MISCONF", RSINK_BLAME_OUTAGE, "53100", NULL},
	{"NOREPLICAS", RSINK_BLAME_OUTAGE, "57P03", NULL},
	{"BUSY", RSINK_BLAME_OUTAGE, "55006", NULL},
	{"UNKILLABLE", RSINK_BLAME_OUTAGE, "55006", NULL},
	{"NOSCRIPT", RSINK_BLAME_OUTAGE, "55000", NULL},
	{"ERR unknown command", RSINK_BLAME_CONFIG, "0A000", NULL},
	{"ERR DB index", RSINK_BLAME_CONFIG, "HV024", "see the option \"database\""},
	{"ERR SELECT is not allowed", RSINK_BLAME_CONFIG, "HV024", "see the option \"database\""},
	{"ERR Protocol error: invalid bulk length", RSINK_BLAME_CONFIG, "54000", "lower \"max_event_bytes\", or raise the server's proto-max-bulk-len"},
	{"ERR AUTH", RSINK_BLAME_CONFIG, "28P01", NULL},
	{"ERR script", RSINK_BLAME_CONFIG, "0A000", NULL}
};

#define N_KNOWN	(sizeof(known) / sizeof(known[0]))

/* The line of the table for an error; N_KNOWN: there is none. */
static size_t
find(const char *error)
{
	size_t		i = 0;

	while (i < N_KNOWN && strncmp(error, known[i].begins, strlen(known[i].begins)) != 0)
		i++;
	return i;
}

RSinkBlame
rsink_blame(const char *error)
{
	size_t		i = find(error);

	return i < N_KNOWN ? known[i].blame : RSINK_BLAME_UNKNOWN;
}

bool
rsink_fail_for_error(RSink *p, const char *doing, const char *error)
{
	size_t		i = find(error);
	const char *hint = i < N_KNOWN ? known[i].hint : NULL;
	char		text[512];

	rsink_copy_error(text, sizeof(text), error);
	return idem_sink_fail(&p->failure,
						  i < N_KNOWN && known[i].blame == RSINK_BLAME_CONFIG ? IDEM_PROTO_REJECTED : IDEM_PROTO_OUTAGE,
						  i < N_KNOWN ? known[i].sqlstate : "58000", "could not %s: %s%s%s%s", doing, text,
						  hint ? " (" : "", hint ? hint : "", hint ? ")" : "");
}

void
rsink_copy_error(char *dst, size_t cap, const char *error)
{
	/* of a command that it does not know, the server quotes the arguments */
	const char *quotes = strstr(error, ", with args beginning");
	const char *shown = idem_sink_without_secrets(error);
	IdemProtoStr text = {shown, (uint32_t) strlen(shown)};

	if (quotes != NULL && shown == error)
		text.len = (uint32_t) (quotes - error);
	idem_proto_clean_text(dst, cap, text);
}

bool
rsink_moved_to(const RSink *p, const char *error, IdemServer *to)
{
	const char *host;

	if (strncmp(error, "MOVED ", 6) != 0 || (host = strchr(error + 6, ' ')) == NULL)
		return false;
	host++;
	/* a node that does not know its own address means the one that was asked */
	if (*host == ':')
	{
		char		text[300];

		snprintf(text, sizeof(text), "[%s]%s", p->peer.host, host);
		return idem_server_read(to, text, strcspn(text, " \r\n"), RSINK_PORT);
	}
	return idem_server_read(to, host, strcspn(host, " \r\n"), RSINK_PORT);
}

bool
rsink_is_unknown_command(const char *error)
{
	return strncmp(error, "ERR unknown command", 19) == 0;
}
