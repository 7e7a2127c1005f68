#!/usr/bin/env python3
"""Check the Python codec of the test sink against the golden frames."""
import pathlib
import sys

from sinklib import codec, read_hex

FNV = 0xcbf29ce484222325


def show(value):
    if isinstance(value, int):
        return str(value)
    data = value.encode() if isinstance(value, str) else value
    if len(data) > 64:
        h = FNV
        for byte in data:
            h = ((h ^ byte) * 0x100000001b3) % 2 ** 64
        return f"{len(data)} bytes, fnv1a {h:016x}"
    return '"' + "".join(chr(c) if 0x20 <= c < 0x7f and c not in (0x5c, 0x22)
                         else f"\\x{c:02x}" for c in data) + '"'


def describe(sender, data):
    try:
        found = codec.decode(sender, data)
    except codec.ProtocolError as e:
        return f"from {sender}\nerror {e.kind}\n", None
    if found is None:
        return f"from {sender}\nincomplete\n", None
    name, fields, size = found
    lines = [f"from {sender}", f"type {name}"]
    for field, value in fields.items():
        if field == "event_id":
            lines.append(f"event_id {value.hex()}")
        elif field == "sqlstate":
            lines.append(f"sqlstate {value}")
        elif field == "options":
            lines.append(f"options {len(value)}")
            lines += [f"option {show(k)} = {show(v)}" for k, v in value]
        else:
            lines.append(f"{field} {show(value)}")
    return "\n".join(lines) + "\n", (name, fields, size)


def main():
    directory = pathlib.Path(sys.argv[1])
    failed = count = 0
    for path in sorted(directory.glob("*.hex")):
        data = read_hex(path)
        expected = path.with_suffix(".txt").read_text()
        text, found = describe(expected.split()[1], data)
        ok = text == expected
        if found:
            ok = ok and found[2] == len(data) and codec.encode(found[0], **found[1]) == data
        count += 1
        if not ok:
            failed += 1
            print(f"FAILED {path.stem}: reads\n{text}instead of\n{expected}", file=sys.stderr)
    print(f"golden frames in Python: {count} checked, {failed} failed")
    sys.exit(1 if failed or count < 60 else 0)


if __name__ == "__main__":
    main()
