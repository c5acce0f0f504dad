"""telens report: a page with what the other subcommands print, in which names cannot add markup."""

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


def test_findings_precede_charts(report, tmp_path):
    text, told = report(training(tmp_path, bad_from=12))
    assert "1 problem found\n" in told
    findings = sections(Page(text))["Findings"]
    assert findings["place"] == "before"
    (finding,) = findings["findings"]
    assert "(nonfinite): layers.1.fc1 activation, iterations 12 to 19" in finding["head"]
    rows = dict(finding["rows"])
    assert rows["observed"].startswith("3 elements are not finite")
    assert str(tmp_path) in rows["next"]


def test_a_healthy_run_says_so(report, tmp_path):
    text, told = report(training(tmp_path))
    assert told.endswith("no problems found\n")
    findings = sections(Page(text))["Findings"]
    assert findings["findings"] == []
    assert findings["note"].startswith("No problems found (")


def test_page_has_charts_config_and_missing_data(report, tmp_path):
    page = Page(report(training(tmp_path))[0])
    assert "loss" in [chart["title"] for chart in page.data["charts"]]
    assert any(chart["kind"] == "map" for chart in page.data["charts"])
    told = sections(page)
    assert {"Configuration", "Environment", "Skipped rules"} <= set(told)
    lacking = [row[0] for row in told["Skipped rules"]["table"]["rows"]]
    assert "unexplained GEMM error" in lacking


def test_title_names_log_dir_iterations_and_verdict(report, tmp_path):
    page = Page(report(training(tmp_path / "sick", bad_from=12))[0])
    assert page.data["title"] == "sick, 20 iterations, 1 problem found"
    page = Page(report(training(tmp_path / "healthy"))[0])
    assert page.data["title"] == "healthy, 20 iterations, no problems found"


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


def charts(page):
    return {chart["title"]: chart for chart in page.data["charts"]}


def test_page_maps_layers_by_ranks(report, write_run, tmp_path):
    for rank in (0, 3):
        write_run(log_dir=tmp_path, rank=rank)
    drawn = charts(Page(report(tmp_path)[0]))
    ranks = drawn["nonfinite of layers by ranks, worst iteration"]
    assert ranks["axis"] == {"name": "rank", "firsts": [0, 3], "last": 3, "ticks": [[0, 0], [1, 3]]}
    values = {row["label"]: row["values"] for row in ranks["rows"]}
    assert values["layers.0.fc1"] == [0, 0]
    assert values["layers.2.fc1"] == [3, 3]


def test_single_rank_gives_no_rank_map(report, log_dir):
    assert not any("by ranks" in title for title in charts(Page(report(log_dir)[0])))


def test_heat_map_row_contains_its_tensors(report, log_dir):
    layers = charts(Page(report(log_dir)[0]))["underflows% of each layer's worst tensor"]["rows"]
    tensors = {each["label"]: each["values"] for each in layers[3]["tensors"]}
    assert tensors["layers.3.fc1 activation fprop"][:2] == [1.5, 1.5]
    assert tensors["layers.3.fc1 gradient dgrad"][:2] == layers[3]["values"][:2] == [13, 13]


def test_page_has_worst_blocks_and_run_end(report, log_dir):
    page = Page(report(log_dir)[0])
    table = sections(page)["Worst blocks"]["table"]
    (row,) = table["rows"]
    block = dict(zip(table["columns"], row, strict=True))
    assert (block["layer"], block["block row"], block["value"]) == ("layers.0.fc1", "4", "0.125")
    assert page.data["state"]["text"].startswith("ended cleanly")
    assert page.data["state"]["gravity"] == "plain"


def test_histograms_of_a_few_iterations_are_drawn_over_all(report, lines, tmp_path):
    for step in range(20):
        lines.record(step, "fc", "activation", "cur_amax", 2)
        if step in (5, 10):
            lines.histogram(step, "fc", "activation", "code_histogram_bf16", {0x3F80: 3, 0x4000: 1})
    drawn = charts(Page(report(lines.write(tmp_path))[0]))["fc activation"]
    row = next(row for row in drawn["rows"] if row["label"] == "2^0")
    assert len(row["values"]) == 20
    assert row["values"][5] == 75
    assert row["values"][4] is None


def test_run_with_only_losses_has_a_page(report, lines, tmp_path):
    for step in range(5):
        lines.scalar(step, "loss", 4 - step)
    page = Page(report(lines.write(tmp_path))[0])
    assert list(charts(page)) == ["loss"]
    assert charts(page)["loss"]["rows"][0]["values"] == [4, 3, 2, 1, 0]


def test_run_ended_in_first_step_has_a_page(report, telens, tmp_path):
    for rank in range(2):
        lines = Lines()
        lines.event(0, "warning", "fc1: no FP8 on this device", "fc1")
        lines.end("ValueError: batch 0 is empty" if rank else "RuntimeError: gloo: closed")
        lines.write(tmp_path, rank, 2)
    page = Page(report(tmp_path)[0])
    told = sections(page)
    (row,) = told["Events"]["table"]["rows"]
    assert row == ["warning", "0", "ranks 0, 1", "fc1: no FP8 on this device"]
    assert told["Events"]["place"] == "before"
    first, second = told["Recording"]["table"]["rows"]
    assert "batch 0 is empty" in first[0]
    assert "likely" in second[0]
    (finding,) = told["Findings"]["findings"]
    assert "(exception)" in finding["head"]


def test_empty_run_gives_no_page(telens, write_run, tmp_path):
    result = telens("report", write_run(iterations=0), "-o", tmp_path / "page.html")
    assert result.returncode == 2
    assert "does not contain records or events" in result.stderr
    assert "telens info" in result.stderr


def test_events_follow_charts(report, lines, tmp_path):
    lines.record(0, "fc1", "activation", "cur_amax", 1)
    lines.event(3, "ranks_differ", "RankAgreement: iteration 3: fc1: the weight differs", "fc1")
    events = sections(Page(report(lines.write(tmp_path))[0]))["Events"]
    assert events["place"] == "after"
    assert events["table"]["rows"][0][1:] == [
        "3", "rank 0", "RankAgreement: fc1: the weight differs",
    ]  # fmt: skip


def test_page_with_many_layers_shows_worst_and_stays_small(report, lines, tmp_path):
    for step in range(40):
        for layer in range(1000):
            name = f"model.layers.{layer}.self_attention.qkv"
            for tensor in ("activation", "gradient"):
                for statistic in ("underflows%", "mse"):
                    value = layer * 7919 % 1000 / 997
                    lines.record(step, name, tensor, statistic, value, gemm="fprop")
    text, _ = report(lines.write(tmp_path))
    assert len(text) < 5_000_000
    drawn = charts(Page(text))[
        "underflows% of each layer's worst tensor, the 300 worst of 1000 layers"
    ]
    numbers = [int(row["label"]) for row in drawn["rows"]]
    assert numbers == sorted(numbers)
    assert min(layer * 7919 % 1000 for layer in numbers) == 700
