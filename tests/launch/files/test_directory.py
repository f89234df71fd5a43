"""One run, one directory."""

import json
import subprocess
import sys

import pytest

from troupe.launch.errors import RequestError
from troupe.launch.files.directory import RunDirectory


def test_a_new_directory_is_made_with_its_parents(tmp_path):
    with RunDirectory(tmp_path / "a" / "b") as directory:
        directory.create()
        assert directory.logs.is_dir()


def test_one_that_holds_something_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("")
    with RunDirectory(tmp_path) as directory, pytest.raises(RequestError, match=r"thesis\.tex"):
        directory.create()
    assert [entry.name for entry in tmp_path.iterdir() if entry.name != ".lock"] == ["thesis.tex"]


def test_a_run_is_to_be_resumed_not_repeated(tmp_path):
    with RunDirectory(tmp_path / "run") as directory:
        directory.create()
        directory.write(directory.config, {"agent": "a"})
    with (
        RunDirectory(tmp_path / "run") as directory,
        pytest.raises(RequestError, match="troupe resume"),
    ):
        directory.create()


def test_two_runs_in_one_directory(tmp_path):
    first, second = RunDirectory(tmp_path), RunDirectory(tmp_path)
    first.create()
    first.write(first.config, {})
    for take in (second.create, second.reopen):
        with pytest.raises(RequestError, match="another run is writing"):
            take()
    first.release()
    with second:
        second.reopen()


def test_the_lock_dies_with_its_process(tmp_path):
    script = """if True:
        import os, sys
        from troupe.launch.files.directory import RunDirectory
        directory = RunDirectory(sys.argv[1])
        directory.create()
        directory.write(directory.config, {})
        os.kill(os.getpid(), 9)
    """
    killed = subprocess.run([sys.executable, "-c", script, str(tmp_path / "run")], check=False)
    assert killed.returncode == -9
    with RunDirectory(tmp_path / "run") as directory:
        directory.reopen()


def test_one_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RequestError, match=r"cannot write into .*Not a directory"):
        RunDirectory(tmp_path / "file" / "run").create()


@pytest.mark.parametrize("content", [None, "{", ""])
def test_what_is_no_run_is_not_reopened(tmp_path, content):
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(RequestError, match=r"not a run's directory|cannot read"):
        RunDirectory(tmp_path).reopen()


def test_files_are_replaced_whole(tmp_path):
    directory = RunDirectory(tmp_path)
    for content in ({"a": 1}, {"a": [2, None]}):
        directory.write(directory.result, content)
        assert directory.read_result() == content
    assert json.loads(directory.result.read_text()) == content
    assert [entry.name for entry in tmp_path.iterdir()] == ["result.json"]
