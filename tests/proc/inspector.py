"""Reads a folder of NCCL Inspector's files as those who evaluate them do, and counts.

inspector.py FOLDER ranks=0,1 n_ranks=4 nnodes=2 AllReduce=30 Send=10...: each line stands for
itself (format 4.0) and has the fields and types that readers need; each of these ranks has so many
operations of a kind (Send and Recv: all ranks together), no one twice; there are no others. Prints
what is wrong.
"""

import json
import pathlib
import sys
from collections import Counter

REAL = (int, float)
HEADER = {'id': str, 'rank': int, 'n_ranks': int, 'nnodes': int}
METADATA = {
    'inspector_output_format_version': str,
    'git_rev': str,
    'rec_mechanism': str,
    'dump_timestamp_us': int,
    'hostname': str,
    'pid': int,
}
TIMING = ('kernel_gpu', 'kernel_cpu', 'collective_cpu')


def fields_of(prefix):
    fields = {prefix: str, f'{prefix}_sn': int, f'{prefix}_msg_size_bytes': int}
    fields |= {f'{prefix}_exec_time_us': int, f'{prefix}_timing_source': str}
    fields |= {f'{prefix}_algobw_gbs': REAL, f'{prefix}_busbw_gbs': REAL}
    return fields | ({'p2p_peer': int} if prefix == 'p2p' else {})


def check_types(part, fields, what):
    for name, kind in fields.items():
        if not isinstance(part.get(name), kind):
            yield f'{what}.{name} is {part.get(name)!r}'


def check_line(path, line, expected, seen, count):
    record = json.loads(line)
    prefix = 'p2p' if 'p2p_perf' in record else 'coll'
    perf, header, metadata = record[f'{prefix}_perf'], record['header'], record['metadata']
    yield from check_types(header, HEADER, 'header')
    yield from check_types(metadata, METADATA, 'metadata')
    yield from check_types(perf, fields_of(prefix), f'{prefix}_perf')
    if metadata['inspector_output_format_version'] != 'v4.0' or len(record) != 3:
        yield f'another format: {line}'
    if path.name != f'{metadata["hostname"]}-pid{metadata["pid"]}.log':
        yield f'{path} has lines of {metadata}'
    for name in ('n_ranks', 'nnodes'):
        if header[name] != int(expected[name]):
            yield f'{name} is {header[name]}'
    kind, size = perf[prefix], perf[f'{prefix}_msg_size_bytes']
    want = {'AllReduce': 1024, 'AllGather': 1024 * header['n_ranks'], 'Send': 256, 'Recv': 256}
    if size != want[kind] or perf[f'{prefix}_timing_source'] not in TIMING:
        yield f'{kind} has {size} bytes, {perf}'
    times = perf[f'{prefix}_exec_time_us'], perf[f'{prefix}_algobw_gbs']
    if times[0] > 5 and not 0.5 < times[0] * times[1] * 1e3 / size < 2:
        yield f'{size} bytes in {times[0]} us are not {times[1]} GB/s'
    key = (header['id'], header['rank'], kind, perf[f'{prefix}_sn'], perf.get('p2p_peer'))
    if key in seen:
        yield f'twice: {key}'
    seen.add(key)
    count[kind if prefix == 'p2p' else (header['rank'], kind)] += 1


def check(folder, expected):
    seen, count, want = set(), Counter(), Counter()
    for path in sorted(folder.glob('**/*.log')):
        for line in path.read_text().splitlines():
            yield from check_line(path, line, expected, seen, count)
    ranks = [int(rank) for rank in expected['ranks'].split(',') if rank]
    for kind in ('AllReduce', 'AllGather'):
        want.update({(rank, kind): int(expected[kind]) for rank in ranks if kind in expected})
    want.update({kind: int(expected[kind]) for kind in ('Send', 'Recv') if kind in expected})
    if ranks and count != want:
        yield f'there are {dict(count)}, not {dict(want)}'


def main():
    folder, *options = sys.argv[1:]
    expected = dict(option.split('=') for option in options)
    wrong = list(check(pathlib.Path(folder), expected))
    print(*wrong[:20], sep='\n')
    return 1 if wrong else 0


if __name__ == '__main__':
    sys.exit(main())
