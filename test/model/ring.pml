/*
 * ring.pml
 *		The outbox's ring of segments: writers, readers by differences of
 *		snapshots, rotation, emptying, and a crash that loses the end of the WAL.
 *
 * Models src/outbox: writer.c, segment.c, reader.c, range.c, snapshot.c and
 * maintain.c.  Each atomic block is one step that the code takes under one
 * lock, or that nobody can look into; the function that takes it stands above.
 *
 * Bounds: NTX transactions, one of them with two events and able to stay open
 * for ever, the others with one; NSEG segments, of which three are enough to have
 * a current, a closed and an empty one; NREADERS readers; at most MAXROT
 * rotations; each reader's worker restarts MAXRESTARTS times; with CRASHES one
 * crash of the server at most, at any moment, that loses any part of the WAL that
 * nothing has flushed.  LONG adds a writer beside the crash and a restart
 * elsewhere.
 *
 * Abstracted:
 *	- Time: a segment that is not empty is due at any moment, or never; events
 *	  are older than the retention.
 *	- A session's guess of the current segment is any segment.
 *	- The buffer of places has room for the whole difference, or for one place.
 *	- Housekeeping reads the positions when it needs them, not once before.  A
 *	  position does not go back but by a crash, which ends housekeeping, too; so
 *	  an older one would only empty less.
 *	- One transaction of housekeeping empties one segment.
 *	- TOAST is part of the heap, the index lock part of the heap's.
 *	- The reader takes all segments' locks in one step.  Housekeeping does not
 *	  wait, and what it did before the last lock it may have done before the first.
 *	- A reader's batch is one step under these locks: its events do not change.
 *	- A transaction leaves the running ones and gives its locks back in one step.
 *	- A savepoint changes nothing, since events carry the top-level xid; without
 *	  subtransactions, prepared transactions, VACUUM FULL, REINDEX and DDL.
 *
 * Properties: the assertions called must(), a guarantee each; its name is the
 * variable that becomes true when it does not hold.
 */
/* BOUNDS crash: two writers, one reader that restarts, a crash */
/* BOUNDS writers: three writers, one reader */
/* BOUNDS readers: two writers, two readers */
/* MUTANT generation_before_lock: a writer reads the generation, then locks (outbox-late-writer) */
/* MUTANT index_after_commit: an event's index entry follows its transaction's commit */
/* MUTANT seq_cursor: a reader's position is the last number it read (outbox-seq-cursor) */
/* MUTANT xid_cursor: a difference is the xids after the earlier snapshot's xmax (outbox-xid-cursor) */
/* MUTANT done_by_xmin: a difference is what is after the earlier snapshot's xmin */
/* MUTANT done_by_xmax: no rows to read, so the reader takes running transactions for done */
/* MUTANT cur_renewed: a restarted reader goes on behind k with a newer snapshot */
/* MUTANT batch_ends_difference: the end of a batch is taken for the end of the difference */
/* MUTANT k_unwritten: the row of a position leaves k out */
/* MUTANT places_unsorted: places are given out in order of (xid, seq), as the index has them */
/* MUTANT no_gate: events leave the server before the WAL of their commit is flushed (relay-no-gate) */
/* MUTANT empty_running: emptying asks for xmax only, not for what was running (outbox-release-running) */
/* MUTANT empty_by_xmin: emptying asks for xmin, so an idle transaction stops all of it */
/* MUTANT empty_one_reader in readers: delivered at one position is enough (outbox-one-relay-suffices) */
/* MUTANT empty_unlocked: emptying does not ask whether somebody holds the segment */
/* MUTANT empty_looks_once: emptying looks before it locks, not for holders, and not again after */
/* MUTANT empty_current: emptying does not leave the current segment out */
/* MUTANT cut_unflushed: files are cut before the WAL is flushed (PostgreSQL before 15.11 and 17.3) */
/* MUTANT remains_kept: a segment without index entries counts as empty and is not repaired */
/* MUTANT rotate_to_next: the next segment becomes current, whether it is empty or not */
/* MUTANT rotate_by_index: a segment without index entries may become current, whatever its files are */
/* MUTANT generation_unlogged: a crash takes the generation back to the start */
/* REACH second_turn in writers: a segment is current for the second time, and an event is committed into it */
/* REACH straggler: a reader reads an event of a transaction that was running at the position before */
/* REACH half_emptied: after a crash a segment has a heap and an index without blocks */
/* REACH reread: after a crash a reader has an event before it that it had read */
/* REACH lost_commit: a crash loses an asynchronous commit */
/* REACH retry: a writer that holds a lock finds itself overtaken and tries again */
/* REACH rest: nothing more can happen */
/* REACH beside_open: a segment is emptied while a transaction with events in another is open */

