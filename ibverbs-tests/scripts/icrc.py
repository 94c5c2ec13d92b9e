"""Compares the ICRC of captured RoCE v2 frames with scapy's own, which it computes when it builds.

usage: icrc.py CAPTURE LIMIT
Looks at LIMIT frames at most, spread evenly, and prints how many of IPv4 and of IPv6 agree.
"""

import sys

from scapy.contrib.roce import BTH
from scapy.layers.inet import IP
from scapy.utils import PcapReader


def frames(capture):
    with PcapReader(capture) as reader:
        for number, frame in enumerate(reader, 1):
            if BTH in frame:
                yield number, frame


def main(capture, limit):
    total = sum(1 for _ in frames(capture))
    stride = max(1, -(-total // limit))
    agree = {4: 0, 6: 0}
    for index, (number, frame) in enumerate(frames(capture)):
        if index % stride:
            continue
        captured = bytes(frame.original)[-4:]
        frame[BTH].icrc = None
        computed = bytes(frame)[-4:]
        if captured != computed:
            sys.exit(f"frame {number}: ICRC {captured.hex()}, scapy computes {computed.hex()}")
        agree[4 if IP in frame else 6] += 1
    print(f"{agree[4]} of IPv4 and {agree[6]} of IPv6 agree, of {total} frames")


main(sys.argv[1], int(sys.argv[2]))
