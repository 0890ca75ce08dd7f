"""The activations of one forward of a toy, as TransformerLens keeps them, and how its stream splits into parts."""

import inspect
import re
from typing import Any

import torch
from transformer_lens import ActivationCache

from toytf.errors import UserError


class ToyCache(ActivationCache):  # type: ignore[misc]
    """An ActivationCache whose parts add up to the stream of any toy; it refuses to split what has no such parts.

    Where a layer has no residual path, the stream loses all earlier parts: they are 0 from there on.
    """

    def decompose_resid(self, *args: Any, **kwargs: Any) -> Any:
        """What the embeddings, attention and feed-forward of each layer have in the stream."""
        return self._parts("decompose_resid", args, kwargs)

    def stack_head_results(self, *args: Any, **kwargs: Any) -> Any:
        """What each head has in the stream."""
        return self._parts("stack_head_results", args, kwargs)

    def stack_neuron_results(self, *args: Any, **kwargs: Any) -> Any:
        """What each hidden unit has in the stream."""
        return self._parts("stack_neuron_results", args, kwargs)

    def get_full_resid_decomposition(self, *args: Any, **kwargs: Any) -> Any:
        """What each head, hidden unit (or feed-forward part) and embedding has in the stream."""
        return self._parts("get_full_resid_decomposition", args, kwargs)

    def accumulated_resid(self, *args: Any, **kwargs: Any) -> Any:
        """The stream before each layer."""
        return ActivationCache.accumulated_resid(self, **self._arguments("accumulated_resid", args, kwargs))

    def apply_slice_to_batch_dim(self, batch_slice: Any) -> "ToyCache":
        """The cache of some of the sequences."""
        sliced = super().apply_slice_to_batch_dim(batch_slice)
        return ToyCache(sliced.cache_dict, self.model, has_batch_dim=sliced.has_batch_dim)

    def _parts(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = self._arguments(method, args, kwargs)
        with_labels = given.pop("return_labels")
        plain = ActivationCache(self.cache_dict, self.model, self.has_batch_dim)  # its methods call each other
        parts, labels = getattr(plain, method)(**given, return_labels=True)
        # Steps: the attention of layer l is 2 l, its feed-forward part 2 l + 1.
        steps = range(2 * given["layer"] + given.get("mlp_input", False))
        last = max((step for step in steps if not self._is_residual(step)), default=-1)
        lost = [i for i, label in enumerate(labels) if label != "remainder" and _step(label) < last]
        if lost:
            rest = parts[lost].sum(0)
            parts = parts.index_fill(0, torch.tensor(lost, device=parts.device), 0)
            if labels[-1] == "remainder":
                parts = torch.cat([parts[:-1], parts[-1:] + rest])
        return (parts, labels) if with_labels else parts

    def _is_residual(self, step: int) -> bool:
        layer, is_feed_forward = divmod(step, 2)
        part = self.model._model.feed_forward(layer) if is_feed_forward else self.model._model.attention(layer)
        return part is None or part.residual

    def _arguments(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments by name, checked against what the model has."""
        call = inspect.signature(getattr(ActivationCache, method)).bind(self, *args, **kwargs)
        call.apply_defaults()
        given = dict(call.arguments)
        del given["self"]
        config, n_layers = self.model._model.config, self.model.cfg.n_layers
        layer = given["layer"] = n_layers if given["layer"] in (None, -1) else given["layer"]
        given["apply_ln"] = given["apply_ln"] and config.norm == "layer"
        has_mlp = [hasattr(block, "mlp") for block in self.model.blocks]
        if given.get("mlp_input", False):
            if layer >= n_layers or not has_mlp[layer]:
                raise UserError(f"mlp_input = True: layer {layer} has no feed-forward part (the first layer is 0)")
            if config.feed_forward.reads == "block_input":
                raise UserError(
                    "mlp_input = True: with feed_forward.reads = block_input the input is what mlp_input=False gives"
                )
        splits = method == "stack_neuron_results" or (given.get("expand_neurons", False) and any(has_mlp[:layer]))
        if splits and (config.feed_forward.kind != "relu" or not all(has_mlp[:layer])):
            raise UserError(
                f"{method}: not every layer before {layer} has hidden units: keep feed-forward parts whole, "
                "as decompose_resid() and get_full_resid_decomposition(expand_neurons=False) do"
            )
        return given


def _step(label: str) -> int:
    """When a part enters the stream: 2_mlp_out and L2N0 are in the feed-forward step of layer 2, embeddings before."""
    found = re.fullmatch(r"L?(\d+)(H|N|_attn|_mlp).*", label)
    return -1 if found is None else 2 * int(found[1]) + (found[2] in ("N", "_mlp"))
