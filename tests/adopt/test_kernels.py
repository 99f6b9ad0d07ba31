"""The attention implementation of an adopted model: q G before the kernel that was selected, whichever that is."""

import copy
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, GPT2Config
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, PreTrainedModel

import plga
from plga.adopt.absorption import absorb
from plga.adopt.classes import operators
from plga.adopt.kernels import REACHED, Kernel, asks_for_names, forget, kernel_function, plain_kernels, register
from tests.adopt.conftest import ARCHITECTURES, KERNELS, KINDS, bend, padded, relative, small, small_or_skip, tokens


def by_hand(model: PreTrainedModel, matrices: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch) -> PreTrainedModel:
    """A copy of an SDPA model whose eager kernel gets q G, a head at a time."""
    other = copy.deepcopy(model)
    named = {id(module): matrices[name] for name, module in other.named_modules() if name in matrices}
    homes = {type(module).__module__ for module in other.modules() if id(module) in named}
    for home in homes:
        kernel = sys.modules[home].eager_attention_forward

        def bent(module: Any, query: Tensor, *args: Any, kernel: Any = kernel, **kwargs: Any) -> Any:
            if (matrix := named.get(id(module))) is not None:
                heads = [query[:, h] @ matrix[h] for h in range(query.shape[1])]
                query = torch.stack(heads, dim=1)
            return kernel(module, query, *args, **kwargs)

        monkeypatch.setattr(sys.modules[home], "eager_attention_forward", bent)
    return other


