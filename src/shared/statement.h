/*-------------------------------------------------------------------------
 *
 * statement.h
 *		What a utility statement means for the extension.
 *
 * Everything is read from the parse tree before the statement runs: afterwards the tree
 * may be freed, as that of a ROLLBACK in a procedure is.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/shared/statement.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_STATEMENT_H
#define IDEM_STATEMENT_H

#include "postgres.h"

#include "nodes/primnodes.h"

typedef struct IdemStatement
{
	Oid			clear;			/* the database whose workers must be gone
								 * while the statement runs; InvalidOid: none */
	bool		changes_relays; /* what a relay may do, or where it sends */
	bool		ends_prepared;	/* COMMIT PREPARED or ROLLBACK PREPARED */
	bool		commits_prepared;
	bool		ends_block;		/* COMMIT or PREPARE TRANSACTION */
	bool		in_script;		/* of an extension, and runs none of its code */
	RangeVar   *partitioned;	/* a copy: the partitioned table that it
								 * makes; NULL: none */
} IdemStatement;

#endif							/* IDEM_STATEMENT_H */
