"""Checkpoints at addresses: of real servers on loopback, FTP's and one that speaks S3."""

import itertools
import shutil
import threading
import warnings

import numpy as np
import pytest

pytest.importorskip("fsspec")

from troupe.baselines.command.line import main
from troupe.launch import RequestError
from troupe.launch.files.checkpoints import CheckpointError, Store
from troupe.launch.files.copies import Copies, CopyError

from ...processes import python

NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def ftp(tmp_path_factory):
    pytest.importorskip("pyftpdlib")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Of asyncore, under Python 3.10.
        from pyftpdlib.authorizers import DummyAuthorizer
        from pyftpdlib.handlers import FTPHandler
        from pyftpdlib.servers import FTPServer

    users = DummyAuthorizer()
    users.add_user("lab", "secret", str(tmp_path_factory.mktemp("ftp")), perm="elradfmwMT")
    handler = type("Handler", (FTPHandler,), {"authorizer": users})
    server = FTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"timeout": 0.05})
    thread.start()
    yield f"ftp://lab:secret@127.0.0.1:{server.address[1]}"
    server.close_all()
    thread.join()


@pytest.fixture(scope="module")
def s3():
    pytest.importorskip("s3fs")
    servers = pytest.importorskip("moto.server")
    import fsspec

    server = servers.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "lab")
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        fsspec.filesystem("s3").mkdir("runs")
        yield "s3://runs"
    server.stop()


@pytest.fixture(params=["ftp", "s3"])
def address(request):
    """Of a folder of its own."""
    return f"{request.getfixturevalue(request.param)}/mine-{next(NUMBERS)}"


IDENTITY = {"agent": "dqn"}


def state(step):
    return {"learner": {"w": np.full((3, 2), step, np.float32)}}


def learned(checkpoint):
    return float(checkpoint.read("learner")["w"][0, 0])


def test_a_host_that_does_not_see_the_folder_goes_on(tmp_path, address):
    first = Store(tmp_path / "here", keep=2, address=address)
    first.claim()
    for step in range(3):
        first.save(state(step), {"actor_steps": step}, IDENTITY)
        assert first.copied(60.0)
    names = [f"checkpoint-{number:08d}" for number in (2, 3)]
    assert Copies(address).names("checkpoint-") == names
    other = Store(tmp_path / "there", keep=2, address=address)
    found = other.newest(pytest.fail)
    assert (found.path.name, found.counters["actor_steps"], learned(found)) == (names[1], 2, 2.0)
    other.save(state(3), {"actor_steps": 3}, IDENTITY)
    assert other.copied(60.0)
    assert learned(first.newest(pytest.fail)) == 3.0
    assert learned(Store(tmp_path / "third", address=address).named(names[1])) == 2.0


def test_half_a_copy_is_none(tmp_path, address):
    """The manifest is copied last."""
    store = Store(tmp_path / "here", address=address)
    whole = store.save(state(0), {}, IDENTITY)
    assert store.copied(60.0)
    copies = Copies(address)
    half = tmp_path / "checkpoint-00000009"
    half.mkdir()
    (half / "learner.npz").write_text("half")
    copies.put(half)
    assert copies.names("checkpoint-") == [whole.name]
    assert learned(Store(tmp_path / "there", address=address).newest(pytest.fail)) == 0.0


def test_an_earlier_life_is_refused_wherever_the_later_one_is(tmp_path, address):
    assert Store(tmp_path / "here", address=address).begin_incarnation() == 0
    old = Store(tmp_path / "node-1", incarnation=0, address=address)
    old.save(state(0), {}, IDENTITY)
    assert Store(tmp_path / "here", address=address).begin_incarnation() == 1
    with pytest.raises(CheckpointError, match="incarnation 0 of the run has ended: incarnation 1"):
        old.save(state(1), {}, IDENTITY)
    new = Store(tmp_path / "node-2", incarnation=1, address=address)
    new.save(state(2), {}, IDENTITY)
    assert new.copied(60.0)


