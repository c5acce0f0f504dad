"""telens serve: requests, and runs that grow, are killed, damaged or removed while it runs."""

import base64
import contextlib
import hashlib
import http.client
import json
import math
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

import pytest
from conftest import COMMAND, COUNT_READS, WRITE_LINES, Lines, bytes_counted
from page_data import Page

PATIENCE = 60  # seconds, on a busy machine
TICK = 2  # seconds for which a file that was written counts as news


class Server:
    def __init__(self, log_dir, *options):
        self.process = subprocess.Popen(
            [COMMAND, "serve", str(log_dir), "--interval", "0.1", *options],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.url = self.process.stdout.readline().strip()
        assert self.url.startswith("http://127.0.0.1:"), self.process.stderr.read()
        address, self.token = self.url.split("/?token=")
        self.port = int(address.split(":")[-1])

    def get(self, path, method="GET", host=None, token=True, after=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        question = f"?token={self.token}" if token is True else f"?token={token}" if token else ""
        question += f"&after={after}" if after is not None else ""
        connection.request(method, path + question, headers={"Host": host} if host else {})
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        return answer, body.decode()

    def data(self, after=None):
        answer, body = self.get("/data", after=after)
        assert answer.status == (200 if body else 204)
        return json.loads(body) if body else None

    def wait_for(self, condition):
        """Polls the data as the page does, and returns them once they fulfil the condition."""
        end, version = time.monotonic() + PATIENCE, None
        while time.monotonic() < end:
            found = self.data(after=version)
            if found and condition(found):
                return found
            version = found["live"]["version"] if found else version
            time.sleep(0.05)
        raise AssertionError(self.data())

    def end(self, number=signal.SIGINT):
        self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, errors


@pytest.fixture
def serve():
    servers = []

    def start(log_dir, *options):
        servers.append(Server(log_dir, *options))
        return servers[-1]

    yield start
    for each in servers:
        each.process.kill()
        each.process.communicate()


class Training:
    """A process that writes a run line by line."""

    def __init__(self, log_dir):
        self.log_dir = log_dir
        self.process = subprocess.Popen([WRITE_LINES, str(log_dir)], stdin=subprocess.PIPE)
        self.steps = 0
        self.step(3)
        end = time.monotonic() + PATIENCE
        while not self.is_readable() and time.monotonic() < end:
            time.sleep(0.05)

    def is_readable(self):
        files = list(self.log_dir.glob("telens/run/*.h5"))
        return (
            files
            and subprocess.run([COMMAND, "info", files[0]], capture_output=True).returncode == 0
        )

    def step(self, count=1, bad=False):
        lines = Lines()
        for _ in range(count):
            lines.record(self.steps, "layers.0.fc1", "activation", "nonfinite", 7 if bad else 0)
            lines.record(
                self.steps, "layers.0.fc1", "activation", "cur_amax", 4 + math.sin(self.steps)
            )
            lines.scalar(self.steps, "loss", 10 - self.steps)
            self.steps += 1
        self.process.stdin.write(("\n".join(lines.lines) + "\n").encode())
        self.process.stdin.flush()

    def end(self):
        self.process.stdin.close()
        assert self.process.wait(timeout=PATIENCE) == 0


@pytest.fixture
def training(tmp_path):
    started = Training(tmp_path / "log")
    yield started
    started.process.kill()
    started.process.wait()


def losses(data):
    (loss,) = (chart for chart in data["charts"] if chart["title"] == "loss")
    return loss["rows"][0]["values"]


def test_live_page_may_only_fetch_from_its_server(serve, log_dir):
    answer, body = serve(log_dir).get("/")
    assert answer.status == 200
    assert answer.getheader("Content-Type") == "text/html; charset=utf-8"
    policy = re.search(r'Content-Security-Policy"\s+content="([^"]*)"', body)[1]
    assert policy.startswith("default-src 'none'; connect-src 'self'; script-src 'sha256-")
    scripts = re.findall("<script>(.*?)</script>", body, re.DOTALL)
    digests = (hashlib.sha256(each.encode()).digest() for each in scripts)
    hashes = [f"'sha256-{base64.b64encode(each).decode()}'" for each in digests]
    assert len(hashes) == 2
    assert re.search("script-src ([^;]*);", policy)[1].split() == hashes
    assert answer.getheader("Content-Security-Policy") == policy + "; frame-ancestors 'none'"
    page = Page(body)
    assert page.tags.count("script") == 3
    assert page.data["live"] == {"version": 1, "trouble": "", "milliseconds": 100}
    assert any("(nonfinite)" in each["head"] for each in page.data["sections"][0]["findings"])


def test_headers_forbid_caching_framing_and_referrers(serve, log_dir):
    server = serve(log_dir)
    for path, token in (("/", True), ("/data", True), ("/nothing", True), ("/", None)):
        answer, _ = server.get(path, token=token)
        assert answer.getheader("Cache-Control") == "no-store"
        assert answer.getheader("X-Frame-Options") == "DENY"
        assert answer.getheader("X-Content-Type-Options") == "nosniff"
        assert answer.getheader("Referrer-Policy") == "no-referrer"
        assert answer.getheader("Connection") == "close"
        policy = answer.getheader("Content-Security-Policy")
        assert policy.startswith("default-src 'none'")
        assert policy.endswith("frame-ancestors 'none'")


def test_request_without_token_is_rejected(serve, log_dir):
    server = serve(log_dir)
    almost = server.token[:-1] + ("0" if server.token[-1] != "0" else "1")
    for token in (
        None,
        "",
        almost,
        server.token + "0",
        server.token[:-1],
        server.token.upper() + "x",
    ):
        for path in ("/", "/data", "/nothing"):
            answer, body = server.get(path, token=token)
            assert answer.status == 403
            assert "token" in body
            assert server.token not in body
    assert len(server.token) == 32
    assert serve(log_dir).token != server.token


def test_a_request_for_two_hosts_is_refused(serve, log_dir):
    server = serve(log_dir)
    host = f"127.0.0.1:{server.port}"
    for hosts in ([host, "evil.example"], ["evil.example", host], [host, host]):
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        connection.putrequest("GET", f"/?token={server.token}", skip_host=True)
        for each in hosts:
            connection.putheader("Host", each)
        connection.endheaders()
        assert connection.getresponse().status == 400
        connection.close()


def test_an_answer_is_whole_whatever_range_is_asked_for(serve, log_dir):
    server = serve(log_dir)
    _, whole = server.get("/")
    for asked in ("bytes=0-9", "bytes=5-", "bytes=-5", "bytes=0-1,4-5"):
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        connection.request("GET", f"/?token={server.token}", headers={"Range": asked})
        answer = connection.getresponse()
        assert answer.status == 200
        assert answer.getheader("Content-Range") is None
        assert answer.read().decode() == whole
        connection.close()


def test_a_page_of_another_site_is_refused_by_its_name(serve, log_dir):
    server = serve(log_dir)
    for host in ("evil.example", f"evil.example:{server.port}", "127.0.0.1.evil.example",
                 "localhost.evil.example", "127.0.0.1:80@evil", "localhost:"):  # fmt: skip
        assert server.get("/data", host=host)[0].status == 403
    # Other ports are allowed, because a tunnel may have its own.
    for host in ("localhost", "127.0.0.1:8000", f"localhost:{server.port}", "[::1]:1234"):
        assert server.get("/data", host=host)[0].status == 200


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "/../../etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "//etc/passwd",
        "/data/",
        "/data/../..",
        "/index.html",
    ],
)
def test_every_other_path_is_404(serve, log_dir, path):
    # The server reads no files for clients: every other path is 404, wherever it leads.
    answer, body = serve(log_dir).get(path)
    assert answer.status == 404
    assert "root:" not in body


