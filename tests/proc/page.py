"""Opens a page of ftccl-diagnose in a headless Chromium and looks at it.

page.py FILE RANK PID HOSTILE: the page says in its heading, in the graph and in the table that
this rank is to blame; HOSTILE, the name of the communicator, is in it as text; no script is in it
and nothing is fetched; the screenshot shows something, in light and in dark. Prints what is wrong.
77: there is no Chromium.
"""

import http.server
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import zlib
from collections import Counter
from html.parser import HTMLParser

NAMES = ['chromium', 'chromium-browser', 'google-chrome', 'chrome']
# What Chromium asks for by itself.
OWN_HOSTS = ('google.com', 'googleapis.com', 'gvt1.com', 'gstatic.com')
BAD_LIGHT, BAD_DARK = (0xC8, 0x31, 0x1B), (0xFF, 0x7A, 0x66)
# How a line of a PNG is told, beside as it is.
SUB, UP, AVERAGE, PAETH = range(1, 5)


class Proxy(http.server.ThreadingHTTPServer):
    """Takes all requests of the browser and answers none."""

    def __init__(self):
        super().__init__(('127.0.0.1', 0), Refusal)
        self.asked = []
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Refusal(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.asked.append(self.path)
        self.send_error(404)

    do_CONNECT = do_POST = do_GET

    def log_message(self, *_):
        pass


def browse(program, proxy, url, *options, own=''):
    """own: HOST:PORT that is asked without the proxy."""
    with tempfile.TemporaryDirectory() as profile:
        done = subprocess.run(
            [program, '--headless', '--no-sandbox', '--disable-gpu', '--no-first-run']
            + ['--disable-background-networking', '--hide-scrollbars']
            + [f'--proxy-server=http://127.0.0.1:{proxy.server_port}']
            + [f'--proxy-bypass-list=<-loopback>;{own}', f'--user-data-dir={profile}']
            + ['--window-size=1200,1500', *options, url],
            capture_output=True,
            timeout=120,
        )
    return done.stdout.decode(errors='replace')


def fetched(proxy):
    return [url for url in proxy.asked if not any(host in url for host in OWN_HOSTS)]


class Reader(HTMLParser):
    """Texts of elements by their class or name, and everything that could run or fetch."""

    def __init__(self, text):
        super().__init__()
        self.open, self.texts, self.active = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        at = dict(attributes)
        if tag not in ('meta', 'br', 'img', 'input', 'link'):
            self.open.append(f'{tag} {at.get("class", "")}'.strip())
        fetches = [name for name in at if name in ('src', 'href', 'data') or name[:2] == 'on']
        if tag in ('script', 'iframe', 'object', 'img', 'link') or fetches:
            self.active.append(self.get_starttag_text())

    def handle_endtag(self, _):
        if self.open:
            self.open.pop()

    def handle_data(self, data):
        self.texts.append((list(self.open), data))

    def inside(self, *names):
        return ''.join(
            data for path, data in self.texts if all(any(n in p for p in path) for n in names)
        )


def paeth(a, b, c):
    guess = a + b - c
    return min((abs(guess - a), 0, a), (abs(guess - b), 1, b), (abs(guess - c), 2, c))[2]


def unfilter(kind, line, before, step):
    for i in range(len(line)):
        left, corner = (line[i - step], before[i - step]) if i >= step else (0, 0)
        if kind == SUB:
            line[i] = line[i] + left & 255
        elif kind == AVERAGE:
            line[i] = line[i] + (left + before[i]) // 2 & 255
        elif kind == PAETH:
            line[i] = line[i] + paeth(left, before[i], corner) & 255
        elif kind == UP:
            line[i] = line[i] + before[i] & 255
    return line


def colours(path):
    """How often a colour is in a PNG of eight bits a channel."""
    data, at, packed = path.read_bytes(), 8, b''
    while at < len(data):
        (size,), kind = struct.unpack('>I', data[at : at + 4]), data[at + 4 : at + 8]
        if kind == b'IHDR':
            width, height, _, form = struct.unpack('>IIBB', data[at + 8 : at + 18])
        if kind == b'IDAT':
            packed += data[at + 8 : at + 8 + size]
        at += 12 + size
    step = {2: 3, 6: 4}[form]
    raw, row = zlib.decompress(packed), width * step + 1
    line, seen = bytearray(width * step), Counter()
    for y in range(height):
        part = raw[y * row : (y + 1) * row]
        line = unfilter(part[0], bytearray(part[1:]), line, step) if part[0] else part[1:]
        seen.update(tuple(line[x : x + 3]) for x in range(0, len(line), step * 3))
    return seen


def check_dom(page, dom, rank, pid, hostile):
    reader = Reader(dom)
    heading = reader.inside('h1')
    if not heading.startswith(f'rank {rank} (pid {pid} '):
        yield f'the heading is {heading!r}'
    if hostile not in heading:
        yield f'the heading does not have the name {hostile!r}: {heading!r}'
    for where in (('svg graph', 'node culprit'), ('table', 'tr culprit'), ('svg all', 'culprit')):
        text = reader.inside(*where)
        if str(rank) not in text or str(pid) not in text:
            yield f'{where} has {text!r}'
    if reader.active:
        yield f'the page has {reader.active}'
    policy = '''content="default-src 'none'; style-src 'unsafe-inline'"'''
    if policy not in dom:
        yield 'the page does not forbid scripts and fetching'
    if 'url(#tip)' not in dom or dom.count('url(') != 1 or '@import' in dom:
        yield 'the style fetches something'


def check_pictures(program, proxy, page, folder):
    for scheme, bad in ((1, BAD_LIGHT), (0, BAD_DARK)):
        picture = folder / f'{scheme}.png'
        option = f'--blink-settings=preferredColorScheme={scheme}'
        browse(program, proxy, page.as_uri(), f'--screenshot={picture}', option)
        seen = colours(picture)
        most = seen.most_common(1)[0][1] / sum(seen.values())
        if len(seen) < 50 or most > 0.97 or seen[bad] < 100:
            yield f'scheme {scheme}: {len(seen)} colours, {most:.0%} one, {seen[bad]} the culprit'


def check(program, page, rank, pid, hostile):
    proxy = Proxy()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        dom = browse(program, proxy, page.as_uri(), '--dump-dom')
        yield from check_dom(page, dom, rank, pid, hostile)
        yield from check_pictures(program, proxy, page, folder)
        if fetched(proxy):
            yield f'the page fetches {fetched(proxy)}'
        control = folder / 'control.html'
        control.write_text('<img src="http://fetched.invalid/x.png">')
        browse(program, proxy, control.as_uri(), '--dump-dom')
        if not fetched(proxy):
            yield 'the proxy does not see what a page fetches'


def find_browser():
    return next(filter(None, map(shutil.which, NAMES)), None)


def main():
    program = find_browser()
    if not program:
        return 77
    page, rank, pid, hostile = sys.argv[1:]
    wrong = list(check(program, pathlib.Path(page).resolve(), int(rank), int(pid), hostile))
    print(*wrong, sep='\n')
    return 1 if wrong else 0


if __name__ == '__main__':
    sys.exit(main())
