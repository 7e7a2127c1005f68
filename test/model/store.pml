/*
 * store.pml
 *		The dedup store (src/store): claims of one event over the open ring and
 *		the runs, look-ups, packers, a dump, a restore, and a crash that loses the
 *		end of the WAL.
 *
 * Files: store.c and runs.c (claimant, looker), pack.c (packing), state.c (the
 * cell, its seal).  Each atomic block is one step that the code takes under one
 * lock, or that nobody can look into.
 *
 * One event is enough: rows of other events only make segments non-empty, and
 * uniqueness is the event lock's.
 *
 * Bounds: NTX transactions, each a claim, or an order to forget the event; with
 * COMMITTED_FIRST the first was kept, or completed, before the walk begins; NSEG
 * segments; NSLOT slots of one run each, or, if SHARED, the first two runs in one
 * slot; with CRASHES one crash of the server at most, at any moment, that loses
 * any part of the WAL that nothing has flushed.
 * Nothing else is counted: segments are closed, packed, emptied and used again,
 * runs are merged and expire, and packers fail, as often as there is room.
 *
 * Abstracted:
 *	- The number of the state.  A process compares a number with the one it read
 *	  before, and no number comes twice.  So a bit for each process tells whether
 *	  the number is still the one it knows ("fresh"); a change clears all bits.
 *	- How many slots the state says have rows: those that have a run, one by one.
 *	- The numbers of runs, and the xids of packers: a run is known by its slot, and
 *	  what others know of it ends when the slot is emptied.
 *	- Time: a segment may be closed at any moment, or never.
 *	- The time of the store: the time of all rows that are committed may be over at
 *	  any moment, or never; also that of a first row, before that of the others.
 *	  A run's stamp is the rows that were committed when it was written, and the
 *	  run has expired when the time of all these is over.  So the length of a slice
 *	  is not there, and runs of several slices may be merged.
 *	- An order to forget is for ever, and all else is of one finite class.
 *	- Filters and digests: a search of a slot finds what is in it.
 *	- A run without a row of the event needs no slot.  If it would stand in the slot
 *	  of another run, only SHARED walks that.
 *	- A probe of a segment or slot is one step, since it holds AccessShareLock on it.
 *	- A packer writes a run, end mark included, in one step: nobody reads pages
 *	  without an end mark.  A packer gets each lock at once or not at all.
 *	- A segment, or a slot, is emptied in one step, and a crash does not bring its
 *	  rows back; what a crash leaves half cut, and its repair, are ring's.
 *	- The last look of a probe, the second reading of the state, the verdict and
 *	  the writing of the row are one step: with another step in between the state
 *	  has changed or nobody notices.
 *	- The sealing of a state is the packer's step; a claim may do it as well.
 *	- In "lookup" a claim finds what is committed in one step; other bounds walk how.
 *	- A transaction makes one claim.  Savepoints: a claim undone is a transaction
 *	  that aborts.
 *
 * Properties: the assertions called must(), a guarantee each; its name is the
 * variable that becomes true when it does not hold.
 */
/* BOUNDS crash: two claims, prepared ones too, a crash */
/* BOUNDS claims: three claims, one past the budget of locks */
/* BOUNDS levels: two claims at any isolation level */
/* BOUNDS dump: two claims and a dump */
/* BOUNDS merge: two claims, merges of all runs */
/* BOUNDS mergecrash: two claims, merges of single runs, a crash */
/* BOUNDS lookup: a kept claim, a claim, merges of single runs, a look-up with a new or an old snapshot */
/* BOUNDS packers: two claims, two packers */
/* BOUNDS restore: two claims, a restore into the store in use */
/* BOUNDS kept: a claim that is kept, and two more */
/* BOUNDS forgotten: a claim, an order to forget the event, a claim */
/* BOUNDS expiry: a claim that is kept, and two more; runs that expire, in one slot; two packers */
/* BOUNDS expirylevels: a completion that expires, two claims at any isolation level */
/* BOUNDS expirycrash: two claims, runs that expire, merges of single runs, a crash */
/* BOUNDS expirydump: a completion that expires, a claim, a dump */
/* BOUNDS orders: a completion that expires, an order to forget the event, a claim; the seal is broken */
/* BOUNDS ordersapart: the same with three segments, which are packed in any order, and no broken seal */
/* BOUNDS ordersmerged: the same with two segments, and merges of single runs */
/* MUTANT probe_set_before_lock in claims: the state is read before the event's lock only */
/* MUTANT lock_not_checked in claims: a claim writes to the segment that was current before its lock */
/* MUTANT marks_before_state in merge: a session reads the end marks before the state that they are kept for */
/* MUTANT state_not_compared in merge: the state is not read again after the search */
/* MUTANT dead_entry_ignored in claims: a probe that meets a dead row does not look again */
/* MUTANT no_drain in claims: a segment is packed while a writer has it */
/* MUTANT bit_before_mark in claims: the bit is set before the run has its end mark */
/* MUTANT mark_unflushed in crash: a segment is cut while the WAL of its run may be lost */
/* MUTANT cut_unflushed in mergecrash: a slot is cut while the WAL of the merged run may be lost */
/* MUTANT slot_cut_unraised in merge: a slot is cut without a change of the state before */
/* MUTANT bit_not_cleared in claims: a segment becomes current with its bit set */
/* MUTANT bit_unchecked in packers: the bit is set although the state has changed since the run was written */
/* MUTANT bit_unchecked_restore in restore: the same, after a restore */
/* MUTANT unsealed_mask in restore: the mask of a state that is not sealed is trusted */
/* MUTANT slots_uncounted in claims: the state does not say that a slot has got a run */
/* MUTANT unsealed_slots in restore: the number of slots of a state that is not sealed is trusted */
/* MUTANT unsealed_marks in restore: kept end marks are trusted while the state is not sealed */
/* MUTANT restore_unlocked in restore: a restore gives the packer's lock back before its commit */
/* MUTANT cut_under_snapshot in dump: a segment is cut although the horizon has not passed */
/* MUTANT slot_cut_under_snapshot in lookup: a slot is cut although the horizon has not passed */
/* MUTANT dump_unfiltered in dump: a dump takes runs that its snapshot does not see */
/* MUTANT packed_is_seen in levels: an event that is found in a run is a duplicate for every snapshot */
/* MUTANT lookup_unmasked_only in lookup: an old snapshot does not look into segments that need no probe */
/* MUTANT lookup_counted_only in lookup: an old snapshot does not look into runs that were replaced */
/* MUTANT lookup_not_repeated in lookup: a look-up does not read the state again */
/* MUTANT first_hit_decides in kept: the rows of the segments decide, and runs are not searched */
/* MUTANT turns_alike in forgotten: every row has the same turn */
/* MUTANT order_expires in orders: an order to forget has the class of its consumer */
/* MUTANT expired_unraised in expiry: a slot that has expired is cut without a change of the state before */
/* MUTANT oldest_expired in expiry: a slot is cut when the oldest of its runs has expired */
/* MUTANT spent_slot_filled in expiry: a slot with a run that has expired takes a new one */
/* MUTANT oldest_stamp in expirycrash: a merged run has the stamp of the oldest run that it replaces */
/* MUTANT one_class in orders: a segment is packed without one of its classes */
/* MUTANT clock_in_search in orders: a session leaves out a run that has expired by its own clock */
/* MUTANT expired_before_segment in orders: a run goes while a packed segment is not emptied */
/* MUTANT expired_before_replaced in ordersmerged: a run goes before those that it replaces */
/* MUTANT run_by_slot in expirylevels: a session knows a run by its slot, not by its number */