def test_nothing_can_be_sent_to_it(serve, log_dir):
    server = serve(log_dir)
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert server.get("/", method=method)[0].status == 405
    head, body = server.get("/", method="HEAD")
    assert (head.status, body) == (200, "")


def test_server_listens_only_on_loopback(serve, log_dir):
    server = serve(log_dir)
    tables = [Path(f"/proc/net/{name}").read_text().splitlines()[1:] for name in ("tcp", "tcp6")]
    sockets = [line.split() for table in tables for line in table]
    listening = [each[1] for each in sockets if each[3] == "0A"]
    assert [each for each in listening if each.endswith(f":{server.port:04X}")] == [
        f"0100007F:{server.port:04X}"
    ]


def test_the_page_follows_the_run(serve, training):
    server = serve(training.log_dir)
    first = server.wait_for(lambda data: "charts" in data and len(data["charts"]) > 1)
    assert first["state"] == {"text": "being written", "gravity": "fine"}
    training.step(4, bad=True)
    news = server.wait_for(lambda data: len(losses(data)) == 7)
    assert news["live"]["version"] > first["live"]["version"]
    assert losses(news)[-1] == 4
    assert "(nonfinite): layers.0.fc1 activation" in news["sections"][0]["findings"][0]["head"]
    training.end()
    ended = server.wait_for(lambda data: data["state"]["text"].startswith("ended cleanly"))
    assert server.data(after=ended["live"]["version"]) is None


