#ifndef IDEM_OUTBOX_H
#define IDEM_OUTBOX_H

#include "postgres.h"

/* Defines the subsystem's settings and hooks; called once per process. */
extern void idem_outbox_init(void);

#endif							/* IDEM_OUTBOX_H */
