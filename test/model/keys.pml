/*
 * keys.pml
 *		Where the rows of an event stand in a segment (src/store/keys.c): claims of one event,
 *		who makes the keys and is stopped, rows by other hands, VACUUM, an emptier, a rewrite, ALTER
 *		SEQUENCE, the trigger altered, a look-up by an older snapshot, and a crash.
 *
 * Files: keys.c, keys_head.c, keys_page.c; ring.c and store.c (probe,
 * look-up, insert_rows), store_fn.c (the trigger), rotate.c (emptier).  Each atomic block is one
 * step under the content lock of one page, or one that nobody can look into.
 *
 * Every claim uses the event anew: its row has a higher turn than all that are committed.
 * So "the newest committed row is found" is what a claim needs, whatever the row says, and
 * several committed rows of the event stand side by side.
 *
 * Bounds: NTX claims of one row each; the first may have a second one, in place of the
 * first row; NPLACE places; one look-up, one crash, one ALTER.  Nothing else is counted: the
 * keys are made, and who makes them is stopped, VACUUM, emptier and rewrite come as often as
 * there is something to do.
 *
 * Abstracted:
 *	- A block has one line pointer.  A row goes to the first free place of the file, or behind
 *	  its end.
 *	- Other events: a place with another event's row is a free one.  A page always has
 *	  room for one more entry.
 *	- "changes" of a page, and "round" of a head, are a bit for each process: has it changed
 *	  since it was read?
 *	- Keys are the present ones of their file or former ones, for what a session remembers and
 *	  for what a page belongs to: who remembers former keys takes all former pages for theirs.
 *	- Pages: the first one, to which the event belongs until it is split, and the second one,
 *	  to which the event belongs then.  When the keys are made anew the second page stays.
 *	- The segment's file: a head is of this one, or of another one.  A rewrite that is undone
 *	  is one step, because nobody can look into it.
 *	- An invalidation is a bit for each process that has something to forget.  It is accepted when a
 *	  session asks whether the keys can be relied on; what it accepts earlier makes the same
 *	  difference.  Catalogs that were committed are seen before the invalidation comes, if
 *	  a session happens to look at them.
 *	- The rows of all entries that were read are visited in one step, and so are those
 *	  that are tidied.
 *	- Entries are tidied at any moment when one was entered, not only if there are many.
 *	- A crash loses no commit: a commit that it loses is an abort.
 *	- Who reads a page of a file that ALTER SEQUENCE has thrown away gets an error.
 *
 * Properties: the assertions called must(), a guarantee each; its name is the
 * variable that becomes true when it does not hold.
 */
/* BOUNDS claims: three claims, a look-up, VACUUM, an emptier */
/* BOUNDS replaced: two claims, one past the budget of locks, with ROLLBACK TO after its first row was deleted; a look-up, VACUUM */
/* BOUNDS lookup: two claims, a row by another hand, a look-up by a snapshot that may be older, VACUUM */
/* BOUNDS byhand: three claims, a row by another hand, VACUUM */
/* BOUNDS split: three claims, a row by another hand, VACUUM; the page of the event is split */
/* BOUNDS rewrite: two claims, a look-up; the segment is written anew, also in a transaction that aborts; the page of the event is split */
/* BOUNDS crash: three claims, prepared ones too, a look-up, a crash */
/* BOUNDS deleted: three committed rows; a claim, two who delete a row by hand */
/* BOUNDS updated: two committed rows; a claim, one who updates a row by hand, a look-up */
/* BOUNDS altered: a committed row; two claims, ALTER SEQUENCE with a row by another hand */
/* BOUNDS trigger: two committed rows; a claim, a look-up; the trigger is altered, with a row by another hand and one that is deleted */
/* MUTANT entry_before_row in byhand: the entry is there before the row */
/* MUTANT state_before_append in byhand: a writer looks at the state before its row is in the heap */
/* MUTANT uncommitted_skipped in byhand: who makes the keys leaves rows of running transactions out */
/* MUTANT filling_probed in byhand: a probe relies on keys that are being made */
/* MUTANT length_before_filling in byhand: the file's length is read before the state is FILLING */
/* MUTANT stopped_is_ready in byhand: who is stopped leaves the state READY */
/* MUTANT block_before_rows in byhand: a block counts as done before its rows are entered */
/* MUTANT end_not_checked: a place beyond the end of the file is visited */
/* MUTANT end_not_checked_filling: the length read by a filler that was stopped is believed after VACUUM has cut the file */
/* MUTANT tag_believed in byhand: a place that an entry names is believed to have a row of the event */
/* MUTANT read_unlocked in split: entries of a page are read one by one, without its lock */
/* MUTANT keys_kept: the segment is emptied, and its keys stay */
/* MUTANT cut_unlocked: the keys are cut without the exclusive lock of the segment */
/* MUTANT cut_untold: nobody is told that the keys were cut */
/* MUTANT file_not_compared in rewrite: keys of the file before a rewrite are believed */
/* MUTANT remade_untold in rewrite: nobody is told that keys are made anew (begin_filling) */
/* MUTANT collected_unchecked in altered: a look-up does not ask whether the keys have changed since they were trusted */
/* MUTANT tidy_unchecked in byhand: entries are removed although the page has changed since the rows were looked at */
/* MUTANT tidy_own_deleted in replaced: entries of rows go that the own transaction has deleted */
/* MUTANT tidy_newer_uncommitted in byhand: the entry of a committed row goes although the newer row is not committed */
/* MUTANT tidy_newer_removed in deleted: the entry of a committed row goes although somebody is removing the newer row */
/* MUTANT looks_once in replaced: a probe that meets a dead row does not look again */
/* MUTANT dead_unasked in deleted: a probe that meets a dead row does not ask whether rows were removed by hand */
/* MUTANT keys_believed in updated: a look-up by snapshot believes the keys, whatever rows they name */
/* MUTANT thinned_unset in crash: a page does not say that entries of committed rows went */
/* MUTANT unseen_is_dead in crash: a look-up takes a row for dead that its snapshot does not see */
/* MUTANT trigger_missing in byhand: a row by another hand is not entered */
/* MUTANT delete_untold in deleted: a row is removed by hand, and those before it, whose entries went, are not looked for */
/* MUTANT ready_remembered in deleted: a session relies on READY whatever it is told */
/* MUTANT told_before_head in deleted: who takes READY back tells it before it has the head */
/* MUTANT told_after_unlock in deleted: who takes READY back tells it when others have the head */
/* MUTANT round_kept in deleted: a row is removed by hand while the keys are made, and no new round begins */
/* MUTANT keys_survive in crash: a crash leaves the state READY, and entries lost */
/* MUTANT page_believed in split: who knows the number of pages from before a split is not told */
/* MUTANT changes_anew in split: the page that was split off counts its changes from the start */
/* MUTANT altering_fills in altered: who alters the sequence fills its new file */
/* MUTANT absent_untold in altered: a writer that finds no keys tells nobody */
/* MUTANT trigger_unwatched in trigger: keys are believed that know the trigger as it was before it was altered */
/* MUTANT anew_if_ours in trigger: who has altered the trigger removes a row, and leaves keys that know the trigger as it was */
/* REACH filled_by_two in crash: one makes the keys that another one has begun to make */
/* REACH filled_past_end: who goes on after another one finds the file shorter */
/* REACH filling_entered in byhand: a writer enters its row while another one makes the keys */
/* REACH committed_removed in byhand: the entry of a committed row is removed */
/* REACH read_all in lookup: a look-up reads the segment */
/* REACH round_again in deleted: who makes the keys begins another round */
/* REACH prepared_filled in crash: after a crash the row of a prepared transaction gets its entry */
/* COMPILE LONG: -DCOLLAPSE */

