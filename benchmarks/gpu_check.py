#!/usr/bin/env python3
"""Builds and checks TELens on a machine with a GPU, and leaves JSON and a log in one folder.

  benchmarks/gpu_check.py --out FOLDER [--dependencies FOLDER] [--build FOLDER] [--jobs N]

Needs CUDA, CMake, Ninja and a Python with torch, pytest and numpy: the one that runs this. The
other libraries come from --dependencies (`make portable-dependencies`) or from the system. Steps
that a machine cannot run are skipped with their reason. Exits with 1 if a step failed.
"""

import argparse
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DEVICE_TESTS = ("host_grid_test", "device_code_test")
CUDA_TESTS = ("tests/python/test_cuda.py", "tests/python/test_cuda_blocks.py")
# Small enough for a tool that slows kernels down a hundredfold.
SANITIZED_TESTS = "special_value or views or histories or scales or nothing or products or blocks"
SANITIZERS = ("memcheck", "racecheck", "initcheck")
# Of Python packages that tests use and that this machine may lack: a test skips itself without.
OPTIONAL_PACKAGES = ("ml_dtypes", "gfloat", "h5py", "pandas", "hypothesis", "torchao")


class Skipped(Exception):
    """A step that this machine cannot run; the message is the reason."""


class Check:
    def __init__(self, arguments):
        self.out: Path = arguments.out.resolve()
        self.build: Path = arguments.build.resolve()
        self.dependencies: Path | None = arguments.dependencies and arguments.dependencies.resolve()
        self.jobs: int = arguments.jobs
        self.out.mkdir(parents=True, exist_ok=True)
        self.log = (self.out / "gpu_check.log").open("w")
        self.steps = {}

    @property
    def library(self) -> Path:
        return self.build / "lib/libtelens.so"

    @property
    def site(self) -> Path:
        """Where the carried wheels are unpacked."""
        return self.build / "site"

    def environment(self) -> dict[str, str]:
        paths = os.pathsep.join(filter(None, [str(self.site), os.environ.get("PYTHONPATH")]))
        return os.environ | {
            "TELENS_LIBRARY": str(self.library),
            "TELENS_PACKAGES": str(self.build / "python"),
            "TELENS_GPT": str(self.build / "bin/gpt"),
            "TELENS_COMMAND": str(self.build / "bin/telens"),
            "PYTHONPATH": paths,
        }

    def run(self, *command, timeout: float = 400) -> str:
        """The command's output, which also goes to the log. Throws if it fails."""
        print("$", *command, file=self.log, flush=True)
        process = subprocess.run(
            [str(part) for part in command],
            cwd=ROOT,
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
        )
        self.log.write(process.stdout)
        self.log.flush()
        if process.returncode != 0:
            end = "\n".join(process.stdout.splitlines()[-15:])
            raise RuntimeError(f"{Path(str(command[0])).name} exited {process.returncode}:\n{end}")
        return process.stdout

    def step(self, name: str, action) -> bool:
        start = time.monotonic()
        outcome = {"outcome": "passed"}
        try:
            details = action()
            if details:
                outcome["details"] = details
        except Skipped as reason:
            outcome = {"outcome": "skipped", "reason": str(reason)}
        except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
            outcome = {"outcome": "failed", "reason": str(error)}
        outcome["seconds"] = round(time.monotonic() - start, 1)
        self.steps[name] = outcome
        print(f"{outcome['outcome']:8} {outcome['seconds']:7.1f} s  {name}", flush=True)
        if "reason" in outcome:
            print(f"  {outcome['reason']}", flush=True)
        return outcome["outcome"] == "passed"

    def write(self) -> bool:
        passed = all(step["outcome"] != "failed" for step in self.steps.values())
        report = {"passed": passed, "machine": machine(), "steps": self.steps}
        results = self.out / "gpu_benchmarks.json"
        if results.exists():
            report["benchmarks"] = json.loads(results.read_text())
        (self.out / "gpu_check.json").write_text(json.dumps(report, indent=1) + "\n")
        return passed


def output_of(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError) as error:
        return f"unknown ({error})"


