/*-------------------------------------------------------------------------
 *
 * keyed_scan.h
 *		All keys of a keyed log, one after the other.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/shared/keyed_scan.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_KEYED_SCAN_H
#define IDEM_KEYED_SCAN_H

#include "postgres.h"

#include "shared/keyed_log.h"

typedef struct IdemKeyedScan IdemKeyedScan;

/*
 * Begin to read all keys of a log, as of now.  The scan lives in the current context,
 * and its locks belong to the current resource owner.  After an error it needs no end.
 */
extern IdemKeyedScan *idem_keyed_scan_begin(const IdemKeyedLog *log);

/*
 * Get the next row of the log's first kind: of a key, or of its past.  The row is valid
 * until the next call.  False: that was the last one.
 */
extern bool idem_keyed_scan_next(IdemKeyedScan *scan, IdemKeyedColumns *row);

/*
 * Is the row that the scan has come to its key's newest of that kind?  True for one row
 * of each key that has any.
 */
extern bool idem_keyed_scan_is_newest(IdemKeyedScan *scan);

/*
 * Get the newest row of another kind of that key, which is valid until the next call of
 * anything but this; false if there is none.
 */
extern bool idem_keyed_scan_part(IdemKeyedScan *scan, char kind, IdemKeyedColumns *row);

extern void idem_keyed_scan_end(IdemKeyedScan *scan);

#endif							/* IDEM_KEYED_SCAN_H */
