#!/usr/bin/env python3
"""Check the documents of the tree: links, what README.md leads to, META.json.

	documents.py [TOP]

Prints a line for each fault, and exits nonzero if there is one.

  - A relative link of a Markdown file leads to a file, and its #part to a heading.
  - Each page of doc/ is at most two links away from README.md.
  - No code block is empty.
  - A page of doc/howto has at most 1,500 words, less its blocks of code.
  - A test runs each block of code of README.md and doc/howto, see ran_by().
  - META.json is a PGXN distribution of the release that idempotency.control names.
"""
import json
import os
import re
import sys

FENCE = re.compile(r'^```.*?^```$', re.M | re.S)
# A block, with the comment above it; the second kind is indented.
BLOCK = re.compile(r'^(?:<!-- ([^\n]+) -->\n)?```(\S*)([^\n]*)\n(.*?)^```$|^\n((?:    [^\n]*\n)+)', re.M | re.S)
# The folders with the programs that pages show, and the tests that compare the two and run them.
PROGRAMS = {
    'test/clients': 'test/clients/run.sh',
    'test/sink/kafka/consume': 'test/sink/kafka/consume.sh',
    'test/sink/http/receive': 'test/sink/http/receive_test.py',
}
# The tests that run blocks with a comment <!-- KIND: NAME --> by their names.
MARKED = {
    'migrate': 'test/sink/kafka/migrate_test.py',
    'partitions': 'test/sink/kafka/relay_test.py',
    'rotation': 'test/sink/http/receive_test.py',
}
# Pages that a test runs as a whole.
WHOLE = {
    'doc/howto/backup.md': 'test/t/603_backup.pl',
}
# Tests that run a page's blocks ```sh debian, with packages.
DEBIAN = {
    'doc/howto/backup.md': 'test/packages/backup.sh',
    'doc/howto/upgrade.md': 'test/packages/major.sh',
}
# Blocks that no test runs, by a page and how the block begins.
NOT_RUN = {
    ('doc/howto/webhooks.md', '    PERFORM net.http_post('): 'code to be replaced, of another extension',
}
LINK = re.compile(r'\[[^\]]*\]\(([^)\s]+)\)')
WORDS = 1500
SEMVER = re.compile(r'\d+\.\d+\.\d+(-[A-Za-z0-9-]+)?$')


def pages(top):
    """The Markdown files of the tree, less what is built or written by a run."""
    found = []
    for folder, folders, files in os.walk(top):
        folders[:] = [f for f in folders if f not in ('.git', 'build', 'report')]
        found += [os.path.relpath(os.path.join(folder, f), top) for f in files if f.endswith('.md')]
    return sorted(found)


def text_of(top, page):
    with open(os.path.join(top, page), encoding='utf-8') as file:
        return file.read()


def anchors(text):
    """The #parts that GitHub makes of the headings."""
    names = set()
    for heading in re.findall(r'^#+ (.*)$', FENCE.sub('', text), re.M):
        heading = LINK.sub(lambda m: m.group(0)[1:].split(']')[0], heading).lower()
        name = re.sub(r'[^\w\- ]', '', heading).replace(' ', '-')
        unique, number = name, 0
        while unique in names:
            number += 1
            unique = '%s-%d' % (name, number)
        names.add(unique)
    return names


def links(text):
    """Targets of the relative links, without blocks and `code`."""
    plain = re.sub(r'`[^`\n]*`', '', FENCE.sub('', text))
    plain = re.sub(r'^ {4}.*$', '', plain, flags=re.M)
    return [t for t in LINK.findall(plain) if not re.match(r'[a-z]+:', t)]


def resolve(page, target):
    """The file and the #part that a link of a page leads to."""
    path, _, part = target.partition('#')
    path = os.path.normpath(os.path.join(os.path.dirname(page), path)) if path else page
    return path, part


def check_links(top):
    for page in pages(top):
        text = text_of(top, page)
        if re.search(r'^```[^\n]*\n\s*^```$', text, re.M):
            yield '%s: an empty block of code' % page
        for target in links(text):
            path, part = resolve(page, target)
            if not os.path.exists(os.path.join(top, path)):
                yield '%s: no such file: %s' % (page, target)
            elif part and path.endswith('.md') and part not in anchors(text_of(top, path)):
                yield '%s: no such heading: %s' % (page, target)


def check_distance(top):
    """Nobody should have to search for a page."""
    near = {'README.md'}
    for _ in range(2):
        near |= {resolve(page, target)[0] for page in near
                 if page.endswith('.md') and os.path.exists(os.path.join(top, page))
                 for target in links(text_of(top, page))}
    for page in pages(top):
        if page.startswith('doc/') and page not in near:
            yield '%s: more than two links away from README.md' % page


