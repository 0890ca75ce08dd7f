"""Which facts a model knows, asked for one by one instead of as often as they come."""

from probes.factual.config import FactsProbeConfig
from probes.factual.tables import FactProbe
from tasks.factual.sheet import sheet_of
from tasks.factual.streams import replies
from tasks.factual.task import FactualTask
from toytf.measurement import Group, Headline
from toytf.models.transformer import ToyTransformer
from toytf.probe import ProbeResult

FACTS = Group(
    "facts", "Facts known", "How many facts the model knows, each asked equally often; `stored` counts those "
    "that are answered correctly in every draw of the noise. Chance is a guess.",
    section="facts", headline=(Headline("stored", "facts that are right whatever the noise around them", 1),),
    meanings=(
        ("accuracy*", "Fraction of the facts answered correctly, each asked equally often; 1 if the model knows all."),
        ("stored*", "Fraction of the facts answered correctly in every draw of the noise around them; 1 if the model "
         "knows all for sure."),
        ("relation_accuracy*", "How often the answer belongs to the right relation, whatever the subject; 1 once "
         "relations are known."),
    ),
)  # fmt: skip


class FactsProbe(FactProbe):
    """`facts/accuracy` over all facts and draws of the noise, each counted alike, and two that explain it.

    `facts/stored`               the fraction of facts that are right in every draw
    `facts/relation_accuracy`    how often the answer is one of A_r

    Wrong facts are named, those of the smallest margin first. Chance is a guess, the same in every draw.
    """

    config: FactsProbeConfig

    def measure(self, model: ToyTransformer, task: FactualTask) -> ProbeResult:
        """Ask for every fact among fresh noise."""
        found, r = replies(model, task, self.config.repeats), task.pairs[:, 1]
        sheet = sheet_of(found, task)
        guess, guess_in_set = 1 / task.sets.shape[1], float(task.sets.float().mean(1)[r].mean())
        in_set = float(task.sets[r[:, None], found.said].float().mean())
        measured = [
            FACTS.measurement(float(found.right.float().mean()), "accuracy", ideal=1.0, chance=guess),
            FACTS.measurement(float(found.right.all(1).float().mean()), "stored", ideal=1.0, chance=guess),
            FACTS.measurement(in_set, "relation_accuracy", ideal=1.0, chance=guess_in_set),
        ]
        return ProbeResult(measured, {measured[0].flat: [*map(str, sheet.wrong(self.config.failures))]}, sheet.figure)
