/*-------------------------------------------------------------------------
 *
 * response.h
 *	The stored answer of a request.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/request/response.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_REQUEST_RESPONSE_H
#define IDEM_REQUEST_RESPONSE_H

#include "postgres.h"

#include "utils/jsonb.h"

/*
 * The answer, and the fingerprint of the request that it is for.  NULL where there is
 * none.  Without a status there is no answer: an operator has discarded the request.
 */
typedef struct IdemResponse
{
	int			status;			/* 100 to 599; 0: none */
	Jsonb	   *headers;
	bytea	   *body;
	bytea	   *fingerprint;
	int64		retention;		/* remembered for so many seconds; 0: for ever */
} IdemResponse;

/*
 * Error 22023 if the headers are no headers, 54000 if headers and body together are over
 * idempotency.max_response_size.
 */
extern void idem_response_check(const IdemResponse *response);

/* The response as the result of a completion (jsonb), and back. */
extern Datum idem_response_form(const IdemResponse *response);
extern void idem_response_parse(Datum result, IdemResponse *response);

/* Defines idempotency.max_response_size; called once per process. */
extern void idem_response_init(void);

#endif							/* IDEM_REQUEST_RESPONSE_H */
