/*-------------------------------------------------------------------------
 *
 * sink.h
 *		The types and functions that the files of the http sink share.
 *
 * README.md lists the files from top to bottom; calls go down only.
 * A function that cannot go on notes the reason in p->failure and returns
 * false; main.c alone ends the program with that reason.  "False: p->failure"
 * below means: returns false with the reason in p->failure.
 *
 * Words of this sink: a request is one HTTP request with one or several events.
 * A service is the kind of server that takes it: how events go into a request,
 * and what an answer says of each of them.
 *
 * THREADS
 *		The main thread does everything.  libcurl's resolver has threads of its
 *		own, which touch nothing of ours.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/http/sink.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_SINK_HTTP_H
#define IDEM_SINK_HTTP_H

#include <curl/curl.h>
#include <string.h>
#include <sys/socket.h>

#include "sink/common/event.h"
#include "sink/common/format.h"
#include "sink/common/json.h"
#include "sink/common/program.h"

/* The oldest libcurl that the sink works with; checked at build and start. */
#define HSINK_LEAST_VERSION			0x075800
#define HSINK_LEAST_VERSION_TEXT	"7.88.0"

#if LIBCURL_VERSION_NUM < HSINK_LEAST_VERSION
#error "the http sink needs libcurl 7.88.0 or later"
#endif

#define HSINK_MAX_URL			8192	/* bytes of an expanded URL */
#define HSINK_MAX_HEADER_BYTES	32768	/* of all header lines of a request */
#define HSINK_ASKS_FOR_LESS		"53400" /* SQLSTATE of an answer that asks for
										 * fewer requests */
#define HSINK_MOST_PUT_OFF		3	/* then no event that waits is sent */
#define HSINK_SHOWN_BYTES		1024	/* of an answer, in a message */
#define HSINK_LEAST_BATCH		100 /* events of a batch of the protocol */
#define HSINK_MOST_BATCH		10000
#define HSINK_CREDIT_BATCHES	8	/* that the worker has in flight */
#define HSINK_CREDIT_BYTES		(16 * 1024 * 1024)
#define HSINK_HASH_TEXT			65	/* SHA-256 in hexadecimal */

typedef struct HSink HSink;
typedef struct HSinkKey HSinkKey;
typedef struct HSinkAccount HSinkAccount;

/* A batch with events that have no answer, or whose END has not come. */
typedef struct HSinkBatch
{
	struct HSinkBatch *next;
	uint64_t	number;
	uint32_t	open;			/* events without an answer */
	uint32_t	acked;
	bool		complete;		/* its END has come */
} HSinkBatch;

/* An event.  Its strings are in memory behind the struct. */
typedef struct HSinkEvent
{
	struct HSinkEvent *next;	/* in a queue, or in a list of its user */
	HSinkBatch *batch;
	HSinkKey   *key;			/* NULL: keys have no order */
	uint32_t	index;
	uint64_t	settles;		/* so many SETTLEs stand before it in the
								 * stream */
	char		id[IDEM_UUID_TEXT];
	uint8_t		flags;			/* flags of the EVENT frame */
	bool		alone;			/* goes in a request of its own */
	int64_t		enqueued_at;	/* us since 1970 */
	IdemProtoStr aggregate_type;
	IdemProtoStr aggregate_id;
	IdemProtoStr event_type;
	IdemProtoStr content_type;
	IdemProtoStr headers;
	IdemProtoStr payload;
	char	   *data;			/* headers and payload */
	size_t		data_len;		/* bytes that have come */
	size_t		credit;			/* bytes of credit that the event uses */
	char	   *destination;	/* its URL without a query, if URLs differ;
								 * owned */
} HSinkEvent;

/* So many keys that hung are remembered. */
#define HSINK_HUNG		1024

/* Events in their order. */
typedef struct HSinkQueue
{
	HSinkEvent *first;
	HSinkEvent *last;
} HSinkQueue;

