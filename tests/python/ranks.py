"""Ranks of a test: threads of this process, or processes that run a function of a test file."""

import importlib.util
import json
import os
import subprocess
import sys
import threading

import ftccl

WAIT_S = 90


def in_threads(nranks, function, **options):
    """function(communicator) on each rank, each in its thread; their results by rank. The first
    error is raised."""
    identity = ftccl.get_unique_id()
    results, errors = [None] * nranks, []

    def run(rank):
        try:
            with ftccl.Communicator(nranks, identity, rank, **options) as comm:
                results[rank] = function(comm)
        except BaseException as error:  # is raised below, in the test's thread
            errors.append(error)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(nranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive(), "a rank did not end"
    if errors:
        raise errors[0]
    return results


class Process:
    """One rank: a process that calls a function of a test file, which has its result as JSON."""

    def __init__(self, function, identity, nranks, rank, *arguments):
        file = sys.modules[function.__module__].__file__
        path = [os.path.dirname(os.path.abspath(__file__)), os.environ.get("PYTHONPATH", "")]
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, path)))
        self.rank = rank
        self.process = subprocess.Popen(
            [
                sys.executable,
                os.path.abspath(__file__),
                file,
                function.__name__,
                json.dumps([identity.hex(), nranks, rank, list(arguments)]),
            ],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def line(self):
        """The next line that it prints: for tests that go on when a rank has come so far."""
        return self.process.stdout.readline().strip()

    def end(self):
        """Its exit status, its result (None if it had none) and what it said on stderr."""
        try:
            out, err = self.process.communicate(timeout=WAIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            out, err = self.process.communicate()
            raise AssertionError("rank %d did not end: %s %s" % (self.rank, out, err)) from None
        results = [line for line in out.splitlines() if line.startswith("result ")]
        return self.process.returncode, json.loads(results[-1][7:]) if results else None, err


def in_processes(nranks, function, *arguments):
    """function(identity, nranks, rank, *arguments) on each rank, each in its process: see
    Process.end()."""
    identity = ftccl.get_unique_id()
    processes = [Process(function, identity, nranks, rank, *arguments) for rank in range(nranks)]
    return [process.end() for process in processes]


def when_main_thread_is_in(name, action):
    """Calls action() in another thread as soon as the main thread is in a function of this name."""
    main = threading.main_thread().ident

    def watch():
        while True:
            frame = sys._current_frames().get(main)
            while frame is not None and frame.f_code.co_name != name:
                frame = frame.f_back
            if frame is not None:
                action()
                return

    threading.Thread(target=watch, daemon=True).start()


def _main():
    file, name, text = sys.argv[1:]
    spec = importlib.util.spec_from_file_location(os.path.basename(file)[:-3], file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    identity, nranks, rank, arguments = json.loads(text)
    result = getattr(module, name)(ftccl.UniqueId.fromhex(identity), nranks, rank, *arguments)
    print("result " + json.dumps(result), flush=True)


if __name__ == "__main__":
    _main()
