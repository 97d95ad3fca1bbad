"""Nothing that comes from data is executed, leaves its directory, or becomes part of a page; the UI speaks to this
machine alone, and only reads."""

import ast
import html.parser
import http.client
import json
import os
import shutil
import socket
import threading
from pathlib import Path

import pytest
from hostile import attempt
from tiny import tiny_store

import aioli
from aioli.report import server
from aioli.report.server import Folder, answer, serve

SOURCE = sorted(Path(aioli.__file__).parent.rglob("*.py"))
IMPORTS = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "telnetlib", "xmlrpc"}
CALLS = {"eval", "exec", "compile", "os.system", "os.popen", "yaml.load", "yaml.unsafe_load", "yaml.full_load"}
CALLS |= {"torch.load", "torch.save", "np.load", "numpy.load", "tempfile.mktemp", "subprocess.getoutput"}


def name_of(node):
    """`a.b.c` of a call, as it is written."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join(reversed([*parts, node.id])) if isinstance(node, ast.Name) else ""


@pytest.mark.parametrize("file", SOURCE, ids=lambda file: str(file.relative_to(Path(aioli.__file__).parent)))
def test_nothing_is_unpickled_evaluated_or_given_to_a_shell(file):
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            assert not {name.name.partition(".")[0] for name in node.names} & IMPORTS, file
        elif isinstance(node, ast.ImportFrom):
            assert (node.module or "").partition(".")[0] not in IMPORTS, file
        elif isinstance(node, ast.Call):
            assert name_of(node.func) not in CALLS, f"{file}:{node.lineno}"
            for keyword in node.keywords:
                value = keyword.value.value if isinstance(keyword.value, ast.Constant) else "a variable"
                if keyword.arg in ("shell", "trust_remote_code", "allow_pickle"):
                    assert value is False, f"{file}:{node.lineno} {keyword.arg}={value}"


def test_what_is_loaded_from_the_hub_says_that_its_code_is_not_run():
    """Every `from_pretrained` of transformers in the package has trust_remote_code=False in so many words."""
    found = 0
    for file in SOURCE:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                if node.func.attr != "from_pretrained" or name_of(node.func) == "Tokenizer.from_pretrained":
                    continue
                found += 1
                assert "trust_remote_code" in {keyword.arg for keyword in node.keywords}, f"{file}:{node.lineno}"
    assert found >= 4


@pytest.mark.parametrize("field", ["trust_remote_code", "auto_map", "attn_implementation", "use_safetensors", "token"])
def test_a_recipe_cannot_change_how_a_model_is_loaded(field, tmp_path):
    tiny_store(tmp_path / "store")
    words = ["train", f"data={tmp_path / 'store'}", "-o", tmp_path / "run", "train.threads=1"]
    code, _, err = attempt(*words, f"model={{name: {tmp_path}, config: {{{field}: true}}}}")
    assert code == 2, err
    assert f"model.config.{field} is about how a model is loaded" in err


def test_a_model_or_tokenizer_with_code_of_its_own_is_refused_and_its_code_not_run(tmp_path):
    """Both ask transformers to import a file that would leave a mark."""
    tiny_store(tmp_path / "store")
    place, mark = tmp_path / "custom", tmp_path / "mark"
    place.mkdir()
    kinds = {"AutoConfig": "C", "AutoModelForCausalLM": "M", "AutoTokenizer": ["T", None]}
    names = {kind: f"evil.{name}" if isinstance(name, str) else ["evil.T", None] for kind, name in kinds.items()}
    about = {"model_type": "evil", "auto_map": names, "tokenizer_class": "T"}
    for name in ("config.json", "tokenizer_config.json"):
        (place / name).write_text(json.dumps(about))
    (place / "evil.py").write_text(f"open({str(mark)!r}, 'w')\nC = M = T = None\n")
    code, _, err = attempt("train", f"data={tmp_path / 'store'}", "-o", tmp_path / "run", f"model={{name: {place}}}")
    assert (code, "code that comes with it, which aioli never runs" in err) == (2, True), err
    (tmp_path / "a.jsonl").write_text('{"text": "some words"}\n')
    source = {"files": str(tmp_path / "a.jsonl"), "group": "g"}
    recipe = {"sources": [source], "tokenizer": {"name": str(place)}, "context": 8}
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe))
    code, _, err = attempt("prepare", tmp_path / "recipe.yaml", "-o", tmp_path / "new")
    assert (code, "code that comes with it, which aioli never runs" in err) == (2, True), err
    assert not mark.exists()


# ---------------------------------------------------------------- names

SCRIPT = '</script><script>boom()</script><img src=x onerror="boom()">'
BAD = [SCRIPT, "../../up", "/etc/x", "con", "a\x1b[2Jb", '" onload="boom()', "x" * 3000]


class Tags(html.parser.HTMLParser):
    """The tags and attributes of a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.handlers = set(), []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.handlers += [name for name, _ in attrs if name.startswith("on")]


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """A run on groups with names that nobody means well with."""
    place = tmp_path_factory.mktemp("hostile")
    tiny_store(place / "store", BAD)
    words = ["train.steps=12", "train.batch=8", "train.threads=1", "method=stratified", "--quiet"]
    code, _, err = attempt("train", f"data={place / 'store'}", "-o", place / "run", *words)
    assert code == 0, err
    return place


def test_names_from_data_are_words_on_pages_and_on_terminals(hostile):
    assert attempt("report", hostile / "run", "-o", hostile / "page.html")[0] == 0
    pages = [
        (hostile / "page.html").read_text(),
        answer(Folder(hostile), "/")[2],
        answer(Folder(hostile), "/run/run")[2],
    ]
    for page in pages:
        found = Tags(page)
        assert "img" not in found.tags
        assert not found.handlers
        assert "<script>boom" not in page
        assert "Content-Security-Policy" in page
    for words in (["watch", hostile / "run", "--once"], ["prepare", "--check", hostile / "store"]):
        code, out, _ = attempt(*words)
        assert code == 0
        assert "\x1b" not in out