def machine() -> dict[str, str | int | list[str] | None]:
    import torch

    has = importlib.util.find_spec
    return {
        "card": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "driver": output_of("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
        "nvcc": output_of("nvcc", "--version").splitlines()[-1],
        "torch": torch.__version__,
        "python": sys.version.split()[0],
        "cores": os.cpu_count(),
        "packages_missing": [name for name in OPTIONAL_PACKAGES if has(name) is None],
    }


def unpack_wheels(check: Check) -> None:
    wheels = sorted((check.dependencies / "wheels").glob("*.whl")) if check.dependencies else []
    if not wheels:
        raise Skipped("no wheels are carried: --dependencies names no folder with wheels/")
    check.run(
        *(sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--upgrade"),
        *("--target", check.site),
        *wheels,
    )
    sys.path.insert(0, str(check.site))


def configure(check: Check) -> None:
    options = [
        "-DCMAKE_BUILD_TYPE=Release",
        "-DTELENS_CUDA=ON",
        "-DTELENS_SAMPLES=ON",
        "-DTELENS_BENCHMARKS=OFF",
        f"-DTELENS_TORCH_PYTHON={sys.executable}",
        f"-DPython_EXECUTABLE={sys.executable}",
    ]
    if check.dependencies:
        options.append(f"-DCMAKE_PREFIX_PATH={check.dependencies}")
        os.environ["PKG_CONFIG_PATH"] = str(check.dependencies / "lib/pkgconfig")
        carried = check.site / "pkgconf/.bin/pkgconf"
        if shutil.which("pkg-config") is None and carried.exists():
            carried.chmod(0o755)  # unpacking a wheel into a folder leaves out the mode
            os.environ["PKG_CONFIG"] = str(carried)
    check.run("cmake", "-S", ROOT, "-B", check.build, "-G", "Ninja", *options)


def compile_everything(check: Check) -> None:
    check.run("cmake", "--build", check.build, "--parallel", check.jobs, timeout=500)


def device_code(check: Check) -> None:
    for program in DEVICE_TESTS:
        check.run(check.build / "tests" / program, "--gtest_brief=1")


def pytest_summary(output: str) -> str:
    return output.strip().splitlines()[-1].strip("= ")


def cuda_against_cpu(check: Check) -> str:
    tests = (*CUDA_TESTS, "tests/python/test_cuda_build.py")
    return pytest_summary(check.run(sys.executable, "-m", "pytest", "-q", "-rs", *tests))


def sample_on_gpu(check: Check) -> str:
    test = "tests/samples/test_gpt.py"
    return pytest_summary(check.run(sys.executable, "-m", "pytest", "-q", "-rs", test, "-k", "gpu"))


def cpu_tests(check: Check) -> str:
    """What the CPU promises must hold in a build with CUDA too."""
    output = check.run(
        "ctest", "--test-dir", check.build, "--parallel", check.jobs, "--output-on-failure"
    )
    return next(line for line in output.splitlines() if "tests passed" in line)


def sanitize(check: Check, tool: str) -> str:
    program = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not Path(program).exists():
        raise Skipped("compute-sanitizer is not installed")
    probe = "import torch; torch.ones(8, device='cuda').sum().item()"
    try:
        check.run(program, "--tool", tool, "--error-exitcode", "9", sys.executable, "-c", probe)
    except RuntimeError as error:
        raise Skipped(f"compute-sanitizer does not work on this machine: {error}") from error
    return pytest_summary(
        check.run(
            *(program, "--tool", tool, "--error-exitcode", "9"),
            # Kernels of ours alone: torch's are not ours to check.
            *("--kernel-name", "kernel_substring=telens"),
            *(sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"),
            *(*CUDA_TESTS, "-k", SANITIZED_TESTS),
        )
    )


def benchmarks(check: Check) -> None:
    out = check.out / "gpu_benchmarks.json"
    check.run(sys.executable, "benchmarks/gpu.py", "--library", check.library, "--out", out)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the JSON and the log")
    parser.add_argument("--dependencies", type=Path, help="what make portable-dependencies built")
    parser.add_argument("--build", type=Path, default=ROOT / "build-gpu", help="build folder")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    check = Check(parser.parse_args())
    import torch

    if not torch.cuda.is_available():
        print("no GPU: torch.cuda.is_available() is false", file=sys.stderr)
        return 2
    check.step("carried packages", lambda: unpack_wheels(check))
    if check.step("configure", lambda: configure(check)) and check.step(
        "compile and link", lambda: compile_everything(check)
    ):
        check.step("CUDA against CPU", lambda: cuda_against_cpu(check))
        check.step("sample on the GPU", lambda: sample_on_gpu(check))
        check.step("benchmarks", lambda: benchmarks(check))
        check.step("device code on the host", lambda: device_code(check))
        for tool in SANITIZERS:
            check.step(f"compute-sanitizer {tool}", lambda tool=tool: sanitize(check, tool))
        check.step("CPU tests", lambda: cpu_tests(check))
    return 0 if check.write() else 1


if __name__ == "__main__":
    sys.exit(main())
