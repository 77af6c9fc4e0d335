"""Archives written byte by byte: the directory is read as it stands, and no number in it may be another."""

import os
import struct

import pytest

from converter.errors import FormatError
from converter.formats import zips
from converter.formats.zips import Record, read_directory

NAMES = {"x/data.pkl": b"A" * 5, "x/data/0": b"B" * 122, "x/version": b"CC"}
BESIDE = struct.pack("<HH", 7, 3) + b"abc"  # an extra field of a kind that means nothing
LOCAL = ("4s HHHHH III HH", "mark version flags method time date crc packed size names extras")
ENTRY = (
    "4s HHHHHH III HHHHH II",
    "mark made version flags method time date crc packed size names extras comments disk inner outer place",
)
LONG = (
    "4s Q HH II QQQQ 4s I Q I",
    "mark length made version disk other here count size start mark2 disk2 where disks",
)
END = ("4s HHHH II H", "mark disk other here count size start comment")
# What no reader needs: versions, times, sums (torch checks none), attributes, and the sizes that the directory has too.
UNREAD = {
    "local": {"version", "time", "date", "crc", "packed", "size"},
    "entry": {"made", "version", "time", "date", "crc", "inner", "outer"},
    "long": {"made", "version"},
    "end": set(),
}


def pack(kind, spec, values):
    form, names = spec
    told = zip(names.split(), values[kind])
    lies = [v + values.get(f"{kind}.{n}", 0) if isinstance(v, int) else values.get(f"{kind}.{n}", v) for n, v in told]
    return struct.pack("<" + form, *lies)


def archive(long=True, wide=False, names=NAMES, beside=BESIDE, **lies):
    """Write records; `long` has the end in zip64 too, `wide` the numbers of each entry, and `lies` are added to fields."""
    out, directory = b"", b""
    for name, data in names.items():
        raw, place = name.encode(), len(out)
        extra = b"z" * (16 + place % 7)
        local = (b"PK\3\4", 0, 0, 0, 0, 0, 0, len(data), len(data), len(raw), len(extra))
        out += pack("local", LOCAL, lies | {"local": local}) + raw + extra + data
        numbers = (len(data), len(data), place)
        more = struct.pack("<HHQQQ", 1, 24, *numbers) if wide else b""
        packed, size, at = (0xFFFFFFFF,) * 3 if wide else numbers
        more = BESIDE + more + beside
        entry = (b"PK\1\2", 0, 0, 0, 0, 0, 0, 0, packed, size, len(raw), len(more), 4, 0, 0, 0, at)
        directory += pack("entry", ENTRY, lies | {"entry": entry}) + raw + more + b"note"
    start, size, count = len(out), len(directory), len(names)
    out += directory
    if long:
        values = (b"PK\6\6", 44, 0, 0, 0, 0, count, count, size, start, b"PK\6\7", 0, start + size, 1)
        out += pack("long", LONG, lies | {"long": values})
    return out + pack("end", END, lies | {"end": (b"PK\5\6", 0, 0, count, count, size, start, 0)})


def directory(tmp_path, data):
    path = tmp_path / "a.zip"
    path.write_bytes(data)
    fd = os.open(path, os.O_RDONLY)
    try:
        return read_directory(str(path), fd, len(data))
    finally:
        os.close(fd)


def refused(tmp_path, data, says=""):
    with pytest.raises(FormatError) as e:
        directory(tmp_path, data)
    assert says in str(e.value)


@pytest.mark.parametrize("long", [True, False])
@pytest.mark.parametrize("wide", [True, False])
def test_records_lie_where_they_are_said_to(tmp_path, long, wide):
    data = archive(long, wide)
    found = directory(tmp_path, data)
    assert {n: data[r.start : r.start + r.size] for n, r in found.items()} == NAMES
    assert list(found) == list(NAMES)


FIELDS = [
    (kind, n)
    for kind, spec in (("local", LOCAL), ("entry", ENTRY), ("long", LONG), ("end", END))
    for n in spec[1].split()
]


@pytest.mark.parametrize(("kind", "field"), FIELDS)
def test_every_number_is_checked_or_means_nothing(tmp_path, kind, field):
    sound = directory(tmp_path, archive())
    lies = [b"PK\7\7"] if field.startswith("mark") else [1, 64]
    lies += [-1] if field in ("packed", "size", "names", "count", "here", "where", "comments") and kind != "end" else []
    for lie in lies:
        data = archive(**{f"{kind}.{field}": lie})
        if field in UNREAD[kind]:
            assert directory(tmp_path, data) == sound
        elif (kind, field) != ("local", "extras") or lie == 64:
            refused(tmp_path, data)


