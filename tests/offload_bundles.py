# SPDX-License-Identifier: MIT
"""Offload bundles as clang writes them, for tests of their readers."""

import ctypes
import struct
import zlib


def offload_bundle(images):
    """A bundle as clang-offload-bundler writes it: the host's entry, which is empty, and a code object for each target."""
    entries = {"host-x86_64-unknown-linux-gnu-": b""} | {
        f"hipv4-amdgcn-amd-amdhsa--{target}": image for target, image in images.items()
    }
    header, bodies, offset = b"", b"", 4096
    for name, image in entries.items():
        header += struct.pack("<3Q", offset, len(image), len(name)) + name.encode()
        bodies += image + bytes(-len(image) % 4096)
        offset += len(image) + -len(image) % 4096
    header = b"__CLANG_OFFLOAD_BUNDLE__" + struct.pack("<Q", len(entries)) + header
    return header + bytes(4096 - len(header)) + bodies


def zstd(data):
    library = ctypes.CDLL("libzstd.so.1")
    for function in (library.ZSTD_compressBound, library.ZSTD_compress):
        function.restype = ctypes.c_size_t
    library.ZSTD_compressBound.argtypes = [ctypes.c_size_t]
    library.ZSTD_compress.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int]  # fmt: skip
    room = ctypes.create_string_buffer(library.ZSTD_compressBound(len(data)))
    size = library.ZSTD_compress(room, len(room), data, len(data), 3)
    return room.raw[:size]


COMPRESSORS = {0: zlib.compress, 1: zstd}


def compressed_bundle(bundle, version, method, said=None):
    """A bundle as --offload-compress writes it, from the fields that code_object/compressed_bundle.h lists; `said`: another declared
    size."""
    data, said = COMPRESSORS.get(method, zlib.compress)(bundle), len(bundle) if said is None else said
    sizes = {1: "<I", 2: "<II", 3: "<QQ"}.get(version, "<QQ")
    whole = 8 + struct.calcsize(sizes) + 8 + len(data)
    written = struct.pack(sizes, said) if version == 1 else struct.pack(sizes, whole, said)
    return b"CCOB" + struct.pack("<HH", version, method) + written + bytes(8) + data
