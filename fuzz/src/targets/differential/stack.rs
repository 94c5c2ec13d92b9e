//! The stack's own code in a process of its own, `xtask/src/stack/harness.cpp`: its commands, and its answers.

use std::cell::RefCell;
use std::io::{Read as _, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// The variable that names the harness's program.
pub const PROGRAM: &str = "BALBOA_STACK";

/// The process, which each life of the stack is forked from.
struct Process {
    child: Child,
    to: ChildStdin,
    from: ChildStdout,
}

thread_local! {
    static PROCESS: RefCell<Option<Process>> = const { RefCell::new(None) };
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Process {
    fn start() -> Self {
        let program = std::env::var_os(PROGRAM).unwrap_or_else(|| {
            panic!("{PROGRAM} names no harness of the stack: cargo xtask fuzz differential does")
        });
        let mut command = Command::new(program);
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = spawned.unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let (to, from) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        Self { child, to, from }
    }

    fn tell(&mut self, message: &[u8]) {
        self.to.write_all(message).expect("the harness takes commands");
    }

    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        self.from.read_exact(&mut bytes).expect("the harness answers");
        bytes
    }

    fn list(&mut self) -> Vec<u8> {
        let mut list = vec![0; u32::from_le_bytes(self.bytes()) as usize];
        self.from.read_exact(&mut list).expect("the harness answers");
        list
    }
}

/// Payload on its way to host memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Landing {
    pub qpn: u16,
    pub opcode: u8,
    pub vaddr: u64,
    pub bytes: Vec<u8>,
    /// It is counted.
    pub last: bool,
}

/// A request was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ack {
    pub opcode: u8,
    pub qpn: u16,
    pub dest: u8,
    pub stream: u8,
    /// It is counted.
    pub last: bool,
}

/// The effects of a command.
#[derive(Debug, Default)]
pub struct Answer {
    /// Packets from their IPv4 header on, without their invariant CRC; bytes behind the length in the header do not
    /// belong to them.
    pub packets: Vec<Vec<u8>>,
    pub landings: Vec<Landing>,
    pub acks: Vec<Ack>,
    /// QPs of which the last payload of a READ response was asked for, and is counted.
    pub read: Vec<u16>,
    /// Packets dropped for their PSN, repeated, received and sent, in all.
    pub counts: [u32; 4],
    /// It has asked for payload of no bytes, or of more than a packet has.
    pub is_lost: bool,
    /// It goes on for ever.
    pub is_endless: bool,
}

/// A life of the stack, from its reset on.
pub struct Stack(());

impl Stack {
    pub fn new(ipv4: u32) -> Self {
        PROCESS.with_borrow_mut(|process| process.get_or_insert_with(Process::start).tell(b"c"));
        let mut stack = Self(());
        stack.command(b'i', &[ipv4], &[]);
        stack
    }

    pub fn context(&mut self, qpn: u32, expected: u32, next: u32, rkey: u32) -> Answer {
        self.command(b'q', &[qpn, expected, next, rkey], &[])
    }

    pub fn connection(&mut self, qpn: u32, remote: u32, ipv4: u32, udp_port: u16) -> Answer {
        self.command(b'n', &[qpn, remote, ipv4, udp_port.into()], &[])
    }

    /// Posts one packet, with the slot for its payload, and the addresses here and there.
    pub fn post(&mut self, piece: &super::Piece) -> Answer {
        let super::Piece { opcode, qpn, slot, last, length, local, remote } = *piece;
        let addresses = [local.to_le_bytes(), remote.to_le_bytes()].concat();
        let words = [opcode.into(), qpn, slot.into(), last.into(), length];
        self.command(b'p', &words, &addresses)
    }

    /// Gives it a packet from its IPv4 header on.
    pub fn receive(&mut self, packet: &[u8]) -> Answer {
        self.command(b'f', &[packet.len() as u32], packet)
    }

    /// Expires every timer that runs.
    pub fn tick(&mut self) -> Answer {
        self.command(b't', &[], &[])
    }

    fn command(&mut self, command: u8, words: &[u32], rest: &[u8]) -> Answer {
        let words: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        PROCESS.with_borrow_mut(|process| {
            let process = process.as_mut().expect("there is one as long as this is");
            process.tell(&[&[command], &words[..], rest].concat());
            answer(process)
        })
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        PROCESS.with_borrow_mut(|process| {
            // If it is dead, an earlier call has already reported it.
            if process.as_mut().is_some_and(|process| process.to.write_all(b"e").is_err()) {
                *process = None;
            }
        });
    }
}

fn answer(process: &mut Process) -> Answer {
    let mut answer = Answer::default();
    loop {
        match process.bytes::<1>() {
            [b'f'] => answer.packets.push(process.list()),
            [b'w'] => {
                let qpn = u16::from_le_bytes(process.bytes());
                let [opcode, last] = process.bytes();
                let vaddr = u64::from_le_bytes(process.bytes());
                let bytes = process.list();
                answer.landings.push(Landing { qpn, opcode, vaddr, bytes, last: last == 1 });
            }
            [b'r'] => answer.read.push(u16::from_le_bytes(process.bytes())),
            [b'a'] => {
                let [opcode, qpn_low, qpn_high, dest, stream, last] = process.bytes();
                let qpn = u16::from_le_bytes([qpn_low, qpn_high]);
                answer.acks.push(Ack { opcode, qpn, dest, stream, last: last == 1 });
            }
            [end @ (b'd' | b'x' | b'o')] => {
                (answer.is_lost, answer.is_endless) = (end == b'x', end == b'o');
                for count in &mut answer.counts {
                    *count = u32::from_le_bytes(process.bytes());
                }
                return answer;
            }
            [other] => panic!("the harness says {other:#04x}"),
        }
    }
}
