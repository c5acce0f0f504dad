"""The source files whose functions a program enters, from a callgrind profile.

`entered_files.py PROFILE [FOLDER ...]` prints the files, folder by folder. Functions that the
compiler has inlined are not in a profile, so tiny accessors of headers do not count. Libraries need
no debug information: a function's file is where its definition stands in the sources.
"""

import re
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SUFFIXES = {".h", ".cpp"}
NOT_FUNCTIONS = frozenset({"if", "for", "while", "switch", "catch", "return", "sizeof", "decltype"})

COMMENT_OR_STRING = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"\((?:.*?)\)"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'', re.S
)
TOKEN = re.compile(
    r"(?P<type>\b(?:class|struct)\b[^;{}()=]*?)\{|(?P<name>~?\w+(?:::~?\w+)*)\s*\(|[{}]"
)
BEHIND_PARAMETERS = re.compile(r"\s*(?:const|noexcept|override|final|->[^{;]*|\s)*(?:\{|:[^:;])")


def closing(text, opening):
    """The place behind the parenthesis that closes the one at `opening`."""
    depth = 0
    for place in range(opening, len(text)):
        depth += (text[place] == "(") - (text[place] == ")")
        if depth == 0:
            return place + 1
    return len(text)


def defined_functions(source):
    """The functions that a C++ source defines, as `name` or `Class::name`."""
    text = COMMENT_OR_STRING.sub(" ", source)
    names, scopes, place = set(), [], 0
    while token := TOKEN.search(text, place):
        place = token.end()
        if token["type"]:
            words = re.findall(r"\w+", re.sub(r":[^:].*|\bfinal\b", "", token["type"], flags=re.S))
            scopes.append(words[-1])
        elif token["name"]:
            behind = closing(text, token.end() - 1)
            if token["name"] in NOT_FUNCTIONS or not BEHIND_PARAMETERS.match(text, behind):
                continue
            if token["name"].endswith("_"):  # a member that a constructor initializes
                continue
            owner = next((scope for scope in reversed(scopes) if scope), None)
            short = "::".join(token["name"].split("::")[-2:])
            names.add(f"{owner}::{short}" if owner and "::" not in short else short)
            place = behind
        elif token[0] == "{":
            scopes.append(None)
        elif scopes:
            scopes.pop()
    return names


def definitions(root, folder):
    """{function: files that define it} of a folder."""
    files = defaultdict(set)
    for path in sorted((root / folder).rglob("*")):
        if path.suffix in SUFFIXES:
            for name in defined_functions(path.read_text()):
                files[name].add(path.relative_to(root).as_posix())
    return files


def plain_name(function):
    """`Class::name` or `name` of one of our functions as callgrind prints it; None for others."""
    if not function.startswith("telens::"):
        found = re.match(r"[^(]*? telens::", function)  # a template's: its result comes first
        if not found or "c10::" in function[: found.end()]:
            return None
        function = function[found.end() - len("telens::") :]
    text = function.replace("(anonymous namespace)::", "").replace("operator()", "call_operator")
    text = text.split("::{lambda")[0]
    while (shorter := re.sub(r"<[^<>]*>", "", text)) != text:
        text = shorter
    words = text.split("(")[0].split("::")
    is_class = len(words) > 1 and words[-2][:1].isupper()
    name = "::".join(words[-2:]) if is_class else words[-1]
    return name.replace("call_operator", "operator()")


def entered_functions(profile):
    """The functions of a callgrind profile that ran; a name may stand at a call (`cfn`) first.

    https://valgrind.org/docs/manual/cl-format.html
    """
    text = Path(profile).read_text()
    names = dict(re.findall(r"^c?fn=\((\d+)\) (.+)$", text, re.MULTILINE))
    return {names[number] for number in re.findall(r"^fn=\((\d+)\)", text, re.MULTILINE)}


def entered_files(profile, root=ROOT, folder="core"):
    """The files of a folder whose functions the profile has entered."""
    files = definitions(root, folder)
    found = [files.get(plain_name(name), set()) for name in entered_functions(profile)]
    entered = set().union(*(one for one in found if len(one) == 1))
    # Functions of one name in several files are those of a file that is entered anyway.
    for several in found:
        if len(several) > 1 and not several & entered:
            entered.add(min(several))
    return entered


def main():
    profile, *folders = sys.argv[1:]
    for folder in folders or ["core/modules", "core"]:
        found = sorted(path for path in entered_files(profile) if path.startswith(folder))
        print(f"{folder}: {len(found)}", *found, sep="\n  ")


if __name__ == "__main__":
    main()
