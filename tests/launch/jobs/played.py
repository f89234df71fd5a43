"""What jobs of SLURM call, played: `played.py troupe train|resume ...` is a run that does nothing,
and `played.py ray start|status ...` nodes that know of each other.

The run says in OUT.heard what happens to it, and is asked to stop by SIGINT, once.
"""

import contextlib
import os
import pathlib
import signal
import socket
import sys
import time


def run(words):
    out = pathlib.Path(words[1] if words[0] == "resume" else words[words.index("--out") + 1])

    def say(what):
        with open(out.with_suffix(".heard"), "a") as file:
            file.write(f"{what}\n")

    def stop(*_):
        say("saved")
        os._exit(130)

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, lambda *_: say("TERM"))
    say(words[0])
    out.mkdir(exist_ok=True)
    (out / "config.json").touch()
    while True:
        time.sleep(0.1)


def ray(words):
    if words[0] == "status":
        print(" 1 node_a\n" * int(os.environ["SLURM_NNODES"]))
    elif "--head" in words:
        address, port = (words[words.index(flag) + 1] for flag in ("--node-ip-address", "--port"))
        with socket.create_server((address, int(port))) as server:
            held = []
            while True:
                held.append(server.accept())
    else:
        host, port = words[words.index("--address") + 1].split(":")
        with socket.create_connection((host, int(port))) as head, contextlib.suppress(OSError):
            head.recv(1)  # It says nothing; its end is heard.


{"troupe": run, "ray": ray}[sys.argv[1]](sys.argv[2:])
