"""What the monitoring files are made of: queries, alerts, the panels of the dashboard.

generate.py writes the files of the exporters and the rules, dashboard.py the dashboard.

A query has labels and values.  Each value is a metric: its name is the query's and the
column's.  All files rest on that, since two of the exporters know no other names.

Rules for a query:
  - the role monitor may run it, and it reads each view once: a scrape costs at most 50 ms
    with 1,000 relays, and stat_relay is most of that;
  - it returns no row on a standby;
  - no label has a key, an event id, or words of a target;
  - no column is NULL: an exporter would keep the last value, or log an error at each scrape.
    What is not known is NaN, which no alert compares true with.
"""

# stat_relay.state and waiting_for are numbers, so that a change of state makes no new
# series.  The order counts: alerts compare with the bounds below.  The tests compare both
# lists with src/relay/report.c.
STATES = [
    "not running", "starting", "streaming", "idle", "paused", "outage", "unwitnessed",
    "halted", "misconfigured", "unadopted", "diverged", "fenced",
]
WAITS = [
    "nothing", "events", "retry",
    "answer", "function", "lock", "backoff", "synchronous standby", "end of the former program",
    "turn of worker", "room for parked events",
    "sink program", "worker", "worker slot", "worker slot (max_worker_processes)",
    "witness", "operator",
]
BOUNDS = {
    "well_first": STATES.index("starting"), "well_last": STATES.index("idle"),
    "paused": STATES.index("paused"), "outage": STATES.index("outage"),
    "unwitnessed": STATES.index("unwitnessed"), "stopped": STATES.index("halted"),
    "busy_first": WAITS.index("answer"), "busy_last": WAITS.index("room for parked events"),
    "slot_first": WAITS.index("sink program"), "slot_last": WAITS.index("worker slot (max_worker_processes)"),
}
PRIMARY = "(SELECT NOT pg_catalog.pg_is_in_recovery())"


def sql_array(words):
    return "ARRAY[" + ", ".join(f"'{word}'" for word in words) + "]"


def meaning(words):
    return ", ".join(f"{n} {word}" for n, word in enumerate(words))


GAUGE, COUNTER = "gauge", "counter"

