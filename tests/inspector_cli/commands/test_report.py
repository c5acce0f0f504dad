"""telens report: a page that holds what the other subcommands say, and nothing that a name adds."""

import math

import pytest
from conftest import Lines
from page_data import Page

STEPS = 20
HOSTILE = "</script><img src=x onerror=alert(1)>"


@pytest.fixture
def report(telens, tmp_path):
    def report(run, name="page.html"):
        out = tmp_path / name
        result = telens("report", run, "-o", out)
        assert result.returncode == 0, result.stderr
        return out.read_text(), result.stdout

    return report


def training(log_dir, bad_from=STEPS, layer="layers.1.fc1"):
    lines = Lines()
    for step in range(STEPS):
        for name in ("layers.0.fc1", layer):
            bad = name == layer and step >= bad_from
            lines.record(step, name, "activation", "nonfinite", 3 if bad else 0)
            lines.record(step, name, "activation", "cur_amax", 4 + 0.1 * math.sin(step))
        lines.scalar(step, "loss", 4 - 0.1 * step)
    return lines.write(log_dir)


def sections(page):
    return {section["title"]: section for section in page.data["sections"]}


def test_a_finding_stands_before_the_charts(report, tmp_path):
    text, told = report(training(tmp_path, bad_from=12))
    assert "1 finding\n" in told
    findings = sections(Page(text))["Findings"]
    assert findings["place"] == "before"
    (finding,) = findings["findings"]
    assert "(nonfinite): layers.1.fc1 activation, iterations 12 to 19" in finding["head"]
    rows = dict(finding["rows"])
    assert rows["found"].startswith("3 elements are not finite")
    assert str(tmp_path) in rows["next"]


def test_a_healthy_run_says_so(report, tmp_path):
    text, told = report(training(tmp_path))
    assert told.endswith("no finding\n")
    findings = sections(Page(text))["Findings"]
    assert findings["findings"] == []
    assert findings["note"].startswith("No finding, by ")


def test_the_page_has_charts_configuration_and_what_was_not_recorded(report, tmp_path):
    page = Page(report(training(tmp_path))[0])
    assert "loss" in [chart["title"] for chart in page.data["charts"]]
    assert any(chart["kind"] == "map" for chart in page.data["charts"])
    told = sections(page)
    assert {"Configuration", "Environment", "Not looked for"} <= set(told)
    lacking = [row[0] for row in told["Not looked for"]["table"]["rows"]]
    assert "a GEMM whose error its operands do not explain" in lacking


def test_the_page_asks_no_network(report, tmp_path):
    text, _ = report(training(tmp_path))
    assert "default-src 'none'" in text
    assert Page(text).tags.count("link") == 0
    assert len(text) < 1_000_000


def test_a_name_does_not_become_markup(report, tmp_path):
    text, _ = report(training(tmp_path, bad_from=5, layer=HOSTILE))
    page = Page(text)
    assert "img" not in page.tags
    assert page.tags.count("script") == 3
    assert HOSTILE in sections(page)["Findings"]["findings"][0]["head"]


def test_a_page_has_the_name_of_a_page(telens, tmp_path):
    result = telens("report", training(tmp_path), "-o", tmp_path / "page.txt")
    assert result.returncode == 2
    assert "ends in .html" in result.stderr
