"""A run as SLURM's jobs know it, which does nothing: `played.py train|resume ... --hosts h0,h1`.

The core's says in OUT.heard what happens to it, and is asked to stop by SIGINT, once.
"""

import os
import pathlib
import signal
import sys
import time

words = sys.argv[1:]
out = pathlib.Path(words[1] if words[0] == "resume" else words[words.index("--out") + 1])
core = words[words.index("--hosts") + 1].split(",")[0]


def say(what):
    with open(out.with_suffix(".heard"), "a") as file:
        file.write(f"{what}\n")


def stop(*_):
    say("saved")
    os._exit(130)


if os.environ["SLURMD_NODENAME"] == core:
    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, lambda *_: say("TERM"))
    say(f"{words[0]} {core}")
    out.mkdir(exist_ok=True)
    (out / "config.json").touch()
while True:
    time.sleep(0.1)
