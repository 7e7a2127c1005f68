/*
 * keyed.pml
 *		The keyed log (src/shared/keyed_*.c), which the log of leases is: the turns of
 *		its tables, beside writers, look-ups, scans, a dump, and a crash that loses
 *		the end of the WAL.
 *
 * Files: keyed_log.c (writer), keyed_read.c (looker), keyed_scan.c (scanner), keyed_turn.c
 * and empty.c (maintain), dump.c (dump), log.c of src/lease (GONE, NEEDED), hold.c of src/claim.  Each block of
 * one step is what the code does under locks that nobody can look into, or one look.
 *
 * One key is enough.  Rows of other keys only make tables long, and hold their locks
 * (holder).  Rows are numbered from 0 in the order in which their numbers are drawn.
 * The lock of the key has its writers come one after the other.
 *
 * Bounds: NV rows of the key, of which any may be rolled back; one or two maintainers;
 * with CRASH one crash of the server, at any moment, that loses any part of the WAL
 * that nothing has flushed.  Nothing else is counted: tables take turns, passes fail
 * and begin anew, processes come and go, and look-ups are made as often as there is
 * room, until all rows are written and the log has come to rest ("quiet").
 *
 * Abstracted:
 *	- The numbers of markers.  Their order is kept (rank).  A pass knows the marker of
 *	  the table that it copies to: one bit tells whether the table has been emptied
 *	  since, and no number comes twice.
 *	- Pages: row n stands on page n of its table, and each step copies one page.  A
 *	  row that comes to a page which a pass has passed is not seen by the pass.
 *	- The length of a table: the current one may have grown at any moment, or never.
 *	- Time: the time of each row may be over at any moment after its commit, or never;
 *	  also that of a newer row before that of an older one.
 *	- The look of a writer is one step: markers only rise, so the marker that the look
 *	  finds was the newest one at some moment of the look.  So is the look which tables
 *	  have rows.
 *	- Heap, index and TOAST table of a table: its rows go in one step; what else is to be
 *	  cut is one bit (half), which a crash or an error may leave.
 *	- A snapshot of a dump is told from another old snapshot by its lock on pg_extension
 *	  before the time is over in which each old snapshot counts (UNKNOWN_MS).
 *	- The limit of the log's length, from which on dumps are not waited for.
 *	- Savepoints, and transactions that are prepared over a crash.
 *
 * Properties: the assertions called must(), a guarantee each; its name is the
 * variable that becomes true when it does not hold.
 */
/* BOUNDS maintainers: one row, two maintainers in turns, another writer that holds a table */
/* BOUNDS tombstones: open, free, open; another writer that holds a table */
/* BOUNDS expiry: a lease, another end of it, another lease; their time passes; another writer that holds a table */
/* BOUNDS crash: open, free, open; a crash */
/* BOUNDS lookup: open, another end, free; a look-up without the lock of the key */
/* BOUNDS scan: open, open, free; a scan */
/* BOUNDS dump: open, another end, free; a dump */
/* MUTANT free_dropped in tombstones: a row that says "free" goes with its table, whatever older rows there are (keyed-log-free-dropped) */
/* MUTANT expired_dropped in expiry: the same of a row whose time is over */
/* MUTANT extended_late in expiry: a lease whose time is over gets another end (lease-extended-late) */
/* MUTANT extension_judged_early in expiry: the time is looked at before the other end is written */
/* MUTANT extension_unseen in expiry: a pass does not look for another end that is being written (keyed-log-extension-unseen) */
/* MUTANT markers_uncompared in maintainers: a pass goes on whatever became of the table that it copies to (keyed-log-marker-uncompared) */
/* MUTANT target_outdated in maintainers: a pass goes on although that table has lost its turn (keyed-log-target-outdated) */
/* MUTANT rolled_back_copy in tombstones: a pass goes on although a copy was rolled back (keyed-log-rolled-back-copy) */
/* MUTANT pass_with_writer in tombstones: a pass begins while a writer has the table */
/* MUTANT written_late in tombstones: a writer does not look again after its lock (keyed-log-written-late) */
/* MUTANT copy_renumbered in tombstones: a copy gets a new number */
/* MUTANT half_empty_current in dump: a table becomes current that is emptied by half */
/* MUTANT cut_unflushed in crash: files are cut before the WAL is flushed (PostgreSQL before 15.11 and 17.3) */
/* MUTANT lock_after_read in lookup: a look-up locks a table after it has read another one */
/* MUTANT scan_opened_first in scan: a scan looks which tables have rows before its snapshot (keyed-log-scan-opened-first) */
/* MUTANT scan_without_snapshot in scan: a scan shows what is committed when it comes to it */
/* MUTANT dump_not_awaited in dump: a table is emptied without waiting for a dump */
/* MUTANT dump_by_lock in dump: only the lock on pg_extension tells a dump */
/* MUTANT dump_since_begin in dump: only dumps count that are older than the beginning of the pass */
/* REACH rest: all is written, and the log is short */
/* REACH third_turn in tombstones: a table is current for the third time */
/* REACH late_row in tombstones: a row comes to a table that has lost its turn */
/* REACH free_copied in tombstones: a row that says "free" is copied, since another table has an older row */
/* REACH half_after_crash in crash: a crash leaves a table emptied by half */
/* COMPILE LONG: -DCOLLAPSE */

