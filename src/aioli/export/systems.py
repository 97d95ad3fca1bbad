"""A mixture in the configuration form of other systems: one writer for each, in a table.

In: shares that add up to 1 (`rounded`), and where the data of each group is. Out: text, with every name and path quoted
as its format wants it. docs/export.md says where each form is described.
"""

from __future__ import annotations

import difflib
import json
import re
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aioli.export.schedule import Schedule, rounded

Shares = Mapping[str, float]
Paths = Mapping[str, str]


@dataclass(frozen=True)
class System:
    """A system that takes mixtures."""

    name: str
    about: str
    suffix: str
    """How its files end."""
    place: str
    """Where data would be, to be filled in; the group stands for the braces."""
    write: Callable[[Shares, Paths], str]
    schedule: Callable[[Schedule, Paths, int | None], str] | None = None
    """Writes a mixture that moves, with the tokens of a step, for systems that can follow one; None: static only."""
    full: bool = False
    """Whether all there is gets written: groups without a share, and every segment of a mixture that moves."""
    steady: bool = False
    """Whether every phase must name the same groups, because the system knows them by their order."""

    def paths(self, groups: Sequence[str], given: Paths) -> dict[str, str]:
        """Where each group's data is: as given, or a place to be filled in."""
        return {group: given.get(group, self.place.format(_file_name(group))) for group in groups}

    def text(self, shares: Shares, given: Paths | None = None, keep: Collection[str] = ()) -> str:
        """The configuration of one mixture; groups to `keep` are named even if they have no share in it."""
        exact = rounded(shares)
        used = {name: share for name, share in exact.items() if share > 0 or self.full or name in keep}
        return self.write(used, self.paths(list(used), given or {}))


def _file_name(group: str) -> str:
    """A group as part of a path that is still to be filled in."""
    return re.sub(r"[^\w.-]+", "_", group)


def yaml_of(value: Any) -> str:
    """YAML, in the order given."""
    try:
        import yaml
    except ImportError:
        raise ValueError("YAML needs PyYAML: pip install 'aioli-mix[data]'") from None
    return str(yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=1 << 20)).rstrip("\n")


# ---------------------------------------------------------------------- plain


def _proportions(shares: Shares, paths: Paths) -> dict[str, Any]:
    return {"proportions": dict(shares)} | _places(paths)


def _places(paths: Paths) -> dict[str, Any]:
    """Paths, where some are given."""
    given = {name: path for name, path in paths.items() if path}
    return {"paths": given} if given else {}


def _steps(schedule: Schedule, paths: Paths, tokens: int | None) -> dict[str, Any]:
    """A schedule as plain data: `end` is the first step that is not of the phase."""
    phases = [
        {"begin": each.begin, "end": each.end, **({"tag": each.tag} if each.tag else {})}
        | {"proportions": rounded(schedule.shares(each))}
        for each in schedule.phases
    ]
    about = {"steps": schedule.steps, **({} if tokens is None else {"tokens_per_step": tokens})}
    return {"proportions": rounded(schedule.mean), **_places(paths), **about, "schedule": phases}


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


# ---------------------------------------------------------------------- Megatron-LM and what is built on it


def _blend(shares: Shares, paths: Paths) -> list[str]:
    """Weights and prefixes of preprocessed data by turns."""
    return [word for name, share in shares.items() for word in (f"{share:g}", paths[name])]


def _megatron(shares: Shares, paths: Paths) -> str:
    return f"--data-path {' '.join(shlex.quote(word) for word in _blend(shares, paths))}"


def _megatron_file(shares: Shares, paths: Paths) -> str:
    """The file is split at every blank, so that no path may hold one."""
    blank = [path for name, path in paths.items() if re.search(r"\s", path)]
    if blank:
        raise ValueError(f"{blank[0]!r} has a blank in it, where Megatron-LM would cut it; use --to megatron instead")
    words = _blend(shares, paths)
    return "\n".join(f"{weight} {path}" for weight, path in zip(words[::2], words[1::2], strict=True))


def _nemo(shares: Shares, paths: Paths) -> str:
    return yaml_of({"paths": _blend(shares, paths)})


def _nemo_1(shares: Shares, paths: Paths) -> str:
    pairs: list[float | str] = [each for name, share in shares.items() for each in (share, paths[name])]
    return yaml_of({"model": {"data": {"data_prefix": pairs}}})


# ---------------------------------------------------------------------- MosaicML


def _streams(shares: Shares, paths: Paths) -> dict[str, Any]:
    """Streams by name; a place with a protocol is downloaded from."""
    return {
        name: {"remote" if "://" in paths[name] else "local": paths[name], "split": "train", "proportion": share}
        for name, share in shares.items()
    }


def _mosaicml(shares: Shares, paths: Paths) -> str:
    return yaml_of({"train_loader": {"dataset": {"streams": _streams(shares, paths)}}})


