/*-------------------------------------------------------------------------
 *
 * talk.c
 *		The frames that a sink program sends, and its options.
 *
 * INVARIANT
 *		All text that is sent can be logged by the worker: it is one line of
 *		valid UTF-8 of at most IDEM_PROTO_MAX_MESSAGE bytes.
 *
 * MEMORY
 *		The values of options are copies that belong to the caller.  The HELLO
 *		lives as long as the program.  LOCKING: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/common/talk.c
 *
 *-------------------------------------------------------------------------
 */
#include "sink/common/program.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sink/common/stream.h"

/*
 * Copy text to buf as one line of valid UTF-8.  buf holds
 * IDEM_PROTO_MAX_MESSAGE + 1 bytes; text may be NULL.
 */
static IdemProtoStr
clean(char *buf, const char *text)
{
	IdemProtoStr s = {text, 0};

	if (text != NULL)
		s.len = (uint32_t) strnlen(text, IDEM_PROTO_MAX_MESSAGE);
	s.len = (uint32_t) idem_proto_clean_text(buf, IDEM_PROTO_MAX_MESSAGE + 1, s);
	s.data = buf;
	return s;
}

/* Copy a SQLSTATE to dst; "00000" for NULL and for text that is no SQLSTATE. */
static void
put_sqlstate(char *dst, const char *sqlstate)
{
	const char *valid = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ";

	if (sqlstate == NULL || strlen(sqlstate) != 5 || strspn(sqlstate, valid) != 5)
		sqlstate = "00000";
	memcpy(dst, sqlstate, 6);
}

bool
idem_sink_looks(const IdemSink *s)
{
	return s->stream.looks;
}

void
idem_sink_look_at(IdemSink *s, const char *what, const char *remedy)
{
	s->what = what;
	s->remedy = remedy;
}

void
idem_sink_found(IdemSink *s, bool ok, const char *problem)
{
	IdemProtoFrame frame = {.type = IDEM_PROTO_FOUND};
	char		what[IDEM_PROTO_MAX_MESSAGE + 1];
	char		text[IDEM_PROTO_MAX_MESSAGE + 1];
	char		remedy[IDEM_PROTO_MAX_MESSAGE + 1];

	frame.u.found.ok = ok;
	frame.u.found.what = clean(what, s->what);
	frame.u.found.problem = clean(text, problem);
	frame.u.found.remedy = clean(remedy, ok ? NULL : s->remedy);
	idem_sink_send(s, &frame);
	s->what = NULL;
}

void
idem_sink_failed(IdemSink *s, IdemProtoOutcome outcome, const char *sqlstate,
				 const char *fmt,...)
{
	IdemProtoFrame frame = {.type = IDEM_PROTO_FAILED};
	char		text[IDEM_PROTO_MAX_MESSAGE + 1];
	char		buf[IDEM_PROTO_MAX_MESSAGE + 1];
	va_list		ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	if (s->what != NULL)
	{
		idem_sink_found(s, false, text);
		idem_sink_finish(s);
	}
	frame.u.failed.outcome = outcome;
	put_sqlstate(frame.u.failed.sqlstate, sqlstate);
	frame.u.failed.message = clean(buf, text);
	idem_sink_send(s, &frame);
	idem_sink_finish(s);
}

void
idem_sink_log(IdemSink *s, IdemProtoLogLevel level, const char *fmt,...)
{
	IdemProtoFrame frame = {.type = IDEM_PROTO_LOG};
	char		text[IDEM_PROTO_MAX_MESSAGE + 1];
	char		buf[IDEM_PROTO_MAX_MESSAGE + 1];
	va_list		ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	frame.u.log.level = level;
	frame.u.log.message = clean(buf, text);
	idem_sink_send(s, &frame);
}

void
idem_sink_result_of(IdemSink *s, uint64_t batch, uint32_t first, uint32_t last,
					IdemProtoOutcome outcome, const char *sqlstate, uint32_t retry_after,
					const char *message, const char *destination)
{
	IdemProtoFrame frame = {.type = IDEM_PROTO_RESULT};
	char		buf[IDEM_PROTO_MAX_MESSAGE + 1];
	char		where[IDEM_PROTO_MAX_MESSAGE + 1];

	frame.u.result.batch = batch;
	frame.u.result.first = first;
	frame.u.result.last = last;
	frame.u.result.outcome = outcome;
	put_sqlstate(frame.u.result.sqlstate, sqlstate);
	frame.u.result.retry_after = retry_after;
	frame.u.result.destination = clean(where, destination);
	frame.u.result.message = clean(buf, message);
	idem_sink_send(s, &frame);
}