def check_length(top):
    """A how-to is read at one sitting."""
    for page in pages(top):
        if page.startswith('doc/howto/'):
            words = len(re.sub(r'<!--.*?-->', '', FENCE.sub('', text_of(top, page))).split())
            if words > WORDS:
                yield '%s: %d words, at most %d' % (page, words, WORDS)


def ran_by(top, page, mark, language, info, text):
    """The test that runs a block, or None."""
    if (language, info.split()) == ('sh', ['debian']):
        return DEBIAN.get(page)
    if page in WHOLE and language in ('sql', 'sh', 'text'):
        return WHOLE[page]
    if language == 'sql' or (language, info.split()) == ('sh', ['run']):
        return 'test/t/600_howto.pl'
    kind, _, name = (mark or '').partition(': ')
    for folder, test in PROGRAMS.items():
        program = os.path.join(folder, kind)
        if (name and os.path.isfile(os.path.join(top, program)) and '>>> %s\n' % name in text_of(top, program)
                and os.path.basename(page) in text_of(top, test)):
            return test
    if kind in MARKED:
        return MARKED[kind] if re.search(r'"%s"' % name, text_of(top, MARKED[kind])) else None
    if language == 'http':
        return 'test/sink/http/receive_test.py' if page == 'doc/howto/webhooks.md' else None
    if not language and page == 'README.md':
        return 'test/matrix/readme.sh'
    return None


def check_runs(top):
    """What no test runs goes wrong one day, and a reader finds it."""
    exceptions = dict(NOT_RUN)
    for page in pages(top):
        if page != 'README.md' and not page.startswith('doc/howto/'):
            continue
        printed = False
        for mark, language, info, text, indented in BLOCK.findall(text_of(top, page)):
            text = text or indented
            if exceptions.pop((page, next((start for p, start in NOT_RUN if p == page and text.startswith(start)), None)), None):
                continue
            test = 'the block before it' if language == 'text' and printed else ran_by(top, page, mark, language, info, text)
            printed = test == 'test/t/600_howto.pl'
            if not test:
                yield '%s: no test runs the block "%s"' % (page, text.strip().splitlines()[0])
    for page, start in exceptions:
        yield '%s: no block begins with "%s"' % (page, start.strip())
    install = re.search(r'^## Install\n(.*?)^## ', text_of(top, 'README.md'), re.M | re.S)[1]
    blocks = len(re.findall(r'^\n    ', install, re.M))
    runs = set(re.findall(r'run_block (\d+)', text_of(top, 'test/matrix/readme.sh') + text_of(top, 'test/packages/inside.sh')))
    if runs != {str(n + 1) for n in range(blocks)}:
        yield 'README.md: Install has %d blocks, test/matrix/readme.sh and test/packages run %s' % (blocks, sorted(runs))


def check_meta(top):
    """What https://pgxn.org/spec/ asks for, as far as this distribution has it."""
    with open(os.path.join(top, 'META.json'), encoding='utf-8') as file:
        meta = json.load(file)
    control = dict(re.findall(r"^(\w+) = '?(.*?)'?$", text_of(top, 'idempotency.control'), re.M))
    provided = meta.get('provides', {}).get('idempotency', {})
    rules = {
        'name': meta.get('name') == 'idempotency',
        'version': bool(SEMVER.match(meta.get('version', ''))),
        'abstract': bool(meta.get('abstract')),
        'maintainer': bool(meta.get('maintainer')),
        'license': meta.get('license') == 'postgresql',
        'release_status': meta.get('release_status') in ('stable', 'testing', 'unstable'),
        'meta-spec': meta.get('meta-spec', {}).get('version') == '1.0.0',
        'provides.file': os.path.exists(os.path.join(top, provided.get('file', '-'))),
        'provides.docfile': os.path.exists(os.path.join(top, provided.get('docfile', '-'))),
        'provides.version': provided.get('version') == meta.get('version'),
        'version of the control file': meta.get('version', '').startswith(control['default_version'] + '.'),
        'keys': set(meta) <= {'name', 'version', 'abstract', 'description', 'maintainer', 'license', 'provides',
                              'prereqs', 'release_status', 'resources', 'meta-spec', 'generated_by', 'tags',
                              'no_index'},
    }
    return ['META.json: %s' % rule for rule, kept in rules.items() if not kept]


def main():
    top = sys.argv[1] if len(sys.argv) > 1 else '.'
    faults = [*check_links(top), *check_distance(top), *check_length(top), *check_runs(top), *check_meta(top)]
    for fault in faults:
        print(fault)
    return 1 if faults else 0


if __name__ == '__main__':
    sys.exit(main())