/* REACH third_turn in claims: a claim commits into a segment that is current for the third time */
/* REACH searched_again in merge: a search is repeated, since the state has changed meanwhile */
/* REACH found_packed in claims: an event is found in a run and in no segment */
/* REACH packed_again in crash: after a crash a segment is packed whose rows are in a run already */
/* REACH bit_refused in packers: a packer does not set the bit, since the state has changed */
/* REACH claimed_again in expiry: a claim commits after a completion that has expired */
/* COMPILE LONG: -DCOLLAPSE */

#ifdef LONG
#define MORE 1
#else
#define MORE 0
#endif
#define NSEG 2
#define NSLOT 2
#if defined(BOUNDS_claims)
#define NTX 3
#define BUDGET 1
#elif defined(BOUNDS_crash)
#define NTX (2 + MORE)
#define CRASHES 1
#define PREPARED 1
#elif defined(BOUNDS_levels)
#define NTX (2 + MORE)
#define LEVELS 1
#elif defined(BOUNDS_dump)
#define NTX 2
#define DUMP 1
#elif defined(BOUNDS_merge)
#define NTX (2 + MORE)
#undef NSLOT
#define NSLOT 3
#define MERGE 1
#elif defined(BOUNDS_mergecrash)
#define NTX 2
#define MERGE 1
#define CRASHES 1
#elif defined(BOUNDS_lookup)
#define NTX 2
#if MORE == 1
#undef NSLOT
#define NSLOT 3
#endif
#define MERGE 1
#define LOOKUP 1
#define COMMITTED_FIRST KEPT
#elif defined(BOUNDS_packers)
#define NTX 2
#define PACKERS 2
#elif defined(BOUNDS_restore)
#define NTX 2
#define RESTORE 1
#elif defined(BOUNDS_kept)
#define NTX 3
#undef NSEG
#define NSEG 3
#define COMMITTED_FIRST KEPT
#elif defined(BOUNDS_expiry)
#define NTX 3
#define EXPIRY 1
#define SHARED 1
#define PACKERS 2
#define COMMITTED_FIRST KEPT
#if MORE == 1
#undef NSLOT
#define NSLOT 3
#define MERGE 1
#else
#define DOES_ALL(p) ((p) == 0)
#endif
#elif defined(BOUNDS_expirylevels)
#define NTX 3
#define EXPIRY 1
#define LEVELS 1
#define COMMITTED_FIRST DONE
#elif defined(BOUNDS_expirycrash)
#define NTX 2
#define EXPIRY 1
#define MERGE 1
#define CRASHES 1
#elif defined(BOUNDS_expirydump)
#define NTX 2
#define EXPIRY 1
#define DUMP 1
#define COMMITTED_FIRST DONE
#elif defined(BOUNDS_orders) || defined(BOUNDS_ordersapart)
#define NTX 3
#define KIND(t) ((t) == 1 -> FORGOTTEN : DONE)
#define EXPIRY 1
#define COMMITTED_FIRST DONE
#ifdef BOUNDS_orders
#define RESEAL 1
#endif
#if defined(BOUNDS_ordersapart) || MORE == 1
#undef NSEG
#define NSEG 3
#endif
#elif defined(BOUNDS_ordersmerged)
#define NTX 3
#define KIND(t) ((t) == 1 -> FORGOTTEN : DONE)
#define EXPIRY 1
#define MERGE 1
#define COMMITTED_FIRST DONE
#else
#define NTX 3
#define KIND(t) ((t) == 1 -> FORGOTTEN : DONE)
#endif
#if defined(KIND) || defined(LOOKUP) || (defined(EXPIRY) && MORE == 0)
#define MAY_ABORT(t) (MORE == 1)
#else
#define MAY_ABORT(t) true
#endif
#if defined(KIND) || defined(LOOKUP) || (defined(EXPIRY) && !defined(LEVELS) && MORE == 0)
#define EARLY(t) false
#else
#define EARLY(t) ((t) == NTX - 1)
#endif
#ifndef KIND
#define KIND(t) DONE
#endif
#ifndef DOES_ALL
#define DOES_ALL(p) true
#endif
#ifndef CRASHES
#define CRASHES 0
#endif
#ifndef PACKERS
#define PACKERS 1
#endif

#define BIT(i) (1 << (i))
#define FIRST(bits) ((bits) & 1 -> 0 : ((bits) & 2 -> 1 : 2))
#define SEGMENTS (BIT(NSEG) - 1)
#define SLOTS (BIT(NSLOT) - 1)

/* Rows of the event, by number of the transaction; the last one is restored. */
#define RESTORED NTX
#ifdef RESTORE
#define NROW (NTX + 1)
#else
#define NROW NTX
#endif

/* Transactions, by number; their xids rise with it. */
byte begun, running, committed, prepared;	/* bits */
#define DONE 1
#define KEPT 2
#define FORGOTTEN 3
byte kind[NROW];				/* of the transaction's row */
byte turn[NROW];				/* of its row: one more than the newest one found */

/* The state, a cell: WAL-logged, changed in place. */
byte current;
byte unprobed;					/* bits by segment */
byte counted;					/* bits by slot: it had a run when the state changed */
bool sealed = true;
byte fresh;						/* bits by process: it knows the state's number */
#define PACKER_BIT(p) BIT(NTX + 1 + (p))
byte packer_lock;

