/*-------------------------------------------------------------------------
 *
 * json_text_fn.c
 *		A SQL function by which tests see a document as sink programs get it.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		test/module/json_text_fn.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "utils/builtins.h"

#include "compat.h"
#include "relay/stream/json_text.h"

PG_FUNCTION_INFO_V1(idem_test_json_text_fn);

/* test_json_text(jsonb) -> text */
Datum
idem_test_json_text_fn(PG_FUNCTION_ARGS)
{
	StringInfoData out;

	initStringInfo(&out);
	idem_json_text(&out, PG_GETARG_JSONB_P(0));
	PG_RETURN_TEXT_P(cstring_to_text_with_len(out.data, out.len));
}
