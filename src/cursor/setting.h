/*-------------------------------------------------------------------------
 *
 * setting.h
 *		The settings of cursors.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/cursor/setting.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_CURSOR_SETTING_H
#define IDEM_CURSOR_SETTING_H

#include "postgres.h"

/* idempotency.producer_retention: seconds; 0: for ever */
extern int	idem_producer_retention;

/* idempotency.cursor_log_dump_size: blocks; 0: dumps are not waited for */
extern int	idem_cursor_log_dump_size;

/* Defines the settings; called once per process. */
extern void idem_cursor_setting_init(void);

#endif							/* IDEM_CURSOR_SETTING_H */
