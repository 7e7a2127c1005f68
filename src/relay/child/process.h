/*-------------------------------------------------------------------------
 *
 * process.h
 *		Programs as processes: their paths, start, output and end.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/child/process.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_RELAY_CHILD_PROCESS_H
#define IDEM_RELAY_CHILD_PROCESS_H

#include "postgres.h"

#include "relay/row.h"
#include "shared/clock.h"
#include "sink/protocol/protocol.h"

/* The GUC idempotency.sink_directory. */
extern char *idem_sink_directory;

#define IDEM_MAX_PROGRAM_LEN 63

/* A program's output, as lines that are fit for the server log */

#define IDEM_OUTPUT_LINE_LEN 512	/* more of a line is dropped */

/* Our end of the pipe that a program's descriptors 1 and 2 lead to. */
typedef struct IdemOutput
{
	int			fd;				/* -1: closed */
	uint64		nread;			/* bytes read since it was opened */
	int			len;			/* length of the unfinished line */
	char		line[IDEM_OUTPUT_LINE_LEN];
} IdemOutput;

#define IDEM_OUTPUT_NONE {.fd = -1}

/* Called with a non-empty line of printable ASCII. */
typedef void (*IdemOutputTake) (const char *line, void *arg);

/*
 * Make the pipe.  *theirs is the program's end; the caller closes it after the
 * program is started.  False with errno if the pipe cannot be made.
 */
extern bool idem_output_open(IdemOutput *output, int *theirs);

/*
 * Read available bytes, about "limit" at most, without waiting.  At the end of
 * file the output is closed.
 */
extern void idem_output_read(IdemOutput *output, size_t limit,
							 IdemOutputTake take, void *arg);

/*
 * Hand over the unfinished line and close the output.  Safe on a closed
 * output.
 */
extern void idem_output_end(IdemOutput *output, IdemOutputTake take, void *arg);

/* Close the output and drop the unfinished line. */
extern void idem_output_close(IdemOutput *output);

/* Of children.c: a worker's children, running, dying, adopted */

/* A program that was started; opaque. */
typedef struct IdemChild IdemChild;

/*
 * Make this process adopt, kill and reap the orphans of its programs.  Call it
 * once, before signals are unblocked and before the first program starts.
 */
extern void idem_children_init(void);

/*
 * Allocate memory for one more program, so that idem_children_add cannot fail
 * after a fork.
 */
extern void idem_children_make_room(void);

/* Note that a program of that relay runs now. */
extern IdemChild *idem_children_add(pid_t pid, const char *relay);

/*
 * Has the program ended?  Then *status is set as by waitpid, and the child is
 * freed.  Does not wait.
 */
extern bool idem_child_ended(IdemChild *child, int *status);

/*
 * Kill the program by SIGKILL.  The caller forgets the child.  It is reaped
 * here when the kernel lets it end.
 */
extern void idem_child_kill(IdemChild *child);

/*
 * The pid of a program of that relay that was killed and is not reaped; 0:
 * there is none.  *overdue: it takes longer to die than a process that the
 * kernel does not hold.
 */
extern pid_t idem_children_dying(const char *relay, bool *overdue);

/*
 * The number of programs that run or are dying.  A program that is overdue to
 * die is left out: the kernel holds it, and it takes no other relay's place.
 */
extern int	idem_children_count(void);

/* Reap ended children and kill orphans; bounded, and does not wait. */
extern void idem_children_serve(void);

/* Has a child ended since idem_children_serve looked? */
extern bool idem_children_have_ended(void);

/* When to call idem_children_serve next if no child ends before; 0: no need. */
extern IdemClock idem_children_next_time(void);

/* A program */

/* How many lines of a relay's programs the server log may still get. */
typedef struct IdemPrinted
{
	char		relay[IDEM_MAX_RELAY_NAME + 1];
	IdemClock	paid_until;		/* see idem_report_may_log */
	int64		dropped;		/* lines dropped since that number was logged */
} IdemPrinted;

