"""The local corpus is real text in groups of their own, the same bytes every time, and its cache can be trusted."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from aioli.data import local
from aioli.data.local import local_corpus

SMALL = 0.2
BUILD = "import sys; from aioli.data.local import local_corpus; local_corpus(cache=sys.argv[1])"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return local_corpus(cache=tmp_path_factory.mktemp("corpus"))


def documents(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


def contents(directory):
    return {file.name: file.read_bytes() for file in directory.glob("local-*/*")}


def test_at_least_three_groups_have_a_megabyte_and_none_much_more_than_asked_for(corpus):
    assert {"python", "prose"} < set(corpus)
    assert len(corpus) >= 3
    for file in corpus.values():
        size = sum(len(each["text"].encode()) for each in documents(file))
        assert 1e6 <= size <= 4.2e6


def test_documents_are_named_by_group_and_by_a_source_that_tells_nothing_of_the_machine(corpus):
    for group, file in corpus.items():
        for each in documents(file):
            assert set(each) == {"text", "meta"}
            assert set(each["meta"]) == {"redpajama_set_name", "source"}
            assert each["meta"]["redpajama_set_name"] == group
            root, _, name = each["meta"]["source"].partition("/")
            assert root in ("stdlib", "include", "numpy", "scipy")
            assert name
            assert ".." not in each["meta"]["source"]
            assert len(each["text"]) >= 200
            assert len(each["text"].encode()) <= 200_000


def test_no_text_is_there_twice(corpus):
    texts = [each["text"] for file in corpus.values() for each in documents(file)]
    assert len(set(texts)) == len(texts)


def test_code_and_its_documentation_are_in_different_groups(corpus):
    code = "\n".join(each["text"] for each in documents(corpus["python"]))
    passages = [each["text"].splitlines()[0] for each in documents(corpus["prose"])]
    assert sum(len(line) > 40 and line in code for line in passages) < 0.01 * len(passages)


def test_a_sample_ranges_over_all_roots(tmp_path):
    for group, file in local_corpus(SMALL, tmp_path).items():
        roots = {each["meta"]["source"].split("/")[0] for each in documents(file)}
        assert len(roots) >= (2 if group in ("python", "prose") else 1)


@pytest.mark.slow
def test_two_processes_at_once_build_what_was_built_before(corpus, tmp_path):
    running = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", BUILD, str(tmp_path)], env=os.environ | {"PYTHONHASHSEED": seed}
        )
        for seed in ("1", "2")
    ]
    assert [process.wait(timeout=300) for process in running] == [0, 0]
    assert contents(tmp_path) == contents(corpus["python"].parent.parent)
    assert len(list(tmp_path.iterdir())) == 1


def test_the_cache_is_used_again_and_is_where_the_environment_says(tmp_path, monkeypatch):
    monkeypatch.setenv("AIOLI_CACHE", str(tmp_path))
    first = local_corpus(SMALL)
    assert all(file.is_relative_to(tmp_path) for file in first.values())
    times = {file: file.stat().st_mtime_ns for file in first.values()}
    monkeypatch.setattr(local, "_corpus", None)  # building would fail
    assert local_corpus(SMALL) == first
    assert {file: file.stat().st_mtime_ns for file in first.values()} == times
    monkeypatch.delenv("AIOLI_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "aioli").symlink_to(tmp_path)
    assert list(local_corpus(SMALL)) == list(first)


def cut_short(file):
    file.write_bytes(file.read_bytes()[:-1])


def change_a_byte(file):
    file.write_bytes(b" " + file.read_bytes()[1:])


def empty_the_index(file):
    (file.parent / "index.json").write_text("{}")


@pytest.mark.parametrize("damage", [Path.unlink, cut_short, change_a_byte, empty_the_index])
def test_a_damaged_cache_is_built_again(damage, tmp_path):
    first = local_corpus(SMALL, tmp_path)
    before = contents(tmp_path)
    damage(first["python"])
    assert contents(tmp_path) != before
    assert local_corpus(SMALL, tmp_path) == first
    assert contents(tmp_path) == before
    assert len(list(tmp_path.iterdir())) == 1


def test_a_cache_that_cannot_be_written_is_named_with_the_remedy(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"file/cache .*set AIOLI_CACHE"):
        local_corpus(SMALL, tmp_path / "file" / "cache")


@pytest.mark.parametrize(("error", "seen"), [(KeyboardInterrupt(), KeyboardInterrupt), (OSError("full"), ValueError)])
def test_nothing_is_left_behind_by_a_build_that_fails(error, seen, tmp_path, monkeypatch):
    def fail(*arguments):
        raise error

    monkeypatch.setattr(local.os, "fsync", fail)
    with pytest.raises(seen):
        local_corpus(SMALL, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("megabytes", [0, -1, float("nan"), float("inf")])
def test_an_impossible_size_is_refused(megabytes, tmp_path):
    with pytest.raises(ValueError, match="positive number"):
        local_corpus(megabytes, tmp_path)


@pytest.fixture
def installation(tmp_path, monkeypatch):
    """A small installation of the test's own, without packages."""
    monkeypatch.setattr(local, "PACKAGES", ())
    monkeypatch.setattr(local.sysconfig, "get_path", lambda name: str(tmp_path / "installed" / name))
    root = tmp_path / "installed" / "stdlib"
    (root / "test").mkdir(parents=True)
    for name in ("a.py", "b.h", "c.pyi", "test/d.py"):
        (root / name).write_text(f"name = {name!r}\n" * 100)
    return root


