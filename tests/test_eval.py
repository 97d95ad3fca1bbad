"""Downstream tasks by lm-eval, without a network: known truths, the same numbers by hand, and mistakes in one line."""

import csv
import json
import math
import random
import subprocess
import sys

import datasets
import huggingface_hub.constants
import numpy as np
import pytest
import torch
from tiny import tiny_recipe
from tokenizers import Tokenizer, models, pre_tokenizers

from aioli.cli import main
from aioli.data import TokenStore, write_store
from aioli.data.tokenizer import Encoder
from aioli.evaluate import PAPER, evaluate, find
from aioli.runs import Job, RunStore, Setup
from aioli.train import Run
from aioli.train.models import build_model, load_model

LANDS, TOWNS, OTHERS = ([f"{kind}{k}" for k in range(12)] for kind in ("land", "town", "other"))
WORDS = ["<eos>", "the", "capital", "of", "is", ".", *LANDS, *TOWNS, *OTHERS]
NUMBER = {word: k for k, word in enumerate(WORDS)}


@pytest.fixture(autouse=True)
def no_cache_of_the_user(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A token store of sentences about capitals, with its tokenizer: one token for each word."""
    rng = np.random.default_rng(0)

    def text(sentences):
        order = rng.integers(0, len(LANDS), sentences)
        words = (word for k in order for word in f"the capital of {LANDS[k]} is {TOWNS[k]} .".split())
        return np.array([NUMBER[word] for word in words])

    splits = {split: {g: text(n) for g in "ab"} for split, n in (("train", 600), ("val", 40), ("test", 40))}
    store = write_store(tmp_path_factory.mktemp("data") / "store", splits, 16, len(WORDS))
    backend = Tokenizer(models.WordLevel(NUMBER, unk_token="<eos>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    Encoder(backend, "<eos>", "words").save(store.tokenizer)
    return store


@pytest.fixture(scope="module")
def runs(data, tmp_path_factory):
    """A run store with a run that knows the capitals, and one of a single step."""
    store, keys = RunStore(tmp_path_factory.mktemp("runs") / "runs"), []
    for steps in (150, 1):
        recipe = tiny_recipe(data, train_steps=steps, train_batch=8, method="stratified")
        job = Job((setup := Setup.of(recipe)).problem(0).static((0.5, 0.5), steps), setup)
        store.add(job)
        Run(recipe, store.run_folder(job.key)).train()
        keys.append(job.key)
    return store, keys


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model that has learned nothing, of 64 positions, without a tokenizer."""
    folder = tmp_path_factory.mktemp("model") / "model"
    build_model("tiny", None, vocabulary=len(WORDS), context=64, seed=3).save_pretrained(folder)
    return folder


def write_task(folder, name, docs, **settings):
    """A task of lm-eval: a YAML file and its data."""
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(doc) + "\n" for doc in docs))
    task = {
        "task": name,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(folder / f"{name}.jsonl")}},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "{{question}}",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "{{answer}}",
        "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
        **settings,
    }
    (folder / f"{name}.yaml").write_text(json.dumps(task))
    return folder


def capitals(folder, **settings):
    """Which town is it? The answer is what the sentences say."""
    rng, docs = random.Random(0), []
    for k, land in enumerate(LANDS):
        wrong = rng.sample([town for town in TOWNS if town != TOWNS[k]], 3)
        answer = rng.randrange(4)
        choices = [*wrong[:answer], TOWNS[k], *wrong[answer:]]
        docs.append({"question": f"the capital of {land} is", "choices": choices, "answer": answer})
    return write_task(folder, "capitals", docs, **settings)


def guesses(folder, count=200, words=lambda rng: rng.randint(1, 3), name="guesses"):
    """Questions and answers without any sense, some of them long."""
    rng, docs = random.Random(1), []
    for _ in range(count):
        choices = [" ".join(rng.choices(WORDS[1:], k=words(rng))) for _ in range(4)]
        question = " ".join(rng.choices(WORDS[1:], k=rng.choice((3, 10, 90))))
        docs.append({"question": question, "choices": choices, "answer": rng.randrange(4)})
    return write_task(folder, name, docs)