/* Segments: rows of the event, bits by transaction; a segment with rows of others. */
byte rows[NSEG], dead[NSEG];
byte filled;					/* bits by segment */

/* Slots: bits by slot, rows by transaction. */
byte complete;					/* has an end mark */
byte ended;						/* the transaction that wrote it has ended */
byte slot_rows[NSLOT];
byte replaces[NSLOT];			/* bits by slot */

/*
 * Retention.  Rows of a finite class are remembered for a time after their commit.
 * The stamp of a run: which of them were committed when it was written.
 */
#ifdef MUTANT_order_expires
#define FINITE(t) true
#else
#define FINITE(t) (KIND(t) != FORGOTTEN)
#endif
#define FINITE_ROWS ((FINITE(0) -> 1 : 0) | (FINITE(1) -> 2 : 0) | (NTX > 2 && FINITE(2) -> 4 : 0))
byte elapsed;					/* bits by transaction: its time is over */
byte stamp[NSLOT];				/* bits by transaction */

/* Locks. */
byte event_lock;				/* transaction plus one */
byte wlock[NROW];				/* RowExclusiveLock on segments, bits */
byte dump_lock;					/* AccessShareLock on tables, bits: segments, then slots */

/* What sessions keep: end marks, bits by slot. */
#define OTHER NTX				/* the session that looks up, or dumps */
byte marks[NTX + 1];

/* Snapshots that live: what they see. */
bool snap_live[NTX + 1];
byte snap_sees[NTX + 1], snap_xmin[NTX + 1], snap_packer[NTX + 1];

/* What of all this is in flushed WAL, if a crash is to return to it. */
typedef Flushed {
	bool valid;
	byte committed, current, unprobed, counted, filled, complete;
	byte rows[NSEG], slot_rows[NSLOT], replaces[NSLOT]
}
Flushed disk;
byte crashes;					/* so far: who sees it rise has ended */
bool marked;					/* the WAL, once */

/* For assertions. */
byte promised;					/* bits by transaction: a duplicate of it was answered */
byte forgotten;					/* bits by transaction: an order to forget came after it */
byte turns_of;					/* how often segment 0 became current */
bool effect_twice, duplicate_of_nothing, promise_broken, dump_lost_effect, dump_invented_effect,
	forgotten_is_duplicate, duplicate_unseen, lookup_missed, lookup_invented, arrived;

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

#if NROW == 2
#define WRITERS (wlock[0] | wlock[1])
#else
#define WRITERS (wlock[0] | wlock[1] | wlock[2])
#endif

/* The slots whose packers every live snapshot sees. */
#define SEEN_BY(t) (snap_live[t] -> snap_packer[t] : SLOTS)
#define SEEN_SLOTS (ended & SEEN_BY(0) & SEEN_BY(1) & SEEN_BY(NTX - 1) & SEEN_BY(OTHER))

/* Of end marks that somebody has read: is the run of this slot replaced? */
#define REPLACED_BY(m, i, j) (((m) & BIT(i)) && (replaces[i] & BIT(j)))
#define REPLACED(m, j) (REPLACED_BY(m, 0, j) || REPLACED_BY(m, 1, j) || REPLACED_BY(m, NSLOT - 1, j))

/* Has the run expired? */
#define EXPIRED(j) ((slot_rows[j] & ~FINITE_ROWS) == 0 && (stamp[j] & ~elapsed) == 0)

/* Does the snapshot see all of the run (is_run_visible)? */
#ifdef MUTANT_packed_is_seen
#define RUN_VISIBLE(t, j) true
#else
#define RUN_VISIBLE(t, j) ((snap_packer[t] & BIT(j)) || slot_rows[j] < BIT(snap_xmin[t]))
#endif

/*
 * WAL.  wal_mark: all of it so far is flushed, and the crash, if one comes, loses
 * what follows.  wal_flush: more is flushed; such a crash cannot be.
 */
inline wal_mark() {
	disk.valid = true;
	disk.committed = committed;
	disk.current = current;
	disk.unprobed = unprobed;
	disk.counted = counted;
	disk.filled = filled;
	disk.complete = complete;
	i = 0;
	do
	:: i < NSEG -> disk.rows[i] = rows[i]; i++
	:: else -> break
	od;
	i = 0;
	do
	:: i < NSLOT -> disk.slot_rows[i] = slot_rows[i]; disk.replaces[i] = replaces[i]; i++
	:: else -> break
	od;
	i = 0
}

inline wal_forget() {
	disk.valid = false;
	disk.committed = 0;
	disk.current = 0;
	disk.unprobed = 0;
	disk.counted = 0;
	disk.filled = 0;
	disk.complete = 0;
	i = 0;
	do
	:: i < NSEG -> disk.rows[i] = 0; i++
	:: else -> break
	od;
	i = 0;
	do
	:: i < NSLOT -> disk.slot_rows[i] = 0; disk.replaces[i] = 0; i++
	:: else -> break
	od;
	i = 0
}

inline wal_flush() {
	if
	:: disk.valid -> wal_forget()
	:: else
	fi
}

/* Take a snapshot; t: whose. */
inline take_snapshot(t) {
	snap_live[t] = true;
	snap_sees[t] = committed;
	snap_packer[t] = ended & complete;
	i = 0;
	do
	:: i < NTX && (begun & ~running & BIT(i)) -> i++
	:: else -> break
	od;
	snap_xmin[t] = i;
	i = 0
}

inline drop_snapshot(t) {
	snap_live[t] = false;
	snap_sees[t] = 0;
	snap_xmin[t] = 0;
	snap_packer[t] = 0
}

/* The newest of some rows; NROW if there is none. */
inline newest_of(who, bits) {
	who = NROW;
	i = 0;
	do
	:: i < NROW ->
		if
		:: ((bits) & BIT(i)) && (who == NROW || turn[i] > turn[who]) -> who = i
		:: else
		fi;
		i++
	:: else -> break
	od;
	i = 0
}

inline end_transaction(t) {
	running = running & ~BIT(t);
	prepared = prepared & ~BIT(t);
	wlock[t] = 0;
	event_lock = (event_lock == t + 1 -> 0 : event_lock);
	marks[t] = 0;
	fresh = fresh & ~BIT(t);
	drop_snapshot(t)
}

