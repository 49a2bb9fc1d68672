"""Opens the page of ftccld in a headless Chromium and looks at it.

daemon_page.py HOST:PORT RANK PID HOSTILE: its first sentence, the table of ranks, the stacks and
the history say that this rank is to blame; two hosts report; HOSTILE, the name of the communicator,
is in it as text; no script is in it and nothing is fetched; the screenshot shows something, and
the verdict in red. KEEP in the environment: where a screenshot is kept. Prints what is wrong. 77:
there is no Chromium.
"""

import os
import pathlib
import shutil
import sys
import tempfile
import time

from page import Proxy, Reader, browse, colours, fetched, find_browser

BAD = (0xB0, 0x00, 0x20)


class Links(Reader):
    """Links are no danger; everything else that runs or fetches is."""

    def handle_starttag(self, tag, attributes):
        super().handle_starttag(tag, [] if tag == 'a' else attributes)


def check_dom(dom, rank, pid, hostile):
    reader = Links(dom)
    named = f'rank {rank} (pid {pid} '
    said = reader.inside('p bad')
    if not said.startswith('noncomm_hang: ') or named not in said or hostile not in said:
        yield f'the verdict is {said!r}'
    rows = [data for path, data in reader.texts if 'td bad' in path]
    if 'the job waits because of it' not in rows:
        yield f'the table of ranks has {rows}'
    if reader.inside('span bad').count(f'outlier: rank {rank}') != 1:
        yield f'the stacks are {reader.inside("pre stacks")!r}'
    for section in ('verdicts', 'stacks', 'hosts', 'jobs'):
        if f'<h3>{section}</h3>' not in dom:
            yield f'there is no heading {section}'
    if sum(data == 'reports' for _, data in reader.texts) != 2:
        yield 'not two hosts report'
    if dom.count(named) < 2:
        yield 'the history does not have the verdict'
    if reader.active:
        yield f'the page has {reader.active}'
    if hostile in dom:
        yield 'the name of a communicator is no text'


def check_picture(program, proxy, url, own, folder):
    picture = folder / 'page.png'
    browse(program, proxy, url, f'--screenshot={picture}', own=own)
    seen = colours(picture)
    most = seen.most_common(1)[0][1] / sum(seen.values())
    if len(seen) < 20 or most > 0.99 or seen[BAD] < 100:
        yield f'{len(seen)} colours, {most:.0%} one, {seen[BAD]} the verdict'
    if os.environ.get('KEEP'):
        shutil.copy(picture, os.environ['KEEP'])


def check(program, own, rank, pid, hostile):
    proxy, url = Proxy(), f'http://{own}/status'
    with tempfile.TemporaryDirectory() as name:
        # A verdict that changes has its stacks collected again, which takes seconds.
        end = time.monotonic() + 60
        wrong = ['']
        while wrong and time.monotonic() < end:
            dom = browse(program, proxy, url, '--dump-dom', own=own)
            wrong = list(check_dom(dom, rank, pid, hostile))
        yield from wrong
        yield from check_picture(program, proxy, url, own, pathlib.Path(name))
    if fetched(proxy):
        yield f'the page fetches {fetched(proxy)}'


def main():
    program = find_browser()
    if not program:
        return 77
    own, rank, pid, hostile = sys.argv[1:]
    wrong = list(check(program, own, int(rank), int(pid), hostile))
    print(*wrong, sep='\n')
    return 1 if wrong else 0


if __name__ == '__main__':
    sys.exit(main())
