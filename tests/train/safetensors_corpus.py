# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""Malformed and odd safetensors files, and random changes of good ones: by name, their bytes."""

import random
import struct


def file_of(header, data=b"", length=None):
    text = header if isinstance(header, bytes) else header.encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def described(dtype="F32", shape="[1]", place="[0,4]", more="", name="a"):
    return f'"{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{place}{more}}}'


def tensor(**fields):
    return "{" + described(**fields) + "}"


FOUR = b"\0\0\x80?"
ONE, META = tensor(), '"__metadata__":{}'
# The bits of each type of the format.
BITS = {"F64": 64, "I64": 64, "U64": 64, "F32": 32, "I32": 32, "U32": 32, "F16": 16, "BF16": 16, "I16": 16, "U16": 16, "I8": 8, "U8": 8, "BOOL": 8,
        "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "C64": 64}


def of_types():
    for name, bits in BITS.items():
        for count in (0, 1, 2, 4, 5):
            for more in (0, 1):
                size = bits * count // 8 + more
                yield f"type {name} {count} {more}", file_of(tensor(dtype=name, shape=f"[{count}]", place=f"[0,{size}]"), bytes(size))
    for name in ("F99", "f32", "", "F128", "X9"):
        yield f"type {name}", file_of(tensor(dtype=name), FOUR)


def of_lengths():
    for name, whole in {"nothing": b"", "short": b"\1\0", "no header": struct.pack("<Q", 0), "one byte": file_of("{"), "too long": file_of(ONE, FOUR, 1000),
                        "huge": file_of(ONE, FOUR, 2**64 - 1), "above the limit": file_of(ONE, FOUR, 100_000_001), "tail": file_of(ONE, FOUR + b"x"),
                        "torn": file_of(ONE, FOUR[:3]), "cut header": file_of(ONE, FOUR, 20)}.items():
        yield name, whole


def of_headers():
    for before in ("", " ", "\n", "\ufeff", "/**/", "\0"):
        for after in ("", "   ", "\n", "\t", "\0", "x", ",", "{}"):
            yield f"around {before!r} {after!r}", file_of(before + ONE + after, FOUR)
    for header in ("{}", "[]", "null", "1", '"a"', "{" + META + "}", '{"__metadata__":null}', '{"__metadata__":[]}', '{"__metadata__":{"x":1}}',
                   '{"__metadata__":{"x":"1"}}', '{"__metadata__":{"x":null}}', '{"__metadata__":{"x":{}}}', '{"__metadata__":{"x":"1","x":"2"}}',
                   '{"__metadata__":{"x":"a\\u0000"}}', '{"__metadata__":{"x":"1"},"__metadata__":{"y":"2"}}', '{"__metadata__":{"x":"\\ud800"}}'):
        yield header, file_of(header)
    for header in (tensor(name=""), tensor(name="a\\u0000b"), tensor(name="a\nb"), tensor(name="\\ud800"), tensor(name="__metadata__"),
                   tensor(more=',"x":1'), tensor(more=',"x":null'), tensor(more=',"x":1,"x":2'), tensor(more=',"dtype":"F32"'), tensor(more=',"shape":[1]'),
                   tensor(more=',"x":{"dtype":1,"dtype":2}'), ONE[:-1] + ",}", '{"a":["F32",[1],[0,4]]}', '{"a":["F32",[1]]}', '{"a":["F32",[1],[0,4],1]}',
                   '{"a":{"dtype":"F32","shape":[1]}}', '{"a":{"shape":[1],"data_offsets":[0,4]}}', '{"a":{"dtype":1,"shape":[1],"data_offsets":[0,4]}}',
                   "{" + described() + "," + described() + "}", "{" + described() + "," + described(dtype="I32") + "}",
                   "{" + described(name="\\u0061") + "," + described() + "}", "{" + described() + "," + described(name="b") + "}"):
        yield header, file_of(header, FOUR)
    for first in (described(dtype="X9"), described(shape="[-1]"), described(shape="{}"), described(place="[4]"), described(place="[9,1]"), described(dtype="F64"),
                  '"a":{}', '"a":7', '"a":null', '"a":["U8",[3],[8,9]]', '"a":["U8",[3]]', '"a":{"dtype":"F32","shape":[1]}', described(more=',"x":[1,{"y":null}]')):
        yield f"first of two {first}", file_of("{" + first + "," + described() + "}", FOUR)
    for value in ("[]", "1", "{}", "null", '"2"'):
        yield f"first text {value}", file_of('{"__metadata__":{"k":' + value + ',"k":"1"}}')
    for value in ("1e400", "-1e400", "[" * 200 + "]" * 200, '{"x":' * 200 + "1" + "}" * 200, *("[" * n + "]" * n for n in range(124, 128)), '"\\ud800"', '"\\udc00\\ud800"', "-0", "1E5", "-", "1." ):
        yield f"unknown field {value}", file_of(tensor(more=f',"x":{value}'), FOUR)
    yield "no UTF-8", file_of(ONE.encode().replace(b'"a"', b'"\xff"'), FOUR)
    yield "a lone byte of UTF-8", file_of(ONE.encode().replace(b'"a"', b'"\xc3"'), FOUR)


def of_shapes_and_places():
    for shape in ("[]", "[0]", "[1,1,1]", "[-1]", "[1.0]", "[1e0]", '["1"]', "[null]", "1", "{}", "[18446744073709551615]", "[18446744073709551616]",
                  "[4294967296,4294967296]", "[0,18446744073709551615,2]", "[18446744073709551615,2,0]", "[4611686018427387904,0]", "[01]", "[+1]", "[NaN]"):
        for place, data in (("[0,4]", FOUR), ("[0,0]", b"")):
            yield f"shape {shape} {place}", file_of(tensor(shape=shape, place=place), data)
    for place in ("[0,4,8]", "[4]", "[]", "[4,0]", "[4,8]", "[0,8]", "[0,3]", "[-0,4]", "[00,4]", "[0.0,4]", '{"0":0}', "[18446744073709551612,0]",
                  "[18446744073709551615,18446744073709551619]", "null"):
        yield f"place {place}", file_of(tensor(place=place), FOUR)
    for name, at in {"before": 0, "inside": 2, "behind": 4, "beyond": 8}.items():
        yield f"empty {name}", file_of("{" + described(shape="[0]", place=f"[{at},{at}]") + "," + described(name="b") + "}", FOUR)
    yield "gap", file_of("{" + described() + "," + described(name="b", place="[8,12]") + "}", FOUR * 3)
    yield "overlap", file_of("{" + described(place="[0,4]") + "," + described(name="b", dtype="U8", shape="[2]", place="[3,5]") + "}", FOUR + b"x")
    yield "not aligned", file_of("{" + described(dtype="U8", place="[0,1]") + "," + described(name="b", place="[1,5]") + "}", FOUR + b"x")


WORDS = ["{", "}", "[", "]", '"', ",", ":", "-", "1", "0", "null", "\\u0061", "dtype", "shape", "data_offsets", "__metadata__", "F32", "F16", "U8", "\xff", " ", "a"]


def at_random(count, seed):
    source = random.Random(seed)
    good = [ONE, "{" + META + "," + described() + "}", '{"__metadata__":{"x":"y"},' + described() + "," + described(name="b", place="[4,8]") + "}"]
    for number in range(count):
        text = source.choice(good)
        data = FOUR * (2 if '"b"' in text else 1)
        for _ in range(source.randint(1, 3)):
            at, length = source.randrange(len(text) + 1), source.randrange(4)
            kind = source.randrange(3)
            if kind == 0:
                text = text[:at] + text[at + length:]
            elif kind == 1:
                text = text[:at] + source.choice(WORDS) + text[at:]
            else:
                text = text[:at] + source.choice(WORDS) + text[at + length:]
        yield f"random {number}", file_of(text.encode("latin-1"), data)


def corpus(count=3000, seed=1):
    all_files = {}
    for some in (of_types(), of_lengths(), of_headers(), of_shapes_and_places(), at_random(count, seed)):
        all_files.update(some)
    return all_files
