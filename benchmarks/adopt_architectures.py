"""Which causal LMs of Transformers can be adopted: every class that AutoModelForCausalLM knows, small and at random.

    python benchmarks/adopt_architectures.py [--only LlamaForCausalLM ...] [--thorough]

Each class is built from its own configuration with small sizes, and adopted with constant and with learned operators,
on the kernel that Transformers selects, in float32; with --thorough on eager and on sdpa, in float32 and bfloat16.
Logits and hidden states of texts, padded and not, and greedy tokens with their scores, with a cache if it has one, are
compared with those of the model before, to the bit. A class that is refused is looked at too: the reason has to be one
line that names it, and the model as it was. One line a class, then a summary for the docs. Exits with 1 where a bit
differs, or a refusal is not as it should be.

A class has a process, a time and a memory of its own, so that one that is too large ends alone. What cannot be decided
(no small configuration, a package that is missing) is said with the error.
"""

import argparse
import contextlib
import copy
import multiprocessing
import resource
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from multiprocessing.connection import Connection
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

import plga.adopt

KINDS = ("constant", "learned")
LARGEST = 40_000_000  # numbers in a model that is still small
MEMORY = 12 << 30  # bytes of addresses: torch alone takes some
ADOPTED, PARTLY, REFUSED, UNDECIDED, WRONG = "adopted", "constant alone", "refused", "undecided", "WRONG"
HEADINGS = {
    ADOPTED: "adopted, all bits equal",
    PARTLY: "adopted with constant operators alone, all bits equal",
    REFUSED: "refused",
    UNDECIDED: "not decided",
    WRONG: "WRONG",
}

REASONS = {  # by a part of the message
    "attention interface": "attention past the attention interface",
    "see later ones": "tokens see later ones",
    "tokens alone": "does not run on tokens alone",
    "more than once": "several calls of the interface a layer",
}

# Sizes by the names that configurations have for them; who lacks a name is not given it.
HIDDEN, HEADS, GROUPS, WIDTH, INNER, LAYERS, EXPERTS, CONTEXT, VOCABULARY = 32, 4, 2, 8, 48, 4, 4, 64, 97
SIZES: dict[str, Any] = {
    name: size
    for size, names in (
        (
            HIDDEN,
            "hidden_size hidden_size_global n_embd d_model embedding_size emb_dim word_embed_proj_dim lru_width "
            "attention_hidden_size",
        ),
        (
            HEADS,
            "num_attention_heads n_head n_heads num_heads encoder_attention_heads decoder_attention_heads "
            "num_encoder_attention_heads num_decoder_attention_heads linear_num_value_heads index_n_heads "
            "swa_num_attention_heads",
        ),
        (
            GROUPS,
            "num_key_value_heads n_kv_heads linear_num_key_heads num_attention_groups num_key_value_groups "
            "multi_query_group_num swa_num_key_value_heads",
        ),
        (
            WIDTH,
            "head_dim d_kv qk_rope_head_dim qk_nope_head_dim v_head_dim q_lora_rank kv_lora_rank o_lora_rank "
            "global_head_dim index_head_dim linear_key_head_dim linear_value_head_dim lightning_head_dim kv_channels "
            "attention_head_dim attention_window_size attention_chunk_size sliding_window hidden_size_per_layer_input "
            "head_size lstm_hidden_size chunk_size mamba_chunk_size local_attn_chunk_length "
            "swa_head_dim swa_v_head_dim",
        ),
        (
            INNER,
            "intermediate_size ffn_dim ffn_hidden_size d_ff n_inner encoder_ffn_dim decoder_ffn_dim "
            "intermediate_size_mlp mlp_hidden_size feed_forward_size moe_intermediate_size shared_intermediate_size "
            "shared_expert_intermediate_size moe_shared_expert_intermediate_size expert_ffn_hidden_size",
        ),
        (
            LAYERS,
            "num_hidden_layers n_layer n_layers num_layers encoder_layers decoder_layers num_encoder_layers "
            "num_decoder_layers num_blocks",
        ),
        (
            EXPERTS,
            "num_experts num_local_experts n_routed_experts moe_num_experts laurel_rank state_size mamba_d_state "
            "ssm_state_size mamba_dt_rank time_step_rank conv_kernel mamba_n_heads mamba_num_heads num_buckets "
            "rotary_dim",
        ),
        (CONTEXT, "max_position_embeddings n_positions n_ctx max_seq_len max_target_positions max_source_positions"),
        (VOCABULARY, "vocab_size padded_vocab_size vocab_size_per_layer_input"),
        (16, "mamba_d_head mamba_head_dim mamba_headdim index_topk expert_dim"),
        (
            2,
            "num_experts_per_tok moe_k moe_topk router_topk type_vocab_size mamba_expand expand bos_token_id "
            "n_mamba_heads",
        ),
        (
            1,
            "n_group topk_group n_groups mamba_n_groups mamba_ngroups n_shared_experts moe_num_shared_experts "
            "num_mem_blocks first_k_dense_replace",
        ),
        (0, "pad_token_id num_nextn_predict_layers num_kv_shared_layers zero_expert_num moe_layer_start_index"),
    )
    for name in names.split()
} | {"is_decoder": True, "is_encoder_decoder": False, "add_cross_attention": False, "eos_token_id": None}
GIVEN_IF_NONE = {"num_key_value_heads", "head_dim", "n_routed_experts", "n_shared_experts", "num_experts_per_tok"}

