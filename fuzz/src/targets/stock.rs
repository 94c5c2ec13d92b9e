//! The model of the published card: any stores, frames, pages that come late or never, and time.

use std::collections::BTreeMap;

use arbitrary::Unstructured;
use fpga_regs::coyote::vfpga as v;
use stock::{Card, Host, Identity, Reach, Space};

use crate::Outcome;

const OWN: Identity = Identity { mac: [2, 0, 0, 0, 0, 1], ipv4: 0x0a00_0001 };

/// Steps of an input at most.
const STEPS: usize = 64;

/// Memory whose pages answer as the input says, without end.
struct Pages<'a> {
    answers: &'a [u8],
    asked: usize,
    written: BTreeMap<Space, u64>,
    /// The transfer that waits.
    waits: Option<(bool, Space, u64, usize)>,
}

impl Pages<'_> {
    fn reach(&mut self, wanted: (bool, Space, u64, usize)) -> Reach {
        if let Some(waits) = self.waits.take() {
            assert_eq!(waits, wanted, "another transfer is asked for before the one that waits");
        }
        let at = self.asked.checked_rem(self.answers.len()).unwrap_or(0);
        self.asked += 1;
        match self.answers.get(at).map(|it| it % 8) {
            Some(0) => {
                self.waits = Some(wanted);
                Reach::Waits
            }
            Some(1) => Reach::Refused,
            _ => Reach::Done,
        }
    }
}

impl Host for Pages<'_> {
    fn read(&mut self, space: Space, vaddr: u64, into: &mut [u8]) -> Reach {
        assert!(into.len() <= 4096, "a transfer is a packet's");
        self.reach((false, space, vaddr, into.len()))
    }

    fn write(&mut self, space: Space, vaddr: u64, from: &[u8]) -> Reach {
        assert!(vaddr < 1 << 48 && !from.is_empty() && space.vfpga < 2);
        *self.written.entry(space).or_default() += from.len() as u64;
        self.reach((true, space, vaddr, from.len()))
    }

    fn write_back(&mut self, _: u64, _: u32) {}
}

pub fn run(u: &mut Unstructured<'_>) -> Outcome {
    let answers: [u8; 16] = u.arbitrary()?;
    let mut host = Pages { answers: &answers, asked: 0, written: BTreeMap::new(), waits: None };
    let mut card = Card::new(2);
    card.set_identity(OWN);
    let mut now = 0u64;
    for _ in 0..STEPS {
        match u.int_in_range(0..=5)? {
            0 | 1 => store(u, &mut card, &mut host)?,
            2 | 3 => card.receive(&frame(u)?),
            4 => now = now.max(card.next_timeout().unwrap_or(now)),
            _ if u.ratio(1, 16)? => {
                card.reset();
                host.waits = None;
            }
            _ => {}
        }
        let done = card.work(now, &mut host);
        let mut sent = 0;
        while let Some(frame) = card.transmit() {
            assert!((42..=4200).contains(&frame.len()), "{} bytes", frame.len());
            sent += 1;
        }
        assert!(done || sent > 0 || host.asked > 0, "it stops before nothing");
        let _ = (card.parked(), card.starves(), card.stream_is_down(), card.tally());
    }
    for offset in (0..0x1000).step_by(8) {
        let _ = card.load(1, offset);
    }
    Ok(())
}

/// A store of any size, mostly to a register with an effect.
fn store(u: &mut Unstructured<'_>, card: &mut Card, host: &mut Pages<'_>) -> Outcome {
    let registers = [v::CTRL, v::CTRL, v::WBACK.offset, v::NET_ARP, v::RDMA_CTX_0, v::RDMA_CONN_0];
    let size = *u.choose(&[32, 32, 32, 16, 8, 4, 1])?;
    let offset = *u.choose(&registers)? + size * u.int_in_range(0..=3)?;
    let mut words: [u64; 4] = u.arbitrary()?;
    // QPs that others name, too, and lengths that end.
    words[0] = words[0] & !(0xffff << 40) | 1 << 9 & words[0];
    words[2] &= !(0xffff << 40);
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let size = usize::try_from(size).unwrap_or(0);
    card.store(u.int_in_range(0..=2)?, offset, &bytes[..size], host);
    Ok(())
}

/// A packet to the card, of which all but the headers on its way is anything; or any frame.
fn frame(u: &mut Unstructured<'_>) -> arbitrary::Result<Vec<u8>> {
    if u.ratio(1, 8)? {
        return Ok(u.bytes(u.len().min(64))?.to_vec());
    }
    let opcode = if u.ratio(15, 16)? { u.int_in_range(0..=0x14)? } else { u.arbitrary()? };
    let (qpn, psn) = (u.int_in_range(0..=3u32)?, u.int_in_range(0..=7u32)?);
    let length = u.int_in_range(0..=48)?.min(u.len());
    let rest = u.bytes(length)?;
    let udp = 8 + 12 + rest.len() as u16 + 4;
    let mut header = vec![0x45, 0];
    header.extend((udp + 20).to_be_bytes());
    header.extend([0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 2]);
    header.extend(OWN.ipv4.to_be_bytes());
    let sum: u32 = header.chunks(2).map(|it| u32::from(it[0]) << 8 | u32::from(it[1])).sum();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    let mut frame = [&[0; 12][..], &[8, 0], &header].concat();
    for word in [4791, 4791, udp, 0] {
        frame.extend(u16::to_be_bytes(word));
    }
    frame.extend([opcode, 0, 0xff, 0xff, 0, 0, 0, qpn as u8, 0, 0, 0, psn as u8]);
    frame.extend(rest);
    frame.extend([0; 4]);
    Ok(frame)
}
