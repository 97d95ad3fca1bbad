"""Tokenizers: loaded by name or path, or trained on the data; kept with the store in a form that others can load.

Text is only text: the name of a special token inside a document is encoded letter by letter, never as that token.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aioli.data.documents import cut_at_lines
from aioli.data.recipe import TokenizerChoice

try:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
except ImportError:
    raise ValueError("tokenizing needs tokenizers: pip install 'aioli-mix[data]'") from None

EOS = "<|endoftext|>"
_USUAL = (EOS, "</s>", "<eos>", "<|end_of_text|>", "<|eos|>", "[EOS]", "<end_of_text>")
_LONG = 1 << 20
"""Longer documents are encoded in pieces, cut at line ends: in parallel, and in bounded memory."""


class Encoder:
    """A tokenizer with an end of document."""

    def __init__(self, backend: Any, eos: str | None, name: str, slow: Any = None) -> None:
        self.backend, self.name, self.slow = backend, name, slow
        if slow is None:
            backend.no_truncation()
            backend.no_padding()
            backend.encode_special_tokens = True
        vocabulary = (slow or backend).get_vocab()
        self.vocabulary = 1 + max(vocabulary.values())
        self.eos_token = eos or next((token for token in _USUAL if token in vocabulary), None)
        if self.eos_token is None:
            raise ValueError(
                f"tokenizer {name} does not say how a document ends; give tokenizer.eos, one of its tokens"
            )
        if self.eos_token not in vocabulary:
            raise ValueError(f"tokenizer.eos={self.eos_token!r} is not a token of {name}")
        self.eos = int(vocabulary[self.eos_token])
        self._splittable = slow is None and _splittable(backend.to_str())

    @property
    def dtype(self) -> str:
        """The smallest type that holds its tokens."""
        return "uint16" if self.vocabulary <= 1 << 16 else "uint32"

    def encode(self, texts: Sequence[str]) -> list[NDArray[Any]]:
        """The tokens of each text, on all cores."""
        pieces = [cut_at_lines(text, _LONG) if self._splittable else [text] for text in texts]
        ids = iter(self._raw([piece for several in pieces for piece in several]))
        result = []
        for text, several in zip(texts, pieces, strict=True):
            tokens = self._joined([next(ids) for _ in several])
            result.append(self._without_eos(text) if (tokens == self.eos).any() else tokens)
        return result

    def _raw(self, texts: list[str]) -> Iterable[Sequence[int]]:
        if self.slow is None:
            return (e.ids for e in self.backend.encode_batch_fast(texts, add_special_tokens=False))
        found: Iterable[Sequence[int]] = self.slow(
            texts, add_special_tokens=False, split_special_tokens=True, verbose=False
        )["input_ids"]
        return found

    def _joined(self, parts: Iterable[Sequence[int]]) -> NDArray[Any]:
        tokens = array("H" if self.dtype == "uint16" else "I")
        for part in parts:
            tokens.extend(part)
        return np.frombuffer(tokens, dtype=self.dtype) if tokens else np.zeros(0, dtype=self.dtype)

    def _without_eos(self, text: str) -> NDArray[Any]:
        """Tokens of a text in which the model itself, not its list of special tokens, has found the end of a document:
        its letters are encoded apart."""
        assert self.eos_token is not None
        first, *rest = text.split(self.eos_token)
        pieces = [first, *(piece for part in rest for piece in (*self.eos_token, part))]
        tokens = self._joined(self._raw([piece for piece in pieces if piece]))
        without: NDArray[Any] = tokens[tokens != self.eos]
        return without

    def save(self, directory: Path) -> None:
        """Write it so that `AutoTokenizer.from_pretrained(directory)` finds the same."""
        directory.mkdir(parents=True, exist_ok=True)
        if self.slow is not None:
            self.slow.save_pretrained(directory)
            return
        (directory / "tokenizer.json").write_text(self.backend.to_str(pretty=True), encoding="utf-8")
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": self.eos_token}
        (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=1))

    @property
    def fingerprint(self) -> str:
        """Changes when any text would be encoded otherwise; how documents end does not matter."""
        if self.slow is None:
            return hashlib.sha256(self.backend.to_str().encode()).hexdigest()
        with tempfile.TemporaryDirectory() as place:
            self.slow.save_pretrained(place)
            files = sorted(path for path in Path(place).rglob("*") if path.is_file() and "config" not in path.name)
            content = [(path.name, path.read_bytes().hex()) for path in files]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _splittable(tokenizer: str) -> bool:
    """Whether a text may be encoded in pieces: not where the tokenizer puts a space in front of every text."""
    return not any(sign in tokenizer for sign in ('"Metaspace"', '"Prepend"', '"add_prefix_space":true'))


def load(choice: TokenizerChoice) -> Encoder:
    """The tokenizer that a recipe names."""
    assert choice.name is not None
    path = Path(choice.name).expanduser()
    if not path.exists() and (path.is_absolute() or choice.name.startswith((".", "~")) or path.suffix == ".json"):
        raise ValueError(f"tokenizer {choice.name!r}: there is no such file or directory")
    try:
        if path.is_file():
            backend, eos, slow = Tokenizer.from_file(str(path)), _eos_beside(path.parent), None
        elif (path / "tokenizer.json").is_file():
            backend, eos, slow = Tokenizer.from_file(str(path / "tokenizer.json")), _eos_beside(path), None
        else:
            backend, eos, slow = _from_hub(choice)
    except Exception as error:  # the Rust library and the hub raise plain and many exceptions
        raise ValueError(
            f"cannot load tokenizer {choice.name!r}: {why_not(error)}; give a tokenizer.json, a directory "
            "with one, or a name on the hub"
        ) from None
    return Encoder(backend, choice.eos or eos, choice.name, slow)


def why_not(error: Exception) -> str:
    """In one line, why transformers did not load something; where it would have to run foreign code, that we do not."""
    if "trust_remote_code" in str(error):
        return "it needs Python code that comes with it, which aioli never runs (SECURITY.md)"
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _eos_beside(directory: Path) -> str | None:
    """The end of a document as the files next to a tokenizer.json say it."""
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        file = directory / name
        if file.is_file():
            try:
                token = json.loads(file.read_text(encoding="utf-8")).get("eos_token")
            except (ValueError, AttributeError):
                continue
            token = token.get("content") if isinstance(token, dict) else token
            if isinstance(token, str):
                return token
    return None


def _from_hub(choice: TokenizerChoice) -> tuple[Any, str | None, Any]:
    revision = choice.revision or "main"
    try:
        from transformers import AutoTokenizer
    except ImportError:
        return Tokenizer.from_pretrained(str(choice.name), revision=revision), None, None
    loaded = AutoTokenizer.from_pretrained(choice.name, revision=revision, trust_remote_code=False)
    backend = getattr(loaded, "backend_tokenizer", None)
    return backend, loaded.eos_token, None if backend is not None else loaded


def train(choice: TokenizerChoice, texts: Iterable[str]) -> Encoder:
    """A byte-level BPE of the texts."""
    assert choice.train is not None
    eos = choice.eos or EOS
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=choice.train.vocab_size,
        special_tokens=[eos],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return Encoder(tokenizer, eos, f"byte-level BPE of {tokenizer.get_vocab_size()} tokens, trained here")
