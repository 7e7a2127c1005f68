"""Hold a page of doc/howto against its programs.

    page.py PAGE DIRECTORY [FILE OR FOLDER...]

A comment <!-- FILE: NAME --> of the page stands above a block, whose lines are
those of DIRECTORY/FILE between ">>> NAME" and "<<<", less the indentation that
they share.  Each such part of a program is on the page once, and the page has
no other lines in these languages.  With names, the programs are these files and
folders of the directory only.  Prints "ok" or "NOT OK" for each.
"""

import pathlib
import re
import sys
import textwrap

LANGUAGES = {"python", "js", "java", "go"}
PART = re.compile(r"^[ \t]*(?:#|//|--) >>> (\w+)\n(.*?)^[ \t]*(?:#|//|--) <<<$", re.M | re.S)
BLOCK = re.compile(r"(?:^<!-- (\S+): (\w+) -->\n)?^```(\w+)[^\n]*\n(.*?)^```$", re.M | re.S)


def files_of(directory, names):
    """The files of the directory, or those of the names in it."""
    for path in [directory / name for name in names] or [directory]:
        yield from sorted(path.glob("**/*")) if path.is_dir() else [path]


def parts_of(directory, names):
    """{(file, name): lines} of all programs."""
    parts = {}
    for path in files_of(directory, names):
        if path.suffix in (".py", ".js", ".java", ".go", ".sql", ".sh") and path.name != "page.py":
            for name, lines in PART.findall(path.read_text()):
                parts[str(path.relative_to(directory)), name] = textwrap.dedent(lines.expandtabs(4)).strip("\n")
    return parts


def verdicts(page, parts):
    """(is it good, what it is) for each block and each part."""
    shown = []
    for file, name, language, lines in BLOCK.findall(page):
        if file:
            shown.append((file, name))
            yield lines.strip("\n") == parts.get((file, name)), f"the page has {name} of {file}"
        elif language in LANGUAGES:
            yield False, f"a block is of no program: {lines.splitlines()[0]}"
    for file, name in parts:
        if shown.count((file, name)) != 1:
            yield False, f"the page has {name} of {file} once"


def main():
    page, directory = map(pathlib.Path, sys.argv[1:3])
    for good, what in verdicts(page.read_text(), parts_of(directory, sys.argv[3:])):
        print("ok" if good else "NOT OK", what)


main()