/* Remove the rows of a transaction that aborted. */
inline undo(t) {
	i = 0;
	do
	:: i < NSEG -> rows[i] = rows[i] & ~BIT(t); dead[i] = dead[i] & ~BIT(t); i++
	:: else -> break
	od;
	i = 0;
	kind[t] = 0;
	turn[t] = 0
}

/* Read the state; "known": the end marks that the session keeps belong to it. */
#ifdef MUTANT_unsealed_mask
#define PROBED (SEGMENTS & ~unprobed)
#else
#define PROBED (SEGMENTS & ~(sealed -> unprobed : 0))
#endif
#ifdef MUTANT_unsealed_slots
#define COUNTED counted
#else
#define COUNTED (sealed -> counted : SLOTS)
#endif
#ifdef MUTANT_unsealed_marks
#define TRUSTED true
#else
#define TRUSTED sealed
#endif
inline read_state(t) {
	probe = PROBED;
	known = TRUSTED && (fresh & BIT(t)) != 0;
	fresh = fresh | BIT(t)
}

/* The state changes: everybody reads the end marks anew. */
inline change_state() {
	counted = complete;
	fresh = 0
}

/* Read the end marks of all slots that count, a step for each, unless they are known. */
inline read_marks(t) {
	if
	:: known -> skip
	:: atomic { !known -> marks[t] = complete & COUNTED & 1; s = 1 };
		do
		:: d_step { s < NSLOT -> marks[t] = marks[t] | (complete & COUNTED & BIT(s)); s++ }
		:: atomic { s == NSLOT -> s = 0; break }
		od
	fi
}

/* Go on to the next slot that has a run for us. */
inline next_slot(t) {
	do
	:: s < NSLOT && !(marks[t] & BIT(s)) -> s++
	:: else -> break
	od
}

/*
 * A transaction: one claim, or one order to forget the event, then COMMIT, ROLLBACK
 * or PREPARE.
 */
proctype claimant(byte t)
{
	byte g, probe, s, found, seen, newest, i, born, owed;
	bool known, met_dead, looked_again;

	/* Those before it have begun: transactions are alike. */
	atomic {
		t == 0 || (begun & BIT(t - 1)) ->
		begun = begun | BIT(t);
		running = running | BIT(t);
		born = crashes
	};
	{
		/* A session may have read the marks long before. */
		if
		:: d_step {
			EARLY(t) && sealed ->
			marks[t] = complete & counted;
			fresh = fresh | BIT(t)
		}
		:: skip
		fi;
#ifdef LEVELS
		/* REPEATABLE READ: the snapshot is older than all that follows. */
		if
		:: d_step { take_snapshot(t) }
		:: skip
		fi;
#endif
		/* The store is opened; then the event's lock. */
		d_step {
			owed = committed;
			g = current;
#ifdef MUTANT_probe_set_before_lock
			read_state(t)
#endif
		};
		atomic {
			wlock[t] = wlock[t] | BIT(g);
			if
			:: event_lock == 0 -> event_lock = t + 1
			:: else -> goto rollback
			fi
		};
again:
		/* 1 */
#ifdef MUTANT_probe_set_before_lock
		atomic { found = 0; seen = 0; met_dead = false; fresh = fresh | BIT(t) };
#elif defined(MUTANT_lock_not_checked)
		atomic { found = 0; seen = 0; met_dead = false; read_state(t) };
#else
		do
		:: atomic { !(wlock[t] & BIT(current)) -> g = current }; d_step { wlock[t] = wlock[t] | BIT(g) }
		:: atomic {
			(wlock[t] & BIT(current)) ->
			g = current;
			found = 0;
			seen = 0;
			met_dead = false;
#ifdef MUTANT_marks_before_state
			known = true;
			marks[t] = complete
		};
		atomic {
#endif
			read_state(t);
#ifdef MUTANT_marks_before_state
			known = true;
#endif
#ifdef LOOKUP
			/* A claim finds what there is; other bounds walk how. */
			found = committed;
			probe = 0;
			known = true;
#endif
			break
		}
		od;
#endif
		/* 2 */
		do
		:: atomic {
			probe != 0 ->
			s = FIRST(probe);
			probe = probe & ~BIT(s);
			if
			:: (rows[s] | dead[s]) & running & ~BIT(t) -> goto rollback		/* busy */
			:: else
			fi;
			found = found | (rows[s] & committed);
			met_dead = met_dead || dead[s] != 0;
			s = 0
		}
		:: atomic { probe == 0 -> break }
		od;
		seen = found & snap_sees[t];
		/* 3 */
		read_marks(t);
#ifdef MUTANT_first_hit_decides
		if
		:: found != 0 -> s = NSLOT
		:: else
		fi;
#endif
search:
		atomic {
			next_slot(t);
			if
#ifdef MUTANT_clock_in_search
			:: s < NSLOT && EXPIRED(s)
#endif
			:: s < NSLOT && !REPLACED(marks[t], s) ->
				found = found | slot_rows[s];
				seen = (RUN_VISIBLE(t, s) -> seen | slot_rows[s] : seen)
			:: else
			fi;
			s = (s < NSLOT -> s + 1 : s);
			next_slot(t);
			if
			:: s < NSLOT -> goto search
			:: else -> s = 0
			fi;
			/* 4 */
#ifndef MUTANT_state_not_compared
			if
			:: !(fresh & BIT(t)) ->
#ifdef REACH_searched_again
				reached();
#endif
				goto again
			:: else
			fi;
#endif
#if defined(BUDGET) && !defined(MUTANT_dead_entry_ignored)
			if
			:: met_dead && !looked_again -> looked_again = true; goto again
			:: else
			fi;
#endif
			/* The verdict, and the row.  Nobody else can have the event now. */
			newest_of(newest, found);
			if
			:: newest != NROW && kind[newest] == DONE && KIND(t) != FORGOTTEN ->
				if
				:: snap_live[t] && !(seen & BIT(newest)) -> goto rollback	/* 40001 */
				:: else
				fi;
				must(!snap_live[t] || (snap_sees[t] & BIT(newest)), duplicate_unseen);
				wal_flush();
				must(committed & BIT(newest), duplicate_of_nothing);
				must((forgotten & BIT(newest)) == 0, forgotten_is_duplicate);
#ifdef REACH_found_packed
				if
				:: !((rows[0] | rows[NSEG - 1]) & BIT(newest)) -> reached()
				:: else
				fi;
#endif
				promised = promised | BIT(newest);
				goto rollback
			:: else
			fi;
#ifdef EXPIRY
			/* Nothing is remembered: then there is no order, but a promise all the same. */
			if
			:: KIND(t) == FORGOTTEN && (newest == NROW || kind[newest] == FORGOTTEN) ->
				forgotten = committed;
				goto rollback
			:: else
			fi;
#endif
#ifdef MUTANT_turns_alike
			turn[t] = 1;
#else
			turn[t] = (newest == NROW -> 1 : turn[newest] + 1);
#endif
			kind[t] = KIND(t);
			rows[g] = rows[g] | BIT(t);
			newest = 0;
			found = 0;
			seen = 0;
			known = false;
			met_dead = false;
			looked_again = false;
			probe = 0;
			marks[t] = 0;
			fresh = fresh & ~BIT(t)
		};
		/*
		 * Past the budget of locks the event lock is let go once a row is there.
		 * The completion deletes this row, and writes one to what is current then.
		 */
#ifdef BUDGET
		if
		:: d_step { t == 0 -> event_lock = 0 };
			do
			:: atomic { !(wlock[t] & BIT(current)) -> s = current }; d_step { wlock[t] = wlock[t] | BIT(s) }
			:: atomic { (wlock[t] & BIT(current)) -> s = current; break }
			od;
			atomic { rows[g] = rows[g] & ~BIT(t); dead[g] = dead[g] | BIT(t) };
			d_step { rows[s] = rows[s] | BIT(t); g = s; s = 0 }
		:: skip
		fi;
#endif
#ifdef PREPARED
		if
		:: d_step { t == 0 -> wal_flush(); prepared = prepared | BIT(t) }
		:: skip
		fi;
#endif
		if
		:: atomic {
			/* A restore that committed meanwhile took no event lock. */
			newest_of(s, committed & ~(BIT(t) | elapsed | (BIT(RESTORED) & ~owed)));
			must(kind[t] != DONE || s == NROW || kind[s] != DONE, effect_twice);
			s = 0;
#ifdef REACH_claimed_again
			newest_of(s, committed & elapsed & ~BIT(0));
			if
			:: s != NROW -> reached()
			:: else
			fi;
			s = 0;
#endif
#ifdef REACH_third_turn
			if
			:: g == 0 && turns_of == 2 -> reached()
			:: else
			fi;
#endif
			forgotten = (kind[t] == FORGOTTEN -> committed : forgotten);
			committed = committed | BIT(t);
			if
			:: prepared & BIT(t) -> wal_flush()
			:: else
			fi;
			end_transaction(t)
		}
		:: atomic { MAY_ABORT(t) -> undo(t); end_transaction(t) }
		fi;
		goto over;
rollback:
		atomic { end_transaction(t) }
	}
	unless { d_step { crashes > born && !(prepared & BIT(t)) -> born = 0 } };
over:
	atomic {
		g = 0; probe = 0; s = 0; found = 0; seen = 0; newest = 0; i = 0; born = 0; owed = 0;
		known = false; met_dead = false; looked_again = false
	}
}

