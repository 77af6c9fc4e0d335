"""LitGPT's own two converters, and the logits of its GPT beside those of transformers."""

from __future__ import annotations

import inspect
import tempfile
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from litgpt import GPT, Config
from litgpt.scripts import convert_hf_checkpoint as there
from litgpt.scripts import convert_lit_checkpoint as back
from safetensors.torch import load_file

from .case import refill, tensor, write_case

REQUIREMENTS = ("torch==2.13.0", "litgpt==0.5.13", "transformers==4.56.2")
State = dict[str, torch.Tensor]


def call(fn: Callable[..., None], weights: State, **more: Any) -> State:
    """Call one of the copy functions, whose arguments differ."""
    out: State = {}
    known = {"qkv_weights": {}, "state_dict": out, "hf_weights": weights, "lit_weights": weights, **more}
    wanted = inspect.signature(fn).parameters
    fn(**{k: v for k, v in known.items() if k in wanted})
    return out


def on_disk(model: hf.PreTrainedModel) -> State:
    """The tensors that the library writes for a model, by the names of its files, with other values."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return refill(load_file(Path(folder) / "model.safetensors"))


def equal(a: Mapping[str, torch.Tensor], b: Mapping[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[n], b[n]) for n in a)


def assert_same_logits(model: hf.PreTrainedModel, given: State, lit: Config, made: State, vocab: int) -> float:
    """Load both and compare, in float32; give the largest difference."""
    with tempfile.TemporaryDirectory() as folder:
        model.config.save_pretrained(folder)
        model.save_pretrained(folder, state_dict={n: x.clone() for n, x in given.items()})
        ours = type(model).from_pretrained(folder, torch_dtype=torch.float32, attn_implementation="eager").eval()
    theirs = GPT(lit).eval()
    theirs.load_state_dict(made, strict=True)
    ids = torch.randint(0, vocab, (2, 9), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        a, b = ours(ids).logits[..., :vocab], theirs(ids)[..., :vocab]
    assert a.std() > 0.01, "logits that hardly differ prove nothing"
    torch.testing.assert_close(a, b, atol=2e-5, rtol=1e-4)
    return float((a - b).abs().max())


def case(
    folder: Path,
    name: str,
    config: hf.PretrainedConfig,
    lit: Config,
    code: str,
    dtype: torch.dtype = torch.bfloat16,
    extra: Mapping[str, torch.Tensor] | None = None,
    give: tuple[str, ...] = (),
    head: bool = True,
    **more: Any,
) -> None:
    """Make a case: the config's model with other values, through the peer and back.

    ``extra`` tensors are in the file and the peer leaves them out; ``give`` are keys of config.json that the map asks
    for; ``head``: the peer's way back is told to write the head.
    """
    torch.manual_seed(0)
    auto = hf.AutoModelForImageTextToText if hasattr(config, "vision_config") else hf.AutoModelForCausalLM
    model = auto.from_config(config)
    given = on_disk(model.to(dtype))
    fns = [getattr(m, f"copy_weights_{w}") for m, w in zip((there, back), code.split())]
    made = call(fns[0], {**given, **(extra or {})}, config=lit)
    again = call(fns[1], made, config=lit, untie_weights=not head) if len(fns) > 1 else given
    gap = assert_same_logits(model, given, lit, made, lit.vocab_size)
    fns += [m.qkv_reassemble for m in (there, back) if "qkv_reassemble" in inspect.getsource(fns[0])]
    values = {k: getattr(config, k) for k in give}
    write_case(
        folder, f"litgpt/{name}", {**given, **(extra or {})}, made, peer="litgpt", code=fns,
        back=None if equal(again, given) else again, config=values or None, **more,
    )  # fmt: skip
    print(f"litgpt/{name}: {len(given)} -> {len(made)} -> {len(again)} tensors, logits differ by {gap:.1e}")


def common(name: str, **sizes: Any) -> Config:
    """A small config of LitGPT, otherwise as that model has it."""
    return Config.from_name(name, **{"block_size": 64, "padded_vocab_size": sizes["vocab_size"], **sizes})


ROTARY: dict[str, Any] = {"max_position_embeddings": 64, "rope_theta": 10000.0}
TOKENS: dict[str, Any] = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


def gpt_neox(folder: Path) -> None:
    config = hf.GPTNeoXConfig(
        vocab_size=31, hidden_size=20, num_hidden_layers=11, num_attention_heads=5, intermediate_size=28, rotary_pct=0.5,
        max_position_embeddings=64, **TOKENS,
    )  # fmt: skip
    lit = common(
        "pythia-14m", vocab_size=31, n_embd=20, n_layer=11, n_head=5, intermediate_size=28, rotary_percentage=0.5
    )
    extra: State = {}
    for i in range(11):  # buffers that the released files have
        at = f"gpt_neox.layers.{i}.attention"
        extra |= {f"{at}.bias": torch.ones(1, 1, 7, 7).tril().bool(), f"{at}.masked_bias": torch.tensor(-1e9).half()}
        extra[f"{at}.rotary_emb.inv_freq"] = tensor("inv_freq", (1,), "F16")
    case(
        folder, "gpt_neox", config, lit, "gpt_neox gpt_neox", torch.float16, extra, give=("num_attention_heads",)
    )  # fmt: skip


def falcon(folder: Path) -> None:
    sizes: dict[str, Any] = {
        "vocab_size": 31, "hidden_size": 20, "num_hidden_layers": 3, "num_attention_heads": 5, "ffn_hidden_size": 28,
        "bias": False, "parallel_attn": True, "alibi": False, "tie_word_embeddings": False, **TOKENS,
    }  # fmt: skip
    config = hf.FalconConfig(**sizes, multi_query=True, new_decoder_architecture=False)
    lit = common("falcon-7b", vocab_size=31, n_embd=20, n_layer=3, n_head=5, intermediate_size=28)
    case(folder, "falcon_mq", config, lit, "falcon falcon")
    sizes |= {"hidden_size": 24, "num_attention_heads": 6}
    config = hf.FalconConfig(**sizes, num_kv_heads=2, new_decoder_architecture=True)
    lit = common("falcon-40b", vocab_size=31, n_embd=24, n_layer=3, n_head=6, n_query_groups=2, intermediate_size=28)
    case(folder, "falcon_gq", config, lit, "falcon falcon", give=("num_attention_heads", "num_kv_heads"))


SIZES: dict[str, Any] = {
    "vocab_size": 31, "hidden_size": 20, "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2,
    "head_dim": 4, "intermediate_size": 28, **ROTARY, **TOKENS,
}  # fmt: skip
LIT: dict[str, Any] = {
    "vocab_size": 31, "n_embd": 20, "n_layer": 3, "n_head": 6, "n_query_groups": 2, "head_size": 4,
    "intermediate_size": 28, "rope_base": 10000,
}  # fmt: skip


def llama(folder: Path) -> None:
    eps = {"rms_norm_eps": 1e-5}
    config = hf.LlamaConfig(**{**SIZES, "num_hidden_layers": 11}, **eps, tie_word_embeddings=False)
    lit = common("Llama-3-8B", **{**LIT, "n_layer": 11})
    case(folder, "llama", config, lit, "hf_llama llama")
    inv_freq = {f"model.layers.{i}.self_attn.rotary_emb.inv_freq": tensor("inv_freq", (2,)) for i in range(3)}
    tied = hf.LlamaConfig(**SIZES, **eps, tie_word_embeddings=True)
    case(folder, "llama@tied", tied, common("Llama-3-8B", **LIT), "hf_llama llama", extra=inv_freq)
    give = ("tie_word_embeddings",)
    case(folder, "llama@left_out", tied, common("Llama-3-8B", **LIT), "hf_llama llama", give=give, head=False)


def gemma(folder: Path) -> None:
    config = hf.GemmaConfig(**SIZES, rms_norm_eps=1e-5)
    case(folder, "gemma", config, common("Gemma-2b", **LIT), "hf_llama llama", head=False)
    windows = {"sliding_window_size": 4, "sliding_window_indices": [1, 0, 1]}
    config = hf.Gemma2Config(**SIZES, rms_norm_eps=1e-5, query_pre_attn_scalar=5, sliding_window=4)
    lit = common("Gemma-2-2b", **LIT, **windows, attention_scores_scalar=5)
    case(folder, "gemma2", config, lit, "gemma_2 gemma_2", head=False)
    text: dict[str, Any] = {
        **SIZES, "rms_norm_eps": 1e-5, "query_pre_attn_scalar": 5, "sliding_window": 4, "rope_local_base_freq": 100.0,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    }  # fmt: skip
    lit = common(
        "Gemma-3-1b-it", **LIT, **windows, attention_scores_scalar=5, rope_indices=[1, 0, 1], rope_local_base_freq=100
    )
    case(folder, "gemma3", hf.Gemma3TextConfig(**text), lit, "gemma_3 gemma_3", head=False)
    vision = {
        "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 6, "image_size": 8,
        "patch_size": 4,
    }  # fmt: skip
    more = {**text, "vocab_size": 33}  # two rows for tokens that stand for images, which the peer cuts off
    config = hf.Gemma3Config(text_config=more, vision_config=vision, mm_tokens_per_image=4, image_token_index=32)
    sets = ["--set=vocab=31"]
    flags = {"forward": sets, "reverse": [*sets, "--set=rows=31"]}
    case(folder, "gemma3_vl", config, lit, "gemma_3 gemma_3", head=False, flags=flags)


def phi(folder: Path) -> None:
    sizes = {k: v for k, v in SIZES.items() if k != "head_dim"}
    config = hf.PhiConfig(**{**sizes, "hidden_size": 24}, partial_rotary_factor=0.5)
    lit = common("phi-2", **{**LIT, "n_embd": 24}, rotary_percentage=0.5)
    case(folder, "phi", config, lit, "phi phi")
    config = hf.Phi3Config(**SIZES, rms_norm_eps=1e-5, sliding_window=None)
    lit = common("Phi-3-mini-4k-instruct", **LIT, sliding_window_size=None)
    case(folder, "phi3", config, lit, "phi phi")
    config = hf.Phi3Config(**SIZES, rms_norm_eps=1e-5, sliding_window=None, tie_word_embeddings=True)
    lit = common("Phi-4-mini-instruct", **LIT, sliding_window_size=None, rotary_percentage=1.0)
    case(folder, "phi3@tied", config, lit, "phi phi", give=("tie_word_embeddings",))


def qwen(folder: Path) -> None:
    config = hf.Qwen2Config(**SIZES, rms_norm_eps=1e-6)
    lit = common("Qwen2.5-0.5B", **LIT)
    case(folder, "qwen2_5", config, lit, "qwen_2_5 qwen_2_5")
    config = hf.Qwen2Config(**SIZES, rms_norm_eps=1e-6, tie_word_embeddings=True)
    case(folder, "qwen2_5@tied", config, lit, "qwen_2_5 qwen_2_5")
    config = hf.Qwen3Config(**SIZES, rms_norm_eps=1e-6)
    case(folder, "qwen3", config, common("Qwen3-0.6B", **LIT), "qwen_3 qwen_3")
    config = hf.Qwen3Config(**SIZES, rms_norm_eps=1e-6, tie_word_embeddings=True)
    case(folder, "qwen3@tied", config, common("Qwen3-0.6B", **LIT), "qwen_3 qwen_3")
    experts = {"num_experts": 12, "num_experts_per_tok": 3, "moe_intermediate_size": 10, "norm_topk_prob": True}
    config = hf.Qwen3MoeConfig(**SIZES, **experts, rms_norm_eps=1e-6)
    lit = common(
        "Qwen3-30B-A3B", **LIT, n_expert=12, n_expert_per_token=3, moe_intermediate_size=10, norm_topk_prob=True
    )
    case(folder, "qwen3_moe", config, lit, "qwen_3 qwen_3")


def mixtral(folder: Path) -> None:
    sizes = {**SIZES, "intermediate_size": 10}
    config = hf.MixtralConfig(**sizes, num_local_experts=12, num_experts_per_tok=3, rms_norm_eps=1e-5)
    lit = common("Mixtral-8x7B-v0.1", **{**LIT, "intermediate_size": 10}, n_expert=12, n_expert_per_token=3)
    case(folder, "mixtral", config, lit, "hf_llama llama")


def olmo(folder: Path) -> None:
    config = hf.OlmoConfig(**SIZES, tie_word_embeddings=False)
    lit = common("OLMo-1B-hf", **LIT)
    case(folder, "olmo", config, lit, "hf_llama llama")
    config = hf.Olmo2Config(**SIZES, rms_norm_eps=1e-6)
    lit = common("OLMo-2-1124-7B", **LIT)
    # Its way back has norm_2 where its model has post_attention_norm, and fails: KeyError.
    case(folder, "olmo2", config, lit, "olmo2")


def main(folder: Path) -> None:
    warnings.filterwarnings("ignore")
    hf.logging.set_verbosity_error()
    for family in (gpt_neox, falcon, llama, gemma, phi, qwen, mixtral, olmo):
        family(folder)