def by_hand(network, question, answer, context=64):
    """The log-likelihood of an answer after as much of the question as fits into the context; an answer that does not
    fit itself is taken in pieces of half a context."""
    before, after = ([NUMBER[word] for word in text.split()] for text in (question, answer))
    step = len(after) if len(after) <= context else context // 2
    total = 0.0
    for k in range(0, len(after), step):
        piece = after[k : k + step]
        tokens = torch.tensor([(before + after[:k] + piece)[-context - 1 :]])
        with torch.no_grad():
            scores = network(tokens[:, :-1]).logits[0].log_softmax(-1)
        total += sum(scores[i - len(piece)][token].item() for i, token in enumerate(piece))
    return total


def run(capsys, *arguments):
    code = main(["eval", *map(str, arguments)])
    return code, *capsys.readouterr()


# ---------------------------------------------------------------------- known truths


def test_a_model_that_knows_the_answers_is_always_right_and_others_guess(runs, tmp_path, capsys):
    store, (good, bad) = runs
    folder = guesses(capitals(tmp_path / "tasks"))
    code, out, err = run(capsys, good[:8], bad[:8], "--store", store.path, "--task-dir", folder, "--json")
    assert (code, err) == (0, "")
    knows, guesser = json.loads(out)
    assert knows["key"] == good
    assert knows["tasks"]["capitals"]["value"] == 1.0
    assert knows["tasks"]["capitals"]["stderr"] == 0.0
    assert knows["tasks"]["capitals"]["examples"] == 12
    assert guesser["tasks"]["capitals"]["value"] < 0.8
    for each in (knows, guesser):
        found = each["tasks"]["guesses"]
        assert found["value"] == pytest.approx(0.25, abs=4 * math.sqrt(0.25 * 0.75 / 200))
        assert found["stderr"] == pytest.approx(math.sqrt(found["value"] * (1 - found["value"]) / 199))
        assert each["mean"]["value"] == pytest.approx((each["tasks"]["capitals"]["value"] + found["value"]) / 2)
        assert set(found["metrics"]) == {"acc", "acc_norm"}


@pytest.mark.parametrize("words", [(1, 3), (40, 100)], ids=["short answers", "answers longer than the context"])
def test_accuracy_is_what_it_is_by_hand(model, data, tmp_path, words):
    folder = guesses(tmp_path / "tasks", 40, lambda rng: rng.randint(*words))
    docs = [json.loads(line) for line in (folder / "guesses.jsonl").read_text().splitlines()]
    network, right, long = load_model(str(model)).eval(), 0, 0
    for doc in docs:
        likely = [by_hand(network, doc["question"], choice) for choice in doc["choices"]]
        right += int(np.argmax(likely)) == doc["answer"]
        long += sum(len(doc["question"].split()) + len(choice.split()) > 65 for choice in doc["choices"])
    found = evaluate(model, data.tokenizer, ["guesses"], include=folder, batch=7)
    assert found.tasks["guesses"].score.value == right / len(docs)
    assert (found.context, found.requests, found.cut) == (64, 160, long)


def test_perplexity_is_what_it_is_by_hand(model, data, tmp_path):
    docs = [{"question": f"the {a} of", "answer": f"{b} is {a}"} for a, b in zip(LANDS, TOWNS, strict=True)]
    metrics = [{"metric": "perplexity", "aggregation": "perplexity", "higher_is_better": False}, {"metric": "acc"}]
    settings = {"doc_to_choice": None, "doc_to_target": " {{answer}}", "metric_list": metrics}
    folder = write_task(tmp_path / "tasks", "last", docs, output_type="loglikelihood", **settings)
    found = evaluate(model, data.tokenizer, ["last"], include=folder)
    network = load_model(str(model)).eval()
    likely = [by_hand(network, doc["question"], doc["answer"]) for doc in docs]
    score = found.tasks["last"].metrics["perplexity"]
    assert score.value == pytest.approx(math.exp(-sum(likely) / len(docs)), rel=1e-4)
    assert score.error is not None


def test_generated_answers_are_compared(runs, data, tmp_path):
    store, keys = runs
    docs = [{"question": f"the capital of {a} is", "answer": b} for a, b in zip(LANDS, TOWNS, strict=True)]
    settings = {
        "output_type": "generate_until",
        "doc_to_choice": None,
        "generation_kwargs": {"until": ["."], "max_gen_toks": 1},
        "metric_list": [{"metric": "exact_match", "ignore_case": True}],
    }
    folder = write_task(tmp_path / "tasks", "said", docs, **settings)
    subject, seen = find(keys[0], store.path), []
    found = evaluate(subject.model, subject.tokenizer, include=folder, report=lambda *now: seen.append(now))
    assert found.tasks["said"].metrics["exact_match"].value == 1.0
    assert seen[-1] == ("said", 12, 12)