def test_a_head_has_an_extra_field_of_its_own(tmp_path):
    sound = directory(tmp_path, archive())
    for lie in (-1, -16):
        found = directory(tmp_path, archive(**{"local.extras": lie}))
        assert found == {n: Record(r.start + lie, r.size) for n, r in sound.items()}
    refused(tmp_path, archive(**{"local.extras": 1}), "the record x/version is not where it should be")


@pytest.mark.parametrize(("bit", "sound"), [(k, k not in (0, 5, 6, 13)) for k in range(16)])
@pytest.mark.parametrize("kind", ["local", "entry"])
def test_flags_that_change_the_bytes_are_refused(tmp_path, kind, bit, sound):
    data = archive(**{f"{kind}.flags": 1 << bit})
    if sound:
        assert list(directory(tmp_path, data)) == list(NAMES)
    else:
        refused(tmp_path, data, "compressed or encrypted" if kind == "entry" else "is not where it should be")


def test_what_is_cut_or_has_something_before_or_behind_it(tmp_path):
    for whole in (archive(), archive(False)):
        for data in (
            whole[:-1],
            whole[1:],
            b"x" + whole,
            whole + b"x",
            whole[-22:],
            whole[-98:],
            whole[-10:],
            b"",
            whole[-21:],
        ):
            refused(tmp_path, data, "damaged zip archive")


def test_the_two_ends_must_agree_unless_one_says_ask_the_other(tmp_path):
    sound = directory(tmp_path, archive())
    end = ("disk", "other", "here", "count", "size", "start")
    real = dict(zip(END[1].split(), struct.unpack("<" + END[0], archive()[-22:])))
    for field in end:
        most = 0xFFFFFFFF if field in ("size", "start") else 0xFFFF
        asks = archive(**{f"end.{field}": most - real[field]})
        assert directory(tmp_path, asks) == sound
        refused(tmp_path, archive(**{f"end.{field}": most - 1 - real[field]}), "say different things")
        refused(tmp_path, archive(False, **{f"end.{field}": most - real[field]}))


def test_a_name_must_stand_once_and_be_text(tmp_path):
    refused(tmp_path, archive().replace(b"x/data/0", b"x/data\xff0"), "its directory is not sound")
    same = archive(names={"x/data/0": b"A", "y/data/0": b"B"}).replace(b"y/data", b"x/data")
    refused(tmp_path, same, "the record x/data/0 stands in it twice")
    assert directory(tmp_path, archive(names={})) == {}
    assert directory(tmp_path, archive(names={"": b"A"}))[""].size == 1
    other = archive()
    at = other.index(b"x/data/0")
    refused(tmp_path, other[:at] + b"y" + other[at + 1 :], "the record x/data/0 is not where it should be")


@pytest.mark.parametrize("extra", [b"\7", b"\7\0\1", b"\7\0\4\0abc", b"\1\0\x08\0" + b"1234567", b"\7\0\1\0"])
def test_an_extra_field_that_is_cut(tmp_path, extra):
    refused(tmp_path, archive(beside=extra), "an extra field that is not sound")


def test_extra_fields_that_are_empty_or_the_last(tmp_path):
    sound = list(directory(tmp_path, archive()).values())
    for beside in (b"", b"\7\0\0\0", b"\7\0\1\0x", BESIDE * 3):
        for wide in (True, False):
            assert list(directory(tmp_path, archive(wide=wide, beside=beside)).values()) == sound
    numbers = b"\1\0\x18\0" + struct.pack("<QQQ", 5, 5, 1)
    assert list(directory(tmp_path, archive(beside=numbers)).values()) == sound  # nothing asks for them
    refused(tmp_path, archive(wide=True, beside=numbers))  # the last counts
    refused(tmp_path, archive(wide=True).replace(b"\1\0\x18\0", b"\2\0\x18\0"))
    refused(tmp_path, archive(wide=True).replace(b"\1\0\x18\0", b"\0\0\x18\0"))


def test_a_directory_beyond_all_measure(tmp_path, monkeypatch):
    data = archive()
    size = struct.unpack("<I", data[-10:-6])[0]
    monkeypatch.setattr(zips, "MAX_DIRECTORY", size)
    assert list(directory(tmp_path, data)) == list(NAMES)
    monkeypatch.setattr(zips, "MAX_DIRECTORY", size - 1)
    refused(tmp_path, data, f"its directory has {size} bytes, more than the limit of {size - 1}")


def test_the_number_of_records_is_that_of_the_directory(tmp_path):
    lies = dict.fromkeys(("end.here", "end.count", "long.here", "long.count"), 1)
    refused(tmp_path, archive(**lies), "its end counts 4 records, its directory has 3")
