"""The toy transformer as TransformerLens sees it: same parameters, same forward, a HookPoint at every activation.

Importing this imports transformer_lens, which takes seconds; training does not need it.
"""

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformer_lens import FactoredMatrix, HookedRootModule
from transformer_lens.hook_points import HookPoint
from transformer_lens.utilities import lm_cross_entropy_loss

from toytf.errors import UserError, nearest, shortened
from toytf.models.cache import ToyCache
from toytf.models.transformer import LayerNorm, ToyTransformer, normalized


class Output(NamedTuple):
    """What return_type "both" gives."""

    logits: Float[Tensor, "batch position output"]
    loss: Float[Tensor, "..."]


class HookedToyTransformer(HookedRootModule):  # type: ignore[misc]
    """A view: `run_with_cache`, `run_with_hooks`, `hooks` act on the model it was made from, which stays as it is.

    Hook and parameter names are TransformerLens' (`blocks.0.attn.hook_pattern`, `blocks.0.attn.W_K`). Where a joint
    matrix has no W_Q (or W_V), the view shows the identity.

    With LayerNorm, the parameters are those of the model, and what TransformerLens computes with is folded, as its own
    tools expect: W_U, QK, OV and the directions of tokens have the gain w in them, `hook_normalized` and `ln_final(x)`
    lie before w and b, and what the last b adds to the logits is b_U:

    logits = ln_final(x) W_U + b_U
    """

    _model: ToyTransformer
    _outputs_are_tokens: bool

    def __init__(self, model: ToyTransformer, *, outputs_are_tokens: bool = True) -> None:
        """outputs_are_tokens: does output y mean token y? Only then, and if they are as many, is there a next token."""
        super().__init__()
        self.__dict__["_outputs_are_tokens"] = outputs_are_tokens
        self.__dict__["_model"] = model  # not a submodule: its parameters are registered below, under their own names
        self._mirror(model)
        for name in hook_shapes(model):
            parent, _, leaf = name.rpartition(".")
            self.get_submodule(parent).add_module(leaf, _HookPoint())
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
            normalization_type="LNPre" if config.norm == "layer" else None,  # Pre: w and b are folded
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
                copy: nn.Module = _Normalized() if isinstance(module, LayerNorm) else _Part()
                copy = nn.ModuleList() if isinstance(module, nn.ModuleList) else copy
                self.get_submodule(parent).add_module(leaf, copy)
                copy._parameters = module._parameters  # one dict: a parameter that is replaced is so for both
        identity = torch.eye(model.config.d_model, device=model.device, dtype=model.embed.W_E.dtype)
        identity = identity.expand(model.config.attention.n_heads, -1, -1)
        for block in self.blocks:
            block.hook_out_is_single_residual_stream = True  # `cache.logit_lens()` asks
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
        "both"; None. With `stop_at_layer` it is the stream before that layer (if negative, counted from the end), and
        nothing after it is computed.
        """
        for name in others:
            raise UserError(
                f"{name}: a toy model does not take this argument, only return_type, loss_per_token and stop_at_layer"
            )
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
            n = self.cfg.n_layers
            if not -n <= stop_at_layer <= n:
                raise UserError(f"stop_at_layer = {stop_at_layer}: this model has {n} layers (accepted: {-n} to {n})")
            return self._model.stream(tokens, hook, stop=stop_at_layer + n if stop_at_layer < 0 else stop_at_layer)
        logits: Tensor = self._model(tokens, hook)
        if return_type not in ("loss", "both"):
            return None if return_type is None else logits
        loss: Tensor = lm_cross_entropy_loss(logits, tokens, per_token=loss_per_token)
        return loss if return_type == "loss" else Output(logits, loss)

    def _require_next_tokens(self, tokens: Int[Tensor, "batch position"], stop_at_layer: int | None) -> None:
        if stop_at_layer is not None:
            raise UserError("stop_at_layer returns the residual stream, before there are logits: leave return_type out")
        if self.cfg.d_vocab_out != self.cfg.d_vocab or not self._outputs_are_tokens:
            raise UserError(
                f"there is no next-token loss: the {self.cfg.d_vocab_out} outputs of this model are not its "
                f"{self.cfg.d_vocab} tokens; use the logits and the targets of the task, run.batch(n).targets"
            )
        if tokens.shape[1] < 2:
            raise UserError(f"a next-token loss needs sequences of at least 2 tokens, got {tokens.shape[1]}")

    def run_with_cache(
        self, tokens: Any, *args: Any, return_cache_object: bool = True, remove_batch_dim: bool = False, **kwargs: Any
    ) -> "tuple[Any, ToyCache | dict[str, Tensor]]":
        """The output and an ActivationCache of every hooked activation, or of those that `names_filter` names."""
        tokens = self.to_tokens(tokens)
        output, cache = super().run_with_cache(tokens, *args, remove_batch_dim=remove_batch_dim, **kwargs)
        if not return_cache_object:
            return output, cache
        return output, ToyCache(cache, self, has_batch_dim=not remove_batch_dim)

    def get_caching_hooks(self, names_filter: Any = None, *args: Any, **kwargs: Any) -> Any:
        """What `run_with_cache` adds; every name must be that of an activation."""
        self._require_hooks(names_filter if isinstance(names_filter, list) else [names_filter])
        return super().get_caching_hooks(names_filter, *args, **kwargs)

    def add_caching_hooks(self, names_filter: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Cache in every forward from now on; every name must be that of an activation."""
        self._require_hooks(names_filter if isinstance(names_filter, list) else [names_filter])
        return super().add_caching_hooks(names_filter, *args, **kwargs)

    def add_hook(self, name: Any, *args: Any, **kwargs: Any) -> None:
        """Hook one activation, or those of which a function of their names says so."""
        self._require_hooks([name])
        super().add_hook(name, *args, **kwargs)

    def hooks(self, fwd_hooks: Any = (), bwd_hooks: Any = (), *args: Any, **kwargs: Any) -> Any:
        """A context with hooks, as `run_with_hooks` has it; every name must be that of an activation."""
        fwd_hooks, bwd_hooks = [*fwd_hooks], [*bwd_hooks]
        self._require_hooks(name for name, _ in fwd_hooks + bwd_hooks)
        return super().hooks(fwd_hooks, bwd_hooks, *args, **kwargs)

    def _require_hooks(self, names: Iterable[Any]) -> None:
        for name in names:
            if isinstance(name, str) and name not in self.hook_dict:
                raise UserError(f"{shortened(name)}: no activation has this name: {nearest(name, self.hook_dict)}")

    def to_tokens(self, tokens: Any) -> Int[Tensor, "batch position"]:
        """Token ids as a batch of sequences, from one or from a list of equal length; toys have no tokenizer."""
        found = self._ids(tokens, "token", self.cfg.d_vocab)
        found = found[None] if found.ndim == 1 else found
        if found.ndim != 2 or not 0 < found.shape[1] <= self.cfg.n_ctx:
            raise UserError(
                f"tokens of shape {tuple(found.shape)}: this model takes sequences of 1 to {self.cfg.n_ctx} tokens, "
                "one or a batch of equal length"
            )
        return found

    def to_single_token(self, token: int) -> int:
        """The id itself; toys have no tokenizer."""
        return int(self._ids(token, "token", self.cfg.d_vocab))

    def tokens_to_residual_directions(self, tokens: Any) -> Float[Tensor, "*batch d_model"]:
        """The output vectors u_y of tokens, as columns of W_U."""
        return self.W_U.T[self._ids(tokens, "output", self.cfg.d_vocab_out)]

    def _ids(self, given: Any, what: str, n: int) -> Int[Tensor, "..."]:
        """Whole numbers from 0 to n − 1, as a tensor."""
        if isinstance(given, str) or (isinstance(given, list) and any(isinstance(one, str) for one in given)):
            raise UserError(
                f"{shortened(repr(given))}: a toy model has no tokenizer: give token ids, such as run.batch(n).tokens"
            )
        try:
            ids = torch.stack([*map(torch.as_tensor, given)]) if isinstance(given, list) else torch.as_tensor(given)
        except (RuntimeError, TypeError, ValueError):
            raise UserError(
                f"{shortened(repr(given))}: give {what} ids, as one sequence or as sequences of equal length"
            ) from None
        if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
            raise UserError(f"{what}s of type {ids.dtype}: ids are whole numbers, 0 to {n - 1}")
        ids = ids.to(self.cfg.device, torch.long)
        for end in map(int, ids.aminmax() if ids.numel() else ()):
            if not 0 <= end < n:
                raise UserError(f"{what} {end}: this model has the {what}s 0 to {n - 1}")
        return ids

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
            raise UserError("W_pos: this model has no positional embeddings")
        return self._model.pos_embed.W_pos

    @property
    def W_U(self) -> Float[Tensor, "d_model output"]:
        """Output vectors, as columns; after LayerNorm w ∘ u_y, for the stream before its gain w."""
        W_U, norm = self._model.unembed.W_U, self._model.ln_final
        return W_U if norm is None else norm.w[:, None] * W_U

    @property
    def b_U(self) -> Float[Tensor, "output"]:
        """What no part of the stream adds to the logits: b · u_y with the offset b of the last LayerNorm, or 0."""
        W_U, norm = self._model.unembed.W_U, self._model.ln_final
        return torch.zeros_like(W_U[0]) if norm is None else norm.b @ W_U

    @property
    def QK(self) -> FactoredMatrix:
        """W_Q W_Kᵀ of every layer and head, with the gain of LayerNorm on both sides."""
        return FactoredMatrix(self._reading("W_Q"), self._reading("W_K").transpose(-1, -2))

    @property
    def OV(self) -> FactoredMatrix:
        """W_V W_O of every layer and head, with the gain of LayerNorm on the side that reads."""
        return FactoredMatrix(self._reading("W_V"), torch.stack([block.attn.W_O for block in self.blocks]))

    def _reading(self, name: str) -> Float[Tensor, "layer head d_in d_out"]:
        found = ((block, getattr(block.attn, name)) for block in self.blocks)
        return torch.stack([block.ln1.w[:, None] * W if hasattr(block, "ln1") else W for block, W in found])


