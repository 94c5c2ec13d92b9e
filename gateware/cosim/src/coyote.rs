//! The adaptor from the engine's records at its host side to those of a Coyote shell (`gateware/rtl/balboa_coyote.sv`), each
//! bit of both layouts that the shell's `hw/templates/common/lynx_pkg_tmplt.txt` has had: the older one as of its commit
//! 8b6d74fc, the newer one as of 01c89e33, with addresses of 48 bits and streams of 4.

use crate::ffi::{In, Library, LoadError, Out};
use crate::random::Random;

/// A field by the shell's name, its highest bit and its lowest one.
type Field = (&'static str, u32, u32);

/// A layout of the shell's records.
struct Layout {
    name: &'static str,
    request: &'static [Field],
    ack: &'static [Field],
}

const OLDER: Layout = Layout {
    name: "older",
    request: &[
        ("opcode", 127, 123),
        ("strm", 122, 121),
        ("mode", 120, 120),
        ("rdma", 119, 119),
        ("remote", 118, 118),
        ("vfid", 117, 114),
        ("pid", 113, 108),
        ("dest", 107, 104),
        ("last", 103, 103),
        ("vaddr", 102, 55),
        ("len", 54, 27),
        ("actv", 26, 26),
        ("host", 25, 25),
        ("offs", 24, 19),
        ("reserved", 18, 0),
    ],
    ack: &[
        ("opcode", 31, 27),
        ("strm", 26, 25),
        ("remote", 24, 24),
        ("host", 23, 23),
        ("dest", 22, 19),
        ("pid", 18, 13),
        ("vfid", 12, 9),
        ("reserved", 8, 0),
    ],
};

const NEWER: Layout = Layout {
    name: "newer",
    request: &[
        ("opcode", 127, 123),
        ("strm", 122, 121),
        ("vfid", 120, 117),
        ("pid", 116, 111),
        ("dest", 110, 107),
        ("last", 106, 106),
        ("vaddr", 105, 58),
        ("len", 57, 30),
        ("actv", 29, 29),
        ("host", 28, 28),
        ("offs", 27, 22),
        ("reserved", 21, 0),
    ],
    ack: &[
        ("opcode", 31, 27),
        ("strm", 26, 25),
        ("dest", 24, 21),
        ("pid", 20, 15),
        ("vfid", 14, 11),
        ("reserved", 10, 0),
    ],
};

/// Draws of each seed, in each layout.
const DRAWS: u64 = 64;

/// Why the adaptor is not right.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AdaptorError {
    /// There is no logic.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A field has another value than it must have.
    #[error("{port}, {layout} layout: {field} is {said:#x}, where it has to be {wanted:#x}")]
    Wrong {
        /// The port.
        port: &'static str,
        /// The layout.
        layout: &'static str,
        /// The field.
        field: &'static str,
        /// What it is.
        said: u128,
        /// What it has to be.
        wanted: u128,
    },
}

/// A record of the engine's for a request.
#[derive(Clone, Copy)]
struct Request {
    address: u64,
    length: u32,
    stream: u8,
}

impl Request {
    fn draw(random: &mut Random) -> Self {
        let address = random.next_u64() >> 16;
        Self { address, length: random.next_u64() as u32 >> 4, stream: random.below(16) as u8 }
    }

    fn bits(self) -> u128 {
        u128::from(self.stream) << 76 | u128::from(self.length) << 48 | u128::from(self.address)
    }

    /// What a field of the shell's has to be; 0 for what is not said.
    fn wanted(self, field: &str, opcode: u128, pid: u8) -> u128 {
        match field {
            "opcode" => opcode,
            "strm" | "last" => 1,
            "pid" => pid.into(),
            "dest" => self.stream.into(),
            "vaddr" => self.address.into(),
            "len" => self.length.into(),
            _ => 0,
        }
    }
}

/// A completion as the shell has it, and the stream if the engine has to take it.
fn ack(random: &mut Random, layout: &Layout, opcode: u32, pid: u8) -> (u32, Option<u8>) {
    let (mut record, mut is_own, mut stream) = (0, true, 0);
    for &(name, high, low) in layout.ack {
        let drawn = random.next_u64() as u32 & ((1 << (high - low + 1)) - 1);
        let often = random.chance(216);
        let value = match name {
            "opcode" if often => opcode,
            "strm" if often => 1,
            "pid" if often => pid.into(),
            "remote" | "host" if often => 0,
            _ => drawn,
        };
        is_own &= match name {
            // Others are of the network.
            "opcode" => value == opcode,
            "strm" => value == 1,
            "pid" => value == u32::from(pid),
            "remote" | "host" => value == 0,
            _ => true,
        };
        if name == "dest" {
            stream = value as u8;
        }
        record |= value << low;
    }
    (record, is_own.then_some(stream))
}

