/*-------------------------------------------------------------------------
 *
 * function.h
 *		A relay to a SQL function of its own database.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/function.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_RELAY_FUNCTION_H
#define IDEM_RELAY_FUNCTION_H

#include "postgres.h"

#include "relay/config.h"
#include "shared/clock.h"

typedef struct IdemFunctionRelay IdemFunctionRelay;

extern IdemFunctionRelay *idem_function_create(MemoryContext parent, IdemRelayConfig *config,
											   MemoryContext config_cxt);
extern void idem_function_configure(IdemFunctionRelay *relay, IdemRelayConfig *config,
									MemoryContext config_cxt, bool acted);
extern void idem_function_destroy(IdemFunctionRelay *relay);

/* Work one batch off in one transaction; true if there may be more at once. */
extern bool idem_function_step(IdemFunctionRelay *relay);

/* When to call it next if nothing commits before; 0: no need. */
extern IdemClock idem_function_next_time(IdemFunctionRelay *relay);

extern void idem_function_woken(IdemFunctionRelay *relay);

/* A step raised an error and was rolled back. */
extern void idem_function_failed(IdemFunctionRelay *relay, int sqlerrcode,
								 const char *message);

/* Write the position down if it moved without that. */
extern void idem_function_persist(IdemFunctionRelay *relay);

#endif							/* IDEM_RELAY_FUNCTION_H */
