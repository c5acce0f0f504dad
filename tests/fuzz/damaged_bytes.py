"""Damage to the bytes of a run file by disks and attackers.

``damage(content, random)`` returns the name of the change and the new bytes. Half of the changes
know HDF5's structures: they change a block of metadata and correct its checksum, so that HDF5 reads
the block.
"""

import functools
import random as random_module
import struct

PAGE = 4096
EXTREMES = (
    0,
    1,
    7,
    2**7,
    2**15,
    2**16 - 1,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**63 - 1,
    2**63,
    2**64 - 1,
)
# Metadata blocks that end in a checksum, by signature (HDF5 File Format Specification).
SIGNATURES = (
    *(b"OHDR", b"OCHK", b"FRHP", b"FHIB", b"BTHD", b"BTLF", b"BTIN"),
    *(b"FAHD", b"FADB", b"EAHD", b"EAIB", b"EASB", b"EADB"),
)
LONGEST_BLOCK = 2048
# A direct block of a fractal heap, which holds the links of a large group, has its checksum after
# its header. The checksum counts as zero in itself.
DIRECT_BLOCK = b"FHDB"
DIRECT_BLOCK_CHECKSUM = 17
DIRECT_BLOCK_SIZES = (512, 1024, 2048, 4096, 8192)


def lookup3(data: bytes) -> int:
    """Return Bob Jenkins' hash, the checksum of HDF5's metadata (H5checksum.c)."""
    mask = 0xFFFFFFFF

    def rot(x, k):
        return ((x << k) | (x >> (32 - k))) & mask

    length = len(data)
    a = b = c = (0xDEADBEEF + length) & mask
    at = 0
    while length > 12:
        x, y, z = struct.unpack_from("<III", data, at)
        a, b, c = (a + x) & mask, (b + y) & mask, (c + z) & mask
        a = ((a - c) & mask) ^ rot(c, 4)
        c = (c + b) & mask
        b = ((b - a) & mask) ^ rot(a, 6)
        a = (a + c) & mask
        c = ((c - b) & mask) ^ rot(b, 8)
        b = (b + a) & mask
        a = ((a - c) & mask) ^ rot(c, 16)
        c = (c + b) & mask
        b = ((b - a) & mask) ^ rot(a, 19)
        a = (a + c) & mask
        c = ((c - b) & mask) ^ rot(b, 4)
        b = (b + a) & mask
        at += 12
        length -= 12
    if length == 0:
        return c
    x, y, z = struct.unpack("<III", data[at:].ljust(12, b"\0"))
    a, b, c = (a + x) & mask, (b + y) & mask, (c + z) & mask
    c = ((c ^ b) - rot(b, 14)) & mask
    a = ((a ^ c) - rot(c, 11)) & mask
    b = ((b ^ a) - rot(a, 25)) & mask
    c = ((c ^ b) - rot(b, 16)) & mask
    a = ((a ^ c) - rot(c, 4)) & mask
    b = ((b ^ a) - rot(a, 14)) & mask
    return ((c ^ b) - rot(b, 24)) & mask


@functools.lru_cache(maxsize=32)
def metadata_blocks(content: bytes) -> tuple[tuple[int, int, int], ...]:
    """Return (begin, length, offset of the checksum) of metadata blocks with a valid checksum."""
    blocks = [(0, 44, 44)] if content[8:9] in (b"\2", b"\3") else []
    at = content.find(DIRECT_BLOCK)
    while at >= 0:
        for length in DIRECT_BLOCK_SIZES:
            if _checksum(content, at, length, DIRECT_BLOCK_CHECKSUM) == _number(
                content, at + DIRECT_BLOCK_CHECKSUM
            ):
                blocks.append((at, length, DIRECT_BLOCK_CHECKSUM))
        at = content.find(DIRECT_BLOCK, at + 1)
    for signature in SIGNATURES:
        at = content.find(signature)
        while at >= 0:
            length = _length_of_block(content, at)
            if length:
                blocks.append((at, length, length))
            at = content.find(signature, at + 1)
    return tuple(sorted(blocks))


