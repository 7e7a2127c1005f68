#!/bin/bash
# What idle relays cost a busy one: its time from COMMIT to delivery, and that of stat_relay,
# with none and with RELAYS (1000) idle ones beside it, in turn, in one server.
#
#	RELAYS=n EVENTS=n ROUNDS=n test/bench/many.sh
#
# It prints the medians of each round; the machine's noise shows in
# the rounds.  A delivery shows in relay_status, which has a row for each relay: what one
# look takes stands beside the times, which cannot be told finer than that.  Nothing is
# written into the report.
set -euo pipefail
cd "$(dirname "$0")/../.."
relays=${RELAYS:-1000}
events=${EVENTS:-300}
rounds=${ROUNDS:-3}
dir=$(mktemp -d "${TMPDIR:-/tmp}/idem-many.XXXXXX")
trap 'test/setup/server.sh stop "$dir/server" >/dev/null 2>&1; rm -rf "$dir"' EXIT
chmod 755 "$dir"
test/setup/server.sh start "$dir/server" >/dev/null

sql()
{
	test/setup/server.sh psql "$dir/server" -qAtX "$@"
}

sql <<'SQL'
ALTER SYSTEM SET idempotency.sink_idle_timeout = '2s';
ALTER SYSTEM SET idempotency.max_sink_starts = 1000;
SELECT pg_reload_conf();
CREATE SERVER nul FOREIGN DATA WRAPPER idempotency_null;
CREATE FUNCTION public.handle(payload jsonb) RETURNS void LANGUAGE sql AS '';
CREATE SERVER fn FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'public.handle');
SELECT idempotency.relay_create('busy', 'nul', aggregate_types => '{busy}');
-- Milliseconds from COMMIT until the relay has counted its event.  The worker is not
-- started anew, so it has counted all there are when nothing is under way.
CREATE PROCEDURE latency(n int) LANGUAGE plpgsql AS $$
DECLARE
	id int := (SELECT relay_id FROM idempotency.relay_status() ORDER BY 1 LIMIT 1);
	due bigint := (SELECT count(*) FROM idempotency.outbox_events);
	began timestamptz;
	times float8[] := '{}';
BEGIN
	FOR i IN 0..n LOOP
		WHILE COALESCE((SELECT sent FROM idempotency.relay_status() WHERE relay_id = id), -1) < due LOOP
		END LOOP;
		IF i > 0 THEN
			times := times || (extract(epoch FROM clock_timestamp() - began) * 1000)::float8;
		END IF;
		PERFORM idempotency.outbox_enqueue('busy', 'k', 'E', '{}');
		due := due + 1;
		began := clock_timestamp();
		COMMIT;
	END LOOP;
	began := clock_timestamp();
	FOR i IN 1..100 LOOP
		PERFORM sent FROM idempotency.relay_status() WHERE relay_id = id;
	END LOOP;
	RAISE NOTICE '% %', (SELECT round(percentile_cont(0.5) WITHIN GROUP (ORDER BY t)::numeric, 3) FROM unnest(times) t),
		round((extract(epoch FROM clock_timestamp() - began) * 10)::numeric, 3);
END $$;
SQL

p50()
{
	sql -c "CALL latency($events)" 2>&1 | sed -n 's/^.*NOTICE: *//p'
}

stat_ms()
{
	sql -c '\timing on' -c 'SELECT count(lag_events) FROM idempotency.stat_relay' | sed -n 's/^Time: \([0-9.]*\) ms.*/\1/p'
}

# All of "many" of that kind exist and rest, or none exist.
have()
{
	sql -c "SELECT count(idempotency.relay_create('$1' || i, '$1', aggregate_types => ARRAY['$1' || i])) FROM generate_series(1, $relays) i" >/dev/null
	until [ "$(sql -c "SELECT count(*) FROM idempotency.stat_relay WHERE relay ~ '^$1' AND state = 'idle'")" = "$relays" ]; do sleep 0.5; done
}

have_none()
{
	sql -c "SELECT count(idempotency.relay_drop(relay)) FROM idempotency.stat_relay WHERE relay <> 'busy'" >/dev/null
	until [ "$(sql -c 'SELECT count(*) FROM idempotency.relay_status()')" = 1 ]; do sleep 0.1; done
}

until [ "$(sql -c 'SELECT count(*) FROM idempotency.relay_status()')" = 1 ]; do sleep 0.1; done
sql -c 'CALL latency(20)' >/dev/null 2>&1
printf '%-6s %6s %10s %10s %10s %10s %14s\n' kind round none_ms its_look idle_ms its_look stat_relay_ms
for kind in nul fn; do
	for round in $(seq "$rounds"); do
		none=$(p50)
		have "$kind"
		p50 >/dev/null
		idle=$(p50)
		# shellcheck disable=SC2086
		printf '%-6s %6s %10s %10s %10s %10s %14s\n' "$kind" "$round" $none $idle "$(stat_ms)"
		have_none
	done
done
