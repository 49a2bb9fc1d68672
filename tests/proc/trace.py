"""Reads a trace of ftccl-diagnose strictly.

trace.py FILE RANKS VICTIM: slices of a track lie in each other or apart, no time is negative, each
arrow and each asynchronous slice has two ends, arrows end in slices, and every other rank has an
arrow to a slice that still runs from the victim, which is outside calls. Prints what is wrong.
"""

import json
import sys
from collections import Counter, defaultdict


def refuse(text):
    raise ValueError(f'{text} is not JSON')


def pairs(items):
    keys = [key for key, _ in items]
    if len(set(keys)) != len(keys):
        raise ValueError(f'a key is there twice: {keys}')
    return dict(items)


def nanoseconds(event, key):
    return round(event[key] * 1000)


def track(event):
    return event['pid'], event['tid']


def check_slices(slices):
    tracks = defaultdict(list)
    for event in slices:
        begin = nanoseconds(event, 'ts')
        tracks[track(event)].append((begin, -nanoseconds(event, 'dur')))
        queue, run = nanoseconds(event['args'], 'queue_us'), nanoseconds(event['args'], 'run_us')
        if min(begin, queue, run) < 0 or nanoseconds(event['args'], 'called_us') + queue != begin:
            yield f'times of {event}'
    for where, times in tracks.items():
        ends = []
        for begin, minus in sorted(times):
            while ends and ends[-1] <= begin:
                ends.pop()
            if ends and begin - minus > ends[-1]:
                yield f'on {where} a slice from {begin} to {begin - minus} leaves its parent'
            ends.append(begin - minus)


def check_ends(events, first, last):
    for kind, other in ((first, last), (last, first)):
        ends = Counter(event['id'] for event in events if event['ph'] == kind)
        others = {event['id'] for event in events if event['ph'] == other}
        for name, times in ends.items():
            if times != 1 or name not in others:
                yield f'{kind} {name} is there {times} times, {other} {name in others}'


def holding(slices, arrow):
    at = nanoseconds(arrow, 'ts')
    for event in slices[track(arrow)]:
        begin = nanoseconds(event, 'ts')
        if begin <= at <= begin + nanoseconds(event, 'dur'):
            yield event


def check_arrows(events, ranks, victim):
    slices, waits = defaultdict(list), set()
    for event in events:
        if event['ph'] == 'X':
            slices[track(event)].append(event)
    begins = {event['id']: event for event in events if event['ph'] == 's'}
    for arrow in (event for event in events if event['ph'] == 'f'):
        begin = begins[arrow['id']]
        froms, tos = list(holding(slices, begin)), list(holding(slices, arrow))
        if not froms or not tos or begin['ts'] > arrow['ts']:
            yield f'no slice at an end of {arrow}'
        if any(event['cat'] == 'outside' for event in froms):
            waits.add((begin['pid'] - 1, arrow['pid'] - 1))
    if not any(source == victim for source, _ in waits):
        yield f'nobody waits for rank {victim}: {waits}'


def check(text, ranks, victim):
    events = json.loads(text, parse_constant=refuse, object_pairs_hook=pairs)['traceEvents']
    kinds = Counter(event['ph'] for event in events)
    if kinds['X'] < 20 * ranks or set(kinds) - set('MXbesf'):
        yield f'events: {kinds}'
    names = [event['args']['name'] for event in events if event.get('name') == 'process_name']
    if len(names) != ranks or any(not names[r].startswith(f'rank {r} (') for r in range(ranks)):
        yield f'processes: {names}'
    yield from check_slices([event for event in events if event['ph'] == 'X'])
    yield from check_ends(events, 'b', 'e')
    yield from check_ends(events, 's', 'f')
    yield from check_arrows(events, ranks, victim)


def main():
    path, ranks, victim = sys.argv[1:]
    with open(path, encoding='ascii') as file:
        wrong = list(check(file.read(), int(ranks), int(victim)))
    print(*wrong[:20], sep='\n')
    return 1 if wrong else 0


if __name__ == '__main__':
    sys.exit(main())
