"""Which facts a model knows, asked for one by one instead of as often as they come."""

import torch

from probes.config import FactsConfig
from probes.fact_tables import FactProbe, answers, are_answered, by_pair, factual, final_streams, margins, wrong_fact
from toytf.models.transformer import ToyTransformer
from toytf.probe import ProbeResult
from toytf.task import Batch, Reference, Task


class Facts(FactProbe):
    """`facts/accuracy` over all facts and draws of the noise, all alike, and what stands behind it.

    `facts/stored`               the fraction of facts that are right in every draw
    `facts/relation_accuracy`    how often the answer is one of A_r

    The facts that are wrong most often are named. Chance is a guess, the same in every draw.
    """

    config: FactsConfig

    @torch.no_grad()
    def __call__(self, model: ToyTransformer, task: Task, batch: Batch) -> ProbeResult:
        """Ask for every fact among fresh noise; the batch is not used."""
        task = factual(self.config.kind, task)
        draws, U, r = self.config.repeats, model.unembed.W_U, task.pairs[:, 1]
        x, said = final_streams(model, task, draws).flatten(0, 1), task.targets.repeat_interleave(draws)
        margin = margins(x, U, said)
        right = are_answered(margin, x, U, said)
        said[~right] = answers(x[~right], U)
        said, right = said.view(-1, draws), right.view(-1, draws)
        metrics = {
            "facts/accuracy": float(right.float().mean()),
            "facts/stored": float(right.all(1).float().mean()),
            "facts/relation_accuracy": float(task.sets[r[:, None], said].float().mean()),
        }
        guess = 1 / task.sets.shape[1]
        references = {
            "facts/accuracy": Reference(1.0, guess),
            "facts/stored": Reference(1.0, guess),
            "facts/relation_accuracy": Reference(1.0, float(task.sets.float().mean(1)[r].mean())),
        }
        often_wrong = (~right).sum(1).argsort(descending=True, stable=True)[: self.config.failures].tolist()
        failures = [
            wrong_fact(task, fact, int(said[fact][~right[fact]][0])) for fact in often_wrong if not right[fact].all()
        ]
        table = by_pair(margin.view(-1, draws).mean(1), task).cpu().numpy()

        def draw() -> object:
            from toytf.figures import heat_maps

            panel = (table, task.table.subject_names, task.table.relation_names)
            title = "Logit of the right answer above the best other, in the mean over noise: red is known, blue is not"
            return heat_maps({"": panel}, title, x="relation", y="subject")

        return ProbeResult(metrics, references, {"facts/accuracy": failures}, draw)