/// Puts bits into data, the first of which is a byte's lowest.
fn put(data: &mut [u8; 64], byte: usize, bits: u128, bytes: usize) {
    data[byte..byte + bytes].copy_from_slice(&bits.to_le_bytes()[..bytes]);
}

fn get(data: &[u8; 64], byte: usize) -> u128 {
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&data[byte..byte + 16]);
    u128::from_le_bytes(bytes)
}

/// Passes random records through the adaptor, in both layouts, and compares each bit; gives the completions that the engine
/// has to take.
///
/// # Errors
/// [`AdaptorError`].
pub fn run(library: &Library, seed: u64) -> Result<u64, AdaptorError> {
    let mut logic = library.make(seed)?;
    let mut random = Random::new(seed);
    let mut own = 0;
    for _ in 0..DRAWS {
        for (layout, number) in [(&OLDER, 0), (&NEWER, 1)] {
            let pid = random.below(64) as u8;
            let notify = random.next_u64() as u32;
            let requests = [Request::draw(&mut random), Request::draw(&mut random)];
            let acks = [1, 2].map(|opcode| ack(&mut random, layout, opcode, pid));
            let valid = [(); 2].map(|()| random.chance(192));
            let mut shell = In { araddr: number, ..In::default() };
            put(&mut shell.recv_data, 0, requests[0].bits(), 10);
            put(&mut shell.recv_data, 10, requests[1].bits(), 10);
            put(&mut shell.recv_data, 20, acks[0].0.into(), 4);
            put(&mut shell.recv_data, 24, acks[1].0.into(), 4);
            put(&mut shell.recv_data, 28, notify.into(), 4);
            put(&mut shell.recv_data, 32, pid.into(), 1);
            [shell.cq_rd_valid, shell.cq_wr_valid] = valid.map(u8::from);
            let out = logic.settle(&shell);
            let wanted = [0, 1].map(|it| acks[it].1.filter(|_| valid[it]));
            own += wanted.iter().flatten().count() as u64;
            compare(&out, layout, requests, pid)?;
            told(&out, layout, wanted, u128::from(pid) << 32 | u128::from(notify))?;
        }
    }
    Ok(own)
}

/// Compares the requests that the shell has.
fn compare(
    out: &Out,
    layout: &Layout,
    requests: [Request; 2],
    pid: u8,
) -> Result<(), AdaptorError> {
    for (port, at, opcode, request) in [("sq_rd", 0, 1, requests[0]), ("sq_wr", 16, 2, requests[1])]
    {
        let record = get(&out.send_data, at);
        for &(field, high, low) in layout.request {
            let said = record >> low & ((1 << (high - low + 1)) - 1);
            let wanted = request.wanted(field, opcode, pid);
            if said != wanted {
                return Err(AdaptorError::Wrong { port, layout: layout.name, field, said, wanted });
            }
        }
    }
    Ok(())
}

/// Compares what the engine is told, and what the driver is.
fn told(
    out: &Out,
    layout: &Layout,
    wanted: [Option<u8>; 2],
    notify: u128,
) -> Result<(), AdaptorError> {
    let layout = layout.name;
    let wrong = |port, field, said, wanted| match said == wanted {
        true => Ok(()),
        false => Err(AdaptorError::Wrong { port, layout, field, said, wanted }),
    };
    // pid at bits 37 to 32, the value below.
    wrong("notify", "record", get(&out.send_data, 32), notify)?;
    for (port, valid, stream, wanted) in [
        ("cq_rd", out.sq_rd_valid, out.sq_rd_stream, wanted[0]),
        ("cq_wr", out.sq_wr_valid, out.sq_wr_stream, wanted[1]),
    ] {
        wrong(port, "valid", valid.into(), wanted.is_some().into())?;
        if let Some(wanted) = wanted {
            wrong(port, "stream", stream.into(), wanted.into())?;
        }
    }
    Ok(())
}
