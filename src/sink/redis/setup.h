/*-------------------------------------------------------------------------
 *
 * setup.h
 *		What a server needs before a redis sink can work.
 *
 * The SQL function sink_setup(server, relay) prints these commands, and an
 * operator runs them.  They can be run again.  Each %s is text that is quoted
 * for a shell.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/redis/setup.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_SINK_REDIS_SETUP_H
#define IDEM_SINK_REDIS_SETUP_H

/* What the guarantee rests on: host, port, three times. */
#define IDEM_SINK_REDIS_SERVER_SETUP \
	"redis-cli -h %1$s -p %2$s CONFIG SET appendonly yes\n" \
	"redis-cli -h %1$s -p %2$s CONFIG SET appendfsync always\n" \
	"redis-cli -h %1$s -p %2$s CONFIG SET maxmemory-policy noeviction\n" \
	"redis-cli -h %1$s -p %2$s CONFIG REWRITE\n"

/* Rights: host, port, user, pattern of the streams. */
#define IDEM_SINK_REDIS_ACL \
	"redis-cli -h %1$s -p %2$s ACL SETUSER %3$s on resetkeys %4$s \\\n" \
	"    +eval +evalsha +select +type +xadd +xdel +xtrim +wait\n"

/* The same for a sink that stores its position: and pattern of the position. */
#define IDEM_SINK_REDIS_POSITION_ACL \
	"redis-cli -h %1$s -p %2$s ACL SETUSER %3$s %4$s +hget +hmget +hset\n"

/* What older servers do not know, and how the rights last. */
#define IDEM_SINK_REDIS_ACL_END \
	"redis-cli -h %1$s -p %2$s ACL SETUSER %3$s +waitaof\n" \
	"redis-cli -h %1$s -p %2$s CONFIG REWRITE\n"

#endif							/* IDEM_SINK_REDIS_SETUP_H */
