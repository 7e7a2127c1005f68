/*-------------------------------------------------------------------------
 *
 * setting.h
 *		The settings of the dedup store.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/store/setting.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_STORE_SETTING_H
#define IDEM_STORE_SETTING_H

/* idempotency.claim_segment_size, in kB */
extern int	idem_claim_segment_size;

/* idempotency.store_maintenance */
extern bool idem_store_maintenance;

/* idempotency.pack_max_rate, in kB/s of rows in slots; 0: no limit */
extern int	idem_pack_max_rate;

extern void idem_store_setting_init(void);

#endif							/* IDEM_STORE_SETTING_H */