/* A key with events, or with a block; see queue.c. */
struct HSinkKey
{
	HSinkKey   *next;			/* in its list of the table */
	uint64_t	hash;
	uint32_t	out;			/* its events that are ready or in flight */
	uint64_t	last_batch;		/* its last event that was not acked; 0: none */
	uint32_t	last_index;
	uint64_t	ended;			/* number of the SETTLE that settled that
								 * event; 0: none did */
	HSinkQueue	queue;			/* its later events */
	size_t		len;
	char		name[];			/* aggregate_type, NUL, aggregate_id */
};

typedef struct HSinkKeys
{
	HSinkKey  **lists;
	size_t		size;			/* a power of two */
	size_t		used;
	size_t		blocked;		/* keys with a block, at most */
} HSinkKeys;

/* A socket of libcurl. */
typedef struct HSinkSocket
{
	int			fd;
	int			port;			/* local; 0: not known yet */
} HSinkSocket;

/*
 * A request.  Slots are reused: buffers and the handle of libcurl stay.
 */
typedef struct HSinkRequest
{
	struct HSinkRequest *next;	/* in the list of free or of done requests */
	HSink	   *p;
	CURL	   *easy;
	bool		is_set_up;		/* what never changes is set in easy */
	bool		is_token;		/* asks a token server; has no events */
	bool		looks;			/* connects only; nothing is sent */
	bool		listed_only;	/* connects to addresses that are listed only:
								 * it has a login, and no TLS */
	HSinkEvent **events;		/* room for service_most */
	uint32_t	count;

	/* what is sent */
	bool		slow;			/* its event is of a key that hung */
	IdemText	url;
	IdemText	body;			/* built body */
	const void *payload;		/* the body: of the event, or in "body" */
	size_t		payload_len;
	size_t		weight;			/* bytes that count for most_weight */
	struct curl_slist *headers;
	size_t		header_size;	/* bytes of these lines */
	bool		header_failed;	/* libcurl had no memory for a line */
	uint64_t	token;			/* number of the token in them */

	/* what came back */
	IdemText	answer;			/* the first "keep" bytes of the body */
	size_t		keep;
	size_t		max_bytes;		/* of body and of headers, each */
	size_t		body_bytes;
	size_t		header_bytes;
	bool		cut;			/* the body is longer than max_bytes */
	bool		headers_cut;	/* the headers are */
	bool		headers_ended;	/* the last response's headers came as a whole */
	const char *refused;		/* why an address was refused, or NULL */
	CURLcode	code;
	long		status;
	int64_t		retry_after;	/* ms */
	bool		whole;			/* the response is, though the request failed */
	bool		waits_for_ever; /* Retry-After is beyond 64 bits */
	bool		was_sent;		/* a connection was there to send it on */
	bool		ended_under;	/* that connection ended, and libcurl was kept
								 * from sending it again */
	bool		opened;			/* a connection was opened for it */
	bool		unasked;		/* the kept connection had bytes that nobody
								 * asked for; nothing was sent on it */
} HSinkRequest;

/* Why an event is refused. */
typedef struct HSinkProblem
{
	const char *sqlstate;
	char		text[512];
} HSinkProblem;

/* What a status other than 2xx says. */
typedef enum HSinkBlame
{
	HSINK_BLAME_STATUS,			/* as the status has it, see verdict.c */
	HSINK_BLAME_BUSY,			/* try again later */
	HSINK_BLAME_CONFIG			/* options or objects of the service are wrong */
} HSinkBlame;

typedef struct HSinkService
{
	const char *name;
	uint32_t	most;			/* events in a request, at most */
	size_t		most_weight;	/* of a request with several events */
	uint32_t	usual;			/* default of batch_events */
	bool		one_key;		/* a request with several events has those of
								 * one key, and an effect as a whole or not at
								 * all */
	bool		reads_answer;	/* read needs the whole answer */
	const char *aws;			/* its name in signatures of AWS, or NULL */

	/* Check the options.  NULL, or what is wrong with them. */
	const char *(*configure) (HSink *p);

	/*
	 * Add the event to r->body, and what counts of it to r->weight; the
	 * caller undoes both if the request gets too large.  r->count is the
	 * number of events before it.  False: the event can never be sent.
	 */
	bool		(*add) (HSink *p, HSinkRequest *r, const HSinkEvent *e, HSinkProblem *problem);

	/*
	 * Complete URL, headers and body of a request, whose events are in
	 * r->events.
	 */
	void		(*finish) (HSink *p, HSinkRequest *r);

	/*
	 * The status is 2xx: answer the events and set their place in r->events
	 * to NULL.  Those that are left get an answer of the caller.  NULL: all
	 * events are acked.
	 */
	void		(*read) (HSink *p, HSinkRequest *r);

	/* Judge another status.  NULL: as HSINK_BLAME_STATUS. */
	HSinkBlame	(*blame) (HSink *p, const HSinkRequest *r);
} HSinkService;