#define NTX 2
#define NPLACE 3
#define NPAST 0
#if defined(BOUNDS_claims)
#undef NTX
#define NTX 3
#define VACUUM 1
#define EMPTIER 1
#define LOOKUP 1
#define SPLIT 1
#elif defined(BOUNDS_replaced)
#define SECOND_ROW 1
#define VACUUM 1
#define LOOKUP 1
#elif defined(BOUNDS_lookup)
#define LOOKUP 1
#define HAND 1
#define VACUUM 1
#elif defined(BOUNDS_byhand)
#undef NTX
#define NTX 3
#define HAND 1
#define VACUUM 1
#elif defined(BOUNDS_split)
#undef NTX
#define NTX 3
#define HAND 1
#define VACUUM 1
#define SPLIT 1
#elif defined(BOUNDS_rewrite)
#define REWRITE 1
#define SPLIT 1
#define LOOKUP 1
#elif defined(BOUNDS_crash)
#undef NTX
#define NTX 3
#define CRASH 1
#define PREPARED 1
#define LOOKUP 1
#elif defined(BOUNDS_deleted)
#undef NPAST
#define NPAST 3
#undef NPLACE
#define NPLACE 4
#undef NTX
#define NTX 1
#define DELETERS 2
#elif defined(BOUNDS_updated)
#undef NPAST
#define NPAST 2
#undef NPLACE
#define NPLACE 4
#undef NTX
#define NTX 1
#define DELETERS 1
#define UPDATES 1
#define LOOKUP 1
#elif defined(BOUNDS_altered)
#undef NPAST
#define NPAST 1
#define ALTER_SEQUENCE 1
#elif defined(BOUNDS_trigger)
#undef NPAST
#define NPAST 2
#undef NPLACE
#define NPLACE 4
#undef NTX
#define NTX 1
#define ALTER_TRIGGER 1
#define LOOKUP 1
#endif

#define BIT(i) (1 << (i))

/* Processes; those that write are transactions as well. */
#define P_HAND NTX
#define P_LOOKER (NTX + 1)
#define P_DELETER (NTX + 2)
#define P_OTHER (NTX + 3)		/* the second who deletes, or who alters */
#define P_PAST 7				/* committed before the walk begins */

/* Rows, each of a transaction. */
#define R_REPLACEMENT NTX		/* the first claim's second row */
#define R_HAND (NTX + 1)
#define R_UPDATED (NTX + 2)
#define R_PAST (NTX + 3)		/* and those behind it */
#define NROW (R_PAST + NPAST)
#if defined(ALTER_SEQUENCE) || defined(ALTER_TRIGGER)
#define HAND_OWNER P_OTHER
#else
#define HAND_OWNER P_HAND
#endif
#define OWNER(r) owner[r]
#define NONE 255

/* Transactions, bits. */
byte begun, running, committed, prepared;

/* The segment: in each place a row plus one. */
byte heap[NPLACE];
byte blocks;
byte turn[NROW];
hidden byte owner[NROW];		/* never changes */
byte xmax[NROW];				/* the process plus one that removes the row */
byte undone;					/* bits by row: its subtransaction has aborted */

/* The files of the keys: the first one, and the one of ALTER SEQUENCE. */
#ifdef ALTER_SEQUENCE
#define NFILE 2
#define F(me) ((sees & BIT(me)) -> 1 : 0)
#define OF_FILE(f) ((f) == 1 -> sees : ~sees & 255)
#else
#define NFILE 1
#define F(me) 0
#define OF_FILE(f) 255
#endif
#define ABSENT 0
#define FILLING 1
#define READY 2
byte state[NFILE];
bool of_other[NFILE];			/* the head is of another file of the segment */
bool knows_new[NFILE];			/* and knows the trigger as it is altered */
byte next[NFILE];				/* place; */
byte until[NFILE];				/* the length */
bool two[NFILE];				/* there are two pages */
byte entries[NFILE];			/* of the first page: bits by place */
byte entries_two[NFILE];		/* of the second page, */
bool has_two[NFILE];			/* which is in the file, */
bool former_two[NFILE];			/* and is one of former keys */
bool thinned[NFILE];
bool gone;						/* the first file was thrown away */

/* What sessions remember; bits by process. */
byte live;						/* begun, and not ended */
byte told;						/* there is an invalidation to accept */
byte known;						/* keys that were READY, */
byte known_former;				/* which are former ones by now, */
byte known_two;					/* and had two pages */
byte use, use_former, use_two;	/* the same, of the keys that are used now */
byte unchanged;					/* the page, since it was read */
byte same_round;				/* as next_block knows */
byte sees;						/* the sequence's new file */
byte sees_new;					/* the trigger as it is altered */

/* What catalogs say. */
bool new_file, new_trigger;

/* Locks. */
byte holders;					/* bits by process: of the segment, in any mode */
byte writers;					/* of them those in RowExclusive mode */
bool exclusive;					/* of the segment */
bool no_writers;				/* ShareRowExclusive on the segment */
byte event_lock;				/* transaction plus one */
byte filler;					/* LockPage; process plus one */
byte sequence_holders;			/* bits by process */
byte altering;					/* process plus one */

/* The snapshot of a look-up: transactions that it sees. */
bool snap_live;
byte snap_sees;

byte crashes;					/* so far: who sees it rise has ended */

