"""Jobs in the network of fabric.py: one process of tests/clos/rank.c on each host that is named."""

import contextlib
import os
import queue
import subprocess
import threading
import time

PORT = 7000  # of the job's rendezvous; the namespace is the job's own
SECRET = "of-a-job-in-tests-clos"
# Settings of a job with as many messages under way as there are paths.
MANY_MESSAGES = {"FTCCL_CHUNKS": "8", "FTCCL_CHUNK_BYTES": "65536"}


class NoLine(Exception):
    """A line that was waited for did not come; a sentence with what the rank said last."""


class Rank:
    """Lines of its output wait in a queue until they are asked for; said has all."""

    def __init__(self, host, words, environment):
        self.host, self.said, self.lines = host, [], queue.Queue()
        self.process = subprocess.Popen(
            ["ip", "netns", "exec", f"h{host}", *words],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            bufsize=1,
        )
        self.reader = threading.Thread(target=self.read_output, daemon=True)
        self.reader.start()

    def read_output(self):
        for line in self.process.stdout:
            self.said.append(line.rstrip("\n"))
            self.lines.put(self.said[-1])
        self.lines.put(None)

    def next_line(self, *beginnings, seconds=30):
        """The next line with one of these beginnings; others before it are passed over."""
        end = time.monotonic() + seconds
        while True:
            try:
                line = self.lines.get(timeout=max(0, end - time.monotonic()))
            except queue.Empty:
                raise self.no_line(beginnings, "did not say it within %d s" % seconds) from None
            if line is None:
                raise self.no_line(beginnings, "has ended")
            if line.startswith(beginnings):
                return line

    def no_line(self, beginnings, why):
        return NoLine(
            '"%s" was waited for, but the rank on h%d %s; it said: %s'
            % ('" or "'.join(beginnings), self.host, why, self.said[-5:])
        )

    def tell(self, word):
        try:
            self.process.stdin.write(word + "\n")
        except BrokenPipeError:
            pass  # it has ended; its status says how

    def mark(self, seconds=30):
        """Returns (complete calls, seconds, longest call in ms since the last mark), of its own
        clock."""
        self.tell("mark")
        return self.marked(seconds)

    def marked(self, seconds=30):
        _, calls, at, longest = self.next_line("mark", seconds=seconds).split()
        return int(calls), float(at), float(longest)

    def wait_for_calls(self, number, seconds=30):
        """Waits until so many more calls are complete."""
        end = time.monotonic() + seconds
        wanted = self.mark(seconds)[0] + number
        while self.mark(max(0.1, end - time.monotonic()))[0] < wanted:
            time.sleep(0.01)

    def wait(self, seconds=60):
        """Waits until it has ended and all that it said is known. Returns its status."""
        status = self.process.wait(timeout=seconds)
        self.reader.join()
        return status


class Job:
    """Its ranks are started; close() it."""

    def __init__(self, program, fabric, hosts, message_bytes, settings=None):
        self.ranks = []
        for number, host in enumerate(hosts):
            environment = dict(
                os.environ,
                RANK=str(number),
                WORLD_SIZE=str(len(hosts)),
                FTCCL_COMM_ID=f"{fabric.address(hosts[0])}:{PORT}",
                FTCCL_SECRET=SECRET,
                FTCCL_HOSTID=f"h{host}",
                FTCCL_TRANSPORTS="tcp",
                FTCCL_TELEMETRY="0",
                FTCCL_DEBUG="NONE",
            )
            for name, value in (settings or {}).items():
                environment[name] = value(number) if callable(value) else value
            self.ranks.append(Rank(host, [program, str(message_bytes)], environment))

    def wait_until_ready(self):
        """All ranks have a communicator."""
        for rank in self.ranks:
            rank.next_line("ready")

    def close(self):
        """Kills the ranks that are left."""
        for rank in self.ranks:
            rank.process.kill()
        for rank in self.ranks:
            rank.wait()
            with contextlib.suppress(BrokenPipeError):
                rank.process.stdin.close()

    def stop(self, seconds=60):
        """Ends it in order. Returns the ranks' statuses."""
        for rank in self.ranks:
            rank.tell("stop")
        return [rank.wait(seconds) for rank in self.ranks]