typedef enum HSinkFormat
{
	HSINK_PLAIN,
	HSINK_CE_BINARY,
	HSINK_CE_STRUCTURED,
	HSINK_CE_BATCH
} HSinkFormat;

typedef enum HSinkAuth
{
	HSINK_AUTH_NONE,
	HSINK_AUTH_BASIC,
	HSINK_AUTH_BEARER,
	HSINK_AUTH_OAUTH2,
	HSINK_AUTH_SERVICE_ACCOUNT, /* of Google */
	HSINK_AUTH_AWS,				/* Signature Version 4 */
	HSINK_AUTH_SAS				/* of Azure */
} HSinkAuth;

/* A line of the option "headers". */
typedef struct HSinkHeader
{
	char	   *name;
	char	   *value;			/* template */
} HSinkHeader;

/* A range of addresses, in the form of IPv6; IPv4 as ::ffff:a.b.c.d. */
typedef struct HSinkRange
{
	uint8_t		address[16];
	int			bits;
} HSinkRange;

/* A key that signs. */
typedef struct HSinkSigner
{
	uint8_t    *key;
	size_t		len;
} HSinkSigner;

typedef struct HSinkConfig
{
	char	   *relay;
	bool		key_order;
	char	   *url;			/* template */
	char		origin[256];	/* the part of the URL that messages show */
	char	   *endpoint;		/* the URL up to the path, with a slash behind */
	char	   *resource;		/* what stands behind that slash */
	bool		plain;			/* http:// */
	char	   *method;
	HSinkFormat format;
	char	   *source;			/* template */
	char	   *content_type;	/* or NULL */
	HSinkHeader *headers;
	int			n_headers;
	long		concurrency;
	long		timeout;		/* ms */
	long		connect_timeout;	/* ms */
	bool		http2;
	size_t		max_response_bytes;
	uint32_t	batch_events;
	char	   *rootcert;		/* file; NULL: the system's certificates */
	char	   *sslcert;
	char	   *sslkey;
	char	   *sslpassword;
	HSinkRange *allowed;
	int			n_allowed;
	HSinkAuth	auth;
	bool		has_login;		/* requests have a secret in them */
	char	   *authorization;	/* value of the header, if it never changes */
	char	   *user;
	char	   *password;
	char	   *token;
	char	   *session_token;
	char	   *region;
	HSinkSigner *signers;
	int			n_signers;
	char	   *token_url;
	char		token_origin[256];
	bool		token_plain;
	char	   *token_scope;
	char	   *token_audience;
	bool		login_in_body;
	char	   *token_rootcert;
	char	   *service_account;	/* JSON text, or NULL */
	HSinkAccount *account;		/* what it says */
} HSinkConfig;

/* The access token; see token.c. */
typedef struct HSinkToken
{
	char	   *value;			/* NULL: there is none */
	int64_t		refresh_at;		/* idem_sink_clock() */
	int64_t		expires_at;
	int64_t		ask_at;			/* not before this time */
	bool		asking;			/* a request for it is in flight */
	uint64_t	number;			/* how many tokens there have been */
	bool		proven;			/* the service has taken this one */
} HSinkToken;

struct HSink
{
	IdemSink	sink;
	HSinkConfig config;
	IdemSinkFailure failure;
	const HSinkService *service;
	uint32_t	most;			/* events in a request */
	void	   *service_state;	/* of the service's file */

