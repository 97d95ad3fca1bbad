"""The catalogue, the room, and experiments carried out for real on a small model."""

import argparse
import json
from dataclasses import dataclass, replace

import numpy as np
import pytest
from tiny import Here, tiny_store

from aioli.cli import main
from aioli.cli.reproduce import _one
from aioli.data.store import TokenStore
from aioli.experiments import comparisons, downstream, paper, record, studies
from aioli.experiments.bench import Bench
from aioli.experiments.catalogue import EXPERIMENTS, MOVING, ONE_SEED, find
from aioli.experiments.dry import plans
from aioli.experiments.profiles import PROFILES, Profile
from aioli.experiments.room import closed, ranked, room_of
from aioli.experiments.settings import A_SE, GROUPS, IN_DOMAIN, TOWARDS, Setting, named
from aioli.experiments.stores import tokens
from aioli.experiments.tables import markdown, summary
from aioli.runs.conducting import Conductor
from aioli.runs.store import RunStore


@dataclass(frozen=True)
class Quick(Profile):
    """The small profile with very short runs."""

    steps: int = 30

    @property
    def mini(self):
        return True

    def recipe(self, setting, larger=False):
        plain = super().recipe(setting, larger)
        steps = self.steps // 2 if setting.start is not None else self.steps
        train = {"steps": steps, "batch": 4, "lr": 4e-3, "threads": 1}
        return {**plain, "model": "tiny", "train": train, "val": {"final": 8}}

    def settings(self, method, experiment, setting):
        if method == "aioli-fork":
            return {"delta": 0.5}
        rounds = 1 if experiment == "sensitivity" or method.startswith("aioli+") else 2
        known = method in ("aioli", "aioli-ood", "aioli-pooled") or method.startswith("aioli+")
        return {"rounds": rounds, "k": 1} if known else {}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return tiny_store(tmp_path_factory.mktemp("corpus") / "store", GROUPS)


@pytest.fixture(scope="module")
def bench(corpus, tmp_path_factory):
    place = tmp_path_factory.mktemp("bench")
    runs, executor = RunStore(place / "runs"), Here()
    found = Bench(
        Quick("mini", "for tests"),
        corpus,
        runs,
        place / "data",
        lambda asked, final, proxy: Conductor(runs, executor, final, proxy).conduct(asked),
        lambda: corpus,
    )
    return found


def test_room_and_shares_by_hand():
    room = room_of({0: 3.0, 1: 3.1, 2: 2.9}, {0: 2.9, 1: 3.0, 2: 2.8})
    assert room.mean == pytest.approx(0.1)
    assert room.there
    share, span = closed({0: 0.08, 1: 0.07, 2: 0.09}, room)
    assert share == pytest.approx(0.8)
    assert span[0] < 0.8 < span[1]
    assert not room_of({0: 3.0, 1: 3.1}, {0: 2.9, 1: 3.2}).there
    assert not room_of({0: 3.0}, {0: 2.9}).there  # one seed knows nothing


def test_intervals_of_shares_hold_the_truth():
    """Fieller's interval of a ratio, over repeated experiments with a known share of 0.8."""
    rng, hits, known = np.random.default_rng(0), 0, 0
    for _ in range(1000):
        y = rng.normal(0.1, 0.02, 5)
        x = 0.8 * 0.1 + 0.5 * (y - 0.1) + rng.normal(0, 0.01, 5)
        room = room_of(dict(enumerate(y)), dict.fromkeys(range(5), 0.0))
        _, span = closed(dict(enumerate(x)), room)
        if span is not None:
            known, hits = known + 1, hits + (span[0] <= 0.8 <= span[1])
    assert known > 990
    assert 0.92 < hits / known < 0.98


