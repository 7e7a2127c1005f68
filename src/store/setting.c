/*-------------------------------------------------------------------------
 *
 * setting.c
 *		The settings of the dedup store.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/store/setting.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <limits.h>

#include "shared/args.h"
#include "store/setting.h"

int			idem_claim_segment_size = 4096;
bool		idem_store_maintenance = true;
int			idem_pack_max_rate = 0;

void
idem_store_setting_init(void)
{
	idem_define_int("idempotency.claim_segment_size",
					"Size at which a segment of the store of claims is closed, to be packed.",
					"Twice as much for each closed segment that is not yet emptied.",
					&idem_claim_segment_size, BLCKSZ / 1024, INT_MAX / 256, PGC_SUSET, GUC_UNIT_KB);

	DefineCustomBoolVariable("idempotency.store_maintenance",
							 "Packs what the store of claims remembers.",
							 "Without it the store grows by what each claim writes; stat_claim_segments shows it.",
							 &idem_store_maintenance,
							 true,
							 PGC_SUSET, 0, NULL, NULL, NULL);

	idem_define_int("idempotency.pack_max_rate",
					"What is written per second when claims are packed and merged.",
					"An id takes about 20 bytes, and a result what it takes.  0 means no limit.",
					&idem_pack_max_rate, 0, INT_MAX, PGC_SUSET, GUC_UNIT_KB);
}