/*
 * A look-up (event_status): with the snapshot of a transaction, which is old, or
 * with a new one at each try.
 */
#ifdef LOOKUP
#ifdef MUTANT_lookup_counted_only
#define LOOKS_INTO(j) (old -> RUN_VISIBLE(OTHER, j) && !REPLACED(marks[OTHER], j) : !REPLACED(marks[OTHER], j))
#else
#define LOOKS_INTO(j) (old -> RUN_VISIBLE(OTHER, j) : !REPLACED(marks[OTHER], j))
#endif
#ifdef MUTANT_lookup_not_repeated
#define LOOK_AGAIN false
#else
#define LOOK_AGAIN true
#endif
proctype looker()
{
	byte probe, s, found, i;
	bool known, old;

	/* A session may have read the marks long before. */
	d_step { marks[OTHER] = complete & COUNTED; fresh = fresh | BIT(OTHER) };
	if
	:: d_step { take_snapshot(OTHER); old = true }
	/* A transaction of other events runs, with an older xid. */
	:: d_step { take_snapshot(OTHER); snap_xmin[OTHER] = 0; old = true }
	:: skip
	fi;
again:
	atomic {
		found = 0;
		read_state(OTHER);
#ifndef MUTANT_lookup_unmasked_only
		probe = (old -> SEGMENTS : probe)
#endif
	};
	if
	:: d_step { !old -> take_snapshot(OTHER) }
	:: old -> skip
	fi;
	do
	:: d_step {
		probe != 0 ->
		s = FIRST(probe);
		probe = probe & ~BIT(s);
		found = found | (rows[s] & snap_sees[OTHER]);
		s = 0
	}
	:: atomic { probe == 0 -> break }
	od;
	read_marks(OTHER);
search:
	atomic {
		next_slot(OTHER);
		if
		:: s < NSLOT && LOOKS_INTO(s) -> found = found | slot_rows[s]
		:: else
		fi;
		s = (s < NSLOT -> s + 1 : s);
		next_slot(OTHER);
		if
		:: s < NSLOT -> goto search
		:: else -> s = 0
		fi;
		if
		:: !(fresh & BIT(OTHER)) && LOOK_AGAIN ->
			if
			:: !old -> drop_snapshot(OTHER)
			:: else
			fi;
			goto again
		:: else
		fi;
		newest_of(probe, found | snap_sees[OTHER]);
		must(probe == NROW || (found & BIT(probe)), lookup_missed);
		probe = 0;
		s = (old -> snap_sees[OTHER] : committed);
		must((found & ~s) == 0, lookup_invented);
		s = 0;
		found = 0;
		known = false;
		old = false;
		marks[OTHER] = 0;
		fresh = fresh & ~BIT(OTHER);
		drop_snapshot(OTHER)
	}
}
#endif