#define NTABLES 3
#define TABLES 7
#define BIT(i) (1 << (i))
#define FIRST(bits) ((bits) & 1 -> 0 : ((bits) & 2 -> 1 : ((bits) & 4 -> 2 : 3)))

/* The rows of the key: bits by number.  STATES: rows of kind s; ENDS: of kind e. */
#if defined(BOUNDS_maintainers)
#define NV 1
#define OPENS 1
#define FREES 0
#define ENDS 0
#define MAINTAINERS 2
#define HOLDER 1
#elif defined(BOUNDS_tombstones)
#ifdef MUTANT_copy_renumbered
/* The last row is a copy of the first one. */
#define NV 2
#define OPENS 7
#define FREES 0
#else
#define NV 3
#define OPENS 5
#define FREES 2
#endif
#define ENDS 0
#define HOLDER 1
#elif defined(BOUNDS_expiry)
#define NV 3
#define OPENS 5
#define FREES 0
#define ENDS 2
#define EXPIRY 1
#define HOLDER 1
#elif defined(BOUNDS_crash)
#define NV 3
#define OPENS 5
#define FREES 2
#define ENDS 0
#define CRASH 1
#elif defined(BOUNDS_lookup)
#define NV 3
#define OPENS 1
#define FREES 4
#define ENDS 2
#define LOOKER 1
#elif defined(BOUNDS_scan)
#define NV 3
#define OPENS 3
#define FREES 4
#define ENDS 0
#define SCANNER 1
#else
#define NV 3
#define OPENS 1
#define FREES 4
#define ENDS 2
#define DUMP 1
#endif
#define STATES (OPENS | FREES)
#ifdef LONG
#undef MAINTAINERS
#define MAINTAINERS 2
#endif
#ifndef MAINTAINERS
#define MAINTAINERS 1
#endif

/* The newest of some rows, plus one; 0: there is none. */
#define TOP(bits) ((bits) > 3 -> 3 : ((bits) > 1 -> 2 : (bits)))
#define ROW(top) (BIT(top) >> 1)
#define STATE_OF(bits) TOP((bits) & STATES)
#define IS_OPEN(bits) (ROW(STATE_OF(bits)) & OPENS)
/* Another end of the lease, plus one (is_of_lease). */
#define END_OF(bits) (IS_OPEN(bits) && (ROW(TOP(bits)) & ENDS) -> TOP(bits) : 0)
/* Nothing is open of the key, or its time is over: it may be forgotten as a whole. */
#define GONE(bits) (!IS_OPEN(bits) || (ROW(TOP(bits)) & over))

byte committed;					/* rows */
byte over;						/* their time is over */