def test_solved_examples_are_the_same_for_every_model(model, data, tmp_path):
    folder = capitals(tmp_path / "tasks")
    first, second = (evaluate(model, data.tokenizer, ["capitals"], include=folder, shots=3) for _ in range(2))
    assert first == second
    assert first.tasks["capitals"].shots == 3
    assert evaluate(model, data.tokenizer, ["capitals"], include=folder).tasks["capitals"].shots == 0


def test_groups_and_tags(model, data, tmp_path):
    folder = guesses(capitals(tmp_path / "tasks", tag="about_towns"), 20)
    group = {"group": "both", "task": ["capitals", "guesses"], "aggregate_metric_list": [{"metric": "acc"}]}
    (folder / "both.yaml").write_text(json.dumps(group))
    found = evaluate(model, data.tokenizer, ["both"], include=folder)
    assert list(found.tasks) == ["both"]
    values = {name: part.score.value for name, part in found.parts.items()}
    assert found.tasks["both"].score.value == pytest.approx((12 * values["capitals"] + 20 * values["guesses"]) / 32)
    assert list(evaluate(model, data.tokenizer, ["about_towns"], include=folder, limit=3).tasks) == ["capitals"]


# ---------------------------------------------------------------------- what is seen


def test_several_runs_are_one_table_in_any_form(runs, model, data, tmp_path, capsys):
    store, (good, bad) = runs
    folder = guesses(capitals(tmp_path / "tasks"), 30)
    files = [tmp_path / f"table{ending}" for ending in (".json", ".md", ".csv")]
    names = [good[:6], store.run_folder(bad), model]
    out = [word for file in files for word in ("-o", file)]
    common = ("--store", store.path, "--task-dir", folder, "--tokenizer", data.tokenizer, "--limit", 20)
    code, shown, _ = run(capsys, *names, *common, *out)
    assert code == 0
    lines = shown.splitlines()
    assert lines[0].split() == ["run", "capitals", "guesses", "mean"]
    assert [line.split("  ")[0].strip() for line in lines[2:5]] == [f"{good[:10]} static", *map(str, names[1:])]
    assert "1.000 ±0.000" in lines[2]
    assert "acc ± standard error over examples; 0 shots" in shown
    assert "only the first 20 examples" in shown
    assert "are longer than the 64 tokens" in shown
    assert [each["limit"] for each in json.loads(files[0].read_text())] == [20] * 3
    assert files[1].read_text().startswith("| run | capitals | guesses | mean |\n| --- | --- | --- | --- |\n")
    rows = list(csv.DictReader(files[2].read_text().splitlines()))
    assert list(rows[0]) == [
        "run",
        *(f"{name}{end}" for name in ("capitals", "guesses", "mean") for end in ("", "_stderr")),
    ]
    assert rows[0]["run"] == good
    assert float(rows[0]["capitals"]) == 1.0


def test_a_run_is_found_once_however_it_is_named(runs, tmp_path, capsys):
    store, (good, _) = runs
    folder = capitals(tmp_path / "tasks")
    _, out, _ = run(capsys, good[:6], "--store", store.path, good, "--task-dir", folder, "--json", "--limit", 2)
    assert [each["key"] for each in json.loads(out)] == [good]


def test_nothing_heavy_is_loaded_to_say_what_there_is():
    heavy = ("torch", "transformers", "lm_eval", "datasets")
    code = f"import sys, aioli.cli; aioli.cli.parser(); print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
def test_what_lm_eval_comes_with(model, data, capsys, monkeypatch, tmp_path):
    """In one test, because reading its 14,000 tasks takes seconds."""
    code, out, _ = run(capsys, "--list-tasks")
    assert code == 0
    assert set(PAPER) <= set(out.split())
    _, out, _ = run(capsys, "--list-tasks", "ARC_", "--json")
    assert "arc_easy" in json.loads(out)
    common = (model, "--tokenizer", data.tokenizer, "--tasks")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    for names, complaint in (
        (["paper"], "task arc_challenge: its data set allenai/ai2_arc could not be had"),
        (["arc_eazy"], "lm-eval has no task 'arc_eazy'; did you mean arc_easy?"),
        (["humaneval"], "could not be had"),
    ):
        assert complaint in one_line(run(capsys, *common, *names))
    code, out, err = run(capsys, "--list-tasks", "no such word")
    assert "no task has 'no such word' in its name" in one_line((code, out, err))


