/*-------------------------------------------------------------------------
 *
 * address.c
 *		Which addresses may be connected to.
 *
 * The check sees the address of the socket that is about to be connected, and
 * never the text of a URL or the answer of a resolver: a name that resolves to
 * another address a moment later is checked again with its connection.
 *
 * INVARIANT
 *		Only addresses that are globally reachable by the registries of IANA are
 *		accepted, and those that the option allowed_addresses lists.  An IPv4
 *		address inside an IPv6 address (mapped, compatible, NAT64, 6to4) is judged
 *		as that IPv4 address.
 *
 * MEMORY
 *		Ranges live as long as the program.  LOCKING: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/http/address.c
 *
 *-------------------------------------------------------------------------
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

#include "sink/http/sink.h"

#define IPV4_BITS		96		/* of the prefix that makes IPv4 addresses
								 * IPv6 */
#define MAX_RANGES		256

/* A range that is refused, or that leads to an IPv4 address. */
typedef struct Special
{
	uint8_t		address[16];
	int			bits;
	int			ipv4_at;		/* the first byte of an IPv4 address inside */
	const char *kind;			/* NULL: an IPv4 address is inside */
} Special;

#define V4(a, b, c, d)	{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d}

static const Special ipv4_ranges[] = {
	{V4(0, 0, 0, 0), 96 + 8, 0, "an address of this network"},
	{V4(10, 0, 0, 0), 96 + 8, 0, "a private address"},
	{V4(100, 64, 0, 0), 96 + 10, 0, "an address shared by a carrier's customers"},
	{V4(127, 0, 0, 0), 96 + 8, 0, "a loopback address"},
	{V4(169, 254, 0, 0), 96 + 16, 0, "a link-local address"},
	{V4(172, 16, 0, 0), 96 + 12, 0, "a private address"},
	{V4(192, 0, 0, 0), 96 + 24, 0, "a reserved address"},
	{V4(192, 0, 2, 0), 96 + 24, 0, "an address for documentation"},
	{V4(192, 88, 99, 0), 96 + 24, 0, "a reserved address"},
	{V4(192, 168, 0, 0), 96 + 16, 0, "a private address"},
	{V4(198, 18, 0, 0), 96 + 15, 0, "an address for benchmarks"},
	{V4(198, 51, 100, 0), 96 + 24, 0, "an address for documentation"},
	{V4(203, 0, 113, 0), 96 + 24, 0, "an address for documentation"},
	{V4(224, 0, 0, 0), 96 + 4, 0, "a multicast address"},
	{V4(240, 0, 0, 0), 96 + 4, 0, "a reserved address"}
};

/* The first range that has the address decides. */
static const Special ipv6_ranges[] = {
	{{0}, 128, 0, "an address of this network"},
	{{[15] = 1}, 128, 0, "a loopback address"},
	{{0}, 96, 12, NULL},		/* IPv4-compatible */
	{{0, 0x64, 0xff, 0x9b}, 96, 12, NULL},	/* NAT64 */
	{{0x20, 0x02}, 16, 2, NULL},	/* 6to4 */
	{{0x20, 0x01, 0, 0}, 23, 0, "a reserved address"},	/* Teredo among others */
	{{0x20, 0x01, 0x0d, 0xb8}, 32, 0, "an address for documentation"},
	{{0x3f, 0xff}, 20, 0, "an address for documentation"},
	{{0xfc}, 7, 0, "a unique-local address"},
	{{0xfe, 0x80}, 10, 0, "a link-local address"},
	{{0xff}, 8, 0, "a multicast address"}
};

/* All global unicast addresses of IPv6 are in 2000::/3. */
static const uint8_t global_ipv6[16] = {0x20};

#define GLOBAL_IPV6_BITS	3

/* Are the first bits of both addresses the same? */
static bool
is_in(const uint8_t *address, const uint8_t *range, int bits)
{
	int			bytes = bits / 8;
	int			mask = 0xff00 >> bits % 8 & 0xff;

	return memcmp(address, range, (size_t) bytes) == 0 &&
		(bits % 8 == 0 || ((address[bytes] ^ range[bytes]) & mask) == 0);
}

