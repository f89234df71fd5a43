"""Folders of launches that were killed are removed, and those of others never."""

import json
import os
import subprocess
import sys

import pytest

from troupe.launch.distributed import workspace

from .hosts import allowed

CLEAN = "from troupe.launch.distributed import workspace; workspace.remove_abandoned()"


@pytest.fixture
def folder():
    """That of a launch which goes on."""
    with workspace.workspace_of("test") as made:
        yield made


def change(folder, **values):
    path = folder / ".owner"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def ended():
    """The number of a process that has ended."""
    return subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True
    ).stdout


@pytest.mark.parametrize("who", ["ended", "another of its number"])
def test_a_folder_whose_owner_is_dead_is_removed(folder, who):
    change(folder, **({"pid": int(ended())} if who == "ended" else {"start": "1"}))
    workspace.remove_abandoned()
    assert not folder.exists()


@pytest.mark.parametrize(
    "owner",
    [{}, {"boot": "another"}, {"namespace": "pid:[1]"}, None],
    ids=["alive", "another machine", "another container", "unknown"],
)
def test_what_is_not_known_to_be_dead_stays(folder, owner):
    if owner is None:
        (folder / ".owner").unlink()
    else:
        change(folder, **({"pid": int(ended()), **owner} if owner else {}))
    workspace.remove_abandoned()
    assert folder.exists()


@pytest.mark.skipif(not allowed(), reason="namespaces are not allowed here")
def test_another_container_removes_nothing_that_is_in_use_here(folder):
    """It has the same /dev/shm and /tmp, and process numbers of its own."""
    apart = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", CLEAN]
    subprocess.run(apart, check=True)
    assert folder.exists()


def test_a_folder_of_another_process_is_its_own(tmp_path):
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        workspace.claim(tmp_path, child.pid)
        assert not workspace._is_abandoned(tmp_path)
    finally:
        child.communicate(b"\n")
    assert workspace._is_abandoned(tmp_path)
    assert os.listdir(tmp_path) == [".owner"]
