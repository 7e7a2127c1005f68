#ifndef IDEM_CLAIM_H
#define IDEM_CLAIM_H

#include "postgres.h"

/* Defines the subsystem's settings and hooks; called once per process. */
extern void idem_claim_init(void);

#endif							/* IDEM_CLAIM_H */
