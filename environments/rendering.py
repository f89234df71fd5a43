"""Images of environments, on machines with and without a display, and what MuJoCo prints."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from .errors import RenderError

_LOG = logging.getLogger(__name__)


def prepare_mujoco() -> None:
    """Lets MuJoCo draw without a display where there is none, unless MUJOCO_GL says otherwise.

    It is read when the renderer is loaded, and is a window system by default.
    """
    if sys.platform == "linux" and not os.environ.get("DISPLAY"):
        os.environ.setdefault("MUJOCO_GL", "egl")


def log_mujoco() -> None:
    """Sends MuJoCo's warnings to `logging`; by default it writes a file where the process runs."""
    try:
        import mujoco
    except ImportError:
        return  # Whoever needs it is about to say so.
    if mujoco.get_mju_user_warning() is None:
        mujoco.set_mju_user_warning(lambda text: _LOG.info("MuJoCo: %s", text))


def render_image(render: Callable[[], Any], name: str) -> np.ndarray:
    """Calls `render` and returns what it drew, uint8 [height, width, 3].

    Raises:
      RenderError: if it fails, whatever with: graphics libraries have errors of all kinds.
    """
    try:
        return np.asarray(render(), np.uint8)
    except Exception as error:
        reason = " ".join(str(error).split())
        raise RenderError(f"{name}: cannot draw an image: {reason}") from error
