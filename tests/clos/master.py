"""The master of paths in the network of fabric.py: ftccld on a host, and what it says."""

import json
import os
import signal
import subprocess

PORT = 28030
FETCH = "import sys, urllib.request as u; sys.stdout.buffer.write(u.urlopen(sys.argv[1]).read())"


def program(build, name):
    return os.path.join(build, "tools", name)


class Master:
    """ftccld on a host; its key and what it keeps are in a folder."""

    def __init__(self, build, net, host, folder):
        self.build, self.net, self.host, self.folder = build, net, host, folder
        self.at = f"{net.address(host)}:{PORT}"
        self.key = os.path.join(folder, "key")
        self.process = None
        with open(os.open(self.key, os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
            file.write("the key of a test in tests/clos\n")

    def settings(self):
        """What a rank needs to ask it."""
        return {"FTCCL_PATHS_MASTER": self.at, "FTCCL_PATHS_KEY_FILE": self.key}

    def run(self, *words):
        whole = ["ip", "netns", "exec", f"h{self.host}", *words]
        return subprocess.run(whole, stdout=subprocess.PIPE, text=True, timeout=20, check=True)

    def start(self):
        words = ["--listen", self.at, "--key-file", self.key, "--state", self.folder]
        self.process = subprocess.Popen(
            ["ip", "netns", "exec", f"h{self.host}", program(self.build, "ftccld"), *words],
            stdout=subprocess.PIPE,
            text=True,
        )
        self.process.stdout.readline()  # it listens

    def kill(self):
        if self.process:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
            self.process.stdout.close()
            self.process = None

    def status(self):
        text = self.run("python3", "-c", FETCH, f"http://{self.at}/status?format=json").stdout
        return json.loads(text)["paths"]

    def path(self, *words):
        """ftccl-path; returns its lines."""
        tool = program(self.build, "ftccl-path")
        return self.run(tool, "-m", self.at, "-k", self.key, *words).stdout.splitlines()