/* A packer.  It may fail after each step, and begins anew. */
#define UNLOCKED (packer_lock == 0)
#define CLOSED (filled & ~BIT(current))
#ifdef MUTANT_no_drain
#define MAY_PACK (CLOSED & ~unprobed)
#else
#define MAY_PACK (CLOSED & ~unprobed & ~WRITERS)
#endif
#define EMPTY_SEGMENTS (SEGMENTS & ~filled)
#define IS_SPENT(j) ((complete & BIT(j)) && (EXPIRED(j) || REPLACED(complete, j)))
#if defined(SHARED) && !defined(MUTANT_spent_slot_filled)
/* A slot with a run that expired, or was replaced, takes no other run. */
#define FREE_SLOTS (SLOTS & ~(complete | (IS_SPENT(0) || IS_SPENT(1) -> 3 : 0)))
#else
#define FREE_SLOTS (SLOTS & ~complete)
#endif
#ifdef MUTANT_cut_under_snapshot
#define HORIZON_PASSED true
#else
#define HORIZON_PASSED ((complete & ~SEEN_SLOTS) == 0)
#endif
#define MAY_CUT (HORIZON_PASSED -> CLOSED & unprobed & ~WRITERS & ~dump_lock : 0)
#define COUNTS(j) ((complete & BIT(j)) && !REPLACED(complete, j))
#define ROWS_OF(bits, j) (((bits) & BIT(j)) != 0 -> slot_rows[j] : 0)
#define COUNTING ((COUNTS(0) -> 1 : 0) | (COUNTS(1) -> 2 : 0) | (COUNTS(NSLOT - 1) -> BIT(NSLOT - 1) : 0))
#ifdef MUTANT_slot_cut_under_snapshot
#define REPLACED_FOR_ALL(j) REPLACED(complete, j)
#else
#define REPLACED_FOR_ALL(j) REPLACED(complete & SEEN_SLOTS, j)
#endif
#define MAY_GO(j) (replaces[j] == 0 && REPLACED_FOR_ALL(j))
#ifdef EXPIRY
/* A packed segment may have what has expired; a run that was replaced may count again. */
#ifdef MUTANT_expired_before_segment
#define NOWHERE_ELSE(j) (replaces[j] == 0)
#elif defined(MUTANT_expired_before_replaced)
#define NOWHERE_ELSE(j) ((CLOSED & unprobed) == 0)
#else
#define NOWHERE_ELSE(j) ((CLOSED & unprobed) == 0 && replaces[j] == 0)
#endif
#define MAY_EXPIRE(j) (EXPIRED(j) && NOWHERE_ELSE(j))
#define NEEDED(j) ((complete & BIT(j)) && !MAY_GO(j) && !MAY_EXPIRE(j))
#ifdef SHARED
/* Runs 0 and 1 stand in one slot. */
#ifdef MUTANT_oldest_expired
#define SLOT_NEEDED(j) ((j) < 2 -> !(MAY_EXPIRE(0) && (complete & 1)) && (NEEDED(0) || NEEDED(1)) : NEEDED(j))
#else
#define SLOT_NEEDED(j) ((j) < 2 -> NEEDED(0) || NEEDED(1) : NEEDED(j))
#endif
#else
#define SLOT_NEEDED(j) NEEDED(j)
#endif
#define MAY_CUT_SLOT(j) ((complete & BIT(j)) && !SLOT_NEEDED(j))
#ifdef SHARED
#define SHARES_SLOT true
#else
#define SHARES_SLOT false
#endif
#else
#define MAY_CUT_SLOT(j) ((complete & BIT(j)) && MAY_GO(j))
#endif

/* Of some rows, those of the class that is written first. */
#define CLASS_OF(bits) (((bits) & FINITE_ROWS) -> (bits) & FINITE_ROWS : (bits))
#define IS_SINGLE(bits) (((bits) & ((bits) - 1)) == 0)
#define ROOM_FOR(bits) (FREE_SLOTS != 0 && (CLASS_OF(bits) == (bits) || !IS_SINGLE(FREE_SLOTS)))

/* The stamp of a merged run.  The oldest run has none of the event, and has expired. */
#define STAMP_OF(bits, j) (((bits) & BIT(j)) != 0 -> stamp[j] : 0)
#ifdef MUTANT_oldest_stamp
#define MERGED_STAMP(bits) elapsed
#else
#define MERGED_STAMP(bits) (STAMP_OF(bits, 0) | STAMP_OF(bits, 1) | STAMP_OF(bits, NSLOT - 1))
#endif

/* Write a run with its end mark; the packer's lock is held until the commit. */
inline write_run(p, j, from) {
	slot_rows[j] = from;
#ifdef EXPIRY
	stamp[j] = committed & FINITE_ROWS;
#endif
	complete = complete | BIT(j);
	ended = ended & ~BIT(j);
	packer_lock = p + 1
}

inline cut_slot(j) {
	complete = complete & ~BIT(j);
	ended = ended & ~BIT(j);
	slot_rows[j] = 0;
	stamp[j] = 0;
	/* A session that knew the run does not look into those that it replaced. */
	i = 0;
	do
	:: i < NTX + 1 -> marks[i] = ((marks[i] & BIT(j)) -> marks[i] & ~replaces[j] : marks[i]); i++
	:: else -> break
	od;
	replaces[j] = 0;
	i = 0;
	do
	:: i < NSLOT -> replaces[i] = replaces[i] & ~BIT(j); i++
	:: else -> break
	od;
	i = 0;
	do
#ifdef MUTANT_run_by_slot
	:: i < NTX + 1 -> i++
#else
	:: i < NTX + 1 -> marks[i] = marks[i] & ~BIT(j); snap_packer[i] = snap_packer[i] & ~BIT(j); i++
#endif
	:: else -> break
	od;
	i = 0;
	if
	:: disk.valid ->
		disk.complete = disk.complete & ~BIT(j);
		disk.slot_rows[j] = 0;
		disk.replaces[j] = 0;
		do
		:: i < NSLOT -> disk.replaces[i] = disk.replaces[i] & ~BIT(j); i++
		:: else -> break
		od;
		i = 0
	:: else
	fi
}

/* Close the current segment: an empty one becomes current. */
inline close_current() {
	current = FIRST(EMPTY_SEGMENTS);
	filled = filled | BIT(current);
#ifdef REACH_third_turn
	turns_of = (current == 0 -> turns_of + 1 : turns_of);
#endif
#ifndef MUTANT_bit_not_cleared
	unprobed = unprobed & ~BIT(current);
#endif
	change_state()
}

