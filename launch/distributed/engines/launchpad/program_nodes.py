"""Launchpad nodes for roles that a supervisor starts, and starts again."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import courier
import launchpad as lp
from launchpad import address as lp_address
from launchpad.nodes import base as lp_base
from launchpad.nodes.courier import courier_utils

from .....agents.programs import runtime
from ...roles import rpc
from ...supervision.role import Settings
from . import servers
from .courier_client import CALL_SECONDS, CourierRemote
from .reverb_service import ReverbService


class _Fresh(lp.PyClassNode):
    """Runs a new instance in every incarnation; Launchpad keeps the first, and threads would find
    it."""

    def run(self) -> None:
        self._instance = None
        runtime.configure_cpu()
        with contextlib.suppress(rpc.Stopped):
            self._work()

    def _work(self) -> None:
        self._construct_instance().run()


class WorkerNode(_Fresh):
    """A role that is not called by others: `constructor(*args, **kwargs).run()`."""

    def __init__(self, settings: Settings, constructor: Callable[..., Any], *args: Any, **kw: Any):
        super().__init__(constructor, *args, **kw)
        self.role_settings = settings


class RemoteHandle(lp_base.Handle):
    """Stands for a service in the arguments of other nodes, which get a `CourierRemote`."""

    def __init__(self, address: lp_address.Address, name: str):
        self._address, self._name = address, name

    def dereference(self) -> CourierRemote:
        client = courier.Client(self._address.resolve(), call_timeout=CALL_SECONDS)
        return CourierRemote(client, self._name)


class ServiceNode(_Fresh, lp.CourierNode):
    """A role whose public methods others call (`roles.rpc.Service`)."""

    def __init__(
        self,
        name: str,
        settings: Settings,
        constructor: Callable[..., Any],
        *args: Any,
        threads: int = 16,
        **kw: Any,
    ):
        """Like a Courier node.

        Args:
          name: for messages of those who call it.
          settings: how it is supervised.
          constructor: makes the role from `args` and `kw`.
          threads: calls that are answered at the same time.
        """
        super().__init__(constructor, *args, **kw)
        self.name, self._threads = name, threads
        self.role_settings = settings

    def _work(self) -> None:
        service = self._construct_instance()
        service.prepare()
        with servers.starting(self._address.resolve()) as port:
            server = courier_utils.make_courier_server(
                service, port=port, thread_pool_size=self._threads
            )
            server.Start()
        try:
            service.run()
        finally:
            server.Stop()

    def create_handle(self) -> RemoteHandle:
        return self._track_handle(RemoteHandle(self._address, self.name))


class AddressHandle(lp_base.Handle):
    """Stands for an address in the arguments of other nodes, which get it as text."""

    def __init__(self, address: lp_address.Address):
        self._address = address

    def dereference(self) -> str:
        return self._address.resolve()


class ReplayNode(_Fresh):
    """The replay, which serves at a port in its own way; its argument `service` is of that port."""

    def __init__(self, settings: Settings, constructor: Callable[..., Any], **kw: Any):
        self._port = lp_address.Address("port")
        super().__init__(constructor, **kw)
        self.allocate_address(self._port)
        self.role_settings = settings

    def _work(self) -> None:
        # Its own address is no connection to another node, so it is no argument of this one.
        self._kwargs["service"] = ReverbService(self._port.resolve())
        super()._work()

    def create_handle(self) -> AddressHandle:
        return self._track_handle(AddressHandle(self._port))
