"""The checkout of git that this package lies in."""

from __future__ import annotations

import pathlib
import subprocess

from ..launch.errors import RequestError

ROOT = pathlib.Path(__file__).resolve().parents[1]
"""Folder of the package."""


def git(why: str, *words: str) -> bytes:
    """Returns what a command of git says in the checkout.

    Args:
      why: it is asked, as a message of an error begins.
      words: of the command.

    Raises:
      RequestError: if git cannot be run, or the package is no checkout.
    """
    try:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, check=False)
    except OSError as error:
        raise RequestError(f"{why}, and git cannot be run: {error}.") from error
    if done.returncode:
        raise RequestError(f"{why}, and {ROOT} is no checkout of the package.")
    return done.stdout


def commit(why: str) -> str:
    """Returns the commit of the checkout, with a + where files differ from it.

    Raises: as of `git`.
    """
    found = git(why, "rev-parse", "--short=12", "HEAD").decode().strip()
    return found + "+" * bool(git(why, "status", "--porcelain", "--untracked-files=no").strip())


def resolve(name: str) -> str:
    """Returns the whole hash of a commit, branch or tag.

    Raises:
      RequestError: if there is none of that name.
    """
    why = f"{name!r} is to be a commit"
    git(why, "rev-parse", "HEAD")
    try:
        return git(why, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}").decode().strip()
    except RequestError:
        raise RequestError(
            f"there is no commit {name!r} in {ROOT}; name a commit, a branch or a tag, or the path "
            "of a Python interpreter."
        ) from None
