#include "postgres.h"

#include "outbox/outbox.h"

void
idem_outbox_init(void)
{
}
