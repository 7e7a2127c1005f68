#include "postgres.h"

#include "claim/claim.h"

void
idem_claim_init(void)
{
}
