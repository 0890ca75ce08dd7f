"""The toy transformer as TransformerLens sees it: same parameters, same forward, a HookPoint at every activation.

Importing this imports transformer_lens, which takes seconds; training does not need it.
"""

from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformer_lens import ActivationCache, FactoredMatrix, HookedRootModule
from transformer_lens.hook_points import HookPoint
from transformer_lens.utilities import lm_cross_entropy_loss

from toytf.errors import UserError, nearest
from toytf.models.transformer import ToyTransformer


class Output(NamedTuple):
    """What return_type "both" gives."""

    logits: Float[Tensor, "batch position output"]
    loss: Float[Tensor, "..."]


class HookedToyTransformer(HookedRootModule):  # type: ignore[misc]
    """A view: `run_with_cache`, `run_with_hooks`, `hooks` act on the model it was made from, which stays as it is.

    Hook and parameter names are TransformerLens' (`blocks.0.attn.hook_pattern`, `blocks.0.attn.W_K`). Where a joint
    matrix has no W_Q (or W_V), the view shows the identity.
    """

    _model: ToyTransformer

    def __init__(self, model: ToyTransformer) -> None:
        super().__init__()
        self.__dict__["_model"] = model  # not a submodule: its parameters are registered below, under their own names
        self._mirror(model)
        for name in hook_shapes(model):
            parent, _, leaf = name.rpartition(".")
            self.get_submodule(parent).add_module(leaf, HookPoint())
        config = model.config
        feed_forward = next(filter(None, map(model.feed_forward, range(config.n_layers))), None)
        self.cfg = SimpleNamespace(
            n_layers=config.n_layers,
            n_heads=config.attention.n_heads,
            n_key_value_heads=None,
            d_model=config.d_model,
            d_head=model.attention(0).W_K.shape[-1],
            d_mlp=None if feed_forward is None else feed_forward.W_in.shape[1],
            d_vocab=len(model.embed.W_E),
            d_vocab_out=model.unembed.W_U.shape[1],
            n_ctx=model.n_positions,
            attn_only=feed_forward is None,
            normalization_type="LN" if config.norm == "layer" else None,
            use_attn_result=False,
            device=model.device,
            dtype=model.embed.W_E.dtype,
        )
        self.setup()
        self.eval()

    def _apply(self, fn: Any, recurse: bool = True) -> "HookedToyTransformer":
        """Moving the view moves the model, whose forward it runs."""
        self._model._apply(fn, recurse)  # type: ignore[no-untyped-call]
        super()._apply(fn, recurse)
        self.cfg.device, self.cfg.dtype = self._model.device, self._model.embed.W_E.dtype
        return self

    def _mirror(self, model: ToyTransformer) -> None:
        for path, module in model.named_modules():
            if path:
                parent, _, leaf = path.rpartition(".")
                copy = nn.ModuleList() if isinstance(module, nn.ModuleList) else nn.Module()
                self.get_submodule(parent).add_module(leaf, copy)
                for name, parameter in module.named_parameters(recurse=False):
                    copy.register_parameter(name, parameter)
        identity = torch.eye(model.config.d_model, device=model.device, dtype=model.embed.W_E.dtype)
        identity = identity.expand(model.config.attention.n_heads, -1, -1)
        for block in self.blocks:
            for name in ("W_Q", "W_V"):
                if not hasattr(block.attn, name):
                    block.attn.register_buffer(name, identity, persistent=False)

    def forward(
        self,
        tokens: Any,
        return_type: str | None = "logits",
        loss_per_token: bool = False,
        *,
        stop_at_layer: int | None = None,
        **others: Any,
    ) -> Tensor | Output | None:
        """Every activation passes through its HookPoint; what comes back is the caller's choice, as in TransformerLens.

        return_type: "logits"; "loss", the mean cross-entropy of the next token, or with `loss_per_token` that of each;
        "both"; None. With `stop_at_layer` it is the stream before that layer, and nothing after it is computed.
        """
        for name in others:
            raise UserError(f"{name}: a toy has no such argument; it has return_type, loss_per_token and stop_at_layer")
        if return_type not in ("logits", "loss", "both", None):
            raise UserError(
                f"return_type = {return_type!r}: {nearest(return_type, ('logits', 'loss', 'both', 'None'))}"
            )
        tokens = self.to_tokens(tokens)
        if return_type in ("loss", "both"):
            self._require_next_tokens(tokens, stop_at_layer)

        def hook(name: str, value: Tensor) -> Tensor:
            hooked: Tensor = self.hook_dict[name](value)
            return hooked

        if stop_at_layer is not None:
            return self._model.stream(tokens, hook, stop=self._layer(stop_at_layer))
        logits: Tensor = self._model(tokens, hook)
        if return_type not in ("loss", "both"):
            return None if return_type is None else logits
        loss: Tensor = lm_cross_entropy_loss(logits, tokens, per_token=loss_per_token)
        return loss if return_type == "loss" else Output(logits, loss)

    def _layer(self, layer: int) -> int:
        """A layer by its place from the start or, if negative, from the end; n_layers is the end."""
        n = self.cfg.n_layers
        if not -n <= layer <= n:
            raise UserError(f"stop_at_layer = {layer}: this model has {n} layers: accepted: {-n} to {n}")
        return layer + n if layer < 0 else layer

    def _require_next_tokens(self, tokens: Int[Tensor, "batch position"], stop_at_layer: int | None) -> None:
        if stop_at_layer is not None:
            raise UserError("stop_at_layer gives the stream, before there are logits to score: leave return_type out")
        if self.cfg.d_vocab_out != self.cfg.d_vocab:
            raise UserError(
                f"there is no next-token loss: the {self.cfg.d_vocab_out} outputs of this model are not its "
                f"{self.cfg.d_vocab} tokens; take the logits and the targets of the task, as in run.batch(n).targets"
            )
        if tokens.shape[1] < 2:
            raise UserError(f"a next-token loss needs sequences of at least 2 tokens, got {tokens.shape[1]}")

    def run_with_cache(
        self, tokens: Any, *args: Any, return_cache_object: bool = True, remove_batch_dim: bool = False, **kwargs: Any
    ) -> tuple[Any, ActivationCache | dict[str, Tensor]]:
        """The output and an ActivationCache of every hooked activation, or of those that `names_filter` names."""
        tokens = self.to_tokens(tokens)
        output, cache = super().run_with_cache(tokens, *args, remove_batch_dim=remove_batch_dim, **kwargs)
        if not return_cache_object:
            return output, cache
        return output, ActivationCache(cache, self, has_batch_dim=not remove_batch_dim)

    def to_tokens(self, tokens: Any) -> Int[Tensor, "batch position"]:
        """Token ids as a batch of sequences, from one or from a list of equal length; toys have no tokenizer."""
        if isinstance(tokens, str) or (isinstance(tokens, list) and any(isinstance(token, str) for token in tokens)):
            raise UserError(f"{tokens!r}: a toy has no tokenizer: give token ids, as in run.batch(n).tokens")
        found = torch.stack([*map(torch.as_tensor, tokens)]) if isinstance(tokens, list) else torch.as_tensor(tokens)
        found = found.to(self.cfg.device)
        return found if found.ndim > 1 else found[None]

    def to_single_token(self, token: int) -> int:
        """The id itself; toys have no tokenizer."""
        return int(token)

    def tokens_to_residual_directions(self, tokens: Any) -> Float[Tensor, "*batch d_model"]:
        """The output vectors u_y of tokens."""
        return self.W_U.T[torch.as_tensor(tokens, device=self.cfg.device)]

    def accumulated_bias(
        self, layer: int, mlp_input: bool = False, include_mlp_biases: bool = True
    ) -> Float[Tensor, "d_model"]:
        """Zero: toys have no biases in the stream."""
        return torch.zeros(self.cfg.d_model, device=self.cfg.device, dtype=self.cfg.dtype)

    @property
    def W_E(self) -> Float[Tensor, "token d_model"]:
        """Token vectors."""
        return self._model.embed.W_E

    @property
    def W_pos(self) -> Float[Tensor, "position d_model"]:
        """Position vectors."""
        if self._model.pos_embed is None:
            raise UserError("W_pos: this model has no positions")
        return self._model.pos_embed.W_pos

    @property
    def W_U(self) -> Float[Tensor, "d_model output"]:
        """Output vectors, as columns."""
        return self._model.unembed.W_U

    @property
    def QK(self) -> FactoredMatrix:
        """W_Q W_Kᵀ of every layer and head."""
        return FactoredMatrix(self._stack("W_Q"), self._stack("W_K").transpose(-1, -2))

    @property
    def OV(self) -> FactoredMatrix:
        """W_V W_O of every layer and head."""
        return FactoredMatrix(self._stack("W_V"), self._stack("W_O"))

    def _stack(self, name: str) -> Float[Tensor, "layer head d_in d_out"]:
        return torch.stack([getattr(block.attn, name) for block in self.blocks])


def hook_shapes(model: ToyTransformer, n_positions: int = 2) -> dict[str, tuple[int, ...]]:
    """The name of every hooked activation and its shape for one sequence: the table of what can be looked at."""
    shapes: dict[str, tuple[int, ...]] = {}

    def record(name: str, value: Tensor) -> Tensor:
        shapes[name] = tuple(value.shape)
        return value

    with torch.no_grad():
        model(torch.zeros(1, min(n_positions, model.n_positions), dtype=torch.long, device=model.device), record)
    return shapes