@pytest.mark.parametrize("kind", ["constant", "low_rank"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_layer_sees_its_queries_through_g(name: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Experts are multiplied in no float64.
    dtype, tolerance = (torch.float32, 1e-5) if name in ("mixtral", "qwen3_moe", "gpt_oss") else (torch.float64, 1e-12)
    base = small(name, dtype=dtype)
    ours = bend(plga.adopt(copy.deepcopy(base), kind, rank=3), by=0.3)
    matrices = {layer: operator.matrix().detach() for layer, operator in operators(ours).items()}
    assert len(matrices) == base.config.num_hidden_layers
    ids = tokens(2, 12)
    got, plain = ours(ids).logits, base(ids).logits
    greedy = ours.generate(ids, max_new_tokens=4, do_sample=False)
    with monkeypatch.context() as patch:
        theirs = by_hand(base, matrices, patch)
        assert relative(got, theirs(ids).logits) < tolerance
        assert torch.equal(greedy, theirs.generate(ids, max_new_tokens=4, do_sample=False))
    assert relative(got, plain) > 1e-3


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["llama", "mistral", "gemma3", "gpt2", "deepseek_v3"])
def test_both_kernels_compute_the_same(name: str, kind: str) -> None:
    # Bent more, a learner would magnify the rounding of the two, which differs by processor, to more than 1e-5.
    ours = bend(plga.adopt(small_or_skip(name, "sdpa", torch.float32), kind, metric_units=1), by=0.03)
    ids, mask = padded([tokens(9), tokens(12, seed=1)])
    sdpa = ours(ids, attention_mask=mask).logits
    ours.set_attn_implementation("eager")
    eager = ours(ids, attention_mask=mask).logits
    assert relative(eager[mask == 1], sdpa[mask == 1]) < 1e-5


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_operator_of_each_layer_acts_once_a_pass(name: str, kernel: str) -> None:
    ours = plga.adopt(small_or_skip(name, kernel, torch.float32))
    calls: list[str] = []
    for layer, operator in operators(ours).items():
        operator.register_forward_hook(lambda *_, layer=layer: calls.append(layer))
    ours(tokens(1, 5))
    assert calls == list(ours.config.plga_layers)
    assert len(calls) == ours.config.num_hidden_layers


@pytest.mark.parametrize("name", ["llama", "gpt2"])  # the second asks for the name of its kernel
@pytest.mark.parametrize("kernel", KERNELS)
def test_operators_stay_whoever_chooses_the_kernel(name: str, kernel: str) -> None:
    ours = bend(plga.adopt(small(name)))
    want = ours(tokens(1, 9)).logits
    ours.set_attn_implementation(kernel)
    assert str(ours.config._attn_implementation) == f"plga_{kernel}"
    assert relative(ours(tokens(1, 9)).logits, want) < 1e-6  # the softmax of eager is float32
    ours.set_attn_implementation(f"plga_{kernel}")
    assert str(ours.config._attn_implementation) == f"plga_{kernel}"
    ours.config._attn_implementation = kernel
    assert str(ours.config._attn_implementation) == f"plga_{kernel}"
    assert relative(ours(tokens(1, 9)).logits, want) < 1e-6


def test_an_unknown_kernel_is_refused_and_the_old_one_stays() -> None:
    ours = bend(plga.adopt(small("llama")))
    want = ours(tokens(1, 9)).logits
    with pytest.raises(ValueError, match="nonsense"):
        ours.set_attn_implementation("nonsense")
    assert torch.equal(ours(tokens(1, 9)).logits, want)
    with pytest.raises(
        ValueError, match=r"attn_implementation is 'nonsense', which is not registered .* one of eager, "
    ):
        kernel_function("nonsense")
    assert "sdpa" in plain_kernels() and not any(kernel.startswith("plga_") for kernel in plain_kernels())


def test_a_look_for_the_layers_leaves_no_kernel_behind() -> None:
    before = set(ALL_ATTENTION_FUNCTIONS)
    plga.adopt(small("llama"))
    assert set(ALL_ATTENTION_FUNCTIONS) - before <= {"plga_eager", "plga_sdpa"}


def test_a_kernel_registered_by_its_user_gets_the_bent_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

    def mine(*args: Any, **kwargs: Any) -> Any:
        return ALL_ATTENTION_FUNCTIONS["sdpa"](*args, **kwargs)

    AttentionInterface.register("mine", mine)
    AttentionMaskInterface.register("mine", ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])
    base = small("llama", "sdpa")
    ours = bend(plga.adopt(copy.deepcopy(base)))
    want = ours(tokens(1, 9)).logits
    ours.set_attn_implementation("mine")
    assert torch.equal(ours(tokens(1, 9)).logits, want)


def test_only_models_that_ask_get_a_name_that_answers() -> None:
    assert asks_for_names("transformers.models.gpt2.modeling_gpt2")
    assert not asks_for_names("transformers.models.llama.modeling_llama")
    kernel = Kernel("plga_sdpa")
    assert kernel == "sdpa" and kernel == "plga_sdpa" and kernel in ("eager", "sdpa") and kernel != "eager"
    assert (kernel != "sdpa") is False  # both operators are ours
    assert {"sdpa": 1, "plga_sdpa": 2}[kernel] == 2
    assert type(copy.deepcopy(kernel)) is Kernel
    assert type(plga.adopt(small("llama")).config._attn_implementation) is str
    assert type(plga.adopt(small("gpt2")).config._attn_implementation) is Kernel


def test_sparse_attention_that_asks_for_its_kernel_still_hides_what_it_did_not_select() -> None:
    hf = pytest.importorskip("transformers")
    config_class = getattr(hf, "DeepseekV32Config", None)
    if config_class is None:
        pytest.skip("this version of Transformers has no DeepSeek V3.2")
    config = config_class(
        **{"vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "pad_token_id": 0},
        **{"num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 64, "eos_token_id": None},
        **{"q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8},
        **{"n_routed_experts": 4, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
        **{"index_n_heads": 2, "index_head_dim": 8, "index_topk": 6},
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    dense = copy.deepcopy(model)
    for module in dense.modules():
        if hasattr(module, "index_topk"):
            module.index_topk = 64
    ids = tokens(2, 20)
    before = model(ids).logits
    assert not torch.equal(before, dense(ids).logits)
    assert torch.equal(plga.adopt(model)(ids).logits, before)


def test_a_path_past_the_interface_for_this_kernel_is_refused() -> None:
    config = GPT2Config(vocab_size=97, n_embd=32, n_layer=2, n_head=4, n_positions=64, reorder_and_upcast_attn=True)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    with pytest.raises(ValueError, match="GPT2LMHeadModel runs its attention past Transformers' attention interface"):
        plga.adopt(model)


@torch.no_grad()
def test_threads_may_run_one_model() -> None:
    ours, ids = bend(plga.adopt(small("llama"))), tokens(1, 9)
    want, found = ours(ids).logits, []
    threads = [threading.Thread(target=lambda: found.extend(ours(ids).logits for _ in range(40))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 160
    assert all(torch.equal(logits, want) for logits in found)


@torch.no_grad()
def test_a_pass_that_leaves_operators_out_is_stopped() -> None:
    ours = bend(plga.adopt(small("gpt2", "sdpa", torch.float32, reorder_and_upcast_attn=True)))
    want = ours(tokens(1, 9)).logits
    ours.set_attn_implementation("eager")  # on which it does not come to the attention interface
    with pytest.raises(ValueError, match=r"^GPT2Attention went past its operator, expected a kernel and settings on"):
        ours(tokens(1, 9))
    ours.set_attn_implementation("sdpa")
    assert torch.equal(ours(tokens(1, 9)).logits, want)
    other = plga.adopt(small("llama", "eager"))
    register("own", "sdpa", kernel_function("sdpa"))
    try:
        other.config._attn_implementation = "own"  # past the model
        with pytest.raises(ValueError, match=r"^LlamaAttention went past its operator"):
            other(tokens(1, 9))
    finally:
        forget("own")
    plain = absorb(ours)
    plain.set_attn_implementation("eager")  # nothing watches it
    assert relative(plain(tokens(1, 9)).logits, want) < 1e-5
    assert not any(hasattr(module, REACHED) for module in plain.modules())


def test_attention_weights_can_be_asked_for(tmp_path: Path) -> None:
    model = small("llama")
    model.config.output_attentions = True
    ours = bend(plga.adopt(model))
    assert len(ours(tokens(1, 5)).attentions) == 2
    ours.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager")
    assert len(loaded(tokens(1, 5)).attentions) == 2
    ours.config.output_attentions = False
    other = plga.adopt(small("llama", "sdpa"))
    with pytest.raises(ValueError, match=r"`attn_implementation` set to sdpa. Please set it to 'eager' instead"):
        other.config.output_attentions = True
    weights = ours(tokens(1, 5), output_attentions=True).attentions
    assert [w.shape for w in weights] == [(1, 4, 5, 5)] * 2
    assert torch.allclose(weights[0].sum(dim=-1), torch.ones(1, 4, 5, dtype=torch.float64))


@pytest.mark.parametrize("kind", KINDS)
def test_gradient_checkpointing_changes_no_gradient(kind: str) -> None:
    ours = bend(plga.adopt(small("llama", "sdpa"), kind, metric_units=1)).train()
    ids = tokens(2, 9)

    def gradients() -> dict[str, Tensor]:
        ours.zero_grad()
        ours(ids, labels=ids).loss.backward()
        return {name: p.grad.clone() for name, p in ours.named_parameters()}

    before = gradients()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # a later Transformers has another name for it too
        ours.gradient_checkpointing_enable()
    after = gradients()
    assert all(relative(after[name], gradient) < 1e-12 for name, gradient in before.items() if gradient.any())


@torch.no_grad()
@pytest.mark.parametrize("name, kind", [("llama", "learned"), ("llama", "low_rank"), ("gpt2", "constant")])
def test_a_compiled_model_computes_the_same(name: str, kind: str) -> None:
    ours = bend(plga.adopt(small(name, "sdpa", num_hidden_layers=1), kind, metric_units=1))
    ids = tokens(2, 9)
    want = ours(ids).logits
    torch.compiler.reset()
    # A Kernel breaks the graph; a plain name does not.
    compiled = torch.compile(ours, backend="eager", fullgraph=name == "llama")
    assert relative(compiled(ids, use_cache=False).logits, want) < 1e-12


@torch.no_grad()
def test_a_compiled_model_keeps_the_operator_of_its_prompt() -> None:
    ours = bend(plga.adopt(small("llama", "sdpa", num_hidden_layers=1), "learned", metric_units=1))
    ids = tokens(1, 7)
    first = ours(ids[:, :5])
    want = ours(ids[:, 5:], past_key_values=first.past_key_values).logits
    torch.compiler.reset()
    compiled = torch.compile(ours, backend="eager")
    first = compiled(ids[:, :5])
    assert relative(compiled(ids[:, 5:], past_key_values=first.past_key_values).logits, want) < 1e-12