def test_names_from_data_become_no_files(hostile):
    files = {str(path.relative_to(hostile)) for path in hostile.rglob("*")}
    assert not [name for name in files if "up" in name or Path(name).name == "con" or "script" in name]
    assert {path.name for path in hostile.iterdir()} <= {"store", "run", "page.html"}


def test_names_from_tables_are_words_on_pages(tmp_path):
    rows = [[k / 10, 1 - k / 10, 3 - k / 10] for k in range(11)]
    head = ",".join('"' + name.replace('"', '""') + '"' for name in (f"p_{SCRIPT}", "p_b", f"loss_{SCRIPT}"))
    (tmp_path / "t.csv").write_text("\n".join([head, *(",".join(map(str, row)) for row in rows)]) + "\n")
    words = ["--proportions", "p_*", "--losses", "loss_*", "--law", "linear"]
    code, _, err = attempt(
        "fit", tmp_path / "t.csv", *words, "-o", tmp_path / "f.json", "--report", tmp_path / "f.html"
    )
    assert code == 0, err
    assert attempt("solve", tmp_path / "f.json", "--bootstrap", "20", "--report", tmp_path / "s.html")[0] == 0
    for name in ("f.html", "s.html"):
        found = Tags((tmp_path / name).read_text())
        assert "img" not in found.tags
        assert not found.handlers


# ---------------------------------------------------------------- the UI


@pytest.fixture
def live(hostile):
    running = serve(Folder(hostile), 0)
    thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    yield running
    running.shutdown()
    running.server_close()
    thread.join()


def ask(live, target="/", method="GET", **headers):
    link = http.client.HTTPConnection("127.0.0.1", live.server_port, timeout=20)
    link.putrequest(method, target, skip_host="Host" in headers or "host" in headers)
    for name, value in headers.items():
        link.putheader(name, value)
    link.endheaders()
    found = link.getresponse()
    return found.status, dict(found.getheaders()), found.read().decode()


def test_it_listens_on_this_machine_alone(live):
    assert live.server_address[0] == "127.0.0.1"


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "", "0.0.0.0", "[::1]"]
)
def test_a_page_elsewhere_cannot_have_its_name_point_here(live, host):
    status, _, text = ask(live, Host=host)
    assert status == 403
    assert "boom" not in text


def test_it_answers_by_its_own_names_with_careful_headers(live):
    for host in ("127.0.0.1", f"localhost:{live.server_port}"):
        status, headers, _ = ask(live, Host=host)
        assert status == 200
        for name, value in server.HEADERS:
            assert headers[name] == value
        assert "Python" not in headers["Server"]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "<script>"])
def test_it_only_reads(live, method):
    status, headers, text = ask(live, method=method)
    assert status in (400, 501)
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert "script" not in text


@pytest.mark.parametrize(
    "path",
    [
        "/../../etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/run/..%2f..%2fetc%2fpasswd",
        "/run/%2fetc%2fpasswd",
        "/run/..%5c..%5cetc",
        "/run/run%00.html",
        "/run/run/../../store/manifest.json",
        "//etc/passwd",
        "/run/" + "x" * 5000,
        "http://evil.example/run/nothing",
        "/run/store",
    ],
)
def test_no_path_leads_out(live, path):
    status, _, text = ask(live, path, Host="127.0.0.1")
    assert status == 404, text
    assert "root:" not in text


def test_links_that_lead_out_are_not_followed(hostile, tmp_path):
    shutil.copytree(hostile / "run", tmp_path / "elsewhere" / "run")
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "out").symlink_to(tmp_path / "elsewhere" / "run")
    (inside / "files").mkdir()
    for name in os.listdir(hostile / "run"):
        (inside / "files" / name).symlink_to(hostile / "run" / name)
    page = answer(Folder(inside), "/")[2]
    assert answer(Folder(inside), "/run/out")[0] == 404
    assert answer(Folder(inside), "/run/files")[0] == 404
    assert "is a link that leads out of the run" in page


def test_who_asks_slowly_is_hung_up_on_and_others_are_served(live, monkeypatch):
    monkeypatch.setattr(server, "SECONDS", 0.3)
    slow = socket.create_connection(("127.0.0.1", live.server_port))
    slow.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ")
    assert ask(live, "/state", Host="127.0.0.1")[0] == 200
    slow.settimeout(30)
    assert slow.recv(1000) == b""
    slow.close()


def test_no_more_connections_are_held_than_there_are_places(live):
    held = [socket.create_connection(("127.0.0.1", live.server_port)) for _ in range(server.AT_ONCE)]
    threads = threading.active_count()
    more = [socket.create_connection(("127.0.0.1", live.server_port)) for _ in range(8)]
    for link in more:
        link.settimeout(30)
        assert link.recv(10) == b""  # turned away
    assert threading.active_count() <= threads + 2 * server.AT_ONCE
    for link in (*held, *more):
        link.close()


def test_long_requests_are_refused(live):
    link = socket.create_connection(("127.0.0.1", live.server_port))
    link.sendall(b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n")
    link.settimeout(30)
    assert b" 414 " in link.recv(100)
    link.close()


def test_what_a_settings_word_may_be():
    """Values on the command line are JSON or plain Python literals; nothing is called."""
    from aioli.config import parse_settings

    assert parse_settings("eta=__import__('os').system('x')") == {"eta": "__import__('os').system('x')"}
    assert json.dumps(parse_settings("a=[1,2],b={'c': 3}")) == '{"a": [1, 2], "b": {"c": 3}}'
