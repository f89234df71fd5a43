"""Servers listen on this machine only, seen in the kernel's own table."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.distributed
pytest.importorskip("launchpad")

_SERVERS = """
import os, courier, reverb
from troupe.launch.supervision import loopback

def courier_at(port):
    server = courier.Server(port=port)
    server.Bind("echo", lambda x: x)
    server.Start()
    return server

def reverb_at(port):
    return reverb.Server([reverb.Table.queue("queue", 2)], port=port)

first, second, third = loopback.free_ports(3)
with loopback.loopback_only():
    kept = courier_at(first), reverb_at(second)
for port in (first, second):
    assert loopback.listening(port) == ["::ffff:127.0.0.1"], loopback.listening(port)
    loopback.require_loopback(port)
    try:
        loopback.require_free(port)
    except OSError as error:
        assert f"port {port} is taken" in str(error)
    else:
        raise AssertionError("a taken port passed for a free one")
assert courier.Client(f"127.0.0.1:{first}", call_timeout=5).echo(3) == 3
assert "queue" in reverb.Client(f"127.0.0.1:{second}").server_info()
outside = courier_at(third)  # What the libraries do by themselves.
assert loopback.listening(third) == ["::"]
try:
    loopback.require_loopback(third)
except OSError as error:
    assert "other machines" in str(error)
else:
    raise AssertionError("a server on every interface passed for a local one")
print("passed", flush=True)
os._exit(0)
"""


def test_courier_and_reverb_listen_on_loopback_only():
    done = subprocess.run(
        [sys.executable, "-c", _SERVERS],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"},
    )
    assert "passed" in done.stdout, done.stderr[-2000:]
