/*-------------------------------------------------------------------------
 *
 * hide.h
 *		Keeps secrets and events out of messages.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/common/hide.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_SINK_HIDE_H
#define IDEM_SINK_HIDE_H

#include <stdbool.h>
#include <stddef.h>

/* The end of a sentence in the place of a text that has a secret, or an event, in it */
#define IDEM_SINK_HIDES_SECRET	"is not shown, because it has a part of a secret in it"
#define IDEM_SINK_HIDES_EVENT	"is not shown, because it has a part of an event in it"

/*
 * How far a text has to be looked at of which n bytes are shown: a secret that
 * the cut would shorten is found by what is behind the cut.
 */
#define IDEM_SINK_LOOKED_AT(n)	((n) + 12)

/*
 * Remember a secret for as long as the program lives.  NULL and "" are none.  The
 * text is copied.
 */
extern void idem_sink_keep_secret(const char *secret);

/* The same for a token; of tokens the last few are remembered. */
extern void idem_sink_keep_token(const char *token);

/* Has the text a secret in it, or a run of 12 characters of one? */
extern bool idem_sink_has_secret(const char *text, size_t len);

/* The text, or a sentence in its place if its first kilobyte has a secret in it. */
extern const char *idem_sink_without_secrets(const char *text);

/*
 * Has the text a run of 16 bytes of the data in it, or the whole data if they
 * are 8 to 15 bytes?
 */
extern bool idem_sink_repeats(const char *text, size_t len, const void *data, size_t data_len);

#endif							/* IDEM_SINK_HIDE_H */