#ifdef LONG
#define MORE 1
#else
#define MORE 0
#endif
#if defined(BOUNDS_writers)
#define NTX 3
#define MAXROT 3
#define NREADERS 1
#define MAXRESTARTS MORE
#define CRASHES 0
#elif defined(BOUNDS_readers)
#define NTX 2
#define MAXROT 3
#define NREADERS 2
#define MAXRESTARTS MORE
#define CRASHES 0
#else
#define NTX (2 + MORE)
#define MAXROT 3
#define NREADERS 1
#define MAXRESTARTS 1
#define CRASHES 1
#endif
#define NSEG 3
#define NEV (NTX + 1)

#define BIT(i) (1 << (i))
/* Transaction 0 has events 0 and 1, transaction t > 0 has event t + 1. */
#define TX(e) ((e) < 2 -> 0 : (e) - 1)
#define XID(e) xid[TX(e)]

/*
 * Where each process is, and its variables, are global, so that a crash ends all
 * of them in one step.
 */
#define W_BEGIN 0
#define W_LOCK 1
#define W_CHECK 2
#define W_HEAP 3
#define W_INDEX 4
#define W_NEXT 5
#define W_COMMITTED 6
#define W_OPEN 7
#define W_ENDED 8
byte at[NTX];					/* one of these */
byte segment[NTX];				/* writer->segment */
#define ANY NSEG
bool again[NTX];				/* its lock was there before */
byte event[NTX];				/* the one being inserted */

#define M_IDLE 0
#define M_CLOSE 1
#define M_LOCK 2
#define M_LOCKED 3
#define M_CUT 4
#define M_INDEX_CUT 5
#define M_HEAP_CUT 6
byte doing;						/* one of these */
byte emptying;					/* the segment */
byte next;						/* generation */

/*
 * Transactions.  "running" is the shared array of processes, by xid; "ended"
 * says that a transaction is in the commit log, "committed" how.
 */
byte xid[NTX];
byte nextxid = 1;
byte latest;					/* latest completed xid */
byte running;					/* bits by xid */
byte begun, committed, aborted;	/* bits by transaction */

/* The log. */
byte generation;
byte nextseq = 1;
byte seq[NEV];
#define GONE 255
byte heap[NSEG], index[NSEG];	/* bits by event */
byte noblocks;					/* segments whose index has no blocks */

/* Locks on segments, as bits: of writers, of housekeeping, and of readers on all. */
byte wlock[NTX];
byte excl;
byte rlock;

/* A reader's position in memory and its row in the log of positions. */
typedef Position {
	byte done_xmax, done_xip;
	byte cur_xmax, cur_xip;		/* cur_xmax 0: no difference */
	byte k;
	byte got					/* what was read before it: for the assertions */
}
Position pos[NREADERS], row[NREADERS];

/* Keys of a difference. */
byte places[NREADERS];			/* bits by event */
byte after[NREADERS];			/* places are the first with a greater number */
bool more[NREADERS];			/* places do not hold the rest */

/* What of all this is in flushed WAL, if a crash is to return to it. */
typedef Flushed {
	bool valid;
	byte nextxid, committed, generation, nextseq, noblocks;
	byte heap[NSEG], index[NSEG];
	Position row[NREADERS]
}
Flushed disk;
byte walxid;					/* last xid in the WAL */

/* For assertions. */
byte written_in[NEV];			/* generation that an event was written in */
byte was_current[NTX];			/* segments that were current while locked */
bool event_outside_current, index_without_blocks, event_lost, event_of_aborted,
	event_read_twice, event_out_of_order, row_unexplained, phantom_sent,
	emptied_undelivered, current_not_pristine, generation_too_old,
	position_of_the_future, event_undelivered, segment_not_emptied, arrived;

inline must(condition, name) {
	if
	:: !(condition) -> name = true; assert(!name)
	:: else
	fi
}

#define CURRENT (generation % NSEG)
#define PRISTINE(s) (heap[s] == 0 && index[s] == 0 && !(noblocks & BIT(s)))
#define IN_HEAP(e) ((heap[0] | heap[1] | heap[2]) & BIT(e))
#define IN_INDEX(e) ((index[0] | index[1] | index[2]) & BIT(e))

