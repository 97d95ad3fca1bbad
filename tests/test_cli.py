"""The command line, as a user types it."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import nullcontext

import pytest

from aioli.cli import COMMANDS, Terminated, _terminable, main
from aioli.methods import names


def run(capsys, *arguments):
    code = main(arguments)
    return code, *capsys.readouterr()


def test_methods_prints_table_1(capsys):
    code, out, _ = run(capsys, "methods")
    assert code == 0
    lines = {line.split()[0]: line for line in out.splitlines() if line.strip()}
    assert lines["skill-it"].rstrip().endswith(" m")
    assert lines["dml"].rstrip().endswith("10")
    assert "log-linear static" in lines["dml"]
    assert lines["odm"].split()[1] == "*"
    assert lines["regmix"].split()[1] == "*"
    assert "not an LMO instance" in out


def test_methods_as_json(capsys):
    _, out, _ = run(capsys, "methods", "--json")
    rows = {row["method"]: row for row in json.loads(out)}
    assert rows["doremi"]["extra_runs"] == "2"
    assert rows["odm"]["lmo"] is False
    assert rows["aioli"]["lmo"] is True


def test_simulate_prints_a_table_and_json(capsys):
    common = ("simulate", "--groups", "3", "--targets", "1", "--steps", "300", "--seeds", "3", "--workers", "1")
    code, out, _ = run(capsys, *common, "--methods", "stratified,dml", "aioli:eta=0.5,k=2,rounds=3")
    assert code == 0
    assert "aioli:eta=0.5,k=2,rounds=3" in out
    assert "room closed" in out
    _, out, _ = run(capsys, *common, "--methods", "stratified", "aioli", "--weights", "2", "--json")
    found = json.loads(out)
    assert [s["method"] for s in found["scores"]] == ["stratified", "aioli"]
    assert len(found["scores"][1]["interval"]) == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--methods", "aoili"), "did you mean 'aioli'"),
        (("--methods", "aioli:etta=1"), "did you mean 'eta'"),
        (("--methods", "aioli:eta"), "'eta' is not KEY=VALUE"),
        (("--methods", "aioli:eta=abc"), "eta='abc' must be a number"),
        (("--methods", "aioli:eta=nan"), "eta='nan' must be a number"),
        (("--methods", "aioli+dml:base={runs=5}"), "must be a dict of settings"),
        (("--targets", "-1"), "targets=-1"),
        (("--workers", "0"), "workers=0"),
        (("--first-seed", "-5"), "none negative"),
        (("--load", "nowhere.py"), "there is no such file"),
        (("--world", "round"), "no world 'round'"),
        (("--groups", "0"), "at least one group"),
        (("--seeds", "0"), "--seeds 0"),
        (("--budget", "little"), "budget='little'"),
        (("--weights", "a,b"), "--weights 'a,b'"),
        (("--steps", "0"), "steps=0"),
    ],
)
def test_mistakes_are_one_line_and_exit_2(capsys, arguments, words):
    code, out, err = run(capsys, "simulate", "--seeds", "1", "--workers", "1", *arguments)
    assert code == 2
    assert out == ""
    assert words in err
    assert len(err.strip().splitlines()) == 1
    assert "Traceback" not in err


def test_help_has_examples(capsys):
    for module in COMMANDS:
        name = module.__name__.rsplit(".", 1)[1]
        with pytest.raises(SystemExit) as end:
            main([name, "--help"])
        assert end.value.code == 0
        assert "examples:" in capsys.readouterr().out


def test_the_installed_command_runs():
    done = subprocess.run([sys.executable, "-m", "aioli", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("aioli ")


def test_settings_may_be_lists_dicts_and_words(capsys):
    common = ("simulate", "--groups", "3", "--steps", "300", "--seeds", "1", "--workers", "1", "--methods")
    texts = (
        "aioli:caps=[0.5,1,1],eta=0.5",
        'aioli:caps={"group0":0.4}',
        "aioli:normalise=none",
        'aioli+dml:base={"runs":5}',
    )
    code, out, _ = run(capsys, *common, *texts)
    assert code == 0
    assert all(text in out for text in texts)


def test_methods_that_cannot_run_are_an_error_only_if_none_can(capsys):
    common = ("simulate", "--groups", "12", "--steps", "800", "--seeds", "1", "--workers", "1", "--methods")
    code, out, err = run(capsys, *common, "dml")
    assert code == 2
    assert out == ""
    assert err.startswith("aioli simulate: dml cannot run here: dml needs at least")
    code, out, _ = run(capsys, *common, "dml", "stratified")
    assert code == 0
    assert "skipped dml" in out


def test_one_method_is_explained(capsys):
    _, out, _ = run(capsys, "methods", "aioli-ood")
    assert "0.8" in out
    assert "step size" in out
    assert run(capsys, "methods", "aioli+dml")[0] == 0
    for name in names():
        _, out, _ = run(capsys, "methods", name, "--json")
        told = json.loads(out)
        assert told["about"]
        assert all(setting["meaning"] for setting in told["settings"])


def test_own_methods_can_be_loaded(capsys, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from aioli.methods import method\n"
        "@method('–', '–', 'half')\n"
        "def halved(problem, *, share=0.5):\n"
        '    """Half of the first.\n\n    share: of the first group"""\n'
        "    rest = (1 - share) / (problem.m - 1)\n"
        "    return problem.final_static([share] + [rest] * (problem.m - 1))\n"
    )
    common = ("simulate", "--groups", "3", "--steps", "100", "--seeds", "2", "--load", str(file), "--methods")
    code, out, _ = run(capsys, *common, "stratified", "halved:share=0.7")
    assert code == 0
    assert "halved:share=0.7" in out


def test_sigterm_leaves_no_workers_behind():
    command = [sys.executable, "-m", "aioli", "simulate", "--seeds", "40", "--steps", "20000", "--methods", "doremi"]
    nothing = subprocess.DEVNULL
    with subprocess.Popen(command, stdout=nothing, stderr=nothing, start_new_session=True) as process:
        time.sleep(3)
        process.send_signal(signal.SIGTERM)
        assert process.wait(300) == 143
    time.sleep(0.5)
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


def test_a_terminal_without_utf8_gets_an_answer():
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-m", "aioli", "methods"], capture_output=True, env=environment, check=True)
    assert b"skill-it" in done.stdout


def test_a_termination_is_not_lost_in_a_finalizer(capfd):
    """Python only reports what is raised there; the command ends all the same, and without a traceback."""

    class Gone:
        def __del__(self):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.001)  # where the signal is handled

    before = signal.getsignal(signal.SIGTERM)

    def command():
        with _terminable():
            Gone()
            time.sleep(10)

    with pytest.raises(Terminated):
        command()
    assert signal.getsignal(signal.SIGTERM) is before
    assert "Traceback" not in capfd.readouterr().err


def test_a_command_leaves_signals_as_they_were():
    before = signal.getsignal(signal.SIGTERM), sys.unraisablehook
    assert main(["methods", "--json"]) == 0
    assert main(["methods", "nothing"]) == 2
    assert (signal.getsignal(signal.SIGTERM), sys.unraisablehook) == before


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [(["trian"], "train"), (["compare", "r.yaml", "--sedes", "3"], "--seeds"), (["methods", "dlm"], "dml")],
)
def test_what_is_nearly_right_is_told(arguments, meant, capsys):
    with pytest.raises(SystemExit) if arguments[0] != "methods" else nullcontext():
        assert main(arguments) == 2
    assert f"did you mean {meant!r}?" in capsys.readouterr().err


def test_an_option_before_its_command_is_told_where_it_goes(capsys):
    with pytest.raises(SystemExit):
        main(["--json", "methods"])
    assert "--json goes after methods" in capsys.readouterr().err
