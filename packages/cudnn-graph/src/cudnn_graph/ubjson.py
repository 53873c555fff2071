"""Universal Binary JSON (draft 12) for what ``json`` can express, plus ``bytes``.

Integers take the smallest type, floats are float64, bytes are strongly typed arrays of uint8.
"""

from __future__ import annotations

import struct
from typing import Any

_INT_TYPES = ((b"i", ">b", -(2**7), 2**7), (b"U", ">B", 0, 2**8), (b"I", ">h", -(2**15), 2**15), (b"l", ">i", -(2**31), 2**31), (b"L", ">q", -(2**63), 2**63))
_SIZES = {b"i": ">b", b"U": ">B", b"I": ">h", b"l": ">i", b"L": ">q", b"d": ">f", b"D": ">d"}


def dumps(value: Any) -> bytes:
    """Encode. TypeError for a value that JSON has no place for."""
    out = bytearray()
    _write(value, out)
    return bytes(out)


def _write_int(value: int, out: bytearray) -> None:
    for marker, code, low, high in _INT_TYPES:
        if low <= value < high:
            out += marker + struct.pack(code, value)
            return
    digits = str(value).encode()
    out += b"H"
    _write_int(len(digits), out)
    out += digits


def _write_text(text: str, out: bytearray) -> None:
    data = text.encode()
    _write_int(len(data), out)
    out += data


def _write(value: Any, out: bytearray) -> None:
    if value is None:
        out += b"Z"
    elif value is True:
        out += b"T"
    elif value is False:
        out += b"F"
    elif isinstance(value, int):
        _write_int(value, out)
    elif isinstance(value, float):
        out += b"D" + struct.pack(">d", value)
    elif isinstance(value, str):
        out += b"S"
        _write_text(value, out)
    elif isinstance(value, (bytes, bytearray)):
        out += b"[$U#"
        _write_int(len(value), out)
        out += value
    elif isinstance(value, (list, tuple)):
        out += b"["
        for item in value:
            _write(item, out)
        out += b"]"
    elif isinstance(value, dict):
        out += b"{"
        for key, item in value.items():
            if not isinstance(key, str):
                raise TypeError(f"keys must be strings, got {key!r}")
            _write_text(key, out)
            _write(item, out)
        out += b"}"
    else:
        raise TypeError(f"{type(value).__name__} has no UBJSON form")


def loads(data: bytes) -> Any:
    """Decode. ValueError for damaged data, naming the byte."""
    reader = _Reader(data)
    value = reader.value(reader.take(1))
    if reader.at != len(data):
        raise ValueError(f"UBJSON: {len(data) - reader.at} bytes follow the value")
    return value


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = bytes(data)
        self.at = 0

    def take(self, count: int) -> bytes:
        if count < 0 or self.at + count > len(self.data):
            raise ValueError(f"UBJSON: the data ends at byte {len(self.data)}, inside a value that starts before byte {self.at}")
        chunk = self.data[self.at : self.at + count]
        self.at += count
        return chunk

    def number(self, marker: bytes) -> int | float:
        code = _SIZES[marker]
        return struct.unpack(code, self.take(struct.calcsize(code)))[0]

    def length(self) -> int:
        marker = self.take(1)
        if marker not in (b"i", b"U", b"I", b"l", b"L"):
            raise ValueError(f"UBJSON: byte {self.at - 1} should start a length, found {marker!r}")
        return int(self.number(marker))

    def text(self) -> str:
        chunk = self.take(self.length())
        try:
            return chunk.decode()
        except UnicodeDecodeError as error:
            raise ValueError(f"UBJSON: the text before byte {self.at} is not UTF-8") from error

    def value(self, marker: bytes) -> Any:
        if marker in _SIZES:
            return self.number(marker)
        if marker == b"Z":
            return None
        if marker in (b"T", b"F"):
            return marker == b"T"
        if marker == b"S":
            return self.text()
        if marker == b"H":
            return int(self.text())
        if marker == b"[":
            return self._array()
        if marker == b"{":
            return self._object()
        raise ValueError(f"UBJSON: unknown marker {marker!r} at byte {self.at - 1}")

    def _array(self) -> Any:
        if self.data[self.at : self.at + 3] == b"$U#":
            self.at += 3
            return self.take(self.length())
        items = []
        while (marker := self.take(1)) != b"]":
            items.append(self.value(marker))
        return items

    def _object(self) -> dict[str, Any]:
        result = {}
        while self.data[self.at : self.at + 1] != b"}":
            key = self.text()
            result[key] = self.value(self.take(1))
        self.at += 1
        return result