/* The tables. */
byte rows[NTABLES];				/* committed rows of the key, and copies */
byte rank[NTABLES];				/* the order of their markers; 0: no marker */
byte filled;					/* bits by table: it has blocks */
byte half;						/* it has no rows, but index entries, or no index */
#define ALL_ROWS (rows[0] | rows[1] | rows[2])
#define CURRENT (rank[0] >= rank[1] && rank[0] >= rank[2] -> 0 : (rank[1] >= rank[2] -> 1 : 2))
#define FORMER (filled & ~BIT(CURRENT))
/* What a writer takes for current (look_for_current). */
#define FOUND_CURRENT (filled == 1 -> 0 : (filled == 2 -> 1 : (filled == 4 -> 2 : CURRENT)))

/* Locks on tables, bits.  RowExclusiveLock: */
byte writer_lock, holder_lock;
bool holder_opened;				/* the holder's table was current when it was locked */
/* AccessShareLock: */
byte looker_lock, dump_lock;
byte empty_lock;				/* AccessExclusiveLock: the table plus one */
byte maintainer_lock;			/* on the sequence: the maintainer plus one */
#define MAY_EMPTY(n) (((writer_lock | holder_lock | looker_lock | dump_lock) & BIT(n)) == 0)

/* What a maintainer knows of its pass (IdemKeyedPass). */
typedef Pass {
	bool begun, rolled_back, ended, awaits;
	bool outdated;				/* the marker of table "to" is gone */
	byte from, to, next
}
Pass pass[MAINTAINERS];

/* The open transaction of a maintainer. */
#define NOTHING 0
#define COPYING 1
#define CUTTING 2
#define MARKING 3
byte act[MAINTAINERS];
byte object;					/* of its act: a row or a table */

/* The writer. */
#define IDLE 0
#define TO_LOCK 1
#define LOCKED 2
#define WRITTEN 3
#define JUDGED 4				/* another end, written before the time was over */
byte writing;
byte guess;						/* the table that it locks */
byte number;					/* of its row */
bool quiet;						/* all rows are written */

/* The dump. */
bool dump_runs, dump_shown, dump_current, dump_done;
byte dump_sees[NTABLES], dump_saw, dump_got;

/* What of all this is in flushed WAL, if a crash is to return to it. */
typedef Flushed {
	bool valid;
	byte committed, filled, half;
	byte rows[NTABLES], rank[NTABLES]
}
Flushed disk;
bool crashed, marked;

/* For assertions. */
byte turns;
bool needed_row_lost, older_row_uncovered, end_lost, lookup_missed, lookup_older, lookup_end_missed,
	scan_missed, scan_repeated, dump_lacks, dump_uncovers, dump_lacks_end, half_empty_written, log_not_short, arrived;

inline must(condition, name) {
	if
	:: !(condition) -> name = true; assert(!name)
	:: else
	fi
}

inline reached() {
	arrived = true;
	assert(!arrived)
}

/* Who has seen some rows must know what the key's state was: neither less nor older. */
#ifdef MUTANT_copy_renumbered
/* The copy hides a row that was drawn before it. */
#define IS_UNCOVERED(seen, true_rows) (((seen) & 4) != 0 && ((true_rows) & 2) != 0)
#else
#define IS_UNCOVERED(seen, true_rows) (STATE_OF(seen) != 0 && STATE_OF(seen) < STATE_OF(true_rows))
#endif
inline must_know(seen, true_rows, lost, uncovered, lost_end) {
	if
	:: STATE_OF(seen) == 0 && !GONE(true_rows) -> lost = true; assert(!lost)
	:: IS_UNCOVERED(seen, true_rows) -> uncovered = true; assert(!uncovered)
	:: STATE_OF(seen) == STATE_OF(true_rows) && !GONE(true_rows) && END_OF(seen) < END_OF(true_rows) ->
		lost_end = true; assert(!lost_end)
	:: else
	fi
}

inline wal_forget() {
	disk.valid = false;
	disk.committed = 0;
	disk.filled = 0;
	disk.half = 0;
	disk.rows[0] = 0; disk.rows[1] = 0; disk.rows[2] = 0;
	disk.rank[0] = 0; disk.rank[1] = 0; disk.rank[2] = 0
}

/* A transaction gets its xid. */
#define ASSIGN_XID dump_current = false

inline write() {
	must(!(half & BIT(guess)), half_empty_written);
	filled = filled | BIT(guess);
	ASSIGN_XID;
	writing = WRITTEN
}

