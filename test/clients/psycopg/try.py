"""The lines of doc/howto/python.md that call its producer and its consumer, which are parts of shop.py."""

import contextlib
import io
import pathlib
import re

for part in ("producer", "consumer"):
    shop = pathlib.Path(__file__).with_name("shop.py").read_text(encoding="utf-8")
    exec(re.search(rf"# >>> {part}\n(.*?)# <<<", shop, re.S)[1])       # pylint: disable=exec-used

with contextlib.redirect_stdout(io.StringIO()) as printed:
    # >>> try
    with psycopg.connect(autocommit=True) as conn:
        order = {"order": 1001, "total": 99}
        event = place_order(conn, order["order"], order["total"])
        print(handle(conn, event, order), handle(conn, event, order))       # claimed duplicate
    # <<<

print("ok" if printed.getvalue() == "claimed duplicate\n" else "NOT OK", "the lines to try it: claimed, then duplicate")