/* For assertions. */
byte filled_by;
bool newest_missed, lookup_missed, read_past_end, keys_past_end, keys_of_emptied, row_invented, arrived;

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

/* Rows, by what others see of them. */
#define RUNS(p) ((running & BIT(p)) != 0)
#define REMOVER(r) (xmax[r] - 1)
#define BEING_REMOVED(r) (xmax[r] != 0 && RUNS(REMOVER(r)))
#define REMOVED(r) (xmax[r] != 0 && (committed & BIT(REMOVER(r))))
#define BEING_WRITTEN(r) (!(undone & BIT(r)) && (RUNS(OWNER(r)) || BEING_REMOVED(r) && (committed & BIT(OWNER(r)))))
#define IS_COMMITTED(r) ((committed & BIT(OWNER(r))) && !(undone & BIT(r)) && !REMOVED(r))
#define ABORTED(r) ((undone & BIT(r)) || !((running | committed) & BIT(OWNER(r))))
#define IS_DEAD(r) (ABORTED(r) || REMOVED(r) && (!snap_live || (snap_sees & BIT(REMOVER(r)))))
#define IS_SEEN(r) ((snap_sees & BIT(OWNER(r))) && !(undone & BIT(r)) && !(xmax[r] != 0 && (snap_sees & BIT(REMOVER(r)))))
#define HAS_ROW(p) ((p) < blocks && heap[p] != 0 && heap[p] <= NROW)
#define ROW(p) (heap[p] - 1)
#define EVERYWHERE (BIT(NPLACE) - 1)

/* The highest turn of rows in a set of places. */
inline newest_in(set, condition) {
	newest = 0;
	i = 0;
	do
	:: i < NPLACE ->
		if
		:: ((set) & BIT(i)) && HAS_ROW(i) ->
			r = ROW(i);
			if
			:: (condition) && turn[r] > newest -> newest = turn[r]
			:: else
			fi;
			r = 0
		:: else
		fi;
		i++
	:: else -> break
	od;
	i = 0
}

/* What a session remembers */

#ifdef ALTER_TRIGGER
#define SAME_TRIGGER(me) (knows_new[F(me)] == ((sees_new & BIT(me)) != 0))
#else
#define SAME_TRIGGER(me) true
#endif
#ifdef MUTANT_file_not_compared
#define IS_OURS(me) true
#elif defined(MUTANT_trigger_unwatched)
#define IS_OURS(me) (!of_other[F(me)])
#else
#define IS_OURS(me) (!of_other[F(me)] && SAME_TRIGGER(me))
#endif
#define IS_GONE(me) (gone && F(me) == 0)
#define HEAD_STATE(me) (IS_OURS(me) && !IS_GONE(me) -> state[F(me)] : ABSENT)

/* idem_announce_change. */
inline announce() {
	told = told | known | use
}

inline forget_known(me) {
	known = known & ~BIT(me);
	known_former = known_former & ~BIT(me);
	known_two = known_two & ~BIT(me)
}

inline forget_use(me) {
	use = use & ~BIT(me);
	use_former = use_former & ~BIT(me);
	use_two = use_two & ~BIT(me)
}

inline accept(me) {
#ifndef MUTANT_ready_remembered
	forget_known(me);
#endif
	told = told & ~BIT(me);
#ifdef ALTER_SEQUENCE
	sees = (new_file -> sees | BIT(me) : sees);
#endif
#ifdef ALTER_TRIGGER
	sees_new = (new_trigger -> sees_new | BIT(me) : sees_new)
#endif
}

/* idem_keys_are_trusted; a session may have looked at the catalogs before it is told. */
#if defined(ALTER_SEQUENCE) && !defined(MUTANT_altering_fills)
#define TRUSTED(me) (altering != me + 1 || !RUNS(me))
#else
#define TRUSTED(me) true
#endif
#if defined(ALTER_SEQUENCE) || defined(ALTER_TRIGGER)
#define LOOKS_EARLY (new_file || new_trigger)
#else
#define LOOKS_EARLY false
#endif
inline trust(me) {
	if
	:: (told & BIT(me)) || LOOKS_EARLY -> accept(me)
	:: !(told & BIT(me))
	fi
}

/* idem_keys_read_head. */
inline read_head(me) {
	forget_use(me);
	said = HEAD_STATE(me);
	if
	:: said != ABSENT ->
		use = use | BIT(me);
		use_two = (two[F(me)] -> use_two | BIT(me) : use_two)
	:: else
	fi;
	if
	:: said == READY ->
		known = known | BIT(me);
		known_former = known_former & ~BIT(me);
		known_two = (two[F(me)] -> known_two | BIT(me) : known_two & ~BIT(me))
	:: else
	fi
}

/* idem_keys_get_head. */
inline get_head(me) {
	if
	:: (known & BIT(me)) ->
		said = READY;
		use = use | BIT(me);
		use_former = (use_former & ~BIT(me)) | (known_former & BIT(me));
		use_two = (use_two & ~BIT(me)) | (known_two & BIT(me))
	:: else -> read_head(me)
	fi
}

/*
 * idem_keys_lock_page.  Afterwards "page" is the first or the second one, or NO_PAGE, or a page
 * that is asked for the wrong hash.
 */
#define NO_PAGE 0
#define FIRST 1
#define SECOND 2
#define OTHER_HASH 3
#ifdef MUTANT_page_believed
#define SPLIT_SINCE(me) false
#else
#define SPLIT_SINCE(me) two[F(me)]
#endif
#define BELONGS(me) ((use_two & BIT(me)) -> ((use_former & BIT(me)) != 0) == former_two[F(me)] : !(use_former & BIT(me)) && !SPLIT_SINCE(me))
inline lock_page(me) {
	must(!(use_two & BIT(me)) || has_two[F(me)] || IS_GONE(me), keys_past_end);
	if
	:: BELONGS(me) -> page = ((use_two & BIT(me)) -> SECOND : FIRST)
	:: !BELONGS(me) && (use_former & BIT(me)) ->
		forget_known(me);
#ifdef MUTANT_old_hash_new_seed
		page = (HEAD_STATE(me) == ABSENT -> NO_PAGE : OTHER_HASH)
#else
		page = NO_PAGE
#endif
	:: else ->
		forget_known(me);
		page = (HEAD_STATE(me) == ABSENT -> NO_PAGE : (two[F(me)] -> SECOND : FIRST));
		use_two = (page == SECOND -> use_two | BIT(me) : use_two)
	fi
}
#define ENTRIES(me) (page == FIRST -> entries[F(me)] : (page == SECOND -> entries_two[F(me)] : 0))

