"""One worker of the compile pool: ``python -m cudnn.cache.worker`` builds what it is sent, until its input ends.

Both directions carry pickles behind their length. What a compiler prints goes to standard error, away from the answers.
"""

from __future__ import annotations

import os
import pickle
import struct
import sys
import time
import traceback
from typing import Any, BinaryIO

_LENGTH = struct.Struct("<Q")


def send(stream: BinaryIO, message: Any) -> None:
    """Write one message."""
    data = pickle.dumps(message)
    stream.write(_LENGTH.pack(len(data)) + data)
    stream.flush()


def receive(stream: BinaryIO) -> Any:
    """Read one message. Raises EOFError at the end of the stream."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        raise EOFError
    (length,) = _LENGTH.unpack(head)
    data = stream.read(length)
    if len(data) < length:
        raise EOFError
    return pickle.loads(data)


def build(spec: Any) -> dict[str, Any]:
    """Build one spec and say how it went: ``status`` is "compiled", "cached" or "failed"."""
    from cudnn.cache import stats

    before = stats.snapshot()
    started = time.perf_counter()
    try:
        spec.build()
    except Exception as error:
        text = "".join(traceback.format_exception(error))
        return {"status": "failed", "seconds": time.perf_counter() - started, "error": f"{type(error).__name__}: {error}", "traceback": text}
    after = stats.snapshot()
    return {
        "status": "compiled" if after["builds"] > before["builds"] else "cached",
        "seconds": after["build_seconds"] - before["build_seconds"] or time.perf_counter() - started,
        "stored": after["store_failures"] == before["store_failures"],
    }


def main() -> int:
    """Serve standard input and output."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    requests = sys.stdin.buffer
    sys.path[:] = receive(requests)
    while True:
        try:
            data = receive(requests)
        except EOFError:
            return 0
        try:
            spec = pickle.loads(data)
        except Exception as error:
            send(answers, {"status": "failed", "seconds": 0.0, "error": f"not picklable: {type(error).__name__}: {error}", "traceback": traceback.format_exc()})
            continue
        send(answers, build(spec))


if __name__ == "__main__":
    raise SystemExit(main())
