#include "postgres.h"

#include "relay/relay.h"

void
idem_relay_init(void)
{
}
