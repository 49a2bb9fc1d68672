"""Runs a program of the rig in namespaces of its own: network, mounts, processes and, without
root, users. All that it makes there, network namespaces and processes included, ends with it,
however it ends: the kernel takes the namespaces away when their first process is gone.
"""

import os
import shutil
import signal
import subprocess
import sys
import threading

SKIPPED = 77
PIPE = "CLOS_PIPE"  # its descriptor, for the process inside
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
TOOLS = {
    "unshare": "util-linux",
    "mount": "mount",
    "ip": "iproute2",
    "tc": "iproute2",
    "ss": "iproute2",
}


def skip(reason):
    print("skipped: %s" % reason, flush=True)
    sys.exit(SKIPPED)


def unshare_command():
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    return ["unshare", *user, "--net", "--mount", "--pid", "--fork", "--mount-proc"]


def enter():
    """Returns inside the namespaces, in a new process that is root there. Outside it waits for
    that process and exits with its status. Where they cannot be made, exits with 77 and says
    why."""
    if PIPE in os.environ and os.getpid() == 1:
        start_inside()
        return
    absent = sorted({"%s (%s)" % tool for tool in TOOLS.items() if not shutil.which(tool[0])})
    if absent:
        skip("these programs are missing: %s" % ", ".join(absent))
    trial = subprocess.run([*unshare_command(), "true"], capture_output=True, text=True)
    if trial.returncode != 0:
        skip("the kernel lets this user make no namespaces: %s" % trial.stderr.strip())
    sys.exit(wait_outside())


def wait_outside():
    """The process inside reads a pipe that only this one can write to. It ends when the pipe does,
    so also when this process is killed."""
    reader, writer = os.pipe()
    environment = dict(os.environ, **{PIPE: str(reader)})
    ended_by = []

    def end(number, _):
        ended_by.append(number)
        if len(ended_by) == 1:
            os.close(writer)

    for number in SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, end)
    child = subprocess.Popen(
        [*unshare_command(), sys.executable, *sys.argv], env=environment, pass_fds=[reader]
    )
    os.close(reader)
    status = child.wait()
    if ended_by:
        return 128 + ended_by[0]
    return status if status >= 0 else 128 - status


def start_inside():
    pipe = int(os.environ.pop(PIPE))
    os.set_inheritable(pipe, False)
    for number in SIGNALS:
        # The process outside decides. A handler, because ranks would inherit that it is ignored.
        signal.signal(number, lambda *_: None)

    def end_with_outside():
        os.read(pipe, 1)
        os._exit(1)

    threading.Thread(target=end_with_outside, daemon=True).start()
    os.environ.pop("XDG_RUNTIME_DIR", None)
    for folder in ("/run", "/dev/shm"):
        subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=1777", "clos", folder], check=True)
    os.mkdir("/run/netns")
