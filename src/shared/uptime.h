/*-------------------------------------------------------------------------
 *
 * uptime.h
 *		The time by which what is remembered expires: how long the server has been up.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/shared/uptime.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_UPTIME_H
#define IDEM_UPTIME_H

#include "postgres.h"

/* Whoever needs the time to go on calls idem_uptime_advance() that often. */
#define IDEM_UPTIME_PERIOD_MS	60000

/*
 * By how many seconds a time that is read may be less than one that was read before: if
 * the server was restarted meanwhile.
 */
#define IDEM_UPTIME_MAX_BACK	120

/*
 * The time in seconds.  It does not go back by more than IDEM_UPTIME_MAX_BACK, but after
 * a crash by what was not flushed, and after a restore, which begins anew.
 */
extern int64 idem_uptime_now(void);

/* The same without waiting for a lock; false if the lock is not free. */
extern bool idem_uptime_try_now(int64 *now);

/*
 * Note the time, so that it goes on from here.  The caller holds the packer's
 * lock.
 */
extern void idem_uptime_advance(void);

/*
 * Something was written outside of the dedup store that expires so many seconds after
 * "now", a time that was just read: the time has to go on until then.
 */
extern void idem_uptime_need(int64 now, int64 seconds);

/* Has it, for such a thing? */
extern bool idem_uptime_is_needed(void);

/*
 * For tests: move the time on, and set the note back to a time before.  The
 * caller holds the packer's lock.
 */
extern void idem_uptime_set(int64 ahead, int64 note_back);

#endif							/* IDEM_UPTIME_H */