void
idem_sink_result_later(IdemSink *s, uint64_t batch, uint32_t first, uint32_t last,
					   IdemProtoOutcome outcome, const char *sqlstate, uint32_t retry_after,
					   const char *message)
{
	idem_sink_result_of(s, batch, first, last, outcome, sqlstate, retry_after, message, NULL);
}

void
idem_sink_result(IdemSink *s, uint64_t batch, uint32_t first, uint32_t last,
				 IdemProtoOutcome outcome, const char *sqlstate, const char *message)
{
	idem_sink_result_later(s, batch, first, last, outcome, sqlstate, 0, message);
}

void
idem_sink_verdict(IdemSink *s, uint64_t batch, IdemProtoVerdictKind kind,
				  const char *sqlstate, const char *message)
{
	IdemProtoFrame frame = {.type = IDEM_PROTO_VERDICT};
	char		buf[IDEM_PROTO_MAX_MESSAGE + 1];

	frame.u.verdict.batch = batch;
	frame.u.verdict.kind = kind;
	put_sqlstate(frame.u.verdict.sqlstate, sqlstate);
	frame.u.verdict.message = clean(buf, message);
	idem_sink_send(s, &frame);
}

/*
 * List the names of a table's options, for the message about an unknown
 * option.
 */
static void
list_options(const IdemSinkOption *table, char *dst, size_t cap)
{
	size_t		n = 0;

	dst[0] = '\0';
	for (; table->name != NULL && n < cap; table++)
		n += (size_t) snprintf(dst + n, cap - n, "%s%s", n > 0 ? ", " : "", table->name);
}

int
idem_sink_open_file(IdemSink *s, const char *option, const char *path)
{
	struct stat st;
	int			fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);

	if (fd < 0)
		idem_sink_failed(s, IDEM_PROTO_REJECTED, "58030",
						 "could not open %s \"%s\": %s", option, path, strerror(errno));
	if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))
		idem_sink_failed(s, IDEM_PROTO_REJECTED, "58030",
						 "%s \"%s\" is not a regular file", option, path);
	return fd;
}

/*
 * End the program if the option is unknown or has a wrong value.  A file that
 * is not there is a wrong value: a library would say so when it connects, which
 * looks like an outage, or would go on without the file.
 */
static void
check_option(IdemSink *s, const IdemSinkOption *table, IdemProtoStr key, IdemProtoStr value)
{
	char	   *name = idem_sink_strdup(key.data, key.len);
	char	   *text = idem_sink_strdup(value.data, value.len);
	const IdemSinkOption *option = idem_sink_option_find(table, name);
	char		problem[512];

	if (option == NULL)
	{
		list_options(table, problem, sizeof(problem));
		idem_sink_failed(s, IDEM_PROTO_REJECTED, "HV00D",
						 "option \"%s\" is not known to the %s sink; it takes: %s",
						 name, s->name, problem);
	}
	if (!idem_sink_option_check(option, text, problem, sizeof(problem)))
		idem_sink_failed(s, IDEM_PROTO_REJECTED, "HV024", "option \"%s\" %s",
						 name, problem);
	if (option->type == IDEM_OPTION_FILE && (option->choices == NULL || strcmp(option->choices, text) != 0))
		close(idem_sink_open_file(s, name, text));
	free(name);
	free(text);
}

/* Take the HELLO or LOOK out of the input buffer into memory that stays. */
static IdemProtoHello
keep_hello(IdemSink *s, const IdemProtoHello *hello)
{
	size_t		size = (size_t) (hello->options_end - (s->in + s->in_start));
	size_t		used;
	IdemProtoFrame frame;

	s->hello = idem_sink_alloc(size);
	memcpy(s->hello, s->in + s->in_start, size);
	if (idem_proto_next(IDEM_PROTO_FROM_WORKER, s->hello, size, &frame, &used) != IDEM_PROTO_OK)
		idem_sink_broken(s, "lost the HELLO");
	s->in_start += size;
	return frame.u.hello;
}

