"""Plain English in comments: `comment_lint.py [PATTERN...]` prints each line that is not.

A comment says who does what: subject, verb, object. These are the marks of one that does not.
"""

import io
import re
import sys
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CPP = (".h", ".cpp", ".cu", ".cuh")
# Code up to a comment, without the "//" inside of strings and addresses.
CPP_COMMENT = re.compile(r'^((?:[^"/]|"(?:\\.|[^"\\])*"|/(?!/))*)//(.*)$')

PRONOUN = re.compile(r"\b(?:who|whoever|nobody|somebody)\b", re.IGNORECASE)
BEGINNING = re.compile(r"^(?:of|what|whether|which)\b", re.IGNORECASE)
BRITISH = re.compile(
    r"\b\w*(?:colour|neighbour|behaviour|favour|honour|centre|analys(?:e|ing)|whilst|licence"
    r"|judgement|labell|travell|modell|initialis|normalis|optimis|quantis|recognis|serialis"
    r"|synchronis|summaris|organis|realis(?!t)|minimis|maximis)\w*|\bgrey\b",
    re.IGNORECASE,
)


def comments(path: Path):
    """(line, text, beside code, first of its block) of each line of comment."""
    text = path.read_text()
    if path.suffix in CPP:
        found = [(n, CPP_COMMENT.match(line)) for n, line in enumerate(text.splitlines(), 1)]
        lines = [(n, match[2], bool(match[1].strip())) for n, match in found if match]
    else:
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        found = [token for token in tokens if token.type == tokenize.COMMENT]
        lines = [
            (each.start[0], each.string.lstrip("#"), bool(each.line[: each.start[1]].strip()))
            for each in found
        ]
    before = None
    for number, words, beside in lines:
        yield number, words.strip(), beside, beside or before != number - 1
        before = None if beside else number


def complaints(path: Path):
    """(line, complaint) of each mark in a file's comments."""
    for number, words, beside, first in comments(path):
        if beside and not words:
            yield number, "a comment of nothing: say it again, or say it once above"
        if pronoun := PRONOUN.search(words):
            yield number, f"'{pronoun[0]}': name the caller, the thread, the user, the rank"
        if first and (beginning := BEGINNING.match(words)):
            yield number, f"begins with '{beginning[0]}': begin with the subject"
        for british in BRITISH.findall(words):
            yield number, f"'{british}': American spelling"


def main(patterns: list[str]) -> None:
    for pattern in patterns or ["**/*"]:
        for path in sorted(ROOT.glob(pattern)):
            if path.suffix in (*CPP, ".py") and path.is_file():
                for number, complaint in complaints(path):
                    print(f"{path.relative_to(ROOT)}:{number}: {complaint}")


if __name__ == "__main__":
    main(sys.argv[1:])
