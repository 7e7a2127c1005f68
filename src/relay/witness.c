/*-------------------------------------------------------------------------
 *
 * witness.c
 *		May this server publish now?  The answer of the publish witness.
 *
 * No mark on a disk can tell the disk from its copy.  Where a site names a
 * witness outside, the launcher asks the witness (witness_ask.c) and stores
 * here until when the last yes is valid.  Workers compare that time with the
 * clock before bytes go to a sink program, before a program is started, and
 * before a function relay begins a transaction.  The comparison reads an atomic
 * and a clock; no worker waits for the command.
 *
 * INVARIANT
 *		A yes runs out by itself.  If the launcher hangs or is gone, the last
 *		yes stays valid for interval and timeout after the question, and no
 *		longer.
 *
 * A crash loses the answer with the shared memory.  The launcher asks anew
 * before anything is sent.
 *
 * LOCKING: the end of the last yes is an atomic.  The reason has a spinlock of
 * its own, held for straight-line code only.
 *
 * MEMORY: results are in the caller's context.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/witness.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <limits.h>
#include <time.h>

#include "port/atomics.h"

#include "relay/witness.h"
#include "relay/worker_slots.h"

#define BLANKS " \t\r\n"

char	   *idem_publish_witness = NULL;
int			idem_publish_witness_interval_ms = 3000;
int			idem_publish_witness_timeout_ms = 2000;

IdemClock
idem_witness_clock(void)
{
	struct timespec now;

	(void) clock_gettime(CLOCK_BOOTTIME, &now);
	return (IdemClock) now.tv_sec * INT64CONST(1000000) + now.tv_nsec / 1000;
}

/*
 * Copy the next word to *to and move *from behind it.  False if a quote is not
 * closed.
 */
static bool
copy_word(const char **from, char **to)
{
	char		quote = '\0';

	for (; **from != '\0'; (*from)++)
	{
		char		c = **from;

		if (quote == '\0' && strchr(BLANKS, c) != NULL)
			break;
		if (quote == '\0' && (c == '\'' || c == '"'))
			quote = c;
		else if (c == quote)
			quote = '\0';
		else
			*(*to)++ = c;
	}
	*(*to)++ = '\0';
	return quote == '\0';
}

/*
 * Split at blanks, outside of quotes.  Nothing is expanded: no variable, no
 * wildcard, no backslash, no shell.
 */
char	  **
idem_witness_split(const char *command, const char **problem)
{
	char	   *to = palloc(strlen(command) + 2);
	char	  **words = palloc(sizeof(char *) * (strlen(command) / 2 + 2));
	int			n = 0;

	for (;;)
	{
		command += strspn(command, BLANKS);
		if (*command == '\0')
			break;
		words[n++] = to;
		if (!copy_word(&command, &to))
		{
			*problem = "A quote in it is not closed.";
			return NULL;
		}
	}
	words[n] = NULL;
	if (n > 0 && words[0][0] != '/')
	{
		*problem = "Its program must be named by an absolute path.";
		return NULL;
	}
	return words;
}

bool
idem_publish_witness_check(char **newval, void **extra, GucSource source)
{
	const char *problem = NULL;
	char	  **words;

	if (*newval == NULL)
		return true;
	words = idem_witness_split(*newval, &problem);
	if (words != NULL)
		return true;
	GUC_check_errdetail("%s", problem);
	return false;
}

/* A setting of blanks counts as empty. */
static bool
is_set(void)
{
	return idem_publish_witness != NULL &&
		idem_publish_witness[strspn(idem_publish_witness, BLANKS)] != '\0';
}

typedef struct WitnessShmem
{
	pg_atomic_uint64 until;		/* the last yes is valid until then */
	slock_t		mutex;			/* guards the reason; no lock is taken below */
	char		reason[IDEM_ERROR_LEN]; /* why no yes is valid; empty: the
										 * last one ran out, or there was no
										 * answer yet */
	pg_atomic_uint32 news;		/* counts what the workers are woken for */
} WitnessShmem;

static WitnessShmem *known = NULL;

Size
idem_witness_shmem_size(void)
{
	return sizeof(WitnessShmem);
}

void
idem_witness_shmem_attach(void *segment, bool found)
{
	known = segment;
	if (found)
		return;
	pg_atomic_init_u64(&known->until, 0);
	SpinLockInit(&known->mutex);
	known->reason[0] = '\0';
	pg_atomic_init_u32(&known->news, 0);
}

/* Until when the last yes is valid; 0 after a no and before the first yes. */
static IdemClock
valid_until(void)
{
	return (IdemClock) pg_atomic_read_u64(&known->until);
}

/*
 * Read the clock first, and the end of the last yes after it.
 * idem_witness_allow works in the opposite order.  So a process that is
 * refused because it read the old end is woken.
 */
bool
idem_witness_allows(void)
{
	IdemClock	now;

	if (!is_set())
		return true;
	now = idem_witness_clock();
	pg_memory_barrier();
	return now < valid_until();
}

long
idem_witness_ms_left(void)
{
	IdemClock	left;

	if (!is_set())
		return -1;
	left = valid_until() - idem_witness_clock();
	return left <= 0 ? 0 : (long) Min((left + 999) / 1000, INT_MAX);
}

bool
idem_witness_report(IdemRelayEntry *entry, const char *relay)
{
	char		reason[IDEM_ERROR_LEN];

	if (entry == NULL)
		return true;
	SpinLockAcquire(&known->mutex);
	strlcpy(reason, known->reason, sizeof(reason));
	SpinLockRelease(&known->mutex);
	if (reason[0] == '\0' && valid_until() == 0)
		return false;
	if (reason[0] == '\0')
		strlcpy(reason, "the last yes of the publish witness is too old", sizeof(reason));

	if (!idem_report_shows(entry, IDEM_RELAY_UNWITNESSED, reason))
		idem_report_error(entry, reason);
	idem_report_state(entry, relay, IDEM_RELAY_UNWITNESSED, IDEM_WAIT_WITNESS);
	return true;
}

uint32
idem_witness_news(void)
{
	return pg_atomic_read_u32(&known->news);
}

/* Let all workers look at what has just been stored. */
static void
tell_workers(void)
{
	(void) pg_atomic_fetch_add_u32(&known->news, 1);
	idem_wake_workers();
}

/* Store the reason.  True if it differs from the one before. */
static bool
set_reason(const char *reason)
{
	bool		changed;

	SpinLockAcquire(&known->mutex);
	changed = strncmp(known->reason, reason, IDEM_ERROR_LEN - 1) != 0;
	strlcpy(known->reason, reason, IDEM_ERROR_LEN);
	SpinLockRelease(&known->mutex);
	return changed;
}

/*
 * A yes that is valid until "until".  If the yes before had run out, tell all
 * workers: they wait for a yes, or must stop, or show another reason.
 */
void
idem_witness_allow(IdemClock until)
{
	IdemClock	before;

	(void) set_reason("");
	before = (IdemClock) pg_atomic_exchange_u64(&known->until, (uint64) until);
	if (idem_witness_clock() >= before)
		tell_workers();
}

void
idem_witness_forbid(const char *reason)
{
	bool		changed = set_reason(reason);

	if (pg_atomic_exchange_u64(&known->until, 0) != 0 || changed)
		tell_workers();
}

void
idem_witness_note(const char *reason)
{
	if (set_reason(reason))
		tell_workers();
}