def test_a_killed_run_says_so(serve, training):
    server = serve(training.log_dir)
    training.process.kill()
    killed = server.wait_for(lambda data: data["state"]["gravity"] == "notable")
    assert "killed?" in killed["state"]["text"]
    assert server.end() == (0, "")


def test_a_run_that_goes_and_comes_back(serve, write_run, tmp_path):
    write_run(log_dir=tmp_path / "log")
    server = serve(tmp_path / "log")
    before = server.data()
    shutil.move(tmp_path / "log", tmp_path / "moved")
    gone = server.wait_for(lambda data: data["live"]["trouble"])
    assert "can no longer be read; this is its last report" in gone["live"]["trouble"]
    assert gone["charts"] == before["charts"]
    shutil.move(tmp_path / "moved", tmp_path / "log")
    back = server.wait_for(lambda data: not data["live"]["trouble"])
    assert back["charts"] == before["charts"]


def test_damaged_file_is_reported_and_server_continues(serve, write_run, tmp_path):
    write_run(log_dir=tmp_path)
    server = serve(tmp_path)
    file = tmp_path / "telens/run/rank00000.h5"
    file.write_bytes(b"\0" * 5000)
    told = server.wait_for(lambda data: data["live"]["trouble"])
    assert "rank00000.h5" in told["live"]["trouble"]
    assert server.get("/")[0].status == 200
    assert server.end() == (0, "")


def wait_until(condition):
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.mark.parametrize("command", ["serve", "watch"])
def test_unchanged_files_are_not_read_again(training, tmp_path, command):
    counted, file = tmp_path / "bytes", training.log_dir / "telens/run/rank00000.h5"
    with subprocess.Popen(
        [COUNT_READS, str(counted), command, str(training.log_dir), "--interval", "0.1"],
        stdout=subprocess.DEVNULL,
    ) as process:
        try:
            wait_until(lambda: bytes_counted(counted) > 0)
            written = None
            while written != file.stat().st_mtime_ns:  # a training that rests may have been late
                written = file.stat().st_mtime_ns
                time.sleep(3 * TICK)  # the last write has reached the disk, and is no news
                before = bytes_counted(counted)
                time.sleep(1)
                read = bytes_counted(counted) - before
            assert read == 0
            training.step()
            wait_until(lambda: bytes_counted(counted) - before >= file.stat().st_size / 2)
        finally:
            process.kill()


@pytest.mark.parametrize("place", ["not yet", "telens"])
def test_watch_waits_for_a_run_to_begin_and_says_so(write_run, tmp_path, place):
    log_dir = tmp_path / "logs"
    if place == "telens":
        (log_dir / "telens").mkdir(parents=True)
    with subprocess.Popen([COMMAND, "watch", str(log_dir), "--interval", "0.1"], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:  # fmt: skip
        told = process.stderr.readline()
        write_run(log_dir=log_dir)
        out, err = process.communicate(timeout=PATIENCE)
    assert told == (f"telens: {log_dir}: no run yet; waiting for one to start (Ctrl-C stops)\n")
    assert (process.returncode, err) == (0, "")
    assert out.splitlines()[-1].startswith("ended cleanly")


def test_watch_waits_for_nothing_in_a_folder_that_is_not_there(telens, tmp_path):
    done = telens("watch", tmp_path / "typo" / "logs")
    assert (done.returncode, "run not found" in done.stderr) == (2, True)


def test_ctrl_c_ends_the_waiting(tmp_path):
    with subprocess.Popen([COMMAND, "watch", str(tmp_path / "logs")], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:  # fmt: skip
        process.stderr.readline()
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=PATIENCE) == ("", "")
    assert process.returncode == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_it_clean_and_the_port_is_free_again(serve, log_dir, number):
    server = serve(log_dir)
    assert server.get("/")[0].status == 200
    assert server.end(number) == (0 if number == signal.SIGINT else 128 + number, "")
    assert serve(log_dir, "--port", str(server.port)).port == server.port


def test_a_client_that_says_nothing_keeps_no_other_waiting(serve, log_dir):
    server = serve(log_dir)
    silent = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(8)]
    assert server.get("/data")[0].status == 200
    ends_cleanly(server)
    for each in silent:
        each.close()


