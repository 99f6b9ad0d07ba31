"""PldrConfig: published defaults, round trips, and a ValueError that names the field for impossible numbers."""

import pickle

import pytest

from plga.model.configuration import PldrConfig
from tests.model.conftest import tiny_config


def test_defaults_are_the_published_110m_model() -> None:
    config = PldrConfig()
    assert (config.num_hidden_layers, config.num_attention_heads, config.head_dim) == (5, 14, 64)
    assert (config.hidden_size, config.intermediate_size) == (896, 2389)
    assert (config.metric_intermediate_size, config.num_metric_units, config.num_metric_blocks) == (170, 8, 2)
    assert (config.vocab_size, config.max_position_embeddings, config.layer_norm_eps) == (32000, 1024, 1e-6)
    assert (config.pad_token_id, config.bos_token_id, config.eos_token_id) == (0, 2, 3)
    assert (config.operator, config.gram, config.operator_mode) == ("learned", "global", "recompute")
    assert (config.operator_initialization, config.metric_initialization) == ("xavier_normal", "xavier")


@pytest.mark.parametrize(
    "changes",
    [
        {"operator": "constant", "constant": "random", "constant_seed": 7, "rope_interleaved": False},
        {"gram": "chunked", "gram_chunk": 5, "metric_initialization": "small"},
        {"operator_mode": "prompt"},
    ],
    ids=str,
)
def test_round_trips(changes: dict, tmp_path) -> None:
    config = tiny_config(**changes)
    config.save_pretrained(tmp_path)
    saved = PldrConfig.from_pretrained(tmp_path).to_dict()
    assert {**saved, "transformers_version": None} == {**config.to_dict(), "transformers_version": None}
    assert PldrConfig.from_dict(config.to_dict()).to_dict() == config.to_dict()
    assert pickle.loads(pickle.dumps(config)).to_dict() == config.to_dict()


IMPOSSIBLE = [
    ({"hidden_size": 9}, "hidden_size is 9, expected a multiple of num_attention_heads = 2"),
    ({"hidden_size": 6}, "hidden_size / num_attention_heads is 3, expected an even head width"),
    ({"vocab_size": 0}, "vocab_size is 0"),
    ({"hidden_size": 0}, "hidden_size is 0"),
    ({"hidden_size": -8}, "hidden_size is -8"),
    ({"intermediate_size": 0}, "intermediate_size is 0"),
    ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
    ({"num_attention_heads": 0}, "num_attention_heads is 0"),
    ({"metric_intermediate_size": 0}, "metric_intermediate_size is 0"),
    ({"num_metric_units": 0}, "num_metric_units is 0"),
    ({"num_metric_blocks": -1}, "num_metric_blocks is -1"),
    ({"max_position_embeddings": 0}, "max_position_embeddings is 0"),
    ({"layer_norm_eps": 0.0}, "layer_norm_eps is 0.0"),
    ({"layer_norm_eps": float("nan")}, "layer_norm_eps is nan"),
    ({"rope_theta": -1.0}, "rope_theta is -1.0"),
    ({"rope_theta": float("inf")}, "rope_theta is inf"),
    ({"attention_dropout": 1.0}, "attention_dropout is 1.0"),
    ({"operator": "frozen"}, "operator is 'frozen', expected one of learned, constant"),
    ({"constant": "zero"}, "constant is 'zero', expected one of identity, random, external"),
    ({"operator_mode": "constant"}, "operator_mode is 'constant', expected one of recompute, prompt"),
    ({"operator_initialization": "normal"}, "operator_initialization is 'normal'"),
    ({"gram": "local"}, "gram is 'local', expected one of global, chunked"),
    ({"gram": "chunked", "gram_chunk": 0}, "gram_chunk is 0, expected >= 1"),
    ({"gram": "chunked", "operator": "constant"}, "gram is 'chunked' and operator 'constant', expected gram 'global'"),
    ({"gram": "chunked", "operator_mode": "prompt"}, "operator_mode is 'prompt', expected one of chunked"),
    ({"operator_mode": "chunked"}, "operator_mode is 'chunked', expected one of recompute, prompt"),
    ({"metric_initialization": "large"}, "metric_initialization is 'large', expected one of xavier, small"),
    ({"tie_word_embeddings": True}, "tie_word_embeddings is True"),
    ({"head_dim": 3}, "head_dim is 3"),
]


@pytest.mark.parametrize(("change", "message"), IMPOSSIBLE, ids=[str(change) for change, _ in IMPOSSIBLE])
def test_impossible_numbers(change: dict, message: str) -> None:
    with pytest.raises(ValueError) as error:
        tiny_config(**change)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_the_mode_follows_from_the_gram() -> None:
    assert (tiny_config().operator_mode, tiny_config().modes) == ("recompute", ("recompute", "prompt"))
    assert (tiny_config(gram="chunked").operator_mode, tiny_config(gram="chunked").modes) == ("chunked", ("chunked",))
    assert tiny_config(operator="constant").modes == ("constant",)


def test_published_head_width_is_confirmed() -> None:
    assert tiny_config(head_dim=4).head_dim == 4
    assert "head_dim" not in tiny_config(head_dim=4).to_dict()
