/*
 * store.pml
 *		The dedup store: claims of one event over a ring of open segments and
 *		slots of packed runs, the packer, a dump, and a crash that loses the end
 *		of the WAL.
 *
 * Not built yet: the protocol that src/claim has to follow when the store
 * forgets by retention.  README.md of this folder numbers its steps.  Each atomic
 * block is one step that the code takes under one lock, or that nobody can look
 * into.
 *
 * One event is enough: rows of other events only make segments non-empty, and
 * uniqueness is the event lock's.
 *
 * Bounds: NTX transactions, each a claim or, in "forgotten", an order to forget; NSEG
 * segments; NSLOT slots; at most MAXGEN closed segments, MAXRUN runs; with CRASHES
 * one crash of the server at most, at any moment, that loses any part of the WAL
 * that nothing has flushed.
 *
 * Abstracted:
 *	- Time: a segment may be closed and a run may expire at any moment, or never.
 *	- Filters, digests and classes: a search of a slot finds what is in it.
 *	- A probe of a segment or slot is one step, since it holds AccessShareLock on it.
 *	- The packer lets its Share lock go as soon as the segment is drained; it gets
 *	  each lock at once or not at all.
 *	- A segment, or a slot, is cut in one step, and a crash does not bring its rows
 *	  back; what a crash leaves half cut, and its repair, are ring's.
 *	- A transaction makes one claim.  Savepoints: a claim undone is a transaction
 *	  that aborts.
 *
 * Properties: the assertions called must(), a guarantee each; its name is the
 * variable that becomes true when it does not hold.
 */
/* BOUNDS crash: two claims, prepared ones too, a packer that fails, a crash */
/* BOUNDS claims: three claims */
/* BOUNDS levels: two claims at any isolation level */
/* BOUNDS dump: two claims and a dump */
/* BOUNDS merge: two claims, merges, slots used again */
/* BOUNDS kept: a claim that is kept, and two more */
/* BOUNDS forgotten: a claim, an order to forget the event, a claim; expiry */
/* MUTANT probe_set_before_lock in claims: the segments to probe are chosen before the event's lock */
/* MUTANT generation_not_read_again in claims: a claim writes to the segment that was current before its lock */
/* MUTANT version_after_marks in merge: a session reads the version after the end marks */
/* MUTANT version_not_compared in merge: a search is not repeated when runs came meanwhile */
/* MUTANT version_not_raised in claims: sessions keep the end marks that they know */
/* MUTANT no_drain in claims: a segment is packed while a writer has it */
/* MUTANT unprobed_at_mark in claims: a segment is no longer probed as soon as its run has its end mark */
/* MUTANT cut_before_mark in claims: a segment is cut before its run has its end mark */
/* MUTANT mark_unflushed in crash: a segment is cut while the WAL of its run may be lost */
/* MUTANT cut_under_snapshot in dump: a segment is cut although a snapshot does not see the packer */
/* MUTANT dump_unfiltered in dump: a dump takes runs that its snapshot does not see */
/* MUTANT packed_is_seen in levels: an event that is found in a run is a duplicate for every snapshot */
/* MUTANT first_hit_decides in kept: the rows of the open segments decide, and runs are not searched */
/* MUTANT tombstone_expires_first in forgotten: an order to forget expires before the completion that it is about */

/* REACH second_turn in merge: a claim commits into a segment that is current for the second time */
/* REACH searched_again in merge: a search is repeated, since runs came or went meanwhile */
/* REACH found_packed in claims: an event is found in a run and in no open segment */
/* REACH resumed in crash: after a crash a run is complete whose segment is not marked packed */
/* COMPILE: -DCOLLAPSE */