/* Put the entry of a place into the page. */
inline enter(me, place) {
	lock_page(me);
	if
	:: page == FIRST -> entries[F(me)] = entries[F(me)] | BIT(place)
	:: page == SECOND -> entries_two[F(me)] = entries_two[F(me)] | BIT(place)
	:: else
	fi;
	unchanged = (page != NO_PAGE -> 0 : unchanged);
	page = 0
}

/* Of the places in a set: those of which the entry need not be there (find_needless). */
#ifdef MUTANT_tidy_newer_uncommitted
#define MAKES_OLD(me, r) (IS_COMMITTED(r) && !BEING_REMOVED(r) || RUNS(OWNER(r)))
#elif defined(MUTANT_tidy_newer_removed)
#define MAKES_OLD(me, r) IS_COMMITTED(r)
#else
#define MAKES_OLD(me, r) (IS_COMMITTED(r) && !BEING_REMOVED(r))
#endif
#ifdef MUTANT_tidy_own_deleted
#define IS_NEEDLESS(me, r) (IS_DEAD(r) || xmax[r] == me + 1)
#else
#define IS_NEEDLESS(me, r) IS_DEAD(r)
#endif
inline find_needless(me) {
	newest_in(list, MAKES_OLD(me, r));
	thin = false;
	i = 0;
	do
	:: i < NPLACE ->
		if
		:: (list & BIT(i)) && HAS_ROW(i) ->
			if
			:: IS_NEEDLESS(me, ROW(i))
			:: !IS_NEEDLESS(me, ROW(i)) && MAKES_OLD(me, ROW(i)) && turn[ROW(i)] < newest ->
				thin = true
#ifdef REACH_committed_removed
				; reached()
#endif
			:: else -> list = list & ~BIT(i)
			fi
		:: else
		fi;
		i++
	:: else -> break
	od;
	i = 0;
	newest = 0
}

#ifdef MUTANT_tidy_unchecked
#define MAY_REMOVE(me) true
#else
#define MAY_REMOVE(me) (unchanged & BIT(me))
#endif
inline tidy(me) {
	if
	:: skip
	:: atomic {
			!IS_GONE(me) && (use & BIT(me));
			lock_page(me);
			list = ENTRIES(me);
			page = 0;
			list = ((list & (list - 1)) != 0 -> list : 0);
			unchanged = (list != 0 -> unchanged | BIT(me) : unchanged)
		};
		if
		:: list != 0 ->
			d_step { find_needless(me) };
			d_step {
				if
				:: list != 0 && !IS_GONE(me) ->
					lock_page(me);
					if
					:: !MAY_REMOVE(me)
					:: MAY_REMOVE(me) && page == FIRST -> entries[F(me)] = entries[F(me)] & ~list; unchanged = 0
					:: MAY_REMOVE(me) && page == SECOND -> entries_two[F(me)] = entries_two[F(me)] & ~list; unchanged = 0
					:: else
					fi;
#ifndef MUTANT_thinned_unset
					thinned[F(me)] = thinned[F(me)] || thin
#endif
				:: else
				fi;
				unchanged = unchanged & ~BIT(me);
				page = 0;
				list = 0;
				thin = false
			}
		:: else
		fi
	fi
}

/* Making the keys */

/* make_head, and what follows for those who remember former keys. */
inline make_head(f) {
	known_former = known_former | (known & OF_FILE(f));
	use_former = use_former | (use & OF_FILE(f));
	entries[f] = 0;
	two[f] = false;
	former_two[f] = has_two[f];
	thinned[f] = false;
	of_other[f] = false;
	next[f] = 0;
	until[f] = NONE;
	state[f] = FILLING;
	filled_by = 0
}

#ifdef MUTANT_uncommitted_skipped
#define ENTERED(p) (HAS_ROW(p) && !RUNS(OWNER(ROW(p))))
#else
#define ENTERED(p) HAS_ROW(p)
#endif
#ifdef MUTANT_end_not_checked_filling
#define BEYOND_END(p) false
#else
#define BEYOND_END(p) ((p) >= blocks)
#endif
#ifdef MUTANT_fills_unlocked
#define SEQUENCE_FREE(me) true
#define LOCK_SEQUENCE(me) skip
#else
#define SEQUENCE_FREE(me) (altering == 0 || altering == me + 1)
#define LOCK_SEQUENCE(me) sequence_holders = sequence_holders | BIT(me)
#endif

/* The shape that next_block took from the head. */
inline get_use(me) {
	use = use | BIT(me);
	use_former = use_former & ~BIT(me);
	use_two = (two[F(me)] -> use_two | BIT(me) : use_two & ~BIT(me))
}

/*
 * fill: make the keys, or go on where another one was stopped.  Each step may be
 * the last: an error ends the transaction, or the look-up.
 */