static bool
is_ipv4(const uint8_t *address)
{
	static const uint8_t mapped[16] = V4(0, 0, 0, 0);

	return is_in(address, mapped, IPV4_BITS);
}

/* Write an IPv4 address in the form of IPv6. */
static void
put_ipv4(uint8_t *dst, const void *ipv4)
{
	static const uint8_t mapped[16] = V4(0, 0, 0, 0);

	memcpy(dst, mapped, 12);
	memcpy(dst + 12, ipv4, 4);
}

static bool
is_allowed(const HSinkConfig *c, const uint8_t *address)
{
	for (int i = 0; i < c->n_allowed; i++)
		if (is_in(address, c->allowed[i].address, c->allowed[i].bits))
			return true;
	return false;
}

/* Why an address is refused, or NULL. */
static const char *
refuse(const HSinkConfig *c, const uint8_t *address)
{
	const Special *ranges = is_ipv4(address) ? ipv4_ranges : ipv6_ranges;
	size_t		n = is_ipv4(address) ? sizeof(ipv4_ranges) / sizeof(Special) :
	sizeof(ipv6_ranges) / sizeof(Special);
	uint8_t		inner[16];

	if (is_allowed(c, address))
		return NULL;
	for (size_t i = 0; i < n; i++)
	{
		if (!is_in(address, ranges[i].address, ranges[i].bits))
			continue;
		if (ranges[i].kind != NULL)
			return ranges[i].kind;
		put_ipv4(inner, address + ranges[i].ipv4_at);
		return refuse(c, inner);
	}
	return is_ipv4(address) || is_in(address, global_ipv6, GLOBAL_IPV6_BITS) ? NULL : "a reserved address";
}

const char *
hsink_refuse_address(const HSinkConfig *c, const struct sockaddr *address, bool listed)
{
	uint8_t		bytes[16];

	if (address->sa_family == AF_INET)
		put_ipv4(bytes, &((const struct sockaddr_in *) address)->sin_addr);
	else if (address->sa_family == AF_INET6)
		memcpy(bytes, &((const struct sockaddr_in6 *) address)->sin6_addr, sizeof(bytes));
	else
		return "no internet address";
	if (listed && !is_allowed(c, bytes))
		return "an address that a login may not be sent to without TLS";
	return refuse(c, bytes);
}

/* Read one range, "10.0.0.0/8" or "::1". */
static bool
read_range(char *text, HSinkRange *range)
{
	char	   *slash = strchr(text, '/');
	uint8_t		ipv4[4];
	long		bits = -1;
	char	   *end;
	bool		is_v4;

	if (slash != NULL)
	{
		*slash = '\0';
		if (slash[1] < '0' || slash[1] > '9')
			return false;
		bits = strtol(slash + 1, &end, 10);
		if (*end != '\0')
			return false;
	}
	is_v4 = inet_pton(AF_INET, text, ipv4) == 1;
	if (is_v4)
		put_ipv4(range->address, ipv4);
	else if (inet_pton(AF_INET6, text, range->address) != 1)
		return false;
	if (slash == NULL)
		bits = is_v4 ? 32 : 128;
	if (bits > (is_v4 ? 32 : 128))
		return false;
	range->bits = (int) bits + (is_v4 ? IPV4_BITS : 0);
	return true;
}

const char *
hsink_read_ranges(HSinkConfig *c, const char *text)
{
	char	   *copy = idem_sink_strdup(text, strlen(text));
	char	   *rest = NULL;
	const char *problem = NULL;

	c->allowed = idem_sink_alloc(MAX_RANGES * sizeof(HSinkRange));
	for (char *word = strtok_r(copy, ", \t\r\n", &rest); word != NULL && problem == NULL;
		 word = strtok_r(NULL, ", \t\r\n", &rest))
	{
		if (c->n_allowed == MAX_RANGES)
			problem = "has too many ranges";
		else if (!read_range(word, &c->allowed[c->n_allowed++]))
			problem = "must be a list of addresses and ranges, as in \"10.1.0.0/16, ::1\"";
	}
	free(copy);
	return problem;
}
