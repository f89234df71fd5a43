"""The counter: keeps the ledger of a run, and a journal of it on the disk."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from ..engines.launchpad.nodes import Service
from ..supervision import role
from .ledger import Ledger

_JOURNAL_SECONDS = 0.5


class Counter(Service):
    """The ledger as a role."""

    def __init__(self, **ledger: Any):
        """Opens the ledger, from the journal where an earlier life left one.

        Args:
          **ledger: arguments of `Ledger`.
        """
        self._journal = role.current().workspace / "journal.json"
        written = self._read()
        if written is None:
            self._ledger = Ledger(**ledger)
        else:
            self._ledger = Ledger(**{**ledger, "state": written})
            self._ledger.reopen(written)
        for method in (
            "enter", "report", "learner", "next_evaluation", "finish_evaluation",
            "request_stop", "look", "save", "note", "take_notes", "spend",
        ):  # fmt: skip
            setattr(self, method, getattr(self._ledger, method))

    def run(self) -> None:
        self._write()
        self._serve()
        while not role.pause(_JOURNAL_SECONDS):
            self._write()
        self._end()

    def _write(self) -> None:
        temporary = self._journal.with_name(f".{self._journal.name}")
        temporary.write_text(json.dumps(self._ledger.journal()))
        os.replace(temporary, self._journal)

    def _read(self) -> Mapping[str, Any] | None:
        try:
            return json.loads(self._journal.read_text())
        except FileNotFoundError:
            return None
