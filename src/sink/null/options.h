/*-------------------------------------------------------------------------
 *
 * options.h
 *		The options of the null sink.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/null/options.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_SINK_NULL_OPTIONS_H
#define IDEM_SINK_NULL_OPTIONS_H

#include "sink/protocol/option.h"

static const IdemSinkOption idem_sink_null_options[] = {
	/* milliseconds between two reports of rate and latency; 0: no reports */
	{.name = "stats_interval", .where = IDEM_OPTION_SERVER,
	.type = IDEM_OPTION_INT, .min = 0, .max = 3600000},
	{.name = NULL}
};

#endif							/* IDEM_SINK_NULL_OPTIONS_H */