typedef struct IdemSinkProcess
{
	pid_t		pid;			/* 0: none */
	IdemChild  *child;			/* the same program; NULL: none */
	int			fd;				/* our end of the socket pair; -1: none */
	char		program[IDEM_MAX_PROGRAM_LEN + 1];
	bool		missing;		/* it ended because there was no file to
								 * execute */
	IdemOutput	output;
	IdemPrinted printed;		/* outlives the process: also for the relay's
								 * next program */
} IdemSinkProcess;

#define IDEM_SINK_PROCESS_NONE {.fd = -1, .output = IDEM_OUTPUT_NONE}

/* A program to start, and all that it is given. */
typedef struct IdemSpawn
{
	const char *path;
	const char *other_path;		/* tried if "path" cannot be executed; or NULL */
	char	  **argv;			/* NULL-terminated, and so is envp */
	char	  **envp;
	int			in;				/* descriptors that become the program's 0, 1
								 * and 2 */
	int			out;
	int			err;
	bool		own_group;		/* the program leads a process group, to be
								 * killed as one */
} IdemSpawn;

/* The beginning of every program's environment. */
#define IDEM_PROCESS_ENVIRONMENT "PATH=/usr/bin:/bin", "LC_ALL=C"

/*
 * Start a program.  *pid is set before any signal can be handled.  False with
 * errno if the fork failed.  A program that cannot be executed exits with
 * status 127.  The caller reaps the program, also when the caller itself ends.
 */
extern bool idem_process_spawn(const IdemSpawn *spawn, volatile pid_t *pid);

/*
 * The files at which a sink program of that name may be: spawn->path and other_path.
 * False, with *problem set (palloc'd), if that is no name of a program.
 */
extern bool idem_process_find(const char *program, IdemSpawn *spawn, char **problem);

/*
 * Was there no file to execute, judged by the program's end?  Then idem_process_missing
 * says what to install, and where it was looked for, and idem_process_missing_remedy what
 * to do; both palloc'd.
 */
extern bool idem_process_was_missing(int status, const IdemOutput *output);
extern char *idem_process_missing(const char *program);
extern char *idem_process_missing_remedy(const char *program);

/* "exited with status 2", "was terminated by signal 9"; palloc'd. */
extern char *idem_process_describe_end(int status);

/*
 * Start the sink program of that name for that relay.  False with *problem set
 * (palloc'd) if it cannot be started.  A program that is missing or fails
 * shows as end of file.
 */
extern bool idem_process_start(IdemSinkProcess *process, const char *relay,
							   const char *program, char **problem);

/* Log what the program has printed; bounded, and does not wait. */
extern void idem_process_log_output(IdemSinkProcess *process);

/* May one more line of that relay's programs be logged?  Counts the line. */
extern bool idem_process_may_log(IdemPrinted *printed);

/* Close our end of the socket pair only. */
extern void idem_process_hang_up(IdemSinkProcess *process);

/*
 * Close our end of the socket pair, kill the program by SIGKILL, log what is left
 * of its output and close the pipe.  Does not wait for the program's death:
 * see idem_children_dying.  Safe if no program runs.
 */
extern void idem_process_kill(IdemSinkProcess *process);

/*
 * Has the program ended?  Then *how tells how, as a sentence, palloc'd.  Does
 * not wait.
 */
extern bool idem_process_ended(IdemSinkProcess *process, char **how);

/* Of look.c: a program in a backend, for a look at its target */

typedef enum IdemLookEnd
{
	IDEM_LOOK_DONE,				/* the program has said all */
	IDEM_LOOK_UNKNOWN,			/* it does not know how to look */
	IDEM_LOOK_MISSING,			/* it is not installed; *how says so, palloc'd */
	IDEM_LOOK_FAILED			/* *how says why, palloc'd */
} IdemLookEnd;

/* Called with each frame of the program. */
typedef void (*IdemLookTake) (const IdemProtoFrame *frame, void *arg);

/*
 * Start the program, send it the LOOK, a frame of len bytes, and take its answers for
 * up to timeout_ms.  Interruptible; whatever happens, the program has ended.
 */
extern IdemLookEnd idem_child_look(const char *program, const uint8 *look, size_t len, int timeout_ms,
								   IdemLookTake take, void *arg, char **how);

#endif							/* IDEM_RELAY_CHILD_PROCESS_H */
