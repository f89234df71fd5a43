"""The counter: keeps the ledger of a run, and a journal of it on the disk."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from ..supervision import role
from .ledger import Ledger
from .rpc import Service

_JOURNAL_SECONDS = 0.5


class Counter(Service, Ledger):
    """The ledger as a role."""

    def __init__(self, **ledger: Any):
        """Opens the ledger, from the journal where an earlier incarnation left one.

        Args:
          **ledger: arguments of `Ledger`.
        """
        self._journal = role.current().workspace / "journal.json"
        written = self._read()
        super().__init__(**(ledger if written is None else {**ledger, "state": written}))
        if written is not None:
            self.reopen(written)

    def prepare(self) -> None:
        self._write()

    def run(self) -> None:
        while not role.pause(_JOURNAL_SECONDS):
            self._write()

    def _write(self) -> None:
        temporary = self._journal.with_name(f".{self._journal.name}")
        temporary.write_text(json.dumps(self.journal()))
        os.replace(temporary, self._journal)

    def _read(self) -> Mapping[str, Any] | None:
        try:
            return json.loads(self._journal.read_text())
        except FileNotFoundError:
            return None