#ifdef LONG
#define MORE 1
#else
#define MORE 0
#endif
#if defined(BOUNDS_claims)
#define NTX 3
#define NSEG 2
#define NSLOT 2
#define MAXGEN (2 + MORE)
#define MAXRUN (2 + MORE)
#define FAILS MORE
#define BUDGET 1
#elif defined(BOUNDS_crash)
#define NTX (2 + MORE)
#define NSEG 2
#define NSLOT 2
#define MAXGEN 2
#define MAXRUN (2 + MORE)
#define FAILS 0
#define CRASHES 1
#define PREPARED 1
#elif defined(BOUNDS_levels)
#define NTX (2 + MORE)
#define NSEG 2
#define NSLOT 2
#define MAXGEN 2
#define MAXRUN 2
#define FAILS 0
#define LEVELS 1
#elif defined(BOUNDS_dump)
#define NTX 2
#define NSEG 2
#define NSLOT 2
#define MAXGEN (1 + MORE)
#define MAXRUN (1 + MORE)
#define FAILS 1
#define DUMP 1
#elif defined(BOUNDS_merge)
#define NTX 2
#define NSEG 2
#define NSLOT 3
#define MAXGEN (3 + MORE)
#define MAXRUN (4 + 2 * MORE)
#define FAILS MORE
#define MERGE 1
#elif defined(BOUNDS_kept)
#define NTX 3
#define NSEG 3
#define NSLOT 2
#define MAXGEN 2
#define MAXRUN 2
#define FAILS MORE
#define KIND(t) ((t) == 0 -> KEPT : DONE)
#else
#define NTX 3
#define NSEG 2
#define NSLOT 2
#define MAXGEN 2
#define MAXRUN 2
#define FAILS MORE
#define EXPIRY 1
#define KIND(t) ((t) == 1 -> FORGOTTEN : DONE)
#endif
#ifdef KIND
#define EARLY(t) false
#define MAY_ABORT(t) (MORE == 1)
#else
#define KIND(t) DONE
#define EARLY(t) ((t) == NTX - 1)
#define MAY_ABORT(t) true
#endif
#ifndef CRASHES
#define CRASHES 0
#endif

#define BIT(i) (1 << (i))

/* Transactions, by number; their xids rise with it. */
byte begun, running, committed, prepared;	/* bits */
#define DONE 1
#define KEPT 2
#define FORGOTTEN 3
byte kind[NTX];				/* of the transaction's row */
byte turn[NTX];				/* of its row: one more than the newest one found */
byte expired;				/* bits by transaction: its row was expired */

/* The packer's transactions, by number. */
byte packer_ended;				/* bits by run */
byte fails;
bool marked;					/* the WAL, once */
bool unpublished;				/* an end mark is there whose version was not raised */

/* Cells: WAL-logged, changed in place. */
byte generation;
byte version;
byte packed[NSEG];				/* generation that was marked packed, plus one */

/* Segments: rows of the event, bits by transaction; a segment with rows of others. */
byte rows[NSEG];
bool filled[NSEG];

/* Slots. */
#define EMPTY 0
#define FILLING 1
#define COMPLETE 2
#define EXPIRED 3
typedef Slot {
	byte state;
	byte rows;					/* bits by transaction */
	byte number;
	byte packer;				/* transaction that wrote the end mark */
	byte source;				/* generation of the segment, plus one; 0: of merged runs */
	byte replaces				/* bits by run */
}
Slot slot[NSLOT];
byte next_run;

/* Locks. */
byte event_lock;				/* transaction plus one */
byte wlock[NTX];				/* RowExclusiveLock on segments, bits */
byte dump_lock;					/* AccessShareLock on tables, bits: segments, then slots */

/* Snapshots that live: what they see. */
bool snap_live[NTX];
byte snap_sees[NTX], snap_xmin[NTX], snap_packer[NTX];
bool dump_live;
byte dump_sees, dump_packer;

/* What of all this is in flushed WAL, if a crash is to return to it. */
typedef Flushed {
	bool valid;
	byte committed, expired, packer_ended, generation, next_run;
	byte packed[NSEG], rows[NSEG];
	bool filled[NSEG];
	Slot slot[NSLOT]
}
Flushed disk;
byte crashes;					/* so far: who sees it rise has ended */

