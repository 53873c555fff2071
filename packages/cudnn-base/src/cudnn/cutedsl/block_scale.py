"""Arithmetic of block-scaled formats on bits, for values of the DSL, and with the same lines for Python integers and numpy arrays, which is how it is tested over every input.

sm_90 converts float32 to and from e4m3 and e5m2 in hardware; it has nothing for e2m1 and e8m0. *Bits* are those of a float32 as an unsigned integer (Uint32, a Python integer, an array of numpy.uint32),
*float* is Float32 or an array of numpy.float32. Conversions round to nearest even and saturate, except that a scale factor in e8m0 is rounded up.
"""

from __future__ import annotations

import struct
from typing import Any

INFINITY, NAN = 0x7F800000, 0x7FC00000
LARGEST = 3.4028234663852886e38  # of float32


def on_device(x: Any) -> bool:
    """Whether ``x`` is a value of the DSL."""
    return hasattr(x, "bitcast")


def as_float(bits: Any) -> Any:
    """The float32 with these bits."""
    if on_device(bits):
        from cutlass import Float32

        return bits.bitcast(Float32)
    import numpy

    return numpy.asarray(bits, dtype=numpy.uint32).view(numpy.float32)


def as_bits(value: Any) -> Any:
    """The bits of a float32."""
    if on_device(value):
        from cutlass import Uint32

        return value.bitcast(Uint32)
    import numpy

    return numpy.asarray(value, dtype=numpy.float32).view(numpy.uint32)


def where(condition: Any, yes: Any, no: Any) -> Any:
    """``yes`` where the condition holds, else ``no``; one of them may be a Python number."""
    if isinstance(condition, bool):
        return yes if condition else no
    if hasattr(condition, "ir_value"):
        import cutlass

        kind = type(yes) if on_device(yes) else type(no)
        return kind(cutlass.select_(condition, kind(yes), kind(no)))
    import numpy

    return numpy.where(condition, yes, no)


def smaller(x: Any, y: Any) -> Any:
    """min(x, y) of floats; NaN stays NaN."""
    if on_device(x):
        import cutlass.cute as cute

        return cute.arch.fmin(x, y, nan=True)
    import numpy

    return numpy.minimum(x, numpy.float32(y))


def permuted_bytes(low: Any, high: Any, selector: Any) -> Any:
    """PRMT: byte i of the result is the one of the eight bytes (``low`` first) that nibble i of ``selector`` names, 0 to 7."""
    if on_device(low) or on_device(selector):
        import cutlass.cute as cute
        from cutlass import Uint32

        return Uint32(cute.arch.prmt(low, high, selector))
    result = 0
    for i in range(4):
        nibble = selector >> 4 * i & 15
        shift = 8 * (nibble & 3)
        result = result | (where(nibble & 4 != 0, high >> shift, low >> shift) & 255) << 8 * i
    return result


def word(value: int, like: Any) -> Any:
    """A constant of 32 bits that goes with ``like``: to the DSL a Python number of more than 31 would have 64."""
    if on_device(like):
        from cutlass import Uint32

        return Uint32(value)
    return value


def shifted(bits: Any, by: int) -> Any:
    """``bits << by`` in 32 bits."""
    return bits << by if on_device(bits) else bits << by & 0xFFFFFFFF


def number(value: float, like: Any) -> Any:
    """A float32 constant that goes with ``like``."""
    if on_device(like):
        from cutlass import Float32

        return Float32(value)
    import numpy

    return numpy.float32(value)


def e8m0_value(byte: Any) -> Any:
    """2^(byte - 127) as a float: byte 0 is 2^-127, which float32 holds as a subnormal; byte 255 is NaN."""
    bits = byte << 23
    value = as_float(where(bits > 0x00400000, bits, 0x00400000))
    # Of byte 255 this far an infinity, and 0 times that is NaN.
    return value * number(0.0, byte) + value


def e8m0_from_bits(bits: Any) -> Any:
    """The byte of the smallest power of two that is no smaller than a float32 >= 0; up to 2^-127 it is 0, above 2^127 it is 254, and 255 for NaN."""
    byte = (bits + 0x7FFFFF) >> 23
    byte = where(bits <= 0x00400000, 0, byte)
    byte = where(byte > 254, 254, byte)
    return where(bits > INFINITY, 255, byte)


def e8m0_reciprocal(byte: Any) -> Any:
    """The byte of 1 / 2^(byte - 127), which is exact; NaN stays NaN. Byte 254 gives 0, which is 2^-127."""
    return where(byte == 255, 255, 254 - byte)


