"""The C reader of examples/ finds in a converted file what numpy finds in the original."""

import shutil
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from plainfile import read, write

SOURCE = Path(__file__).parent.parent / "examples" / "read_qwen2.c"
pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")

LAYERED = {
    "rms_att_weight": "input_layernorm.weight",
    "wq": "self_attn.q_proj.weight",
    "bq": "self_attn.q_proj.bias",
    "wk": "self_attn.k_proj.weight",
    "bk": "self_attn.k_proj.bias",
    "wv": "self_attn.v_proj.weight",
    "bv": "self_attn.v_proj.bias",
    "wo": "self_attn.o_proj.weight",
    "rms_ffn_weight": "post_attention_layernorm.weight",
    "w1": "mlp.gate_proj.weight",
    "w2": "mlp.down_proj.weight",
    "w3": "mlp.up_proj.weight",
}


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    path = tmp_path_factory.mktemp("bin") / "read_qwen2"
    flags = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-O2"]
    cc = subprocess.run(["cc", *flags, "-o", path, SOURCE], capture_output=True, text=True)
    assert cc.returncode == 0, cc.stderr
    return path


def run(*args: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(list(map(str, args)), capture_output=True, text=True)


def convert(*args: object) -> None:
    done = run(sys.executable, "-m", "converter", *args)
    assert done.returncode == 0, done.stderr


def test_values_of_a_converted_stub(program, tmp_path):
    hf, engine = tmp_path / "hf.safetensors", tmp_path / "engine.safetensors"
    convert("stub", "--map", "qwen2", "--set", "n_layer=12", hf)
    convert("--map", "qwen2", hf, engine)
    given = {k: v.astype(np.float32) for k, v in read(hf).tensors.items()}

    want = {"token_embedding_table 5 3": given["model.embed_tokens.weight"][5, 3]}
    want["wcls 12 0"] = given["model.embed_tokens.weight"][12, 0]  # tied: the metadata says where it is
    want["rms_final_weight 4"] = given["model.norm.weight"][4]
    for name, source in LAYERED.items():
        for layer in (0, 2, 10, 11):
            x = given[f"model.layers.{layer}.{source}"]
            last = tuple(n - 1 for n in x.shape)
            for index in (last, tuple(n // 2 for n in last)):
                want[" ".join(map(str, (name, layer, *index)))] = x[index]

    done = run(program, engine, *" ".join(want).split())
    assert done.returncode == 0, done.stderr
    got = dict(line.rsplit(" ", 1) for line in done.stdout.splitlines())
    assert {k: np.float32(v) for k, v in got.items()} == want


def test_the_list_has_every_array(program, tmp_path):
    write(tmp_path / "x.safetensors", {"wq": np.zeros((2, 3, 4), "<f4"), 'a "b"\\é': np.zeros((), "<i8")})
    done = run(program, tmp_path / "x.safetensors")
    assert done.stdout == 'wq F32 [2, 3, 4]\na "b"\\é I64 []\n'


@pytest.mark.parametrize(
    ("query", "says"),
    [
        (["nope", "1"], "no array is called nope"),
        (["wq", "1", "2"], "an index is missing"),
        (["wq", "1", "3", "0"], "index 3 of axis 1 is not below 3"),
        (["wq", "1", "-1", "0"], "-1 is no index"),
        (["n", "0"], "is I64"),
    ],
)
def test_a_wrong_query_is_one_line(program, tmp_path, query, says):
    write(tmp_path / "x.safetensors", {"wq": np.zeros((2, 3, 4), "<f4"), "n": np.zeros((1,), "<i8")})
    done = run(program, tmp_path / "x.safetensors", *query)
    assert done.returncode == 1
    assert not done.stdout
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("header", "length"),
    [
        (b'{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}', None),
        (b'{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}', None),
        (b'{"w":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}}', None),
        (b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', 2**60),
        (b'{"w":{"dtype":"F32","shape":[1]', None),
        (b'{"w":{"x":' + b"[" * 100_000, None),
        (b'{"w\\u12', None),
        (b"version https://git-lfs", None),
    ],
)
def test_a_broken_file_is_one_line(program, tmp_path, header, length):
    path = tmp_path / "x.safetensors"
    path.write_bytes(struct.pack("<Q", len(header) if length is None else length) + header + bytes(4))
    done = run(program, path)
    assert done.returncode == 1
    assert not done.stdout
    assert str(path) in done.stderr
    assert done.stderr.count("\n") == 1
