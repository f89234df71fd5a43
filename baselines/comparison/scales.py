"""Ways to launch the same agent, as the command line names them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ...launch.errors import RequestError
from ...launch.roles import KINDS
from ...launch.specification.recipe import Recipe

FORM = "KIND[:ACTORS][+inference[:SERVERS]][+gang:HOSTS][@MESH[@SCHEDULE]]"
_GANG = "gang"
_ROLES = {"inference": "inference_servers", _GANG: "learner_hosts"}


@dataclasses.dataclass(frozen=True)
class Scale:
    """One way to launch, in the words of `FORM`; gang:HOSTS is processes+gang:HOSTS."""

    text: str
    launch: str
    roles: Mapping[str, Any]
    """Fields of `roles.Roles` that are not as by default."""
    mesh: str | None
    schedule: str | None

    @classmethod
    def parse(cls, text: str) -> Scale:
        """Reads "one-process", "processes:4+inference" or "one-process@data=2@batch:data".

        Raises:
          RequestError: if it is none of these.
        """
        head, *partition = text.split("@")
        first, *others = head.split("+")
        kind, number = _split(first)
        more = [_split(other) for other in others]
        if kind == _GANG:
            kind, number, more = "processes", None, [(_GANG, number), *more]
        numbers = [number, *(one for _, one in more)]
        names = [name for name, _ in more]
        if (
            kind not in KINDS
            or len(partition) > 2
            or not all(partition)
            or any(one is not None and not one.isdigit() for one in numbers)
            or not set(names) <= set(_ROLES)
            or len(set(names)) < len(names)
            or (_GANG, None) in more
        ):
            raise RequestError(
                f"the scale {text!r} is not {FORM}, with a KIND of {', '.join(KINDS)}; for example "
                "processes:4+inference, gang:2, or one-process@data=2@batch:data."
            )
        roles = {_ROLES[name]: int(one or 1) for name, one in more}
        if number is not None:
            roles["actors"] = int(number)
        mesh, schedule = (*partition, None, None)[:2]
        return cls(text, kind, roles, mesh, schedule)

    def of(self, recipe: Recipe) -> Recipe:
        """Returns the recipe of a run at this scale.

        Raises:
          RequestError: if the launch has no such roles.
        """
        try:
            return dataclasses.replace(
                recipe,
                launch=self.launch,
                engine=None,
                mesh=self.mesh,
                schedule=self.schedule,
                roles=self.roles,
            )
        except RequestError as error:
            raise RequestError(f"the scale {self.text!r}: {error}") from error

    @property
    def folder(self) -> str:
        """A name for its runs that every file system takes."""
        return re.sub(r"[^\w.=+-]+", "-", self.text)


def _split(word: str) -> tuple[str, str | None]:
    """Divides NAME[:NUMBER]."""
    name, colon, number = word.partition(":")
    return name, number if colon else None


def parse_scales(texts: Sequence[str]) -> list[Scale]:
    """Reads several, each another.

    Raises:
      RequestError: if one is no scale, or two are the same.
    """
    scales: list[Scale] = []
    for text in texts:
        scale = Scale.parse(text)
        same = [one.text for one in scales if dataclasses.replace(one, text=text) == scale]
        if same:
            raise RequestError(
                f"the scales {same[0]!r} and {text!r} are the same; name each of them once."
            )
        scales.append(scale)
    return scales
