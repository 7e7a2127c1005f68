#!/usr/bin/env python3
"""Draw doc/architecture.svg: where an event is written, who carries it, where it has its effect.

usage: doc/architecture.py > doc/architecture.svg

make lint compares the picture with what this script prints.
"""

WIDTH, HEIGHT = 980, 380
STYLE = """
text { font-family: Helvetica, Arial, sans-serif; font-size: 14px; fill: #1b2a3a }
.title { font-weight: bold }
.small { font-size: 12px; fill: #44566a }
.code { font-family: Menlo, Consolas, monospace; font-size: 12px }
.box { fill: #ffffff; stroke: #33516f; stroke-width: 1.5 }
.server { fill: #eaf1f8; stroke: #33516f; stroke-width: 1.5 }
.ours { fill: #dcebdc; stroke: #3d7a45; stroke-width: 1.5 }
.arrow { stroke: #33516f; stroke-width: 1.5; fill: none; marker-end: url(#head) }
"""

out = []


def box(x, y, width, height, lines, kind="box"):
    """A rectangle; a line is (class, text)."""
    out.append(f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="6"/>')
    for n, (style, text) in enumerate(lines):
        out.append(f'<text class="{style}" x="{x + 12}" y="{y + 22 + 19 * n}">{text}</text>')


def arrow(points, label=None, at=None):
    out.append(f'<polyline class="arrow" points="{" ".join(f"{x},{y}" for x, y in points)}"/>')
    if label:
        out.append(f'<text class="small" x="{at[0]}" y="{at[1]}">{label}</text>')


def picture():
    box(10, 60, 150, 84, [("title", "Your service"), ("small", "any language,"), ("small", "any driver")])

    box(230, 10, 340, 360, [("title", "Your PostgreSQL, with the extension")], "server")
    box(250, 50, 300, 104, [("title", "One transaction"), ("code", "INSERT INTO orders ..."),
                            ("code", "SELECT outbox_enqueue(...)"), ("small", "commit together, or not at all")], "box")
    box(250, 180, 300, 66, [("title", "Relay: a background worker"),
                            ("small", "reads what has committed, in order per key")], "ours")
    box(250, 272, 300, 84, [("title", "SQL function"), ("small", "its effects and the relay's position"),
                            ("small", "commit together")], "ours")

    box(660, 10, 310, 66, [("title", "Another PostgreSQL"), ("small", "rows and position commit together")], "box")
    box(660, 92, 310, 66, [("title", "Kafka"), ("small", "records and position in one Kafka transaction")], "box")
    box(660, 174, 310, 66, [("title", "Webhooks, SQS, SNS, Pub/Sub, ..."), ("small", "at least once, with the event's id")], "box")
    box(660, 256, 310, 104, [("title", "A receiver that claims"), ("code", "SELECT claim_event(id) -- claimed?"),
                             ("code", "its effect"), ("code", "SELECT complete_event(id); COMMIT")], "ours")

    arrow([(160, 102), (250, 102)], "SQL", (178, 96))
    arrow([(400, 154), (400, 180)])
    arrow([(400, 246), (400, 272)])
    for y in (43, 125, 207):
        arrow([(550, 213), (605, 213), (605, y), (660, y)])
    arrow([(815, 240), (815, 256)])


picture()
print(f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"'
      ' aria-label="A service writes rows and events in one transaction; the relay inside the server delivers the events">')
print(f"<style>{STYLE}</style>")
print('<defs><marker id="head" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
      '<path d="M0,0 L8,4 L0,8 z" fill="#33516f"/></marker></defs>')
print(f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>')
print("\n".join(out))
print("</svg>")
