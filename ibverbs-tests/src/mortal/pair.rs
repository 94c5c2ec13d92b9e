//! Two programs that send each other messages and look at every byte, until one of them is gone.

use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};
use verbs_sys::current::verbs as v;

use super::{CARD_DIED, IMPATIENT, LIMIT, PEER_GONE, STOPPED, is_dead, is_wanted, options, say};
use crate::data::link::{ACCESS, Side};
use crate::ffi::{Completion, Cq, Library, Operation, Peer, Recv, Send};

/// Bytes of the largest message.
const LARGEST: usize = 64 << 10;
/// The offset of bytes to be sent; received ones lie before it.
const SENT: usize = LARGEST;
/// Polls that find nothing between two looks at whether the peer's process lives.
const POLLS: u32 = 2000;
/// The immediate of the last message.
const LAST: u32 = u32::MAX;
/// First PSNs.
const PSN: u32 = 0xff_fff0;

/// One of the two.
struct Party {
    side: Side,
    /// Where addresses were exchanged; it ends with the other's process.
    stream: UnixStream,
    /// Whether this one begins.
    leads: bool,
}

/// The end of a wait.
enum Wait {
    Done(Completion),
    /// The other's process has ended.
    Alone,
}

/// Sends messages to and fro between this process and the one on the other side of a socket at
/// `path`, until `stop` is there, the card dies or the other one does; says `running`.
///
/// # Errors
/// When a byte, a completion or a call is wrong.
pub fn run(path: &Path, leads: bool, stop: &Path) -> Result<u8> {
    let library = Library::open()?;
    let side = Side::new(library, &options(false, IMPATIENT), usize::from(!leads), 2 * LARGEST)?;
    let Some(stream) = meet(path, leads)? else { return Ok(PEER_GONE) };
    let party = Party { side, stream, leads };
    match party.connect() {
        Ok(true) => {}
        Ok(false) => return Ok(PEER_GONE),
        Err(error) => return party.excuse(error),
    }
    say("running");
    party.talk(stop).or_else(|error| party.excuse(error))
}

