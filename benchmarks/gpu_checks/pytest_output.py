"""What pytest printed, as numbers and reasons."""

import re

COUNT = re.compile(r"(\d+) (passed|failed|skipped|deselected|error|errors|xfailed|xpassed)\b")
SUMMARY = re.compile(r"^=+ (.*) in [\d.]+s.* =+$", re.MULTILINE)
FAILED = re.compile(r"^(?:FAILED|ERROR) \S+?\.py(?:::\w+)*?::(\w+)(?=\[|\s|$)", re.MULTILINE)
SKIPPED = re.compile(r"^SKIPPED \[(\d+)\] [^ ]+: (.*)$", re.MULTILINE)


def counts(output: str) -> dict[str, int]:
    """Of pytest's last line, as in "=== 3 failed, 98 passed in 4.2s ==="; what it runs under may
    print a summary of its own behind it."""
    summaries = SUMMARY.findall(output)
    found = COUNT.findall(summaries[-1]) if summaries else []
    return {kind: int(number) for number, kind in found}


def skip_reasons(output: str) -> dict[str, int]:
    """How many tests skipped themselves for which reason (printed with -rs)."""
    reasons: dict[str, int] = {}
    for number, reason in SKIPPED.findall(output):
        reasons[reason.strip()] = reasons.get(reason.strip(), 0) + int(number)
    return reasons


def failed_tests(output: str) -> list[str]:
    """The functions of which a case failed (printed with -rfE)."""
    return sorted(set(FAILED.findall(output)))


def details(output: str) -> dict:
    found = {"tests": counts(output)}
    if reasons := skip_reasons(output):
        found["skipped"] = reasons
    if failed := failed_tests(output):
        found["failed"] = failed
    return found