PAPERS_DATA = {
    "allenai/ai2_arc": {
        "question": "which",
        "choices": {"text": ["of", "is", "the"], "label": list("ABC")},
        "answerKey": "B",
    },
    "aps/super_glue": {"passage": "the capital", "question": "is", "label": 1},
    "Rowan/hellaswag": {
        "ctx_a": "the",
        "ctx_b": "capital",
        "activity_label": "of",
        "endings": ["is", "of"],
        "label": "0",
    },
    "EleutherAI/lambada_openai": {"text": "the capital of land3 is town3"},
    "allenai/openbookqa": {
        "question_stem": "the",
        "choices": {"text": ["of", "is"], "label": list("AB")},
        "answerKey": "A",
    },
    "baber/piqa": {"goal": "the capital", "sol1": "of", "sol2": "is", "label": 0},
    "allenai/winogrande": {"sentence": "the _ of land3", "option1": "capital", "option2": "town3", "answer": "1"},
}
"""An example of each data set, in its form."""


@pytest.mark.slow
def test_the_papers_tasks_work_on_data_of_their_form(model, data, monkeypatch):
    def load_dataset(path, name=None, **more):
        part = datasets.Dataset.from_list([PAPERS_DATA[path]] * 4)
        return datasets.DatasetDict(dict.fromkeys(("train", "validation", "test"), part))

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    found = evaluate(model, data.tokenizer)
    assert tuple(found.tasks) == PAPER
    assert {task.metric for task in found.tasks.values()} == {"acc"}
    assert all(task.score.value in (0, 1) and task.examples == 4 for task in found.tasks.values())
    assert found.mean.value == sum(task.score.value for task in found.tasks.values()) / 8


# ---------------------------------------------------------------------- mistakes


def one_line(done):
    """The complaint of a command that has refused."""
    code, out, err = done
    assert (code, out) == (2, "")
    assert err.count("\n") == 1, err
    assert err.startswith("aioli eval: ")
    return err


def test_mistakes_are_one_line(runs, model, data, tmp_path, capsys):
    store, _ = runs
    folder, empty = capitals(tmp_path / "tasks"), tmp_path / "empty"
    empty.mkdir()
    tokenizer = ("--tokenizer", data.tokenizer)
    known = (model, *tokenizer, "--task-dir", folder)
    for arguments, complaint in (
        ([], "which run?"),
        (["nowhere"], "there is no directory nowhere"),
        ([empty], "holds neither a run (no recipe.yaml) nor a model (no config.json)"),
        ([store.path], "is a run store; give the beginning of a run's key"),
        (["ffff", "--store", store.path], "no run in"),
        (["ffff", "--store", empty], "is not a run store"),
        ([model], "has no tokenizer; give the directory of one with --tokenizer"),
        ([model, "--tokenizer", empty], "is not a directory with a tokenizer"),
        ([*known, "--limit", 0], "--limit 0 must be at least 1"),
        ([*known, "--batch", 0], "--batch 0 must be at least 1"),
        ([*known, "--shots", -1], "--shots -1 must be at least 0"),
        ([*known, "-o", "table.txt"], "-o table.txt must end with .json, .md, .csv"),
        ([model, *tokenizer, "--task-dir", tmp_path / "none"], "there is no such directory"),
        ([model, *tokenizer, "--task-dir", empty], "holds no tasks (no *.yaml file)"),
    ):
        assert complaint in one_line(run(capsys, *arguments))


def test_runs_without_a_model_are_refused(runs, data, tmp_path, capsys):
    store, (good, _) = runs
    whole, folder = store.run_folder(good), tmp_path / "run"
    folder.mkdir()
    (folder / "recipe.yaml").write_bytes((whole / "recipe.yaml").read_bytes())
    assert "is not finished; `aioli watch" in one_line(run(capsys, folder))
    (folder / "result.json").write_bytes((whole / "result.json").read_bytes())
    assert "has no model any more" in one_line(run(capsys, folder))
    other = RunStore(tmp_path / "other")
    setup = Setup.of(tiny_recipe(data, method="stratified"))
    other.add(job := Job(setup.problem(0).static((0.5, 0.5), 9), setup))
    assert f"run {job.key[:10]} is unfinished" in one_line(run(capsys, job.key[:5], "--store", other.path))


