"""A page of `telens plot` in a real browser, where there is one (Debian's chromium)."""

import shutil
import subprocess

import pytest
from page_data import Page

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no chromium")


@pytest.fixture
def opened(tmp_path):
    """Opens a page without a network; returns its elements after its scripts ran."""

    def open_page(path):
        result = subprocess.run(
            [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr",
             f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=5000",
             "--dump-dom", path.as_uri()],
            capture_output=True, text=True, timeout=120, check=True,
        )  # fmt: skip
        errors = [line for line in result.stderr.splitlines() if "CONSOLE" in line]
        assert errors == []
        return Page(result.stdout)

    return open_page


def test_every_chart_is_drawn(telens, log_dir, opened, tmp_path):
    out = tmp_path / "run.html"
    assert telens("plot", log_dir, "--out", out).returncode == 0
    page = opened(out)
    assert page.tags.count("canvas") == page.tags.count("section") == len(page.data["charts"]) > 2
    assert page.tags.count("button") == len(page.data["charts"])


def test_histograms_are_drawn(telens, one_rank, opened, tmp_path):
    for arguments in ([], ["--tensor", "activation", "--iterations", "0"]):
        out = tmp_path / "run.html"
        assert telens("plot", one_rank, "--histogram", *arguments, "--out", out).returncode == 0
        page = opened(out)
        assert page.tags.count("canvas") == len(page.data["charts"]) > 0


def test_markup_in_a_name_is_text(telens, lines, opened, tmp_path):
    for name in ("<img src=x onerror=document.body.append('owned')>", "</script><b>bold</b>"):
        lines.record(0, name, "activation", "l2_norm", 1.0)
        lines.record(1, name, "activation", "l2_norm", 2.0)
    out = tmp_path / "run.html"
    assert telens("plot", lines.write(tmp_path / "log"), "--out", out).returncode == 0
    page = opened(out)
    assert not {"img", "b"} & set(page.tags)
    assert page.tags.count("script") == 3