#ifdef EXPIRY
#define MAY_COMMIT (writing == JUDGED || (writing == WRITTEN && !(BIT(number) & ENDS)))
#else
#define MAY_COMMIT (writing == WRITTEN)
#endif
#ifdef MUTANT_extension_judged_early
#define IS_LOST GONE(committed)
#else
#define IS_LOST (!IS_OPEN(committed))
#endif
#if defined(MUTANT_extended_late) || defined(MUTANT_extension_judged_early)
#define IS_LATE false
#else
#define IS_LATE GONE(committed)
#endif

/*
 * A writer of the key, row after row: it guesses which table is current, locks it, and
 * looks (idem_keyed_reader_open_to_write).  Or it has opened the log before it locked the
 * key: then it has the table of the holder.
 */
proctype writer()
{
end_writer:
	do
	:: atomic {
		writing == IDLE && number < NV ->
		if
		/* Only a lease gets another end. */
		:: (BIT(number) & ENDS) && IS_LOST -> number++
		:: else ->
			if
			:: guess = 0; writing = TO_LOCK
			:: guess = 1; writing = TO_LOCK
			:: guess = 2; writing = TO_LOCK
#ifdef HOLDER
			:: holder_opened ->
				guess = FIRST(holder_lock);
#ifdef REACH_late_row
				if
				:: guess != CURRENT -> reached()
				:: else
				fi;
#endif
				writer_lock = BIT(guess);
				write()
#endif
			fi
		fi
	}
	:: d_step {
		writing == TO_LOCK && empty_lock != guess + 1 ->
		writer_lock = BIT(guess);
		writing = LOCKED
	}
	:: d_step {
		writing == LOCKED && empty_lock == 0 ->
		if
#ifdef MUTANT_written_late
		:: true ->
#else
		:: FOUND_CURRENT == guess ->
#endif
			write()
		:: else -> writer_lock = 0; guess = FOUND_CURRENT; writing = TO_LOCK
		fi
	}
#ifdef EXPIRY
	/* idem_hold_extend: nobody who is late may commit. */
	:: d_step {
		writing == WRITTEN && (BIT(number) & ENDS) ->
		if
		:: IS_LATE -> writer_lock = 0; guess = 0; number++; writing = IDLE
		:: else -> writing = JUDGED
		fi
	}
#endif
	:: d_step {
		MAY_COMMIT ->
		rows[guess] = rows[guess] | BIT(number);
		committed = committed | BIT(number);
		writer_lock = 0; guess = 0; number++; writing = IDLE
	}
	/* rolled back */
	:: d_step { writing >= WRITTEN -> writer_lock = 0; guess = 0; number++; writing = IDLE }
	:: d_step { writing == IDLE && number == NV && !quiet -> quiet = true }
	od
}

/*
 * Somebody has a table: the current one, to write to it, or, but not in "expiry", one that
 * was current before this lock, or that is locked by hand.
 */
#ifdef HOLDER
#ifdef EXPIRY
#define MAY_HOLD(n) (FOUND_CURRENT == n)
#else
#define MAY_HOLD(n) true
#endif
#define HOLDS(n) \
	d_step { \
		!quiet && holder_lock == 0 && empty_lock != n + 1 && MAY_HOLD(n) -> \
		holder_lock = BIT(n); \
		holder_opened = FOUND_CURRENT == n; \
		filled = (holder_opened -> filled | BIT(n) : filled) \
	}
proctype holder()
{
end_holder:
	do
	:: HOLDS(0)
	:: HOLDS(1)
	:: HOLDS(2)
	:: d_step { holder_lock != 0 -> holder_lock = 0; holder_opened = false }
	od
}
#endif

/* The time of rows passes. */
#ifdef EXPIRY
#define MAY_PASS(i) (committed & ~over & (OPENS | ENDS) & BIT(i))
proctype clock()
{
end_clock:
	do
	:: d_step { MAY_PASS(0) -> over = over | 1 }
	:: d_step { MAY_PASS(1) -> over = over | 2 }
	:: d_step { MAY_PASS(2) -> over = over | 4 }
	od
}
#endif