/* For assertions. */
byte promised;					/* bits by transaction: a duplicate of it was answered */
bool effect_twice, duplicate_of_nothing, promise_broken, dump_lost_effect, dump_invented_effect,
	forgotten_is_duplicate, duplicate_unseen, arrived;

inline must(condition, name) {
	if
	:: !(condition) -> name = true; assert(!name)
	:: else
	fi
}

#define SEG(g) ((g) % NSEG)
#define CURRENT SEG(generation)
/* The generation that a segment was current in last. */
#define GENERATION_OF(s) (generation - ((generation + NSEG - (s)) % NSEG))
#define NEVER_CURRENT(s) ((s) > generation)
#define IS_PACKED(s) (packed[s] == GENERATION_OF(s) + 1)
#if NTX == 2
#define WRITERS (wlock[0] | wlock[1])
#else
#define WRITERS (wlock[0] | wlock[1] | wlock[2])
#endif

/* All live snapshots see the packer's transaction. */
#ifdef MUTANT_cut_under_snapshot
#define SEEN_BY_ALL(p) true
#else
#define SNAP_OK(t, p) (!snap_live[t] || (snap_packer[t] & BIT(p)))
#define DUMP_OK(p) (!dump_live || (dump_packer & BIT(p)))
#if NTX == 2
#define SEEN_BY_ALL(p) ((packer_ended & BIT(p)) && SNAP_OK(0, p) && SNAP_OK(1, p) && DUMP_OK(p))
#else
#define SEEN_BY_ALL(p) ((packer_ended & BIT(p)) && SNAP_OK(0, p) && SNAP_OK(1, p) && SNAP_OK(2, p) && DUMP_OK(p))
#endif
#endif

#define REPLACED_ANY(r) ((slot[0].state == COMPLETE && (slot[0].replaces & BIT(r))) || (slot[1].state == COMPLETE && (slot[1].replaces & BIT(r))) || (slot[NSLOT - 1].state == COMPLETE && (slot[NSLOT - 1].replaces & BIT(r))))
#define COUNTS(i) (slot[i].state == COMPLETE && !REPLACED_ANY(slot[i].number))

/*
 * WAL.  wal_mark: all of it so far is flushed, and the crash, if one comes, loses
 * what follows.  wal_flush: more is flushed; such a crash cannot be.
 */
inline slot_copy(to, from) {
	to.state = from.state;
	to.rows = from.rows;
	to.number = from.number;
	to.packer = from.packer;
	to.source = from.source;
	to.replaces = from.replaces
}

inline slot_clear(x) {
	x.state = EMPTY;
	x.rows = 0;
	x.number = 0;
	x.packer = 0;
	x.source = 0;
	x.replaces = 0
}

inline wal_mark() {
	disk.valid = true;
	disk.committed = committed;
	disk.expired = expired;
	disk.packer_ended = packer_ended;
	disk.generation = generation;
	disk.next_run = next_run;
	i = 0;
	do
	:: i < NSEG -> disk.packed[i] = packed[i]; disk.rows[i] = rows[i]; disk.filled[i] = filled[i]; i++
	:: else -> break
	od;
	i = 0;
	do
	:: i < NSLOT -> slot_copy(disk.slot[i], slot[i]); i++
	:: else -> break
	od;
	i = 0
}

