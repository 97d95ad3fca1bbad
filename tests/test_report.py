"""The report and its live form, looked at in a real browser."""

import base64
import hashlib
import http.client
import json
import os
import re
import shutil
import subprocess
import threading

import pytest
from tiny import Here, tiny_recipe, tiny_store

from aioli.cli import main
from aioli.methods import create
from aioli.report.runs import _largest
from aioli.report.seen import find, look, look_all, sort
from aioli.report.server import Folder, serve
from aioli.runs.conducting import Asked, Conductor
from aioli.runs.job import Setup
from aioli.runs.store import MARK, RunStore

HOSTILE = '</script><img src=x onerror="boom()">&"'
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A store with a comparison over two seeds: methods, a sweep of three groups, one with a hostile name."""
    place = tmp_path_factory.mktemp("report")
    data = tiny_store(place / "data", ("code", "books", HOSTILE))
    setup = Setup.of(tiny_recipe(data, val_final=8))
    store = RunStore(place / "runs")
    methods = {"stratified": create("stratified"), "aioli": create("aioli", rounds=3, k=1)}
    asked = [Asked(name, method, setup.problem(seed)) for seed in (0, 1) for name, method in methods.items()]
    asked.append(Asked("grid-search", create("grid-search"), setup.problem(0)))
    carried = Conductor(store, Here(), setup, setup).conduct(asked)
    assert not any(each.error for each in carried)
    return store, {(each.asked.label, each.asked.problem.seed): each.final.key for each in carried}


def browse(page, script, folder, *options):
    """Open a page, run a script in it, and return what the script says and what the browser complains about."""
    text = page.read_text(encoding="utf-8")
    code = f"addEventListener('load', () => {{ document.title = JSON.stringify((() => {{ {script} }})()); }});"
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    text = text.replace("script-src '", f"script-src 'sha256-{digest}' '", 1)
    copy = folder / "browsed.html"
    copy.write_text(text.replace("</body>", f"<script>{code}</script></body>", 1), encoding="utf-8")
    if BROWSER is None and not os.environ.get("CI"):
        pytest.skip("reports are tested in Chromium; install it from the system's packages")
    assert BROWSER is not None, "Chromium could not be installed"
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    command += ["--enable-logging=stderr", f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=3000"]
    command += [*options, "--dump-dom", f"file://{copy}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    title = re.search(r"<title>(.*?)</title>", done.stdout, re.S)
    assert title, done.stderr
    plain = title[1].replace("&quot;", '"').replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    return json.loads(plain), [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def test_a_run_in_a_browser(runs, tmp_path, capsys):
    """It loads without complaint, the slider moves through the rounds, a click on a name hides its series."""
    store, keys = runs
    assert main(["report", keys["aioli", 0][:8], "--store", str(store.path), "-o", str(tmp_path / "one.html")]) == 0
    assert "1 run" in capsys.readouterr().out
    script = """
      const heat = document.querySelector('figure[data-heat]'), slider = heat.querySelector('input');
      const cells = () => [...heat.querySelectorAll('text[data-cell]')].map((cell) => cell.textContent);
      const last = cells();
      slider.value = '0'; slider.dispatchEvent(new Event('input'));
      const first = cells(), name = heat.querySelector('output').textContent;
      slider.value = slider.max; slider.dispatchEvent(new Event('input'));
      const chart = document.querySelector('polygon[data-series]').closest('svg');
      const legend = chart.querySelector('[data-legend="1"]'), shown = () =>
        getComputedStyle(chart.querySelector('[data-series="1"]')).display;
      const before = shown(); legend.dispatchEvent(new MouseEvent('click', { bubbles: true }));
      const hidden = shown();
      legend.dispatchEvent(new KeyboardEvent('keydown', { key: 'Enter', bubbles: true }));
      return { max: slider.max, first, last, again: cells(), name, before, hidden, after: shown(),
        images: document.images.length, role: legend.getAttribute('role') };
    """
    found, complaints = browse(tmp_path / "one.html", script, tmp_path)
    assert complaints == []
    assert found["max"] == "2"
    assert found["first"] != found["last"]
    assert found["again"] == found["last"]  # what the script writes is what Python wrote
    assert found["name"].endswith("(1 of 3)")
    assert (found["before"], found["hidden"], found["after"]) == ("inline", "none", "inline")
    assert found["images"] == 0  # the hostile name is only a name
    assert found["role"] == "button"


def test_a_store_in_a_browser(runs, tmp_path):
    """A comparison and a sweep: intervals, the law on a triangle, predictions, costs; on a phone nothing sticks out."""
    store, _ = runs
    assert main(["report", str(store.path), "-o", str(tmp_path / "all.html")]) == 0
    text = (tmp_path / "all.html").read_text(encoding="utf-8")
    assert HOSTILE not in text
    for heading in ("Side by side", "The mixing law", "How the loss fell", "What it cost", "Run by run"):
        assert f"<h2>{heading}</h2>" in text
    assert "mean loss over mixtures" in text
    assert "http://" not in text.replace("http://www.w3.org", "")
    script = "return [document.documentElement.scrollWidth, innerWidth, document.querySelectorAll('svg').length];"
    (wide, window, charts), complaints = browse(tmp_path / "all.html", script, tmp_path, "--window-size=420,900")
    assert complaints == []
    assert wide <= window
    assert charts >= 6


def test_a_folder_stands_for_the_stores_in_it(runs, tmp_path):
    """Each run once, and what cannot be opened does not hide the rest."""
    store, keys = runs
    alone = len(find([str(store.path)]))
    for name in ("one", "two"):
        shutil.copytree(store.path, tmp_path / "all" / name)
    shutil.copytree(store.run_folder(keys["aioli", 0]), tmp_path / "all" / "plain")
    (tmp_path / "all" / "newer").mkdir()
    (tmp_path / "all" / "newer" / MARK).write_text('{"schema": 99}')
    seen, troubles = look_all(find([str(tmp_path / "all")]))
    assert len(seen) == alone + 1
    assert [each.partition(":")[0] for each in troubles] == ["newer"]
    assert len(Folder(tmp_path / "all").seen()[0]) == alone + 1
    with pytest.raises(ValueError, match="rfrok is no directory, and as a key: no run"):
        find(["rfrok"], str(store.path))


def test_two_runs_by_directory(runs, tmp_path, capsys):
    store, keys = runs
    paths = [str(store.run_folder(keys[name, 0])) for name in ("stratified", "aioli")]
    assert main(["report", *paths, "-o", str(tmp_path / "two.html")]) == 0
    text = (tmp_path / "two.html").read_text(encoding="utf-8")
    assert "Side by side" in text
    assert "The mixing law" not in text  # two runs are no sweep


def test_many_groups_have_room():
    """The largest are named, the others go together; a matrix is thinned out or left out."""
    groups = [f"g{k}" for k in range(40)]
    shares = [[0.01] * 39 + [0.61], [0.02] * 39 + [0.22]]
    names, steps, told = _largest(groups, [1, 2], shares)
    assert len(names) == 16
    assert names[-2:] == ["g39", "25 others"]
    assert steps == [1, 2]
    for row in told:
        assert sum(row) == pytest.approx(1.0)


def test_labels_tell_runs_apart(runs):
    store, _ = runs
    seen = [look(name, path) for name, path in find([str(store.path)])]
    [problem] = sort(seen)
    labels = problem.labels()
    assert sorted(run.seed for run in labels["aioli"]) == [0, 1]
    assert sorted(run.seed for run in labels["stratified"]) == [0, 1]
    assert sum(label.startswith("static ") for label in labels) >= 9


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["nowhere"], "is not there"),
        (["."], "holds no runs"),
        (["x", "-o", "x.pdf"], "must end with .html"),
        (["x", "-o", "a/b.html"], "there is no directory"),
    ],
)
def test_mistakes_are_one_line(words, answer, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["report", *words]) == 2
    error = capsys.readouterr().err
    assert answer in error
    assert len(error.splitlines()) == 1


@pytest.fixture
def site(runs, tmp_path):
    """The live form of a copy of the store."""
    shutil.copytree(runs[0].path, tmp_path / "runs")
    server = serve(Folder(tmp_path / "runs"), 0)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield tmp_path, server
    server.shutdown()
    server.server_close()
    thread.join()


def ask(server, path, method="GET", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    return answer.status, answer.read().decode(), dict(answer.getheaders())


def test_the_live_form_is_for_this_machine_and_changes_nothing(site, runs):
    _, server = site
    assert server.server_address[0] == "127.0.0.1"
    status, text, headers = ask(server, "/")
    assert status == 200
    assert "Side by side" in text
    assert headers["X-Frame-Options"] == "DENY"
    key = runs[1]["aioli", 0][:10]
    assert f"/run/{key}" in text
    status, text, _ = ask(server, f"/run/{key}")
    assert status == 200
    assert "data-heat" in text
    assert ask(server, "/", "HEAD")[1] == ""
    for method in ("POST", "PUT", "DELETE"):
        assert ask(server, "/", method)[0] == 501
    assert ask(server, "/", Host="evil.example")[0] == 403
    assert ask(server, "/", Host=f"localhost:{server.server_port}")[0] == 200


@pytest.mark.parametrize(
    "path",
    ["/run/../../secret", "/run/..%2f..%2fsecret", "/run//etc", "/run/%2e%2e", "/secret/journal.jsonl", "/run/", "/x"],
)
def test_nothing_outside_the_folder_can_be_read(site, path):
    place, server = site
    shutil.copytree(next((place / "runs").glob("??/*/run")), place / "secret")
    status, text, _ = ask(server, path)
    assert status == 404
    assert "kind" not in text


def test_links_that_lead_out_are_not_followed(site):
    place, server = site
    inside = next((place / "runs").glob("??/*"))
    shutil.copytree(inside / "run", place / "secret")
    shutil.rmtree(inside / "run")
    os.symlink(place / "secret", inside / "run")
    status, text, _ = ask(server, "/")
    assert status == 200
    assert inside.name[:10] not in text


def test_links_inside_a_run_are_not_followed_either(site, capsys):
    place, server = site
    (place / "key").write_text("private: key")
    run = next((place / "runs").glob("??/*/run"))
    (run / "recipe.yaml").unlink()
    os.symlink(place / "key", run / "recipe.yaml")
    for path in ("/", f"/run/{run.parent.name[:10]}"):
        assert "private" not in ask(server, path)[1]
    assert main(["report", str(place / "runs"), "-o", str(place / "page.html")]) == 0
    assert "leads out of the run" in capsys.readouterr().err
    assert "private" not in (place / "page.html").read_text(encoding="utf-8")


def test_damaged_runs_are_named_and_the_others_shown(site, capsys):
    place, server = site
    first, second, *_ = (place / "runs").glob("??/*/run")
    (first / "journal.jsonl").write_text('{"kind": "run"}\n{"kind": "segment"}\n')
    (second / "journal.jsonl").write_text("nonsense\n")
    status, text, _ = ask(server, "/")
    assert status == 200
    assert text.count("is damaged") == 2
    assert "Side by side" in text
    assert main(["report", str(place / "runs"), "-o", str(place / "page.html")]) == 0
    assert capsys.readouterr().err.count("left out") == 2


def test_a_store_in_which_nothing_has_begun(tmp_path):
    RunStore(tmp_path / "runs")
    server = serve(Folder(tmp_path / "runs"), 0)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    status, text, _ = ask(server, "/")
    server.shutdown()
    server.server_close()
    thread.join()
    assert status == 200
    assert "No run has begun" in text


def test_runs_with_other_settings_are_not_mixed_up(runs, tmp_path):
    """The same method and seed with another learning rate is another setting, not the same run again."""
    store, keys = runs
    shutil.copytree(store.run_folder(keys["stratified", 0]), tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    recipe = (tmp_path / "b" / "recipe.yaml").read_text(encoding="utf-8").partition("# sha256")[0]
    assert "lr: 0.004" in recipe
    (tmp_path / "b" / "recipe.yaml").write_text(recipe.replace("lr: 0.004", "lr: 0.001"), encoding="utf-8")
    shutil.copytree(tmp_path / "a", tmp_path / "c")
    problems = sort(look(name, path) for name, path in find([str(tmp_path)]))
    assert sorted(len(problem.runs) for problem in problems) == [1, 2]
    twins = max(problems, key=lambda problem: len(problem.runs))
    assert len(twins.labels()) == 2  # equal runs are told apart by name, and none hides the other


def test_the_live_form_sees_what_is_new(site):
    place, server = site
    before = ask(server, "/state")[1]
    assert ask(server, "/state")[1] == before
    gone = next((place / "runs").glob("??/*"))
    shutil.rmtree(gone)
    assert ask(server, "/state")[1] != before
    assert gone.name[:10] not in ask(server, "/")[1]


def interrupted(server, poll_interval):
    raise KeyboardInterrupt


def test_the_command(runs, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["ui", "nowhere"]) == 2
    assert main(["ui", str(runs[0].path), "--port", "99999"]) == 2
    assert "is not a port" in capsys.readouterr().err
    monkeypatch.setattr("http.server.ThreadingHTTPServer.serve_forever", interrupted)
    assert main(["ui", str(runs[0].path), "--port", "0"]) == 0
    assert "http://127.0.0.1:" in capsys.readouterr().err
