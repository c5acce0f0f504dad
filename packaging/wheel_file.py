"""Writes wheels: zip files with a package, its metadata and a list of hashes.

The format: "Binary distribution format" on packaging.python.org, and PEP 639 for license files.
"""

import base64
import email.message
import hashlib
import itertools
import os
import stat
import time
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

GENERATOR = "telens packaging/build_wheels.py"
# Zip files cannot store an earlier time.
FIRST_TIME = 315532800  # 1980-01-01


@dataclass
class Metadata:
    """The metadata of a distribution. `project` is the [project] table of its pyproject.toml."""

    project: dict
    version: str
    readme: str
    dependencies: list[str]
    licenses: dict[str, str] = field(default_factory=dict)  # file name -> text

    @property
    def name(self) -> str:
        return self.project["name"]

    def text(self) -> str:
        message = email.message.Message()
        message["Metadata-Version"] = "2.4"
        message["Name"] = self.name
        message["Version"] = self.version
        message["Summary"] = self.project["description"]
        message["Requires-Python"] = self.project["requires-python"]
        for name in sorted(self.licenses):
            message["License-File"] = name
        for requirement in self.dependencies:
            message["Requires-Dist"] = requirement
        for extra, requirements in self.project.get("optional-dependencies", {}).items():
            message["Provides-Extra"] = extra
            for requirement in requirements:
                message["Requires-Dist"] = f"{requirement}; extra == '{extra}'"
        message["Description-Content-Type"] = "text/markdown; charset=UTF-8"
        return f"{message}{self.readme}"


@dataclass
class Wheel:
    """A wheel in memory. Paths are relative to site-packages."""

    metadata: Metadata
    tag: str  # such as py3-none-manylinux_2_28_x86_64
    files: dict[str, bytes] = field(default_factory=dict)
    executables: set[str] = field(default_factory=set)

    @property
    def stem(self) -> str:
        return f"{self.metadata.name.replace('-', '_')}-{self.metadata.version}"

    def add(self, path: str, source: Path) -> None:
        self.files[path] = source.read_bytes()

    def add_script(self, source: Path) -> None:
        """Adds a program that pip installs into the environment's bin."""
        path = f"{self.stem}.data/scripts/{source.name}"
        self.add(path, source)
        self.executables.add(path)

    def add_folder(self, path: str, source: Path, skip: Iterable[str] = ()) -> None:
        """Adds the files below `source`, except those with a path part that `skip` contains."""
        for file in sorted(source.rglob("*")):
            inside = file.relative_to(source)
            if file.is_file() and not set(inside.parts) & set(skip):
                self.add(f"{path}/{inside.as_posix()}", file)

    def _expanded_tags(self) -> list[str]:
        parts = (part.split(".") for part in self.tag.split("-"))
        return ["-".join(each) for each in itertools.product(*parts)]

    def _information(self) -> dict[str, bytes]:
        folder = f"{self.stem}.dist-info"
        lines = ["Wheel-Version: 1.0", f"Generator: {GENERATOR}", "Root-Is-Purelib: false"]
        lines += [f"Tag: {tag}" for tag in self._expanded_tags()]
        files = {
            f"{folder}/METADATA": self.metadata.text(),
            f"{folder}/WHEEL": "\n".join(lines) + "\n",
        }
        for name, text in self.metadata.licenses.items():
            files[f"{folder}/licenses/{name}"] = text
        return {path: text.encode() for path, text in files.items()}

    def write(self, folder: Path) -> Path:
        """Writes the wheel and returns its path. Equal contents give equal bytes."""
        files = dict(sorted(self.files.items())) | self._information()
        record = f"{self.stem}.dist-info/RECORD"
        rows = []
        for path, content in files.items():
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
            rows.append(f"{path},sha256={digest.decode()},{len(content)}")
        files[record] = "\n".join([*rows, f"{record},,", ""]).encode()

        folder.mkdir(parents=True, exist_ok=True)
        result = folder / f"{self.stem}-{self.tag}.whl"
        moment = time.gmtime(max(FIRST_TIME, int(os.environ.get("SOURCE_DATE_EPOCH", FIRST_TIME))))
        with zipfile.ZipFile(result, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
            for path, content in files.items():
                entry = zipfile.ZipInfo(path, moment[:6])
                entry.compress_type = zipfile.ZIP_DEFLATED
                mode = 0o755 if path in self.executables else 0o644
                entry.external_attr = (stat.S_IFREG | mode) << 16
                archive.writestr(entry, content)
        return result
