/*-------------------------------------------------------------------------
 *
 * fields.h
 *		Chosen fields of a document, as an object in canonical form.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/canonical/fields.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_CANONICAL_FIELDS_H
#define IDEM_CANONICAL_FIELDS_H

#include "postgres.h"

#include "lib/stringinfo.h"
#include "utils/array.h"
#include "utils/jsonb.h"

/*
 * Append the object that has the fields' pointers as its keys, and their values
 * in the document.  fields is an array of text.  Errors: 2202E for more than
 * one dimension; 22004 for an element that is null; 22023 if there is no field,
 * or for an element that is not a JSON pointer, is too long, is given twice or
 * leads to nothing.
 */
extern void idem_canonical_write_fields(StringInfo out, const JsonbValue *document,
										ArrayType *fields);

#endif							/* IDEM_CANONICAL_FIELDS_H */