def e4m3_bits(byte: Any) -> Any:
    """Bits of an e4m3 number in float32."""
    magnitude = byte & 0x7F
    # The exponent is 120 too small that way, and subnormal numbers are not normalised: the multiplication does both, exactly.
    bits = as_bits(as_float(magnitude << 20) * number(2.0**120, byte))
    return where(magnitude == 0x7F, NAN, bits) | shifted(byte & 0x80, 24)


def e5m2_bits(byte: Any) -> Any:
    """Bits of an e5m2 number in float32; infinities and NaN stay such."""
    magnitude = byte & 0x7F
    bits = as_bits(as_float(magnitude << 21) * number(2.0**112, byte))
    return where(magnitude >= 0x7C, (magnitude << 21) | INFINITY, bits) | shifted(byte & 0x80, 24)


def rounded(bits: Any, mantissa: int, exponent: int, largest: float) -> Any:
    """A float32 >= 0 in a smaller float without sign, infinity and NaN: ``mantissa`` stored bits, ``exponent`` of the smallest normal number; to nearest even, saturating at ``largest``. NaN gives ``largest``.

    Adding a power of two leaves a float's last bit where the smaller one has its own: the sum is rounded once, by the adder, and its low bits are the code, counted from where the binade begins.
    """
    top = struct.unpack("<I", struct.pack("<f", largest))[0]
    value = as_float(where(bits > top, top, bits))
    power = as_bits(value) & INFINITY
    least = (exponent + 127) << 23
    power = where(power < least, least, power)
    shift = 23 - mantissa
    total = as_bits(value + as_float(power + (shift << 23)))
    # total = (binade + shift) << 23 | steps; the binade counts 2^mantissa steps each.
    return (total & 0xFF) + ((power - least) >> shift)


def e4m3_scale_from_bits(bits: Any) -> Any:
    """The e4m3 byte nearest to a float32 >= 0; 448 above, 0x7F for NaN."""
    if on_device(bits):
        return hardware_e4m3(as_float(bits))
    return where(bits > INFINITY, 0x7F, rounded(bits, 3, -6, 448.0))


def hardware_e4m3(value: Any) -> Any:
    """The e4m3 byte of a Float32: to nearest even, saturating; NaN stays NaN."""
    import cutlass.cute as cute
    from cutlass import Float32, Uint16, Uint32

    pair = cute.arch.inline_ptx("cvt.rn.satfinite.e4m3x2.f32 {$w0}, {$r1}, {$r0};", write_only_types=[Uint16], read_only_args=[value, Float32(0.0)])
    return pair.to(Uint32)


def hardware_fp8(words: Any, element: str) -> Any:
    """``words`` (a tensor of Uint32, four numbers in each) of ``element``, e4m3 or e5m2, as a vector of Float32. NaN stays NaN."""
    import cutlass.cute as cute
    from cutlass import Float32

    from cudnn.datatypes import cutlass_dtype

    count = 4 * cute.size(words)
    return cute.make_tensor(cute.recast_ptr(words.iterator, dtype=cutlass_dtype(element)), cute.make_layout(count)).load().to(Float32)


def e2m1_from_bits(bits: Any) -> Any:
    """The code of the e2m1 number nearest to a float32: bit 3 is the sign; beyond 6 it is 6, which NaN gives too."""
    return rounded(bits & 0x7FFFFFFF, 1, 0, 6.0) | (bits >> 28 & 8)


def e2m1_bits(code: Any) -> Any:
    """Bits of an e2m1 number (a code from 0 to 15) in float32."""
    bits = as_bits(as_float((code & 7) << 22) * number(2.0**126, code))
    return bits | shifted(code & 8, 28)


def scale_value(byte: Any, scale: str) -> Any:
    """A scale factor of dtype ``scale`` (a canonical name), as a float."""
    return e8m0_value(byte) if scale == "float8_e8m0fnu" else as_float(e4m3_bits(byte))


def scale_from_bits(bits: Any, scale: str) -> Any:
    """The byte of a scale factor of dtype ``scale`` from a float32 >= 0: up to the next power of two in e8m0, to nearest even in e4m3."""
    return e8m0_from_bits(bits) if scale == "float8_e8m0fnu" else e4m3_scale_from_bits(bits)


