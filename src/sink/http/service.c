/*-------------------------------------------------------------------------
 *
 * service.c
 *		The services that the sink knows.
 *
 * MEMORY: none.  LOCKING: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/http/service.c
 *
 *-------------------------------------------------------------------------
 */
#include <string.h>

#include "sink/http/sink.h"

static const HSinkService *const services[] = {
	&hsink_webhook, &hsink_sqs, &hsink_sns, &hsink_eventbridge, &hsink_pubsub, &hsink_servicebus, NULL
};

const HSinkService *
hsink_find_service(const char *name)
{
	for (int i = 0; services[i] != NULL; i++)
		if (strcmp(services[i]->name, name) == 0)
			return services[i];
	return NULL;
}
