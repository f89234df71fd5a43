"""What cannot be launched: one line, exit code 2, and no directory."""

import pytest

from troupe.baselines.command.line import main

pytestmark = pytest.mark.distributed
pytest.importorskip("launchpad")


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        ("--listen 203.0.113.7", ["listen on 203.0.113.7", "this machine has no such address"]),
        ("--listen 0.0.0.0", ["listen on '0.0.0.0'", "one IPv4 address of this machine"]),
        ("--listen ::1", ["listen on '::1'", "one IPv4 address of this machine"]),
        ("--listen everywhere", ["listen on 'everywhere'", "such as 127.0.0.1"]),
        ("--mesh data=3 --schedule batch:data", ["batch of 64", "data=3", "does not divide"]),
    ],
)
@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_what_cannot_be_launched(capsys, tmp_path, kind, request_, words):
    out = tmp_path / "run"
    arguments = ["train", "dqn", "--env", "CartPole-v1", "--launch", kind, "--out", str(out)]
    assert main([*arguments, *request_.split()]) == 2
    error = capsys.readouterr().err
    assert error.startswith("troupe: ")
    assert error.count("\n") == 1
    for word in words:
        assert word in error, error
    assert not out.exists()
