/*-------------------------------------------------------------------------
 *
 * runs.h
 *		All runs of the store: the list that a session keeps, and the search.
 *
 * Private to src/store.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/store/runs.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_STORE_RUNS_H
#define IDEM_STORE_RUNS_H

#include "postgres.h"

#include "utils/snapshot.h"

#include "store/entry.h"
#include "store/run.h"
#include "store/state.h"

/* A search keeps the slots open that it has looked into. */
typedef struct IdemRunSearch IdemRunSearch;

/*
 * Begin to search the runs that belong to a state of the store.  The session
 * reads the end marks again if it knows those of another state only.
 */
extern IdemRunSearch *idem_runs_begin(const IdemStoreState *state, MemoryContext context);

/*
 * Search the runs that nothing has replaced; or, with a snapshot, the runs that
 * it sees, replaced or not.  detail: get the detail, too.  Adds to the finding: the
 * highest turn decides.
 *
 * copies: search what was copied by packers that the snapshot sees, each entry in its newest
 * copy.  The snapshot alone decides what is found and where, for as long as it lives
 * and nothing expires, whatever the packer does meanwhile.
 */
extern void idem_runs_search(IdemRunSearch *search, const pg_uuid_t *digest, Snapshot snapshot,
							 bool copies, bool detail, IdemFinding *finding);
extern void idem_runs_end(IdemRunSearch *search);

#endif							/* IDEM_STORE_RUNS_H */