IdemProtoHello
idem_sink_hello(IdemSink *s, const IdemSinkOption *table)
{
	IdemProtoFrame frame;
	IdemProtoStatus status;
	size_t		size;
	IdemProtoHello hello;
	IdemProtoHello walk;
	IdemProtoStr key;
	IdemProtoStr value;

	while ((status = idem_proto_next(IDEM_PROTO_FROM_WORKER, s->in + s->in_start,
									 s->in_end - s->in_start, &frame, &size)) == IDEM_PROTO_NEED_MORE)
		idem_sink_wait(s, -1, 0, -1, true);
	if (status == IDEM_PROTO_ERR_VERSION)
		idem_sink_failed(s, IDEM_PROTO_REJECTED, "0A000",
						 "worker speaks version %d of the sink protocol, program \"idempotency-sink-%s\" version %d; install programs and library of one release",
						 frame.u.hello.version, s->name, IDEM_PROTO_VERSION);
	hello = keep_hello(s, &frame.u.hello);
	if (idem_sink_looks(s))
		idem_sink_look_at(s, "options", "Set them right by ALTER SERVER, those of the login by ALTER USER MAPPING.");
	walk = hello;
	while (idem_proto_next_option(&walk, &key, &value))
		check_option(s, table, key, value);
	return hello;
}

char *
idem_sink_option(const IdemProtoHello *hello, const char *name, const char *dflt)
{
	IdemProtoHello walk = *hello;
	IdemProtoStr key;
	IdemProtoStr value;

	while (idem_proto_next_option(&walk, &key, &value))
		if (key.len == strlen(name) && memcmp(key.data, name, key.len) == 0)
			return idem_sink_strdup(value.data, value.len);
	return dflt ? idem_sink_strdup(dflt, strlen(dflt)) : NULL;
}

long
idem_sink_option_int(const IdemProtoHello *hello, const char *name, long dflt)
{
	char	   *text = idem_sink_option(hello, name, NULL);
	long		value = text ? strtol(text, NULL, 10) : dflt;

	free(text);
	return value;
}

bool
idem_sink_option_is(const IdemProtoHello *hello, const char *name, const char *value)
{
	char	   *text = idem_sink_option(hello, name, NULL);
	bool		is = text != NULL && strcmp(text, value) == 0;

	free(text);
	return is;
}

bool
idem_sink_option_on(const IdemProtoHello *hello, const char *name)
{
	char	   *text = idem_sink_option(hello, name, "off");
	bool		on = idem_sink_option_bool(text);

	free(text);
	return on;
}

void
idem_sink_ready(IdemSink *s, IdemProtoReady *ready)
{
	IdemProtoFrame frame = {.type = IDEM_PROTO_READY};

	ready->version = IDEM_PROTO_VERSION;
	frame.u.ready = *ready;
	IDEM_SINK_FAULT_POINT(s, "program-ready");
	idem_sink_send(s, &frame);
	s->credit_messages = ready->credit_messages;
	s->credit_bytes = ready->credit_bytes;
	s->stream.credit_messages = ready->credit_messages;
	s->stream.credit_bytes = ready->credit_bytes;
}

void
idem_sink_grant(IdemSink *s, uint32_t messages, uint64_t bytes, bool now)
{
	IdemProtoFrame frame = {.type = IDEM_PROTO_CREDIT};

	s->owed_messages += messages;
	s->owed_bytes += bytes;
	if (s->owed_messages == 0 && s->owed_bytes == 0)
		return;
	if (!now && s->owed_messages < s->credit_messages / 4 &&
		s->owed_bytes < s->credit_bytes / 4)
		return;
	while (s->owed_messages > 0 || s->owed_bytes > 0)
	{
		frame.u.credit.messages = s->owed_messages > UINT32_MAX ? UINT32_MAX : (uint32_t) s->owed_messages;
		frame.u.credit.bytes = s->owed_bytes > UINT32_MAX ? UINT32_MAX : (uint32_t) s->owed_bytes;
		idem_sink_send(s, &frame);
		s->owed_messages -= frame.u.credit.messages;
		s->owed_bytes -= frame.u.credit.bytes;
		s->stream.credit_messages += frame.u.credit.messages;
		s->stream.credit_bytes += frame.u.credit.bytes;
	}
}

bool
idem_sink_fail(IdemSinkFailure *failure, IdemProtoOutcome outcome, const char *sqlstate,
			   const char *fmt,...)
{
	va_list		ap;

	if (failure->outcome != 0)
		return false;
	failure->outcome = outcome;
	snprintf(failure->sqlstate, sizeof(failure->sqlstate), "%s", sqlstate);
	va_start(ap, fmt);
	vsnprintf(failure->message, sizeof(failure->message), fmt, ap);
	va_end(ap);
	return false;
}
