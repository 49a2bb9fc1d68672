"""Property: the peers' own test suites pass over the backend ftccl. Method: each suite runs
unmodified from where it lies, in a process of its own; what is skipped is counted by reason. Ends
with "N passed, N failed, N skipped".

    python run.py [SUITE[:TEST-NAME-PART...]...]     # all suites, if none is named

FT_PYTORCH_TESTS: the folder test/distributed of PyTorch's repository, for the suite
fault_tolerance, which no wheel has.
"""

import collections
import importlib.util
import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
LIMIT_S = 1500

Suite = collections.namedtuple("Suite", "title module environment")
SUITES = {
    "fault_tolerance": Suite(
        "PyTorch `test_c10d_fault_tolerance.py`, 3 processes", "fault_tolerance", {}
    )
}
for size in (2, 3, 4):
    SUITES["distributed%d" % size] = Suite(
        "PyTorch `distributed_test.py`, %d processes" % size,
        "distributed",
        {"WORLD_SIZE": str(size)},
    )
SUITES["torchft"] = Suite(
    "torchft `process_group_test.py`, `reconfigure_test.py`", "torchft_files", {}
)


def obstacle(suite):
    """Why the suite cannot run here; None if it can."""
    if suite.module == "fault_tolerance" and not os.environ.get("FT_PYTORCH_TESTS"):
        return "FT_PYTORCH_TESTS does not name PyTorch's folder test/distributed"
    needs = {"torchft_files": ("torchft", "parameterized"), "distributed": ("expecttest",)}
    for name in needs.get(suite.module, ()):
        if importlib.util.find_spec(name) is None:
            return "this Python has no " + name
    return None


def outcomes_of(suite, names):
    """One dictionary for each test; the last is for the suite itself if it did not come to its
    end."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "outcomes")
        open(path, "w").close()
        command = [
            sys.executable,
            "-c",
            "import sys, outcomes; outcomes.main(*sys.argv[1:])",
            suite.module,
            path,
            *names,
        ]
        environment = dict(
            os.environ,
            PYTHONPATH=os.pathsep.join(filter(None, [HERE, os.environ.get("PYTHONPATH")])),
            **suite.environment
        )
        with open(os.path.join(folder, "log"), "w+") as log:
            try:
                status = subprocess.run(
                    command, env=environment, cwd=folder, stdout=log, stderr=log, timeout=LIMIT_S
                ).returncode
            except subprocess.TimeoutExpired:
                status = "not done within %d s" % LIMIT_S
            log.seek(0)
            said = log.read()
        with open(path) as file:
            outcomes = [json.loads(line) for line in file]
    if outcomes and not outcomes[-1]:
        return outcomes[:-1]
    return outcomes + [
        {
            "test": "the suite as a whole",
            "outcome": "failed",
            "reason": "it did not come to its end: %s\n%s" % (status, said[-4000:]),
        }
    ]


def report(title, outcomes):
    count = collections.Counter(outcome["outcome"] for outcome in outcomes)
    print(
        "%s: %d passed, %d failed, %d skipped"
        % (title, count["passed"], count["failed"], count["skipped"])
    )
    reasons = collections.Counter(
        outcome["reason"] for outcome in outcomes if outcome["outcome"] == "skipped"
    )
    for reason, n in reasons.most_common():
        print("  %4d skipped: %s" % (n, reason))
    for outcome in outcomes:
        if outcome["outcome"] == "failed":
            print("  failed: %s\n%s" % (outcome["test"], outcome["reason"]))
    sys.stdout.flush()
    return count


def main(arguments):
    wanted = [argument.split(":") for argument in arguments] or [[name] for name in SUITES]
    total = collections.Counter()
    for name, *parts in wanted:
        suite = SUITES[name]
        reason = obstacle(suite)
        outcomes = (
            [{"test": name, "outcome": "skipped", "reason": reason}]
            if reason
            else outcomes_of(suite, parts)
        )
        total += report(suite.title, outcomes)
    print("%d passed, %d failed, %d skipped" % (total["passed"], total["failed"], total["skipped"]))
    return 1 if total["failed"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