def test_methods_are_not_ranked_without_room():
    losses = {
        "stratified": {0: 3.0, 1: 3.0, 2: 3.0},
        "grid-search": {0: 2.9, 1: 3.1, 2: 3.0},
        "x": {0: 2.5, 1: 2.6, 2: 2.7},
    }
    found = ranked(losses, "stratified", losses["grid-search"])
    assert not found["room"]["there"]
    assert ranked({"x": {0: 1.0}}, "stratified", {0: 1.0}) is None  # stratified failed
    assert ranked(losses, "stratified", {}) is None  # the sweep failed, or has one seed
    assert "closed" not in found["methods"]["x"]
    assert found["methods"]["x"]["gain"] == pytest.approx(0.4)


def test_every_row_of_a_table_is_as_long_as_its_header():
    """Gains stand under the method that they belong to: each is its own multiple of the room here."""
    losses = {
        "stratified": {0: 3.0, 1: 3.1},
        "grid-search": {0: 2.9, 1: 3.0},
        "dml": {0: 2.95, 1: 3.05},
        "aioli-pooled": {0: 2.99, 1: 3.09},
    }
    rows = {m: [{"seed": s, "loss": v, "perplexity": v} for s, v in each.items()] for m, each in losses.items()}
    scores = [
        {
            "method": m,
            "rows": rows[m],
            "loss": 3.0,
            "perplexity": 20.0,
            "difference": 0.1,
            "interval": None,
            "probing": 0.1,
        }
        for m in losses
    ]
    found = {"comparison": {"scores": scores}, "ranked": ranked(losses, "stratified", losses["grid-search"])}
    results = {name: {"experiment": name, "settings": {"a/b": found}} for name in ("ood", "unrestricted")}
    blocks = [*comparisons.differences(results["ood"]), *comparisons.overview(results)]
    tables = [block for block in blocks if not isinstance(block, str)]
    assert len(tables) == 3
    for header, lines in tables:
        assert all(len(line) == len(header) for line in lines)
    header, lines = tables[1]
    shares = dict(zip(header, lines[0], strict=True))
    assert "50%" in shares["dml: gain, room closed"]
    assert "10%" in shares["aioli-pooled: gain, room closed"]
    assert any("aioli-pooled 10%" in block for block in blocks if isinstance(block, str))  # what looks took


def test_every_name_of_the_paper_is_there():
    names = "unrestricted restricted ablations sensitivity law-fit law-checkpoints law-instruction law-nonlinear "
    names += "parameters a-star greedy larger-model ood downstream proportions"
    assert set(names.split()) < set(EXPERIMENTS)
    assert [setting.name for setting in IN_DOMAIN] == paper.printed()["unrestricted"]["settings"]
    assert find(["all"]) == list(EXPERIMENTS.values())


def test_printed_numbers_agree_with_what_the_paper_says_of_them():
    """Averages and counts of its text follow from the tables as they stand here."""
    table = paper.printed()["unrestricted"]["differences"]
    assert np.mean(table["aioli"]) == pytest.approx(-0.274, abs=5e-4)
    better = {name: sum(v < 0 for v in row) for name, row in table.items()}
    assert better == {"grid-search": 4, "dml": 4, "skill-it": 5, "doremi": 3, "doge": 1, "aioli": 6}
    restricted = paper.printed()["restricted"]["perplexities"]
    gains = [
        np.array(row) - np.array(restricted[name.removeprefix("aioli+")])
        for name, row in restricted.items()
        if name.startswith("aioli+")
    ]
    assert (np.array(gains) < 0).sum() == 28
    assert -np.mean(gains) == pytest.approx(1.202, abs=0.02)  # the text's mean is not quite that of its table
    assert -np.min(gains) == pytest.approx(12.012, abs=0.05)
    ablations = paper.printed()["ablations"]["differences"]
    averages = {name: round(float(np.mean(row)), 3) for name, row in ablations.items()}
    assert averages["aioli-diagonal"] == pytest.approx(-0.230, abs=1e-3)
    fits = paper.printed()["law-fit"]["fits"]
    assert np.mean([r2 for _, r2 in fits["log-linear static"]]) == pytest.approx(0.991, abs=1e-3)
    assert np.mean([r2 for _, r2 in fits["linear dynamic"]]) == pytest.approx(0.947, abs=1e-3)