def ends_cleanly(server):
    """Ends the server although clients are connected; end() waits up to PATIENCE."""
    assert server.end() == (0, "")


@contextlib.contextmanager
def dripping_clients(port, count):
    """Clients that send one byte every 0.4 s, and never a whole request."""
    clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]
    ended = threading.Event()

    def drip():
        while not ended.wait(0.4):
            for each in clients:
                with contextlib.suppress(OSError):
                    each.send(b"A")

    thread = threading.Thread(target=drip)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        for each in clients:
            each.close()


def test_clients_that_drip_lock_no_other_out(serve, log_dir):
    server = serve(log_dir)
    with dripping_clients(server.port, 40):  # more than are served at a time
        assert server.get("/data")[0].status == 200  # within PATIENCE
    with dripping_clients(server.port, 8):
        time.sleep(0.5)
        ends_cleanly(server)


def memory(process):
    """Returns the peak resident memory in bytes."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return 1024 * int(status.split("VmHWM:")[1].split()[0])


def test_a_request_without_an_end_is_cut_off(serve, log_dir):
    server = serve(log_dir)
    assert server.get("/")[0].status == 200
    before = memory(server.process)
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as client:
        with contextlib.suppress(ConnectionError):
            for _ in range(100):
                client.sendall(b"A" * 2**20)
        with contextlib.suppress(ConnectionError):
            client.recv(1000)
    assert memory(server.process) - before < 32 * 2**20
    assert server.get("/")[0].status == 200


def test_a_failed_reading_is_made_good_at_the_next_look(serve, write_run, tmp_path):
    write_run(log_dir=tmp_path)
    file = tmp_path / "telens/run/rank00000.h5"
    server = serve(tmp_path)
    content, times = file.read_bytes(), (1_000_000_000, 1_000_000_000)
    file.write_bytes(content[:100] + b"x" * (len(content) - 100))
    os.utime(file, times)
    assert server.wait_for(lambda data: data["live"]["trouble"])
    time.sleep(3 * TICK)
    # Time and size of the file stay the same, as if the reading had failed and not the file.
    with file.open("r+b") as opened:
        opened.write(content)
    os.utime(file, times)
    server.wait_for(lambda data: not data["live"]["trouble"])


def test_a_port_that_is_taken_is_named(serve, log_dir, telens):
    server = serve(log_dir)
    for port in (server.port, 70000):
        result = telens("serve", log_dir, "--port", port)
        assert result.returncode == 2
        assert result.stderr.count("\n") == 1
        assert str(port) in result.stderr
    assert server.get("/")[0].status == 200


def test_empty_run_is_served_but_missing_run_is_not(serve, write_run, telens):
    data = serve(write_run(iterations=0)).data()
    assert data["charts"] == []
    assert "no problems found" in data["sections"][0]["note"].lower()
    result = telens("serve", "/nowhere")
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1


def test_a_name_does_not_become_markup(serve, tmp_path, lines):
    hostile = "</script><img src=x onerror=alert(1)>"
    lines.record(0, hostile, "activation", "nonfinite", 1)
    page = Page(serve(lines.write(tmp_path)).get("/")[1])
    assert "img" not in page.tags
    assert page.tags.count("script") == 3


def test_disconnected_client_is_not_reported(log_dir):
    reader, writer = os.pipe()
    os.close(reader)
    result = subprocess.run(
        [COMMAND, "serve", str(log_dir)], stdout=writer, stderr=subprocess.PIPE, timeout=PATIENCE
    )
    os.close(writer)
    assert result.stderr == b""
    assert result.returncode == -signal.SIGPIPE
