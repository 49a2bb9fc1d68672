"""Opens the page of ftccld in a headless Chromium and looks at the map of paths.

paths_page.py HOST:PORT: three leaves and four spines are drawn, and 22 cables: one is used, one is
out, one is missing, and a sentence says which; the screenshot shows the picture, with the red of
what is wrong. Nothing runs and nothing is fetched. KEEP in the environment: where a screenshot is
kept. Prints what is wrong. 77: there is no Chromium.
"""

import os
import pathlib
import re
import shutil
import sys
import tempfile

from daemon_page import Links
from page import Proxy, browse, colours, fetched, find_browser

RED, BLUE = (0xB0, 0x00, 0x20), (0x1C, 0x5D, 0x99)
ROUTERS = ['leaf 0', 'leaf 1', 'leaf 2', 'spine 0', 'spine 1', 'spine 2', 'spine 3']
# a connection goes from leaf 0 to leaf 1 and takes two cables
CABLES = {'idle': 8, 'used': 2, 'bad': 1, 'missing': 1}


def check_dom(dom):
    reader = Links(dom)
    named = [data for path, data in reader.texts if 'g router' in path and path[-1] == 'text']
    if [name for name in named if name in ROUTERS] != ROUTERS or named.count('1 host') != 3:
        yield f'the boxes are {named}'
    cables = re.findall(r'<line class="(\w+)"', dom)
    if {kind: cables.count(kind) for kind in set(cables)} != CABLES:
        yield f'the cables are {cables}'
    titles = reader.inside('line bad', 'title')
    if 'leaf 2 to spine 0: 0 connections, out' not in titles:
        yield f'the link that is out says {titles!r}'
    titles = reader.inside('line missing', 'title')
    if 'leaf 1 to spine 2: missing' not in titles:
        yield f'the link that is missing says {titles!r}'
    titles = reader.inside('line used', 'title')
    if 'leaf 0 to spine' not in titles or 'job 000000000000aaaa (1)' not in titles:
        yield f'the links that are used say {titles!r}'
    if 'No way goes from leaf 1 to spine 2' not in reader.inside('p bad'):
        yield 'no sentence says what is missing'
    if reader.active:
        yield f'the page has {reader.active}'


def check_picture(program, proxy, url, own, folder):
    picture = folder / 'page.png'
    browse(program, proxy, url, f'--screenshot={picture}', own=own)
    seen = colours(picture)
    if seen[RED] < 300 or seen[BLUE] < 300:
        yield f'{seen[RED]} points of red, {seen[BLUE]} of blue'
    if os.environ.get('KEEP'):
        shutil.copy(picture, os.environ['KEEP'])


def main():
    program = find_browser()
    if not program:
        return 77
    own = sys.argv[1]
    proxy, url = Proxy(), f'http://{own}/status'
    with tempfile.TemporaryDirectory() as name:
        wrong = list(check_dom(browse(program, proxy, url, '--dump-dom', own=own)))
        wrong += check_picture(program, proxy, url, own, pathlib.Path(name))
    if fetched(proxy):
        wrong.append(f'the page fetches {fetched(proxy)}')
    print(*wrong, sep='\n')
    return 1 if wrong else 0


if __name__ == '__main__':
    sys.exit(main())
