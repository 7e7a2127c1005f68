/*-------------------------------------------------------------------------
 *
 * attempt.c
 *		Which event was being handled when the server went down.
 *
 * A handler runs in the server and can take it down: by a segmentation fault, a
 * PANIC, or memory that the kernel wants back.  While nothing goes wrong,
 * nothing is recorded.  A worker that starts after the server did not end
 * cleanly tries the events that may have been in flight (a batch of the outbox,
 * and the parked events that are due) one at a time.  Before each attempt a row
 * of relay_attempts names the event, durably; the transaction of the outcome
 * clears the name.  A name that is still there at the next start is that of the
 * event that was being handled, alone, when the process ended.  This crash
 * counts against the event: it is parked, is from then on always tried alone
 * and on record, and is dead after its second crash (IDEM_MAX_CRASHES).
 *
 * The server also goes down when another process crashes.  Then the signal
 * handler by which this process is told to quit notes in a file that the
 * process was alive.  A process that ends by itself writes the same note.  An
 * attempt with a note does not count, however often that happens.  The file is
 * written in the process' last moment and not flushed: if it is lost with the
 * machine, the attempt counts.
 *
 * The record is one row per relay in a table of its own, updated in place on
 * the same page.  In the relay's own row it would wait for an operator's open
 * transaction; in relay_parked it would cost a copy of the event.  The table is
 * not dumped: it means something to the next start only.
 *
 * Events that made a commit fail are noted here, too, in memory only.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/function/attempt.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include "catalog/pg_type.h"
#include "common/file_perm.h"
#include "executor/spi.h"
#include "libpq/pqsignal.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/ipc.h"

#include "relay/function/function.h"
#include "relay/worker_slots.h"
#include "shared/error.h"
#include "shared/spi.h"

/* Read by a signal handler.  The number is set before the flag. */
static char note_path[MAXPGPATH];
static volatile int64 note_number = 0;
static volatile sig_atomic_t note_wanted = false;
static bool note_exists = false;

/*
 * Write the note; async-signal-safe.  Without the note the attempt counts as a
 * crash.
 */
static void
write_note(void)
{
	int64		number = note_number;
	int			fd = open(note_path, O_WRONLY | O_CREAT | O_TRUNC, pg_file_create_mode);

	if (fd < 0)
		return;
	if (write(fd, &number, sizeof(number)) != sizeof(number))
		(void) unlink(note_path);
	(void) close(fd);
}

/* SIGQUIT: another process crashed, or the server is stopped at once. */
static void
on_quit(SIGNAL_ARGS)
{
	if (note_wanted)
		write_note();
	_exit(2);
}

/*
 * At the process' end: write the note, unless a handler ended the process by
 * exit() with a status of its own.  That counts as a crash.
 */
static void
on_exit_note(int code, Datum arg)
{
	if (note_wanted && (code == 0 || code == 1))
		write_note();
}

/*
 * Does the note say that the process that made this attempt was alive at its
 * end?
 */
static bool
note_says(int64 number)
{
	int64		noted;
	int			fd = open(note_path, O_RDONLY | PG_BINARY, 0);
	ssize_t		n;

	if (fd < 0)
		return false;
	note_exists = true;
	n = read(fd, &noted, sizeof(noted));
	(void) close(fd);
	return n == sizeof(noted) && noted == number;
}

void
idem_attempts_load(IdemAttempts *a, const IdemRelayConfig *config)
{
	Oid			types[1] = {INT4OID};
	Datum		values[1] = {Int32GetDatum(config->relay_id)};

	if (a->loaded)
		return;

	/*
	 * Once per process: choose the file, and install the two functions that
	 * write the note.
	 */
	if (note_path[0] == '\0')
	{
		snprintf(note_path, sizeof(note_path), "%s/idempotency.%u.%d",
				 PG_STAT_TMP_DIR, MyDatabaseId, config->relay_id);
		on_proc_exit(on_exit_note, (Datum) 0);
		pqsignal(SIGQUIT, on_quit);
	}
	SPI_connect();
	if (idem_spi_run("SELECT attempt, event_id FROM %s.relay_attempts"
					 " WHERE relay_id = $1 AND event_id IS NOT NULL AND attempt IS NOT NULL", 1, types, values, NULL) == 1)
	{
		HeapTuple	tup = SPI_tuptable->vals[0];
		TupleDesc	desc = SPI_tuptable->tupdesc;

		a->recorded = true;
		a->killer = *DatumGetUUIDP(idem_spi_value(tup, desc, 2));
		a->killed = !note_says(DatumGetInt64(idem_spi_value(tup, desc, 1)));
	}
	SPI_finish();
	if (a->killed || (idem_slots_after_crash() && !a->passed))
	{
		a->log_left = config->batch_events;
		a->repeats = true;
	}
	a->loaded = true;
}

