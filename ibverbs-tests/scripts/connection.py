"""A program with a connection of librdmacm's to itself, or one that names queue pairs that it does not have.

connection.py keep ADDRESS PORT GO: connects, and when the file GO is there goes on with that connection.
connection.py lose ADDRESS PORT GO: connects, and when GO is there has lost its device, and connects again.
connection.py name ADDRESS PORT QPN...: asks for connections of queue pairs of others.
"""

import ctypes
import errno
import os
import select
import socket
import sys
import time

ADDR_RESOLVED, ROUTE_RESOLVED, CONNECT_REQUEST, ESTABLISHED, DISCONNECTED = 0, 2, 4, 9, 10
DEVICE_REMOVAL, TIMEWAIT_EXIT = 11, 15
PS_TCP = 0x106
RC = 2

cm = ctypes.CDLL("librdmacm.so.1", use_errno=True)
verbs = ctypes.CDLL("libibverbs.so.1", use_errno=True)
cm.rdma_create_event_channel.restype = ctypes.POINTER(ctypes.c_int)
verbs.ibv_alloc_pd.restype = ctypes.c_void_p
verbs.ibv_alloc_pd.argtypes = [ctypes.c_void_p]


class Address(ctypes.Structure):
    _fields_ = [("family", ctypes.c_ushort), ("port", ctypes.c_ushort), ("ip", ctypes.c_ubyte * 4)]
    _fields_ += [("zero", ctypes.c_ubyte * 8)]


class Parameters(ctypes.Structure):
    _fields_ = [("words", ctypes.c_void_p), ("length", ctypes.c_ubyte), ("serves", ctypes.c_ubyte)]
    _fields_ += [("asks", ctypes.c_ubyte), ("flow", ctypes.c_ubyte), ("retries", ctypes.c_ubyte)]
    _fields_ += [("rnr_retries", ctypes.c_ubyte), ("srq", ctypes.c_ubyte), ("qpn", ctypes.c_uint32)]


class QpWanted(ctypes.Structure):
    _fields_ = [("context", ctypes.c_void_p), ("send_cq", ctypes.c_void_p)]
    _fields_ += [("recv_cq", ctypes.c_void_p), ("srq", ctypes.c_void_p)]
    _fields_ += [("most", ctypes.c_uint32 * 5), ("kind", ctypes.c_int), ("signals", ctypes.c_int)]


mode, ip, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
address = Address(socket.AF_INET, socket.htons(port), tuple(map(int, ip.split("."))))
own = Address(socket.AF_INET, 0, address.ip)
channel = cm.rdma_create_event_channel()


def done(result):
    assert result == 0, os.strerror(ctypes.get_errno())


def create():
    identifier = ctypes.c_void_p()
    done(cm.rdma_create_id(channel, ctypes.byref(identifier), None, PS_TCP))
    return identifier.value


def event(*wanted):
    """The identifier of the next event, which is one of those."""
    while True:
        got = ctypes.POINTER(ctypes.c_uint64)()
        done(cm.rdma_get_cm_event(channel, ctypes.byref(got)))
        identifier, what, status = got[0], got[2] & 0xFFFFFFFF, got[2] >> 32
        done(cm.rdma_ack_cm_event(got))
        if what == TIMEWAIT_EXIT:
            continue
        assert what in wanted and status == 0, f"event {what} with status {status}, not {wanted}"
        return identifier


def nothing_comes():
    poll = select.poll()
    poll.register(channel[0], select.POLLIN)
    return poll.poll(0) == []


def device(identifier):
    return ctypes.c_void_p.from_address(identifier).value


def queue_pair(identifier):
    wanted = QpWanted(most=(4, 4, 1, 1, 0), kind=RC)
    done(cm.rdma_create_qp(ctypes.c_void_p(identifier), None, ctypes.byref(wanted)))


def resolve(identifier):
    to = ctypes.byref(address)
    done(cm.rdma_resolve_addr(ctypes.c_void_p(identifier), ctypes.byref(own), to, 20000))
    event(ADDR_RESOLVED)
    done(cm.rdma_resolve_route(ctypes.c_void_p(identifier), 20000))
    event(ROUTE_RESOLVED)


def connect():
    """A listener, who asks it, and who is asked, which are connected."""
    listener, asks = create(), create()
    done(cm.rdma_bind_addr(ctypes.c_void_p(listener), ctypes.byref(address)))
    done(cm.rdma_listen(ctypes.c_void_p(listener), 8))
    resolve(asks)
    queue_pair(asks)
    parameters = Parameters(retries=7, rnr_retries=7)
    done(cm.rdma_connect(ctypes.c_void_p(asks), ctypes.byref(parameters)))
    asked = event(CONNECT_REQUEST)
    queue_pair(asked)
    done(cm.rdma_accept(ctypes.c_void_p(asked), ctypes.byref(parameters)))
    assert {event(ESTABLISHED), event(ESTABLISHED)} == {asks, asked}
    return listener, asks, asked


def destroy(listener, *connected):
    for identifier in connected:
        cm.rdma_destroy_qp(ctypes.c_void_p(identifier))
    for identifier in (listener, *connected):
        done(cm.rdma_destroy_id(ctypes.c_void_p(identifier)))


def wait_for(file):
    print("connected", flush=True)
    while not os.path.exists(file):
        time.sleep(0.01)


def name():
    asks = create()
    resolve(asks)
    for qpn in map(int, sys.argv[4:]):
        parameters = Parameters(retries=7, rnr_retries=7, qpn=qpn)
        result = cm.rdma_connect(ctypes.c_void_p(asks), ctypes.byref(parameters))
        assert (result, ctypes.get_errno()) == (-1, errno.EINVAL), (result, ctypes.get_errno())
    assert nothing_comes()
    print("refused")


def keep():
    listener, asks, asked = connect()
    wait_for(sys.argv[4])
    assert nothing_comes(), "somebody ended it"
    for first, second in ((asks, asked), (asked, asks)):
        done(cm.rdma_disconnect(ctypes.c_void_p(first)))
        assert event(DISCONNECTED) == second
    destroy(listener, asks, asked)
    print("its own end")


def lose():
    all_of_it = connect()
    wait_for(sys.argv[4])
    told = [event(DEVICE_REMOVAL, DISCONNECTED) for _ in all_of_it]
    assert set(told) == set(all_of_it), "each is told once"
    before = device(all_of_it[1])
    assert verbs.ibv_alloc_pd(before) is None
    assert ctypes.get_errno() == errno.EIO, os.strerror(ctypes.get_errno())
    destroy(*all_of_it)
    # What librdmacm has open of it is open still: it asks for the device that came in its place.
    again = connect()
    destroy(*again)
    cm.rdma_destroy_event_channel(channel)
    print("connected again")


{"name": name, "keep": keep, "lose": lose}[mode]()
