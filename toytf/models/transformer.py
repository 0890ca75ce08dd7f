"""The toy transformer: one readable module with TransformerLens' parameter names and one forward.

Every activation passes through `hook(name, value)`, which is the identity in training; a hook of the whole model may
edit the value in place. `toytf.models.lens` binds the same forward to TransformerLens' HookPoints. Matrices act from
the right, x @ W, as TransformerLens has them.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from einops import einsum, rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn

from toytf.errors import UserError
from toytf.models.config import ModelConfig
from toytf.models.distributions import draw_vectors, draw_weights, sinusoidal
from toytf.models.fast_options import fast_paths

Hook = Callable[[str, Tensor], Tensor]
"""From the name of an activation and its value to the value that the forward goes on with."""
Edit = Callable[[str, Tensor], Tensor | None]
"""A hook that may edit the value in place, and then need not return it."""


def no_hook(name: str, value: Tensor) -> Tensor:
    """The identity: what training uses."""
    return value


class Kept(dict[str, Tensor]):
    """A hook that only reads: it keeps the named activations and leaves the forward as it is."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        self.names = names

    def __call__(self, name: str, value: Tensor) -> Tensor:
        """Keep a copy, as the value itself can be a view of a weight."""
        if name in self.names:
            self[name] = value.clone()
        return value


@dataclass(frozen=True)
class Slot:
    """A place in the model that holds a memory: the W_KQ, the W_OV or the feed-forward part of a layer (from 0)."""

    part: Literal["KQ", "OV", "FF"]
    layer: int


class Embed(nn.Module):
    """Token vectors: e_z is row z of W_E."""

    def __init__(self, W_E: Float[Tensor, "token d_model"]) -> None:
        super().__init__()
        self.W_E = nn.Parameter(W_E)


class PosEmbed(nn.Module):
    """Position vectors: p_t is row t of W_pos."""

    def __init__(self, W_pos: Float[Tensor, "position d_model"]) -> None:
        super().__init__()
        self.W_pos = nn.Parameter(W_pos)


class Unembed(nn.Module):
    """Output vectors: u_y is column y of W_U."""

    def __init__(self, W_U: Float[Tensor, "d_model output"]) -> None:
        super().__init__()
        self.W_U = nn.Parameter(W_U)