bool
idem_attempts_careful(const IdemAttempts *a)
{
	return a->log_left > 0 || a->repeats;
}

/* Are the ids the same? */
static bool
same_event(const pg_uuid_t *a, const pg_uuid_t *b)
{
	return memcmp(a, b, UUID_LEN) == 0;
}

bool
idem_attempts_killed(IdemAttempts *a, const IdemRelayConfig *config,
					 const pg_uuid_t *event_id, IdemFailure *failure)
{
	if (!a->killed || !same_event(event_id, &a->killer))
		return false;
	a->met = true;
	failure->counts = true;
	failure->crashed = true;
	failure->retry_after_ms = idem_relay_max_backoff_ms(config);
	strlcpy(failure->sqlstate, "ID006", sizeof(failure->sqlstate));
	failure->message = "the server went down while the handler had this event, and no other";
	return true;
}

bool
idem_attempts_unannounced(const IdemAttempts *a, const pg_uuid_t *event_id)
{
	if (a->killed && same_event(event_id, &a->killer))
		return false;			/* the event will not be tried */
	return !a->announced || !same_event(event_id, &a->event);
}

/* Write the record; returns the number of the attempt. */
static int64
write_record(const IdemRelayConfig *config, const pg_uuid_t *event_id)
{
	Oid			types[2] = {INT4OID, UUIDOID};
	Datum		values[2] = {Int32GetDatum(config->relay_id), UUIDPGetDatum(event_id)};
	int64		number;

	SPI_connect();
	idem_spi_run("INSERT INTO %s.relay_attempts AS a (relay_id, attempt, event_id)"
				 " VALUES ($1, pg_catalog.nextval('%s.relay_log_id'), $2)"
				 " ON CONFLICT (relay_id) DO UPDATE"
				 " SET attempt = EXCLUDED.attempt, event_id = EXCLUDED.event_id"
				 " RETURNING a.attempt", 2, types, values, event_id ? "  " : " n");
	number = DatumGetInt64(idem_spi_value(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1));
	SPI_finish();
	return number;
}

/*
 * The note is wanted from here on, not only after the commit.  If the record is
 * never committed, its note refers to no attempt and does no harm.
 */
void
idem_attempts_announce(IdemAttempts *a, const IdemRelayConfig *config,
					   const pg_uuid_t *event_id)
{
	a->announced = false;
	a->event = *event_id;
	note_wanted = false;
	pg_compiler_barrier();
	note_number = write_record(config, event_id);
	pg_compiler_barrier();
	note_wanted = true;
}

void
idem_attempts_conclude(IdemAttempts *a, const IdemRelayConfig *config)
{
	/*
	 * If all events were tried and the killer was not among them, somebody
	 * has removed it: the record is cleared, too.
	 */
	a->closing = a->recorded && (a->announced || a->met || !idem_attempts_careful(a));
	if (a->closing)
		(void) write_record(config, NULL);
}

void
idem_attempts_concluded(IdemAttempts *a)
{
	if (a->closing)
	{
		note_wanted = false;
		a->recorded = a->announced = a->closing = false;
		if (note_exists)
			(void) unlink(note_path);
		note_exists = false;
	}

	/*
	 * The outcome of another event says nothing about the killer, which is
	 * still to come.
	 */
	if (a->met || !idem_attempts_careful(a))
		a->killed = a->met = false;
	a->passed |= !idem_attempts_careful(a);
}

IdemNotedSuspect *
idem_suspects_find(IdemSuspects *suspects, const pg_uuid_t *event_id)
{
	for (int i = 0; i < IDEM_SUSPECTS; i++)
	{
		IdemNotedSuspect *suspect = &suspects->list[i];

		if (suspect->s.is_set && memcmp(&suspect->s.event_id, event_id, UUID_LEN) == 0)
			return suspect;
	}
	return NULL;
}

void
idem_suspects_note(IdemSuspects *suspects, const pg_uuid_t *event_id, int sqlerrcode, const char *message)
{
	IdemNotedSuspect *suspect;

	suspects->newest = (suspects->newest + 1) % IDEM_SUSPECTS;
	suspect = &suspects->list[suspects->newest];
	suspect->s.is_set = true;
	suspect->s.event_id = *event_id;
	strlcpy(suspect->s.sqlstate, unpack_sql_state(sqlerrcode), sizeof(suspect->s.sqlstate));
	idem_copy_error(suspect->message, message, sizeof(suspect->message));
}
