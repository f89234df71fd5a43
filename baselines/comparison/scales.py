"""Ways to launch the same agent, as the command line names them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

from ...launch.errors import RequestError
from ...launch.roles import KINDS
from ...launch.specification.recipe import Recipe


@dataclasses.dataclass(frozen=True)
class Scale:
    """One way to launch: KIND[:ACTORS][@MESH@SCHEDULE]."""

    text: str
    launch: str
    actors: int | None
    mesh: str | None
    schedule: str | None

    @classmethod
    def parse(cls, text: str) -> Scale:
        """Reads "one-process", "processes:4" or "one-process@data=2@batch:data".

        Raises:
          RequestError: if it is none of these.
        """
        head, *partition = text.split("@")
        kind, colon, number = head.partition(":")
        if kind not in KINDS or len(partition) not in (0, 2) or (colon and not number.isdigit()):
            raise RequestError(
                f"the scale {text!r} is not KIND[:ACTORS][@MESH@SCHEDULE], with a KIND of "
                f"{', '.join(KINDS)}; for example processes:4, or one-process@data=2@batch:data."
            )
        mesh, schedule = partition or (None, None)
        return cls(text, kind, int(number) if colon else None, mesh, schedule)

    def of(self, recipe: Recipe) -> Recipe:
        """Returns the recipe of a run at this scale."""
        return dataclasses.replace(
            recipe,
            launch=self.launch,
            engine=None,
            mesh=self.mesh,
            schedule=self.schedule,
            roles={} if self.actors is None else {"actors": self.actors},
        )

    @property
    def folder(self) -> str:
        """A name for its runs that every file system takes."""
        return re.sub(r"[^\w.=-]+", "-", self.text)


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