inline fill(me) {
#ifdef MUTANT_length_before_filling
	d_step { length = blocks };
#endif
#ifdef MUTANT_begun_before_head
	d_step {
		if
		:: HEAD_STATE(me) == ABSENT -> announce()
		:: else
		fi
	};
#endif
	if
	:: atomic { !SEQUENCE_FREE(me) -> list = EVERYWHERE; filled = false }
	:: atomic {
			SEQUENCE_FREE(me) && filler == 0 ->
			LOCK_SEQUENCE(me);
			filler = me + 1;
			filled = true;
			trust(me);
			if
			:: HEAD_STATE(me) == ABSENT ->
#if !defined(MUTANT_remade_untold) && !defined(MUTANT_begun_before_head)
				announce();
#endif
				make_head(F(me));
#ifdef ALTER_TRIGGER
				knows_new[F(me)] = ((sees_new & BIT(me)) != 0)
#endif
			:: else
			fi;
			same_round = same_round & ~BIT(me);
			done = NONE;
#ifndef MUTANT_length_before_filling
			length = NONE;
#endif
#ifdef REACH_filled_by_two
			if
			:: state[F(me)] == FILLING && filled_by != 0 && filled_by != me + 1 && next[F(me)] > 0 -> reached()
			:: else
			fi;
			filled_by = me + 1
#endif
		};
		do
		:: atomic { HEAD_STATE(me) != FILLING -> break }
		:: atomic {
				HEAD_STATE(me) == FILLING ->
#ifdef MUTANT_stopped_is_ready
				state[F(me)] = READY;
#endif
				goto rollback
			}
		:: d_step {
				HEAD_STATE(me) == FILLING ->
				/* next_block */
				if
				:: !(same_round & BIT(me)) ->
#ifdef REACH_round_again
					if
					:: done != NONE -> reached()
					:: else
					fi;
#endif
					same_round = same_round | BIT(me);
#ifndef MUTANT_length_before_filling
					length = NONE;
#endif
					done = NONE
				:: else
				fi;
				until[F(me)] = (until[F(me)] == NONE -> length : until[F(me)]);
				length = NONE;
				if
				:: until[F(me)] == NONE -> block = NONE; length = 0
				:: else ->
					next[F(me)] = (done != NONE && done + 1 > next[F(me)] -> done + 1 : next[F(me)]);
					done = NONE;
					if
					:: next[F(me)] >= until[F(me)] || BEYOND_END(next[F(me)]) ->
#ifdef REACH_filled_past_end
						if
						:: next[F(me)] < until[F(me)] -> reached()
						:: else
						fi;
#endif
						state[F(me)] = READY;
						block = NONE
					:: else ->
						must(next[F(me)] < blocks, read_past_end);
						done = next[F(me)];
						block = (ENTERED(done) -> done : NONE)
#ifdef MUTANT_block_before_rows
						; next[F(me)] = done + 1
#endif
					fi
				fi
			};
			/* the length is read, or rows are entered, without the head's lock */
			if
			:: d_step { length == 0 -> length = blocks }
			:: length != 0 && block == NONE
			:: length != 0 && block != NONE ->
#ifdef MUTANT_block_before_rows
				if
				:: skip
				:: goto rollback
				fi;
#endif
				d_step {
#ifdef REACH_prepared_filled
					if
					:: crashes > 0 && HAS_ROW(block) && (prepared & BIT(OWNER(ROW(block)))) -> reached()
					:: else
					fi;
#endif
					get_use(me);
					enter(me, block);
					block = 0
				};
				tidy(me)
			fi
		od;
		atomic {
			filler = 0;
			sequence_holders = sequence_holders & ~BIT(me);
			same_round = same_round & ~BIT(me);
			forget_use(me);
			block = 0;
			length = 0;
			done = 0
		}
	fi
}

/*
 * idem_keys_are_unchanged.  What comes between the look at the page and the question may be
 * missed here; so there are more ways to go than in the code.
 */
#ifdef MUTANT_collected_unchecked
#define UNCHANGED(me) true
#else
#define UNCHANGED(me) (!(told & BIT(me)))
#endif

#ifdef MUTANT_filling_probed
#define IS_PROBED(said) ((said) != ABSENT)
#else
#define IS_PROBED(said) ((said) == READY)
#endif

/* idem_keys_find: "list" are the places, "thin" says whether entries of older rows went. */
inline find(me) {
	do
	:: atomic {
			trust(me);
			if
			:: !TRUSTED(me) -> list = EVERYWHERE; break
			:: TRUSTED(me) -> get_head(me)
			fi
		};
		if
		:: atomic { IS_PROBED(said) && IS_GONE(me) -> goto rollback }
		:: atomic {
				IS_PROBED(said) && !IS_GONE(me) ->
				said = 0;
				lock_page(me);
#ifdef MUTANT_read_unlocked
				list = ENTRIES(me) & 1
			};
			atomic {
				list = list | (ENTRIES(me) & ~1);
#else
				list = ENTRIES(me);
#endif
				thin = thinned[F(me)];
				forget_use(me);
				if
				:: page != NO_PAGE && UNCHANGED(me) -> page = 0; break
				:: else -> page = 0; list = 0; thin = false
				fi
			}
		:: d_step { !IS_PROBED(said) -> said = 0; forget_use(me) }
		fi;
		fill(me);
		if
		:: atomic { !filled -> break }
		:: atomic { filled -> filled = false }
		fi
	od
}

/* idem_keys_make_anew: who removes a row by hand has the keys made anew. */
inline make_anew(me) {
	atomic {
		trust(me);
#ifdef MUTANT_anew_if_ours
		said = (TRUSTED(me) -> HEAD_STATE(me) : ABSENT)
#else
		said = (TRUSTED(me) && !IS_GONE(me) -> state[F(me)] : ABSENT)
#endif
	};
	if
	:: said == ABSENT
	:: said != ABSENT ->
#ifdef MUTANT_told_before_head
			d_step {
				if
				:: state[F(me)] == READY -> announce()
				:: else
				fi
			};
#endif
			d_step {
				said = state[F(me)];
#if !defined(MUTANT_told_before_head) && !defined(MUTANT_told_after_unlock)
				if
				:: said == READY -> announce()
				:: else
				fi;
#endif
				if
				:: said != ABSENT ->
					state[F(me)] = FILLING;
					next[F(me)] = 0;
					until[F(me)] = NONE;
#ifndef MUTANT_round_kept
					same_round = 0
#endif
				:: else
				fi
			};
#ifdef MUTANT_told_after_unlock
			d_step {
				if
				:: said == READY -> announce()
				:: else
				fi
			};
#endif
			d_step { said = 0 }
	fi
}

/* Writing */

/* Put a row into the heap: into a place that is free, or behind the end. */
#define FREE(p) ((p) < NPLACE && ((p) < blocks && heap[p] == 0 || (p) == blocks))
inline append(row) {
	heap[place] = row + 1;
	blocks = (place == blocks -> blocks + 1 : blocks)
}
inline choose_place() {
	if
	:: FREE(0) -> place = 0
	:: FREE(1) -> place = 1
	:: FREE(2) -> place = 2
#if NPLACE > 3
	:: FREE(3) -> place = 3
#endif
	:: else -> goto rollback		/* no room in this model */
	fi
}

/* idem_keys_enter. */
inline enter_row(me) {
	if
	:: d_step { said == ABSENT }
	:: atomic { said != ABSENT && IS_GONE(me) -> goto rollback }
	:: d_step {
			said != ABSENT && !IS_GONE(me) ->
#ifdef REACH_filling_entered
			if
			:: said == FILLING && filler != 0 && place >= next[F(me)] && until[F(me)] == NONE -> reached()
			:: else
			fi;
#endif
			enter(me, place)
		};
		tidy(me)
	fi;
	d_step { said = 0; forget_use(me); place = 0 }
}
inline keys_enter(me) {
	atomic {
		trust(me);
		if
		:: !TRUSTED(me) -> said = ABSENT
		:: TRUSTED(me) -> get_head(me)
#if defined(ALTER_SEQUENCE) && !defined(MUTANT_absent_untold)
			;
			if
			:: said == ABSENT -> announce()
			:: else
			fi
#endif
		fi
	};
	enter_row(me)
}