	/* intake.c */
	HSinkBatch *first_batch;
	HSinkBatch *last_batch;
	HSinkEvent *arriving;		/* its data have not all come; NULL: none */
	uint64_t	settles;		/* SETTLEs among the frames taken */
	bool		bye;

	/* queue.c */
	HSinkQueue	ready;			/* events that may be sent */
	HSinkQueue	slow;			/* those of keys that hung */
	uint64_t	hung[HSINK_HUNG];	/* hashes of these keys */
	int			n_hung;
	long		slow_in_flight; /* requests with such events */
	HSinkKeys	keys;

	/* transfer.c */
	CURLM	   *multi;
	struct HSinkSocket *sockets;	/* that libcurl has, or had, one per fd */
	uint32_t	nsockets;
	int			epoll_fd;
	int64_t		timer_at;		/* idem_sink_clock(); -1: none */
	HSinkRequest *free_requests;
	HSinkRequest *done_requests;
	HSinkRequest *last_done;
	long		in_flight;		/* requests with events */
	int			put_off;		/* events in a row that the receiver refused
								 * for now, with a time or because there are
								 * too many */
	HSinkRequest *token_request;

	HSinkToken	token;
	char	   *login;			/* of Service Bus; NULL: none yet */
	int64_t		login_until;	/* idem_sink_clock() */
};

/* dispatch.c */

/* Start requests for the events that may be sent. */
extern void hsink_dispatch(HSink *p);

/* Act on the requests that have ended.  A failure is in p->failure. */
extern void hsink_finish_requests(HSink *p);

/*
 * The program has to end: answer the events of the batches that would be sent
 * again as a whole though events of them are acked.  False while there is more
 * to come of such batches.
 */
extern bool hsink_give_up(HSink *p);

/* config.c */

/* Read the options.  False: p->failure. */
extern bool hsink_configure(HSink *p, const IdemProtoHello *hello);

/* service.c */

extern const HSinkService *hsink_find_service(const char *name);

/* service_*.c */

extern const HSinkService hsink_webhook;
extern const HSinkService hsink_webhook_batch;
extern const HSinkService hsink_sqs;
extern const HSinkService hsink_sns;
extern const HSinkService hsink_eventbridge;
extern const HSinkService hsink_pubsub;
extern const HSinkService hsink_servicebus;

/* aws.c */

/* Check the options that all services of AWS need.  NULL, or what is wrong. */
extern const char *hsink_configure_aws(HSink *p);

/* Judge an answer of AWS that is no success. */
extern HSinkBlame hsink_blame_aws(HSink *p, const HSinkRequest *r);

/*
 * Answer an event that AWS refused alone, and set its place in r->events to
 * NULL.  sender: AWS says that the event is at fault.
 */
extern void hsink_answer_refused(HSink *p, HSinkRequest *r, uint32_t index, bool sender,
								 const char *code, const char *message);

/* The index of an event, from the Id of its entry; -1: it is none. */
extern int	hsink_entry_index(const HSinkRequest *r, const char *id);

/* message.c */

/* Refuse options that make no sense for requests with several events. */
extern const char *hsink_check_batch_options(const HSink *p);

/* Set the URL of the request, and what all requests have. */
extern void hsink_begin_request(HSink *p, HSinkRequest *r, const char *path);

/* Add the event as a CloudEvent in JSON. */
extern void hsink_add_cloud_event(const HSink *p, IdemText *t, const HSinkEvent *e);

/*
 * Add the text of a message: the payload, or a CloudEvent.  True: it is base64,
 * because the payload is no text.
 */
extern bool hsink_add_message(const HSink *p, IdemText *t, const HSinkEvent *e);

/* An attribute of a message. */
typedef struct HSinkAttribute
{
	const char *name;
	IdemProtoStr value;			/* not empty */
} HSinkAttribute;

#define HSINK_MAX_ATTRIBUTES	6

/* The attributes that tell what the event is; returns how many there are. */
extern int	hsink_attributes(const HSinkEvent *e, bool base64, HSinkAttribute *attributes);

/*
 * Add the attributes as a JSON object of strings, with the event's own headers
 * before them.  Headers that a service cannot take are left to it to refuse.
 */
