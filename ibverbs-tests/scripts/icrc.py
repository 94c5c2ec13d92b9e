"""Compares the ICRC of captured RoCE v2 frames with scapy's own, which it computes when it builds.

usage: icrc.py CAPTURE LIMIT
Looks at about LIMIT frames, spread evenly, and at the first frames of every kind: every opcode,
and of acknowledgements every kind of syndrome. Prints how many of IPv4 and of IPv6 agree, and the
kinds in hexadecimal: "0a" is opcode 0x0a, "11:60" an acknowledgement of syndrome 0x60.
"""

import sys
from collections import Counter

from scapy.contrib.roce import BTH
from scapy.layers.inet import IP
from scapy.layers.l2 import Ether
from scapy.utils import RawPcapReader

UDP, ROCE_V2_PORT = 17, 4791
# Where the next protocol and the UDP header lie, by EtherType: no IPv4 options, no extensions.
LAYOUTS = {0x0800: (23, 34), 0x86DD: (20, 54)}


def is_roce(data):
    protocol, udp = LAYOUTS.get(int.from_bytes(data[12:14], "big"), (None, None))
    return (
        protocol is not None
        and data[protocol] == UDP
        and int.from_bytes(data[udp + 2 : udp + 4], "big") == ROCE_V2_PORT
    )


# Frames of each kind that are looked at in any case.
FIRST = 3
# Opcodes with an ACK Extended Transport Header; it lies behind UDP header and BTH.
ACKNOWLEDGE = 0x11


def kind(data):
    bth = LAYOUTS[int.from_bytes(data[12:14], "big")][1] + 8
    opcode = data[bth]
    if opcode != ACKNOWLEDGE:
        return f"{opcode:02x}"
    syndrome = data[bth + 12]
    # The low bits of an acknowledgement are credits, those of an RNR NAK its timer.
    return f"11:{syndrome if syndrome >> 5 == 3 else syndrome & 0x60:02x}"


def frames(capture):
    """Numbers and bytes of the RoCE v2 frames; only sampled ones are dissected, which is slow."""
    with RawPcapReader(capture) as reader:
        for number, (data, _) in enumerate(reader, 1):
            if is_roce(data):
                yield number, data


def main(capture, limit):
    total = sum(1 for _ in frames(capture))
    stride = max(1, -(-total // limit))
    agree = {4: 0, 6: 0}
    kinds = Counter()
    for index, (number, data) in enumerate(frames(capture)):
        kinds[kind(data)] += 1
        if index % stride and kinds[kind(data)] > FIRST:
            continue
        frame = Ether(data)
        if BTH not in frame:
            sys.exit(f"frame {number}: scapy sees no Base Transport Header")
        captured = data[-4:]
        frame[BTH].icrc = None
        computed = bytes(frame)[-4:]
        if captured != computed:
            sys.exit(f"frame {number}: ICRC {captured.hex()}, scapy computes {computed.hex()}")
        agree[4 if IP in frame else 6] += 1
    print(f"{agree[4]} of IPv4 and {agree[6]} of IPv6 agree, of {total} frames")
    print(*sorted(kinds))


main(sys.argv[1], int(sys.argv[2]))