def sources(files):
    return {each["meta"]["source"] for file in files.values() for each in documents(file)}


def test_what_cannot_be_read_or_is_there_already_is_left_out(installation, tmp_path):
    (installation / "copy.py").write_bytes((installation / "a.py").read_bytes())
    (installation / "test" / "copy.py").write_bytes((installation / "b.h").read_bytes())
    (installation / "latin.py").write_bytes(b"# \xe9t\xe9\n" * 100)
    (installation / "data.h").write_bytes(b"\0text" * 200)
    (installation / "wrong.py").write_text("print 'two'\n" * 100)
    (installation / "short.py").write_text("x = 1\n")
    (installation / "loop").symlink_to(installation)
    (installation / "self.py").symlink_to(installation / "self.py")
    (installation / "gone.py").symlink_to(installation / "nothing.py")
    os.mkfifo(installation / "pipe.py")
    files = local_corpus(0.001, tmp_path / "cache")
    assert sources(files) == {"stdlib/a.py", "stdlib/b.h", "stdlib/c.pyi", "stdlib/test/d.py"}


def test_another_file_makes_another_corpus(installation, tmp_path):
    first = local_corpus(0.001, tmp_path / "cache")
    (installation / "e.py").write_text("more = 1\n" * 200)
    second = local_corpus(0.001, tmp_path / "cache")
    assert first["python"].parent != second["python"].parent
    assert first["python"].is_file()


def test_an_installation_with_too_little_text_is_refused_with_the_remedy(installation, tmp_path):
    with pytest.raises(ValueError, match=r"python 0\.00 MB.*pip install"):
        local_corpus(1.0, tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_long_document_is_cut_between_characters(installation, tmp_path):
    (installation / "b.h").write_text("/" + "é" * 200_000)
    text = documents(local_corpus(0.001, tmp_path / "cache")["headers"])[0]["text"]
    assert text == "/" + "é" * 99_999


def test_docstrings_are_taken_out_of_code_that_stays_valid():
    source = '''"""Module."""
import os
class A:
    """Class,

        indented."""
    def f(self): "one line"
    async def g(self):
        """Alone."""  # comment
    if os:
        try:
            pass
        except OSError:
            def h():
                r"""In a handler."""; return 1
            def k():
                "é"
                text = """not a docstring"""
                return text
'''
    code, docstrings = local._split(source)
    assert {text for _, text in docstrings} == {
        "Module.",
        "Class,\n\nindented.",
        "one line",
        "Alone.",
        "In a handler.",
        "é",
    }
    assert dict(docstrings).keys() == {f":{number}" for number in (1, 4, 7, 9, 15, 17)}
    for gone in ("Module", "Class", "Alone", "comment", "é"):
        assert gone not in code
    assert '"""not a docstring"""' in code
    compile(code, "code", "exec")


def test_what_is_not_python_gives_nothing():
    assert local._split("def (:\n") == ("", [])
