"""`aioli groups`: groups for a corpus that has none."""

import gzip
import json
import random
from collections import Counter

import pyarrow
import pyarrow.parquet
import pytest
import yaml
import zstandard
from sklearn.metrics import adjusted_rand_score

from aioli.cli import main
from aioli.data import prepare
from aioli.groups import propose
from aioli.groups.clusters import cluster
from aioli.groups.corpus import Sample
from aioli.groups.shards import safe_names
from aioli.groups.space import Vocabulary, WordSpace, batched

TOPICS = {
    "cooking": "oven flour butter sugar recipe bake dough salt pepper onion garlic sauce simmer whisk plate",
    "space": "orbit planet rocket telescope galaxy star comet launch gravity lunar mission satellite solar probe",
    "music": "guitar melody chord drum singer album concert rhythm piano violin song chorus tempo studio tune",
}
SMALL = ["tokenizer.train.vocab_size=300", "context=16", "splits.val=5", "splits.test=5"]
COMMON = ["the", "a", "of", "and", "to", "in", "is", "it", "was", "for", "with", "on", "as", "this", "that"]


def texts(count=60, seed=0):
    """Documents of three obvious topics, mixed up: (text, topic)."""
    rng = random.Random(seed)
    found = []
    for topic, words in TOPICS.items():
        for _ in range(count):
            some = rng.choices(words.split(), k=20) + rng.choices(COMMON, k=20)
            rng.shuffle(some)
            found.append((" ".join(some) + ".", topic))
    rng.shuffle(found)
    return found


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [{"text": t, "meta": {"source": c, "id": k}, "score": 0.5} for k, (t, c) in enumerate(texts())]
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return rows


def written(folder="recipe-groups"):
    """Texts by group, from the files of a recipe."""
    from pathlib import Path

    return {
        file.name.removesuffix(".jsonl.gz"): [json.loads(line) for line in gzip.open(file, "rt")]
        for file in sorted(Path(folder).iterdir())
    }