/* Insert a row, then tell the keys (insert_rows). */
inline write_row(me, row) {
#if defined(MUTANT_entry_before_row)
	/* The place is known before: others leave it alone. */
	atomic { choose_place(); append(NROW) };
	atomic { trust(me); get_head(me); if :: said != ABSENT && !IS_GONE(me) -> enter(me, place) :: else fi };
	d_step { append(row); said = 0; forget_use(me); place = 0 }
#elif defined(MUTANT_state_before_append)
	atomic { trust(me); get_head(me) };
	atomic { choose_place(); append(row) };
	enter_row(me)
#else
	atomic { choose_place(); append(row) };
	keys_enter(me)
#endif
}

/* Transactions */

inline begin(me) {
	live = live | BIT(me);
	sees = (new_file -> sees | BIT(me) : sees);
	sees_new = (new_trigger -> sees_new | BIT(me) : sees_new)
}

inline end_session(me) {
	running = running & ~BIT(me);
	prepared = prepared & ~BIT(me);
	holders = holders & ~BIT(me);
	writers = writers & ~BIT(me);
	live = live & ~BIT(me);
	told = told & ~BIT(me);
	forget_known(me);
	forget_use(me);
	unchanged = unchanged & ~BIT(me);
	same_round = same_round & ~BIT(me);
	sequence_holders = sequence_holders & ~BIT(me);
	event_lock = (event_lock == me + 1 -> 0 : event_lock);
	filler = (filler == me + 1 -> 0 : filler);
	altering = (altering == me + 1 -> 0 : altering);
	sees = sees & ~BIT(me);
	sees_new = sees_new & ~BIT(me)
}

/* What the transaction was removing stays. */
inline abort_removals(me) {
	i = 0;
	do
	:: i < NROW -> xmax[i] = (xmax[i] == me + 1 && !(committed & BIT(me)) -> 0 : xmax[i]); i++
	:: else -> break
	od;
	i = 0
}

#define IS_DEAD_FOR_PROBE(p) ((list & BIT(p)) && (!HAS_ROW(p) || !IS_COMMITTED(ROW(p))))
#if NPLACE > 3
#define MET_DEAD (IS_DEAD_FOR_PROBE(0) || IS_DEAD_FOR_PROBE(1) || IS_DEAD_FOR_PROBE(2) || IS_DEAD_FOR_PROBE(3))
#else
#define MET_DEAD (IS_DEAD_FOR_PROBE(0) || IS_DEAD_FOR_PROBE(1) || IS_DEAD_FOR_PROBE(2))
#endif

/*
 * Must a probe find the row?  One that another hand brought meanwhile need not be found, since
 * it took no event lock; a commit is over when others are told.
 */
#define IS_OWED(r) (OWNER(r) != HAND_OWNER || (owed & BIT(HAND_OWNER)))

/* A transaction that claims the event. */
proctype claimant(byte t)
{
	byte list, said, newest, i, r, block, length, done, place, page, born, owed, found;
	bool thin, filled, looked_again;

#ifndef ALTER_TRIGGER
	atomic { t == 0 || (begun & BIT(t - 1)) };
#endif
	/* A session may have read the head long before. */
	if
	:: d_step { t == NTX - 1 && HEAD_STATE(t) == READY -> begin(t); read_head(t); forget_use(t); said = 0; born = crashes }
	:: skip
	fi;
	/* The segment is the current one, or one that is closed. */
	atomic {
		event_lock == 0 && !exclusive;
		if
		:: !no_writers -> writers = writers | BIT(t)
#ifdef ALTER_TRIGGER
		:: skip
#endif
		fi;
		holders = holders | BIT(t);
		event_lock = t + 1;
		owed = committed & ~live;
		begun = begun | BIT(t);
		running = running | BIT(t);
		if
		:: live & BIT(t)
		:: else -> begin(t); born = crashes
		fi
	};
	{
		skip;
again:
		find(t);
		atomic {
#ifdef MUTANT_end_not_checked
			must(list == EVERYWHERE || (list & ~(BIT(blocks) - 1)) == 0, read_past_end);
#endif
#ifdef MUTANT_tag_believed
			must(list == EVERYWHERE || (((heap[0] == 0) && (list & 1)) || ((heap[1] == 0) && (list & 2))) == 0, row_invented);
#endif
			/* Busy: somebody is writing the event, past the budget of locks or by hand. */
			newest_in(list, BEING_WRITTEN(r));
			if
			:: newest != 0 -> goto rollback
			:: else
			fi;
#ifndef MUTANT_dead_unasked
			/* A row that went by hand meanwhile may have uncovered others. */
			if
			:: MET_DEAD && (told & BIT(t)) ->
				list = 0;
				thin = false;
				goto again
			:: else
			fi;
#endif
#ifndef MUTANT_looks_once
			if
			:: MET_DEAD && !looked_again ->
				looked_again = true;
				list = 0;
				thin = false;
				goto again
			:: else
			fi;
#endif
			newest_in(list, IS_COMMITTED(r));
			found = newest;
			newest_in(EVERYWHERE, IS_COMMITTED(r) && IS_OWED(r));
			must(found >= newest, newest_missed);
			list = 0;
			thin = false;
			newest = 0;
			found = 0;
			owed = 0;
			looked_again = false;
			if
			:: !(writers & BIT(t)) -> goto rollback
			:: else
			fi;
			/* Its turn: others may be in runs. */
			i = 0;
			do
			:: i < NROW ->
				turn[t] = ((committed & BIT(OWNER(i))) && turn[i] >= turn[t] -> turn[i] + 1 : turn[t]);
				i++
			:: else -> break
			od;
			turn[t] = (turn[t] == 0 -> 1 : turn[t]);
			i = 0
		};
		write_row(t, t);
#ifdef SECOND_ROW
		/*
		 * The completion, or an error in between: the row goes, another one comes, and
		 * ROLLBACK TO may undo both.  Past the budget of locks the event lock is let go.
		 */
		if
		:: t == 0 ->
			if
			:: atomic { event_lock = 0 }
			:: skip
			fi;
			d_step { xmax[0] = 1; turn[R_REPLACEMENT] = turn[0] };
			if
			:: write_row(0, R_REPLACEMENT)
			:: skip
			fi;
			if
			:: d_step { xmax[0] = 0; undone = undone | BIT(R_REPLACEMENT) }
			:: skip
			fi
		:: else
		fi;
#endif
#ifdef PREPARED
		if
		:: d_step { prepared = prepared | BIT(t); forget_known(t) }
		:: skip
		fi;
#endif
		if
		:: d_step { committed = committed | BIT(t); end_session(t) }
		:: d_step { abort_removals(t); end_session(t) }
		fi;
		goto over;
rollback:
		atomic { abort_removals(t); end_session(t) }
	}
	unless { d_step { crashes > born && !(prepared & BIT(t)) -> born = 0 } };
over:
	atomic {
		list = 0; said = 0; newest = 0; i = 0; r = 0; block = 0; length = 0; done = 0; place = 0; page = 0;
		born = 0; owed = 0; found = 0; thin = false; filled = false; looked_again = false
	}
}

