/*-------------------------------------------------------------------------
 *
 * script.h
 *		The scripts that the server runs for the redis sink.
 *
 * A script is atomic: no other client sees or does anything between two of its
 * commands, and append-only file and replicas get its writes as one.  But what a
 * script has written before an error stays.  So the script of a batch takes back
 * what it has added, and nobody has seen it.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/redis/script.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_SINK_REDIS_SCRIPT_H
#define IDEM_SINK_REDIS_SCRIPT_H

/*
 * Look at the position.  KEYS: the position, if one is stored.  ARGV: the script of
 * a batch.  Returns what, hash of that script, epoch, owner, relay, incarnation,
 * row_id, k.  XDEL of an entry that cannot exist shows whether it is allowed.
 */
#define RSINK_LOOK_SCRIPT \
	"local r = {'ok', redis.sha1hex(ARGV[1])}\n" \
	"if #KEYS == 0 then return r end\n" \
	"local t = redis.call('TYPE', KEYS[1])['ok']\n" \
	"if t ~= 'none' and t ~= 'hash' then return {'wrong'} end\n" \
	"local d = redis.pcall('XDEL', KEYS[1], '0-0')\n" \
	"if type(d) == 'table' and string.sub(d['err'], 1, 9) ~= 'WRONGTYPE' then return {'denied', d['err']} end\n" \
	"local s = redis.call('HMGET', KEYS[1], 'epoch', 'owner', 'relay', 'incarnation', 'row_id', 'k')\n" \
	"for i = 1, 6 do r[i + 2] = s[i] or '' end\n" \
	"return r\n"

/*
 * Take the position over, if nobody has since the look: a request of a program that
 * was killed, and comes late, changes nothing.  ARGV: epoch that was seen, new
 * epoch, owner, relay.
 */
#define RSINK_TAKE_SCRIPT \
	"if (redis.call('HGET', KEYS[1], 'epoch') or '') ~= ARGV[1] then return {'raced'} end\n" \
	"redis.call('HSET', KEYS[1], 'epoch', ARGV[2], 'owner', ARGV[3], 'relay', ARGV[4])\n" \
	"return {'ok'}\n"

/*
 * Add a batch.  KEYS: the position, if one is stored, then the streams.  ARGV:
 *	1	1: a position is stored
 *	2	epoch
 *	3 4 5	incarnation, row_id, k as they have to be stored
 *	6 7 8	the same of the batch
 *	9	maxlen, or ""
 *	10	1: look at the streams only
 *	11	number of events; then for each: its stream, from 0; number of arguments; arguments
 * Returns what:
 *	ok, why the streams could not be trimmed or ""
 *	fenced			a greater epoch is stored
 *	back			the position is not the expected one
 *	wrong, n...		these keys are no streams
 *	undone, error, n	event n failed, -1: the position; nothing was changed
 *	stuck, error	the same, but entries could not be taken back
 * XTRIM comes last: a batch that is taken back again and again must not empty the
 * stream.
 */
#define RSINK_BATCH_SCRIPT \
	"local pos = ARGV[1] == '1'\n" \
	"local first = pos and 2 or 1\n" \
	"if pos then\n" \
	" local s = redis.call('HMGET', KEYS[1], 'epoch', 'incarnation', 'row_id', 'k')\n" \
	" local e = tonumber(s[1] or '') or -1\n" \
	" if e > tonumber(ARGV[2]) then return {'fenced'} end\n" \
	" if e < tonumber(ARGV[2]) or (s[2] or '') ~= ARGV[3] or (s[3] or '') ~= ARGV[4] or (s[4] or '') ~= ARGV[5] then\n" \
	"  return {'back'}\n" \
	" end\n" \
	"end\n" \
	"local bad = {'wrong'}\n" \
	"for i = first, #KEYS do\n" \
	" local t = redis.call('TYPE', KEYS[i])['ok']\n" \
	" if t ~= 'none' and t ~= 'stream' then bad[#bad + 1] = i - first end\n" \
	"end\n" \
	"if #bad > 1 then return bad end\n" \
	"if ARGV[10] == '1' then return {'ok', ''} end\n" \
	"local done = {}\n" \
	"local function undo(why, event)\n" \
	" for i = #done, 1, -1 do\n" \
	"  local r = redis.pcall('XDEL', done[i][1], done[i][2])\n" \
	"  if type(r) == 'table' then return {'stuck', r['err']} end\n" \
	" end\n" \
	" return {'undone', why, event}\n" \
	"end\n" \
	"local at = 12\n" \
	"for n = 0, tonumber(ARGV[11]) - 1 do\n" \
	" local key, len = KEYS[first + tonumber(ARGV[at])], tonumber(ARGV[at + 1])\n" \
	" local r = redis.pcall('XADD', key, '*', unpack(ARGV, at + 2, at + 1 + len))\n" \
	" if type(r) == 'table' then return undo(r['err'], n) end\n" \
	" done[#done + 1] = {key, r}\n" \
	" at = at + 2 + len\n" \
	"end\n" \
	"if pos then\n" \
	" local r = redis.pcall('HSET', KEYS[1], 'incarnation', ARGV[6], 'row_id', ARGV[7], 'k', ARGV[8])\n" \
	" if type(r) == 'table' then return undo(r['err'], -1) end\n" \
	"end\n" \
	"local untrimmed = ''\n" \
	"if ARGV[9] ~= '' then\n" \
	" for i = first, #KEYS do\n" \
	"  local r = redis.pcall('XTRIM', KEYS[i], 'MAXLEN', '~', ARGV[9])\n" \
	"  if type(r) == 'table' then untrimmed = r['err'] end\n" \
	" end\n" \
	"end\n" \
	"return {'ok', untrimmed}\n"

#endif							/* IDEM_SINK_REDIS_SCRIPT_H */