def test_clusters_are_the_topics(corpus, tmp_path, capsys):
    """As many as there are, all documents in one each, named by their words; `prepare` takes the recipe."""
    assert main(["groups", "corpus.jsonl", "--by", "cluster", "-o", "recipe.yaml", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [group["documents"] for group in found["groups"]] == [60, 60, 60]
    assert found["stability"] > 0.95
    assert found["separation"] > 0.25
    groups = written()
    assert sorted(row["text"] for rows in groups.values() for row in rows) == sorted(row["text"] for row in corpus)
    for name, rows in groups.items():
        (topic,) = {row["meta"]["source"] for row in rows}  # records are as they were
        assert set(name.split("-")) <= set(TOPICS[topic].split())
    store = prepare("recipe.yaml", tmp_path / "store", SMALL)
    assert set(store.groups) == set(groups)


def test_the_table_says_what_groups_are_like(corpus, capsys):
    assert main(["groups", "corpus.jsonl", "--by", "cluster", "-k", "3"]) == 0
    out = capsys.readouterr().out
    for words in ("3 groups by cluster, 180 documents", "share  separation", "stability 1.00", "nothing is written"):
        assert words in out
    assert sum(line.startswith("    ") for line in out.splitlines()) == 6  # two examples of each


def test_the_same_seed_gives_the_same_bytes(corpus, tmp_path, capsys):
    files = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        propose(["corpus.jsonl"], "cluster", seed=3, sample=100, out=tmp_path / name / "recipe.yaml")
        files.append({f.name: f.read_bytes() for f in (tmp_path / name / "recipe-groups").iterdir()})
    assert files[0] == files[1]


def test_few_documents_are_looked_at_and_all_are_assigned(corpus):
    found = propose(["corpus.jsonl"], "cluster", sample=60, k=3)
    assert found.sampled == 60
    assert [group.documents for group in found.groups] == [60, 60, 60]


def test_samples_are_fair():
    counts = Counter()
    for seed in range(400):
        sample = Sample(5, seed)
        for k in range(50):
            sample.add(str(k), "g")
        assert len(sample.texts) == 5
        counts.update(sample.texts)
    assert len(counts) == 50
    assert max(counts.values()) < 70  # 40 are expected of each


def test_every_kind_of_file(corpus, tmp_path):
    """Packed lines, Parquet and plain text, in one corpus: nothing gets lost."""
    lines = (tmp_path / "corpus.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "all").mkdir()
    (tmp_path / "all" / "a.jsonl.gz").write_bytes(gzip.compress(b"".join(lines[:40])))
    (tmp_path / "all" / "b.jsonl.zst").write_bytes(zstandard.compress(b"".join(lines[40:80])))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(corpus[80:120]), tmp_path / "all" / "c.parquet")
    (tmp_path / "all" / "d.json").write_text(json.dumps(corpus[120:160]))
    for k, row in enumerate(corpus[160:]):
        (tmp_path / "all" / f"{k}.txt").write_text(row["text"])
    propose(["all"], "cluster", k=3, out="recipe.yaml")
    rows = [(row["text"], name) for name, rows in written().items() for row in rows]
    truth = {row["text"]: row["meta"]["source"] for row in corpus}
    assert len(rows) == 180
    assert adjusted_rand_score([truth[text] for text, _ in rows], [name for _, name in rows]) == 1.0


def test_how_many_there_are():
    """As many as come out the same from other documents, for several numbers of topics."""
    for count in (2, 3):
        some = [text for text, topic in texts(80, seed=count) if topic in list(TOPICS)[:count]]
        assert cluster(batched(WordSpace(Vocabulary(some), 0), some), None, 0).k == count


def test_embeddings_of_a_model_in_a_folder(corpus, tmp_path, capsys):
    """A model of random weights knows letters apart: texts of a, e, o … in three alphabets."""
    import torch
    from transformers import BertConfig, BertModel, BertTokenizerFast

    letters = [chr(c) for c in range(97, 123)]
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters]
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "vocab.txt").write_text("\n".join(words))
    BertTokenizerFast(str(tmp_path / "model" / "vocab.txt")).save_pretrained(tmp_path / "model")
    torch.manual_seed(0)
    small = BertConfig(
        vocab_size=len(words), hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
    )
    BertModel(small).save_pretrained(tmp_path / "model")
    rng = random.Random(0)
    rows = [
        {"text": " ".join(rng.choices(part, k=30)) + f" word{chr(97 + k % 20)}{chr(97 + k % 7)}"}
        for k in range(40)
        for part in (letters[:8], letters[8:16], letters[16:24])
    ]
    (tmp_path / "letters.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    propose(["letters.jsonl"], "cluster", k=3, embeddings="model", out="recipe.yaml")
    parts = [{row["text"][0] in "abcdefgh" for row in rows} for rows in written().values()]
    assert [len(part) for part in parts] == [1, 1, 1]
    assert main(["groups", "letters.jsonl", "--by", "cluster", "--embeddings", "nowhere"]) == 2
    assert "is not the folder of a model" in capsys.readouterr().err


# ---------------------------------------------------------------------- by field, by source


def test_fields_that_look_like_labels(corpus, capsys):
    assert main(["groups", "corpus.jsonl", "--by", "field"]) == 0
    out = capsys.readouterr().out
    assert "meta.source" in out
    assert "cooking (60)" in out
    assert "meta.id" not in out
    assert main(["groups", "corpus.jsonl", "--by", "field", "-o", "recipe.yaml"]) == 2
    assert "Name one with --field; these look like names of groups: meta.source" in capsys.readouterr().err


def test_groups_by_a_field(corpus, tmp_path, capsys):
    assert main(["groups", "corpus.jsonl", "--by", "field", "--field", "meta.source", "-o", "recipe.yaml"]) == 0
    assert "3 groups by field" in capsys.readouterr().out
    recipe = yaml.safe_load((tmp_path / "recipe.yaml").read_text())
    assert recipe == {"sources": [{"files": ["corpus.jsonl"], "group_field": "meta.source"}]}
    store = prepare("recipe.yaml", tmp_path / "store", SMALL)
    assert store.groups == ("cooking", "music", "space")


def test_rare_values_become_one_group(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sites = ["large"] * 90 + ["middle"] * 60 + [f"rare{k}" for k in range(30)]
    rows = [{"text": text, "site": site} for (text, _), site in zip(texts(), sites, strict=True)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = propose(["a.jsonl"], "field", field="site", k=3, out="recipe.yaml")
    assert {group.name: group.documents for group in found.groups} == {"large": 90, "middle": 60, "others": 30}
    store = prepare("recipe.yaml", tmp_path / "store", SMALL)
    assert store.groups == ("large", "middle", "others")


def test_groups_by_source(corpus, tmp_path, capsys):
    for name in TOPICS:
        (tmp_path / "data" / name).mkdir(parents=True)
        rows = [row["text"] for row in corpus if row["meta"]["source"] == name]
        for file, some in (("part", rows[:50]), ("more", rows[50:])):
            lines = "".join(json.dumps({"text": text}) + "\n" for text in some)
            (tmp_path / "data" / name / f"{file}.jsonl").write_text(lines)
    by_folder = propose(["data"], "source")
    assert [group.name for group in by_folder.groups] == sorted(TOPICS)
    assert not by_folder.warnings
    by_file = propose(["data"], "source", level="file")
    assert [group.name for group in by_file.groups] == ["more", "part"]
    assert any("more and part look alike" in words for words in by_file.warnings)
    (tmp_path / "data" / "music" / "few.jsonl").write_text('{"text": "a song of few"}\n' * 3)
    by_file = propose(["data"], "source", level="file")
    assert any("tiny groups" in words and "few (3 documents" in words for words in by_file.warnings)


# ---------------------------------------------------------------------- what can go wrong


def test_words_from_data_are_no_paths():
    names = safe_names([["../../etc", "passwd"], ["a/b", "c\nd"], [], [], ["Ünïcode", "x" * 99], ["...", "-"]])
    assert names == ["etc-passwd", "a-b-c-d", "group", "group-2", "ünïcode-" + "x" * 32, "group-3"]


@pytest.mark.parametrize(
    ("content", "words", "complaint"),
    [
        ("", ["--by", "cluster"], "there are no documents"),
        ("", ["--by", "field"], "there are no documents"),
        ('{"text": "one document only"}\n', ["--by", "cluster"], "one document only"),
        ('{"text": "one document only"}\n', ["--by", "source"], "all documents are of one group, 'a'"),
        ('{"text": "same words"}\n' * 30, ["--by", "cluster"], "no words that tell them apart"),
        (
            '{"text": "same words"}\n{"text": "other things"}\n' * 9,
            ["--by", "cluster"],
            "are too few to find",
        ),
        ('{"text": "same words"}\n{"text": "other things"}\n' * 9, ["--by", "cluster", "-k", "3"], "only 2 documents"),
        ('{"text": "x"}\n' * 3, ["--by", "cluster", "-k", "1"], "no words that tell them apart"),
        ('{"text": "here"}\n', ["--by", "field", "--field", "meta.x"], "has no field 'meta.x'; its fields are text"),
        ('{"text": "here"}\n', ["--by", "field"], "no field looks like the name of a group"),
        ('{"words": "here"}\n', ["--by", "cluster"], "has no field 'text'; its fields are words"),
        ("{oops\n", ["--by", "cluster"], "record 1 is not JSON"),
        ('{"text": "here"}\n', ["--by", "source", "-k", "3"], "-k 3 is for --by cluster and --by field"),
        ('{"text": "here"}\n', ["--by", "source", "--field", "x"], "--field is for --by field"),
        ('{"text": "here"}\n', ["--by", "cluster", "--sample", "1"], "--sample 1 must be at least 10"),
        ('{"text": "here"}\n', ["--by", "cluster", "-o", "recipe.json"], "must end with .yaml"),
        ('{"text": "here"}\n', ["--by", "cluster", "-o", "no/recipe.yaml"], "there is no directory no"),
    ],
)
def test_mistakes_are_one_line(content, words, complaint, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.jsonl").write_text(content)
    assert main(["groups", "a.jsonl", *words]) == 2
    out, said = capsys.readouterr()
    assert out == ""
    assert complaint in said
    assert said.count("\n") == 1
    assert [file.name for file in tmp_path.iterdir()] == ["a.jsonl"]


def test_binary_files_are_refused_or_left_out(corpus, tmp_path, capsys):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.bin").write_bytes(bytes(range(256)) * 20)
    (tmp_path / "data" / "b.jsonl").write_bytes((tmp_path / "corpus.jsonl").read_bytes() + b"{oops\n")
    assert main(["groups", "data", "--by", "cluster"]) == 2
    assert "a.bin is binary, not text" in capsys.readouterr().err
    assert main(["groups", "data", "--by", "cluster", "--bad-records", "skip", "-o", "recipe.yaml"]) == 0
    out = capsys.readouterr().out
    assert "1 left out: binary files" in out
    assert "1 left out: bad records" in out
    assert yaml.safe_load((tmp_path / "recipe.yaml").read_text())["bad_records"] == "skip"


def test_nothing_is_overwritten_unasked_or_left_half_written(corpus, tmp_path, capsys):
    words = ["groups", "corpus.jsonl", "--by", "cluster", "-k", "3", "-o", "recipe.yaml"]
    assert main(words) == 0
    before = written()
    assert main(words) == 2
    assert "recipe.yaml is there already; --replace overwrites it" in capsys.readouterr().err
    assert main([*words, "--replace", "--seed", "1"]) == 0
    assert sorted(map(len, written().values())) == sorted(map(len, before.values()))
    (tmp_path / "recipe-groups" / "mine.txt").write_text("precious")
    assert main([*words, "--replace"]) == 2
    assert "holds something else" in capsys.readouterr().err
    assert main(["groups", "corpus.jsonl", "recipe-groups", "--by", "cluster", "-o", "other.yaml"]) == 0
    (tmp_path / "corpus.jsonl").write_bytes((tmp_path / "corpus.jsonl").read_bytes() + b"{oops\n")
    assert main(["groups", "corpus.jsonl", "--by", "cluster", "-k", "3", "-o", "third.yaml"]) == 2
    names = {file.name for file in tmp_path.iterdir()}
    assert names == {"corpus.jsonl", "recipe.yaml", "recipe-groups", "other.yaml", "other-groups"}


def test_own_output_is_not_read_while_it_is_replaced(corpus, tmp_path, capsys):
    assert main(["groups", "corpus.jsonl", "--by", "cluster", "-k", "3", "-o", "recipe.yaml"]) == 0
    assert main(["groups", "recipe-groups", "--by", "cluster", "-k", "2", "-o", "recipe.yaml", "--replace"]) == 2
    assert "is what an earlier proposal wrote" in capsys.readouterr().err