def test_who_saves_does_not_wait_for_copies(tmp_path, ftp, monkeypatch):
    """What is copied stays until it is; of those that wait only the newest is copied."""
    address, may = f"{ftp}/slow", threading.Event()
    begun, put = threading.Semaphore(0), Copies.put

    def slow(copies, folder):
        begun.release()
        assert may.wait(60.0)
        put(copies, folder)

    monkeypatch.setattr(Copies, "put", slow)
    store = Store(tmp_path / "here", keep=1, address=address)
    store.save(state(0), {}, IDENTITY)
    assert begun.acquire(timeout=60.0)
    for step in (1, 2):
        store.save(state(step), {}, IDENTITY)
    assert not store.copied(0.0)
    assert (tmp_path / "here" / "checkpoint-00000001" / "manifest.json").exists()
    may.set()
    assert store.copied(60.0)
    assert begun.acquire(blocking=False)
    assert not begun.acquire(blocking=False)  # The second was passed over.
    assert Copies(address).names("checkpoint-") == ["checkpoint-00000003"]


def test_a_copy_that_fails_is_heard(tmp_path, ftp, monkeypatch):
    store = Store(tmp_path / "here", address=f"{ftp}/failing")
    monkeypatch.setattr(Copies, "put", lambda *_: (_ for _ in ()).throw(CopyError("no room.")))
    path = store.save(state(0), {}, IDENTITY)
    with pytest.raises(CheckpointError, match=f"no room. {path} is intact"):
        store.copied(60.0)
    monkeypatch.undo()
    store.save(state(1), {}, IDENTITY)
    assert store.copied(60.0)


HANGS = """
import sys, threading
from troupe.launch.files import checkpoints, copies
copies._PATIENCE = 0.0
copies.Copies.put = lambda *_: threading.Event().wait()
store = checkpoints.Store(sys.argv[1], address="memory://hangs")
try:
    store.save({"learner": 0}, {}, {})  # On a machine that stalls, this is late already.
    store.copied(None)
except checkpoints.CheckpointError as error:
    print(error)
"""


def test_an_address_that_hangs_is_not_waited_for_for_ever(tmp_path):
    """Nor does the process stay for it."""
    said = python(HANGS, tmp_path, seconds=120.0)
    where = tmp_path / "checkpoint-00000001"
    assert said == (
        f"{where.name} was not copied to memory://hangs in time, which does not answer. "
        f"{where} is intact.\n"
    )


def test_the_address_of_another_run_is_refused(tmp_path, address):
    store = Store(tmp_path / "here", address=address)
    store.save(state(0), {}, IDENTITY)
    assert store.copied(60.0)
    with pytest.raises(RequestError, match="holds checkpoints of another run"):
        Store(tmp_path / "there", address=address).claim()


@pytest.mark.parametrize(
    ("where", "words"),
    [
        (
            "carrier-pigeon://loft/mine",
            "checkpoints cannot go to carrier-pigeon://loft/mine: Value",
        ),
        (
            "ftp://lab:secret@127.0.0.1:9/mine",
            "cannot go to ftp://...@127.0.0.1:9/mine: Connection",
        ),
    ],
)
def test_an_address_that_is_none(tmp_path, capsys, where, words):
    """Said in one line, before there is a run."""
    command = ["train", "dqn", "--env", "CartPole-v1", "--checkpoints", where]
    assert main([*command, "--out", str(tmp_path / "run")]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert words in line
    assert not (tmp_path / "run").exists()


def test_a_run_whose_folder_is_lost_goes_on(tmp_path, ftp, tiny, capsys):
    out, address = tmp_path / "run", f"{ftp}/lost"
    config = [f"--config.{name}={value}" for name, value in tiny().config.items()]
    run = ["train", "dqn", "--env", "CartPole-v1", "--steps", "60", "--checkpoints", address]
    run += ["--evaluation-episodes", "1"]
    assert main([*run, *config, "--out", str(out)]) == 0
    shutil.rmtree(out / "checkpoints")
    assert main(["resume", str(out), "--steps", "120"]) == 0
    assert f"goes on in {out} from checkpoint-" in capsys.readouterr().out
    assert Copies(address).names("checkpoint-")
