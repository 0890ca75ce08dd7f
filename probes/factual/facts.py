"""Which facts a model knows, asked for one by one instead of as often as they come."""

from probes.factual.config import FactsProbeConfig
from probes.factual.tables import FactProbe, answers, are_answered, by_pair, final_streams, margins, wrong_fact
from tasks.factual.task import FactualTask
from toytf.measurement import Group, Headline
from toytf.models.transformer import ToyTransformer
from toytf.probe import ProbeResult

FACTS = Group(
    "facts", "Facts known", "How many facts the model knows, each asked equally often; `stored` counts those "
    "that are answered correctly in every draw of the noise. Chance is a guess.",
    headline=(Headline("stored", "facts that are right whatever the noise around them", 1),),
)  # fmt: skip


class FactsProbe(FactProbe):
    """`facts/accuracy` over all facts and draws of the noise, each counted alike, and two that explain it.

    `facts/stored`               the fraction of facts that are right in every draw
    `facts/relation_accuracy`    how often the answer is one of A_r

    The facts that are wrong most often are named. Chance is a guess, the same in every draw.
    """

    config: FactsProbeConfig

    def measure(self, model: ToyTransformer, task: FactualTask) -> ProbeResult:
        """Ask for every fact among fresh noise."""
        draws, U, r = self.config.repeats, model.unembed.W_U, task.pairs[:, 1]
        x, predicted = final_streams(model, task, draws).flatten(0, 1), task.targets.repeat_interleave(draws)
        margin = margins(x, U, predicted)
        right = are_answered(margin, x, U, predicted)
        predicted[~right] = answers(x[~right], U)
        predicted, right = predicted.view(-1, draws), right.view(-1, draws)
        guess, guess_in_set = 1 / task.sets.shape[1], float(task.sets.float().mean(1)[r].mean())
        in_set = float(task.sets[r[:, None], predicted].float().mean())
        found = [
            FACTS.measurement(float(right.float().mean()), "accuracy", ideal=1.0, chance=guess),
            FACTS.measurement(float(right.all(1).float().mean()), "stored", ideal=1.0, chance=guess),
            FACTS.measurement(in_set, "relation_accuracy", ideal=1.0, chance=guess_in_set),
        ]
        often_wrong = (~right).sum(1).argsort(descending=True, stable=True)[: self.config.failures].tolist()
        wrong = [
            wrong_fact(task, fact, int(predicted[fact][~right[fact]][0]))
            for fact in often_wrong
            if not right[fact].all()
        ]
        table = by_pair(margin.view(-1, draws).mean(1), task).cpu().numpy()

        def draw() -> object:
            from toytf.figures import heat_maps

            panel = (table, task.table.subject_names, task.table.relation_names)
            title = "Logit of the right answer minus the best other one, averaged over noise: red is known, blue is not"
            return heat_maps({"": panel}, title, x="relation", y="subject")

        return ProbeResult(found, {found[0].flat: wrong}, draw)
