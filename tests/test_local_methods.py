"""The methods on real text: this machine's own, with a real tokenizer."""

import pytest
import torch

from aioli.data import prepare
from aioli.train import Run, TrainRecipe

GROUPS = ["python", "headers", "stubs"]
METHODS = {
    "stratified": {"name": "stratified"},
    "aioli": {"name": "aioli", "settings": {"rounds": 4}},
    "aioli, moving average": {"name": "aioli", "settings": {"rounds": 4, "gamma": 0.5}},
    "aioli-static": {"name": "aioli-static"},
    "aioli-diagonal": {"name": "aioli-diagonal", "settings": {"rounds": 4}},
    "aioli-ood": {"name": "aioli-ood", "settings": {"rounds": 4}},
    "skill-it": {"name": "skill-it", "settings": {"graph": [[0.4, 0.2, 0.3], [0.2, 0.5, 0.2], [0.3, 0.2, 0.5]]}},
    "doremi": {"name": "doremi", "settings": {"proxy": True}},
    "doge": {"name": "doge", "settings": {"proxy": True, "eta": 0.1}},
    "odm": {"name": "odm"},
    "ado": {"name": "ado"},
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    torch.set_num_threads(1)
    return prepare("local", tmp_path_factory.mktemp("local") / "store")


@pytest.fixture(scope="module")
def reference(corpus, tmp_path_factory):
    path = tmp_path_factory.mktemp("reference") / "run"
    return train(corpus, METHODS["stratified"], path), path


def train(corpus, method, path):
    targets = ["prose"] if method["name"] == "aioli-ood" else GROUPS
    data = {"store": str(corpus.path), "groups": GROUPS, "targets": targets}
    recipe = {"data": data, "train": {"steps": 120, "threads": 1}, "method": method}
    return Run(TrainRecipe.model_validate(recipe), path).train()


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_methods_learn_real_text(name, corpus, reference, tmp_path):
    method = dict(METHODS[name])
    if method["name"] == "doremi":
        method["reference"] = str(reference[1])
    result = train(corpus, method, tmp_path / "run")
    begun = 6.2  # the logarithm of the vocabulary: a model that knows nothing
    assert result["test"]["mean_loss"] < (begun - 0.9 if name == "aioli-ood" else begun - 1.8)
    assert sum(result["mean_proportions"].values()) == pytest.approx(1)
    if name not in ("aioli-ood", "stratified"):
        assert result["test"]["mean_loss"] == pytest.approx(reference[0]["test"]["mean_loss"], abs=0.25)
