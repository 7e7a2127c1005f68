/*-------------------------------------------------------------------------
 *
 * secret.h
 *		Secrets in files.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/common/secret.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_SINK_SECRET_H
#define IDEM_SINK_SECRET_H

#include "sink/common/program.h"

/*
 * Read the first line of a file, without its end.  The caller owns the result.
 * The program ends with FAILED, outcome rejected, if the file cannot be read,
 * is no regular file, or does not begin with a line of 1 to 4096 bytes.
 */
extern char *idem_sink_read_secret(IdemSink *s, const char *path);

/* The same for a file that another option than secret_file names. */
extern char *idem_sink_read_secret_of(IdemSink *s, const char *option, const char *path);

/* Read a whole file, a text of up to 64 kB. */
extern char *idem_sink_read_secret_text(IdemSink *s, const char *option, const char *path);

#endif							/* IDEM_SINK_SECRET_H */
