"""What cuobjdump lists of a library's machine code: its functions, instruction by instruction."""

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ARCHITECTURE = "sm_90a"

COMPILER = re.compile(r"Tool Version:.* release ([\d.]+),")
INSTRUCTION = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(@!?U?P\w+\s+)?([A-Z][\w.]*)\s*(.*?);")
TARGET = re.compile(r"0x([0-9a-f]+)\)?\s*$")
REGISTER = re.compile(r"\bR(\d+)\b")
USAGE = re.compile(r"Function (\S+):\s*\n\s*REG:(\d+) STACK:(\d+)")


@dataclass
class Instruction:
    address: int
    predicated: bool
    name: str
    operands: str

    @property
    def jumps(self) -> bool:
        return self.name.split(".")[0] in ("BRA", "EXIT", "RET")

    @property
    def target(self) -> int | None:
        found = TARGET.search(self.operands) if self.name.startswith("BRA") else None
        return int(found[1], 16) if found else None

    @property
    def always_leaves(self) -> bool:
        # BRA may carry a second predicate among its operands.
        conditional = self.predicated or "," in self.operands or "DIV" in self.name
        return self.jumps and not conditional

    @property
    def registers(self) -> list[int]:
        """In the order of its operands: of a load, the first that it writes comes first."""
        return [int(number) for number in REGISTER.findall(self.operands)]

    @property
    def loads_words(self) -> int:
        """How many registers a load from global memory fills; 0 of any other instruction."""
        if not self.name.startswith(("LDG.", "LD.")):
            return 0
        return 4 if ".128" in self.name else 2 if ".64" in self.name else 1


@dataclass
class Usage:
    registers: int
    stack: int  # bytes: spilled registers, and arrays that are indexed


def instructions_of(text: str) -> list[Instruction]:
    found = filter(None, map(INSTRUCTION.match, text.splitlines()))
    return [Instruction(int(m[1], 16), bool(m[2]), m[3], m[4]) for m in found]


def functions(listing: str) -> Iterator[tuple[str, str]]:
    """Mangled names, and the part of a listing that is about each."""
    for part in listing.split("Function : ")[1:]:
        name, _, text = part.partition("\n")
        yield name.strip(), text


# core/formats: the identifier of a format in the name that the compiler mangles.
FORMATS = ("E4M3", "E5M2", "E2M1", "E8M0", "BF16", "FP16", "FP32")
FORMAT = re.compile(r"telens::FloatFormat<\(telens::FormatId\)(\d)[^<>]*>")
NAMESPACE = re.compile(r"\(anonymous namespace\)::|\b(?:telens|cuda|ops|detail)::|^void ")
PARAMETERS = re.compile(r"(?<=>)\(.*|\((?![^<]*>).*")


def readable(mangled: list[str]) -> list[str]:
    """As in `quantize_kernel<BF16, E4M3, 8>`."""
    names = subprocess.run(
        ["c++filt"], input="\n".join(mangled), capture_output=True, text=True, check=True
    ).stdout.splitlines()
    names = [FORMAT.sub(lambda found: FORMATS[int(found[1])], name) for name in names]
    names = [NAMESPACE.sub("", name).replace(" >", ">") for name in names]
    return [PARAMETERS.sub("", name) for name in names]


def command_of(tool: str, option: str, binary: Path) -> list[str]:
    # A cubin is of one architecture.
    architecture = [] if binary.suffix == ".cubin" else ["-arch", ARCHITECTURE]
    return [tool, option, *architecture, str(binary)]


def output_of(tool: str, option: str, binary: Path) -> str:
    command = command_of(tool, option, binary)
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def listing_of(tool: str, binary: Path) -> str:
    return output_of(tool, "-sass", binary)


def compiler_of(tool: str, binary: Path) -> str:
    """The version of the nvcc that made the machine code, as in 13.0; "" if it does not say."""
    # Each kernel says it, in a listing too long to be read to its end.
    command = command_of(tool, "-elf", binary)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        found = next(filter(None, map(COMPILER.search, process.stdout)), None)
        process.kill()
    return found[1] if found else ""


def usage_of(tool: str, binary: Path) -> dict[str, Usage]:
    """By mangled name."""
    found = USAGE.findall(output_of(tool, "--dump-resource-usage", binary))
    return {name: Usage(int(registers), int(stack)) for name, registers, stack in found}