@pytest.mark.parametrize("name", list(EXPERIMENTS))
@pytest.mark.parametrize("profile", list(PROFILES.values()), ids=lambda profile: profile.name)
def test_recipes_are_checked_by_a_dry_run(name, profile):
    for setting in EXPERIMENTS[name].settings:
        found = plans(EXPERIMENTS[name], setting, profile, None)
        assert found.seeds >= 3 or EXPERIMENTS[name].study in ONE_SEED
        assert found.steps == found.recipe.get("train", {}).get("steps", 2000)


def test_paper_settings_are_the_papers():
    found = plans(EXPERIMENTS["unrestricted"], IN_DOMAIN[-1], PROFILES["paper"], None)
    assert (found.model, found.steps, found.seeds) == ("pythia-160m", 40_000, 3)
    train = {"steps": 40_000, "batch": 8, "lr": 5e-4, "warmup": 500.0, "floor": 0.2}
    assert found.recipe["train"] == train
    assert found.methods["aioli"]["settings"] == {"delta": 0.07, "eta": 0.2, "gamma": 0.1}
    assert found.methods["doge"]["settings"] == {"eta": 0.1}
    found = plans(EXPERIMENTS["unrestricted"], A_SE, PROFILES["paper"], None)
    assert (found.steps, found.seeds) == (5_000, 5)
    assert found.methods["aioli"]["settings"] == {"delta": 0.128, "eta": 0.2, "gamma": 0.1}
    found = plans(EXPERIMENTS["ood"], TOWARDS[0], PROFILES["paper"], None)
    assert found.methods["aioli-ood"]["settings"] == {"delta": 0.288, "eta": 0.8}
    sensitivity = plans(EXPERIMENTS["sensitivity"], A_SE, PROFILES["paper"], None).methods
    assert sensitivity["aioli:delta=0.064"]["settings"]["delta"] == pytest.approx(0.128)  # told by group
    assert sensitivity["aioli:gamma=null"]["settings"]["gamma"] is None
    assert plans(EXPERIMENTS["larger-model"], A_SE, PROFILES["paper"], None).model == "pythia-1.4b"


def test_settings_by_name():
    assert named(["arxiv/book/github->stackexchange"], TOWARDS) == TOWARDS[:1]
    assert named(None, TOWARDS) == TOWARDS
    with pytest.raises(ValueError, match="this experiment has 'arxiv/stackexchange'"):
        named(["arxiv"], IN_DOMAIN)
    assert A_SE.local() == Setting(("prose", "tests"))
    assert IN_DOMAIN[-1].local().name == "all"
    assert TOWARDS[1].local().name == "python/headers/stubs → prose"


def test_a_comparison_is_measured_written_and_shown(bench, tmp_path):
    experiment, setting = EXPERIMENTS["ood"], TOWARDS[0]
    experiment = replace(experiment, methods=("stratified", "grid-search", "aioli-ood", "aioli-pooled"))
    found = bench.measure(experiment, setting, 2)
    assert found["seeds"] == [0, 1]
    scores = comparisons.scores(found)
    assert list(scores) == list(experiment.methods)
    assert all(not score["failed"] for score in scores.values())
    base = {row["seed"]: row["loss"] for row in scores["stratified"]["rows"]}
    gains = found["ranked"]["room"]["gains"]
    assert set(gains) == {0, 1}
    # each seed's choice is judged with the other seed: its mixture is trained there, against stratified there
    chosen = {row["seed"]: row["proportions"] for row in scores["grid-search"]["rows"]}
    assert chosen[0] != chosen[1]
    for seed in (0, 1):
        own = {row["seed"]: row["loss"] for row in scores["grid-search"]["rows"]}
        assert gains[seed] != pytest.approx(base[seed] - own[seed])
    file = record.add(tmp_path / "results", experiment, bench.profile, setting, found)
    assert json.loads(file.read_text())["settings"][setting.name]["made"]["data"]["fingerprint"]
    assert str(tmp_path) not in file.read_text()
    text = markdown(record.load_all(tmp_path / "results"))
    assert "*(39.64)*" in text  # the paper's stratified
    assert "| aioli-pooled |" in text
    assert found["longer"]["share"] == experiment.longer
    assert set(found["longer"]["losses"]) == {0, 1}
    assert all(found["longer"]["losses"][seed] != base[seed] for seed in base)
    assert f"stratified, {experiment.longer:.0%} more steps: gain" in text
    _, _, rows, notes = summary("ood", setting.name, found)
    assert len(rows) == len(experiment.methods)
    assert notes[0].startswith("room:")


