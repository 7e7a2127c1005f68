/*-------------------------------------------------------------------------
 *
 * setting.h
 *		The setting of the log of leases.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/lease/setting.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_LEASE_SETTING_H
#define IDEM_LEASE_SETTING_H

/* idempotency.lease_log_dump_size, in blocks */
extern int	idem_lease_log_dump_size;

extern void idem_lease_setting_init(void);

#endif							/* IDEM_LEASE_SETTING_H */