/* A maintainer of the log (idem_keyed_log_maintain). */
#define P pass[p]
#define MAY_STEP (maintainer_lock == 0 && act[p] == NOTHING)
#ifdef MUTANT_half_empty_current
#define HALF_EMPTY 0
#define UNFIT 0
#else
#define HALF_EMPTY (half & ~filled)
#define UNFIT half
#endif

/* is_pass_valid */
#ifdef MUTANT_markers_uncompared
#define TO_IS_SAME true
#elif defined(MUTANT_target_outdated)
#define TO_IS_SAME (!P.outdated)
#else
#define TO_IS_SAME (CURRENT == P.to && !P.outdated)
#endif
#ifdef MUTANT_rolled_back_copy
#define COPIES_STAND true
#else
#define COPIES_STAND (!P.rolled_back)
#endif
#define IS_VALID (COPIES_STAND && (filled & BIT(P.from)) && TO_IS_SAME)

/* copy_if_needed, is_needed, hides_older_row; i: the row */
#define KIND_OF(i) ((BIT(i) & STATES) -> STATES : ENDS)
#define IS_NEWEST(i) (TOP(ALL_ROWS & KIND_OF(i)) == (i) + 1)
#define OTHER_ROWS(t) ((t) == 0 -> rows[1] | rows[2] : ((t) == 1 -> rows[0] | rows[2] : rows[0] | rows[1]))
#if defined(MUTANT_free_dropped) || defined(MUTANT_expired_dropped)
#define HIDES_OLDER(i) false
#else
#define HIDES_OLDER(i) (OTHER_ROWS(P.from) & (BIT(i) - 1))
#endif
#define COUNTS(i) ((BIT(i) & STATES) || END_OF(ALL_ROWS) == (i) + 1)
/* idem_keyed_has_newer: another end of the lease is written, and not committed. */
#ifdef MUTANT_extension_unseen
#define IS_EXTENDED false
#else
#define IS_EXTENDED (writing >= WRITTEN && (BIT(number) & ENDS))
#endif
#define IS_NEEDED(i) (COUNTS(i) && (!GONE(ALL_ROWS) || HIDES_OLDER(i) || IS_EXTENDED))
#define IS_COPIED(i) (IS_NEWEST(i) && !(rows[P.to] & BIT(i)) && IS_NEEDED(i))
#define REST_OF(t, i) (rows[t] & ~(BIT(i) - 1))
/* The page after a row's; after the last row that is all of them. */
#define PAST(i) (REST_OF(P.from, (i) + 1) != 0 -> (i) + 1 : NV)

/* begin_any_pass */
#ifdef MUTANT_pass_with_writer
#define UNWRITTEN FORMER
#else
#define UNWRITTEN (FORMER & ~(writer_lock | holder_lock))
#endif

/* find_empty, and the current table has grown */
#define EMPTY_TABLES (TABLES & ~filled & ~UNFIT & ~BIT(CURRENT))
#define MAY_TURN (EMPTY_TABLES != 0 && !quiet && (filled & BIT(CURRENT)))

/* is_awaited: a dump that has not shown itself yet counts as well. */
#ifdef MUTANT_dump_not_awaited
#define IS_AWAITED false
#elif defined(MUTANT_dump_by_lock)
#define IS_AWAITED (P.awaits && dump_runs && dump_shown)
#else
#define IS_AWAITED (P.awaits && dump_runs)
#endif

inline forget(p) {
	P.begun = false; P.rolled_back = false; P.ended = false; P.awaits = false;
	P.outdated = false; P.from = 0; P.to = 0; P.next = 0
}

inline begin_act(p, what, which) {
	act[p] = what;
	object = which;
	maintainer_lock = p + 1
}

inline end_act(p) {
	act[p] = NOTHING;
	object = 0;
	maintainer_lock = 0
}