def _length_of_block(content, begin):
    if content[begin : begin + 4] == b"OHDR":
        lengths = _lengths_of_header(content, begin)
    else:
        lengths = range(8, LONGEST_BLOCK)
    for length in lengths:
        if _number(content, begin + length) == lookup3(content[begin : begin + length]):
            return length
    return 0


def _number(content, at):
    return int.from_bytes(content[at : at + 4], "little")


def _checksum(content, begin, length, place):
    block = bytearray(content[begin : begin + length])
    if place < length:
        block[place : place + 4] = bytes(4)
    return lookup3(bytes(block))


def _lengths_of_header(content, begin):
    flags = content[begin + 5]
    at = begin + 6 + (16 if flags & 0x20 else 0) + (4 if flags & 0x10 else 0)
    size = 1 << (flags & 3)
    chunk = int.from_bytes(content[at : at + size], "little")
    return (at + size + chunk - begin,)


# ---- changes: (bytearray, random) -> None


def flip_bits(content, random):
    for _ in range(random.choice((1, 1, 1, 2, 8))):
        content[random.randrange(len(content))] ^= 1 << random.randrange(8)


def random_bytes(content, random):
    begin = random.randrange(len(content))
    count = random.choice((1, 2, 4, 8, 64, 512))
    content[begin : begin + count] = random.randbytes(len(content[begin : begin + count]))


def zero_pages(content, random):
    size = random.choice((512, PAGE))
    for _ in range(random.choice((1, 1, 4))):
        begin = random.randrange(len(content)) // size * size
        content[begin : begin + size] = bytes(len(content[begin : begin + size]))


def swap_pages(content, random):
    size = random.choice((512, PAGE))
    pages = len(content) // size
    one, other = (random.randrange(pages) * size for _ in range(2))
    content[one : one + size], content[other : other + size] = (
        content[other : other + size],
        content[one : one + size],
    )


def copy_page(content, random):
    pages = len(content) // PAGE
    one, other = (random.randrange(pages) * PAGE for _ in range(2))
    content[one : one + PAGE] = content[other : other + PAGE]


def truncate(content, random):
    del content[random.randrange(len(content)) :]


def lengthen(content, random):
    content += random.randbytes(random.choice((1, 100, PAGE)))


def extreme_number(content, random):
    size = random.choice((1, 2, 4, 8))
    begin = random.randrange(len(content) - 8) // size * size
    number = random.choice(EXTREMES) & ((1 << (8 * size)) - 1)
    content[begin : begin + size] = number.to_bytes(size, "little")


def change_metadata(content, random, blocks):
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        begin, length, place = random.choice(blocks)
        _change_block(content, begin, length, random)
        struct.pack_into("<I", content, begin + place, _checksum(content, begin, length, place))


def _change_block(content, begin, length, random):
    at = begin + 4 + random.randrange(max(1, length - 4))
    size = min(random.choice((1, 1, 2, 4, 8)), begin + length - at)
    kind = random.randrange(4)
    if kind == 0:
        content[at] ^= 1 << random.randrange(8)
    elif kind == 1:
        content[at : at + size] = random.randbytes(size)
    elif kind == 2:
        number = random.choice(EXTREMES) & ((1 << (8 * size)) - 1)
        content[at : at + size] = number.to_bytes(size, "little")
    else:  # copy a part of the block to another place in it
        source = begin + 4 + random.randrange(max(1, length - 4))
        count = min(random.choice((2, 8, 16)), begin + length - at, begin + length - source)
        content[at : at + count] = content[source : source + count]


BLIND = (
    *(flip_bits, random_bytes, zero_pages, swap_pages, copy_page, truncate, lengthen),
    extreme_number,
)


def damage(content: bytes, random: random_module.Random) -> tuple[str, bytes]:
    changed = bytearray(content)
    if random.randrange(2) == 0:
        change_metadata(changed, random, metadata_blocks(content))
        return "change_metadata", bytes(changed)
    change = random.choice(BLIND)
    change(changed, random)
    return change.__name__, bytes(changed)
