"""What the probes of factual recall can be asked."""

from typing import ClassVar, Literal

from pydantic import PositiveInt

from toytf.config.plugins import ProbeConfig
from toytf.measurement import Section

MANY_FACTS = 2048
"""Beyond so many facts the probes of factual recall are done at the end only, if nothing else is said."""


class _FactProbeConfig(ProbeConfig):
    """What the probes of factual recall share: they ask for every fact among fresh noise."""

    needs_roles: ClassVar[tuple[str, ...]] = ("fact", "relation", "within_set")

    when: Literal["auto", "always", "end"] = "auto"  # type: ignore[assignment]  # one choice more
    """At every evaluation of a training (always), only after its last step (end), or auto: always with at most
    2,048 facts, otherwise end."""
    repeats: PositiveInt = 8
    """In how many sequences each fact is asked."""


class FactsProbeConfig(_FactProbeConfig):
    """Which facts the model knows, each asked equally often."""

    implementation: ClassVar[str] = "probes.factual.facts:FactsProbe"
    section: ClassVar[Section] = "facts"

    kind: Literal["facts"]
    when: Literal["always", "end"] = "always"
    """At every evaluation of a training, or only after its last step."""
    failures: PositiveInt = 10
    """How many wrong facts to name."""


class OwnershipProbeConfig(_FactProbeConfig):
    """Which head attends to which subject and relation, and how close its keys are to the construction."""

    implementation: ClassVar[str] = "probes.factual.ownership:Ownership"

    kind: Literal["ownership"]


class ValueMemoryProbeConfig(_FactProbeConfig):
    """Which answers the values of subjects and relations predict by themselves."""

    implementation: ClassVar[str] = "probes.factual.value_memory:ValueMemory"

    kind: Literal["value_memory"]
    failures: PositiveInt = 10
    """How many wrong facts to name."""


class AdditivityProbeConfig(_FactProbeConfig):
    """How much of the logits is a sum over subject and relation, and how many facts that sum answers."""

    implementation: ClassVar[str] = "probes.factual.additivity:Additivity"

    kind: Literal["additivity"]
    failures: PositiveInt = 10
    """How many facts that the sum misses to name."""


class FactStorageProbeConfig(_FactProbeConfig):
    """Whether facts are stored in attention or in the feed-forward part."""

    implementation: ClassVar[str] = "probes.factual.fact_storage:FactStorage"

    kind: Literal["fact_storage"]


class PairMemoryProbeConfig(_FactProbeConfig):
    """The feed-forward part as a memory of pairs: compared with least squares, and with the relation swapped."""

    implementation: ClassVar[str] = "probes.factual.pair_memory:PairMemory"

    kind: Literal["pair_memory"]
    failures: PositiveInt = 10
    """How many facts that least squares misses to name."""


class ValueAlignmentProbeConfig(_FactProbeConfig):
    """The values of subjects and relations, compared with those of the construction."""

    implementation: ClassVar[str] = "probes.factual.value_alignment:ValueAlignment"

    kind: Literal["value_alignment"]


class FactRatiosProbeConfig(_FactProbeConfig):
    """Facts and bits per parameter, and which theorems say that the model is large enough."""

    implementation: ClassVar[str] = "probes.factual.fact_ratios:FactRatios"
    reads_batch: ClassVar[bool] = False

    kind: Literal["fact_ratios"]
    when: Literal["always", "end"] = "end"
    """At every evaluation of a training, or only after its last step."""