/* Only the order of markers counts. */
inline settle_ranks() {
	do
	:: rank[0] != 1 && rank[1] != 1 && rank[2] != 1 && (rank[0] | rank[1] | rank[2]) != 0 ->
		rank[0] = (rank[0] == 0 -> 0 : rank[0] - 1);
		rank[1] = (rank[1] == 0 -> 0 : rank[1] - 1);
		rank[2] = (rank[2] == 0 -> 0 : rank[2] - 1)
	:: (rank[0] == 3 || rank[1] == 3 || rank[2] == 3) && rank[0] != 2 && rank[1] != 2 && rank[2] != 2 ->
		rank[0] = (rank[0] == 3 -> 2 : rank[0]);
		rank[1] = (rank[1] == 3 -> 2 : rank[1]);
		rank[2] = (rank[2] == 3 -> 2 : rank[2])
	:: else -> break
	od
}

/* No number of a marker comes twice. */
inline outdate(q, t) {
	pass[q].outdated = pass[q].outdated || (pass[q].begun && pass[q].to == t)
}

/* The heap is cut; its WAL is flushed before. */
inline cut(t) {
#ifdef MUTANT_cut_unflushed
	disk.rows[t] = 0;
	disk.rank[t] = 0;
	disk.filled = disk.filled & ~BIT(t);
	disk.half = (disk.valid -> disk.half | BIT(t) : 0);
#else
	if
	:: disk.valid -> wal_forget()
	:: else
	fi;
#endif
	if
	:: rank[t] != 0 ->
		outdate(0, t);
		outdate(MAINTAINERS - 1, t)
	:: else
	fi;
	rows[t] = 0;
	rank[t] = 0;
	settle_ranks();
	dump_sees[t] = 0;
	filled = filled & ~BIT(t);
	half = half | BIT(t);
	must_know(ALL_ROWS, committed, needed_row_lost, older_row_uncovered, end_lost)
}

proctype maintain(byte p)
{
	byte n;

end_maintain:
	do
	/* The process ends, or drops a pass that is not valid any more. */
	:: d_step { act[p] == NOTHING && P.begun && (!quiet || !IS_VALID) -> forget(p) }

	/* What a crash has left half emptied. */
	:: d_step {
		MAY_STEP && HALF_EMPTY != 0 && MAY_EMPTY(FIRST(HALF_EMPTY)) ->
		half = half & ~BIT(FIRST(HALF_EMPTY))
	}

	/* continue_pass: the next row */
	:: d_step {
		MAY_STEP && HALF_EMPTY == 0 && P.begun && IS_VALID && REST_OF(P.from, P.next) != 0 ->
		n = FIRST(REST_OF(P.from, P.next));
		if
		:: IS_COPIED(n) ->
#ifdef REACH_free_copied
			if
			:: BIT(n) & FREES -> reached()
			:: else
			fi;
#endif
			ASSIGN_XID;
			begin_act(p, COPYING, n)
		:: else -> P.next = PAST(n)
		fi;
		n = 0
	}
	:: d_step {
		act[p] == COPYING ->
#ifdef MUTANT_copy_renumbered
		rows[P.to] = rows[P.to] | (object == 0 && number == 1 && writing != IDLE -> 4 : BIT(object));
#else
		rows[P.to] = rows[P.to] | BIT(object);
#endif
		P.next = PAST(object);
		end_act(p)
	}
	:: d_step {
		act[p] == COPYING ->
		P.rolled_back = true;
		P.next = PAST(object);
		end_act(p)
	}
	/* its end */
	:: d_step {
		MAY_STEP && HALF_EMPTY == 0 && P.begun && IS_VALID && REST_OF(P.from, P.next) == 0 && !P.ended ->
#ifndef MUTANT_dump_since_begin
		P.awaits = dump_runs && !dump_current;
#endif
		P.ended = true
	}
	/* empty_table */
	:: d_step {
		MAY_STEP && HALF_EMPTY == 0 && P.begun && IS_VALID && REST_OF(P.from, P.next) == 0 && P.ended &&
		!IS_AWAITED && MAY_EMPTY(P.from) ->
		begin_act(p, CUTTING, P.from);
		empty_lock = P.from + 1;
		cut(P.from)
	}
	:: d_step {
		act[p] == CUTTING ->
		half = half & ~BIT(object);
		empty_lock = 0;
		forget(p);
		end_act(p)
	}
	/* an error: the rest stays uncut */
	:: d_step { act[p] == CUTTING -> empty_lock = 0; end_act(p) }

	/* begin_any_pass */
	:: d_step {
		MAY_STEP && HALF_EMPTY == 0 && !P.begun && UNWRITTEN != 0 && rank[CURRENT] != 0 ->
		P.begun = true;
		P.from = FIRST(UNWRITTEN);
		P.to = CURRENT;
#ifdef MUTANT_dump_since_begin
		P.awaits = dump_runs && !dump_current;
#endif
		P.next = (rows[P.from] != 0 -> 0 : NV)
	}
	:: d_step {
		MAY_STEP && HALF_EMPTY == 0 && !P.begun && FORMER != 0 && rank[CURRENT] == 0 ->
		ASSIGN_XID;
		begin_act(p, MARKING, CURRENT);
		filled = filled | BIT(object)
	}
	/* a turn */
	:: d_step {
		MAY_STEP && HALF_EMPTY == 0 && !P.begun && UNWRITTEN == 0 &&
		(FORMER == 0 || rank[CURRENT] != 0) && MAY_TURN ->
		ASSIGN_XID;
		begin_act(p, MARKING, FIRST(EMPTY_TABLES));
		filled = filled | BIT(object)
	}
	:: d_step {
		act[p] == MARKING ->
#ifdef REACH_third_turn
		turns = (object == 0 -> turns + 1 : turns);
		if
		:: turns == 2 -> reached()
		:: else
		fi;
#endif
		rank[object] = 4;
		settle_ranks();
		end_act(p)
	}
	:: d_step { act[p] == MARKING -> end_act(p) }
	od
}