# What the sizes alone leave inconsistent, or without a layer of attention.
HYBRIDS = {"layers_block_type": ["mamba", "hybrid"] * 2, "num_key_value_heads": HEADS} | {
    "attention_hidden_size": 2 * HIDDEN,
    "attention_head_dim": 2 * WIDTH,
}
OWN: dict[str, dict[str, Any]] = {
    "BailingHybridForCausalLM": {"num_hidden_layers": 8},
    "BambaForCausalLM": {"attn_layer_indices": [1, 3]},
    "BltForCausalLM": {"encoder_hash_byte_group_vocab": 50},
    "CohereCompassForCausalLM": {
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]},
        }
    },
    "DbrxForCausalLM": {"attn_config": {"kv_n_heads": GROUPS, "rope_theta": 1e4, "clip_qkv": 8.0}},
    "Dots3NoteForCausalLM": {"per_layer_config": {}, "head_dim": 2 * WIDTH},
    "FalconH1ForCausalLM": {"mamba_d_ssm": 64},
    "GPTNeoForCausalLM": {"attention_types": [[["global", "local"], 2]]},
    "GraniteMoeHybridForCausalLM": {"layer_types": ["mamba", "attention"] * 2},
    "JambaForCausalLM": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "KimiLinearForCausalLM": {"layer_types": ["linear_attention", "full_attention"] * 2},
    "Lfm2MoeForCausalLM": {"layer_types": ["conv", "full_attention"] * 2},
    "Lfm3ForCausalLM": {"num_hidden_layers": 8},
    "Mamba2ForCausalLM": {"head_dim": 16},
    "Qwen4ExpForCausalLM": {
        **{"indexer_n_heads": HEADS, "indexer_kv_heads": 1, "indexer_head_dim": WIDTH},
        **{"indexer_budget": 16, "indexer_compress_ratio": 4},
    },
    "ReformerModelWithLMHead": {"axial_pos_embds": False, "attn_layers": ["local", "local"]},
    "XmodForCausalLM": {"default_language": "en_XX"},
    "Zamba2ForCausalLM": HYBRIDS | {"n_mamba_heads": 4},
    "ZambaForCausalLM": HYBRIDS,
    "ZayaForCausalLM": {"num_experts_per_tok": 1, "moe_router_topk": 1},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="CLASS", help="these instead of all")
    parser.add_argument("--seconds", type=float, default=300, help="for one class")
    parser.add_argument("--thorough", action="store_true", help="every kernel of eager and sdpa, and bfloat16 too")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # matrices this small only wait for a second thread
    print(", ".join(f"{package} {version(package)}" for package in ("torch", "transformers")), end="\n\n")
    judge("LlamaForCausalLM", False)  # what this imports the processes of the classes need not import again
    found: dict[str, list[Verdict]] = {outcome: [] for outcome in HEADINGS}
    for name in arguments.only or sorted(classes(), key=str.lower):
        verdict = alone(name, arguments.thorough, arguments.seconds)
        found[verdict.outcome].append(verdict)
        print(verdict, flush=True)
    print()
    print("\n".join(summary(found)))
    sys.exit(bool(found[WRONG]))


