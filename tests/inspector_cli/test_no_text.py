"""telens plan with a file that is not text, such as a checkpoint or a run file."""

import gzip

import pytest
from command_results import expect_one_line_error, rows_of
from example_config import CONFIG


@pytest.fixture
def plan(telens, tmp_path):
    def run(config, layers=b"layers.0.fc1\n"):
        (tmp_path / "a.yaml").write_bytes(config)
        (tmp_path / "names.txt").write_bytes(layers)
        arguments = ("--layers", tmp_path / "names.txt", "--format", "csv")
        return telens("plan", tmp_path / "a.yaml", *arguments)

    return run


@pytest.mark.parametrize(
    "encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"]
)
def test_a_config_may_have_any_encoding_of_yaml(plan, encoding):
    config = CONFIG + "# Größe, 大きさ, 🔎\n"
    expected = rows_of(plan(CONFIG.encode()))
    assert len(expected) > 0
    assert rows_of(plan(config.encode(encoding))) == expected


def test_binary_config_reports_first_byte(plan, run_file):
    compressed = gzip.compress(CONFIG.encode())
    expect_one_line_error(plan(compressed), "a.yaml:1:1: not a text (byte 0x1f)", "UTF-8")
    expect_one_line_error(plan(run_file.read_bytes()), "a.yaml:1:1: not a text (byte 0x89)")
    expect_one_line_error(plan(b"\x7fELF\x02\x01"), "a.yaml:1:1: not a text (byte 0x7f)")
    latin = b"# ok\n# caf\xe9\n" + CONFIG.encode()
    expect_one_line_error(plan(latin), "a.yaml:2:6: not a text (byte 0xe9)")
    expect_one_line_error(plan("# Größe\0".encode()), "a.yaml:1:8: not a text (byte 0x00)")


@pytest.mark.parametrize(
    "comment",
    [
        *(b"\xc2\x80", b"\xc1\xbf", b"\xdf\xbf", b"\xdf", b"\xe0\xa0\x80", b"\xe0\x9f\xbf"),
        *(b"\xed\x9f\xbf", b"\xed\xa0\x80", b"\xef\xbf\xbd", b"\xef\xbf", b"\xf0\x90\x80\x80"),
        *(b"\xf0\x8f\xbf\xbf", b"\xf4\x8f\xbf\xbf", b"\xf4\x90\x80\x80", b"\xf5\x80\x80\x80"),
        *(b"\xe2\x82x", b"\xe2\x82\xacx", b"\x80", b"\xff", b"tab\there"),
    ],
)
def test_it_is_a_text_if_python_says_so(plan, comment):
    config = CONFIG.encode() + b"# " + comment
    try:
        config.decode()
    except UnicodeDecodeError:
        expect_one_line_error(plan(config), "not a text")
    else:
        assert len(rows_of(plan(config))) > 0


def test_binary_layer_list_is_reported(plan):
    expect_one_line_error(
        plan(CONFIG.encode(), "layers.0.fc1\n".encode("utf-16")),
        *("names.txt' is not UTF-8 text (byte 0xff in line 1)", "one layer name per line"),
    )
    expect_one_line_error(
        plan(CONFIG.encode(), b"fc1\nfc\x1b[2J"),
        *(
            "names.txt' contains a control character (byte 0x1b in line 2)",
            "one layer name per line",
        ),
    )
