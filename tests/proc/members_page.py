"""Opens the page of ftccld in a headless Chromium and looks at the part of managed membership.

members_page.py HOST:PORT GROUP: GROUP, a hostile name, is a heading and text; its last view is of
three replicas at step 77; a sentence says that the next one waits; replica 1 is incomplete and
lacks rank 1, and this is red. The JSON of the same address is what it should be. Nothing runs and
nothing is fetched. KEEP in the environment: where a screenshot is kept. Prints what is wrong. 77:
there is no Chromium.
"""

import json
import os
import pathlib
import shutil
import sys
import tempfile
import urllib.request

from daemon_page import Links
from page import Proxy, browse, colours, fetched, find_browser

RED, AMBER = (0xB0, 0x00, 0x20), (0x8A, 0x5A, 0x00)


def check_dom(dom, group):
    start = dom.find('<section id="members">')
    part = dom[start : dom.find('</section>', start)]
    reader = Links(part)
    texts = ' '.join(data for _, data in reader.texts)
    if group not in reader.inside('h3'):
        yield f'the heading is {reader.inside("h3")!r}'
    if group in part:
        yield 'the name of a group is no text'
    for wanted in ('with 3 replicas at step 77', 'at least 1 replicas, window 60000 ms'):
        if wanted not in texts:
            yield f'{wanted!r} is not in {texts!r}'
    if not reader.inside('p warn').startswith('the next view: '):
        yield f'the sentence about the next view is {reader.inside("p warn")!r}'
    if reader.inside('td bad') != 'incomplete':
        yield f'what is red says {reader.inside("td bad")!r}'
    if 'lacks rank 1' not in reader.inside('p warn'):
        yield f'it waits for {reader.inside("p warn")!r}'
    if reader.active:
        yield f'the page has {reader.active}'


def check_json(own, group):
    with urllib.request.urlopen(f'http://{own}/status?format=json', timeout=20) as answer:
        members = json.load(answer)['members']
    if [each['name'] for each in members['groups']] != [group]:
        yield f'the groups are {members["groups"]}'
        return
    replicas = {each['name']: each for each in members['groups'][0]['replicas']}
    alive = {name: [m['local_rank'] for m in each['members']] for name, each in replicas.items()}
    if alive != {'0': [0, 1], '1': [0], '2': [0, 1]}:
        yield f'the members are {alive}'


def check_picture(program, proxy, url, own, folder):
    picture = folder / 'page.png'
    browse(program, proxy, url, f'--screenshot={picture}', own=own)
    seen = colours(picture)
    if seen[RED] < 20 or seen[AMBER] < 100:
        yield f'{seen[RED]} points of red, {seen[AMBER]} of amber'
    if os.environ.get('KEEP'):
        shutil.copy(picture, os.environ['KEEP'])


def main():
    program = find_browser()
    if not program:
        return 77
    own, group = sys.argv[1:]
    proxy, url = Proxy(), f'http://{own}/status'
    with tempfile.TemporaryDirectory() as name:
        wrong = list(check_dom(browse(program, proxy, url, '--dump-dom', own=own), group))
        wrong += check_json(own, group)
        wrong += check_picture(program, proxy, url, own, pathlib.Path(name))
    if fetched(proxy):
        wrong.append(f'the page fetches {fetched(proxy)}')
    print(*wrong, sep='\n')
    return 1 if wrong else 0


if __name__ == '__main__':
    sys.exit(main())