inline wal_forget() {
	disk.valid = false;
	disk.committed = 0;
	disk.expired = 0;
	disk.packer_ended = 0;
	disk.generation = 0;
	disk.next_run = 0;
	i = 0;
	do
	:: i < NSEG -> disk.packed[i] = 0; disk.rows[i] = 0; disk.filled[i] = 0; i++
	:: else -> break
	od;
	i = 0;
	do
	:: i < NSLOT -> slot_clear(disk.slot[i]); i++
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

/* The newest committed row of the event, wherever; NTX if there is none. */
inline newest_committed(who, but) {
	who = NTX;
	i = 0;
	do
	:: i < NTX ->
		if
		:: (committed & ~expired & BIT(i)) && i != but && (who == NTX || turn[i] > turn[who]) -> who = i
		:: else
		fi;
		i++
	:: else -> break
	od;
	i = 0
}

/* The newest of some rows. */
inline newest_of(who, bits) {
	who = NTX;
	i = 0;
	do
	:: i < NTX ->
		if
		:: ((bits) & BIT(i)) && (who == NTX || turn[i] > turn[who]) -> who = i
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
	snap_live[t] = false;
	snap_sees[t] = 0;
	snap_xmin[t] = 0;
	snap_packer[t] = 0
}

/* Remove the rows of a transaction that aborted. */
inline undo(t) {
	i = 0;
	do
	:: i < NSEG -> rows[i] = rows[i] & ~BIT(t); i++
	:: else -> break
	od;
	i = 0;
	kind[t] = 0;
	turn[t] = 0
}

/*
 * A transaction: one claim, or one order to forget the event, then COMMIT, ROLLBACK
 * or PREPARE.  "mine" are rows that were found, bits by transaction.
 */
#define NOTHING 255
#define FORGOTTEN_AFTER(u, n) ((committed & BIT(u)) && kind[u] == FORGOTTEN && turn[u] > turn[n])
#define SEEN_OPEN(t, n) ((found & BIT(n)) && (snap_sees[t] & BIT(n)))
#ifdef MUTANT_packed_is_seen
#define SEEN_IN(t, n, j) ((in_slots & BIT(n)) && (slot[j].rows & BIT(n)))
#else
#define SEEN_IN(t, n, j) ((in_slots & BIT(n)) && (slot[j].rows & BIT(n)) && ((n) < snap_xmin[t] || (snap_packer[t] & BIT(slot[j].packer))))
#endif
#define SEEN_PACKED(t, n) (SEEN_IN(t, n, 0) || SEEN_IN(t, n, 1) || SEEN_IN(t, n, NSLOT - 1))
proctype claimant(byte t)
{
	byte g, probe, s, v = NOTHING, marks, found, in_slots, newest, i, born;

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
			EARLY(t) ->
			v = version;
			i = 0;
			do
			:: i < NSLOT -> marks = (COUNTS(i) -> marks | BIT(i) : marks); i++
			:: else -> break
			od;
			i = 0
		}
		:: skip
		fi;
#ifdef LEVELS
		/* REPEATABLE READ: the snapshot is older than all that follows. */
		if
		:: d_step {
			snap_live[t] = true;
			snap_sees[t] = committed;
			snap_packer[t] = packer_ended;
			i = 0;
			do
			:: i < NTX && (begun & ~running & BIT(i)) -> i++
			:: else -> break
			od;
			snap_xmin[t] = i;
			i = 0
		}
		:: skip
		fi;
#endif
		/* 1 */
		g = generation;
		d_step { wlock[t] = wlock[t] | BIT(SEG(g)) };
#ifdef MUTANT_probe_set_before_lock
		d_step {
			s = 0;
			do
			:: s < NSEG -> probe = (filled[s] && !NEVER_CURRENT(s) && !IS_PACKED(s) -> probe | BIT(s) : probe); s++
			:: else -> break
			od;
			s = 0
		};
#endif
		/* 2 */
		if
		:: atomic { event_lock == 0 -> event_lock = t + 1 }
		:: atomic { event_lock != 0 -> goto rollback }
		fi;
#ifndef MUTANT_generation_not_read_again
		/* 3 */
		do
		:: atomic { generation != g -> g = generation }; d_step { wlock[t] = wlock[t] | BIT(SEG(g)) }
		:: atomic { generation == g -> break }
		od;
#endif
#ifndef MUTANT_probe_set_before_lock
		/* 4 */
		s = 0;
		do
		:: d_step { s < NSEG -> probe = (filled[s] && !NEVER_CURRENT(s) && !IS_PACKED(s) -> probe | BIT(s) : probe); s++ }
		:: atomic { s == NSEG -> s = 0; break }
		od;
#endif
		/* 5 */
		do
		:: atomic {
			s < NSEG && (probe & BIT(s)) ->
			if
			:: rows[s] & running & ~BIT(t) -> goto rollback		/* busy */
			:: else -> found = found | (rows[s] & committed); probe = probe & ~BIT(s); s++
			fi
		}
		:: atomic { s < NSEG && !(probe & BIT(s)) -> s++ }
		:: atomic { s == NSEG -> s = 0; break }
		od;
		/* 6 to 8 */
again:
#ifdef MUTANT_version_after_marks
		if
		:: atomic { v == NOTHING || v != version -> marks = 0 };
			do
			:: d_step { s < NSLOT -> marks = (COUNTS(s) -> marks | BIT(s) : marks); s++ }
			:: atomic { s == NSLOT -> s = 0; break }
			od;
			v = version
		:: atomic { v != NOTHING && v == version -> skip }
		fi;
#else
		if
		:: atomic { v == NOTHING || v != version -> v = version; marks = 0 };
			do
			:: d_step { s < NSLOT -> marks = (COUNTS(s) -> marks | BIT(s) : marks); s++ }
			:: atomic { s == NSLOT -> s = 0; break }
			od
		:: atomic { v != NOTHING && v == version -> skip }
		fi;
#endif
		in_slots = 0;
#ifdef MUTANT_first_hit_decides
		s = (found != 0 -> NSLOT : 0);
#endif
		do
		:: atomic { s < NSLOT -> in_slots = (marks & BIT(s) -> in_slots | slot[s].rows : in_slots); s++ }
		:: atomic { s == NSLOT -> s = 0; break }
		od;
#ifndef MUTANT_version_not_compared
		if
		:: atomic { v != version ->
#ifdef REACH_searched_again
			arrived = true; assert(!arrived);
#endif
			goto again
		}
		:: atomic { v == version -> skip }
		fi;
#endif
		/* 9: the verdict, and the row.  Nobody else can have the event now. */
		atomic {
			newest_of(newest, found | in_slots);
			if
			:: newest != NTX && kind[newest] == DONE && KIND(t) != FORGOTTEN ->
				if
				:: snap_live[t] && !SEEN_OPEN(t, newest) && !SEEN_PACKED(t, newest) -> goto rollback	/* 40001 */
				:: else
				fi;
				must(!snap_live[t] || (snap_sees[t] & BIT(newest)), duplicate_unseen);
				wal_flush();
				must(committed & BIT(newest), duplicate_of_nothing);
				must(!(FORGOTTEN_AFTER(0, newest) || FORGOTTEN_AFTER(1, newest) || FORGOTTEN_AFTER(NTX - 1, newest)), forgotten_is_duplicate);
#ifdef REACH_found_packed
				if
				:: !(found & BIT(newest)) -> arrived = true; assert(!arrived)
				:: else
				fi;
#endif
				promised = promised | BIT(newest);
				newest = 0;
				goto rollback
			:: else
			fi;
			turn[t] = (newest == NTX -> 1 : turn[newest] + 1);
			kind[t] = KIND(t);
			rows[SEG(g)] = rows[SEG(g)] | BIT(t);
			newest = 0;
			found = 0;
			in_slots = 0;
			marks = 0;
			v = 0
		};
		/* Past the budget of locks the event lock is let go once the row is there. */
#ifdef BUDGET
		if
		:: d_step { t == 0 -> event_lock = 0 }
		:: skip
		fi;
#endif
#ifdef PREPARED
		if
		:: d_step { t == 0 ->  wal_flush(); prepared = prepared | BIT(t) }
		:: skip
		fi;
#endif
		if
		:: atomic {
			newest_committed(s, t);
			must(kind[t] != DONE || s == NTX || kind[s] != DONE || (expired & BIT(s)), effect_twice);
			s = 0;
#ifdef REACH_second_turn
			if
			:: g >= NSEG -> arrived = true; assert(!arrived)
			:: else
			fi;
#endif
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
	atomic { g = 0; probe = 0; s = 0; v = 0; marks = 0; found = 0; in_slots = 0; newest = 0; i = 0; born = 0 }
}

/*
 * The packer.  It may fail after each step, and begins anew; what it then finds it
 * finishes or undoes.  A run's number is that of the packer's transaction as well.
 */
#define NO_WRITER(s) ((WRITERS & BIT(s)) == 0)
#ifdef MUTANT_no_drain
#define DRAINED(s) true
#else
#define DRAINED(s) NO_WRITER(s)
#endif
#define IS_OF(j, g) (slot[j].state == COMPLETE && slot[j].source == (g) + 1)
#define IN_SLOT(g) (IS_OF(0, g) || IS_OF(1, g) || IS_OF(NSLOT - 1, g))
#define WAITS(j, s) (IS_OF(j, GENERATION_OF(s)) && !SEEN_BY_ALL(slot[j].packer))
#define CLOSED(s) ((s) != CURRENT && (s) <= generation && filled[s])
#define MAY_PACK(s) (CLOSED(s) && !IS_PACKED(s) && !IN_SLOT(GENERATION_OF(s)) && DRAINED(s))
#define UNHELD(s) (NO_WRITER(s) && !(dump_lock & BIT(s)))
#define MAY_CUT(s) (CLOSED(s) && IS_PACKED(s) && UNHELD(s) && !WAITS(0, s) && !WAITS(1, s) && !WAITS(NSLOT - 1, s))
#define ANY_SLOT(x) (slot[0].state == (x) || slot[1].state == (x) || slot[NSLOT - 1].state == (x))
#define FIRST_SLOT(x) (slot[0].state == (x) -> 0 : (slot[1].state == (x) -> 1 : NSLOT - 1))
#define HAS_RUN(j, bits) (slot[j].state == COMPLETE && ((bits) & BIT(slot[j].number)))
#define REMAINS(bits) (HAS_RUN(0, bits) || HAS_RUN(1, bits) || HAS_RUN(NSLOT - 1, bits))
#define REPLACES(i, j) (slot[i].state == COMPLETE && (slot[i].replaces & BIT(slot[j].number)) && SEEN_BY_ALL(slot[i].packer))
#define SUPERSEDED(j) (slot[j].state == COMPLETE && (REPLACES(0, j) || REPLACES(1, j) || REPLACES(NSLOT - 1, j)))
#define NOTHING_REMAINS(j) (!REMAINS(slot[j].replaces))
#define MAY_CUT_SLOT(j) (!(dump_lock & BIT(NSEG + (j))) && (slot[j].state == EXPIRED || SUPERSEDED(j) && NOTHING_REMAINS(j)))
#define MAY_MERGE_INTO(j) (slot[j].state == EMPTY && COUNTS((j + 1) % NSLOT) && COUNTS((j + 2) % NSLOT))
#define HAS_TOMB(j) (((slot[j].rows & BIT(0)) && kind[0] == FORGOTTEN) || ((slot[j].rows & BIT(1)) && kind[1] == FORGOTTEN) || ((slot[j].rows & BIT(NTX - 1)) && kind[NTX - 1] == FORGOTTEN))
#define ELSEWHERE(j) (rows[0] | rows[1] | rows[NSEG - 1] | slot[(j + 1) % NSLOT].rows)
#ifdef MUTANT_tombstone_expires_first
#define MAY_EXPIRE(j) COUNTS(j)
#else
#define MAY_EXPIRE(j) (COUNTS(j) && !(HAS_TOMB(j) && ELSEWHERE(j) != 0))
#endif

inline fill(j, from) {
	slot[j].state = FILLING;
	slot[j].number = next_run;
	slot[j].packer = next_run;
	slot[j].rows = from;
	next_run++
}

#define MAY_FAIL if :: d_step { fails < FAILS -> fails++ }; goto restart :: skip fi

proctype packing()
{
	byte s, j, k, i, born;

	do
	:: {
		skip;
restart:
		/* A former one failed or crashed: its transaction is over, its run counts or does not. */
		atomic {
			s = 0;
			j = 0;
			k = 0;
			packer_ended = BIT(next_run) - 1;
			do
			:: j < NSLOT ->
				if
				:: slot[j].state == FILLING -> slot_clear(slot[j])
				:: else
				fi;
				j++
			:: else -> j = 0; break
			od
		};
		if
		:: unpublished -> d_step { wal_flush() }; d_step { version++; unpublished = false }
		:: !unpublished -> skip
		fi;
		do
		:: d_step { s < NSEG && CLOSED(s) && IN_SLOT(GENERATION_OF(s)) ->
#ifdef REACH_resumed
			arrived = (crashes > 0 && !IS_PACKED(s)); assert(!arrived);
#endif
			packed[s] = GENERATION_OF(s) + 1; s++ }
		:: d_step { s < NSEG && !(CLOSED(s) && IN_SLOT(GENERATION_OF(s))) -> s++ }
		:: atomic { s == NSEG -> s = 0; break }
		od;
end_work:
		if
		/* Close the current segment: raise the generation, but only onto an empty one. */
		:: d_step {
			generation < MAXGEN && !filled[SEG(generation + 1)] ->
			generation++;
			filled[CURRENT] = true
		}; goto end_work

		/* Pack a closed segment whose writers have gone into an empty slot. */
		:: atomic {
			next_run < MAXRUN && (MAY_PACK(0) || MAY_PACK(1) || MAY_PACK(NSEG - 1)) && ANY_SLOT(EMPTY) ->
			s = (MAY_PACK(0) -> 0 : (MAY_PACK(1) -> 1 : NSEG - 1));
			j = FIRST_SLOT(EMPTY);
			k = rows[s] & committed;
			slot[j].source = GENERATION_OF(s) + 1;
			fill(j, k);
			k = 0
		}; goto write_mark
#ifdef MERGE
		/* Merge two runs. */
		:: atomic {
			next_run < MAXRUN && MAY_MERGE_INTO(0) -> j = 0; goto merge
		}
		:: atomic {
			next_run < MAXRUN && MAY_MERGE_INTO(1) -> j = 1; goto merge
		}
		:: atomic {
			next_run < MAXRUN && MAY_MERGE_INTO(2) -> j = 2; goto merge
		}
#endif
		/* Cut a segment that was packed. */
		:: d_step {
			MAY_CUT(0) -> rows[0] = 0; disk.rows[0] = 0; filled[0] = false
		}; goto end_work
		:: d_step {
			MAY_CUT(1) -> rows[1] = 0; disk.rows[1] = 0; filled[1] = false
		}; goto end_work
#if NSEG > 2
		:: d_step {
			MAY_CUT(2) -> rows[2] = 0; disk.rows[2] = 0; filled[2] = false
		}; goto end_work
#endif
		/* Cut a slot that was merged, or has expired. */
		:: d_step {
			MAY_CUT_SLOT(0) -> disk.slot[0].rows = 0; slot_clear(slot[0])
		}; goto end_work
		:: d_step {
			MAY_CUT_SLOT(1) -> disk.slot[1].rows = 0; slot_clear(slot[1])
		}; goto end_work
#if NSLOT > 2
		:: d_step {
			MAY_CUT_SLOT(2) -> disk.slot[2].rows = 0; slot_clear(slot[2])
		}; goto end_work
#endif
#ifdef EXPIRY
		:: atomic { MAY_EXPIRE(0) -> j = 0 }; goto expire
		:: atomic { MAY_EXPIRE(1) -> j = 1 }; goto expire
#endif
		fi;
#ifdef EXPIRY
expire:
		atomic { slot[j].state = EXPIRED; expired = expired | slot[j].rows };
		d_step { version++ };
		j = 0;
		goto end_work;
#endif
#ifdef MERGE
merge:
		atomic {
			slot[j].replaces = BIT(slot[(j + 1) % NSLOT].number) | BIT(slot[(j + 2) % NSLOT].number);
			k = slot[(j + 1) % NSLOT].rows | slot[(j + 2) % NSLOT].rows;
			fill(j, k);
			k = 0;
			s = NSEG
		};
#endif
write_mark:
		MAY_FAIL;
		/* Frozen: the end mark counts before its transaction has committed. */
#ifdef MUTANT_unprobed_at_mark
		d_step { slot[j].state = COMPLETE; unpublished = true; if :: s < NSEG -> packed[s] = GENERATION_OF(s) + 1 :: else fi };
#elif defined(MUTANT_cut_before_mark)
		d_step { if :: s < NSEG && !(dump_lock & BIT(s)) -> rows[s] = 0; disk.rows[s] = 0 :: else fi };
		d_step { slot[j].state = COMPLETE; unpublished = true };
#else
		d_step { slot[j].state = COMPLETE; unpublished = true };
#endif
		MAY_FAIL;
		d_step { packer_ended = packer_ended | BIT(slot[j].packer) };
#ifndef MUTANT_mark_unflushed
		d_step { wal_flush() };
#endif
		MAY_FAIL;
#ifdef MUTANT_version_not_raised
		d_step { unpublished = false };
#else
		d_step { version++; unpublished = false };
#endif
		MAY_FAIL;
		d_step {
			if
			:: s < NSEG -> packed[s] = GENERATION_OF(s) + 1
			:: else
			fi;
			s = 0;
			j = 0
		};
		goto end_work
	} unless { d_step { crashes > born -> born = crashes } }
	od
}

/* A dump: one snapshot, and each table locked when its turn comes, to the end. */
#ifdef DUMP
#define NTABLES (NSEG + NSLOT)
#ifdef MUTANT_dump_unfiltered
#define DUMPED(j) (slot[j].state == COMPLETE -> slot[j].rows : 0)
#else
#define DUMPED(j) (slot[j].state == COMPLETE && (dump_packer & BIT(slot[j].packer)) -> slot[j].rows : 0)
#endif
inline dump_table(x) {
	d_step {
		!(dump_lock & BIT(x)) ->
		dump_lock = dump_lock | BIT(x);
		if
		:: x < NSEG -> got = got | (rows[x] & dump_sees)
		:: else -> got = got | DUMPED(x - NSEG)
		fi
	}
}

proctype dump()
{
	byte got;

	d_step { dump_live = true; dump_sees = committed; dump_packer = packer_ended };
	do
	:: dump_table(0)
	:: dump_table(1)
	:: dump_table(2)
	:: dump_table(3)
	:: atomic { dump_lock == BIT(NTABLES) - 1 -> break }
	od;
	atomic {
		must((got & dump_sees) == dump_sees, dump_lost_effect);
		must((got & ~dump_sees) == 0, dump_invented_effect);
		dump_lock = 0;
		dump_live = false;
		dump_sees = 0;
		dump_packer = 0;
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
		expired = disk.expired;
		generation = disk.generation;
		next_run = disk.next_run;
		packer_ended = 0;
		do
		:: i < NSEG ->
			packed[i] = disk.packed[i];
			rows[i] = disk.rows[i] & (committed | prepared);
			filled[i] = disk.filled[i];
			i++
		:: else -> i = 0; break
		od;
		do
		:: i < NSLOT -> slot_copy(slot[i], disk.slot[i]); i++
		:: else -> i = 0; break
		od;
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
		must((promised & ~committed) == 0, promise_broken);
		unpublished = true;
		version = 0;
		wal_forget();
		crashes++
	}
	od
}
#endif

init {
	atomic {
		filled[0] = true;
		run claimant(0);
		run claimant(1);
#if NTX > 2
		run claimant(2);
#endif
		run packing();
#ifdef DUMP
		run dump();
#endif
#if CRASHES > 0
		run server()
#endif
	}
}
