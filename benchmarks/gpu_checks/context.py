"""What the steps of a check share: folders, jobs, and the environment of what they run."""

import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpu_checks.runner import Commands

ROOT = Path(__file__).resolve().parents[2]

# Targets of known cards (cmake/TelensCuda.cmake); all targets are compiled for others.
TARGETS = {
    (8, 0): "80",
    (8, 6): "80",
    (8, 9): "80",
    (9, 0): "90a",
    (10, 0): "100f",
    (10, 3): "100f",
}


@dataclass
class Context:
    out: Path
    build: Path
    dependencies: Path | None
    jobs: int
    nvcc: str
    commands: Commands | None = None
    capability: tuple[int, int] = (0, 0)
    prebuilt: Path | None = None  # lib, bin and tests as `make gpu-prebuilt` leaves them
    is_new: Callable[[str], bool] = lambda step: True  # no earlier check ran the step to its end

    @property
    def target(self) -> str | None:
        return TARGETS.get(tuple(self.capability))

    @property
    def built(self) -> Path:
        """Where libtelens.so and the programs lie."""
        return self.prebuilt or self.build

    @property
    def library(self) -> Path:
        return self.built / "lib/libtelens.so"

    @property
    def site(self) -> Path:
        """Where the carried wheels are unpacked."""
        return self.build / "site"

    def environment(self) -> dict[str, str]:
        paths = [str(self.site), str(self.build / "python"), os.environ.get("PYTHONPATH")]
        environment = os.environ | {
            "TELENS_LIBRARY": str(self.library),
            "TELENS_PACKAGES": str(self.build / "python"),
            "TELENS_GPT": str(self.built / "bin/gpt"),
            "TELENS_COMMAND": str(self.built / "bin/telens"),
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "PYTHONUNBUFFERED": "1",  # the log holds the output of a killed program too
        }
        if self.target:
            environment["TELENS_CUDA_TARGETS"] = self.target
        if self.prebuilt:
            # Its programs know the folders of the machine that built them.
            folders = [*torch_libraries(), self.prebuilt / "lib", os.environ.get("LD_LIBRARY_PATH")]
            environment["LD_LIBRARY_PATH"] = os.pathsep.join(str(each) for each in folders if each)
        return environment


def torch_libraries() -> list[Path]:
    """LibTorch's folder of libraries, and NVIDIA's where torch's wheel brings them."""
    spec = importlib.util.find_spec("torch")
    if spec is None:
        return []
    torch = Path(spec.submodule_search_locations[0])
    return [torch / "lib", *sorted(torch.parent.glob("nvidia/*/lib"))]