/* Rows by another hand: no event lock, any turn; a trigger enters the row. */
#ifdef HAND
proctype hand()
{
	byte list, said, newest, i, r, place, page;
	bool thin;

	atomic {
		!exclusive && !no_writers ->
		running = running | BIT(P_HAND);
		begin(P_HAND);
		holders = holders | BIT(P_HAND);
		writers = writers | BIT(P_HAND);
		if
		:: turn[R_HAND] = 1
		:: turn[R_HAND] = NTX + 2
		fi
	};
#ifdef MUTANT_trigger_missing
	atomic { choose_place(); append(R_HAND); place = 0 };
#else
	write_row(P_HAND, R_HAND);
#endif
	if
	:: committed = committed | BIT(P_HAND)
	:: skip
	fi;
rollback:
	atomic { end_session(P_HAND); said = 0; list = 0; place = 0; thin = false }
}
#endif

/* Choose the newest committed row that nobody is removing. */
inline remove_newest(me) {
	newest_in(EVERYWHERE, IS_COMMITTED(r) && !BEING_REMOVED(r));
	i = 0;
	do
	:: i < NROW ->
		xmax[i] = (newest != 0 && IS_COMMITTED(i) && !BEING_REMOVED(i) && turn[i] == newest -> me + 1 : xmax[i]);
		i++
	:: else -> break
	od;
	i = 0
}

/* Somebody removes the newest row by hand, or one of another event, or updates the newest. */
#ifdef DELETERS
proctype deleting(byte me)
{
	byte list, said, newest, i, r, place, page;
	bool thin, updates;

	atomic {
		!exclusive && !no_writers ->
		running = running | BIT(me);
		begin(me);
		holders = holders | BIT(me);
		writers = writers | BIT(me)
	};
	if
	:: d_step { remove_newest(me); newest = 0 }
#ifdef UPDATES
	:: d_step { remove_newest(me); turn[R_UPDATED] = newest; newest = 0; updates = true };
		atomic { choose_place(); append(R_UPDATED) }
#endif
	:: skip
	fi;
#ifndef MUTANT_delete_untold
	make_anew(me);
#endif
#ifdef UPDATES
	if
	:: updates -> keys_enter(me)
	:: else
	fi;
#endif
	if
	:: committed = committed | BIT(me)
	:: skip
	fi;
rollback:
	atomic { abort_removals(me); end_session(me); said = 0; list = 0; place = 0; thin = false; updates = false }
}
#endif

/* A look-up by a snapshot. */
#ifdef LOOKUP
#if defined(MUTANT_keys_believed)
#define ASKS_SEGMENT(r) false
#elif defined(MUTANT_unseen_is_dead)
#define ASKS_SEGMENT(r) (thin && RUNS(OWNER(r)))
#else
#define ASKS_SEGMENT(r) (thin && !IS_SEEN(r) && !IS_DEAD(r))
#endif
proctype looker()
{
	byte list, said, newest, i, r, block, length, done, page, found, born;
	bool thin, filled;

	d_step { snap_live = true; snap_sees = committed; begin(P_LOOKER); born = crashes };
	{
	atomic { !exclusive -> holders = holders | BIT(P_LOOKER) };
	find(P_LOOKER);
	atomic {
		newest_in(list, ASKS_SEGMENT(r));
		if
		:: newest != 0 ->
#ifdef REACH_read_all
			reached();
#endif
			list = EVERYWHERE
		:: else
		fi;
		newest_in(list, IS_SEEN(r));
		found = newest;
		newest_in(EVERYWHERE, IS_SEEN(r));
		must(found >= newest, lookup_missed)
	};
rollback:
	atomic { end_session(P_LOOKER) }
	}
	unless { d_step { crashes > born -> born = 0 } };
	d_step {
		snap_live = false;
		snap_sees = 0;
		list = 0; said = 0; newest = 0; block = 0; length = 0; done = 0; page = 0; found = 0; born = 0;
		thin = false; filled = false
	}
}
#endif

/*
 * The sequence gets another file, or the trigger is disabled and enabled; a row that no
 * trigger enters comes meanwhile, and one is deleted by hand after that.
 */
#if defined(ALTER_SEQUENCE) || defined(ALTER_TRIGGER)
proctype altering_one()
{
	byte list, said, newest, i, r, block, length, done, page, place;
	bool thin, filled;

	atomic {
#ifdef ALTER_SEQUENCE
		sequence_holders == 0 && !exclusive ->
		altering = P_OTHER + 1;
#else
		writers == 0 && !exclusive ->
		no_writers = true;
#endif
		begin(P_OTHER);
		running = running | BIT(P_OTHER);
		holders = holders | BIT(P_OTHER);
		writers = writers | BIT(P_OTHER)
	};
#ifdef ALTER_SEQUENCE
	d_step { sees = sees | BIT(P_OTHER); forget_known(P_OTHER); until[1] = NONE };
#endif
	if
	:: atomic {
			if
			:: turn[R_HAND] = 1
			:: turn[R_HAND] = NTX + NPAST + 2
			fi;
			choose_place();
			append(R_HAND);
			place = 0
		}
	:: skip
	fi;
#ifdef ALTER_TRIGGER
	d_step { sees_new = sees_new | BIT(P_OTHER); forget_known(P_OTHER) };
#endif
#ifdef ALTER_TRIGGER
	if
	:: d_step { remove_newest(P_OTHER); newest = 0 };
		make_anew(P_OTHER)
	:: skip
	fi;
#endif
	if
	:: find(P_OTHER);
		atomic { list = 0; thin = false }
	:: skip
	fi;
	if
	:: skip
	:: goto rollback
	fi;
	/* Others see it before they are told. */
	d_step {
		committed = committed | BIT(P_OTHER);
		running = running & ~BIT(P_OTHER);
#ifdef ALTER_SEQUENCE
		new_file = true
#else
		new_trigger = true
#endif
	};
	d_step { told = told | live; no_writers = false; end_session(P_OTHER) };
#ifdef ALTER_SEQUENCE
	/* The file's newest pages go, and then the file. */
	d_step { entries[0] = 0; entries_two[0] = 0 };
	d_step { gone = true; state[0] = ABSENT; next[0] = 0; until[0] = NONE; thinned[0] = false };
#endif
	goto over;
rollback:
	atomic {
#ifdef ALTER_SEQUENCE
		state[1] = ABSENT;
		next[1] = 0;
		until[1] = NONE;
		entries[1] = 0;
		thinned[1] = false;
#endif
		no_writers = false;
		abort_removals(P_OTHER);
		end_session(P_OTHER)
	};
over:
	atomic {
		list = 0; said = 0; newest = 0; block = 0; length = 0; done = 0; page = 0; place = 0; thin = false; filled = false
	}
}
#endif

