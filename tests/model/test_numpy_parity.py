"""The model against an independent NumPy implementation, on random shapes and weights."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from plga.model.configuration import PldrConfig
from plga.model.modeling import PldrForCausalLM
from plga.model.names import to_released
from tests import numpy_reference
from tests.model.conftest import pad, relative, scatter

BOUND = 1e-9


@settings(max_examples=60)
@given(
    shape=st.tuples(st.integers(1, 3), st.sampled_from([2, 4, 6, 8])),  # heads and their width
    config=st.fixed_dictionaries(
        {
            "num_hidden_layers": st.integers(1, 3),
            "intermediate_size": st.integers(1, 12),
            "metric_intermediate_size": st.integers(1, 7),
            "num_metric_units": st.integers(1, 3),
            "num_metric_blocks": st.integers(1, 3),
            "vocab_size": st.integers(2, 20),
            "rope_interleaved": st.booleans(),
            "rope_theta": st.sampled_from([10000.0, 500.0]),
            "operator": st.sampled_from(["learned", "constant"]),
            "operator_initialization": st.sampled_from(["xavier_normal", "xavier_uniform"]),
        }
    ),
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    left=st.booleans(),
    attention=st.sampled_from(["sdpa", "eager"]),
    seed=st.integers(0, 2**31),
)
@torch.no_grad()
def test_model_equals_the_numpy_implementation(shape, config, lengths, left, attention, seed) -> None:
    heads, width = shape
    torch.manual_seed(seed)
    model = PldrForCausalLM(
        PldrConfig(
            hidden_size=heads * width,
            num_attention_heads=heads,
            constant="random",
            constant_seed=seed,
            attn_implementation=attention,
            **config,
        )
    )
    scatter(model.double().eval(), seed)
    ids, mask = pad([torch.randint(config["vocab_size"], (length,)) for length in lengths], left)
    ours = model(ids, attention_mask=mask, output_deductive=True)

    state = {to_released(key): tensor.numpy() for key, tensor in model.state_dict().items()}
    constant = [state.pop(key) for key in list(state) if key.endswith(".operator.curvature")]
    theirs = numpy_reference.forward(
        state,
        ids.numpy(),
        num_heads=heads,
        mask=mask.bool().numpy(),
        interleaved=config["rope_interleaved"],
        curvature=np.stack(constant) if constant else None,
        score_scale=numpy_reference.published_score_scale(width),
        rope_base=config["rope_theta"],
    )
    real = mask.bool()  # nobody reads a row of padding
    assert relative(ours.logits[real], torch.from_numpy(theirs.logits)[real]) < BOUND
    for name in () if constant else ("generator", "metric", "potential", "curvature"):
        tensors = torch.stack([getattr(layer, name) for layer in ours.deductive])
        assert relative(tensors, torch.from_numpy(getattr(theirs, name))) < BOUND, name