class _HookPoint(HookPoint):  # type: ignore[misc]
    """A HookPoint whose hooks may edit in place even where gradients are hooked."""

    def forward(self, x: Tensor) -> Tensor:
        """The identity; torch lets nobody edit what comes from its own hooks on gradients, but a copy of it."""
        return x.clone() if self._backward_hooks else x


class _Part(nn.Module):
    """A part of the view: it holds the parameters of the model's, and its own HookPoints."""

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuse what would have no effect: the model has no matrix where the view shows the identity."""
        if name in self.__dict__.get("_buffers", ()):
            joint, holder = {"W_Q": ("W_KQ", "W_K"), "W_V": ("W_OV", "W_O")}[name]
            raise UserError(
                f"{name}: this model has none, since {joint} is one matrix: change {holder}, which holds it"
            )
        super().__setattr__(name, value)


class _Normalized(nn.Module):
    """A LayerNorm of the view: its w and b are folded into what reads it."""

    def forward(self, x: Float[Tensor, "... d_model"]) -> Float[Tensor, "... d_model"]:
        """Normalise every vector by its own mean and variance."""
        return normalized(x)


def hook_shapes(model: ToyTransformer, n_positions: int = 2) -> dict[str, tuple[int, ...]]:
    """The name of every hooked activation and its shape for one sequence: the table of what can be looked at."""
    shapes: dict[str, tuple[int, ...]] = {}

    def record(name: str, value: Tensor) -> Tensor:
        shapes[name] = tuple(value.shape)
        return value

    with torch.no_grad():
        model(torch.zeros(1, min(n_positions, model.n_positions), dtype=torch.long, device=model.device), record)
    return shapes