/* VACUUM: dead rows go, and the file is cut at its end. */
#ifdef VACUUM
proctype vacuuming()
{
end_vacuum:
	do
	:: d_step { HAS_ROW(0) && IS_DEAD(ROW(0)) -> heap[0] = 0 }
	:: d_step { HAS_ROW(1) && IS_DEAD(ROW(1)) -> heap[1] = 0 }
	:: d_step { HAS_ROW(2) && IS_DEAD(ROW(2)) -> heap[2] = 0 }
	:: d_step { holders == 0 && !exclusive && blocks > 0 && heap[blocks - 1] == 0 -> blocks-- }
	od
}
#endif

/* idem_keys_forget. */
inline forget_keys() {
#ifndef MUTANT_cut_untold
	announce();
#endif
	make_head(0);
	state[0] = ABSENT;
	has_two[0] = false;
	former_two[0] = false;
	entries_two[0] = 0
}

/* What is packed, and seen by every snapshot, is emptied. */
#ifdef EMPTIER
proctype emptying()
{
end_emptier:
	do
#ifdef MUTANT_cut_unlocked
	:: d_step { state[0] == READY -> forget_keys() }
#endif
	:: atomic { holders == 0 && !exclusive && !snap_live && blocks > 0 -> exclusive = true };
#ifndef MUTANT_keys_kept
		d_step { forget_keys() };
#endif
		/* It may fail before the segment is cut. */
		if
		:: d_step {
			heap[0] = 0;
			heap[1] = 0;
			heap[2] = 0;
			blocks = 0;
			must(state[0] == ABSENT || (entries[0] | entries_two[0]) == 0, keys_of_emptied)
		}
		:: skip
		fi;
		d_step { exclusive = false }
	od
}
#endif

/* The segment is written anew: live rows, and those that some snapshot may see. */
#ifdef REWRITE
proctype rewriting()
{
	byte i, to;

end_rewriter:
	do
	/* For good.  Sessions compare the number of the file with the one they remember. */
	:: d_step {
		holders == 0 && !exclusive && blocks > 0 ->
		i = 0;
		to = 0;
		do
		:: i < blocks ->
			if
			:: heap[i] != 0 && !IS_DEAD(ROW(i)) ->
				heap[to] = heap[i];
				heap[i] = (to == i -> heap[i] : 0);
				to++
			:: else -> heap[i] = 0
			fi;
			i++
		:: else -> break
		od;
		blocks = to;
		i = 0;
		to = 0;
#ifndef MUTANT_file_not_compared
		known = 0;
		known_former = 0;
		known_two = 0;
		of_other[0] = true
#endif
	}
	/* In a transaction that made keys of the new file, and then aborts. */
	:: d_step {
		holders == 0 && !exclusive ->
#ifndef MUTANT_remade_untold
		announce();
#endif
		make_head(0);
		state[0] = READY;
		of_other[0] = true
	}
	od
}
#endif

#ifdef SPLIT
proctype splitting()
{
end_splitter:
	do
	:: d_step {
		state[0] != ABSENT && !of_other[0] && !two[0] ->
		two[0] = true;
		has_two[0] = true;
		former_two[0] = false;
		entries_two[0] = entries[0];
		entries[0] = 0;
#ifdef MUTANT_changes_anew
		/* The counter may come to be what it was. */
		unchanged = live
#else
		unchanged = 0
#endif
	}
	od
}
#endif

/* A crash.  The unlogged pages are gone. */
#ifdef CRASH
proctype crash()
{
	byte i;

	d_step {
		crashes++;
		running = running & prepared;
		holders = holders & prepared;
		writers = writers & prepared;
		live = live & prepared;
		event_lock = (event_lock != 0 && (prepared & BIT(event_lock - 1)) -> event_lock : 0);
		filler = 0;
		sequence_holders = 0;
		snap_live = false;
		snap_sees = 0;
		make_head(0);
		known = 0;
		known_former = 0;
		known_two = 0;
		use = 0;
		use_former = 0;
		use_two = 0;
		told = 0;
		unchanged = 0;
		same_round = 0;
#ifdef MUTANT_keys_survive
		state[0] = READY
#else
		state[0] = ABSENT
#endif
	}
}
#endif

init
{
	byte i;

	atomic {
		until[0] = NONE;
		do
		:: i < NTX -> owner[i] = i; i++
		:: else -> break
		od;
		owner[R_HAND] = HAND_OWNER;
		owner[R_UPDATED] = P_DELETER;
		i = 0;
#if NPAST > 0
		/* Rows that were committed before, whose keys are there; older ones may have gone. */
		committed = BIT(P_PAST);
		do
		:: i < NPAST ->
			turn[R_PAST + i] = i + 1;
			owner[R_PAST + i] = P_PAST;
			heap[i] = R_PAST + i + 1;
			i++
		:: else -> break
		od;
		blocks = NPAST;
		state[0] = READY;
		if
		:: entries[0] = BIT(NPAST) - 1
		:: entries[0] = BIT(NPAST - 1); thinned[0] = (NPAST > 1)
		fi;
#endif
		i = 0;
		do
		:: i < NTX -> run claimant(i); i++
		:: else -> break
		od;
		i = 0;
#ifdef HAND
		run hand();
#endif
#ifdef LOOKUP
		run looker();
#endif
#ifdef DELETERS
		run deleting(P_DELETER);
#if DELETERS > 1
		run deleting(P_OTHER);
#endif
#endif
#if defined(ALTER_SEQUENCE) || defined(ALTER_TRIGGER)
		run altering_one();
#endif
#ifdef VACUUM
		run vacuuming();
#endif
#ifdef EMPTIER
		run emptying();
#endif
#ifdef REWRITE
		run rewriting();
#endif
#ifdef SPLIT
		run splitting();
#endif
#ifdef CRASH
		run crash();
#endif
	}
}
