"""An event channel of librdmacm, used in each of the ways in which a program may use the kernel's file."""

import ctypes
import fcntl
import os
import select
import signal
import socket
import threading
import time

ADDR_RESOLVED = 0
PS_TCP = 0x106


def library(name, mode):
    return ctypes.CDLL(name, mode=mode | os.RTLD_NOW, use_errno=True)


# libibverbs has listed its devices, and so loaded the provider, before librdmacm is there; each keeps its symbols.
verbs = library("libibverbs.so.1", os.RTLD_LOCAL | os.RTLD_DEEPBIND)
verbs.ibv_get_device_list.restype = ctypes.c_void_p
assert verbs.ibv_get_device_list(None)
cm = library("librdmacm.so.1", os.RTLD_LOCAL | os.RTLD_DEEPBIND)
cm.rdma_create_event_channel.restype = ctypes.POINTER(ctypes.c_int)


class Address(ctypes.Structure):
    _fields_ = [("family", ctypes.c_ushort), ("port", ctypes.c_ushort), ("ip", ctypes.c_ubyte * 4)]
    _fields_ += [("zero", ctypes.c_ubyte * 8)]


channel = cm.rdma_create_event_channel()
assert channel, os.strerror(ctypes.get_errno())


def create():
    identifier = ctypes.c_void_p()
    assert cm.rdma_create_id(channel, ctypes.byref(identifier), None, PS_TCP) == 0
    return identifier


def resolve(identifier):
    to = Address(socket.AF_INET, socket.htons(7174), (10, 77, 0, 2))
    assert cm.rdma_resolve_addr(identifier, None, ctypes.byref(to), 2000) == 0


def event():
    """The number of the next event, or the name of the error."""
    got = ctypes.POINTER(ctypes.c_uint32)()
    if cm.rdma_get_cm_event(channel, ctypes.byref(got)) != 0:
        return os.strerror(ctypes.get_errno())
    number = got[4]
    assert cm.rdma_ack_cm_event(got) == 0
    return number


def resolved():
    identifier = create()
    resolve(identifier)
    assert event() == ADDR_RESOLVED
    assert cm.rdma_destroy_id(identifier) == 0


resolved()

# Another descriptor takes its place.
copy = fcntl.fcntl(channel[0], fcntl.F_DUPFD, 500)
os.close(channel[0])
channel[0] = copy
resolved()

# It is not readable, and who reads does not wait, until there is something.
flags = fcntl.fcntl(copy, fcntl.F_GETFL)
fcntl.fcntl(copy, fcntl.F_SETFL, flags | os.O_NONBLOCK)
assert event() == os.strerror(11), "EAGAIN"
poll = select.poll()
poll.register(copy, select.POLLIN)
assert poll.poll(0) == []
told = create()
resolve(told)
assert poll.poll() == [(copy, select.POLLIN)]
assert event() == ADDR_RESOLVED
assert poll.poll(0) == []
fcntl.fcntl(copy, fcntl.F_SETFL, flags)

# A child has it too.
child = os.fork()
if child == 0:
    resolved()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
resolved()

# A wait ends by a signal whose handler asks for that, and by no other.
signal.signal(signal.SIGALRM, lambda *_: None)
signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
assert event() == os.strerror(4), "EINTR"
signal.siginterrupt(signal.SIGALRM, False)
later = create()
threading.Thread(target=lambda: (time.sleep(0.2), resolve(later))).start()
assert event() == ADDR_RESOLVED
signal.setitimer(signal.ITIMER_REAL, 0)

for identifier in (told, later):
    assert cm.rdma_destroy_id(identifier) == 0
cm.rdma_destroy_event_channel(channel)
print("as the kernel's")
