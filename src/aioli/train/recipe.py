"""What `aioli train` can be told: data, model, training, method, seed."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from aioli.recipe import Field, Section, field_validator, model_validator
from aioli.runs.spec import BUDGETS


class DataChoice(Section):
    """Which tokens; a plain string is a store."""

    shorthand: ClassVar[str] = "store"

    store: str
    """A token store made by `aioli prepare`."""
    groups: list[str] = Field(default_factory=list)
    """Groups to train on; left out: all of the store that have training data and are not named as targets."""
    targets: list[str] = Field(default_factory=list)
    """What the model is to be good at; left out: the groups themselves."""
    weights: dict[str, float] = Field(default_factory=dict)
    """How much each target counts, by name; one that is left out counts 1."""
    on_exhausted: Literal["repeat", "cap", "error"] = "repeat"
    """When a group has been gone through: repeat it, give its share to the others, or stop."""
    max_epochs: float | None = Field(default=None, gt=0)
    """How often a group may be gone through (with cap and error)."""
    verify: bool = True
    """Compare arrays with their checksums before a run, once in each process; false: trust a very large store."""


class ModelChoice(Section):
    """Which model; a plain string is a preset."""

    shorthand: ClassVar[str] = "preset"

    preset: str | None = None
    """A size that is built offline: tiny, tiny-128, tiny-256, pythia-14m … pythia-1.4b."""
    name: str | None = None
    """Instead: any causal language model of transformers, a directory or a name on the hub."""
    revision: str | None = None
    """Which version of it on the hub."""
    scratch: bool = False
    """Take only the architecture of `name` and begin with random weights."""
    config: dict[str, Any] = Field(default_factory=dict)
    """Fields of its configuration to change."""

    @model_validator(mode="after")
    def _one(self) -> ModelChoice:
        if (self.preset is None) == (self.name is None):
            raise ValueError("give either a preset (tiny, pythia-160m…) or the name of a model")
        return self


class TrainChoice(Section):
    """How it is trained."""

    steps: int = Field(default=2000, ge=1)
    """Optimizer steps."""
    batch: int = Field(default=16, ge=1)
    """Sequences in a step, over all devices."""
    lr: float = Field(default=4e-3, gt=0)
    """Peak learning rate; the default suits the tiny presets."""
    horizon: int | None = Field(default=None, ge=1)
    """Steps over which the learning rate rises and falls; left out: those of the run, with its parent's."""
    warmup: float = Field(default=0.05, ge=0)
    """Steps of linear warm-up; below 1 a share of the horizon."""
    floor: float = Field(default=0.1, ge=0, le=1)
    """Learning rate at the end, as a share of the peak."""
    betas: tuple[float, float] = (0.9, 0.95)
    """AdamW's averaging."""
    eps: float = Field(default=1e-8, gt=0)
    """AdamW's epsilon."""
    decay: float = Field(default=0.1, ge=0)
    """Weight decay, on matrices only."""
    clip: float = Field(default=1.0, ge=0)
    """Largest norm of the gradient; 0: any."""
    accumulate: int = Field(default=1, ge=1)
    """Parts in which the batch of a device is computed."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """auto: bf16 on accelerators that have it, fp32 on a CPU."""
    compile: bool = False
    """Use torch.compile."""
    threads: int | None = Field(default=None, ge=1)
    """CPU threads; left out: as torch decides."""


class ValChoice(Section):
    """How the validation loss is looked at while training."""

    tokens: int | None = Field(default=None, ge=1)
    """Tokens of all targets in each look that the method asks for; left out: as many as `share` allows."""
    share: float = Field(default=0.04, gt=0, le=1)
    """Share of the training compute that all these looks together may take."""
    batch: int = Field(default=64, ge=1)
    """Sequences in one forward pass."""
    every: int | None = Field(default=None, ge=0)
    """Steps between looks that are for the journal, at 1% of the compute; left out: a tenth of the run; 0: none."""
    final: int | None = Field(default=None, ge=1)
    """Sequences of each target that a finished model is judged on, the same for all runs; left out: all there are."""
    gradients: Literal["sum", "matrix"] = "sum"
    """Inner products of gradients (DoGE): summed over the targets in one pass, or for each target, n passes."""


class CheckpointChoice(Section):
    """How often a run is saved."""

    every: int = Field(default=500, ge=1)
    """Steps between checkpoints."""
    keep: int = Field(default=2, ge=1)
    """How many of the last ones stay."""


TOWARDS = "aioli-pooled"
"""The method of who names a target and no method."""


class MethodChoice(Section):
    """Who chooses the mixture; a plain string is its name."""

    name: str = "aioli"
    """A method (`aioli methods` lists them). Left out towards a single target that is not trained on: aioli-pooled."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Its settings (`aioli methods NAME` lists them)."""
    rules: dict[str, Any] | None = None
    """Instead of a method, the rules that drive the run, as plain data: what a run store writes."""
    reference: str | None = None
    """The run whose model is the reference (DoReMi)."""


