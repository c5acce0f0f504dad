"""Pages of the command in a real browser, if there is one (Debian's chromium)."""

import re
import shutil
import signal
import subprocess
import threading
import time

import pytest
from conftest import COMMAND, WRITE_LINES
from page_data import Page

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no chromium")


@pytest.fixture
def opened(tmp_path):
    """Opens a page; returns its elements after its scripts ran for this many seconds of page time.

    That time stands still while it loads something, and passes at once where nothing is to do.
    """

    def open_page(address, seconds=5):
        result = subprocess.run(
            [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr",
             f"--user-data-dir={tmp_path / 'profile'}", f"--virtual-time-budget={1000 * seconds}",
             "--dump-dom", address],
            capture_output=True, text=True, timeout=120, check=True,
        )  # fmt: skip
        errors = [line for line in result.stderr.splitlines() if "CONSOLE" in line]
        assert errors == []
        return Page(result.stdout)

    return open_page


def test_every_chart_is_drawn(telens, log_dir, opened, tmp_path):
    out = tmp_path / "run.html"
    assert telens("plot", log_dir, "--out", out).returncode == 0
    page = opened(out.as_uri())
    assert page.tags.count("canvas") == page.tags.count("section") == len(page.data["charts"]) > 2
    assert page.tags.count("button") == len(page.data["charts"])


def test_histograms_are_drawn(telens, one_rank, opened, tmp_path):
    for arguments in ([], ["--tensor", "activation", "--iterations", "0"]):
        out = tmp_path / "run.html"
        assert telens("plot", one_rank, "--histogram", *arguments, "--out", out).returncode == 0
        page = opened(out.as_uri())
        assert page.tags.count("canvas") == len(page.data["charts"]) > 0


def test_markup_in_a_name_is_text(telens, lines, opened, tmp_path):
    for name in ("<img src=x onerror=document.body.append('owned')>", "</script><b>bold</b>"):
        lines.record(0, name, "activation", "l2_norm", 1.0)
        lines.record(1, name, "activation", "l2_norm", 2.0)
    out = tmp_path / "run.html"
    assert telens("plot", lines.write(tmp_path / "log"), "--out", out).returncode == 0
    page = opened(out.as_uri())
    assert not {"img", "b"} & set(page.tags)
    assert page.tags.count("script") == 3


# Clicks at the label of the third row of each heat map.
CLICK = """<script>
for (const canvas of document.querySelectorAll('.map > .plot > canvas')) {
  const {left, top, height} = canvas.getBoundingClientRect();
  canvas.dispatchEvent(new MouseEvent('click', {clientX: left + 5, clientY: top + 6 + 2.5 * 16}));
}
</script></body>"""


def test_a_click_on_a_row_of_a_heat_map_opens_its_lines(telens, write_run, opened, tmp_path):
    write_run(log_dir=tmp_path / "log")
    write_run(log_dir=tmp_path / "log", rank=1)
    out = tmp_path / "report.html"
    assert telens("report", tmp_path / "log", "-o", out).returncode == 0
    before = opened(out.as_uri())
    maps = sum(chart["kind"] == "map" for chart in before.data["charts"])
    assert maps > 4
    # The page's policy allows only its own scripts.
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", out.read_text())
    out.write_text(text.replace("</body>", CLICK))
    page = opened(out.as_uri())
    assert page.tags.count("canvas") == before.tags.count("canvas") + maps
    assert "layers.2.fc1 activation" in page.text


def test_a_served_page_draws_the_news_of_its_run(lines, opened, tmp_path):
    written = subprocess.Popen([WRITE_LINES, tmp_path / "log"], stdin=subprocess.PIPE, text=True)
    lines.record(0, "layers.0.fc1", "activation", "nonfinite", 0)
    written.stdin.write("\n".join(lines.lines) + "\n")
    written.stdin.flush()
    time.sleep(4)  # two seconds until it is written
    server = subprocess.Popen([COMMAND, "serve", tmp_path / "log", "--interval", "0.2"],
                              stdout=subprocess.PIPE, text=True)  # fmt: skip
    address = server.stdout.readline().strip()
    lines.record(1, "layers.0.fc1", "activation", "nonfinite", 5)
    timer = threading.Timer(2, lambda: written.communicate("\n".join(lines.lines[1:]) + "\n"))
    timer.start()
    page = opened(address, seconds=1200)
    timer.join()
    server.send_signal(signal.SIGINT)
    assert server.wait(timeout=60) == 0
    assert len(page.data["sections"][0]["findings"]) == 0  # as the page came
    assert "(nonfinite): layers.0.fc1 activation" in page.text
    assert "ended cleanly" in page.text
