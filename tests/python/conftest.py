"""Bounds every test, and prints the plain line of counts that all test runs of the tree end
with."""

import faulthandler

import pytest

LIMIT_S = 120


@pytest.fixture(autouse=True)
def bounded():
    faulthandler.dump_traceback_later(LIMIT_S, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config):
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None:
        return
    count = {
        name: len(reporter.stats.get(name, ())) for name in ("passed", "failed", "error", "skipped")
    }
    print(
        "%d passed, %d failed, %d skipped"
        % (count["passed"], count["failed"] + count["error"], count["skipped"])
    )
