"""What `prepare` can be told: where documents come from, which group each is of, how they are split and tokenized."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from aioli.recipe import Field, Section, field_validator, model_validator, parse, read

Split = Literal["train", "val", "test", "val+test"]


class TrainTokenizer(Section):
    """A byte-level BPE trained on the data itself, offline."""

    vocab_size: int = Field(default=512, ge=257, le=1 << 24)
    """Number of tokens: 256 bytes, the end of a document, and merges."""
    sample_mb: float = Field(default=4.0, gt=0)
    """Megabytes of training text of each group that it is trained on."""


class TokenizerChoice(Section):
    """Which tokenizer; a plain string is its name."""

    name: str | None = None
    """A tokenizer.json, a directory with one, or a name on the Hugging Face hub."""
    revision: str | None = None
    """Which version of it on the hub."""
    eos: str | None = None
    """The token that ends a document; left out: what the tokenizer itself says."""
    train: TrainTokenizer | None = None
    """Train one instead."""

    @model_validator(mode="after")
    def _one(self) -> TokenizerChoice:
        if (self.name is None) == (self.train is None):
            raise ValueError("give either a name or `train: {vocab_size: 512}`")
        return self


class Splits(Section):
    """How much is held out of sources that have no split of their own."""

    val: float = Field(default=0.05, ge=0)
    """Below 1 a share of the documents, otherwise a number of documents of each group."""
    test: float = Field(default=0.05, ge=0)
    """Likewise."""
    seed: int = 0
    """Another seed holds out other documents."""

    @model_validator(mode="after")
    def _sane(self) -> Splits:
        for name, value in (("val", self.val), ("test", self.test)):
            if value >= 1 and value != int(value):
                raise ValueError(f"{name}={value} must be a share below 1 or a whole number of documents")
        if sum(v for v in (self.val, self.test) if v < 1) >= 1:
            raise ValueError(f"val={self.val} and test={self.test} leave nothing to train on")
        return self


class Source(Section):
    """Documents from one place."""

    files: list[str] = Field(default_factory=list)
    """Files, globs or directories: .jsonl and .parquet hold records, anything else is one document per file; .gz and
    .zst are unpacked."""
    dataset: str | None = None
    """Instead: a Hugging Face dataset, by hub name or local path."""
    subset: str | None = None
    """Its configuration, if it has several."""
    part: str = "train"
    """Which of its splits to read."""
    revision: str | None = None
    """Which version of it on the hub."""
    streaming: bool = True
    """Read it while it downloads; false: download all of it first."""
    local: bool = False
    """Instead: text found on this machine (Python's library, headers, documentation), to try things without data."""
    text_field: str = "text"
    """The field with the text; a dot goes into nested records."""
    prompt: str | None = None
    """Instruction data: what comes before the answer, without loss. A field, or a template such as "{question} " ."""
    completion: str | None = None
    """Instruction data: the answer, a field or a template. Only this carries loss."""
    group: str | None = None
    """The group of all documents of this source."""
    group_field: str | None = None
    """Or: the field that names each document's group, such as meta.redpajama_set_name."""
    group_by: Literal["file", "folder"] | None = None
    """Or: files are groups, named by their names without .jsonl.gz and the like; or folders are."""
    groups: dict[str, str] = Field(default_factory=dict)
    """Names that are found, and what to call them; if given, other documents are left out and counted."""
    split: Split | None = None
    """Which split the documents belong to; val+test shuffles and halves them. Left out: by `splits`."""

    @field_validator("files", mode="before")
    @classmethod
    def _list(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    @model_validator(mode="after")
    def _one(self) -> Source:
        if sum((bool(self.files), self.dataset is not None, self.local)) != 1:
            raise ValueError("a source is one of files, dataset, or local: true")
        named = sum(x is not None for x in (self.group, self.group_field, self.group_by))
        if named != (0 if self.local else 1):
            raise ValueError(
                "local text comes with its groups" if self.local else "give one of group, group_field, group_by"
            )
        if self.group_by and not self.files:
            raise ValueError("group_by is for files")
        if (self.prompt is None) != (self.completion is None):
            raise ValueError("instruction data needs both prompt and completion")
        for name, template in (("prompt", self.prompt), ("completion", self.completion)):
            if template is not None and set(re.sub(r"\{[^{}]+\}", "", template)) & set("{}"):
                raise ValueError(f"{name}={template!r} has a brace without its other half; a field is {{name}}")
        if self.group is not None and self.groups:
            raise ValueError("`groups` renames what group_field or group_by finds; it is of no use with group")
        return self

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields of a record that are read."""
        read = [self.text_field] if self.completion is None else []
        for template in (self.prompt, self.completion):
            if template is not None:
                read += template_fields(template)
        return tuple(dict.fromkeys([*read, *([self.group_field] if self.group_field else [])]))


def template_fields(template: str) -> list[str]:
    """The fields in a template, or the field that it is."""
    return re.findall(r"\{([^{}]+)\}", template) or [template]


def ready() -> dict[str, str]:
    """The recipes that come with the package, as YAML."""
    folder = resources.files("aioli.data") / "recipes"
    files = [file for file in folder.iterdir() if file.name.endswith(".yaml")]
    return {file.name.removesuffix(".yaml"): file.read_text(encoding="utf-8") for file in files}


def find(name: str | Path) -> dict[str, Any]:
    """A recipe as plain data: a file, or a ready one by its name."""
    known = ready()
    if str(name) in known and not Path(name).is_file():
        return dict(parse(known[str(name)], str(name)))
    if not Path(name).exists():
        raise ValueError(f"{name} is neither a file nor a ready recipe ({', '.join(sorted(known))})")
    return read(name)


class DataRecipe(Section):
    """Documents to tokens."""

    sources: list[Source] = Field(min_length=1)
    """Where documents come from; read in this order."""
    tokenizer: TokenizerChoice = TokenizerChoice(train=TrainTokenizer())
    """A name or path, or `train: {vocab_size: 512}`."""
    context: int = Field(default=1024, ge=2, le=1 << 20)
    """Tokens in a sequence."""
    splits: Splits = Splits()
    """What is held out for validation and test."""
    cut: int | None = Field(default=None, ge=1000)
    """Cut documents longer than so many characters at line ends: a few long ones would make an uneven split."""
    bad_records: Literal["error", "skip"] = "error"
    """What to do with a record that cannot be read: stop, or leave it out and count it."""

    @field_validator("tokenizer", mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value