extern void hsink_add_properties(IdemText *t, const HSinkEvent *e, bool base64);

/* Add a text, and a JSON string behind it. */
extern void hsink_add_string(IdemText *t, const char *before, const void *value, size_t len);

/*
 * Add the event's key, type/id, or its hash if it is longer than max bytes or
 * has other bytes than visible ASCII.
 */
extern void hsink_add_key(IdemText *t, const HSinkEvent *e, size_t max);

/* intake.c */

/* Take the frames that are there. */
extern void hsink_take_frames(HSink *p);

/* token.c */

/* Is there a token for requests, or is none needed?  If not, one is asked for. */
extern bool hsink_has_token(HSink *p);

/* The request for a token has ended.  A failure is in p->failure. */
extern void hsink_token_done(HSink *p, HSinkRequest *r);

/*
 * The service answered a request whose token it may have refused.  True: the
 * request has to go again, with another token.  False: another one is no help,
 * because the service has never taken this one.
 */
extern bool hsink_judge_token(HSink *p, const HSinkRequest *r);

/* When to look again for a token; -1: never. */
extern int64_t hsink_token_wake(const HSink *p);

/* jwt.c */

/*
 * Read the service account of the options; its token server becomes the
 * option token_url.  NULL, or what is wrong with the account.
 */
extern const char *hsink_read_account(HSinkConfig *c);

/* Add the assertion that the account signs to get a token.  False: OpenSSL fails. */
extern bool hsink_add_assertion(IdemText *t, const HSinkConfig *c);

/* verdict.c */

typedef enum HSinkJudgement
{
	HSINK_ANSWERED,				/* 2xx */
	HSINK_ALL,					/* the verdict holds for all events */
	HSINK_FAILS					/* p->failure: the program has to end */
} HSinkJudgement;

typedef struct HSinkVerdict
{
	IdemProtoOutcome outcome;
	const char *sqlstate;		/* or NULL */
	uint32_t	retry_after;	/* ms */
	char		message[IDEM_PROTO_MAX_MESSAGE + 1];
} HSinkVerdict;

/* Judge a request that has ended. */
extern HSinkJudgement hsink_judge(HSink *p, const HSinkRequest *r, HSinkVerdict *v);

/* headers.c */

/* Add the lines of the option "headers" and of the login. */
extern bool hsink_add_option_headers(HSink *p, HSinkRequest *r, const HSinkEvent *e, HSinkProblem *problem);

/* Add the event's own headers. */
extern bool hsink_add_event_headers(HSinkRequest *r, const HSinkEvent *e, HSinkProblem *problem);

/* Add the attributes of a CloudEvent as headers. */
extern void hsink_add_ce_headers(const HSink *p, HSinkRequest *r, const HSinkEvent *e);

/* The type of the payload's bytes. */
extern IdemProtoStr hsink_content_type(const HSink *p, const HSinkEvent *e);

/* Add the header that logs in. */
extern void hsink_add_login(HSink *p, HSinkRequest *r);

/* Split the option "headers" into c->headers.  NULL, or what is wrong. */
extern const char *hsink_read_headers(HSinkConfig *c, char *text);

/* template.c */

/* What a template is filled into; each has characters of its own to watch. */
typedef enum HSinkPlace
{
	HSINK_IN_URL,				/* percent-encoded */
	HSINK_IN_HEADER,			/* as it is */
	HSINK_IN_TEXT				/* as it is */
} HSinkPlace;

/* Fill in a template.  False: *problem says what the event lacks. */
extern bool hsink_expand(const HSink *p, const HSinkEvent *e, const char *template,
						 HSinkPlace place, IdemText *t, HSinkProblem *problem);

/* The placeholders of URLs and of headers. */

/* url.c */

/*
 * Check a URL, or a template of one, whose placeholders may stand behind the
 * host only.  origin: its scheme, host and port.  NULL, or what is wrong.
 */
extern const char *hsink_check_url(const char *url, char *origin, size_t cap);

/* The URL of the request for this event.  False: *problem. */
extern bool hsink_make_url(const HSink *p, const HSinkEvent *e, IdemText *url, HSinkProblem *problem);

/* sign.c */

