"""Runs the tests of one module, and says what became of each: a line of JSON in a file.

The tests take the card's IP address from its network device. It has none, so they are told.

They expect processes to be forked, as Python did before 3.14.
"""

import faulthandler
import json
import multiprocessing
import os
import sys
import unittest
from importlib.machinery import SourceFileLoader

directory, module, limit, said, address = *sys.argv[1:3], int(sys.argv[3]), *sys.argv[4:6]
sys.argv[1:] = sys.argv[6:]
sys.path.insert(0, directory)
# A test that hangs ends the module.
faulthandler.dump_traceback_later(limit, exit=True)

from args_parser import parser

parser.parse_args()
multiprocessing.set_start_method('fork')
tests = SourceFileLoader('tests', os.path.join(directory, '__init__.py')).load_module()

from tests.base import RDMATestCase


def tell_address(test, device, port, gid):
    test.args.append([device, port, gid, address, None])


RDMATestCase._get_ip_mac = tell_address

found = []
output = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def concerned(name):
    """The tests that an outcome is about: all of a class, where its preparation failed."""
    if name.startswith('setUpClass ('):
        return [test for test in found if test.startswith(name[len('setUpClass ('):-1] + '.')]
    return [name]


def say(kind, test, text=''):
    for name in concerned(test.id()):
        line = json.dumps({'kind': kind, 'test': name, 'text': text})
        os.write(output, line.encode() + b'\n')


class Said(unittest.TestResult):
    """Of a test that has several outcomes, as its parts can have, all are said."""

    def addSuccess(self, test):
        say('passed', test)

    def addExpectedFailure(self, test, error):
        say('passed', test)

    def addSkip(self, test, reason):
        say('skipped', test, reason)

    def addFailure(self, test, error):
        say('failed', test, self._exc_info_to_string(error, test))

    def addError(self, test, error):
        say('error', test, self._exc_info_to_string(error, test))

    def addUnexpectedSuccess(self, test):
        say('failed', test, 'it was expected to fail')

    def addSubTest(self, test, part, error):
        super().addSubTest(test, part, error)
        if error is not None:
            kind = 'failed' if issubclass(error[0], test.failureException) else 'error'
            say(kind, test, self._exc_info_to_string(error, test))


suite = unittest.defaultTestLoader.loadTestsFromName('tests.' + module)


def each(part):
    for test in part:
        if isinstance(test, unittest.TestSuite):
            each(test)
        else:
            found.append(test.id())
            say('found', test)


each(suite)
suite.run(Said())