def test_settings_are_added_and_replaced_one_by_one(bench, tmp_path):
    experiment = EXPERIMENTS["ablations"]
    found = bench.measure(experiment, A_SE, 1)
    for setting in reversed(IN_DOMAIN[:2]):
        file = record.add(tmp_path, experiment, bench.profile, setting, found)
    assert list(record.load(file)["settings"]) == ["arxiv/stackexchange", "github/c4"]  # the paper's order
    # what is recorded already is found again, but not for other seeds or another setting, and not if something failed
    asked = bench.asked(experiment, A_SE, 1)
    assert record.known(tmp_path, experiment, A_SE, asked)["asked"] == asked
    assert record.known(tmp_path, experiment, A_SE, bench.asked(experiment, A_SE, 2)) is None
    assert record.known(tmp_path, experiment, IN_DOMAIN[1], bench.asked(experiment, IN_DOMAIN[1], 1)) is None
    assert record.known(tmp_path / "elsewhere", experiment, A_SE, asked) is None
    found["comparison"]["scores"][0]["failed"] = {"0": "why"}
    record.add(tmp_path, experiment, bench.profile, A_SE, found)
    assert record.known(tmp_path, experiment, A_SE, asked) is None
    assert record.seeds(tmp_path, experiment, A_SE) == 1
    whole = {key: value for key, value in json.loads(file.read_text()).items() if key != "checksum"}
    whole["settings"][A_SE.name]["seeds"] = [0, 1, 2]
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / file.name).write_text(json.dumps(whole))
    options = argparse.Namespace(seeds=1, again=False, quiet=True, json=True)
    with pytest.raises(ValueError, match="with 3 seeds, which --seeds 1 would"):
        _one(bench, experiment, A_SE, tmp_path / "more", options)
    assert record.seeds(tmp_path / "elsewhere", experiment, A_SE) == 0
    (tmp_path / "remarks.md").write_text("Said by hand.\n\n## overview\n\nAll in all.\n\n## ablations\n\nFrankly.\n")
    text = markdown(record.load_all(tmp_path), "here", record.remarks(tmp_path))
    assert text.index("All in all.") < text.index("## ablations") < text.index("Frankly.")
    assert "Said by hand" not in text
    (tmp_path / "remarks.md").write_text("## nothing\n")
    with pytest.raises(ValueError, match="is no experiment"):
        record.remarks(tmp_path)
    (tmp_path / "greedy.json").write_text("{}")
    with pytest.raises(ValueError, match="not a file of results"):
        record.load_all(tmp_path)


