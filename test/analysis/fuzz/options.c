/*-------------------------------------------------------------------------
 *
 * options.c
 *		Fuzz target: options of the sinks, names in SQL, and the HELLO they come in.
 *
 * Each kind of value is judged by a second, plain reading of its rule.  A name
 * quoted by the postgres sink is read back by the parser as the same name.
 * A HELLO of checked options ends in settings or in FAILED, never in harm.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		test/analysis/fuzz/options.c
 *
 *-------------------------------------------------------------------------
 */
#include <setjmp.h>
#include <stdarg.h>

#include "input.h"
#include "sink/null/options.h"
#include "sink/postgres/options.h"
#include "sink/postgres/sink.h"

int			LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Stand-ins for what would end the program, and for its memory (--wrap). */
extern void __wrap_idem_sink_failed(IdemSink *s, IdemProtoOutcome outcome,
									const char *sqlstate, const char *fmt,...)
			__attribute__((format(printf, 4, 5), noreturn));
extern char *__wrap_idem_sink_strdup(const char *data, size_t len);
extern char *__real_idem_sink_strdup(const char *data, size_t len);
extern void __wrap_free(void *p);
extern void __real_free(void *p);

#define MAX_OWNED	256
#define MAX_OPTIONS	12

static jmp_buf failed;
static void *owned[MAX_OWNED];
static int	nowned;

void
__wrap_idem_sink_failed(IdemSink *s, IdemProtoOutcome outcome,
						const char *sqlstate, const char *fmt,...)
{
	char		text[2048];
	va_list		ap;

	(void) s;
	CHECK(outcome == IDEM_PROTO_REJECTED && strlen(sqlstate) == 5);
	va_start(ap, fmt);
	CHECK(vsnprintf(text, sizeof(text), fmt, ap) > 0);
	va_end(ap);
	longjmp(failed, 1);
}

char *
__wrap_idem_sink_strdup(const char *data, size_t len)
{
	char	   *p = __real_idem_sink_strdup(data, len);

	CHECK(nowned < MAX_OWNED);
	owned[nowned++] = p;
	return p;
}

void
__wrap_free(void *p)
{
	for (int i = 0; i < nowned; i++)
		if (owned[i] == p)
		{
			owned[i] = owned[--nowned];
			break;
		}
	__real_free(p);
}

static bool
plain_int(const char *value, long min, long max)
{
	long		v = 0;

	if (*value == '\0')
		return false;
	for (; *value != '\0'; value++)
	{
		if (*value < '0' || *value > '9')
			return false;
		if (v <= max)
			v = v * 10 + (*value - '0');
	}
	return v >= min && v <= max;
}

static bool
plain_choice(const char *value, const char *choices)
{
	char		words[256];
	char	   *rest = words;
	char	   *word;

	snprintf(words, sizeof(words), "%s", choices);
	while ((word = strsep(&rest, " ")) != NULL)
		if (*word != '\0' && strcmp(word, value) == 0)
			return true;
	return false;
}

static bool
plain_word(const char *value)
{
	const char *c = value;

	while ((*c >= 'a' && *c <= 'z') || (*c >= '0' && *c <= '9') || *c == '_')
		c++;
	return c != value && *c == '\0';
}

/* The same for a list: what is left when spaces around commas are gone. */
static bool
plain_choices(const char *value, const char *choices)
{
	char		copy[256];
	char	   *rest = copy;
	char	   *word;

	if (strlen(value) >= sizeof(copy))
		return false;
	snprintf(copy, sizeof(copy), "%s", value);
	while ((word = strsep(&rest, ",")) != NULL)
	{
		word += strspn(word, " ");
		while (word[0] != '\0' && word[strlen(word) - 1] == ' ')
			word[strlen(word) - 1] = '\0';
		if (!plain_choice(word, choices))
			return false;
	}
	return true;
}

static bool
check_value(const IdemSinkOption *option, const char *value)
{
	char		problem[512];
	char		a[64];
	char		b[64];
	bool		good = idem_sink_option_check(option, value, problem, sizeof(problem));

	CHECK(strlen(problem) < sizeof(problem));
	switch (option->type)
	{
		case IDEM_OPTION_TEXT:
		case IDEM_OPTION_FILE:
			CHECK(good == (value[0] != '\0'));
			break;
		case IDEM_OPTION_BOOL:
			CHECK(good == plain_choice(value, "on off true false"));
			CHECK(!idem_sink_option_bool(value) || good);
			break;
		case IDEM_OPTION_INT:
			CHECK(good == plain_int(value, option->min, option->max));
			break;
		case IDEM_OPTION_CHOICE:
			CHECK(good == plain_choice(value, option->choices));
			break;
		case IDEM_OPTION_CHOICES:
			CHECK(good == plain_choices(value, option->choices));
			CHECK(!good || !idem_sink_option_names(value, ""));
			break;
		case IDEM_OPTION_QUALIFIED:
			CHECK(good == idem_sink_split_name(value, a, b, sizeof(a)));
			break;
		case IDEM_OPTION_WORD:
			CHECK(good == plain_word(value));
			break;
		case IDEM_OPTION_TEMPLATE:
			CHECK(!good || value[0] != '\0');
			break;
		case IDEM_OPTION_URL:
			CHECK(!good || strncmp(value, "http://", 7) == 0 || strncmp(value, "https://", 8) == 0);
			break;
		case IDEM_OPTION_SIGNING_SECRETS:
			CHECK(!good || strstr(value, "whsec_") != NULL);
			break;
	}
	return good;
}