@dataclass(frozen=True)
class Verdict:
    name: str
    outcome: str
    detail: str

    def __str__(self) -> str:
        return f"{self.name:40} {self.outcome:20} {self.detail}"

    @property
    def reason(self) -> str:
        """Why a class was not adopted, in words that it has in common with others."""
        if self.outcome == ADOPTED:
            return ""
        return next((words for sign, words in REASONS.items() if sign in self.detail), self.detail)


def classes() -> set[str]:
    """Names of Transformers' own classes of causal LMs."""
    return {name for name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values() if hasattr(transformers, name)}


def summary(found: dict[str, list[Verdict]]) -> Iterator[str]:
    """Lines of Markdown: how many classes came to what, and which."""
    rows: list[tuple[str, list[Verdict]]] = []
    for outcome, verdicts in found.items():
        for reason in sorted({v.reason for v in verdicts}):
            heading = f"{HEADINGS[outcome]}: {reason}" if reason else HEADINGS[outcome]
            rows.append((heading, [v for v in verdicts if v.reason == reason]))
    yield "| outcome | classes |\n|---|---|"
    for heading, verdicts in rows:
        yield f"| {heading} | {len(verdicts)} |"
    for heading, verdicts in rows:
        names = ", ".join(v.name.removesuffix("ForCausalLM") for v in verdicts)
        yield f"\n**{heading[0].upper()}{heading[1:]}** ({len(verdicts)}): {names}."