class ProxyChoice(Section):
    """Extra runs, where they are not like the final one."""

    model: ModelChoice | None = None
    """Their model; left out: the final one."""
    steps: int | None = Field(default=None, ge=1)
    """Steps of each; left out: as many as the budget allows."""
    lr: float | None = Field(default=None, gt=0)
    """Their peak learning rate; left out: as train.lr."""

    @field_validator("model", mode="before")
    @classmethod
    def _preset(cls, value: Any) -> Any:
        return {"preset": value} if isinstance(value, str) else value


class TrainRecipe(Section):
    """One training run, and the extra runs of methods that need some."""

    data: DataChoice
    """The tokens."""
    model: ModelChoice = ModelChoice(preset="tiny")
    """The model."""
    train: TrainChoice = TrainChoice()
    """Optimization."""
    method: MethodChoice = MethodChoice()
    """The mixture."""
    val: ValChoice = ValChoice()
    """Looks at the validation loss."""
    proxy: ProxyChoice = ProxyChoice()
    """Extra runs (mix, compare and plan)."""
    budget: str | float = "unrestricted"
    """Steps of all extra runs (mix, compare and plan): unrestricted (10), restricted (0.5), or a number, in units of
    train.steps."""
    checkpoint: CheckpointChoice = CheckpointChoice()
    """Checkpoints."""
    parent: str | None = None
    """A finished run to go on from, with its weights, optimizer and place in the data; it must have kept its last
    checkpoint."""
    trackers: list[str] = Field(default_factory=list)
    """Where else to report: tensorboard, wandb, mlflow, trackio."""
    seed: int = Field(default=0, ge=0)
    """Fixes everything: weights, order of the data, the method's own randomness."""

    @model_validator(mode="after")
    def _towards(self) -> TrainRecipe:
        """Who names a target and no method has the one that gains more than Aioli there (docs/results.md)."""
        alone = len(self.data.targets) == 1 and not set(self.data.targets) <= set(self.data.groups)
        if alone and "name" not in self.method.model_fields_set and self.method.rules is None:
            object.__setattr__(self, "method", self.method.model_copy(update={"name": TOWARDS}))
        return self

    @field_validator("budget", mode="before")
    @classmethod
    def _budget(cls, value: Any) -> Any:
        number = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf")
        if not number and (not isinstance(value, str) or value not in BUDGETS):
            raise ValueError(f"must be one of {', '.join(BUDGETS)}, or a positive number")
        return value

    @field_validator("data", mode="before")
    @classmethod
    def _store(cls, value: Any) -> Any:
        return {"store": value} if isinstance(value, str) else value

    @field_validator("model", mode="before")
    @classmethod
    def _preset(cls, value: Any) -> Any:
        return {"preset": value} if isinstance(value, str) else value

    @field_validator("method", mode="before")
    @classmethod
    def _method(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value