/* What SQL makes of two quoted names are these names. */
static void
quoted_names(Input *in)
{
	char		a[80];
	char		b[80];
	char		schema[64];
	char		name[64];
	size_t		alen = take_text(in, a, sizeof(a));
	size_t		blen = take_text(in, b, sizeof(b));
	char	   *qa = pgsink_quote(a);
	char	   *qb = pgsink_quote(b);
	char	   *both = pgsink_format("%s.%s", qa, qb);
	bool		fits = alen > 0 && blen > 0 && alen < 64 && blen < 64;

	CHECK(idem_sink_split_name(both, schema, name, sizeof(schema)) == fits);
	if (fits)
		CHECK(strcmp(schema, a) == 0 && strcmp(name, b) == 0);
	free(qa);
	free(qb);
	free(both);
}

static void
odd_values(Input *in)
{
	char		value[200];

	take_text(in, value, sizeof(value));
	CHECK(idem_sink_option_find(idem_sink_null_options, value) == NULL ||
		  strcmp(value, "stats_interval") == 0);
	for (const IdemSinkOption *o = idem_sink_null_options; o->name != NULL; o++)
		check_value(o, value);
	for (const IdemSinkOption *o = idem_sink_postgres_options; o->name != NULL; o++)
		check_value(o, value);
}

/* A value that the option is likely to take. */
static void
take_value(Input *in, const IdemSinkOption *option, char *value, size_t cap)
{
	char		words[256];
	char	   *rest = words;
	uint8_t		n = take8(in) % 4;

	if (option->type == IDEM_OPTION_CHOICE || option->type == IDEM_OPTION_CHOICES)
	{
		snprintf(words, sizeof(words), "%s", option->choices);
		while (n-- > 0 && rest != NULL && strchr(rest, ' ') != NULL)
			strsep(&rest, " ");
		snprintf(value, cap, "%s", strsep(&rest, " "));
	}
	else if (option->type == IDEM_OPTION_INT)
		snprintf(value, cap, "%ld", option->min + (long) (take32(in) % (uint32_t) (option->max - option->min)));
	else if (option->type == IDEM_OPTION_QUALIFIED && n > 0)
		snprintf(value, cap, "app.\"%u\"", take8(in));
	else
		take_text(in, value, cap);
}

/* Every parameter has a value, and there is a target. */
static void
check_settings(const PgSinkConfig *config)
{
	int			n = 0;

	for (; config->keywords[n] != NULL; n++)
		CHECK(config->values[n] != NULL);
	CHECK(n > 0 && n < 31);
	CHECK(config->schema[0] != '\0' && config->name[0] != '\0');
}

static void
check_failure(const IdemSinkFailure *failure)
{
	CHECK(failure->outcome == IDEM_PROTO_REJECTED);
	CHECK(strlen(failure->sqlstate) == 5 && failure->message[0] != '\0');
}

/* Options make settings or a failure. */
static void
configure(const IdemProtoHello *hello)
{
	static PgSink p;

	memset(&p, 0, sizeof(p));
	if (setjmp(failed) == 0)
	{
		if (!pgsink_configure(&p, hello))
			check_failure(&p.failure);
		else
			check_settings(&p.config);
	}
	while (nowned > 0)
		__real_free(owned[--nowned]);
}

static void
hello_of_options(Input *in)
{
	static uint8_t buf[IDEM_PROTO_MAX_FRAME];
	static char texts[MAX_OPTIONS][128];
	IdemProtoStr keys[MAX_OPTIONS];
	IdemProtoStr values[MAX_OPTIONS];
	IdemProtoHello h = {.version = IDEM_PROTO_VERSION, .relay = {"r", 1}, .incarnation = {"i", 1}};
	IdemProtoFrame frame;
	size_t		known = sizeof(idem_sink_postgres_options) / sizeof(IdemSinkOption) - 1;
	size_t		size;
	size_t		used;

	h.flags = take8(in) & IDEM_PROTO_HELLO_FLAGS;
	for (uint8_t n = take8(in) % MAX_OPTIONS; n > 0; n--)
	{
		const IdemSinkOption *o = &idem_sink_postgres_options[take8(in) % known];
		char	   *text = texts[h.noptions];

		take_value(in, o, text, sizeof(texts[0]));
		/* it reads the file; that is not what is looked for here */
		if (strcmp(o->name, "secret_file") == 0 || !check_value(o, text))
			continue;
		keys[h.noptions] = (IdemProtoStr)
		{
			o->name, (uint32_t) strlen(o->name)
		};
		values[h.noptions++] = (IdemProtoStr)
		{
			text, (uint32_t) strlen(text)
		};
	}
	h.keys = keys;
	h.values = values;
	size = idem_proto_encode_hello(buf, sizeof(buf), &h);
	CHECK(size > 0 && size <= sizeof(buf));
	CHECK(idem_proto_next(IDEM_PROTO_FROM_WORKER, buf, size, &frame, &used) == IDEM_PROTO_OK);
	CHECK(used == size && frame.u.hello.noptions == h.noptions);
	configure(&frame.u.hello);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	Input		in = {data, size};

	switch (take8(&in) % 3)
	{
		case 0:
			quoted_names(&in);
			break;
		case 1:
			odd_values(&in);
			break;
		default:
			hello_of_options(&in);
	}
	return 0;
}
