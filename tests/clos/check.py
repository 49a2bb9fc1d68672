#!/usr/bin/env python3
"""Tests in a leaf-spine network of namespaces.

usage: check.py BUILD [PATTERN]...    only the tests that have a pattern (fnmatch) in their names
Prints what became of each; the last line is "N passed, N failed, N skipped". Needs Linux 6.11,
iproute2 and root, or a kernel that gives users namespaces; 77, with the reason, elsewhere.
"""

import os
import sys
import unittest

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import fabric  # noqa: E402
import inside  # noqa: E402


class Outcome(unittest.TextTestResult):
    passed = 0

    def addSuccess(self, test):
        super().addSuccess(test)
        self.passed += 1


def find_tests(patterns):
    loader, tests = unittest.TestLoader(), unittest.TestSuite()
    for pattern in patterns:
        loader.testNamePatterns = [f"*{pattern}*"]
        found = loader.discover(HERE, "*_test.py")
        if not found.countTestCases():
            sys.exit("check.py: no test has %s in its name" % pattern)
        tests.addTests(found)
    return tests


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    inside.enter()
    lacks = fabric.missing()
    if lacks:
        inside.skip(lacks)
    os.environ["CLOS_BUILD"] = os.path.abspath(sys.argv[1])
    runner = unittest.TextTestRunner(
        sys.stdout, descriptions=False, verbosity=2, resultclass=Outcome
    )
    outcome = runner.run(find_tests(sys.argv[2:] or ["*"]))
    failed = len(outcome.failures) + len(outcome.errors)
    counts = outcome.passed, failed, len(outcome.skipped)
    print("%d passed, %d failed, %d skipped" % counts, flush=True)
    if "FT_RESULTS" in os.environ:
        name = os.path.join(os.environ["FT_RESULTS"], os.environ["FT_TEST_NAME"] + ".count")
        with open(name, "w") as file:
            print(*counts, file=file)
    sys.exit(failed != 0 or outcome.passed == 0)


if __name__ == "__main__":
    main()