/* A look-up without the lock of the key: all tables are locked, then read one by one. */
#ifdef LOOKER
proctype looker()
{
	byte owed, found, opened, n;

end_looker:
	do
#ifdef MUTANT_lock_after_read
	:: atomic { !quiet -> owed = committed; n = 0 };
		do
		:: d_step {
			n < NTABLES && empty_lock != n + 1 ->
			looker_lock = looker_lock | BIT(n);
			found = found | rows[n];
			n++
		}
#else
	:: atomic {
		!quiet && empty_lock == 0 ->
		looker_lock = TABLES;
		owed = committed
	};
		d_step { opened = filled; n = 0 };
		do
		:: d_step {
			n < NTABLES ->
			found = found | ((opened & BIT(n)) != 0 -> rows[n] : 0);
			n++
		}
#endif
		:: atomic { n == NTABLES -> break }
		od;
		atomic {
			must_know(found, owed, lookup_missed, lookup_older, lookup_end_missed);
			looker_lock = 0;
			owed = 0;
			found = 0;
			opened = 0;
			n = 0
		}
	od
}
#endif

/* A scan: all tables are locked, a snapshot is taken, and each table that has rows is read. */
#ifdef SCANNER
inline scan_snapshot() {
	d_step {
		saw = committed;
		sees[0] = rows[0]; sees[1] = rows[1]; sees[2] = rows[2];
		n = 0
	}
}
#ifdef MUTANT_scan_without_snapshot
#define SHOWS(n) ((opened & BIT(n)) != 0 -> rows[n] : 0)
#else
#define SHOWS(n) ((opened & BIT(n)) != 0 -> sees[n] : 0)
#endif

proctype scanner()
{
	byte n, newest, opened, saw, sees[NTABLES];
	bool shown;

end_scanner:
	do
	:: atomic { !quiet && empty_lock == 0 -> looker_lock = TABLES };
#ifdef MUTANT_scan_opened_first
		d_step { opened = filled };
		scan_snapshot();
#else
		scan_snapshot();
		d_step { opened = filled };
#endif
		do
		:: d_step {
			n < NTABLES ->
			newest = STATE_OF(SHOWS(0) | SHOWS(1) | SHOWS(2));
			if
			/* idem_keyed_scan_is_newest */
			:: newest != 0 && (SHOWS(n) & ROW(newest)) &&
				!(n > 0 && (SHOWS(0) & ROW(newest))) && !(n > 1 && (SHOWS(1) & ROW(newest))) ->
				must(!shown, scan_repeated);
				must(newest == STATE_OF(saw), scan_missed);
				shown = true
			:: else
			fi;
			newest = 0;
			n++
		}
		:: atomic { n == NTABLES -> break }
		od;
		atomic {
			must(shown || GONE(saw), scan_missed);
			looker_lock = 0;
			n = 0; opened = 0; shown = false; saw = 0;
			sees[0] = 0; sees[1] = 0; sees[2] = 0
		}
	od
}
#endif

