#!/usr/bin/env python3
"""Write the monitoring files from source.py, so that none of them can drift from the others.

	generate.py				write all files: those beside this script, and doc/reference/metrics.md
	generate.py --check		fail, and name the files, if one is not what would be written
	generate.py rules [--limit NAME=VALUE]...
							print the alert rules with other limits (source.LIMITS)
	generate.py exporter URL [INTERVAL]
							print prometheus-sql-exporter's file for this connection
"""
import json
import pathlib
import re
import sys

import source

HERE = pathlib.Path(__file__).resolve().parent
MADE = "# Made by generate.py from source.py; change those.\n"


def text(value):
    """A string of JSON is one of YAML."""
    return json.dumps(value, ensure_ascii=False)


def block(value, indent):
    """A literal block of YAML, below a key that ends with `|-`."""
    return "".join(f"{' ' * indent}{line}\n" if line else "\n" for line in value.splitlines())


def metric(query, column):
    return f"{query['name']}_{column}"


def exporter(url="postgres://monitor@127.0.0.1:5432/shop?sslmode=disable", interval="15s"):
    """prometheus-sql-exporter (justwatch), as Debian has it."""
    out = [MADE, "# For prometheus-sql-exporter.  One connection for each database with the extension.\n",
           f"jobs:\n- name: idempotency\n  interval: {text(interval)}\n  connections:\n  - {text(url)}\n"
           "  queries:\n"]
    for query in source.QUERIES:
        out.append(f"  - name: {query['name']}\n"
                   f"    help: {text(' '.join(f'{column}: {said}' for column, _, said in query['values']))}\n"
                   f"    allow_zero_rows: true\n"
                   f"    labels: [{', '.join(query['labels'])}]\n"
                   f"    values: [{', '.join(column for column, _, _ in query['values'])}]\n"
                   f"    query: |-\n{block(query['sql'], 6)}")
    return "".join(out)


def scrape():
    """What Prometheus has to do with the names of the exporters."""
    return MADE + """\
# For scrape_configs of prometheus.yml.
#
# prometheus-sql-exporter gives a metric the name sql_QUERY and the column as a label.  This
# makes the name of the two.
- job_name: idempotency
  static_configs:
  - targets: ["127.0.0.1:9237"]
  metric_relabel_configs:
  - source_labels: [__name__, col]
    separator: ";"
    regex: "sql_(idempotency_.+);(.+)"
    target_label: __name__
    replacement: "${1}_${2}"
  - regex: "col"
    action: labeldrop
# CloudNativePG and pgwatch put a word of their own before each name.  Where they are
# scraped, this takes it away:
#
#  metric_relabel_configs:
#  - source_labels: [__name__]
#    regex: "(?:cnpg|pgwatch)_(idempotency_.+)"
#    target_label: __name__
#    replacement: "${1}"
"""


def collector():
    """sql_exporter (burningalchemist): a collector, each query of which runs once per scrape."""
    out = [MADE, "# For sql_exporter: `collector_files` and `collectors: [idempotency]` of its file name it.\n",
           "collector_name: idempotency\nmetrics:\n"]
    for query in source.QUERIES:
        for column, kind, said in query["values"]:
            out.append(f"- metric_name: {metric(query, column)}\n  type: {kind}\n  help: {text(said)}\n"
                       f"  values: [{column}]\n  query_ref: {query['name']}\n")
            if query["labels"]:
                out.append(f"  key_labels: [{', '.join(query['labels'])}]\n")
    out.append("queries:\n")
    for query in source.QUERIES:
        out.append(f"- query_name: {query['name']}\n  query: |-\n{block(query['sql'], 4)}")
    return "".join(out)


def pgwatch():
    """pgwatch: labels are columns tag_NAME, and each row has its time."""
    out = [MADE, "# For pgwatch: `--metrics` names this file, or a folder with it.\n", "metrics:\n"]
    for query in source.QUERIES:
        columns = [f"q.{label} AS tag_{label}" for label in query["labels"]]
        columns += [f"q.{column}" for column, _, _ in query["values"]]
        sql = ("SELECT (extract(epoch FROM now()) * 1e9)::int8 AS epoch_ns,\n       " + ",\n       ".join(columns) +
               "\n  FROM (\n" + query["sql"] + ") AS q")
        out.append(f"    {query['name']}:\n"
                   f"        description: {text(' '.join(f'{column}: {said}' for column, _, said in query['values']))}\n"
                   f"        sqls:\n            15: |-\n{block(sql, 16)}"
                   f"        gauges:\n")
        out += [f"            - {column}\n" for column, kind, _ in query["values"] if kind == source.GAUGE] or ["[]"]
        if not query.get("standby"):
            out.append("        node_status: primary\n")
    out.append("presets:\n    idempotency:\n        description: \"Relays, claims and outbox of the extension\"\n"
               "        metrics:\n")
    out += [f"            {query['name']}: 15\n" for query in source.QUERIES]
    return "".join(out).replace("gauges:\n[]", "gauges: []\n")


