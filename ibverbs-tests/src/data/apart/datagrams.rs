//! Datagrams, and the network header before each.

use std::rc::Rc;

use anyhow::{Context as _, Result, ensure};

use super::{Done, Far, PSNS};
use crate::data::PIECES;
use crate::data::line::Line;
use crate::data::link::{ACCESS, MAX_SGE, Options, Side, success};
use crate::data::transfer::{self, Transfer};
use crate::ffi::{Ah, Completion, Destination, Operation, Recv, Region};

/// Bytes before a datagram.
pub(super) const HEADER: usize = 40;
/// Sizes around everything that could be a bound, up to the port's MTU.
const SIZES: [usize; 16] = [0, 1, 2, 3, 4, 63, 64, 65, 255, 256, 257, 1023, 1024, 1025, 4095, 4096];
/// The keys of the two sides' QPs.
const QKEYS: [u32; 2] = [0x1111_1111, 0x2222_2222];
/// Traffic class and hop limit of the two sides' datagrams. The kernel takes its route's hop limit, 64,
/// whatever an address handle says (`ib_resolve_unicast_gid_dmac`).
const MARKS: [(u8, u8); 2] = [(0x48, 64), (0x60, 64)];

/// One side, and the way to the other one.
pub(super) struct Datagrams<'a> {
    pub(super) side: &'a Side,
    pub(super) line: &'a mut Line,
    far: Far,
    near_gid: [u8; 16],
    handle: Ah,
}

impl<'a> Datagrams<'a> {
    /// Brings a side's QP up, and finds the other side.
    pub(super) fn new(side: &'a Side, line: &'a mut Line, options: &Options) -> Result<Self> {
        let role = line.role;
        side.qp.to_datagrams(QKEYS[role], PSNS[role])?;
        let far = Far::exchange(side, line, options)?;
        let handle = Ah::new(&side.pd, far.gid, options.gid_index, MARKS[role])?;
        let near_gid = side.context.gid(options.gid_index)?;
        line.meet()?;
        Ok(Self { side, line, far, near_gid, handle })
    }

    /// Datagrams of every size with and without immediate data, both ways.
    pub(super) fn run(&mut self) -> Result<Done> {
        let mut done = Done::default();
        let header = Region::new(&self.side.pd, 4096, ACCESS, false)?;
        let widest = 128 << self.side.context.port()?.active_mtu;
        for operation in [Operation::Send, Operation::SendImmediate] {
            for size in SIZES.into_iter().take_while(|size| *size <= widest) {
                let turn = done.messages;
                let transfer = Transfer {
                    operation,
                    size,
                    gather: PIECES[turn % PIECES.len()],
                    // One more is the header's.
                    scatter: PIECES[(turn / 2 + 1) % PIECES.len()].min(MAX_SGE as usize - 1),
                    offset: turn % 7,
                    inline: size < 64 && turn % 4 == 0,
                    seed: turn as u64,
                };
                for sender in [0, 1] {
                    self.one(&transfer, &header, sender)
                        .with_context(|| format!("{transfer:?}"))?;
                    done.messages += 1;
                }
            }
        }
        Ok(done)
    }

    /// Where the other side is.
    pub(super) fn destination(&self) -> Destination<'_> {
        let qkey = QKEYS[1 - self.line.role];
        Destination { handle: &self.handle, qpn: self.far.qpn, qkey }
    }

    fn one(&mut self, transfer: &Transfer, header: &Rc<Region>, sender: usize) -> Result<()> {
        let (side, library) = (self.side, self.side.context.library());
        let (near, end) = (sender == self.line.role, transfer.end());
        transfer::fill_guard(&side.region, end);
        if near {
            transfer::fill(&side.region, &transfer.near(), transfer.seed);
        } else {
            transfer::fill_guard(header, 2 * HEADER);
            let Recv { wr_id, mut pieces } = transfer.receive(&side.region, 5);
            pieces.insert(0, header.piece(0, HEADER));
            side.qp.post_recv(&Recv { wr_id, pieces })?;
        }
        self.line.meet()?;
        if near {
            let request = transfer.send(&side.region, (0, 0), 6, true);
            side.qp.post_datagram(&request, self.destination())?;
            transfer.check_sent(side, 6, &success(library, &side.send_cq)?)?;
        } else {
            let received = success(library, &side.receive_cq)?;
            let bytes = self.check_header(&received, header, 0)?;
            ensure!(bytes == transfer.size, "{} bytes, not {}", bytes, transfer.size);
            let byte_len = u32::try_from(bytes)?;
            transfer.check_received(side, 5, &Completion { byte_len, ..received })?;
            transfer::check_part(header, (HEADER, 0), 2 * HEADER, 0)?;
            transfer::check_bytes(&side.region, &[*transfer], end)?;
        }
        self.line.meet()
    }

    /// Checks a datagram's completion, and the header before it, which is at an offset of a region; gives the number of
    /// bytes behind it.
    pub(super) fn check_header(
        &self,
        received: &Completion,
        region: &Region,
        offset: usize,
    ) -> Result<usize> {
        ensure!(received.has_header, "no header: {received:?}");
        ensure!(received.source_qpn == self.far.qpn, "it came from another QP: {received:?}");
        let mut header = [0; HEADER];
        region.read(offset, &mut header);
        let bytes = (received.byte_len as usize).checked_sub(HEADER).context("too short")?;
        let transport = 8 + 12 + 8 + if received.immediate.is_some() { 4 } else { 0 };
        let datagram = transport + bytes.next_multiple_of(4) + 4;
        let marks = MARKS[1 - self.line.role];
        check_network([self.far.gid, self.near_gid], &header, datagram, marks)
            .with_context(|| format!("the header is {header:02x?}"))?;
        Ok(bytes)
    }
}

/// Checks a network header, from one GID to another, before a UDP datagram of so many bytes.
fn check_network(
    [from, to]: [[u8; 16]; 2],
    header: &[u8; HEADER],
    datagram: usize,
    (traffic_class, hop_limit): (u8, u8),
) -> Result<()> {
    const UDP: u8 = 17;
    let (length, class, next, hops, addresses) = if from[..12] == MAPPED {
        let header = &header[HEADER - 20..];
        ensure!(header[0] == 0x45, "it is not IPv4 without options");
        let words = header.chunks(2).map(|two| u32::from(two[0]) << 8 | u32::from(two[1]));
        let sum: u32 = words.sum();
        ensure!((sum & 0xffff) + (sum >> 16) == 0xffff, "its checksum is wrong");
        let length = usize::from(u16::from_be_bytes([header[2], header[3]])) - 20;
        let addresses = header[12..] == [&from[12..], &to[12..]].concat();
        (length, header[1], header[9], header[8], addresses)
    } else {
        ensure!(header[0] >> 4 == 6, "it is not IPv6");
        let length = usize::from(u16::from_be_bytes([header[4], header[5]]));
        let addresses = header[8..] == [from, to].concat();
        (length, header[0] << 4 | header[1] >> 4, header[6], header[7], addresses)
    };
    ensure!(addresses, "it is between others");
    // The two lowest bits of the class are a switch's.
    let found = (length, class & !3, next, hops);
    let expected = (datagram, traffic_class, UDP, hop_limit);
    ensure!(
        found == expected,
        "length, class, protocol and hop limit: {found:?}, not {expected:?}"
    );
    Ok(())
}

/// The beginning of a GID that is an IPv4 address.
const MAPPED: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
