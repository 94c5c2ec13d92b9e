"""Compares the ICRC of captured RoCE v2 frames with scapy's own, which it computes when it builds.

usage: icrc.py CAPTURE LIMIT
Looks at LIMIT frames at most, spread evenly, and prints how many of IPv4 and of IPv6 agree.
"""

import sys

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
    for index, (number, data) in enumerate(frames(capture)):
        if index % stride:
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


main(sys.argv[1], int(sys.argv[2]))
