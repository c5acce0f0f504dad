"""Which PaddlePaddle these layers have run beside."""

from __future__ import annotations

import importlib.util

# Minor versions that the tests of this package have passed beside.
TRIED = ("3.3",)
_INSTALL = "pip install 'paddlepaddle==3.3.*'"


def check_paddle_version(found: str) -> None:
    """Raises ImportError for a version of Paddle that was not tried."""
    if ".".join(found.split(".")[:2]) not in TRIED:
        raise ImportError(
            f"telens.paddle has been tried beside paddlepaddle {', '.join(TRIED)} and not beside "
            f"{found}, whose layers and autograd may differ from what it relies on; {_INSTALL}"
        )


def check_paddle() -> None:
    """Raises ImportError where there is no Paddle, or another one than was tried."""
    if importlib.util.find_spec("paddle") is None:
        raise ImportError(f"telens.paddle needs PaddlePaddle, which is not installed; {_INSTALL}")
    import paddle

    check_paddle_version(paddle.__version__)