QUERIES = [
    {
        "name": "idempotency_database",
        "labels": [],
        "standby": True,
        "values": [
            ("scrape_timestamp_seconds", GAUGE, "When these numbers were read, by the server's clock."),
            ("in_recovery", GAUGE, "1 on a standby, which has no other of these metrics; 0 on a primary."),
            ("oldest_prepared_seconds", GAUGE,
             "Age of the oldest prepared transaction of the database; 0 if there is none."),
        ],
        "sql": """\
SELECT extract(epoch FROM clock_timestamp())::float8 AS scrape_timestamp_seconds,
       pg_is_in_recovery()::int AS in_recovery,
       coalesce((SELECT extract(epoch FROM clock_timestamp() - min(prepared))
                   FROM pg_prepared_xacts WHERE database = current_database()), 0)::float8
           AS oldest_prepared_seconds""",
    },
    {
        "name": "idempotency_relay",
        "labels": ["relay"],
        "values": [
            ("state", GAUGE, f"State of the relay: {meaning(STATES)}; -1 another."),
            ("waiting_for", GAUGE, f"What the relay waits for: {meaning(WAITS)}; -1 something else."),
            ("waiting_seconds", GAUGE,
             "For how long the relay has waited for that without getting on; 0 if it waits for events or for the next "
             "try of a refused event, and if no worker knows."),
            ("lag_events", GAUGE, "Committed events after the position; beyond 1,000 an estimate."),
            ("lag_seconds", GAUGE, "Age of the oldest of these events; 0 if there is none."),
            ("lag_bytes", GAUGE, "What the outbox keeps for the relay."),
            ("retrying_events", GAUGE, "Parked events that are not dead."),
            ("oldest_waiting_seconds", GAUGE,
             "Age of the oldest event that is not delivered and not dead; 0 if there is none."),
            ("dead_letters", GAUGE, "Dead letters."),
            ("delivered_events_total", COUNTER, "Events delivered since the worker started."),
            ("retried_events_total", COUNTER, "Repeats of parked events since the worker started."),
            ("delivered_timestamp_seconds", GAUGE,
             "When the relay delivered an event last, since its worker started; NaN: not yet."),
            ("last_error_timestamp_seconds", GAUGE, "When the last error was noted; NaN: there was none."),
        ],
        "sql": f"""\
SELECT relay,
       coalesce(array_position({sql_array(STATES)}, state) - 1, -1) AS state,
       CASE WHEN waiting_for IS NULL THEN 0
            ELSE coalesce(array_position({sql_array(WAITS[1:])}, waiting_for), -1) END AS waiting_for,
       CASE WHEN waiting_for IN ('events', 'retry') THEN 0
            ELSE coalesce(extract(epoch FROM clock_timestamp() - waiting_since), 0) END::float8 AS waiting_seconds,
       coalesce(lag_events::float8, 'NaN') AS lag_events,
       coalesce(extract(epoch FROM lag)::float8, 'NaN') AS lag_seconds,
       coalesce(lag_bytes::float8, 'NaN') AS lag_bytes,
       retrying AS retrying_events,
       coalesce(extract(epoch FROM clock_timestamp() - oldest_waiting), 0)::float8 AS oldest_waiting_seconds,
       dead AS dead_letters,
       coalesce(sent, 0) AS delivered_events_total,
       coalesce(retried, 0) AS retried_events_total,
       coalesce(extract(epoch FROM delivered_at)::float8, 'NaN') AS delivered_timestamp_seconds,
       coalesce(extract(epoch FROM last_error_at)::float8, 'NaN') AS last_error_timestamp_seconds
  FROM idempotency.stat_relay
 WHERE {PRIMARY}""",
    },
    {
        "name": "idempotency_consumer",
        "labels": ["consumer"],
        "values": [
            ("leased_events", GAUGE, "Events and requests whose lease lasts."),
            ("overdue_events", GAUGE, "Events and requests whose lease is over, and that nobody has taken over."),
            ("waiting_events", GAUGE, "Events and requests whose pause after an attempt lasts."),
            ("ready_events", GAUGE, "Events and requests whose pause is over, and that nobody has leased since."),
            ("dead_events", GAUGE, "Events and requests that are not tried again by themselves."),
            ("oldest_overdue_seconds", GAUGE, "For how long the oldest overdue lease is over; 0 if none is."),
            ("oldest_ready_seconds", GAUGE, "For how long the oldest pause is over; 0 if none is."),
        ],
        "sql": f"""\
SELECT consumer, leased AS leased_events, overdue AS overdue_events, waiting AS waiting_events,
       ready AS ready_events, dead AS dead_events,
       coalesce(extract(epoch FROM clock_timestamp() - oldest_overdue), 0)::float8 AS oldest_overdue_seconds,
       coalesce(extract(epoch FROM clock_timestamp() - oldest_ready), 0)::float8 AS oldest_ready_seconds
  FROM idempotency.stat_consumers
 WHERE {PRIMARY}""",
    },
    {
        "name": "idempotency_outbox",
        "labels": [],
        "values": [
            ("enqueued_events_total", COUNTER, "Numbers given to events so far, to those rolled back as well."),
            ("events", GAUGE, "Estimated number of events that are still there."),
            ("segments", GAUGE, "Segments of the outbox."),
            ("segments_used", GAUGE, "Segments that have events."),
            ("oldest_seconds", GAUGE, "Age of the oldest event that is still there; 0 if there is none."),
        ],
        "sql": f"""\
SELECT last_seq AS enqueued_events_total, events, segments, segments_used,
       coalesce(extract(epoch FROM clock_timestamp() - oldest), 0)::float8 AS oldest_seconds
  FROM idempotency.stat_outbox
 WHERE {PRIMARY}""",
    },
    {
        "name": "idempotency_claims",
        "labels": [],
        "values": [
            ("probes_total", COUNTER, "Look-ups of events in what is not packed."),
            ("rows_written_total", COUNTER, "Rows written by claims, those of aborted transactions included."),
        ],
        "sql": f"""\
SELECT coalesce(probes, 0) AS probes_total, coalesce(rows_written, 0) AS rows_written_total
  FROM idempotency.stat_claims
 WHERE {PRIMARY}""",
    },
    {
        "name": "idempotency_disk",
        "labels": ["kind"],
        "values": [
            ("bytes", GAUGE,
             "Size on disk: outbox, claims, leases, cursors; parked events and positions of relays; other tables."),
        ],
        "sql": f"""\
SELECT CASE WHEN relname LIKE 'outbox\\_segment\\_%' THEN 'outbox'
            WHEN relname LIKE 'store\\_%' THEN 'claims'
            WHEN relname LIKE 'lease\\_log\\_%' THEN 'leases'
            WHEN relname LIKE 'cursor\\_log\\_%' THEN 'cursors'
            WHEN relname LIKE 'relay\\_%' THEN 'relays'
            ELSE 'other' END AS kind,
       sum(pg_total_relation_size(oid))::float8 AS bytes
  FROM pg_class
 WHERE relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = 'idempotency_data')
   AND relkind = 'r' AND {PRIMARY}
 GROUP BY 1""",
    },
    {
        "name": "idempotency_held",
        "labels": ["kind", "held_by"],
        "values": [
            ("bytes", GAUGE,
             "Size of what is kept from being packed or emptied by something else than relays and retention, by kind "
             "(outbox, claims, leases, cursors) and by what keeps it, in the words of the views' column held_by."),
        ],
        "sql": f"""\
SELECT h.kind, h.held_by, sum(h.bytes)::float8 AS bytes
  FROM (SELECT 'outbox' AS kind, held_by, bytes FROM idempotency.outbox_segments()
        UNION ALL
        SELECT 'claims', held_by, bytes FROM idempotency.stat_claim_segments
        UNION ALL
        SELECT 'leases', held_by, table_bytes + index_bytes FROM idempotency.stat_leases
        UNION ALL
        SELECT 'cursors', held_by, table_bytes + index_bytes FROM idempotency.stat_cursors) AS h
 WHERE h.held_by IS NOT NULL AND {PRIMARY}
 GROUP BY h.kind, h.held_by""",
    },
]