@pytest.mark.slow
def test_proportions_takes_what_unrestricted_has_recorded(bench, tmp_path):
    methods = ("stratified", "grid-search", "skill-it", "aioli", "aioli-pooled", "aioli-fork")
    whole, closer = (replace(EXPERIMENTS[name], methods=methods) for name in ("unrestricted", "proportions"))
    found = json.loads(json.dumps(bench.measure(whole, A_SE, 2)))
    asked = []

    def watched(*what):
        asked.extend((each.label, each.problem.seed) for each in what[0])
        return bench.conduct(*what)

    again = replace(bench, conduct=watched).measure(closer, A_SE, 2, found)
    assert asked == [(name, 0) for name in MOVING]  # whose paths are shown, of the first seed
    assert set(again["trajectories"]) <= set(MOVING)
    assert "aioli" in again["trajectories"]
    rows = [json.loads(json.dumps(comparisons.scores(one)["grid-search"]["rows"])) for one in (found, again)]
    assert rows[0] == rows[1]


def test_only_methods_that_changed_are_measured_again(bench, tmp_path):
    experiment = replace(EXPERIMENTS["ood"], methods=("stratified", "grid-search", "aioli-pooled"))
    setting = TOWARDS[0]
    found = bench.measure(experiment, setting, 2)
    file = record.add(tmp_path, experiment, bench.profile, setting, found)
    before = record.load(file)["settings"][setting.name]
    asked = []

    def watched(*what):
        asked.extend(each.label for each in what[0])
        return bench.conduct(*what)

    watching = replace(bench, conduct=watched)
    changed = replace(experiment, methods=("stratified", "aioli-pooled:eta=2", "grid-search", "dml"))
    again = watching.measure(changed, setting, 2, before)
    assert set(asked) == {"aioli-pooled:eta=2", "dml"}
    assert again["longer"] == before["longer"]
    assert again["kept"]["methods"] == ["stratified", "grid-search"]
    assert again["kept"]["made"]["date"]
    assert list(comparisons.scores(again)) == list(changed.methods)
    assert again["comparison"]["seeds"] == [0, 1]
    for name in ("stratified", "grid-search"):
        same = [json.loads(json.dumps(comparisons.scores(one)[name]["rows"])) for one in (found, again)]
        assert same[0] == same[1]
    gains = [one["ranked"]["room"]["gains"] for one in (found, again)]
    assert gains[0] == pytest.approx(gains[1])
    # other seeds, another base, a record of another form: all is measured again
    lost = json.loads(json.dumps(before))
    lost["comparison"]["scores"][0]["rows"][0]["loss"] = None
    damaged = {**before, "comparison": {"scores": [{}]}}
    for of in ({**before, "seeds": [0, 1, 2]}, {**before, "each": {}}, damaged, lost, {}):
        asked.clear()
        watching.measure(experiment, setting, 2, of)
        assert set(asked) >= set(experiment.methods)


STUDIES = [name for name, each in EXPERIMENTS.items() if each.study is not None]


@pytest.mark.parametrize(
    "name", [n if n == "law-checkpoints" else pytest.param(n, marks=pytest.mark.slow) for n in STUDIES]
)
def test_studies_are_measured_and_shown(bench, tmp_path, name):
    experiment = EXPERIMENTS[name]
    experiment = replace(experiment, mini={**experiment.mini, "ahead": 3})
    setting = experiment.settings[0]
    found = bench.measure(experiment, setting, 1)
    assert found["tables"][0]["rows"]
    record.add(tmp_path, experiment, bench.profile, setting, found)
    text = markdown(record.load_all(tmp_path))
    assert f"## {name}" in text
    assert setting.name in text


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, each in EXPERIMENTS.items() if each.methods and name != "downstream"])
def test_comparisons_are_measured_and_shown(bench, tmp_path, name):
    experiment = EXPERIMENTS[name]
    found = bench.measure(experiment, experiment.settings[-1], 1)
    assert not {name: score["failed"] for name, score in comparisons.scores(found).items() if score["failed"]}
    record.add(tmp_path, experiment, bench.profile, experiment.settings[-1], found)
    assert f"## {name}" in markdown(record.load_all(tmp_path))


