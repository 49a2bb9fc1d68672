"""What a peer's test suite gave: one JSON line for each test, for run.py."""

import importlib
import json
import multiprocessing
import sys
import time
import unittest


class Outcomes(unittest.TestResult):
    """Writes {"test", "outcome", "reason", "seconds"} for each test to a file, and failures to
    stderr as well."""

    def __init__(self, path):
        super().__init__()
        self.file = open(path, "a")
        self.began = 0.0
        self.told = False

    def startTest(self, test):
        super().startTest(test)
        self.began, self.told = time.monotonic(), False

    def stopTest(self, test):
        super().stopTest(test)
        if not self.told:
            self.tell(test, "passed")

    def end(self):
        """The last line, without which run.py takes the suite for broken off."""
        self.file.write("{}\n")
        self.file.close()

    def tell(self, test, outcome, reason=""):
        self.told = True
        name = ".".join(test.id().split(".")[-2:])
        seconds = time.monotonic() - self.began
        json.dump(
            {"test": name, "outcome": outcome, "reason": reason, "seconds": round(seconds, 2)},
            self.file,
        )
        self.file.write("\n")
        self.file.flush()
        if outcome == "failed":
            print("failed: %s (%.1f s)\n%s" % (name, seconds, reason), file=sys.stderr, flush=True)

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.tell(test, "skipped", reason)

    def addFailure(self, test, error):
        super().addFailure(test, error)
        self.tell(test, "failed", self._exc_info_to_string(error, test))

    def addError(self, test, error):
        super().addError(test, error)
        self.tell(test, "failed", self._exc_info_to_string(error, test))

    def addSubTest(self, test, subtest, error):
        super().addSubTest(test, subtest, error)
        if error is not None:
            self.tell(subtest, "failed", self._exc_info_to_string(error, test))

    def addUnexpectedSuccess(self, test):
        super().addUnexpectedSuccess(test)
        self.tell(test, "failed", "it is marked as an expected failure, and passed")


def expect_skips(case, reasons):
    """Makes the tests of a class that are named in reasons skip with them. A name that is no test
    is an error: the list would be out of date."""
    for name, reason in reasons.items():
        setattr(case, name, unittest.skip(reason)(getattr(case, name)))


def fork(case):
    """Starts the ranks of one of PyTorch's MultiProcessTestCase as forks: a spawned one imports
    torch for seconds."""
    case._start_processes(multiprocessing.get_context("fork").Process)


def main(module, path, *names):
    """Runs the tests of the module's cases(); of names only, if there are any."""
    outcomes = Outcomes(path)
    suite = unittest.TestSuite()
    for case in importlib.import_module(module).cases():
        for name in unittest.defaultTestLoader.getTestCaseNames(case):
            if not names or any(part in case.__name__ + "." + name for part in names):
                suite.addTest(case(name))
    suite.run(outcomes)
    outcomes.end()