/* idem_snap_current */
#define SNAP_XMAX (latest + 1)
#define SNAP_XIP (running & (BIT(latest + 1) - 1))

/* idem_snap_sees */
#define SEES(xmax, xip, x) ((x) < (xmax) && !((xip) & BIT(x)))
#define SEEN_BY_DONE(r, e) SEES(pos[r].done_xmax, pos[r].done_xip, XID(e))
#define SEEN_BY_CUR(r, e) SEES(pos[r].cur_xmax, pos[r].cur_xip, XID(e))

/* An event that everybody has to be told of. */
#define COMMITTED(e) ((committed & BIT(TX(e))) && seq[e] != 0)

/* range.c, cut_pieces and walk_entry: is an index entry of the difference? */
#if defined(MUTANT_xid_cursor)
#define IN_RANGES(r, e) (XID(e) >= pos[r].done_xmax)
#elif defined(MUTANT_done_by_xmin)
#define IN_RANGES(r, e) (XID(e) >= pos[r].done_xmax || (BIT(XID(e) + 1) > (pos[r].done_xip & -pos[r].done_xip) && pos[r].done_xip != 0))
#else
#define IN_RANGES(r, e) (XID(e) >= pos[r].done_xmax || (pos[r].done_xip & BIT(XID(e))))
#endif
#define WANTED(r, e) (IN_INDEX(e) && IN_RANGES(r, e) && SEEN_BY_CUR(r, e) && seq[e] > after[r])

/* maintain.c, is_delivered, for one event and position */
#if defined(MUTANT_empty_running)
#define PASSED(r, e) (XID(e) < row[r].done_xmax)
#elif defined(MUTANT_empty_by_xmin)
#define PASSED(r, e) (XID(e) < row[r].done_xmax && (row[r].done_xip & (BIT(XID(e) + 1) - 1)) == 0)
#else
#define PASSED(r, e) SEES(row[r].done_xmax, row[r].done_xip, XID(e))
#endif
#define KEEPS(r, s, e) ((index[s] & BIT(e)) && !PASSED(r, e))
#if NTX == 2
#define NEEDED_BY(r, s) (KEEPS(r, s, 0) || KEEPS(r, s, 1) || KEEPS(r, s, 2))
#elif NTX == 3
#define NEEDED_BY(r, s) (KEEPS(r, s, 0) || KEEPS(r, s, 1) || KEEPS(r, s, 2) || KEEPS(r, s, 3))
#else
#define NEEDED_BY(r, s) (KEEPS(r, s, 0) || KEEPS(r, s, 1) || KEEPS(r, s, 2) || KEEPS(r, s, 3) || KEEPS(r, s, 4))
#endif
#if NREADERS == 1
#define DELIVERED(s) (!NEEDED_BY(0, s))
#elif defined(MUTANT_empty_one_reader)
#define DELIVERED(s) (!NEEDED_BY(0, s) || !NEEDED_BY(1, s))
#else
#define DELIVERED(s) (!NEEDED_BY(0, s) && !NEEDED_BY(1, s))
#endif
#ifdef MUTANT_remains_kept
#define RELEASABLE(s) (index[s] != 0 && DELIVERED(s))
#else
#define RELEASABLE(s) (!PRISTINE(s) && DELIVERED(s))
#endif

/* empty.c, idem_empty_is_held */
#if NTX == 2
#define WRITERS_HOLD (wlock[0] | wlock[1])
#elif NTX == 3
#define WRITERS_HOLD (wlock[0] | wlock[1] | wlock[2])
#else
#define WRITERS_HOLD (wlock[0] | wlock[1] | wlock[2] | wlock[3])
#endif
#ifdef MUTANT_empty_unlocked
#define HELD(s) false
#else
#define HELD(s) ((WRITERS_HOLD & BIT(s)) || rlock != 0)
#endif

/* maintain.c, try_to_empty: before the lock */
#ifdef MUTANT_empty_current
#define CANDIDATE(s) (!PRISTINE(s) && !HELD(s) && RELEASABLE(s))
#elif defined(MUTANT_empty_looks_once)
#define CANDIDATE(s) (s != CURRENT && !PRISTINE(s) && RELEASABLE(s))
#else
#define CANDIDATE(s) (s != CURRENT && !PRISTINE(s) && !HELD(s) && RELEASABLE(s))
#endif

