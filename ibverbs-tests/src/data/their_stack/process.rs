//! The process of the code: its commands, and its answers (`xtask/src/stack/harness.cpp`).

use std::io::{Read as _, Write as _};
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};

/// The stream that payload is host memory's by (`Stream::Host`), as it stands in an address.
const HOST: u64 = 1 << 52;
/// The UDP port that a connection is given; a socket writes another one.
const UDP_PORT: u32 = 18_488;

/// The process. It ends with its standard input.
pub struct Process {
    child: Child,
    to: Option<ChildStdin>,
    from: ChildStdout,
}

/// Payload on its way to host memory.
#[derive(Clone, Debug)]
pub struct Landing {
    pub address: u64,
    pub bytes: Vec<u8>,
}

/// A packet that is posted, and is a message.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    pub opcode: u32,
    pub qpn: u32,
    pub slot: u8,
    pub length: u32,
    pub local: u64,
    pub remote: u64,
}

/// The effects of a command.
#[derive(Debug, Default)]
pub struct Answer {
    /// Packets from their IPv4 header on, without their invariant CRC, which their length counts.
    pub packets: Vec<Vec<u8>>,
    pub landings: Vec<Landing>,
    /// Requests of its that were answered.
    pub acknowledged: usize,
}

impl Process {
    pub fn start(program: &Path) -> Result<Self> {
        let mut command = Command::new(program);
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = spawned.with_context(|| format!("{command:?}"))?;
        let to = child.stdin.take();
        let from = child.stdout.take().context("its output")?;
        let mut process = Self { child, to, from };
        process.tell(b"c")?;
        Ok(process)
    }

    pub fn identity(&mut self, address: Ipv4Addr) -> Result<()> {
        self.quietly(b'i', &[address.to_bits()])
    }

    /// A queue pair: its first PSNs, the peer's and its own, and the key that its requests name.
    pub fn context(&mut self, qpn: u32, expected: u32, next: u32, rkey: u32) -> Result<()> {
        self.quietly(b'q', &[qpn, expected, next, rkey])
    }

    pub fn connection(&mut self, qpn: u32, remote: u32, address: Ipv4Addr) -> Result<()> {
        self.quietly(b'n', &[qpn, remote, address.to_bits(), UDP_PORT])
    }

    pub fn post(&mut self, piece: &Piece) -> Result<Answer> {
        let Piece { opcode, qpn, slot, length, local, remote } = *piece;
        let addresses = [(HOST | local).to_le_bytes(), remote.to_le_bytes()].concat();
        self.command(b'p', &[opcode, qpn, slot.into(), 1, length], &addresses)
    }

    pub fn receive(&mut self, packet: &[u8]) -> Result<Answer> {
        self.command(b'f', &[packet.len() as u32], packet)
    }

    /// A command that sends nothing.
    fn quietly(&mut self, command: u8, words: &[u32]) -> Result<()> {
        let answer = self.command(command, words, &[])?;
        ensure!(answer.packets.is_empty(), "it sends unasked: {answer:?}");
        Ok(())
    }

    fn command(&mut self, command: u8, words: &[u32], rest: &[u8]) -> Result<Answer> {
        let words: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.tell(&[&[command], &words[..], rest].concat())?;
        self.answer().context("the published stack's code")
    }

    fn tell(&mut self, message: &[u8]) -> Result<()> {
        Ok(self.to.as_mut().context("it is there")?.write_all(message)?)
    }

    fn bytes<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.from.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn list(&mut self) -> Result<Vec<u8>> {
        let mut list = vec![0; u32::from_le_bytes(self.bytes()?) as usize];
        self.from.read_exact(&mut list)?;
        Ok(list)
    }

    fn answer(&mut self) -> Result<Answer> {
        let mut answer = Answer::default();
        loop {
            match self.bytes::<1>()? {
                [b'f'] => answer.packets.push(self.list()?),
                [b'w'] => {
                    // The queue pair, the opcode, and whether it is counted.
                    let [_, _, _, _] = self.bytes()?;
                    let address = u64::from_le_bytes(self.bytes()?);
                    answer.landings.push(Landing { address, bytes: self.list()? });
                }
                // A READ response was asked for: the queue pair.
                [b'r'] => drop(self.bytes::<2>()?),
                [b'a'] => {
                    self.bytes::<6>()?;
                    answer.acknowledged += 1;
                }
                [b'd'] => {
                    self.bytes::<16>()?;
                    return Ok(answer);
                }
                [other] => bail!("it says {:?}, and goes on no more", char::from(other)),
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.to = None;
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