def normalized(x: Float[Tensor, "... d_model"], hook: Hook = no_hook) -> Float[Tensor, "... d_model"]:
    """(x − mean x) / √(var x + 1e-5) of every vector: LayerNorm before its gain and offset."""
    centred = x - x.mean(-1, keepdim=True)
    scale = hook("hook_scale", (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt())
    return hook("hook_normalized", centred / scale)


class LayerNorm(nn.Module):
    """normalized(x) · w + b."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(d_model))
        self.b = nn.Parameter(torch.zeros(d_model))

    def forward(self, x: Float[Tensor, "... d_model"], hook: Hook) -> Float[Tensor, "... d_model"]:
        """Normalise every vector; the hooks are TransformerLens', which lie before w and b."""
        return normalized(x, hook) * self.w + self.b


class LayerPart(nn.Module):
    """A part of a layer that reads the stream x and adds to it or, without a residual path, takes its place.

    Both methods are linear: x may be the stream or what is read from it, such as x W_U.
    """

    def __init__(self, residual: bool) -> None:
        super().__init__()
        self.residual = residual

    def skip(self, x: Float[Tensor, "... d"]) -> Float[Tensor, "... d"] | None:
        """What goes past this part: x, or nothing."""
        return x if self.residual else None

    def add(self, x: Float[Tensor, "... d"], added: Float[Tensor, "... d"]) -> Float[Tensor, "... d"]:
        """The stream after this part, skip(x) + added."""
        skip = self.skip(x)
        return added if skip is None else skip + added


class Attention(LayerPart):
    """Causal attention, Σ_h softmax_{s≤t}(q_tᵀ k_s / scale) v_s W_O, or without the softmax; joint or factored."""

    mask: Tensor

    def __init__(self, config: ModelConfig, n_positions: int, generator: torch.Generator) -> None:
        super().__init__(config.attention.residual)
        attention, d = config.attention, config.d_model
        heads, k = attention.n_heads, config.d_head

        def weights(d_in: int, d_out: int, fan_in: int) -> nn.Parameter:
            return nn.Parameter(draw_weights(attention.init, (heads, d_in, d_out), fan_in, generator))

        joint_kq, joint_ov = attention.kq == "joint", attention.ov == "joint"
        self.W_Q = None if joint_kq else weights(d, k, d)
        self.W_K = weights(d, d if joint_kq else k, d)
        self.W_V = None if joint_ov else weights(d, k, d)
        self.W_O = weights(d if joint_ov else k, d, heads * (d if joint_ov else k))
        d_score = d if joint_kq else k
        self.n_heads, self.linear = heads, attention.kind == "linear"
        self.scale = math.sqrt(d_score) if attention.scale == "sqrt_d_head" else float(attention.scale)
        future = torch.ones(n_positions, n_positions, dtype=torch.bool).triu(1)
        self.register_buffer("mask", future, persistent=False)

    def _heads(self, x: Tensor, W: Tensor | None) -> Float[Tensor, "batch position head d"]:
        if W is None:
            return x[:, :, None].expand(-1, -1, self.n_heads, -1)
        flat = rearrange(W, "head d_in d_out -> d_in (head d_out)")
        return rearrange(x @ flat, "batch position (head d) -> batch position head d", head=self.n_heads)

    def forward(
        self, x: Float[Tensor, "batch position d_model"], hook: Hook, first: int = 0
    ) -> Float[Tensor, "batch query d_model"]:
        """What the layer adds to the stream, at the positions from `first` on."""
        q = hook("hook_q", self._heads(x[:, first:], self.W_Q))
        k = hook("hook_k", self._heads(x, self.W_K))
        v = hook("hook_v", self._heads(x, self.W_V))
        scores = q.transpose(1, 2) @ rearrange(k, "b s h d -> b h d s") / self.scale
        T = x.shape[1]
        nothing = 0 if self.linear else -torch.inf
        scores = hook("hook_attn_scores", scores.masked_fill(self.mask[first:T, :T], nothing))
        pattern = hook("hook_pattern", scores if self.linear else scores.softmax(-1))
        z = hook("hook_z", (pattern @ v.transpose(1, 2)).transpose(1, 2))
        return z.flatten(-2) @ self.W_O.flatten(0, 1)


class FeedForward(LayerPart):
    """relu(x W_in + b_in) W_out, with or without b_in, or the single matrix x W_in."""

    def __init__(self, config: ModelConfig, generator: torch.Generator) -> None:
        super().__init__(config.feed_forward.residual)
        d, init = config.d_model, config.feed_forward.init
        self.linear = config.feed_forward.kind == "linear"
        width = config.width
        self.W_in = nn.Parameter(draw_weights(init, (1, d, width), d, generator)[0])
        self.b_in = nn.Parameter(torch.zeros(width)) if config.feed_forward.bias else None
        self.W_out = None if self.linear else nn.Parameter(draw_weights(init, (1, width, d), width, generator)[0])

    def hidden(self, x: Float[Tensor, "... d_model"]) -> Float[Tensor, "... width"]:
        """relu(x W_in + b_in): the hidden units, which W_out reads."""
        return nn.functional.linear(x, self.W_in.T, self.b_in).relu()

    def forward(self, x: Float[Tensor, "... d_model"], hook: Hook = no_hook) -> Float[Tensor, "... d_model"]:
        """What the layer adds to the stream."""
        pre = hook("hook_pre", nn.functional.linear(x, self.W_in.T, self.b_in))
        return pre if self.W_out is None else hook("hook_post", pre.relu()) @ self.W_out


class Block(nn.Module):
    """Attention, then (or beside it) feed-forward, each with or without a residual path."""

    def __init__(self, config: ModelConfig, layer: int, n_positions: int, generator: torch.Generator) -> None:
        super().__init__()
        self.config = config
        normed = config.norm == "layer"
        self.ln1 = LayerNorm(config.d_model) if normed else None
        self.attn = Attention(config, n_positions, generator)
        has_feed_forward = config.has_feed_forward(layer)
        self.ln2 = LayerNorm(config.d_model) if normed and has_feed_forward else None
        self.mlp = FeedForward(config, generator) if has_feed_forward else None

    def forward(
        self, x: Float[Tensor, "batch position d_model"], hook: Hook, first: int = 0
    ) -> Float[Tensor, "batch query d_model"]:
        """The stream after this layer, at the positions from `first` on."""
        x = hook("hook_resid_pre", x)
        read = x if self.ln1 is None else self.ln1(x, _within("ln1", hook))
        added = hook("hook_attn_out", self.attn(read, _within("attn", hook), first))
        start = x[:, first:]
        return self.finish(start, self.attn.add(start, added), hook)

    def finish(
        self, start: Float[Tensor, "... d_model"], x: Float[Tensor, "... d_model"], hook: Hook = no_hook
    ) -> Float[Tensor, "... d_model"]:
        """The stream after this layer, from the stream before and after its attention."""
        config = self.config.feed_forward
        if self.mlp is not None:
            x = hook("hook_resid_mid", x)
            read = start if config.reads == "block_input" else x
            read = read if self.ln2 is None else self.ln2(read, _within("ln2", hook))
            added = hook("hook_mlp_out", self.mlp(read, _within("mlp", hook)))
            x = self.mlp.add(x, added)
        elif config.kind != "none" and hook is not no_hook:
            # Other layers have one: TransformerLens' decompositions expect these names in every layer.
            x = hook("hook_resid_mid", x)
            x = x + hook("hook_mlp_out", torch.zeros_like(x))
        return hook("hook_resid_post", x)


class ToyTransformer(nn.Module):
    """A small causal transformer built from config; tokens [batch position] in, logits [batch position output] out.

    x_t = e_{z_t} + p_t;  x ← block(x) for each layer;  logits_t = norm(x_t) W_U
    """

    def __init__(
        self, config: ModelConfig, *, n_tokens: int, n_positions: int, n_outputs: int, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.config, self.fast_paths = config, fast_paths(config)
        d = config.d_model
        self.embed = Embed(draw_vectors(config.embedding, n_tokens, d, generator, what="model.embedding"))
        self.pos_embed = None
        if config.position == "sinusoidal":
            self.pos_embed = PosEmbed(sinusoidal(n_positions, d))
        elif config.position != "none":
            first_axis = n_tokens if config.embedding == "one_hot" else 0
            p = draw_vectors(config.position, n_positions, d, generator, what="model.position", first_axis=first_axis)
            self.pos_embed = PosEmbed(p)
        self.blocks = nn.ModuleList(Block(config, layer, n_positions, generator) for layer in range(config.n_layers))
        self.ln_final = LayerNorm(d) if config.norm == "layer" else None
        u = draw_vectors(config.unembedding, n_outputs, d, generator, what="model.unembedding")
        self.unembed = Unembed(u.T.contiguous())

    @property
    def device(self) -> torch.device:
        """Where the weights live."""
        return self.embed.W_E.device

    @property
    def n_positions(self) -> int:
        """The longest sequence the causal mask and the positions allow."""
        return len(self.attention(0).mask)

    def attention(self, layer: int) -> Attention:
        """The attention part of a layer (from 0)."""
        part: Attention = self.blocks[layer].attn  # type: ignore[assignment]
        return part

    def feed_forward(self, layer: int) -> FeedForward | None:
        """The feed-forward part of a layer, if it has one."""
        part: FeedForward | None = self.blocks[layer].mlp  # type: ignore[assignment]
        return part

    def forward(
        self, tokens: Int[Tensor, "batch position"], hook: Edit = no_hook, last: int | None = None
    ) -> Float[Tensor, "batch query output"]:
        """Logits at every position, or at the last few; `hook` sees and may change every named activation."""
        x = self.stream(tokens, hook, last)
        if self.ln_final is not None:
            x = self.ln_final(x, _within("ln_final", _on_copies(hook)))
        return x @ self.unembed.W_U

    def stream(
        self,
        tokens: Int[Tensor, "batch position"],
        hook: Edit = no_hook,
        last: int | None = None,
        stop: int | None = None,
    ) -> Float[Tensor, "batch query d_model"]:
        """The stream before layer `stop`, or after all layers, at every position or at the last few.

        Only the last layer leaves the other positions out, as the earlier ones need them as keys.
        """
        own = _on_copies(hook)
        x = own("hook_embed", self.embed.W_E[tokens])
        if self.pos_embed is not None:
            x = x + own("hook_pos_embed", self.pos_embed.W_pos[: tokens.shape[1]].expand_as(x))
        first = 0 if last is None else max(0, tokens.shape[1] - last)
        for layer, block in enumerate(self.blocks):
            if layer == stop:
                break
            x = block(x, _within(f"blocks.{layer}", own), first if layer == self.config.n_layers - 1 else 0)
        return x

    def observe(
        self, tokens: Int[Tensor, "batch position"], *names: str, last: int | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Logits, and the named activations of the same forward (only those are kept)."""
        kept = Kept(*names)
        return self(tokens, kept, last), kept

    def W_KQ(self, layer: int) -> Float[Tensor, "head d_model d_model"]:
        """Score of query x on key y before scaling is xᵀ W_KQ y: W_Q W_Kᵀ, or W_Kᵀ when joint."""
        attn = self.attention(layer)
        W_K = attn.W_K.transpose(1, 2)
        return W_K if attn.W_Q is None else attn.W_Q @ W_K

    def W_OV(self, layer: int) -> Float[Tensor, "head d_model d_model"]:
        """An attended x adds x @ W_OV to the stream: W_V W_O, or W_O when joint."""
        attn = self.attention(layer)
        return attn.W_O if attn.W_V is None else attn.W_V @ attn.W_O

    def read(self, slot: Slot, x: Float[Tensor, "n d_model"], head: int | None = None) -> Float[Tensor, "n d_model"]:
        """Ask the memory in a slot with key vectors: x @ W_KQ, x @ W_OV (one head, or all summed) or FF(x)."""
        if slot.part == "FF":
            feed_forward = self.feed_forward(slot.layer)
            if feed_forward is None:
                raise ValueError(f"layer {slot.layer} has no feed-forward part")
            answer: Tensor = feed_forward(x)
            return answer
        W = self.W_KQ(slot.layer) if slot.part == "KQ" else self.W_OV(slot.layer)
        return einsum(x, W if head is None else W[head : head + 1], "n i, head i j -> n j")

    @torch.no_grad()
    def write(self, slot: Slot, W: Float[Tensor, "d_model d_model"]) -> None:
        """Make x @ W what the memory in a slot answers; for KQ, what scores are after scaling."""
        attn, feed_forward = self.attention(slot.layer), self.feed_forward(slot.layer)
        if slot.part == "FF":
            if feed_forward is None or not feed_forward.linear:
                raise UserError(f"layer {slot.layer} has no linear feed-forward part to write a memory into")
            feed_forward.W_in.copy_(W)
            return
        factor, holder = (attn.W_Q, attn.W_K) if slot.part == "KQ" else (attn.W_V, attn.W_O)
        if attn.n_heads > 1 or not (factor is None or self.config.d_head == self.config.d_model):
            raise UserError(
                "a memory can only be written into one head of full dimension: set model.attention.n_heads = 1"
            )
        holder.copy_(attn.scale * W.T if slot.part == "KQ" else W)
        if factor is not None:
            factor.copy_(torch.eye(self.config.d_model, device=self.device))


def _on_copies(hook: Edit) -> Hook:
    """Let a hook edit in place: the value itself can be a view of a weight or another activation, too."""
    if hook is no_hook or isinstance(hook, Kept):
        return hook

    def on_copy(name: str, value: Tensor) -> Tensor:
        own = value.clone()
        edited = hook(name, own)
        return own if edited is None else edited

    return on_copy


def _within(module: str, hook: Hook) -> Hook:
    """Prefix the names of a part's activations with the part's own name."""
    if hook is no_hook:
        return hook
    return lambda name, value: hook(f"{module}.{name}", value)
