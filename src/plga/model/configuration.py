"""Configuration of a PLDR-LLM."""

from typing import Any

from huggingface_hub.dataclasses import strict
from transformers.configuration_utils import PreTrainedConfig

OPERATORS = ("learned", "constant")
CONSTANTS = ("identity", "random", "external")
GRAMS = ("global", "chunked")
MODES = ("recompute", "prompt", "chunked", "constant")
INITIALIZATIONS = ("xavier_normal", "xavier_uniform")
METRIC_INITIALIZATIONS = ("xavier", "small")


@strict
class PldrConfig(PreTrainedConfig):
    """Shape and operator of a PLDR-LLM; the defaults are the published 110M model (arXiv:2502.13502).

    Args:
        vocab_size: number of pieces.
        hidden_size: d_model.
        intermediate_size: width of the SwiGLU feed-forward network; None: ⌊8 · hidden_size / 3⌋.
        num_hidden_layers: decoder layers.
        num_attention_heads: H. The width of a head is d = hidden_size / H and must be even.
        metric_intermediate_size: A_dff, the inner width of the metric learner's SwiGLU blocks.
        num_metric_units: N_res, residual units of the metric learner.
        num_metric_blocks: N_glu, SwiGLU blocks a unit.
        max_position_embeddings: context in tokens.
        layer_norm_eps: of every LayerNorm.
        attention_dropout: on the attention probabilities, in training.
        rope_theta: base of the rotary frequencies.
        rope_interleaved: pairs (2a, 2a+1), as published with ``reference_rope: true``; False: pairs (a, a + d/2).
        operator: ``learned`` builds G_LM from the input; ``constant`` keeps one tensor a layer in the checkpoint.
        constant: which constant: ``identity`` (SDPA), ``random`` (entries N(0, 1/d), seeded), ``external`` (set by
            a checkpoint or by hand; NaN until then, which the model refuses).
        constant_seed: of ``random``.
        gram: the tokens that G_LM of a learned operator is built from: ``global``, all of them (published), or
            ``chunked``, for each chunk those before it (experimental, a conjecture; then no row sees its target).
        gram_chunk: tokens a chunk.
        operator_mode: how a learned operator generates unless told otherwise: ``recompute`` (online contract) or
            ``prompt`` (G kept from the prompt, the published G-cache); with a chunked Gram ``chunked``, the only one.
            None: the first that there is.
        operator_initialization: law of W, P and a: ``xavier_normal`` (published trainings) or ``xavier_uniform``
            (published Transformers port).
        metric_initialization: start of the metric tensor: ``xavier`` (published: W by ``operator_initialization``,
            b_W = 0) or ``small`` (b_W = 0.62 and W so small that every entry of A_LM starts near iSwiGLU(0.62) = 0.25,
            within (0.1, 0.5), whatever the input).

    Raises:
        ValueError: impossible numbers, naming the field and what was expected.
    """

    model_type = "pldr"
    keys_to_ignore_at_inference = ["past_key_values", "cache"]
    # Heads are split over the ranks. A constant G_LM [H, d, d] goes with them; plga.serving.vllm_model splits it.
    base_model_tp_plan = {
        "layers.*.self_attn.q_proj": "colwise",
        "layers.*.self_attn.k_proj": "colwise",
        "layers.*.self_attn.v_proj": "colwise",
        "layers.*.self_attn.o_proj": "rowwise",
        "layers.*.mlp.gate_proj": "colwise",
        "layers.*.mlp.up_proj": "colwise",
        "layers.*.mlp.down_proj": "rowwise",
    }

    vocab_size: int = 32000
    hidden_size: int = 896
    intermediate_size: int | None = None
    num_hidden_layers: int = 5
    num_attention_heads: int = 14
    metric_intermediate_size: int = 170
    num_metric_units: int = 8
    num_metric_blocks: int = 2
    max_position_embeddings: int = 1024
    layer_norm_eps: float = 1e-6
    attention_dropout: float = 0.0
    rope_theta: float = 10000.0
    rope_interleaved: bool = True
    operator: str = "learned"
    constant: str = "external"
    constant_seed: int = 0
    gram: str = "global"
    gram_chunk: int = 128
    operator_mode: str | None = None
    operator_initialization: str = "xavier_normal"
    metric_initialization: str = "xavier"
    use_cache: bool = True
    pad_token_id: int | None = 0
    bos_token_id: int | None = 2
    eos_token_id: int | list[int] | None = 3
    tie_word_embeddings: bool = False

    def __new__(cls, *args: Any, **kwargs: Any) -> "PldrConfig":
        # Auto classes look a model up by the class of a config instance, so the first instance brings the models
        # along; registering them on ``import plga`` would make every user of the package pay for Transformers.
        from plga.model.registration import register_models

        register_models()
        return super().__new__(cls)

    def __post_init__(self, **kwargs: Any) -> None:
        if self.intermediate_size is None:
            self.intermediate_size = 8 * self.hidden_size // 3
        if self.operator_mode is None:
            self.operator_mode = self._learned_modes[0]
        super().__post_init__(**kwargs)
        # Here, not left to @strict: it would wrap the ValueError in an exception that is none.
        self.validate_architecture()

    @property
    def head_dim(self) -> int:
        """Width d of a head."""
        return self.hidden_size // self.num_attention_heads

    @head_dim.setter
    def head_dim(self, value: int | None) -> None:
        # Written in published configs; a derived number here, so it can only be confirmed.
        if value is not None and value * self.num_attention_heads != self.hidden_size:
            raise ValueError(
                f"head_dim is {value}, expected hidden_size / num_attention_heads = "
                f"{self.hidden_size} / {self.num_attention_heads}"
            )

    @property
    def _learned_modes(self) -> tuple[str, ...]:
        return ("chunked",) if self.gram == "chunked" else ("recompute", "prompt")

    @property
    def modes(self) -> tuple[str, ...]:
        """Those of MODES that the operator can generate in."""
        return ("constant",) if self.operator == "constant" else self._learned_modes

    def validate_architecture(self) -> None:
        """Raise ValueError on impossible numbers; called by every construction."""
        for name in (
            "vocab_size",
            "hidden_size",
            "intermediate_size",
            "num_hidden_layers",
            "num_attention_heads",
            "metric_intermediate_size",
            "num_metric_units",
            "num_metric_blocks",
            "max_position_embeddings",
            "gram_chunk",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, expected >= 1")
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size is {self.hidden_size}, expected a multiple of num_attention_heads = "
                f"{self.num_attention_heads}"
            )
        if self.head_dim % 2:
            raise ValueError(
                f"hidden_size / num_attention_heads is {self.head_dim}, expected an even head width (rotary pairs)"
            )
        for name in ("layer_norm_eps", "rope_theta"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name} is {getattr(self, name)}, expected a finite number > 0")
        if not 0 <= self.attention_dropout < 1:
            raise ValueError(f"attention_dropout is {self.attention_dropout}, expected in [0, 1)")
        for name, allowed in (
            ("operator", OPERATORS),
            ("constant", CONSTANTS),
            ("gram", GRAMS),
            ("operator_mode", self._learned_modes),
            ("operator_initialization", INITIALIZATIONS),
            ("metric_initialization", METRIC_INITIALIZATIONS),
        ):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} is {getattr(self, name)!r}, expected one of {', '.join(allowed)}")
        if self.gram == "chunked" and self.operator == "constant":
            raise ValueError(
                "gram is 'chunked' and operator 'constant', expected gram 'global': a constant is built from no Gram"
            )
        if self.tie_word_embeddings:
            raise ValueError("tie_word_embeddings is True, expected False: a PLDR-LLM has an untied linear head")


def require_mode(config: PldrConfig, mode: str, what: str) -> None:
    """Raise ValueError, beginning with ``what``, unless the operator of the model can generate in ``mode``."""
    if mode not in config.modes:
        operator = config.operator if config.gram == "global" else f"{config.operator} with a {config.gram} Gram"
        expected = " or ".join(config.modes)
        raise ValueError(f"{what}, but the operator of this model is {operator}, expected {expected}")