def test_the_tokenizer_of_the_tokens_must_be_there_and_fit(runs, model, data, tmp_path, capsys):
    store, (good, _) = runs
    folder, text = tmp_path / "run", (store.run_folder(good) / "recipe.yaml").read_text().partition("# sha256")[0]
    (folder / "model").mkdir(parents=True)
    for file in ("result.json", "model/model.safetensors", "model/config.json"):
        (folder / file).write_bytes((store.run_folder(good) / file).read_bytes())
    (folder / "recipe.yaml").write_text(text.replace(str(data.path), "gone"))
    assert "but gone is not a token store" in one_line(run(capsys, folder))
    bare = write_store(tmp_path / "bare", {"train": {"a": [1] * 32, "b": [1] * 32}}, 16, 40)
    (folder / "recipe.yaml").write_text(text.replace(str(data.path), str(bare.path)))
    assert "has no tokenizer; give the directory of one" in one_line(run(capsys, folder))
    large = Tokenizer(models.WordLevel({**NUMBER, "more": len(WORDS)}, unk_token="<eos>"))
    Encoder(large, "<eos>", "words").save(tmp_path / "large")
    common = ("--task-dir", capitals(tmp_path / "tasks"))
    assert "43 tokens, but the model" in one_line(run(capsys, model, "--tokenizer", tmp_path / "large", *common))
    assert TokenStore(data.path).tokenizer == find(good, store.path).tokenizer


BAD_TASKS = {
    "no data": ({"dataset_kwargs": {"data_files": {"test": "gone.jsonl"}}}, "gone.jsonl"),
    "no split": ({"test_split": "exam"}, "exam"),
    "no field": ({"doc_to_text": "{{query}}"}, "task bad cannot be"),
    "no answer": ({"doc_to_choice": "{{[' ', ' ']}}"}, "has no tokens of its own"),
    "metric of the hub": (
        {"metric_list": [{"metric": "acc", "hf_evaluate": True}]},
        "metric 'acc' is not one of lm-eval's",
    ),
    "unknown metric": ({"metric_list": [{"metric": "luck"}]}, "metric 'luck' is not one of lm-eval's own"),
    "runs programs": ({"unsafe_code": True}, "runs programs that the model writes, which aioli does not"),
    "too much to say": (
        {"output_type": "generate_until", "doc_to_choice": None, "metric_list": [{"metric": "exact_match"}]},
        "must be less than model's maximum sequence length (64)",
    ),
}


@pytest.mark.parametrize("what", BAD_TASKS)
def test_bad_tasks_are_one_line(what, model, data, tmp_path, capsys):
    settings, complaint = BAD_TASKS[what]
    docs = [{"question": "the capital", "choices": ["of", "is"], "answer": 0}]
    folder = write_task(tmp_path / "tasks", "bad", docs, **settings)
    error = one_line(run(capsys, model, "--tokenizer", data.tokenizer, "--task-dir", folder))
    assert complaint in error
    assert "task bad" in error


def test_directories_whose_files_are_no_tasks(model, data, tmp_path, capsys):
    (tmp_path / "a.yaml").write_text("- not\n- a task\n")
    error = one_line(run(capsys, model, "--tokenizer", data.tokenizer, "--task-dir", tmp_path))
    assert "1 *.yaml files, none of them a task that lm-eval can read" in error


def test_python_of_a_task_runs_only_from_a_directory_that_is_named(model, data, tmp_path, capsys):
    folder, trace = tmp_path / "tasks", tmp_path / "trace"
    docs = [{"question": "the capital", "choices": ["of", "is"], "answer": 0}] * 2
    file = write_task(folder, "sly", docs) / "sly.yaml"
    (folder / "sly.py").write_text(f"open({str(trace)!r}, 'w').close()\n\ndef text(doc):\n    return doc['question']\n")
    plain = json.loads(file.read_text())
    plain.pop("doc_to_text")
    file.write_text(
        "\n".join(f"{key}: {json.dumps(value)}" for key, value in plain.items()) + "\ndoc_to_text: !function sly.text\n"
    )
    common = (model, "--tokenizer", data.tokenizer)
    error = one_line(run(capsys, *common, "--task-dir", capitals(tmp_path / "named"), "--tasks", file))
    assert "is not the name of a task; name its directory with --task-dir" in error
    assert not trace.exists()
    assert run(capsys, *common, "--task-dir", folder)[0] == 0
    assert trace.exists()


def test_without_the_extra_it_says_what_to_install(monkeypatch, capsys):
    found = "aioli.cli.show.importlib.util.find_spec"
    monkeypatch.setattr(found, lambda name: None if name == "lm_eval" else object())
    assert "this needs lm_eval, which is not installed; pip install 'aioli-mix[eval]'" in one_line(run(capsys, "run"))
