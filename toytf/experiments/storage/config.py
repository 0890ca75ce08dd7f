"""The config of the experiment `storage`."""

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, TypeAlias

from pydantic import Field, PositiveInt, model_validator

from toytf.config.sections import Config, Unique
from toytf.experiments.pairs import DataConfig, Size, TrainedRulesConfig, any_has_width, check_rank, rules_named
from toytf.experiments.seeded import SeededConfig
from toytf.memory.rules import RULES

if TYPE_CHECKING:
    StorageRule: TypeAlias = str
else:
    StorageRule = Literal[tuple(RULES)]
"""The names of all rules; one that `storage` does not have gets a sentence of its own."""


class PairsConfig(Config):
    """Facts about pairs: keys (e_s + ẽ_r)/√2, answers drawn from the pool of the second part."""

    first: PositiveInt = 16
    second: PositiveInt = 16
    answers: PositiveInt = 8
    """Answers in the pool of each second part; pools are disjoint."""


class StorageConfig(SeededConfig):
    """How different rules store the same associations: recall, margins, scores and spectrum."""

    implementation: ClassVar[str] = "toytf.experiments.storage.experiment:Storage"

    experiment: Literal["storage"]
    rules: Annotated[tuple[StorageRule, ...], Unique] = Field(min_length=1)
    dimension: Size = 64
    n: PositiveInt | None = None
    """How many associations (answers, with noise vectors); with pairs it follows from them."""
    width: PositiveInt | None = None
    data: DataConfig = DataConfig()
    noise_vectors: PositiveInt | None = None
    """How many random noise vectors there are: every key is stored once with each of them added."""
    pairs: PairsConfig | None = None
    iterations: PositiveInt = 1500
    """Steps of the rules optimum and max_margin, at most; what max_margin leaves open then is polished."""
    trained: TrainedRulesConfig = TrainedRulesConfig()

    @model_validator(mode="after")
    def _rules_fit(self) -> "StorageConfig":
        for rule in rules_named(self.rules):
            if rule.width != "none" and self.width is None:
                raise ValueError(
                    f'width is missing, but the rule "{rule.name}" has a width: give one, such as width: 16'
                )
            if rule.pairs and self.pairs is None:
                raise ValueError(f'pairs is missing, but the rule "{rule.name}" needs keys that are sums of two parts')
            if rule.decoupled and (self.pairs, self.noise_vectors) != (None, None):
                raise ValueError(
                    f'the rule "{rule.name}" draws rivals for every key alone: leave out pairs and noise_vectors'
                )
            if "storage" not in rule.experiments:
                raise ValueError(f'the rule "{rule.name}" is only for the experiment {rule.experiments[0]}')
            check_rank(rule, self.width or 0, self.dimension)
        if self.width is not None and not any_has_width(self.rules):
            raise ValueError("width is given, but none of the rules has a width")
        if self.pairs is None and self.n is None:
            raise ValueError("n is missing: say how many associations to store")
        if self.pairs is not None and (self.noise_vectors, self.n, self.data.n_answers) != (None, None, None):
            raise ValueError(
                "pairs already says how many associations there are: leave out n, noise_vectors and data.n_answers"
            )
        return self

    def needs(self) -> float:
        """The scores of all pairs, if n says how many there are: drawing these alone takes long."""
        n = self.n or 0
        return 4.0 * n * min(n, self.data.n_answers or n)