proctype packing(byte p)
{
	byte s, j, i, newest, born;

	do
	:: {
		skip;
restart:
		atomic { s = 0; j = 0; newest = 0; fresh = fresh & ~PACKER_BIT(p) };
end_work:
		if
#if defined(RESTORE) || defined(RESEAL)
		/* Seal the state: what has no row and no writer needs no probe. */
		:: d_step {
			!sealed && UNLOCKED ->
			unprobed = EMPTY_SEGMENTS & ~WRITERS;
			sealed = true;
			change_state()
		}; goto end_work
#endif
		:: d_step { DOES_ALL(p) && sealed && UNLOCKED && EMPTY_SEGMENTS != 0 -> close_current() }; goto end_work

		/* T1: pack a closed segment whose writers have gone into an empty slot. */
#ifdef EXPIRY
		:: atomic {
			sealed && UNLOCKED && MAY_PACK != 0 ->
			if
			:: MAY_PACK & 1 -> s = 0
			:: MAY_PACK & 2 -> s = 1
			:: MAY_PACK & 4 -> s = 2
			fi;
			newest = rows[s] & committed;
			if
			:: newest == 0 -> j = NSLOT; packer_lock = p + 1; goto commit
			:: else
			fi;
			if
			:: ROOM_FOR(newest) ->
				j = FIRST(FREE_SLOTS);
				i = CLASS_OF(newest);
				newest = newest & ~i;
				write_run(p, j, i);
				i = 0
			:: else -> s = 0; newest = 0; goto end_work
			fi;
#ifdef MUTANT_one_class
			newest = 0;
#endif
			if
			:: newest == 0 -> goto commit
			:: else
			fi
		};
			/* The run of the other class; the packer may fail before. */
			if
			:: atomic { j = FIRST(FREE_SLOTS); write_run(p, j, newest); newest = 0 }; goto commit
			:: d_step { ended = ended | complete; packer_lock = 0; newest = 0 }; goto restart
			fi
#else
		:: atomic {
			sealed && UNLOCKED && MAY_PACK != 0 ->
			s = FIRST(MAY_PACK);
			if
			:: (rows[s] & committed) == 0 -> j = NSLOT; packer_lock = p + 1
			:: (rows[s] & committed) != 0 && FREE_SLOTS != 0 ->
#ifdef REACH_packed_again
				if
				:: crashes > 0 && ((slot_rows[0] | slot_rows[1]) & rows[s]) -> reached()
				:: else
				fi;
#endif
				j = FIRST(FREE_SLOTS);
#ifdef MUTANT_bit_before_mark
				unprobed = unprobed | BIT(s); change_state()
			:: else -> goto end_work
			fi
		};
		atomic {
			if
			:: j < NSLOT ->
#endif
				write_run(p, j, rows[s] & committed)
			:: else ->
#ifdef MUTANT_bit_before_mark
				skip
#else
				s = 0; goto end_work
#endif
			fi
		}; goto commit
#endif
#ifdef EXPIRY
		/* Time passes; the first transaction may have committed long before the others. */
#ifdef COMMITTED_FIRST
		:: d_step { p == 0 && elapsed == 0 -> elapsed = 1 }; goto end_work
#endif
		:: d_step { p == 0 && (committed & FINITE_ROWS & ~elapsed) -> elapsed = committed & FINITE_ROWS }; goto end_work
#endif
#ifdef MERGE
		/* Merge all runs that count; a single one, with runs that have no row of the event. */
		:: atomic {
			UNLOCKED && FREE_SLOTS != 0 && COUNTING != 0 ->
			j = FIRST(FREE_SLOTS);
			s = COUNTING;
#ifdef EXPIRY
			if
#ifdef SHARED
			:: skip
#endif
			:: s & 1 -> s = 1
			:: s & 2 -> s = 2
			:: NSLOT > 2 && (s & BIT(NSLOT - 1)) -> s = BIT(NSLOT - 1)
			fi;
#endif
			replaces[j] = s;
			s = (ROWS_OF(s, 0) | ROWS_OF(s, 1) | ROWS_OF(s, NSLOT - 1));
			newest_of(newest, s);
			write_run(p, j, BIT(newest));
#ifdef EXPIRY
			stamp[j] = MERGED_STAMP(replaces[j]);
#endif
			newest = 0;
			s = NSEG
		}; goto commit
#endif
#if defined(MERGE) || defined(EXPIRY)
		/* Empty a slot that was replaced; before, all sessions have to read marks anew. */
		:: atomic {
			sealed && UNLOCKED && (MAY_CUT_SLOT(0) || MAY_CUT_SLOT(1) || MAY_CUT_SLOT(NSLOT - 1)) ->
#ifdef EXPIRY
			if
			:: MAY_CUT_SLOT(0) || (SHARES_SLOT && MAY_CUT_SLOT(1)) -> j = 0
			:: !SHARES_SLOT && MAY_CUT_SLOT(1) -> j = 1
			:: NSLOT > 2 && MAY_CUT_SLOT(NSLOT - 1) -> j = NSLOT - 1
			fi;
#else
			j = (MAY_CUT_SLOT(0) -> 0 : (MAY_CUT_SLOT(1) -> 1 : NSLOT - 1));
#endif
#if !defined(MUTANT_slot_cut_unraised) && !defined(MUTANT_expired_unraised)
			change_state();
#endif
			fresh = fresh | PACKER_BIT(p)
		};
			if
			:: d_step {
				UNLOCKED && (fresh & PACKER_BIT(p)) ->
#ifndef MUTANT_cut_unflushed
				wal_flush();
#endif
#ifdef DUMP
				if
				:: dump_lock & BIT(NSEG + j)
				:: else -> cut_slot(j)
				fi;
#elif defined(SHARED)
				if
				:: j < 2 -> cut_slot(0); cut_slot(1)
				:: else -> cut_slot(j)
				fi;
#else
				cut_slot(j);
#endif
				j = 0
			}
			:: d_step { j = 0 }
			fi;
			goto end_work
#endif
		/* T3: empty a segment that was packed. */
		:: d_step {
			DOES_ALL(p) && sealed && UNLOCKED && MAY_CUT != 0 ->
			s = FIRST(MAY_CUT);
#if !defined(MUTANT_mark_unflushed) && !defined(MUTANT_cut_unflushed)
			wal_flush();
#endif
			rows[s] = 0;
			dead[s] = 0;
			disk.rows[s] = 0;
			filled = filled & ~BIT(s);
			s = 0
		}; goto end_work
		fi;
commit:
		if
		:: d_step { DOES_ALL(p) && EMPTY_SEGMENTS != 0 -> close_current() }; goto commit
		/* Whatever became of the transaction, the run counts. */
		:: d_step { ended = ended | complete; packer_lock = 0 }; goto restart
		:: d_step {
			ended = ended | complete;
#ifndef MUTANT_mark_unflushed
			wal_flush();
#endif
			fresh = fresh | PACKER_BIT(p);
			packer_lock = 0;
			j = 0
		}
		fi;
		/* T2, unless the run was a merged one. */
		atomic {
			s == NSEG || UNLOCKED ->
			if
			:: s == NSEG -> skip
#if defined(MUTANT_bit_unchecked) || defined(MUTANT_bit_unchecked_restore)
			:: s != NSEG ->
				unprobed = (sealed -> unprobed : 0) | BIT(s);
				sealed = true;
				change_state()
#else
			:: s != NSEG && sealed && (fresh & PACKER_BIT(p)) ->
				unprobed = unprobed | BIT(s);
#ifdef MUTANT_slots_uncounted
				fresh = 0
#else
				change_state()
#endif
			:: s != NSEG && !(sealed && (fresh & PACKER_BIT(p))) ->
#ifdef REACH_bit_refused
				reached();
#endif
				skip
#endif
			fi;
			goto restart
		}
	} unless { d_step { crashes > born -> born = crashes } }
	od
}

