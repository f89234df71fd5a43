"""Images of environments, on machines with and without a display."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from .errors import RenderError


def prepare_mujoco() -> None:
    """Lets MuJoCo draw without a display where there is none, unless MUJOCO_GL says otherwise.

    It is read when the renderer is loaded, and is a window system by default.
    """
    if sys.platform == "linux" and not os.environ.get("DISPLAY"):
        os.environ.setdefault("MUJOCO_GL", "egl")


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
