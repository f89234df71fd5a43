"""Films of episodes."""

from __future__ import annotations

import contextlib
import io
import os
import pathlib
from typing import Any

from ..errors import RequestError, RunError

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
          RequestError: if a package for films is not installed, or the file cannot be written.
        """
        if path.suffix not in FORMATS:
            raise RequestError(
                f"cannot make the film {path}: its name must end in {', '.join(FORMATS)}."
            )
        try:
            import imageio.v2 as imageio

            frames_per_second = getattr(environment, "render_fps", None) or _USUAL_RATE
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
            if path.suffix == ".gif":
                # In memory: a writer that cannot write its file tries again when it is collected.
                self._picture = io.BytesIO()
                options: Any = {"format": "gif", "duration": 1000 / frames_per_second, "loop": 0}
                self._writer: Any = imageio.get_writer(self._picture, **options)
            else:
                self._writer = imageio.get_writer(
                    path,
                    fps=frames_per_second,
                    codec="libvpx-vp9" if path.suffix == ".webm" else "libx264",
                    macro_block_size=2,  # Else sizes are scaled to multiples of 16.
                    ffmpeg_log_level="quiet",
                )
        except ImportError as error:
            raise RequestError(
                f"a film needs an extra: pip install 'troupe[video]' ({error})"
            ) from error
        except (OSError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise RequestError(f"cannot make the film {path}: {reason}") from error
        self._environment, self._path, self._frames = environment, path, 0

    def __enter__(self) -> Film:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is not None:
            with contextlib.suppress(OSError):
                self._writer.close()
            return
        try:
            self._writer.close()
            if self._path.suffix == ".gif":
                self._path.write_bytes(self._picture.getvalue())
        except OSError as error:
            raise self._failed(error) from error
        # The encoder's exit code is nobody's: what lies there now is looked at instead.
        if self._path.suffix != ".gif" and (found := _count_frames(self._path)) < self._frames:
            raise self._failed(f"{found} of {self._frames} frames are in it; is the disk full?")

    def take(self) -> None:
        """Adds the present state as a frame.

        Raises:
          RunError: if it cannot be written.
        """
        try:
            self._writer.append_data(self._environment.render_frame(0))
        except OSError as error:
            raise self._failed("it cannot be written; is the disk full?") from error
        self._frames += 1

    def _failed(self, reason: object) -> RunError:
        return RunError(f"the film {self._path} is not whole: {reason}")


def _count_frames(path: pathlib.Path) -> int:
    """Counts the frames of a film that can be read."""
    import imageio_ffmpeg

    try:
        return imageio_ffmpeg.count_frames_and_secs(str(path))[0]
    except RuntimeError:
        return 0
