"""telens replay as a program: its table and JSON, arguments that it refuses, damaged dumps."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys

import h5py
import ml_dtypes
import numpy as np
import pytest
import torch
from debug_helpers import section, train
from replay_cases import (
    ALL,
    FORMATS,
    RECIPES,
    Dumped,
    decoded,
    drop_checksums,
    dump_in,
    gemm_file,
    parts_of,
    read_with_h5py,
)

import telens
import telens.debug as debug
import telens.pytorch as te
from telens.replay import casts, command, dumps, found, gemm_error


@pytest.fixture(scope="module")
def dumped(tmp_path_factory):
    return Dumped(tmp_path_factory)


@pytest.fixture
def replay(build_folder, tmp_path):
    def run(*arguments, **environment):
        return subprocess.run(
            [str(build_folder / "bin/telens"), "replay", *map(str, arguments)],
            capture_output=True, text=True, timeout=120, cwd=tmp_path,
            env=os.environ | {"TELENS_PYTHON": sys.executable} | environment,
        )  # fmt: skip

    return run


def test_command_and_reproducer_print_the_same_table(dumped, replay, tmp_path):
    folder = dumped("delayed")
    answer = replay(folder, "--gemm", "dgrad", "--emit", "repro.py")
    assert answer.returncode == 0, answer.stderr
    lines = answer.stdout.splitlines()
    assert lines[0].startswith(
        "layers.0.fc1 dgrad, iteration 1, rank 0: [64, 96] x [128, 96]^T, fp8_delayed_scaling, "
    )
    assert [line.split("  ")[0] for line in lines[2:]] == [
        "quantizing gradient", "quantizing weight", "scale choice gradient",
        "scale choice weight", "output cast", "accumulation", "total",
    ]  # fmt: skip
    shares = [float(line.split()[-2]) for line in lines[2:]]
    assert sum(shares[:-1]) == pytest.approx(shares[-1], abs=0.05)
    script = (tmp_path / "repro.py").read_text()
    assert set(re.findall(r"^ *(?:import|from) (\w+)(?= import|$)", script, re.M)) == {
        "__future__", "dataclasses", "math", "pathlib", "torch",
    }  # fmt: skip
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    again = subprocess.run(
        [sys.executable, tmp_path / "repro.py"],
        capture_output=True, text=True, timeout=120, cwd=elsewhere, env=environment,
    )  # fmt: skip
    assert again.returncode == 0, again.stderr
    assert again.stdout.startswith(answer.stdout)


def test_table_and_json_include_another_cast(dumped, replay):
    path = gemm_file(dumped("mxfp8"), "fprop")
    answer = replay(path, "--format", "E5M2", "--recipe", "mxfp8", "--format", "json")
    assert answer.returncode == 0, answer.stderr
    page = json.loads(answer.stdout)
    assert page["schema_version"] == 1
    [gemm] = page["gemms"]
    assert (gemm["layer"], gemm["gemm"], gemm["iteration"]) == ("layers.0.fc1", "fprop", 1)
    assert gemm["recorded"]["casts"] == ["E4M3", "E4M3"]
    assert gemm["other_cast"]["casts"] == ["E5M2", "E5M2"]
    total = {key: gemm[key]["parts"][-1]["relative_error"] for key in ("recorded", "other_cast")}
    # One bit less of mantissa doubles the error.
    assert 1.6 < total["other_cast"] / total["recorded"] < 2.4
    assert "no hardware multiplies E5M2 by E5M2" in gemm["other_cast"]["notes"]
    a, b, *_ = read_with_h5py(path)
    again = [cast_to_mxfp8(each, FORMATS["E5M2"], 57344.0) for each in (a, b)]
    with h5py.File(path) as file:
        bias = decoded(file["bias"])
    exact, other = a @ b.T + bias, again[0] @ again[1].T + bias
    other = other.astype(ml_dtypes.bfloat16).astype(np.float64)
    expected = np.linalg.norm(other - exact) / np.linalg.norm(exact)
    assert total["other_cast"] == pytest.approx(expected, rel=1e-6)


def cast_to_mxfp8(values, dtype, largest):
    """In blocks of 32 along a row, with the smallest power of two above amax / largest."""
    blocks = values.reshape(-1, 32)
    amax = np.abs(blocks).max(axis=1, keepdims=True)
    scales = 2.0 ** np.ceil(np.log2(amax / largest))
    return ((blocks / scales).astype(dtype).astype(np.float64) * scales).reshape(values.shape)


ONE_LINE = r"telens: [^\n]*({})[^\n]*\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{dump}", "--format", "E3M4"], "expected table or json, or E4M3, E5M2 or HYBRID"),
        (["{dump}", "--rank", "-1"], "--rank"),
        (["{dump}", "--recipe", "fp9"], "--recipe fp9: expected"),
        ([], "DUMP is required"),
        (["--fromat", "json", "{dump}"], "--format"),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(dumped, replay, arguments, message):
    dump = gemm_file(dumped("current"), "fprop")
    answer = replay(*[each.format(dump=dump) for each in arguments])
    assert answer.returncode == 2, answer.stdout
    assert re.fullmatch(ONE_LINE.format(re.escape(message)), answer.stderr), answer.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "nowhere: no such file or folder"),
        (["{dump}", "--gemm=fprob"], "unknown GEMM 'fprob'"),
        (["{dump}", "--gemm=wgrad"], "none of its 1 GEMMs fits these filters; one is fprop"),
        (["{dump}", "--layer=fc2"], "none of its 1 GEMMs fits these filters"),
        (["{dump}", "--layer=("], "--layer '('"),
        (["{dump}", "--iterations=3:1"], "its end is before its beginning"),
        (["{dump}", "--iterations=x"], "expected a:b, a:, :b or one iteration"),
        (["{dump}", "--recipe=nvfp4", "--cast-format=E5M2"], "nvfp4 supports only E2M1"),
        (["{dump}", "--emit=repro.txt"], "expected the name of a Python script"),
        (["{dump}", "--emit=no/where.py"], "cannot be written: no such folder: no"),
        (["{dump}", "--emit=there.py"], "there.pt is there already; choose another name"),
        (["{empty}"], "it holds no dump of DumpTensors"),
        (["{text}"], "it cannot be read as a dump"),
    ],
)
def test_replay_failure_prints_one_line(dumped, tmp_path, monkeypatch, capsys, arguments, message):
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.h5").write_text("no HDF5")
    (tmp_path / "there.pt").write_text("of an earlier one")
    monkeypatch.chdir(tmp_path)
    paths = {
        "dump": gemm_file(dumped("current"), "fprop"),
        "empty": tmp_path / "empty",
        "text": tmp_path / "text.h5",
    }
    assert command.main([each.format(**paths) for each in arguments]) == 2
    err = capsys.readouterr().err
    assert re.fullmatch(ONE_LINE.format(re.escape(message)), err), err


def test_a_python_without_the_package_is_named(dumped, replay):
    answer = replay(gemm_file(dumped("current"), "fprop"), TELENS_PYTHON="no-such-python")
    assert answer.returncode == 2
    assert "cannot start no-such-python" in answer.stderr
    answer = replay(gemm_file(dumped("current"), "fprop"), PYTHONPATH="")
    assert answer.returncode == 2
    assert "No module named 'telens'" in answer.stderr
    assert "TELENS_PYTHON" in answer.stderr


def test_ctrl_c_ends_it_without_lines_of_python():
    program = (
        "import os, signal, sys\n"
        "from telens.replay import command, found\n"
        "found.find = lambda *_, **__: os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.exit(command.main(['dumps']))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_a_folder_of_logs_is_replayed_though_its_run_was_killed(dumped, replay, tmp_path):
    logs = tmp_path / "logs"
    shutil.copytree(dumped("current").parents[2], logs)
    [run_file] = logs.glob("telens/*/rank00000.h5")
    run_file.write_bytes(run_file.read_bytes()[:1000])
    answer = replay(logs, "--gemm", "fprop")
    assert (answer.returncode, answer.stderr) == (0, "")
    assert answer.stdout.startswith("layers.0.fc1 fprop, iteration 1, rank 0: ")


def test_a_gemm_that_is_refused_costs_only_itself(dumped, replay, tmp_path):
    folder = tmp_path / "dumps"
    shutil.copytree(dumped("current"), folder)
    (folder / "torn.h5").write_bytes(gemm_file(folder, "fprop").read_bytes()[:3000])
    with h5py.File(gemm_file(folder, "dgrad"), "r+") as file:
        drop_checksums(file)
        del file["a/high_precision"]
    answer = replay(folder, "--format", "json")
    assert answer.returncode == 2
    assert [each["gemm"] for each in json.loads(answer.stdout)["gemms"]] == ["fprop", "wgrad"]
    torn, lacking = answer.stderr.splitlines()
    assert re.fullmatch(r"telens: \S*/torn\.h5: it cannot be read .*; it is left out", torn)
    assert "dgrad_gemm.h5: it lacks the gradient in high precision" in lacking
    gemm_file(folder, "fprop").unlink()
    gemm_file(folder, "dgrad").unlink()
    gemm_file(folder, "wgrad").unlink()
    answer = replay(folder)
    assert answer.returncode == 2
    assert re.fullmatch(r"telens: \S*/torn\.h5: it cannot be read[^\n]*\n", answer.stderr)


def test_a_gemm_that_memory_does_not_hold_is_named(dumped, monkeypatch, capsys):
    path = gemm_file(dumped("current"), "fprop")
    monkeypatch.setattr(gemm_error, "text", lambda gemm: torch.empty(1 << 60))
    assert command.main([str(path)]) == 2
    refusal = f"telens: {path}: not enough memory for the fprop in it\n"
    assert capsys.readouterr() == ("", refusal)


def test_low_precision_weight_rejects_another_cast(tmp_path):
    with te.fp8_model_init(enabled=True, recipe=RECIPES["current"]):
        layer = te.Linear(32, 32, params_dtype=torch.bfloat16, name="fc")
    keys = {"enabled": True, "tensors": ALL, "operands": True}
    with debug.session(section({"DumpTensors": keys}), log_dir=tmp_path):
        x = torch.randn(32, 32, dtype=torch.bfloat16, requires_grad=True)
        train(layer, x, fp8=True, recipe=RECIPES["current"])
    dump = dump_in(tmp_path / "tensor_dumps/rank_0/iter_000000/fc_fprop_gemm.h5")
    product = casts.recorded(dump)
    assert "its stored values count as exact" in product.notes[0]
    assert not parts_of(product)["quantizing weight"].any()
    with pytest.raises(telens.UsageError, match="no other cast of the weight, which is stored in"):
        casts.under(dump, "mxfp8", None)


def test_a_folder_of_micro_batches_of_tensors_is_refused(tmp_path):
    layer = te.Linear(64, 32, params_dtype=torch.bfloat16, name="fc")
    x = torch.randn(32, 64, dtype=torch.bfloat16)
    keys = {"enabled": True, "tensors": ALL, "operands": True, "high_precision_tensor": True,
            "quantized_tensor": True}  # fmt: skip
    with debug.session(section({"DumpTensors": keys}), log_dir=tmp_path):
        for _ in range(2):
            layer(x).float().sum().backward()
        debug.step()
    both = [each for each in found.find(tmp_path) if each.gemm == "fprop"]
    assert [each.files["gemm"].name for each in both] == ["fc_fprop_gemm.h5", "fc_fprop_gemm.1.h5"]
    titles = [casts.recorded(dumps.read(each)).title.partition(": ")[0] for each in both]
    place = "fc fprop, iteration 0, rank 0"
    assert titles == [place, f"{place}, fc_fprop_gemm.1.h5"]
    for path in tmp_path.rglob("*_gemm*.h5"):
        path.unlink()
    with pytest.raises(telens.UsageError, match=r"several micro-batches.*operands: True"):
        found.find(tmp_path)


def test_an_empty_entry_of_pythonpath_imports_nothing_from_the_folder(dumped, replay, tmp_path):
    for name in ("sitecustomize.py", "telens.py", "h5py.py"):
        (tmp_path / name).write_text("open('executed', 'w')\n")
    path = os.environ["PYTHONPATH"]
    for given in (f":{path}", f"{path}:", f"{path}::{path}"):
        answer = replay(dumped("delayed"), "--gemm", "dgrad", PYTHONPATH=given)
        assert answer.returncode == 0, answer.stderr
        assert not (tmp_path / "executed").exists()
