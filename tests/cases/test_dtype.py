"""What numbers are stored as: casts that lose, bytes that stay, tensors that are no numbers by themselves."""

import itertools

import ml_dtypes
import numpy as np
import pytest
from lab import arr, header

from .field import KEEP, f32, raw

BF16, F8 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn


def test_dtype_01_f16_overflow(case):
    given = {"w": f32(65504, 65519, 65520, 1e-8, 6e-8, -70000)}
    cast = "dtype: {to: float16}\nrules: [{from: w, to: w, shape: n}]"
    case.refused(cast, given, 1, "w: 2 values do not fit F16", "--allow-overflow", data=True)
    want = np.array([65504, 65504, np.inf, 0, 5.9605e-08, -np.inf], "<f2")
    r = case.gives(cast, given, {"w": want}, "--allow-overflow")
    assert "cast: w: 2 values did not fit F16" in r.out
    assert "cast: w: 1 value became zero in F16" in r.out
    case.refused(KEEP, given, 1, "w: 2 values do not fit F16", data=True, flags=("--dtype", "float16"))


def test_dtype_03_keep_fp32_list(case):
    bias, weight = f32(0.1, 0.2), f32(1)
    name = "gate.e_score_correction_bias"
    for keep in (
        f"{{from: {name}, to: {name}, dtype: keep}}",
        r"{match: '(?P<p>.+)\.e_score_correction_bias', to: '{p}.e_score_correction_bias', dtype: keep}",
    ):
        for rules in itertools.permutations((keep, "{from: gate.weight, to: gate.weight}")):
            text = "dtype: {to: bfloat16}\nrules:\n  - " + "\n  - ".join(rules)
            case.gives(text, {name: bias, "gate.weight": weight}, {name: bias, "gate.weight": raw(BF16, "803f", 1)})
            text = text.replace("dtype: {to: bfloat16}\n", "")
            case.gives(
                text,
                {name: bias, "gate.weight": weight},
                {name: bias, "gate.weight": raw(BF16, "803f", 1)},
                "--dtype",
                "bfloat16",
            )


def test_dtype_04_bf16_untouched(case):
    words = raw(BF16, "803f 807f c1ff 0100", 4)
    case.both("rules: [{from: w, to: v, shape: n}]", {"w": words}, {"v": words})
    assert header(case.output)["w"]["dtype"] == "BF16"
    square = words.reshape(2, 2)
    case.both(
        "rules: [{from: w, to: v, shape: a b, ops: [transpose]}]", {"w": square}, {"v": np.ascontiguousarray(square.T)}
    )
    parts = {"a": words[:1], "b": words[1:]}
    case.both(
        "rules: [{from: w, to: [a, b], shape: n, ops: [{split: {dim: 0, sizes: [1, n-1]}}]}]", {"w": words}, parts
    )
    case.both("rules: [{from: [b, a], to: w, shape: [3, 1], ops: [{concat: 0}]}]", parts, {"w": np.roll(words, -1)})
    stacked = {"w.0": words, "w.1": words[::-1].copy()}
    case.both(
        "indices: {i: n}\nrules: [{from: 'w.{i}', to: w, shape: d, ops: [{stack: i}]}]",
        stacked,
        {"w": np.stack([words, words[::-1]])},
    )


def test_dtype_06_f8_needs_its_scale(case):
    given = {"w": raw(F8, "38 40", 1, 2), "w_scale_inv": f32([0.5])}
    rename = "rules: [{from: w, to: v%s}, {from: w_scale_inv, to: v_scale_inv}]"
    case.both(rename % "", given, {"v": given["w"], "v_scale_inv": given["w_scale_inv"]})
    assert header(case.output)["w"]["dtype"] == "F8_E4M3"
    says = ["w: ", "F8_E4M3", "F32", "scale"]
    case.refused(rename % ", dtype: {to: float32}", given, 1, *says)
    case.refused(rename % "", given, 1, *says, flags=("--dtype", "float32"))
    # Only a rule that takes the scale too makes numbers of it.
    scaled = """
    rules:
      - from: [w, w_scale_inv]
        to: v
        shape: [a b, x y]
        dtype: {to: float32}
        ops: [{dequantize: {block: [128, 128]}}]
    """
    case.gives(scaled, given, {"v": f32([0.5, 1])})
    # There is no way to force it otherwise, and the scale is a tensor like any other.
    case.refused("rules: [{from: w, to: v}]", given, 1, "w_scale_inv: unexpected")


def test_dtype_07_packed_int32(case):
    given = {
        "q_proj.qweight": np.array([[0x76543210, -1]], "<i4"),
        "w": np.array([[1], [2], [3]], "u1"),
        "w.absmax": f32(0.5),
        "w.quant_state.bitsandbytes__nf4": np.array([7, 8, 9, 10], "u1"),
    }
    rule = "rules:\n  - {from: q_proj.qweight, to: q_proj.qweight}\n  - {from: w, to: v}\n"
    says = ["w.absmax: unexpected", "w.quant_state.bitsandbytes__nf4: unexpected", "2 unexpected"]
    case.refused("dtype: float16\n" + rule, given, 1, *says)
    group = r"  - {match: 'w\.(?P<part>.+)', to: 'v.{part}'}"
    want = {k.replace("w", "v", 1) if k.startswith("w") else k: x for k, x in given.items()}
    case.gives("dtype: float16\n" + rule + group, given, want | {"v.absmax": np.array([0.5], "<f2")})
    case.both(rule + group, given, want)


def test_dtype_08_bool_bytes(case):
    given = case.put({"m": np.array([True, True])})
    data = bytearray(given.read_bytes())
    data[-2:] = b"\x01\x02"
    given.write_bytes(data)
    case.converts("rules: [{from: m, to: n, shape: 2}]", given)
    assert header(case.output)["n"] == {"dtype": "BOOL", "shape": [2], "data_offsets": [0, 2]}
    assert case.output.read_bytes()[-2:] == b"\x01\x02"


def test_dtype_12_complex_freqs(case):
    torch = pytest.importorskip("torch")
    path = case.saved({"freqs_cis": torch.tensor([1 + 0j, 1j]), "w": torch.ones(1)})
    rule = "rules: [{from: w, to: w}]"
    case.refused(rule, path, 1, "freqs_cis: unexpected: no rule names it")
    kept = np.array([1, 1j], "<c8")
    case.gives("rest: keep\n" + rule, path, {"freqs_cis": kept, "w": f32(1)}, "--dtype", "float32")
    assert kept.tobytes() == f32(1, 0, 0, 1).tobytes(), "real, then imaginary"
    r = case.gives("drop: {from: [freqs_cis]}\n" + rule, path, {"w": f32(1)})
    assert "dropped: freqs_cis" in r.out


def test_dtype_13_f8_saturation(case):
    given = {"w": f32(448, 465, np.inf)}
    text = "rules: [{from: w, to: w, shape: n, dtype: {to: float8_e4m3fn}}]"
    case.refused(text, given, 1, "w: 2 values do not fit F8_E4M3", "--allow-overflow", data=True)
    r = case.gives(text, given, {"w": raw(F8, "7e 7e 7e", 3)}, "--allow-overflow")
    assert "cast: w: 2 values did not fit F8_E4M3" in r.out
    case.gives(text, {"w": arr(3)}, {"w": arr(3).astype(F8)})