/* A dump: a snapshot, the lock on pg_extension, each table when its turn comes. */
#ifdef DUMP
#define DUMPS_TABLE(n) \
	d_step { \
		dump_shown && !(dump_lock & BIT(n)) && empty_lock != n + 1 -> \
		dump_lock = dump_lock | BIT(n); \
		dump_got = dump_got | dump_sees[n] \
	}
proctype dump()
{
end_dump:
	do
	:: d_step {
		!dump_runs && !dump_done ->
		dump_runs = true;
		dump_current = writing != WRITTEN && maintainer_lock == 0;
		dump_saw = committed;
		dump_sees[0] = rows[0]; dump_sees[1] = rows[1]; dump_sees[2] = rows[2]
	}
	:: d_step { dump_runs && !dump_shown -> dump_shown = true }
	:: DUMPS_TABLE(0)
	:: DUMPS_TABLE(1)
	:: DUMPS_TABLE(2)
	:: d_step {
		dump_lock == TABLES ->
		must_know(dump_got, dump_saw, dump_lacks, dump_uncovers, dump_lacks_end);
		dump_runs = false; dump_shown = false; dump_current = false; dump_done = true;
		dump_lock = 0; dump_saw = 0; dump_got = 0;
		dump_sees[0] = 0; dump_sees[1] = 0; dump_sees[2] = 0
	}
	od
}
#endif

/* The server crashes: what no flush has made durable is gone. */
#ifdef CRASH
inline restart(files) {
	committed = disk.committed;
	over = over & committed;
	filled = disk.filled | (files);
	half = disk.half;
	rows[0] = disk.rows[0]; rows[1] = disk.rows[1]; rows[2] = disk.rows[2];
	rank[0] = disk.rank[0]; rank[1] = disk.rank[1]; rank[2] = disk.rank[2];
	writer_lock = 0; empty_lock = 0; maintainer_lock = 0;
	act[0] = NOTHING;
	forget(0);
#if MAINTAINERS > 1
	act[1] = NOTHING;
	forget(1);
#endif
	object = 0;
	number = (writing == IDLE -> number : number + 1);
	writing = IDLE;
	guess = 0;
	crashed = true;
	wal_forget();
#ifdef REACH_half_after_crash
	if
	:: half != 0 -> reached()
	:: else
	fi;
#endif
	must_know(ALL_ROWS, committed, needed_row_lost, older_row_uncovered, end_lost)
}

proctype server()
{
end_server:
	do
	:: d_step {
		!crashed && !marked ->
		marked = true;
		disk.valid = true;
		disk.committed = committed;
		disk.filled = filled;
		disk.half = half;
		disk.rows[0] = rows[0]; disk.rows[1] = rows[1]; disk.rows[2] = rows[2];
		disk.rank[0] = rank[0]; disk.rank[1] = rank[1]; disk.rank[2] = rank[2]
	}
	:: d_step { disk.valid -> restart(0) }
	/* A file may be longer than its WAL says. */
	:: d_step { disk.valid && (filled & ~disk.filled & ~disk.half) != 0 -> restart(filled & ~disk.half) }
	od
}
#endif

/* When nothing more can happen, the current table alone is not empty. */
proctype rest()
{
	atomic {
		timeout ->
#ifdef REACH_rest
		reached();
#endif
		must(FORMER == 0 && HALF_EMPTY == 0, log_not_short)
	}
}

init {
	atomic {
		run writer();
		run maintain(0);
#if MAINTAINERS > 1
		run maintain(1);
#endif
#ifdef HOLDER
		run holder();
#endif
#ifdef EXPIRY
		run clock();
#endif
#ifdef LOOKER
		run looker();
#endif
#ifdef SCANNER
		run scanner();
#endif
#ifdef DUMP
		run dump();
#endif
#ifdef CRASH
		run server();
#endif
		run rest()
	}
}