/*
 * A restore: rows appear in any segment, or a run in a slot, when its transaction
 * commits.  It takes no event's lock.
 */
#ifdef RESTORE
proctype restore()
{
	byte s, i;

	d_step { UNLOCKED -> packer_lock = PACKERS + 1; sealed = false };
#ifdef MUTANT_restore_unlocked
	d_step { packer_lock = 0 };
#endif
	if
	:: s = 0
	:: s = NSEG - 1
	:: s = NSEG
	fi;
	d_step {
		kind[RESTORED] = DONE;
		turn[RESTORED] = 1;
		running = running | BIT(RESTORED);
		if
		:: s < NSEG ->
			wlock[RESTORED] = BIT(s);
			rows[s] = rows[s] | BIT(RESTORED);
			filled = filled | BIT(s)
		:: else
		fi
	};
	if
	:: d_step {
		s < NSEG || FREE_SLOTS != 0 ->
		committed = committed | BIT(RESTORED);
		if
		:: s == NSEG ->
			i = FIRST(FREE_SLOTS);
			slot_rows[i] = BIT(RESTORED);
			complete = complete | BIT(i);
			ended = ended | BIT(i);
			i = 0
		:: else
		fi;
		running = running & ~BIT(RESTORED);
		wlock[RESTORED] = 0;
		packer_lock = 0;
		s = 0
	}
	:: d_step {
		undo(RESTORED);
		running = running & ~BIT(RESTORED);
		wlock[RESTORED] = 0;
		packer_lock = 0;
		s = 0
	}
	fi
}
#endif

/* A restore of other events. */
#ifdef RESEAL
proctype restore()
{
	d_step { UNLOCKED -> packer_lock = PACKERS + 1; sealed = false };
	d_step { packer_lock = 0 }
}
#endif

/* A dump: one snapshot, and each table locked when its turn comes, to the end. */
#ifdef DUMP
#define NTABLES (NSEG + NSLOT)
#ifdef MUTANT_dump_unfiltered
#define DUMPED(j) (complete & BIT(j) -> slot_rows[j] : 0)
#else
#define DUMPED(j) (snap_packer[OTHER] & BIT(j) -> slot_rows[j] : 0)
#endif
inline dump_table(x) {
	d_step {
		!(dump_lock & BIT(x)) ->
		dump_lock = dump_lock | BIT(x);
		if
		:: x < NSEG -> got = got | (rows[x] & snap_sees[OTHER])
		:: else -> got = got | DUMPED(x - NSEG)
		fi
	}
}

proctype dump()
{
	byte got, i;

	d_step { take_snapshot(OTHER) };
	do
	:: dump_table(0)
	:: dump_table(1)
	:: dump_table(2)
	:: dump_table(3)
	:: atomic { dump_lock == BIT(NTABLES) - 1 -> break }
	od;
	atomic {
		must((snap_sees[OTHER] & ~(got | elapsed)) == 0, dump_lost_effect);
		must((got & ~snap_sees[OTHER]) == 0, dump_invented_effect);
		dump_lock = 0;
		drop_snapshot(OTHER);
		got = 0
	}
}
#endif

/* The server crashes: what no flush has made durable is gone. */
#if CRASHES > 0
proctype server()
{
	byte i;

end_server:
	do
	:: d_step { crashes < CRASHES && !marked -> marked = true; wal_mark() }
	:: d_step {
		disk.valid ->
		committed = disk.committed;
		current = disk.current;
		unprobed = disk.unprobed;
		counted = disk.counted;
		filled = disk.filled;
		complete = disk.complete;
		ended = complete;
		packer_lock = 0;
		do
		:: i < NSEG -> rows[i] = disk.rows[i] & (committed | prepared); i++
		:: else -> i = 0; break
		od;
		do
		:: i < NSLOT ->
			slot_rows[i] = disk.slot_rows[i];
			replaces[i] = disk.replaces[i];
			stamp[i] = ((complete & BIT(i)) != 0 -> stamp[i] & committed : 0);
			i++
		:: else -> i = 0; break
		od;
		elapsed = elapsed & committed;
		do
		:: i < NTX ->
			if
			:: (committed | prepared) & BIT(i)
			:: else -> kind[i] = 0; turn[i] = 0
			fi;
			if
			:: prepared & BIT(i)
			:: else -> end_transaction(i)
			fi;
			i++
		:: else -> i = 0; break
		od;
		fresh = 0;
		must((promised & ~committed) == 0, promise_broken);
		wal_forget();
		crashes++
	}
	od
}
#endif

init {
	atomic {
		filled = 1;
		unprobed = SEGMENTS & ~1;
#ifdef COMMITTED_FIRST
		begun = 1;
		committed = 1;
		kind[0] = COMMITTED_FIRST;
		turn[0] = 1;
		rows[0] = 1;
#else
		run claimant(0);
#endif
		run claimant(1);
#if NTX > 2
		run claimant(2);
#endif
		run packing(0);
#if PACKERS > 1
		run packing(1);
#endif
#ifdef LOOKUP
		run looker();
#endif
#if defined(RESTORE) || defined(RESEAL)
		run restore();
#endif
#ifdef DUMP
		run dump();
#endif
#if CRASHES > 0
		run server()
#endif
	}
}