def cloudnativepg():
    """CloudNativePG: the queries of a ConfigMap, in the shape of postgres_exporter's custom queries."""
    queries = []
    for query in source.QUERIES:
        queries.append(f"{query['name']}:\n  query: |-\n{block(query['sql'], 4)}")
        if not query.get("standby"):
            queries.append("  primary: true\n")
        queries.append("  metrics:\n")
        queries += [f"  - {label}:\n      usage: LABEL\n      description: {text(f'Name of the {label}.')}\n"
                    for label in query["labels"]]
        queries += [f"  - {column}:\n      usage: {kind.upper()}\n      description: {text(said)}\n"
                    for column, kind, said in query["values"]]
    return (MADE + "# For CloudNativePG: `monitoring.customQueriesConfigMap` of the Cluster names it.  Of several\n"
            "# databases, `target_databases` of each query names those with the extension.\n"
            "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: idempotency-monitoring\n  labels:\n"
            "    cnpg.io/reload: \"\"\ndata:\n  custom-queries: |\n" + block("".join(queries), 4))


def expression(alert, limits):
    expr = re.sub(r"\{(\w+)\}", lambda m: limits[m[1]], alert["expr"])
    return re.sub(r"(>=|<=|==|!=) \[(\w+)\]", lambda m: f"{m[1]} {source.BOUNDS[m[2]]}", expr)


def rules(limits):
    """The alert rules."""
    out = [MADE, f"groups:\n- name: idempotency\n  interval: {limits['interval']}\n  rules:\n"]
    for alert in source.ALERTS:
        anchor = alert["name"].lower()
        out.append(f"  - alert: {alert['name']}\n    expr: |-\n{block(expression(alert, limits), 6)}"
                   f"    for: {limits[alert['for']]}\n    labels:\n      severity: {alert['severity']}\n"
                   f"    annotations:\n      summary: {text(alert['summary'])}\n"
                   f"      description: {text(alert['description'])}\n"
                   f"      runbook: {text(f'{source.PAGE}#{anchor}')}\n")
    return "".join(out)


def reference():
    """The table of the metrics, for the documents."""
    out = ["<!-- Made by src/packaging/monitoring/generate.py from source.py; change those. -->\n# Metrics\n\n"
           "What the files of [`src/packaging/monitoring`](../../src/packaging/monitoring/README.md) give to Prometheus: "
           "[how to set\nthem up](../howto/monitor.md), and [what to do when an alert fires](../howto/alerts.md). The numbers "
           "are those of the\nviews, which the reference of each part explains. A standby has the metrics "
           "`idempotency_database_*` only.\n\n"
           "| Metric | Type | Labels | Meaning |\n|---|---|---|---|\n"]
    for query in source.QUERIES:
        labels = ", ".join(f"`{label}`" for label in query["labels"])
        out += [f"| `{metric(query, column)}` | {kind} | {labels} | {said} |\n" for column, kind, said in query["values"]]
    return "".join(out) + """
Each metric also has the labels that its exporter and Prometheus add: the database, the server, the job. No label has a
key, an event id or words of a target. `held_by` has the few words that the views have.

`_total` counts since the worker of the relay, or the statistics of the server, began; `rate()` and `increase()` take
that for the restart of a counter. Through prometheus-sql-exporter all metrics have the type gauge.
"""


FILES = {
    "prometheus-sql-exporter.yml": exporter,
    "prometheus-scrape.yml": scrape,
    "idempotency.collector.yml": collector,
    "pgwatch.yaml": pgwatch,
    "cloudnativepg.yaml": cloudnativepg,
    "../../../doc/reference/metrics.md": reference,
    "alerts.yml": lambda: rules(source.LIMITS),
}


def check():
    """Print the names of files that are not what would be written; were there none?"""
    old = [name for name, made in FILES.items()
           if not (HERE / name).exists() or (HERE / name).read_text(encoding="utf-8") != made()]
    for name in old:
        print(f"{name} is not what generate.py writes")
    return not old


def main(arguments):
    if not arguments:
        for name, made in FILES.items():
            (HERE / name).write_text(made(), encoding="utf-8")
    elif arguments == ["--check"]:
        return 0 if check() else 1
    elif arguments[0] == "rules" and arguments[1::2] == ["--limit"] * (len(arguments) // 2):
        limits = dict(source.LIMITS)
        for given in arguments[2::2]:
            name, _, value = given.partition("=")
            if name not in limits:
                sys.exit(f"no limit {name}; there are: {', '.join(limits)}")
            limits[name] = value
        print(rules(limits), end="")
    elif arguments[0] == "exporter" and len(arguments) in (2, 3):
        print(exporter(*arguments[1:]), end="")
    else:
        sys.exit(__doc__)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
