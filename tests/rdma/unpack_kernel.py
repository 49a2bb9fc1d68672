#!/usr/bin/env python3
"""unpack_kernel.py VMLINUZ OUT: writes the kernel that a compressed x86 image contains.

The image's header says where its payload lies (Linux, Documentation/x86/boot: setup_sects,
payload_offset, payload_length)."""
import lzma
import struct
import subprocess
import sys
import zlib


def unpack(payload):
    if payload.startswith(b'\xfd7zXZ'):
        return lzma.LZMADecompressor().decompress(payload)
    if payload.startswith(b'\x1f\x8b'):
        return zlib.decompressobj(31).decompress(payload)
    if payload.startswith(b'\x28\xb5\x2f\xfd'):
        return subprocess.run(['zstd', '-dc'], input=payload, stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, check=False).stdout
    sys.exit('a payload that is neither xz nor gzip nor zstd')


def main():
    with open(sys.argv[1], 'rb') as file:
        image = file.read()
    if image[0x202:0x206] != b'HdrS':
        sys.exit('not a kernel image')
    sectors = image[0x1f1] or 4
    offset, length = struct.unpack_from('<II', image, 0x248)
    begin = (sectors + 1) * 512 + offset
    kernel = unpack(image[begin:begin + length])
    if not kernel.startswith(b'\x7fELF'):
        sys.exit('the payload is no kernel')
    with open(sys.argv[2], 'wb') as file:
        file.write(kernel)


main()