def alone(name: str, thorough: bool, seconds: float) -> Verdict:
    """``judge`` in a process of its own."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    # Forked: what it would import again takes longer than the work.
    process = multiprocessing.get_context("fork").Process(target=_child, args=(name, thorough, sender))
    process.start()
    sender.close()
    try:
        if not receiver.poll(seconds):
            return Verdict(name, UNDECIDED, f"not done after {seconds:g} s")
        verdict: Verdict = receiver.recv()
        return verdict
    except EOFError:
        process.join()
        return Verdict(name, UNDECIDED, f"the process ended with {process.exitcode}")
    finally:
        process.kill()
        process.join()


def _child(name: str, thorough: bool, sender: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    try:
        with contextlib.redirect_stdout(None):  # some models print their warnings
            verdict = judge(name, thorough)
    except Exception as error:
        verdict = Verdict(name, UNDECIDED, told(error))
    sender.send(verdict)


def judge(name: str, thorough: bool) -> Verdict:
    """Adopt models of one class."""
    cls: Any = getattr(transformers, name)
    config = small(cls.config_class, name)
    with torch.device("meta"):
        numbers = sum(p.numel() for p in cls._from_config(copy.deepcopy(config)).parameters())
    if numbers > LARGEST:
        return Verdict(name, UNDECIDED, f"has {numbers / 1e6:.0f} million numbers with small sizes")
    reasons: dict[str, set[str]] = {kind: set() for kind in KINDS}
    kernels, notes = [], {}
    for original in originals(cls, config, thorough):
        try:
            expected = texts(original, notes)
        except Exception as error:
            if original.dtype == torch.float32:
                return without_texts(original, error)
            notes["bfloat16"] = f"in float32 alone, for in bfloat16 it stops ({told(error)})"
            continue
        kernels.append(original.config._attn_implementation)
        for kind in KINDS:
            reasons[kind].add(try_one(copy.deepcopy(original), kind, expected))
    said = set().union(*reasons.values())
    if wrong := [reason for reason in said if reason.startswith(WRONG)]:
        return Verdict(name, WRONG, wrong[0])
    if said == {""}:
        return Verdict(name, ADOPTED, ", ".join([f"on {' and '.join(dict.fromkeys(kernels))}", *notes.values()]))
    if len(said) == 1:
        return Verdict(name, REFUSED, said.pop())
    if reasons["constant"] == {""} and len(reasons["learned"]) == 1:
        return Verdict(name, PARTLY, reasons["learned"].pop())
    return Verdict(name, WRONG, f"adopted here and refused there: {reasons}")


def originals(cls: Any, config: Any, thorough: bool) -> Iterator[Any]:
    """Models of a class with the same weights: as Transformers makes it, or with every kernel and dtype."""
    for kernel in ("eager", "sdpa") if thorough else (None,):
        torch.manual_seed(0)
        try:
            model = cls._from_config(copy.deepcopy(config), attn_implementation=kernel).eval()
        except ValueError:
            if kernel != "sdpa":
                raise
            continue  # it has no such kernel
        for dtype in (torch.float32, torch.bfloat16) if thorough else (torch.float32,):
            yield copy.deepcopy(model).to(dtype)


def without_texts(model: Any, error: Exception) -> Verdict:
    """What adoption says of a model that does not run on tokens."""
    name, before = type(model).__name__, state(model)
    try:
        plga.adopt(model)
    except ValueError as refusal:
        if str(refusal).startswith(name) and "\n" not in str(refusal) and state(model) == before:
            return Verdict(name, REFUSED, str(refusal))
    return Verdict(name, UNDECIDED, told(error))


def try_one(model: Any, kind: str, expected: list[Tensor]) -> str:
    """Adopt a model; the reason why not, or '', or what is wrong."""
    before = state(model)
    try:
        plga.adopt(model, kind, metric_units=1)
    except ValueError as error:
        message = str(error)
        if "\n" in message or type(model).__name__ not in message:
            return f"{WRONG}: no line that names it: {message!r}"
        if state(model) != before or not same(texts(model, {}), expected):
            return f"{WRONG}: not as it was after: {message}"
        return message
    return "" if same(texts(model, {}), expected) else f"{WRONG}: bits differ with {kind}"


@torch.no_grad()
def texts(model: Any, notes: dict[str, str]) -> list[Tensor]:
    """Logits, hidden states, greedy tokens and their scores."""
    tokens = torch.randint(3, VOCABULARY, (2, 14), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(tokens)
    mask[0, :3] = 0  # padded on the left
    found = []
    for given in (mask, None):
        outputs = model(input_ids=tokens, attention_mask=given, output_hidden_states=True, use_cache=False)
        found += [outputs.logits, *(outputs.hidden_states or ())]
    try:
        outputs = model.generate(
            tokens,
            attention_mask=mask,
            max_new_tokens=3,
            do_sample=False,
            output_scores=True,
            return_dict_in_generate=True,
        )
    except Exception as error:  # of the model itself: the adopted one has to fail alike
        notes["generate"] = f"without generation, for it stops ({told(error)})"
        return found
    return [*found, outputs.sequences, *outputs.scores]


def same(ours: list[Tensor], theirs: list[Tensor]) -> bool:
    return len(ours) == len(theirs) and all(map(torch.equal, ours, theirs))


def state(model: Any) -> Any:
    """What a refused adoption must leave as it was, beside what the model computes."""
    config = model.config
    described = copy.deepcopy((config.to_dict(), config._attn_implementation, model._keep_in_fp32_modules_strict))
    return type(model), type(config), described, [(n, type(m)) for n, m in model.named_modules()]


def small(config_class: Any, name: str) -> Any:
    """A configuration with small sizes."""
    return config_class(**(sizes(config_class) | OWN.get(name, {})))


def sizes(config_class: Any) -> dict[str, Any]:
    """Settings of a configuration class that make it small, and the configurations inside of it."""
    config = config_class()
    fields = config.to_dict()
    renamed = {real: SIZES[name] for name, real in config_class.attribute_map.items() if name in SIZES}
    found = {
        field: size
        for field, size in (renamed | SIZES).items()
        if field in fields and (fields[field] is not None or field in GIVEN_IF_NONE)
    }
    if found.get("kv_lora_rank"):  # latent attention has a key for each query head
        found["num_key_value_heads"] = HEADS
    for name in config_class.sub_configs:
        if (inner := getattr(config, name, None)) is not None:
            found[name] = sizes(type(inner)) | {"model_type": inner.model_type}
    return found


def told(error: Exception) -> str:
    """An error in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    # Transformers' validators say first that they failed, and then why.
    return (
        f"{type(error).__name__}: {(lines[1] if lines[0].startswith('Class validation') and lines[1:] else lines[0])}"
    )


if __name__ == "__main__":
    main()
