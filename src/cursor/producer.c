/*-------------------------------------------------------------------------
 *
 * producer.c
 *		Producers: names with an id and an epoch.
 *
 * To register a producer again raises its epoch, and fences who claims under an older
 * one.  The registration waits for the transactions that claim under it now: they hold
 * the lock of the id in share mode.  So the successor begins when its predecessor's last
 * claim is committed or rolled back.
 *
 * An id is a number of lease/token.c, which is never given out twice, whatever a crash,
 * a failover or a restore takes back.  An epoch is not: a standby that is promoted may
 * lack the last registration, whose producer lives on with an epoch that is given out
 * again.  So a registration in another history of the database begins with another id.
 * A producer that is not gapless keeps its id, because its sequences go on over all
 * epochs, and its epoch leaps to the seconds since 2020: two histories that go on from one
 * epoch do not give out the same one.
 *
 * Rows that a dump restores do not say in which history their epochs were given out
 * (log.c).  A disk image that is started without being promoted is taken for the server
 * that was restarted: nothing in it is different.
 *
 * A producer that nobody uses for idempotency.producer_retention is forgotten.  Its use
 * is noted when an eighth of that time has passed since the last note.
 *
 * Registrations are looked at as of now, at every isolation level: an old snapshot must
 * not let a fenced producer through.
 *
 * What a crash leaves: a registration is a transaction that commits synchronously, or
 * nothing.
 *
 * LOCKING: the lock of the name, then that of the id, exclusively, both waited for; below
 * them, as keyed_log.c.
 *
 * MEMORY: the caller's context.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/cursor/producer.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "miscadmin.h"
#include "utils/timestamp.h"

#include "claim/call.h"
#include "cursor/producer.h"
#include "lease/token.h"
#include "shared/clock.h"
#include "shared/durable.h"
#include "shared/fault.h"
#include "shared/uptime.h"
#include "store/store.h"

/* The use of a producer is noted so many times in its retention. */
#define NOTES	8

/* How far the epoch of a producer that is not gapless leaps if the clock is behind it. */
#define EPOCH_LEAP	(1 << 16)

/* From the epoch of the server's timestamps to 2020-01-01, in days */
#define EPOCH_DAYS	7305

bool
idem_producer_is_accessible(const IdemCursor *producer)
{
	return idem_owner_allows(idem_owner_role(&producer->role));
}

bool
idem_producer_find(IdemKeyedAccess *log, const IdemCursorKey *key, IdemCursor *producer)
{
	idem_cursor_find(log, key, producer);
	if (producer->known && producer->kept != 0)
		producer->now = idem_uptime_now();
	if (!producer->known || idem_cursor_is_expired(producer, producer->now))
		return false;
	if (!idem_producer_is_accessible(producer))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied for producer \"%s\"", producer->name),
				 errdetail("A producer belongs to the role that registered it first.")));
	return true;
}

/* Write a registration, under its name and under its id. */
static void
write_registration(IdemKeyedAccess *log, const IdemCursorKey *name, const IdemCursorKey *id,
				   IdemCursor *producer)
{
	IdemCursorKey key = *id;

	producer->kept = idem_producer_retention;
	producer->producer_id = id->producer_id;
	producer->has_epoch = true;
	producer->has_position = false;
	key.owner = name->owner;
	idem_cursor_write(log, &key, producer);
	IDEM_FAULT_POINT("producer-id-written");
	idem_cursor_write(log, name, producer);
}

void
idem_producer_use(IdemKeyedAccess *log, const IdemCursorKey *key, IdemCursor *producer)
{
	IdemCursorKey name;

	if (producer->kept != 0)
		idem_store_note_expiry(producer->now, producer->kept);
	if (producer->kept == idem_producer_retention &&
		(producer->kept == 0 || producer->now < producer->written + producer->kept / NOTES))
		return;
	idem_cursor_key_name(&name, idem_str(producer->name, strlen(producer->name)));
	write_registration(log, &name, key, producer);
}

/* Get the id that a name has; 0: none.  True for as long as the caller has the lock of the name. */
static int64
find_id(const IdemCursorKey *name)
{
	IdemKeyedAccess *log = idem_keyed_access_open(&idem_cursor_log, IDEM_KEYED_TO_WRITE);
	IdemCursor	cursor;

	idem_cursor_find(log, name, &cursor);
	idem_keyed_access_close(log);
	return cursor.known ? cursor.producer_id : 0;
}

/*
 * Error 42501 if the name is another role's.  Asked before the locks as well: a stranger
 * who waits for them would hold up the owner's claims.
 */
static void
check_access(const IdemCursorKey *name)
{
	int64		producer_id = find_id(name);
	IdemKeyedAccess *log;
	IdemCursorKey id;
	IdemCursor	producer;

	if (producer_id == 0)
		return;
	idem_cursor_key_producer(&id, producer_id);
	log = idem_keyed_access_open(&idem_cursor_log, IDEM_KEYED_TO_WRITE);
	(void) idem_producer_find(log, &id, &producer);
	idem_keyed_access_close(log);
}

