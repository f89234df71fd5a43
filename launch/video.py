"""Films of episodes."""

from __future__ import annotations

import pathlib
from typing import Any

from .errors import RequestError


class Film:
    """A film, one frame per step of the first environment of a vector."""

    def __init__(self, path: pathlib.Path, environment: Any, frames_per_second: int = 30):
        """Begins a film.

        Args:
          path: of the file; its ending says the format (mp4, gif).
          environment: a vector made with `render_mode="rgb_array"`.
          frames_per_second: at which it is shown.

        Raises:
          RequestError: if what films need is not installed, or the file cannot be written.
        """
        try:
            import imageio.v2 as imageio

            path.parent.mkdir(parents=True, exist_ok=True)
            options: dict[str, Any] = {"fps": frames_per_second}
            if path.suffix != ".gif":
                # Encoders want even sizes, and would scale the picture to multiples of 16.
                options["macro_block_size"] = 2
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
