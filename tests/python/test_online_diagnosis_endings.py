"""Diagnosis of a training that is ended while it runs, or whose disk is full."""

import pathlib
import resource
import signal
import subprocess
import sys
import textwrap

import telens

LOOKING = """
    import sys
    sys.path.insert(0, sys.argv[2])
    import time
    import telens.debug as debug
    from test_online_diagnosis import NAN_AT, Training, config_of
    debug.initialize(config_of(), log_dir=sys.argv[1])

    @debug.on_finding
    def chat(finding):
        print("looking", flush=True)
        time.sleep(60)

    training = Training().run(NAN_AT + 3, nan_at=NAN_AT)
    while True:
        training.run(1)
"""


def start(program: str, folder: pathlib.Path, **options) -> subprocess.Popen:
    here = str(pathlib.Path(__file__).parent)
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program), folder, here],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def test_sigterm_ends_a_training_at_once_while_its_run_is_looked_at(tmp_path):
    process = start(LOOKING, tmp_path)
    try:
        assert process.stdout.readline() == "looking\n"
        process.terminate()
        process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == -signal.SIGTERM
    assert len(telens.open_run(tmp_path).records()) > 0


WITHOUT_SPACE = """
    import sys
    sys.path.insert(0, sys.argv[2])
    import telens.debug as debug
    from test_online_diagnosis import Training, config_of
    debug.initialize(config_of(actions={"others": "veto"}), log_dir=sys.argv[1])
    training = Training()
    for _ in range(15):
        training.run(10)
        debug.checkpoint_allowed(5)
    debug.end_debug()
    print(training.step, [each.double().sum().item().hex() for each in training.weights()])
"""


def test_a_disk_that_is_full_ends_no_training_that_is_looked_at(tmp_path):
    limit = (300 << 10, resource.getrlimit(resource.RLIMIT_FSIZE)[1])
    small = start(
        WITHOUT_SPACE,
        tmp_path / "small",
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit),
    )
    out, err = small.communicate(timeout=240)
    assert small.returncode == 0, err
    assert out.startswith("150 ")
    assert "limit on file sizes" in err
    assert "Fatal" not in err
    large = start(WITHOUT_SPACE, tmp_path / "large")
    assert large.communicate(timeout=240)[0] == out