def _curriculum(schedule: Schedule, paths: Paths, tokens: int | None) -> str:
    """LLM Foundry's callback: the first mixture is the loader's, the others follow, each for so many tokens."""
    if tokens is None:
        raise ValueError(
            "LLM Foundry counts a curriculum in tokens: add --tokens-per-step (global batch times sequence length)"
        )
    mixes = []
    for phase in schedule.phases:
        shares = {name: share for name, share in rounded(schedule.shares(phase)).items() if share > 0}
        mixes.append((f"{(phase.end - phase.begin) * tokens}tok", {"streams": _streams(shares, paths)}))
    later = [{"duration": duration, "dataset": dataset} for duration, dataset in mixes[1:]]
    return yaml_of(
        {
            "max_duration": f"{schedule.phases[-1].end * tokens}tok",
            "train_loader": {"dataset": mixes[0][1]},
            "callbacks": {"curriculum_learning": {"duration": mixes[0][0], "schedule": later}},
        }
        if later
        else {"train_loader": {"dataset": mixes[0][1]}}
    )


# ---------------------------------------------------------------------- OLMo-core, torchtitan, Hugging Face


def _olmo_core(shares: Shares, paths: Paths) -> str:
    named = [{"source_name": name, "target_ratio": share, "paths": [paths[name]]} for name, share in shares.items()]
    return yaml_of({"sources": named})


def _torchtitan(shares: Shares, paths: Paths) -> str:
    """Python, as its configurations are. It looks data sets up by their names in small letters."""
    small = {name: name.lower() for name in shares}
    if len(set(small.values())) < len(small):
        raise ValueError("torchtitan takes names in small letters only, and two groups differ by capitals alone")
    lines = [
        "from datasets import load_dataset",
        "from torchtitan.hf_datasets import DatasetConfig",
        "from torchtitan.hf_datasets.text_datasets import (",
        "    DATASETS,",
        "    HFDataSource,",
        "    InterleavedHuggingFaceTextDataLoader,",
        ")",
        "",
        "for name, path in {",
        *(f"    {small[name]!r}: {paths[name]!r}," for name in shares),
        "}.items():",
        "    DATASETS[name] = DatasetConfig(",
        "        path=path,",
        '        loader=lambda path: load_dataset(path, split="train", streaming=True),',
        '        sample_processor=lambda sample: sample["text"],',
        "    )",
        "",
        "dataloader = InterleavedHuggingFaceTextDataLoader.Config(",
        "    sources=[",
        *(f"        HFDataSource(dataset={small[name]!r}, weight={share!r})," for name, share in shares.items()),
        "    ],",
        ")",
    ]
    return "\n".join(lines)


def _hf(shares: Shares, paths: Paths) -> str:
    lines = [
        "from datasets import interleave_datasets, load_dataset",
        "",
        "data = {",
        *(f'    {name!r}: load_dataset({paths[name]!r}, split="train", streaming=True),' for name in shares),
        "}",
        "train = interleave_datasets(",
        "    list(data.values()),",
        f"    probabilities={list(shares.values())!r},",
        "    seed=0,",
        '    stopping_strategy="all_exhausted",',
        ")",
    ]
    return "\n".join(lines)


DOCUMENT = "/path/to/{}_text_document"
SYSTEMS: dict[str, System] = {
    each.name: each
    for each in (
        System(
            "json",
            "JSON: proportions, and the schedule if there is one",
            ".json",
            "",
            lambda shares, paths: _json(_proportions(shares, paths)),
            lambda schedule, paths, tokens: _json(_steps(schedule, paths, tokens)),
            full=True,
        ),
        System(
            "yaml",
            "YAML: the same",
            ".yaml",
            "",
            lambda shares, paths: yaml_of(_proportions(shares, paths)),
            lambda schedule, paths, tokens: yaml_of(_steps(schedule, paths, tokens)),
            full=True,
        ),
        System("megatron", "Megatron-LM: the words after --data-path", ".txt", DOCUMENT, _megatron),
        System("megatron-file", "Megatron-LM: a file for --data-args-path", ".txt", DOCUMENT, _megatron_file),
        System("nemo", "NeMo 2, Automodel, Megatron Bridge: the list of paths", ".yaml", DOCUMENT, _nemo),
        System("nemo-1", "NeMo 1: model.data.data_prefix", ".yaml", DOCUMENT, _nemo_1),
        System(
            "mosaicml",
            "Composer, LLM Foundry: streams, or a curriculum",
            ".yaml",
            "/path/to/{}",
            _mosaicml,
            _curriculum,
        ),
        System(
            "torchtitan",
            "torchtitan: a data loader that interleaves sources",
            ".py",
            "/path/to/{}",
            _torchtitan,
            steady=True,
        ),
        System("olmo-core", "OLMo-core: a SourceMixtureList", ".yaml", "/path/to/{}/*.npy", _olmo_core),
        System("hf", "Hugging Face datasets: interleave_datasets", ".py", "/path/to/{}", _hf),
    )
}


def system(name: str) -> System:
    """A system by its name."""
    if name not in SYSTEMS:
        near = difflib.get_close_matches(name, SYSTEMS, 1)
        near += [each.name for each in SYSTEMS.values() if name and name.lower() in each.about.lower()]
        hint = f"did you mean {near[0]}? " if near else ""
        raise ValueError(f"--to {name} is not known; {hint}there are {', '.join(SYSTEMS)}")
    return SYSTEMS[name]


def block(name: str, proportions: Shares) -> str:
    """A mixture in the words of one system, ready to paste, with places to be filled in."""
    return SYSTEMS[name].text(proportions)