def reciprocal(byte: Any, scale: str) -> Any:
    """1 / a scale factor >= 0, a float rounded to nearest: exact in e8m0, infinite for 0 in e4m3."""
    if scale == "float8_e8m0fnu":
        return e8m0_value(e8m0_reciprocal(byte))
    value = as_float(e4m3_bits(byte))
    if not on_device(byte):
        return number(1.0, byte) / value
    import cutlass.cute as cute

    # A step of Newton's method from the hardware's approximation gives the nearest float for each of the 126 numbers, from anywhere within three units in the last place: tested.
    near = cute.arch.rcp_approx(value)
    return as_float(where(byte == 0, INFINITY, as_bits(cute.math.fma(near, cute.math.fma(-value, near, number(1.0, byte)), near))))


def block_scale(largest: Any, norm: Any, limit: float, scale: str) -> tuple[Any, Any]:
    """(byte of the scale factor, factor on the elements) of a block from its largest magnitude, a float, and the norm constant c, a float:

        p = (largest * (1 / limit)) * c        SF = p in the scale's dtype        factor = min(c * (1 / SF), largest float32)

    each step rounded to float32. A NaN in the block makes both NaN.
    """
    byte = scale_from_bits(as_bits(largest * number(1.0 / limit, largest) * norm), scale)
    return byte, smaller(norm * reciprocal(byte, scale), LARGEST)


def e2m1_pair(byte: Any) -> Any:
    """Two e2m1 codes, the first in the lower half of ``byte``, as a word of two bfloat16 numbers in the same order: 2^-126 of their values, exactly."""
    # A code without its sign is a bfloat16 number's last two bits of the exponent and first of the fraction; 0.5 is subnormal in both. What lies beside it goes to where the signs are by as many bits again.
    spread = byte * 0x40040
    return (spread & 0x01C001C0) | (shifted(spread, 6) & word(0x80008000, spread))


def e2m1_elements(codes: Any) -> Any:
    """The elements of ``codes``, bytes of two each, as a tensor of bfloat16 in registers."""
    import cutlass.cute as cute
    from cutlass import BFloat16, Uint32

    elements = cute.make_rmem_tensor((2 * len(codes),), BFloat16)
    pairs = cute.recast_tensor(elements, Uint32)
    for i, byte in enumerate(codes):
        pairs[i] = e2m1_pair(byte)
    elements.store(elements.load() * BFloat16(2.0**126))
    return elements


def e2m1_word(magnitudes: Any, signs: Any) -> Any:
    """Eight floats >= 0 as e2m1 codes in one word, the first in the lowest bits; NaN gives 6. ``signs``: a word with the sign of each code in its place, other bits 0.

    The code of a number v is the nearest integer to the smallest of 2 v, v + 2 and v / 2 + 4, ties to even: these are the lines through the codes of numbers up to 2, up to 4 and up to 6. Adding 2^23
    rounds each to an integer, once, and leaves it in the low bits.
    """
    codes = []
    for v in magnitudes:
        lines = [as_bits(x) for x in (v * number(2.0, v) + number(2.0**23, v), v + number(2.0**23 + 2.0, v), v * number(0.5, v) + number(2.0**23 + 4.0, v))]
        codes.append(fewer(fewer(fewer(*lines[:2]), lines[2]), 0x4B000007))
    pairs = [even + shifted(odd, 4) for even, odd in zip(codes[::2], codes[1::2])]
    halves = [permuted_bytes(pairs[i], pairs[i + 1], 0x0040) for i in (0, 2)]
    return permuted_bytes(*halves, 0x5410) | signs


def fewer(x: Any, y: Any) -> Any:
    """The smaller of two unsigned integers."""
    return where(x < y, x, y)


def signs_of_halves(words: Any) -> Any:
    """Signs of eight 16-bit floats, two to a word, for ``e2m1_word``."""
    first, second = permuted_bytes(words[0], words[1], 0x7531), permuted_bytes(words[2], words[3], 0x7531)
    evens, odds = permuted_bytes(first, second, 0x6420), permuted_bytes(first, second, 0x7531)
    return (evens >> 4 & 0x08080808) | (odds & word(0x80808080, odds))


def signs_of_words(words: Any, byte: int) -> Any:
    """Signs of eight floats for ``e2m1_word``: in each of eight words the top bit of byte number ``byte``."""
    low, pair = byte, (byte + 4) << 4
    evens, odds = (
        permuted_bytes(permuted_bytes(words[i], words[i + 2], pair | low), permuted_bytes(words[i + 4], words[i + 6], pair | low), 0x5410) for i in (0, 1)
    )
    return (evens >> 4 & 0x08080808) | (odds & word(0x80808080, odds))


def signs_of_floats(words: Any) -> Any:
    """Signs of eight float32, given as bits, for ``e2m1_word``."""
    return signs_of_words(words, 3)