/* Split "whsec_... whsec_..." into c->signers.  NULL, or what is wrong. */
extern const char *hsink_read_signers(HSinkConfig *c, char *text);

/* Add the headers of Standard Webhooks: id, timestamp, and signatures. */
extern void hsink_add_webhook_headers(const HSink *p, HSinkRequest *r, const char *id);

/* HMAC-SHA-256 over the parts, one after the other; mac has 32 bytes. */
extern void hsink_hmac(const void *key, size_t key_len, const IdemProtoStr *parts, int n, uint8_t *mac);

/* SHA-256 of the bytes, in hexadecimal; hex has HSINK_HASH_TEXT bytes. */
extern void hsink_hash(const void *data, size_t len, char *hex);

/* SHA-256 of the ids of the events, in hexadecimal; hex has HSINK_HASH_TEXT bytes. */
extern void hsink_hash_ids(const HSinkRequest *r, char *hex);

/* queue.c */

/* The event is complete: it may be sent, or waits for its key. */
extern void hsink_queue_event(HSink *p, HSinkEvent *e);

/* Take the next event that may be sent, of a key that did not hang, or did; NULL: there is none. */
extern HSinkEvent *hsink_next_ready(HSink *p);
extern HSinkEvent *hsink_next_slow(HSink *p);

/* The event got no answer in time. */
extern void hsink_note_hang(HSink *p, const HSinkEvent *e);

/*
 * Put an event back: it is the next one that may be sent.  Of several events of
 * a key the last one is put back first.
 */
extern void hsink_put_back(HSink *p, HSinkEvent *e);

/* Take the next event of the key of e, which is in flight.  NULL: none may be sent. */
extern HSinkEvent *hsink_next_of_key(HSink *p, const HSinkEvent *e);

/* Answer the event and free it.  sqlstate and message may be NULL. */
extern void hsink_answer(HSink *p, HSinkEvent *e, IdemProtoOutcome outcome, const char *sqlstate,
						 uint32_t retry_after, const char *message);

/* A SETTLE has come: the blocks whose last event it names end behind it. */
extern void hsink_settle(HSink *p, const IdemProtoSettle *settle);

/* transfer.c */

/* Start libcurl.  False: p->failure. */
extern bool hsink_open_transfers(HSink *p);

/* An empty request; NULL: too many are in flight. */
extern HSinkRequest *hsink_new_request(HSink *p);

/* Add a header line.  The value may be empty. */
extern void hsink_add_header(HSinkRequest *r, const char *name, const void *value, size_t len);

/* Forget the header lines that were added. */
extern void hsink_free_headers(HSinkRequest *r);

/* Send the request.  False: p->failure. */
extern bool hsink_start_request(HSink *p, HSinkRequest *r);

/* Let libcurl work: sockets are ready, or its timer has run out. */
extern void hsink_drive(HSink *p);

/* Take a request that has ended; NULL: none has. */
extern HSinkRequest *hsink_next_done(HSink *p);

/* Give a request back: one that has ended, or was not started. */
extern void hsink_free_request(HSink *p, HSinkRequest *r);

/* address.c */

/* Read a list of ranges: "10.0.0.0/8, ::1".  NULL, or what is wrong. */
extern const char *hsink_read_ranges(HSinkConfig *c, const char *text);

/*
 * May the address be connected to?  NULL, or the kind of its range in words:
 * "a private address".  listed: only if the option allowed_addresses lists it.
 */
extern const char *hsink_refuse_address(const HSinkConfig *c, const struct sockaddr *address, bool listed);

/* The fields of an event, for the functions of src/sink/common. */
static inline IdemSinkEvent
hsink_view(const HSinkEvent *e)
{
	IdemSinkEvent view = {
		.flags = e->flags, .enqueued_at = e->enqueued_at,
		.aggregate_type = e->aggregate_type, .aggregate_id = e->aggregate_id, .event_type = e->event_type,
		.content_type = e->content_type, .headers = e->headers, .payload = e->payload
	};

	memcpy(view.id, e->id, sizeof(view.id));
	return view;
}

#endif							/* IDEM_SINK_HTTP_H */
