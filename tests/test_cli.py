"""The command line, as a user types it."""

import json
import subprocess
import sys

import pytest

from aioli.cli import COMMANDS, main


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
