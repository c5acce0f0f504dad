"""The PaddlePaddle versions that these layers are tested with."""

from __future__ import annotations

import importlib.util

# Minor versions that passed this package's tests.
TRIED = ("3.3",)
_INSTALL = "pip install 'paddlepaddle==3.3.*'"


def check_paddle_version(found: str) -> None:
    """Raises ImportError for an untested version of Paddle."""
    if ".".join(found.split(".")[:2]) not in TRIED:
        raise ImportError(
            f"telens.paddle is tested with paddlepaddle {', '.join(TRIED)}, not with "
            f"{found}, whose layers and autograd may differ; {_INSTALL}"
        )


def check_paddle() -> None:
    """Raises ImportError if Paddle is missing or its version is untested."""
    if importlib.util.find_spec("paddle") is None:
        raise ImportError(f"telens.paddle needs PaddlePaddle, which is not installed; {_INSTALL}")
    import paddle

    check_paddle_version(paddle.__version__)