# The limits that alerts compare with.  generate.py takes others: --limit NAME=VALUE.
LIMITS = {
    "interval": "15s",       # between two evaluations of the rules
    "soon": "1m",            # `for` of what no healthy relay shows for so long
    "later": "5m",           # `for` of what may pass by itself
    "held": "1h",            # `for` of what is emptied in turns
    "window": "15m",         # without a delivery in it, a relay with events does not get on
    "stalled": "300",        # seconds that a relay may wait without getting on
    "silence": "300",        # seconds without new numbers
    "oldest": "900",         # seconds that an event may be old
    "outbox": "1073741824",  # bytes of the outbox that one relay, or a lock, may hold
    "log": "268435456",      # bytes of the log of leases, or of cursors, that may be held
    "prepared": "3600",      # seconds that a transaction may stay prepared
}

PAGE = "doc/howto/alerts.md"

# `{limit}` is a value of LIMITS, `[name]` one of BOUNDS.
ALERTS = [
    {
        "name": "IdempotencyNoMetrics", "for": "soon", "severity": "critical",
        "expr": """\
absent(idempotency_database_scrape_timestamp_seconds)
or time() - idempotency_database_scrape_timestamp_seconds > {silence}""",
        "summary": "The exporter of idempotency has no new numbers",
        "description": "Nothing is known of relays and claims: the exporter or the database does not answer.",
    },
    {
        "name": "IdempotencyRelayStopped", "for": "soon", "severity": "critical",
        "expr": "idempotency_relay_state >= [stopped]",
        "summary": "Relay {{ $labels.relay }} has stopped and waits for an operator",
        "description": "Its state is number {{ $value }}: " +
                       ", ".join(f"{n} {word}" for n, word in enumerate(STATES) if n >= BOUNDS["stopped"]) + ".",
    },
    {
        "name": "IdempotencyRelayOutage", "for": "later", "severity": "critical",
        "expr": "idempotency_relay_state == [outage]",
        "summary": "Relay {{ $labels.relay }} delivers nothing: its sink is down or refuses all",
        "description": "The relay tries again by itself. Events wait in the outbox.",
    },
    {
        "name": "IdempotencyRelayNoProgress", "for": "soon", "severity": "critical",
        "expr": """\
(idempotency_relay_waiting_seconds > {stalled}
  and idempotency_relay_waiting_for >= [busy_first] and idempotency_relay_waiting_for <= [busy_last]
  and idempotency_relay_state >= [well_first] and idempotency_relay_state <= [well_last])
or (idempotency_relay_lag_events > 0
  and increase(idempotency_relay_delivered_events_total[{window}]) == 0
  and increase(idempotency_relay_retried_events_total[{window}]) == 0
  and idempotency_relay_state >= [well_first] and idempotency_relay_state <= [well_last]
  and idempotency_relay_lag_seconds > {stalled})""",
        "summary": "Relay {{ $labels.relay }} does not get on",
        "description": "It is in a healthy state, and has got nothing done for longer than an answer should take.",
    },
    {
        "name": "IdempotencySlotsSpent", "for": "later", "severity": "warning",
        "expr": """\
(idempotency_relay_waiting_for >= [slot_first] and idempotency_relay_waiting_for <= [slot_last])
and idempotency_relay_state != [paused]""",
        "summary": "Relay {{ $labels.relay }} has no process",
        "description": "It waits for a worker, a worker slot or its turn to start a sink program, and events wait for it.",
    },
    {
        "name": "IdempotencyWitness", "for": "soon", "severity": "critical",
        "expr": "idempotency_relay_state == [unwitnessed]",
        "summary": "Relay {{ $labels.relay }} is stopped by the publish witness",
        "description": "idempotency.publish_witness has said no, or has not said yes for too long.",
    },
    {
        "name": "IdempotencyDeadLetters", "for": "soon", "severity": "warning",
        "expr": "idempotency_relay_dead_letters > 0 or idempotency_consumer_dead_events > 0",
        "summary": "{{ with $labels.relay }}Relay {{ . }}{{ else }}Consumer {{ $labels.consumer }}{{ end }} "
                   "has {{ $value }} dead events",
        "description": "These events are not tried again until somebody redrives or discards them.",
    },
    {
        "name": "IdempotencyOldestEvent", "for": "soon", "severity": "warning",
        "expr": """\
idempotency_relay_oldest_waiting_seconds > {oldest}
or idempotency_consumer_oldest_overdue_seconds > {oldest}
or idempotency_consumer_oldest_ready_seconds > {oldest}""",
        "summary": "The oldest event of {{ with $labels.relay }}relay {{ . }}{{ else }}consumer "
                   "{{ $labels.consumer }}{{ end }} waits for {{ humanizeDuration $value }}",
        "description": "The relay is slow, stopped or paused, its sink refuses events, or nobody leases what is due.",
    },
    {
        "name": "IdempotencyDiskHeld", "for": "later", "severity": "warning",
        "expr": """\
idempotency_relay_lag_bytes > {outbox}
or idempotency_held_bytes{kind="outbox"} > {outbox}
or (idempotency_disk_bytes{kind="outbox"} > {outbox} unless ignoring (relay, kind) idempotency_relay_state)""",
        "summary": "{{ with $labels.relay }}Relay {{ . }}{{ else }}{{ with $labels.held_by }}A {{ . }}{{ else }}"
                   "The lack of any relay{{ end }}{{ end }} holds {{ humanize1024 $value }}B of the outbox",
        "description": "The outbox is not emptied, and grows with each event.",
    },
    {
        "name": "IdempotencyLeaseLog", "for": "held", "severity": "warning",
        "expr": """\
idempotency_held_bytes{kind=~"leases|cursors"} > {log}
or idempotency_database_oldest_prepared_seconds > {prepared}""",
        "summary": "{{ with $labels.held_by }}The log of {{ $labels.kind }} is held by: {{ . }}{{ else }}"
                   "A transaction has been prepared for {{ humanizeDuration $value }}{{ end }}",
        "description": "The log is not shortened, and what the transaction has claimed stays busy.",
    },
    {
        "name": "IdempotencyPackerStuck", "for": "held", "severity": "warning",
        "expr": """\
idempotency_held_bytes{kind="claims", held_by!="no packer"} > 0
or (idempotency_held_bytes{kind="claims", held_by="no packer"} > 0
  and ignoring (kind, held_by) increase(idempotency_claims_rows_written_total[{window}]) > 0)""",
        "summary": "Remembered claims are not packed: {{ $labels.held_by }}",
        "description": "Claims go on. Each takes more disk than a packed one, and segments grow.",
    },
]