def test_parameters_are_joined_over_settings():
    """Points on a line over two settings have a slope of two and leave nothing unexplained."""
    points = [{"method": "doge", "similarity": x, "improvement": 2 * x + 1} for x in (0.1, 0.5, 0.8)]
    more = [
        {"method": "aioli", "similarity": 0.2, "improvement": 1.4},
        {"method": "doge", "similarity": 0.53333333, "improvement": 2.06666667},
    ]
    settings = {"a/b": {"analysis": {"points": points}}, "c/d": {"analysis": {"points": more}}}
    (_, rows), words = studies.parameters({"settings": settings})
    assert "3 points): slope +2.00, R² 1.00 *(0.491)*" in words
    assert rows[0][:3] == ["doge", "+0.50", "+0.47"]


class Plain:
    """A tokenizer whose words are numbers."""

    def decode(self, tokens):
        return " ".join(map(str, tokens))


def test_questions_have_one_true_continuation():
    rows = np.arange(40 * 8).reshape(40, 8)
    questions = downstream._questions(rows, Plain())
    assert len(questions) == 40
    for k, each in enumerate(questions):
        assert each["question"] == Plain().decode(rows[k][:4])
        assert each["choices"][each["answer"]] == Plain().decode(rows[k][4:])
        assert len(set(each["choices"])) == 4
    assert {each["answer"] for each in questions} == {0, 1, 2, 3}
    with pytest.raises(ValueError, match="too few"):
        downstream._questions(rows[:3], Plain())


def test_a_scarce_group_is_two_percent_of_the_tokens(bench):
    setting = EXPERIMENTS["room"].settings[2]
    recipe = bench.recipe(EXPERIMENTS["room"], setting)
    sizes = tokens(TokenStore(recipe.data.store))
    assert sizes[setting.scarce] / sum(sizes[g] for g in setting.groups) == pytest.approx(0.02, abs=0.01)


def test_a_folder_that_cannot_be_added_to_is_refused_before_training(capsys, tmp_path):
    """What is there is damaged, or of another profile."""
    for content, answer in (("{}", "not a file of results"), (None, "has results of --profile paper")):
        if content is None:
            whole = {
                "kind": record.KIND,
                "schema": record.SCHEMA,
                "experiment": "ood",
                "settings": {},
                "profile": "paper",
            }
            content = json.dumps(whole)
        (tmp_path / "ood.json").write_text(content)
        assert main(["reproduce", "ood", "-o", str(tmp_path), "--store", str(tmp_path / "runs")]) == 2
        assert answer in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
    assert not (tmp_path / "runs-data").exists()


def test_command(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", "--list"]) == 0
    assert "law-instruction" in capsys.readouterr().out
    assert main(["reproduce", "unrestricted", "--profile", "paper", "--dry-run"]) == 0
    assert "40,000" in capsys.readouterr().out
    assert main(["reproduce", "ood", "--data", "nowhere/*.jsonl", "--dry-run"]) == 2
    assert "--data: no file matches" in capsys.readouterr().err
    words = ["all", "--settings", "arxiv/book/github -> stackexchange", "arxiv/stackexchange", "--dry-run"]
    assert main(["reproduce", *words]) == 0
    told = capsys.readouterr().out
    assert "arxiv/book/github → stackexchange" in told
    assert "github/c4" not in told
    for words, answer in (
        ([], "which experiment"),
        (["nothing"], "there is no experiment 'nothing'"),
        (["unrestricted", "--settings", "x/y"], "there is no such setting here"),
        (["unrestricted", "ood", "--settings", "x/y"], "there is no such setting here"),
        (["unrestricted", "--seeds", "0"], "must be at least 1"),
        (["unrestricted", "--profile", "paper"], "needs the paper's data and GPUs"),
        (["law-instruction"], "needs instruction tasks"),
        (["--show", "."], "there are no results in"),
    ):
        assert main(["reproduce", *words]) == 2
        assert answer in capsys.readouterr().err