/* maintain.c, steps_to_empty: may the segment become current? */
#if defined(MUTANT_rotate_to_next)
#define TAKEABLE(s) true
#elif defined(MUTANT_rotate_by_index)
#define TAKEABLE(s) (index[s] == 0)
#else
#define TAKEABLE(s) PRISTINE(s)
#endif
#define FREE(steps) TAKEABLE((generation + steps) % NSEG)

/*
 * WAL.  wal_mark: all of it so far is flushed, and the crash, if one comes,
 * loses what follows.  wal_flush: more is flushed; such a crash cannot be.
 */
inline wal_mark() {
	disk.valid = true;
	disk.nextxid = walxid + 1;
	disk.committed = committed;
	disk.generation = generation;
	disk.nextseq = nextseq;
	disk.noblocks = noblocks;
	i = 0;
	do
	:: i < NSEG -> disk.heap[i] = heap[i]; disk.index[i] = index[i]; i++
	:: else -> break
	od;
	i = 0;
	do
	:: i < NREADERS -> position_copy(disk.row[i], row[i]); i++
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

inline position_copy(to, from) {
	to.done_xmax = from.done_xmax;
	to.done_xip = from.done_xip;
	to.cur_xmax = from.cur_xmax;
	to.cur_xip = from.cur_xip;
	to.k = from.k;
	to.got = from.got
}

inline wal_forget() {
	disk.valid = false;
	disk.nextxid = 0;
	disk.committed = 0;
	disk.generation = 0;
	disk.nextseq = 0;
	disk.noblocks = 0;
	i = 0;
	do
	:: i < NSEG -> disk.heap[i] = 0; disk.index[i] = 0; i++
	:: else -> break
	od;
	i = 0;
	do
	:: i < NREADERS -> position_clear(disk.row[i]); i++
	:: else -> break
	od;
	i = 0
}

inline position_clear(p) {
	p.done_xmax = 0;
	p.done_xip = 0;
	p.cur_xmax = 0;
	p.cur_xip = 0;
	p.k = 0;
	p.got = 0
}

#define WAL_XID(x) walxid = (walxid < (x) -> (x) : walxid)

inline end_transaction(t) {
	running = running & ~BIT(xid[t]);
	latest = (latest < xid[t] -> xid[t] : latest);
	wlock[t] = 0;
	was_current[t] = 0
}

/*
 * A writer, a transaction each: idem_outbox_insert once per event, then COMMIT,
 * ROLLBACK, or for transaction 0 neither.
 */
proctype writer(byte t)
{
	byte s;

end_writer:
	do
	/* GetTopFullTransactionId; writers are alike, so their order is given */
	:: d_step {
		at[t] == W_BEGIN && (t <= 1 || begun & BIT(t - 1)) ->
		begun = begun | BIT(t);
		xid[t] = nextxid;
		running = running | BIT(nextxid);
		nextxid++;
		event[t] = (t == 0 -> 0 : t + 1);
		at[t] = W_LOCK;
		segment[t] = ANY
	}

	/* open_current_segment: guessed_segment is any, at first */
#ifdef MUTANT_generation_before_lock
	:: d_step { at[t] == W_LOCK && segment[t] == ANY -> segment[t] = CURRENT }
	:: atomic {
		at[t] == W_LOCK && segment[t] != ANY && !(excl & BIT(segment[t])) ->
		s = segment[t];
#else
	:: atomic {
		at[t] == W_LOCK && (segment[t] == ANY -> excl != BIT(NSEG) - 1 : !(excl & BIT(segment[t]))) ->
		if
		:: segment[t] != ANY -> s = segment[t]
		:: segment[t] == ANY && !(excl & BIT(0)) -> s = 0
		:: segment[t] == ANY && !(excl & BIT(1)) -> s = 1
		:: segment[t] == ANY && !(excl & BIT(2)) -> s = 2
		fi;
#endif
		/* table_open(RowExclusiveLock); a second event may find the first one's */
		again[t] = ((wlock[t] & BIT(s)) != 0);
		wlock[t] = wlock[t] | BIT(s);
		was_current[t] = was_current[t] | (s == CURRENT -> BIT(s) : 0);
		segment[t] = s;
		at[t] = W_CHECK;
		s = 0
	}

	/* idem_outbox_generation_locked; table_close if overtaken */
	:: d_step {
		at[t] == W_CHECK ->
#ifdef MUTANT_generation_before_lock
		at[t] = W_HEAP;
#else
		if
		:: segment[t] == CURRENT -> at[t] = W_HEAP
		:: else ->
#ifdef REACH_retry
			arrived = true; assert(!arrived);
#endif
			wlock[t] = wlock[t] & ~(again[t] -> 0 : BIT(segment[t]));
			was_current[t] = was_current[t] & ~(again[t] -> 0 : BIT(segment[t]));
			segment[t] = CURRENT;
			at[t] = W_LOCK
		fi;
#endif
		again[t] = false
	}

	/* form_tuple: nextval; heap_insert */
	:: d_step {
		at[t] == W_HEAP ->
		seq[event[t]] = nextseq;
		nextseq++;
		heap[segment[t]] = heap[segment[t]] | BIT(event[t]);
		written_in[event[t]] = generation;
		WAL_XID(xid[t]);
		must(was_current[t] & BIT(segment[t]), event_outside_current);
		must(!(noblocks & BIT(segment[t])), index_without_blocks);
#ifdef MUTANT_index_after_commit
		at[t] = W_NEXT
#else
		at[t] = W_INDEX
#endif
	}

	/* insert_index_entry */
	:: d_step {
		at[t] == W_INDEX ->
		index[segment[t]] = index[segment[t]] | BIT(event[t]);
#ifdef MUTANT_index_after_commit
		at[t] = W_ENDED;
		segment[t] = 0;
		event[t] = 0;
#else
		at[t] = W_NEXT
#endif
	}

	/* the transaction's next statement */
	:: d_step { at[t] == W_NEXT && event[t] == 0 -> event[t] = 1; at[t] = W_LOCK; segment[t] = ANY }

	/* a session that sits idle in its transaction */
	:: d_step { at[t] == W_NEXT && t == 0 -> at[t] = W_OPEN; segment[t] = 0; event[t] = 0 }

	/* RecordTransactionCommit, asynchronous */
	:: d_step {
		at[t] == W_NEXT && event[t] != 0 ->
		committed = committed | BIT(t);
		WAL_XID(xid[t]);
		at[t] = W_COMMITTED
	}

	/* RecordTransactionAbort, ProcArrayEndTransaction, LockReleaseAll */
	:: d_step {
		at[t] == W_NEXT ->
		aborted = aborted | BIT(t);
		WAL_XID(xid[t]);
		end_transaction(t);
		at[t] = W_ENDED;
		segment[t] = 0;
		event[t] = 0
	}

	/* ProcArrayEndTransaction, LockReleaseAll */
	:: d_step {
		at[t] == W_COMMITTED ->
#ifdef REACH_second_turn
		arrived = written_in[event[t]] >= NSEG; assert(!arrived);
#endif
		end_transaction(t);
#ifdef MUTANT_index_after_commit
		at[t] = W_INDEX
#else
		at[t] = W_ENDED;
		segment[t] = 0;
		event[t] = 0
#endif
	}
	od
}

/* The place to be given out next: the one with the least number. */
inline least_place(r) {
	m = NEV;
	i = 0;
	do
	:: i < NEV ->
		if
		:: !(places[r] & BIT(i))
		:: else ->
			if
			:: m == NEV -> m = i
#ifdef MUTANT_places_unsorted
			:: m != NEV && (XID(i) < XID(m) || (XID(i) == XID(m) && seq[i] < seq[m])) -> m = i
#else
			:: m != NEV && seq[i] < seq[m] -> m = i
#endif
			:: else
			fi
		fi;
		i++
	:: else -> break
	od;
	i = 0
}

/* range.c, fill: all places that are left, or the first */
inline fill(r) {
	places[r] = 0;
	i = 0;
	do
	:: i < NEV ->
		if
		:: WANTED(r, i) -> places[r] = places[r] | BIT(i)
		:: else
		fi;
		i++
	:: else -> break
	od;
	i = 0
}

/* The row that was read is the next one of the difference, and the first time. */
inline check_event(r) {
	must(!(pos[r].got & BIT(m)), event_read_twice);
	must(!(aborted & BIT(TX(m))), event_of_aborted);
	i = 0;
	do
	:: i < NEV ->
		must(!(COMMITTED(i) && SEEN_BY_CUR(r, i) && !SEEN_BY_DONE(r, i) && seq[i] < seq[m]) || (pos[r].got & BIT(i)), event_out_of_order);
		i++
	:: else -> break
	od;
	i = 0
}

/* All that the snapshot sees was read. */
inline check_end(r) {
	i = 0;
	do
	:: i < NEV ->
		must(!(COMMITTED(i) && SEEN_BY_CUR(r, i)) || (pos[r].got & BIT(i)), event_lost);
		i++
	:: else -> break
	od;
	i = 0
}

#define SAME_POSITION(r) (pos[r].done_xmax == row[r].done_xmax && pos[r].done_xip == row[r].done_xip \
	&& pos[r].cur_xmax == row[r].cur_xmax && pos[r].cur_xip == row[r].cur_xip && pos[r].k == row[r].k)

/* idem_position_last, idem_reader_seek */
inline resume(r) {
	position_copy(pos[r], row[r]);
#ifdef MUTANT_cur_renewed
	if
	:: pos[r].cur_xmax != 0 -> pos[r].cur_xmax = SNAP_XMAX; pos[r].cur_xip = SNAP_XIP
	:: else
	fi;
#endif
	places[r] = 0;
	after[r] = pos[r].k;
	more[r] = (pos[r].cur_xmax != 0)
}

/* idem_reader_next: fetch_key, check_row_is_gone */
inline reader_next(r) {
	least_place(r);
	places[r] = places[r] & ~BIT(m);
	after[r] = seq[m];
	if
	:: IN_HEAP(m) && (committed & BIT(TX(m))) && !(running & BIT(XID(m))) ->
		check_event(r);
#ifdef REACH_straggler
		arrived = XID(m) < pos[r].done_xmax; assert(!arrived);
#endif
		pos[r].k = seq[m];
		pos[r].got = pos[r].got | BIT(m);
		sending = true
	:: else ->
		must(!(IN_HEAP(m) && ((committed & BIT(TX(m))) || (running & BIT(XID(m))))), row_unexplained)
	fi;
	m = 0
}

/* The difference is at its end: done becomes cur. */
inline end_difference(r) {
	check_end(r);
	pos[r].done_xmax = pos[r].cur_xmax;
	pos[r].done_xip = pos[r].cur_xip;
#ifdef MUTANT_done_by_xmax
	pos[r].done_xip = (sending || pos[r].k -> pos[r].done_xip : 0);
#endif
	pos[r].cur_xmax = 0;
	pos[r].cur_xip = 0;
#ifndef MUTANT_seq_cursor
	pos[r].k = 0;
#endif
	after[r] = 0
}

/* After the transaction, and the gate: events leave the server. */
inline send(r) {
	if
	:: sending ->
#ifndef MUTANT_no_gate
		wal_flush();
#endif
		i = 0;
		do
		:: i < NEV ->
			must(!disk.valid || !(pos[r].got & BIT(i)) || (disk.committed & BIT(TX(i))), phantom_sent);
			i++
		:: else -> break
		od;
		i = 0
	:: else
	fi;
	sending = false
}

/*
 * A relay's worker, which reads a difference in batches.  What it reads cannot
 * change while it holds the locks, so a batch is one step, and the locks are
 * held for a while before it.
 */
proctype reader(byte r)
{
	byte i, m;
	byte restarts;
	bool sending;				/* the batch has an event */

end_reader:
	do
	/* idem_snap_current, if it differs from done */
	:: d_step {
		pos[r].cur_xmax == 0 && (pos[r].done_xmax != SNAP_XMAX || pos[r].done_xip != SNAP_XIP) ->
		pos[r].cur_xmax = SNAP_XMAX;
		pos[r].cur_xip = SNAP_XIP;
#ifdef MUTANT_seq_cursor
		after[r] = pos[r].k;
#else
		after[r] = 0;
		pos[r].k = 0;
#endif
		places[r] = 0;
		more[r] = true
	}

	/* enter: AccessShareLock on all segments; idem_range_next: fill */
	:: atomic {
		pos[r].cur_xmax != 0 && !(rlock & BIT(r)) && excl == 0 ->
		rlock = rlock | BIT(r);
		if
		:: places[r] == 0 && more[r] -> d_step { fill(r); more[r] = false };
			if
			:: places[r] & (places[r] - 1) -> d_step { least_place(r); more[r] = true; places[r] = BIT(m); m = 0 }
			:: true
			fi
		:: else
		fi
	}

	/* next events until the batch is full or the difference ends; suspend; send */
	:: atomic {
		rlock & BIT(r) ->
		do
		:: places[r] != 0 -> d_step { reader_next(r) }
		:: places[r] == 0 && more[r] -> d_step { fill(r); more[r] = false }
		:: sending && (places[r] != 0 || more[r]) ->
#ifdef MUTANT_batch_ends_difference
			d_step { end_difference(r) };
#endif
			break
		:: places[r] == 0 && !more[r] -> d_step { end_difference(r) }; break
		od;
		d_step { rlock = rlock & ~BIT(r); send(r) }
	}

	/* idem_position_append, at some time after the sink's answer */
	:: d_step {
		!(rlock & BIT(r)) && !SAME_POSITION(r) ->
		position_copy(row[r], pos[r]);
#ifdef MUTANT_k_unwritten
		row[r].k = 0;
#endif
	}

	/* the worker ends, and another one begins with the row */
	:: d_step {
		restarts < MAXRESTARTS && !SAME_POSITION(r) ->
		restarts++;
		rlock = rlock & ~BIT(r);
		resume(r)
	}
	od
}

/* Files are cut at once; their WAL is flushed before (RelationTruncate). */
inline flush_before_cut() {
#ifdef MUTANT_cut_unflushed
	skip
#else
	wal_flush()
#endif
}

/* Everything in the segment has been delivered, durably, to everybody. */
inline check_emptied(s) {
	i = 0;
	do
	:: i < NEV ->
		if
		:: !(heap[s] & BIT(i)) || (aborted & BIT(TX(i)))
		:: else ->
			must((committed & BIT(TX(i))) && (row[0].got & BIT(i)) && (row[NREADERS - 1].got & BIT(i)), emptied_undelivered);
			must(!disk.valid || ((disk.row[0].got & BIT(i)) && (disk.row[NREADERS - 1].got & BIT(i))), emptied_undelivered)
		fi;
		i++
	:: else -> break
	od;
	i = 0
}

/* Nothing refers to the numbers of emptied events any more: fewer states. */
inline forget_emptied(s) {
	do
	:: i < NEV ->
		if
		:: (heap[s] & BIT(i)) && COMMITTED(i) -> seq[i] = GONE; written_in[i] = 0
		:: else
		fi;
		i++
	:: else -> break
	od;
	i = 0
}

/* idem_outbox_maintain, again and again */
proctype maintain()
{
	byte i;

end_maintain:
	do
	/* close_if_due: steps_to_empty, is_due */
	:: d_step {
		doing == M_IDLE && generation < MAXROT && index[CURRENT] != 0 && (FREE(1) || FREE(2)) ->
		next = generation + (FREE(1) -> 1 : 2);
		doing = M_CLOSE
	}
	/* idem_outbox_set_generation */
	:: d_step {
		doing == M_CLOSE ->
		generation = next;
		next = 0;
		must(PRISTINE(CURRENT), current_not_pristine);
		i = 0;
		do
		:: i < NTX -> was_current[i] = was_current[i] | (wlock[i] & BIT(CURRENT)); i++
		:: else -> break
		od;
		i = 0;
		doing = M_IDLE
	}

	/* try_to_empty: is_releasable before the lock */
	:: atomic {
		doing == M_IDLE && (CANDIDATE(0) || CANDIDATE(1) || CANDIDATE(2)) ->
		if
		:: CANDIDATE(0) -> emptying = 0
		:: CANDIDATE(1) -> emptying = 1
		:: CANDIDATE(2) -> emptying = 2
		fi;
		doing = M_LOCK
	}
	/* idem_empty_lock */
	:: d_step {
		doing == M_LOCK ->
		if
		:: !HELD(emptying) -> excl = BIT(emptying); doing = M_LOCKED
		:: else -> emptying = 0; doing = M_IDLE
		fi
	}
	/* is_releasable after it */
	:: d_step {
		doing == M_LOCKED ->
		if
#ifndef MUTANT_empty_looks_once
		:: !(!PRISTINE(emptying) && RELEASABLE(emptying)) -> excl = 0; emptying = 0; doing = M_IDLE
#endif
		:: else -> doing = M_CUT
		fi
	}
	/* empty_in_place: RelationTruncate of the index */
	:: d_step {
		doing == M_CUT ->
		flush_before_cut();
		check_emptied(emptying);
		forget_emptied(emptying);
		index[emptying] = 0;
		noblocks = noblocks | BIT(emptying);
#ifdef MUTANT_cut_unflushed
		disk.index[emptying] = 0;
		disk.noblocks = disk.noblocks | (disk.valid -> BIT(emptying) : 0);
#endif
#ifdef REACH_beside_open
		arrived = at[0] == W_OPEN; assert(!arrived);
#endif
		doing = M_INDEX_CUT
	}
	/* heap_truncate_one_rel: the heap */
	:: d_step {
		doing == M_INDEX_CUT ->
		flush_before_cut();
		heap[emptying] = 0;
#ifdef MUTANT_cut_unflushed
		disk.heap[emptying] = 0;
#endif
		doing = M_HEAP_CUT
	}
	/* heap_truncate_one_rel: index_build; the transaction's end */
	:: d_step {
		doing == M_HEAP_CUT ->
		noblocks = noblocks & ~BIT(emptying);
		excl = 0;
		emptying = 0;
		doing = M_IDLE
	}
	od
}

/* The server goes down, all at once, and recovers from the WAL that was flushed. */
proctype crash()
{
	byte i;

	d_step { wal_mark() };
	if
	:: !disk.valid
	:: d_step {
		disk.valid ->
#ifdef REACH_lost_commit
		arrived = committed & ~disk.committed; assert(!arrived);
#endif
#ifdef REACH_reread
		arrived = pos[0].got != disk.row[0].got; assert(!arrived);
#endif
		/* whoever is under way is gone; a session that has not begun connects later */
		i = 0;
		do
		:: i < NTX ->
			at[i] = (at[i] == W_BEGIN -> W_BEGIN : W_ENDED);
			again[i] = false;
			segment[i] = 0;
			event[i] = 0;
			wlock[i] = 0;
			was_current[i] = 0;
			i++
		:: else -> break
		od;
		doing = M_IDLE;
		emptying = 0;
		next = 0;
		committed = disk.committed;
		aborted = begun & ~committed;
		nextxid = disk.nextxid;
		walxid = nextxid - 1;
		latest = nextxid - 1;
		running = 0;
#ifdef MUTANT_generation_unlogged
		generation = 0;
#else
		generation = disk.generation;
#endif
		nextseq = disk.nextseq;
		noblocks = disk.noblocks;
		excl = 0;
		rlock = 0;
		i = 0;
		do
		:: i < NSEG ->
			heap[i] = disk.heap[i];
			index[i] = disk.index[i];
#ifdef REACH_half_emptied
			arrived = heap[i] != 0 && (noblocks & BIT(i)); assert(!arrived);
#endif
			i++
		:: else -> break
		od;
		i = 0;
		do
		:: i < NREADERS ->
			position_copy(row[i], disk.row[i]);
			must(row[i].done_xmax <= nextxid && row[i].cur_xmax <= nextxid, position_of_the_future);
			resume(i);
			i++
		:: else -> break
		od;
		i = 0;
		do
		:: i < NEV -> must(!COMMITTED(i) || written_in[i] <= generation, generation_too_old); i++
		:: else -> break
		od;
		wal_forget();
		i = 0
	}
	fi
}

/* When nothing more can happen, everything has arrived, and is emptied but for what is open. */
proctype quiet()
{
	byte i;

	atomic {
		timeout ->
#ifdef REACH_rest
		arrived = true; assert(!arrived);
#endif
		i = 0;
		do
		:: i < NEV ->
			must(!COMMITTED(i) || ((row[0].got & BIT(i)) && (row[NREADERS - 1].got & BIT(i))), event_undelivered);
			i++
		:: else -> break
		od;
		i = 0;
		do
		:: i < NSEG ->
			must(i == CURRENT || PRISTINE(i) || (WRITERS_HOLD & BIT(i)), segment_not_emptied);
			i++
		:: else -> break
		od;
		i = 0
	}
}

init {
	byte i;

	d_step {
		i = 0;
		do
		:: i < NREADERS -> pos[i].done_xmax = 1; row[i].done_xmax = 1; i++
		:: else -> break
		od;
		i = 0
	};
	atomic {
		do
		:: i < NTX -> run writer(i); i++
		:: else -> break
		od;
		i = 0;
		do
		:: i < NREADERS -> run reader(i); i++
		:: else -> break
		od;
		i = 0;
		run maintain();
#if CRASHES
		run crash();
#endif
		run quiet()
	}
}
