#!/usr/bin/env python3
"""Write dashboard.json, with Grafana's own types (grafana-foundation-sdk of PyPI).

	dashboard.py			write the file beside this script
	dashboard.py --check	fail if the file is not what would be written

The file stands in the tree, because whoever imports a dashboard has no SDK; `make
test-monitoring` checks that it is current, and that each of its queries has data.
"""
import pathlib
import sys

from grafana_foundation_sdk.builders import dashboard as boards
from grafana_foundation_sdk.builders import prometheus, stat, statetimeline, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as models

import source

FILE = pathlib.Path(__file__).resolve().parent / "dashboard.json"
SOURCE = models.DataSourceRef("prometheus", "${datasource}")
HERE = 'instance=~"$instance"'
RELAY = HERE + ', relay=~"$relay"'
GREEN, BLUE, ORANGE, RED = "green", "blue", "orange", "red"

# Title, unit, description, and pairs of query and legend.
ROWS = [
    ("Relays", [
        ("Delivered", "cps", "Events per second, at whatever attempt.",
         [(f"rate(idempotency_relay_delivered_events_total{{{RELAY}}}[$__rate_interval])", "{{relay}}")]),
        ("Oldest event that waits", "s", "Not delivered and not dead.",
         [(f"idempotency_relay_oldest_waiting_seconds{{{RELAY}}}", "{{relay}}")]),
        ("Events behind the position", "short", "Beyond 1,000 an estimate.",
         [(f"idempotency_relay_lag_events{{{RELAY}}}", "{{relay}}")]),
        ("Refused and dead events", "short", "Parked events that are tried again, or wait behind one; dead letters.",
         [(f"idempotency_relay_retrying_events{{{RELAY}}}", "{{relay}} retrying"),
          (f"idempotency_relay_dead_letters{{{RELAY}}}", "{{relay}} dead")]),
        ("Waits without getting on", "s", "For an answer, a function, a lock, a standby, a process, an operator.",
         [(f"idempotency_relay_waiting_seconds{{{RELAY}}}", "{{relay}}")]),
        ("Repeats", "cps", "Tries of parked events per second.",
         [(f"rate(idempotency_relay_retried_events_total{{{RELAY}}}[$__rate_interval])", "{{relay}}")]),
    ]),
    ("Outbox and disk", [
        ("Enqueued", "cps", "Numbers given to events per second.",
         [(f"rate(idempotency_outbox_enqueued_events_total{{{HERE}}}[$__rate_interval])", "{{database}}")]),
        ("Outbox held by relays", "bytes", "What the outbox keeps for each relay.",
         [(f"idempotency_relay_lag_bytes{{{RELAY}}}", "{{relay}}")]),
        ("Disk", "bytes", "All tables of the extension, with indexes.",
         [(f"idempotency_disk_bytes{{{HERE}}}", "{{kind}}")]),
        ("Held by something else", "bytes", "What keeps space from being packed or emptied, relays and retention aside.",
         [(f"idempotency_held_bytes{{{HERE}}}", "{{kind}}: {{held_by}}")]),
    ]),
    ("Claims and consumers", [
        ("Claims", "cps", "Look-ups of events and rows written, per second.",
         [(f"rate(idempotency_claims_probes_total{{{HERE}}}[$__rate_interval])", "looked up"),
          (f"rate(idempotency_claims_rows_written_total{{{HERE}}}[$__rate_interval])", "written")]),
        ("Open events of consumers", "short", "By the state of their leases.",
         [(f"idempotency_consumer_{state}_events{{{HERE}}}", f"{{{{consumer}}}} {state}")
          for state in ("leased", "overdue", "ready", "dead")]),
    ]),
]
# Title, unit, query, and from which value on it is orange and red.
NUMBERS = [
    ("Relays not healthy", "short",
     f"count(idempotency_relay_state{{{RELAY}}} < {source.BOUNDS['well_first']}"
     f" or idempotency_relay_state{{{RELAY}}} > {source.BOUNDS['well_last']}) or vector(0)", 1, 1),
    ("Dead letters", "short", f"sum(idempotency_relay_dead_letters{{{RELAY}}})", 1, 100),
    ("Oldest event", "s", f"max(idempotency_relay_oldest_waiting_seconds{{{RELAY}}})", 60, int(source.LIMITS["oldest"])),
    ("Outbox", "bytes", f'sum(idempotency_disk_bytes{{{HERE}, kind="outbox"}})', 1 << 29, int(source.LIMITS["outbox"])),
]


def query(expr, legend):
    return prometheus.Dataquery().expr(expr).legend_format(legend).datasource(SOURCE)


def steps(orange, red):
    """Green below, and each step above the one before it."""
    return boards.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(
        [models.Threshold(None, GREEN)] + ([models.Threshold(orange, ORANGE)] if orange < red else []) +
        [models.Threshold(red, RED)])


def number(title, unit, expr, orange, red):
    return stat.Panel().title(title).unit(unit).datasource(SOURCE).thresholds(steps(orange, red)) \
        .with_target(query(expr, "")).height(4).span(6)


def states():
    """A band of colour for each relay."""
    colour = {"starting": BLUE, "streaming": GREEN, "idle": GREEN, "paused": BLUE, "outage": ORANGE}
    names = {str(n): models.ValueMappingResult(text=word, color=colour.get(word, RED), index=n)
             for n, word in enumerate(source.STATES)}
    return statetimeline.Panel().title("State").description("What each state asks for: doc/reference/relay.md.") \
        .datasource(SOURCE).mappings([models.ValueMap(names)]) \
        .with_target(query(f"idempotency_relay_state{{{RELAY}}}", "{{relay}}")).height(8).span(24)


def lines(title, unit, said, queries):
    panel = timeseries.Panel().title(title).unit(unit).description(said).datasource(SOURCE).min(0).height(8).span(12)
    for expr, legend in queries:
        panel = panel.with_target(query(expr, legend))
    return panel


def variable(name, metric):
    return boards.QueryVariable(name).datasource(SOURCE).query(f"label_values({metric}, {name})").include_all(True) \
        .multi(True).refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED) \
        .current(models.VariableOption(selected=True, text="All", value="$__all"))


def dashboard():
    board = boards.Dashboard("idempotency").uid("idempotency").tags(["postgresql", "idempotency"]) \
        .description("Relays, outbox and claims of the PostgreSQL extension idempotency") \
        .refresh("30s").time("now-1h", "now").timezone("browser") \
        .with_variable(boards.DatasourceVariable("datasource").type("prometheus")) \
        .with_variable(variable("instance", "idempotency_database_in_recovery")) \
        .with_variable(variable("relay", "idempotency_relay_state"))
    for panel in NUMBERS:
        board = board.with_panel(number(*panel))
    board = board.with_panel(states())
    for title, panels in ROWS:
        board = board.with_row(boards.Row(title))
        for panel in panels:
            board = board.with_panel(lines(*panel))
    return JSONEncoder(sort_keys=True, indent=1).encode(board.build()) + "\n"


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        if not FILE.exists() or FILE.read_text(encoding="utf-8") != dashboard():
            sys.exit("dashboard.json is not what dashboard.py writes")
    elif sys.argv[1:]:
        sys.exit(__doc__)
    else:
        FILE.write_text(dashboard(), encoding="utf-8")
