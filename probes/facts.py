"""Which facts a model knows, asked for one by one instead of as often as they come."""

import torch

from probes.config import FactsConfig
from probes.fact_tables import accuracy, by_pair, fact_logits, factual, wrong_fact
from toytf.models.transformer import ToyTransformer
from toytf.probe import Probe, ProbeResult
from toytf.task import Batch, Reference, Task


class Facts(Probe):
    """`facts/accuracy` over all facts and draws of the noise, all alike, and what stands behind it.

    `facts/stored`               the fraction of facts that are right in every draw
    `facts/relation_accuracy`    how often the answer is one of A_r

    The facts that are wrong most often are named. Chance is a guess, the same in every draw.
    """

    config: FactsConfig

    def check(self, model: ToyTransformer, task: Task) -> None:
        """Refuse a task without facts."""
        factual(self.config.kind, task)

    @torch.no_grad()
    def __call__(self, model: ToyTransformer, task: Task, batch: Batch) -> ProbeResult:
        """Ask for every fact among fresh noise; the batch is not used."""
        task = factual(self.config.kind, task)
        logits = fact_logits(model, task, self.config.repeats)
        said, in_set = logits.argmax(-1), task.sets[task.pairs[:, 1]]
        right = said == task.targets[:, None]
        metrics = {
            "facts/accuracy": accuracy(logits, task),
            "facts/stored": float(right.all(1).float().mean()),
            "facts/relation_accuracy": float(in_set.gather(1, said).float().mean()),
        }
        guess = 1 / in_set.shape[1]
        references = {
            "facts/accuracy": Reference(1.0, guess),
            "facts/stored": Reference(1.0, guess),
            "facts/relation_accuracy": Reference(1.0, float(in_set.float().mean())),
        }
        often_wrong = (~right).sum(1).argsort(descending=True, stable=True)[: self.config.failures].tolist()
        failures = [
            wrong_fact(task, fact, int(said[fact][~right[fact]][0])) for fact in often_wrong if not right[fact].all()
        ]
        target = task.targets[:, None, None].expand(*said.shape, 1)
        margins = logits.gather(2, target)[..., 0] - logits.scatter(2, target, -torch.inf).amax(2)
        table = by_pair(margins.mean(1), task).cpu().numpy()

        def draw() -> object:
            from toytf.figures import heat_maps

            panel = (table, task.table.subject_names, task.table.relation_names)
            title = "Logit of the right answer above the best other, in the mean over noise: red is known, blue is not"
            return heat_maps({"": panel}, title, x="relation", y="subject")

        return ProbeResult(metrics, references, {"facts/accuracy": failures}, draw)
