"""TensorBoard event files: scalars, written without the tensorboard package.

Format: records of length, masked CRC32C of it, data, masked CRC32C of that (TFRecord), each an
`Event` of tensorflow/core/util/event.proto with its four fields written by hand.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path

_POLYNOMIAL = 0x82F63B78


def _table() -> tuple[int, ...]:
    entries: list[int] = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (_POLYNOMIAL if value & 1 else 0)
        entries.append(value)
    return tuple(entries)


_TABLE = _table()


def masked_crc32c(data: bytes) -> int:
    """Return the CRC32C of `data`, rotated and offset as TFRecord wants it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _bytes_field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


class EventWriter:
    """One event file in a folder; made at once, flushed at every step."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{time.time_ns()}"
        self.path = folder / name
        self._file = self.path.open("ab")
        self._write(_bytes_field(3, b"brain.Event:2"))

    def add(self, step: int, scalars: Mapping[str, float]) -> None:
        """Write `scalars` of `step`."""
        values = b"".join(
            _bytes_field(
                1, _bytes_field(1, tag.encode()) + _varint(2 << 3 | 5) + struct.pack("<f", value)
            )
            for tag, value in scalars.items()
        )
        self._write(_varint(2 << 3) + _varint(step) + _bytes_field(5, values))

    def close(self) -> None:
        """End the file."""
        self._file.close()

    def _write(self, event: bytes) -> None:
        data = _varint(1 << 3 | 1) + struct.pack("<d", time.time()) + event
        length = struct.pack("<Q", len(data))
        self._file.write(
            length
            + struct.pack("<I", masked_crc32c(length))
            + data
            + struct.pack("<I", masked_crc32c(data))
        )
        self._file.flush()
