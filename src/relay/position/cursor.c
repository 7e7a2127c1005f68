/*-------------------------------------------------------------------------
 *
 * cursor.c
 *		How far a reader of the outbox has got, difference by difference.
 *
 * A reader takes a snapshot, the target, reads the events that the target sees
 * and the base does not, and makes the target its base.  The difference of a
 * long backlog would hold one snapshot for long.  So it ends at the next tick
 * instead: a snapshot that was written to the log of positions while the
 * backlog grew.
 *
 * Invariant: the base moves only to the target, and only at the end of the
 * difference; so no event is passed over.
 *
 * A cursor is only in memory.  After a crash, or an abort of the transaction
 * that moved the cursor, idem_cursor_start sets it to a stored position.
 *
 * LOCKING: none of its own.  The look for a tick locks the log of positions for
 * a reader.
 *
 * MEMORY: the position's snapshots are in the cursor's context, and are
 * replaced when the cursor moves.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/position/cursor.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "outbox/segment.h"
#include "relay/position/cursor.h"
#include "relay/position/position.h"
#include "relay/target.h"

void
idem_cursor_start(IdemCursor *cursor, const IdemPosition *pos)
{
	idem_position_assign(cursor->cxt, &cursor->pos, pos);
	cursor->catching_up = true;
}

bool
idem_cursor_begin(IdemCursor *cursor, bool *newest)
{
	IdemSnap   *end = idem_target_take(newest);
	IdemPosition next = {cursor->pos.base, end, 0};

	Assert(cursor->pos.target == NULL);
	if (!idem_position_sees_more(end, cursor->pos.base))
		return false;
	cursor->base_last_seq = cursor->target_last_seq;
	cursor->target_last_seq = idem_outbox_last_seq();
	if (cursor->catching_up ||
		cursor->target_last_seq - cursor->base_last_seq > IDEM_TICK_EVENTS)
	{
		IdemPositionRow *tick = idem_position_tick_after(cursor->pos.base);

		cursor->catching_up = tick != NULL;
		if (tick != NULL && idem_position_sees_more(end, tick->pos.base))
			next.target = tick->pos.base;
	}
	idem_position_assign(cursor->cxt, &cursor->pos, &next);
	return true;
}

void
idem_cursor_advance(IdemCursor *cursor, bool ended, int64 last_seq)
{
	IdemPosition after = {cursor->pos.base, cursor->pos.target, last_seq};
	IdemPosition at_end = {cursor->pos.target, NULL, 0};

	idem_position_assign(cursor->cxt, &cursor->pos, ended ? &at_end : &after);
}
