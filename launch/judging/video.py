"""Films of episodes."""

from __future__ import annotations

import os
import pathlib
from typing import Any

from ..errors import RequestError

FORMATS = (".mp4", ".gif", ".webm", ".mkv")
_USUAL_RATE = 30.0
"""Frames a second, of an environment that does not say its own."""


def prepare() -> None:
    """Sets the process up for films. Call it before an environment that draws is made."""
    # Drawing into memory needs no screen, and SDL complains where it finds none.
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    # Else the encoder is started by a fork that runs Python, which hangs where jax has threads.
    os.environ.setdefault("IMAGEIO_FFMPEG_NO_PREVENT_SIGINT", "1")


class Film:
    """A film, one frame per step of the first environment of a vector."""

    def __init__(self, path: pathlib.Path, environment: Any):
        """Begins a film, to be shown at the rate of the environment (`render_fps`).

        Args:
          path: of the file; its ending, one of `FORMATS`, says the format.
          environment: a vector made with `render_mode="rgb_array"`.

        Raises:
          RequestError: if what films need is not installed, or the file cannot be written.
        """
        if path.suffix not in FORMATS:
            raise RequestError(
                f"cannot make the film {path}: its name must end in {', '.join(FORMATS)}."
            )
        try:
            import imageio.v2 as imageio

            frames_per_second = getattr(environment, "render_fps", None) or _USUAL_RATE
            path.parent.mkdir(parents=True, exist_ok=True)
            options: dict[str, Any] = {"duration": 1000 / frames_per_second, "loop": 0}
            if path.suffix != ".gif":
                # Encoders want even sizes, and would scale the picture to multiples of 16.
                options = {"fps": frames_per_second, "macro_block_size": 2}
            self._writer = imageio.get_writer(path, **options)
        except ImportError as error:
            raise RequestError(
                f"a film needs an extra: pip install 'troupe[video]' ({error})"
            ) from error
        except (OSError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise RequestError(f"cannot make the film {path}: {reason}") from error
        self._environment = environment

    def __enter__(self) -> Film:
        return self

    def __exit__(self, *exception: object) -> None:
        self._writer.close()

    def take(self) -> None:
        """Adds the present state as a frame."""
        self._writer.append_data(self._environment.render_frame(0))