/// The connection to the other process; `None` when it never comes.
fn meet(path: &Path, leads: bool) -> Result<Option<UnixStream>> {
    let deadline = Instant::now() + LIMIT;
    let listener = leads.then(|| UnixListener::bind(path)).transpose().context("bind")?;
    if let Some(listener) = &listener {
        listener.set_nonblocking(true)?;
    }
    while Instant::now() < deadline {
        let met = match &listener {
            Some(listener) => listener.accept().map(|(stream, _)| stream),
            None => UnixStream::connect(path),
        };
        if let Ok(stream) = met {
            stream.set_nonblocking(false)?;
            stream.set_read_timeout(Some(LIMIT))?;
            return Ok(Some(stream));
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    Ok(None)
}

impl Party {
    /// Exchanges addresses; false when the other one has gone.
    fn connect(&self) -> Result<bool> {
        let gid = self.side.context.gid(1)?;
        let mut stream = &self.stream;
        let mut theirs = [0; 20];
        let ours = [&self.side.qp.number().to_be_bytes()[..], &gid].concat();
        if stream.write_all(&ours).is_err() || stream.read_exact(&mut theirs).is_err() {
            return Ok(false);
        }
        let [q0, q1, q2, q3, gid @ ..] = theirs;
        let peer = Peer {
            qpn: u32::from_be_bytes([q0, q1, q2, q3]),
            gid,
            gid_index: 1,
            send_psn: PSN,
            receive_psn: PSN,
            mtu: v::IBV_MTU_1024,
        };
        self.side.qp.init(ACCESS)?;
        self.side.qp.receive_from(&peer)?;
        self.receive(0)?;
        self.side.qp.send_to(&peer, options(false, IMPATIENT).patience)?;
        // Nobody sends before the other one is ready to receive.
        let mut byte = [0];
        Ok(stream.write_all(b"!").is_ok() && stream.read_exact(&mut byte).is_ok())
    }

    fn talk(&self, stop: &Path) -> Result<u8> {
        let mut number = 0u32;
        loop {
            let last = self.leads && !is_wanted(stop);
            if self.leads {
                match self.send(number, if last { LAST } else { number })? {
                    Wait::Done(done) if done.status == v::IBV_WC_SUCCESS => {}
                    Wait::Done(done) => return self.failed(&done),
                    Wait::Alone => return self.alone(number),
                }
            }
            let received = match self.wait(&self.side.receive_cq)? {
                Wait::Done(done) if done.status == v::IBV_WC_SUCCESS => done,
                Wait::Done(done) => return self.failed(&done),
                Wait::Alone => return self.alone(number),
            };
            self.check(number, &received)?;
            let last = last || received.immediate == Some(LAST);
            if last && self.leads {
                return Ok(STOPPED);
            }
            number = (number + 1) % LAST;
            if !last {
                self.receive(number)?;
            }
            if !self.leads {
                match self.send(number - 1, if last { LAST } else { number })? {
                    Wait::Done(done) if done.status == v::IBV_WC_SUCCESS => {}
                    Wait::Done(done) => return self.failed(&done),
                    // It has got its answer, and left.
                    Wait::Alone if last => return Ok(STOPPED),
                    Wait::Alone => return self.alone(number),
                }
            }
            if last {
                return Ok(STOPPED);
            }
        }
    }

    fn receive(&self, number: u32) -> Result<()> {
        let pieces = vec![self.side.region.piece(0, LARGEST)];
        Ok(self.side.qp.post_recv(&Recv { wr_id: number.into(), pieces })?)
    }

    fn send(&self, number: u32, immediate: u32) -> Result<Wait> {
        let length = length(number);
        let bytes: Vec<u8> = (0..length).map(|at| byte(number, self.leads, at)).collect();
        self.side.region.write(SENT, &bytes);
        let request = Send {
            wr_id: number.into(),
            operation: Operation::SendImmediate,
            pieces: vec![self.side.region.piece(SENT, length)],
            remote: (0, 0),
            immediate,
            flags: v::IBV_SEND_SIGNALED,
        };
        self.side.qp.post_send(&[request]).map_err(|(failed, _)| failed)?;
        self.wait(&self.side.send_cq)
    }

    fn check(&self, number: u32, received: &Completion) -> Result<()> {
        let length = length(number);
        let found = (received.wr_id, received.byte_len as usize);
        ensure!(found == (number.into(), length), "message {number} of {length}: {received:?}");
        let mut bytes = vec![0; length];
        self.side.region.read(0, &mut bytes);
        let wrong = (0..length).find(|&at| bytes[at] != byte(number, !self.leads, at));
        ensure!(wrong.is_none(), "byte {wrong:?} of message {number} is wrong");
        Ok(())
    }

    fn wait(&self, cq: &Cq) -> Result<Wait> {
        let deadline = Instant::now() + LIMIT;
        loop {
            for _ in 0..POLLS {
                if let Some(done) = cq.poll()? {
                    return Ok(Wait::Done(done));
                }
                std::thread::yield_now();
            }
            if self.is_alone()? {
                // What came before the end is taken first.
                return Ok(cq.poll()?.map_or(Wait::Alone, Wait::Done));
            }
            ensure!(Instant::now() < deadline, "no completion within {LIMIT:?}");
        }
    }

    /// Whether the other one's process has ended.
    fn is_alone(&self) -> Result<bool> {
        self.stream.set_nonblocking(true)?;
        let read = (&self.stream).read(&mut [0]);
        self.stream.set_nonblocking(false)?;
        match read {
            Ok(0) => Ok(true),
            Ok(_) => bail!("the other one says more than it should"),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(false),
            Err(_) => Ok(true),
        }
    }

    /// The other one is gone: messages to it are given up, and then all requests are flushed.
    fn alone(&self, number: u32) -> Result<u8> {
        // A send may be under way still; one more makes sure that there is one.
        let pieces = vec![self.side.region.piece(SENT, 1)];
        let (wr_id, flags) = (number.into(), v::IBV_SEND_SIGNALED);
        let operation = Operation::Send;
        let request = Send { wr_id, operation, pieces, remote: (0, 0), immediate: 0, flags };
        self.side.qp.post_send(&[request]).map_err(|(failed, _)| failed)?;
        loop {
            let done = super::next(&self.side.send_cq, LIMIT)?;
            if done.status != v::IBV_WC_SUCCESS {
                return self.failed(&done);
            }
        }
    }

    /// A work request failed: for a reason that can be, and with everything after it flushed.
    fn failed(&self, first: &Completion) -> Result<u8> {
        if first.status == v::IBV_WC_WR_FLUSH_ERR {
            is_dead(&self.side)?;
            return Ok(CARD_DIED);
        }
        // Between the end of a process and that of its queues its memory is gone already.
        let expected = [v::IBV_WC_RETRY_EXC_ERR, v::IBV_WC_REM_OP_ERR];
        ensure!(expected.contains(&first.status), "not by the book: {first:?}");
        // A process that ends loses its memory first, and its descriptors some time after.
        let deadline = Instant::now() + LIMIT;
        while !self.is_alone()? {
            ensure!(Instant::now() < deadline, "given up while the peer lives: {first:?}");
        }
        let received = super::next(&self.side.receive_cq, LIMIT)?;
        let flushed = received.status == v::IBV_WC_WR_FLUSH_ERR;
        ensure!(flushed, "the receive after the failure: {received:?}");
        Ok(PEER_GONE)
    }

    /// A call failed: that may be because the card is dead.
    fn excuse(&self, error: anyhow::Error) -> Result<u8> {
        match is_dead(&self.side) {
            Ok(()) => Ok(CARD_DIED),
            Err(_) => Err(error),
        }
    }
}

/// Bytes of a message.
fn length(number: u32) -> usize {
    1 + (number as usize).wrapping_mul(7919) % LARGEST
}

/// A byte of a message.
fn byte(number: u32, of_leader: bool, at: usize) -> u8 {
    let word = u64::from(number) << 33 | u64::from(of_leader) << 32 | (at as u64 / 8);
    let word = word.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (word ^ word >> 31).to_le_bytes()[at % 8]
}