/* Lock a name, and the id that it has, exclusively; false if it has none. */
static bool
lock_producer(IdemCursorKey *name, IdemCursorKey *id)
{
	int64		producer_id;

	idem_cursor_lock_wait(name);
	producer_id = find_id(name);
	if (producer_id == 0)
		return false;
	idem_cursor_key_producer(id, producer_id);
	idem_cursor_lock_wait(id);
	IDEM_FAULT_POINT("producer-locked");
	return true;
}

/* The current user, as the one to whom a producer belongs. */
static IdemOwnerNote
current_role(void)
{
	IdemOwnerNote note = {GetUserNameFromId(GetUserId(), false), GetUserId(), (int64) GetSystemIdentifier()};

	return note;
}

/* Begin a registration with a new id. */
static void
begin_registration(IdemCursorKey *id, bool gapless, IdemOwnerNote role, IdemCursor *producer)
{
	memset(producer, 0, sizeof(*producer));
	idem_cursor_key_producer(id, idem_token_draw());
	producer->gapless = gapless;
	producer->history = idem_token_history();
	producer->role = role;
}

/* The second of the clock, as an epoch. */
static int64
second_now(void)
{
	return (GetCurrentTimestamp() - EPOCH_DAYS * USECS_PER_DAY) / USECS_PER_SEC;
}

/* The epoch after a leap: one that no other history has given out, unless the clock was set back. */
static int64
leap_epoch(int64 epoch)
{
	int64		second = second_now();

	return second > epoch && second <= PG_INT32_MAX ? second : epoch + EPOCH_LEAP;
}

/* Let the second pass that an epoch is of, so that whoever leaps later leaps beyond it. */
static void
pass_second(int64 epoch)
{
	IdemClock	start = idem_clock();

	while (second_now() == epoch && idem_call_pause(start, 1000))
		;
}

/*
 * Raise the epoch of a registration; false if that takes another id: there is no epoch
 * left, or the database's history is another one.
 */
static bool
raise_epoch(const IdemCursorKey *name, IdemCursor *producer)
{
	bool		same = producer->history == idem_token_history();
	int64		epoch;

	if (producer->gapless && (!same || producer->epoch >= IDEM_PRODUCER_MAX_EPOCH))
		return false;
	epoch = same ? producer->epoch + 1 : leap_epoch(producer->epoch);
	if (epoch > PG_INT32_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("%s was registered too often", idem_cursor_title(name)),
				 errhint("Register it under another name.")));
	pass_second(epoch);
	producer->epoch = epoch;
	producer->history = idem_token_history();
	return true;
}

static void
check_rule(const IdemCursorKey *name, const IdemCursor *producer, bool gapless)
{
	if (producer->gapless != gapless)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("%s is registered with \"gapless\" as %s", idem_cursor_title(name),
						producer->gapless ? "true" : "false"),
				 errhint("Pass that value, or use another name. After producer_drop what the producer repeats would be accepted again.")));
}

void
idem_producer_register(IdemStr name, bool gapless, int64 *producer_id, int *epoch)
{
	IdemCursorKey name_key,
				id;
	IdemCursor	producer;
	IdemKeyedAccess *log;
	bool		has_id,
				found;

	idem_cursor_key_name(&name_key, name);
	check_access(&name_key);
	has_id = lock_producer(&name_key, &id);
	log = idem_keyed_access_open(&idem_cursor_log, IDEM_KEYED_TO_WRITE);
	found = has_id && idem_producer_find(log, &id, &producer);
	if (found)
		check_rule(&name_key, &producer, gapless);
	if (!found || !raise_epoch(&name_key, &producer))
	{
		/*
		 * also of what has expired: after a crash the time may be before that
		 * again
		 */
		if (has_id)
			idem_cursor_write_gone(log, &id);
		begin_registration(&id, gapless, found ? producer.role : current_role(), &producer);
	}
	write_registration(log, &name_key, &id, &producer);
	idem_keyed_access_close(log);
	if (producer.kept != 0)
		idem_store_note_expiry(idem_uptime_now(), producer.kept);
	idem_durable_force_commit();
	*producer_id = id.producer_id;
	*epoch = producer.epoch;
}

void
idem_producer_drop(IdemStr name)
{
	IdemCursorKey name_key,
				id;
	IdemCursor	producer;
	IdemKeyedAccess *log;

	idem_cursor_key_name(&name_key, name);
	if (!lock_producer(&name_key, &id))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("%s does not exist", idem_cursor_title(&name_key))));
	log = idem_keyed_access_open(&idem_cursor_log, IDEM_KEYED_TO_WRITE);
	idem_cursor_find(log, &id, &producer);
	if (producer.known)
		idem_cursor_write_gone(log, &id);
	idem_cursor_write_gone(log, &name_key);
	idem_keyed_access_close(log);
}
