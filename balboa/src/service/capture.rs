//! Files of captured frames: pcap and pcapng. They may have any content.

use std::borrow::Cow;

/// Ethernet, as both formats name it.
const ETHERNET: u32 = 1;
/// The kinds of pcapng's blocks that are read.
const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const PACKET: u32 = 6;
/// The byte order of a section, as its writer has it.
const ORDER: u32 = 0x1a2b_3c4d;

/// Why a file is no capture.
type Fault = Cow<'static, str>;

/// A captured frame.
#[derive(Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Its bytes, from the Ethernet header on.
    pub bytes: &'a [u8],
    /// All of its bytes are there.
    pub is_whole: bool,
}

/// A byte order.
#[derive(Clone, Copy)]
enum Order {
    Little,
    Big,
}

impl Order {
    fn word(self, bytes: &[u8], place: usize) -> Option<u32> {
        let bytes = *bytes.get(place..)?.first_chunk()?;
        Some(match self {
            Self::Little => u32::from_le_bytes(bytes),
            Self::Big => u32::from_be_bytes(bytes),
        })
    }

    fn half(self, bytes: &[u8], place: usize) -> Option<u32> {
        let bytes = *bytes.get(place..)?.first_chunk()?;
        Some(u32::from(match self {
            Self::Little => u16::from_le_bytes(bytes),
            Self::Big => u16::from_be_bytes(bytes),
        }))
    }

    /// A length or a place.
    fn size(self, bytes: &[u8], place: usize) -> Option<usize> {
        usize::try_from(self.word(bytes, place)?).ok()
    }
}

/// Reads the frames in a file; the fault where it is none, or ends in the middle of one.
pub fn frames(file: &[u8]) -> Result<Vec<Frame<'_>>, Fault> {
    match Order::Little.word(file, 0) {
        Some(SECTION) => blocks(file),
        Some(0xa1b2_c3d4 | 0xa1b2_3c4d) => records(file, Order::Little),
        Some(0xd4c3_b2a1 | 0x4d3c_b2a1) => records(file, Order::Big),
        _ => Err("it is no pcap and no pcapng file".into()),
    }
}

fn not_ethernet(kind: u32) -> Fault {
    format!(
        "its frames are of kind {kind}, and not Ethernet; capture at a card or an Ethernet device"
    )
    .into()
}

/// The frames of a pcap file.
fn records(file: &[u8], order: Order) -> Result<Vec<Frame<'_>>, Fault> {
    match order.word(file, 20) {
        // Its high half says how long checksums are.
        Some(kind) if kind & 0xffff == ETHERNET => {}
        Some(kind) => return Err(not_ethernet(kind & 0xffff)),
        None => return Err("it ends in its header".into()),
    }
    let mut rest = file.get(24..).unwrap_or_default();
    let mut frames = Vec::new();
    while !rest.is_empty() {
        let record = || {
            let (captured, whole) = (order.size(rest, 8)?, order.size(rest, 12)?);
            let (bytes, behind) = rest.get(16..)?.split_at_checked(captured)?;
            Some((Frame { bytes, is_whole: captured >= whole }, behind))
        };
        let (frame, behind) = record().ok_or("it ends in the middle of a frame")?;
        frames.push(frame);
        rest = behind;
    }
    Ok(frames)
}

/// The frames of a pcapng file.
fn blocks(file: &[u8]) -> Result<Vec<Frame<'_>>, Fault> {
    let (mut frames, mut interfaces, mut rest) = (Vec::new(), Vec::new(), file);
    let mut order = Order::Little;
    while !rest.is_empty() {
        // The same in both orders.
        if order.word(rest, 0) == Some(SECTION) {
            let found = [Order::Little, Order::Big].into_iter();
            let mut found = found.filter(|order| order.word(rest, 8) == Some(ORDER));
            order = found.next().ok_or("it has a section without a byte order")?;
            interfaces.clear();
        }
        let whole = order.size(rest, 4).filter(|length| *length >= 12);
        let split = whole.and_then(|length| rest.split_at_checked(length));
        let (block, behind) = split.ok_or("it ends in the middle of a block")?;
        match order.word(block, 0) {
            Some(INTERFACE) => {
                interfaces.push(order.half(block, 8).ok_or("it has an interface cut short")?);
            }
            Some(PACKET) => {
                let interface = order.size(block, 8).and_then(|number| interfaces.get(number));
                match interface {
                    Some(&ETHERNET) => {}
                    Some(&kind) => return Err(not_ethernet(kind)),
                    None => return Err("it has a frame of no interface".into()),
                }
                frames.push(packet(block, order).ok_or("it has a frame cut short")?);
            }
            _ => {}
        }
        rest = behind;
    }
    Ok(frames)
}

fn packet(block: &[u8], order: Order) -> Option<Frame<'_>> {
    let (captured, whole) = (order.size(block, 20)?, order.size(block, 24)?);
    let bytes = block.get(28..)?.get(..captured)?;
    Some(Frame { bytes, is_whole: captured >= whole })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[u32], is_big: bool) -> Vec<u8> {
        let bytes = |word: &u32| if is_big { word.to_be_bytes() } else { word.to_le_bytes() };
        words.iter().flat_map(bytes).collect()
    }

    fn pcap(is_big: bool) -> Vec<u8> {
        let header = words(&[0xa1b2_c3d4, 0x0002_0004, 0, 0, 65535, 1], is_big);
        let record = |captured, whole, bytes: &[u8]| {
            [&words(&[0, 0, captured, whole], is_big)[..], bytes].concat()
        };
        [header, record(3, 3, b"one"), record(2, 5, b"tw")].concat()
    }

    fn pcapng(is_big: bool) -> Vec<u8> {
        let section = words(&[SECTION, 28, ORDER, 1, 0, 0, 28], is_big);
        let kind: [u8; 2] = if is_big { [0, 1] } else { [1, 0] };
        let interface =
            [&words(&[1, 20], is_big)[..], &kind, &[0; 6], &words(&[20], is_big)].concat();
        let other = words(&[5, 12, 12], is_big);
        let packet = |captured, whole, bytes: &[u8; 4]| {
            let head = words(&[6, 36, 0, 0, 0, captured, whole], is_big);
            [&head[..], bytes, &words(&[36], is_big)].concat()
        };
        let packets = [packet(3, 3, b"one\0"), packet(2, 5, b"tw\0\0")].concat();
        [section, interface, other, packets].concat()
    }

    #[test]
    fn both_formats_are_read_in_both_orders_and_cut_short_they_are_refused() {
        let expected =
            [Frame { bytes: b"one", is_whole: true }, Frame { bytes: b"tw", is_whole: false }];
        let mixed = [pcapng(true), pcapng(false)].concat();
        assert_eq!(frames(&mixed).unwrap().len(), 4, "sections one behind the other");
        for file in [pcap(false), pcap(true), pcapng(false), pcapng(true)] {
            assert_eq!(frames(&file).unwrap(), expected);
            for length in 0..file.len() {
                // What is cut off between two frames cannot be missed.
                assert!(
                    frames(&file[..length]).is_ok_and(|frames| frames.len() < 2)
                        || frames(&file[..length]).is_err()
                );
            }
        }
        assert_eq!(frames(b"#!/bin/sh").unwrap_err(), "it is no pcap and no pcapng file");
    }

    #[test]
    fn frames_of_another_kind_are_refused() {
        let mut file = pcap(false);
        file[20] = 101;
        assert!(frames(&file).unwrap_err().contains("of kind 101, and not Ethernet"));
    }
}
