/*-------------------------------------------------------------------------
 *
 * walk.c
 *		How far a relay has got: what it has read, and what is settled.
 *
 * A relay takes a snapshot, the target, reads the events that the target sees
 * and the base does not, and makes the target its base.  The difference of a
 * long backlog would hold one snapshot for long.  So it ends at the next tick
 * instead: a snapshot that was written to the log of positions while the
 * backlog grew.
 *
 * Invariant: the base moves only to the target, and only at the end of the
 * difference; so no event is passed over.  "settled" never passes "read" but
 * where a relay stands still: there the two are set anew (idem_walk_stand,
 * idem_walk_start).
 *
 * A walk is only in memory.  After a crash, or an abort of the transaction that
 * moved the walk, its owner sets it to a stored position.
 *
 * Relays that rest share one snapshot, which rest.c moves.
 *
 * LOCKING: none of its own.  The look for a tick locks the log of positions for
 * a reader.
 *
 * MEMORY: the position's snapshots are in the walk's context, and are
 * replaced when the walk moves.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/position/walk.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "outbox/segment.h"
#include "relay/position/walk.h"
#include "relay/position/position.h"
#include "relay/difference_end.h"

void
idem_walk_stand(IdemWalk *walk, const IdemPosition *pos)
{
	idem_position_assign(walk->cxt, &walk->settled, pos);
}

void
idem_walk_advance(IdemWalk *walk, const IdemPosition *pos)
{
	idem_position_assign(walk->cxt, &walk->settled, pos);
	walk->dirty = true;
}

void
idem_walk_start(IdemWalk *walk)
{
	idem_position_assign(walk->cxt, &walk->read, &walk->settled);
	walk->catching_up = true;
}

bool
idem_walk_begin(IdemWalk *walk, bool *newest)
{
	IdemSnap   *end = idem_difference_take(newest);
	IdemPosition next = {walk->read.base, end, 0};

	Assert(walk->read.target == NULL);
	if (!idem_position_sees_more(end, walk->read.base))
		return false;
	walk->base_last_seq = walk->target_last_seq;
	walk->target_last_seq = idem_outbox_last_seq();
	if (walk->catching_up ||
		walk->target_last_seq - walk->base_last_seq > IDEM_TICK_EVENTS)
	{
		IdemPositionRow *tick = idem_position_tick_after(walk->read.base);

		walk->catching_up = tick != NULL;
		if (tick != NULL && idem_position_sees_more(end, tick->pos.base))
			next.target = tick->pos.base;
	}
	idem_position_assign(walk->cxt, &walk->read, &next);
	return true;
}

void
idem_walk_read(IdemWalk *walk, bool ended, int64 last_seq)
{
	IdemPosition after = {walk->read.base, walk->read.target, last_seq};
	IdemPosition at_end = {walk->read.target, NULL, 0};

	idem_position_assign(walk->cxt, &walk->read, ended ? &at_end : &after);
}

IdemPositionRow
idem_walk_row(const IdemWalk *walk, const IdemRelayConfig *config,
			  IdemPositionKind kind, const IdemPosition *pos)
{
	return (IdemPositionRow)
	{
		.relay_id = config->relay_id, .epoch = config->epoch, .kind = kind, .fresh = walk->fresh,
			.acked_row = walk->sink_stores ? walk->acked_row : 0,
			.acked_k = walk->sink_stores ? walk->acked_k : 0, .pos = *pos
	};
}
