"""The newest variables: files in the launch's workspace, whose place a Courier server knows."""

from __future__ import annotations

from typing import Any

from .....agents.variables.publisher import Publisher
from .....agents.variables.reader import VariableReader
from .....agents.variables.server import PartServer
from .....agents.variables.version_board import FileShelf
from ...roles import rpc
from ...supervision import role


class CourierBoard:
    """The board of a variable server (`roles.board.VariableBoard`)."""

    def __init__(self, server: Any):
        """Takes the `VariableRole`, from afar."""
        self._server = server

    def publisher(self, part: int = 0, parts: int = 1, *, spreads: bool = False) -> Publisher:
        folder = role.current().workspace / "variables"
        if parts == 1:
            folder.mkdir(exist_ok=True)
            return Publisher(FileShelf(folder), self._server)
        folder = folder / str(part)
        folder.mkdir(parents=True, exist_ok=True)
        return Publisher(FileShelf(folder), PartServer(self._server, part, parts))

    def reader(self, on_host: bool = False) -> VariableReader:
        return VariableReader(self._server, while_waiting=rpc.check_stop, on_host=on_host)
