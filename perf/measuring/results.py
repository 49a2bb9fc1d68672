"""The form of the files in perf/results: JSON with a line for each record, numbers to seven digits
(times vary by more)."""

import json
import os

DIGITS = 7


def rounded(value):
    if isinstance(value, float):
        return float("%.*g" % (DIGITS, value))
    if isinstance(value, dict):
        return {name: rounded(part) for name, part in value.items()}
    return [rounded(part) for part in value] if isinstance(value, (list, tuple)) else value


def is_records(value):
    return isinstance(value, list) and any(isinstance(part, dict) for part in value)


def has_records(value):
    return (
        is_records(value)
        or isinstance(value, dict)
        and any(has_records(part) for part in value.values())
    )


def text_of(value, indent=""):
    """What holds a list of records gets a line for each of its parts, everything else is on one
    line."""
    deeper = indent + " "
    if is_records(value):
        parts, ends = [json.dumps(part, separators=(",", ":")) for part in value], "[]"
    elif has_records(value) or not indent and isinstance(value, dict):
        parts, ends = [
            "%s: %s" % (json.dumps(name), text_of(part, deeper)) for name, part in value.items()
        ], "{}"
    else:
        return json.dumps(value, separators=(",", ":"))
    return "%s\n%s\n%s%s" % (ends[0], ",\n".join(deeper + part for part in parts), indent, ends[1])


def save(path, result):
    """The file is there as a whole or as it was before."""
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with open(path + ".part", "w") as file:
        file.write(text_of(rounded(result)) + "\n")
    os.replace(path + ".part", path)


def load(path):
    with open(path) as file:
        return json.load(file)
