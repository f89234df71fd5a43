"""Servers listen on this machine only unless asked otherwise, seen in the kernel's own table."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.distributed
pytest.importorskip("launchpad")

_SERVERS = """
import os, courier, reverb
from troupe.launch.distributed import addresses
from troupe.launch.distributed.engines.launchpad import servers

def courier_at(port):
    server = courier.Server(port=port)
    server.Bind("echo", lambda x: x)
    server.Start()
    return server

def reverb_at(port):
    return reverb.Server([reverb.Table.queue("queue", 2)], port=port)

first, second, third, fourth, fifth = addresses.free_ports(5)
with servers.kept_to("127.0.0.1"):
    kept = courier_at(first), reverb_at(second)
for port in (first, second):
    assert addresses.listening(port) == ["::ffff:127.0.0.1"], addresses.listening(port)
    addresses.require_only("127.0.0.1", port)
    try:
        addresses.require_free(port)
    except OSError as error:
        assert f"port {port} is taken" in str(error)
    else:
        raise AssertionError("a taken port passed for a free one")
assert courier.Client(f"127.0.0.1:{first}", call_timeout=5).echo(3) == 3
assert "queue" in reverb.Client(f"127.0.0.1:{second}").server_info()
with servers.kept_to("127.0.0.2"):
    asked = courier_at(fourth), reverb_at(fifth)
    for port in (fourth, fifth):
        assert addresses.listening(port) == ["::ffff:127.0.0.2"], addresses.listening(port)
        addresses.require_only("127.0.0.2", port)
assert courier.Client(f"127.0.0.2:{fourth}", call_timeout=5).echo(3) == 3
outside = courier_at(third)  # What the libraries do by themselves.
assert addresses.listening(third) == ["::"]
try:
    addresses.require_only("127.0.0.1", third)
except OSError as error:
    assert "others may reach it" in str(error)
else:
    raise AssertionError("a server on every interface passed for a local one")
print("passed", flush=True)
os._exit(0)
"""


def test_courier_and_reverb_listen_where_they_are_told_to():
    done = subprocess.run(
        [sys.executable, "-c", _SERVERS],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"},
    )
    assert "passed" in done.stdout, done.stderr[-2000:]


@pytest.mark.long
@pytest.mark.parametrize("kind", ["processes", "threads"])
def test_a_program_listens_on_the_address_that_was_asked_for(start, kind):
    run = start(kind, what="unhurried", steps=600, inference_servers=1, listen="127.0.0.2")
    if kind == "processes":
        run.until(lambda: run.steps() > 0)
        sockets = run.listening()
        assert len(sockets) == 4  # Counter, variable server, replay, inference server.
        assert all(found == ["::ffff:127.0.0.2"] for found in sockets.values()), sockets
    run.tell()
    assert run.wait() == 0, run.tail()
    assert "warning: the run listens on 127.0.0.2; whoever can connect to it can" in run.output
