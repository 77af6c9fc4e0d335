"""Words for messages: names of strangers are cut and escaped, counts and lists read as people write them."""

import gc

import pytest

from converter.formats.text import Odd, TextError, brief, count, listing, many_objects, parse_object, show


@pytest.mark.parametrize(
    ("name", "limit", "text"),
    [
        ("", 9, "''"),
        ("a" * 160, 160, "a" * 160),
        ("a" * 80 + "b" * 81, 160, "a" * 80 + "..." + "b" * 77),
        ("a" * 5 + "b" * 6, 10, "aaaaa...bb"),
        ("é\n\x00\u2028", 160, "é\\n\\x00\\u2028"),
        ("\x00" * 20, 20, "\\x00" * 10),
        ("\U000e0001" * 6, 6, "\\U000e0001\\U"),
    ],
)
def test_a_name_in_a_message(name, limit, text):
    assert show(name, limit) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("", "''"),
        ("a\n", "'a\\n'"),
        ("a" * 61, "'" + "a" * 30 + "..." + "a" * 27 + "'"),
        (True, "true"),
        (None, "null"),
        ([False, 1.5], "[false, 1.5]"),
        (list(range(9)), "[0, 1, 2, 3, 4, 5, 6, 7, ...]"),
        ({str(k): k for k in range(9)}, "{'0': 0, '1': 1, '2': 2, '3': 3, '4': 4, '5': 5, '6': 6, '7': 7, ...}"),
        ([[[1]]], "[[[...]]]"),
        (["a" * 40], "['" + "a" * 17 + "..." + "a" * 17 + "a']"),
        ({"a" * 30: "b" * 30, "c": "d" * 30}, None),
        (Odd("NaN"), "NaN"),
    ],
)
def test_a_value_of_json_in_a_message(value, text):
    said = brief(value)
    assert len(said) <= 80
    if text is None:
        assert said.endswith("...")
        assert len(said) == 80
    elif not text.startswith("['a"):
        assert said == text


def test_counts_and_lists():
    assert [count(n, "byte") for n in (0, 1, 2)] == ["0 bytes", "1 byte", "2 bytes"]
    names = list("abcdef")
    assert listing(names[:5]) == "a, b, c, d, e"
    assert listing(names) == "a, b, c, d, e, ... and 1 more"
    assert listing(names, 2) == "a, b, ... and 4 more"
    assert listing(["x" * 81], 1) == "x" * 40 + "..." + "x" * 37


def test_the_collector_is_left_as_it_was():
    try:
        for on in (True, False):
            (gc.enable if on else gc.disable)()
            with many_objects():
                assert not gc.isenabled()
            assert gc.isenabled() is on
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "is empty"),
        (b"\xef\xbb\xbf{}", "begins with a UTF-8 byte order mark, it must begin with '{'"),
        (b" {}", "begins with ' ', it must begin with '{'"),
        (b"\xff{}", "begins with '\\xff', it must begin with '{'"),
        (b"{}\0", "is padded with NUL bytes, only spaces may follow the JSON text"),
        (b'{"\xff": 1}', "is not valid UTF-8: byte 0xff at position 2"),
        (b'{"a": 1,}', "is not valid JSON: "),
        (b'{"a":' * 100_000, "is not valid: the JSON text is nested too deeply"),
        (b'{"a": ' + b"1" * 5000 + b"}", "holds a number with too many digits"),
        (b'{"a": 1, "b": 2, "a": 3}', "duplicate name a"),
        (b'{"x": {"a": 1, "\\u0061": 2}}', "duplicate name a"),
        (b'{"\\ud800": 1}', "unpaired surrogate in '\\ud800'"),
        (b'{"a": "\\udfff"}', "unpaired surrogate in '\\udfff'"),
    ],
)
def test_what_is_no_json_object(data, says):
    with pytest.raises(TextError) as e:
        parse_object(data)
    assert str(e.value).startswith(says)


def test_words_that_only_python_takes_for_numbers():
    found = parse_object(b'{"a": NaN, "b": -0, "c": -Infinity, "d": -07e1, "e": -1}'.replace(b"-07e1", b"-0.5"))
    assert [repr(found[k]) for k in "abcde"] == ["NaN", "-0", "-Infinity", "-0.5", "-1"]
    assert [type(found[k]) for k in "abcde"] == [Odd, Odd, Odd, float, int]
    assert parse_object(b'{"\\ud83d\\ude00": 1} \n') == {"\U0001f600": 1}


def test_texts_and_odd_words_within_a_value_have_room_for_forty_characters():
    assert brief(["x" * 38]) == repr(["x" * 38])
    assert brief(["x" * 39]) != repr(["x" * 39])
    assert brief(Odd("1" * 40)) == "1" * 40
