//! Requests by RDMA netlink: answered by whole messages of bounded size, and no request for a change is granted.

use std::fs;
use std::sync::OnceLock;

use arbitrary::Unstructured;
use host_view::rdma_netlink::Devices;
use tempfile::TempDir;

use crate::Outcome;

/// The commands that are answered, if all is there that they need.
const ANSWERED: [u16; 5] = [1, 5, 6, 15, 17];
/// Bytes of a datagram with answers, unless one alone is longer.
const PAGE: usize = 4096;

/// A class directory with two cards, one of which has lost its port.
fn class() -> &'static TempDir {
    static CLASS: OnceLock<TempDir> = OnceLock::new();
    CLASS.get_or_init(|| {
        let class = tempfile::tempdir().expect("a directory");
        for (path, text) in [
            ("infiniband/balboa0/node_type", "1: CA"),
            ("infiniband/balboa0/node_guid", "0250:c2ff:fe00:0001"),
            ("infiniband/balboa0/sys_image_guid", "0250:c2ff:fe00:0001"),
            ("infiniband/balboa0/fw_ver", "1.0"),
            ("infiniband/balboa0/ports/1/state", "4: ACTIVE"),
            ("infiniband/balboa0/ports/1/phys_state", "5: LinkUp"),
            ("infiniband/balboa0/ports/1/gid_attrs/ndevs/1", "eth0"),
            ("infiniband/balboa0/ports/1/hw_counters/sent_pkts", "18446744073709551615"),
            ("infiniband/balboa1/node_type", "none"),
            ("infiniband_verbs/uverbs900/ibdev", "balboa0"),
            ("infiniband_verbs/uverbs900/dev", "18446744073709551615:1048576"),
            ("infiniband_verbs/uverbs900/abi_version", "1"),
            ("net/eth0/ifindex", "3"),
        ] {
            let path = class.path().join(path);
            fs::create_dir_all(path.parent().expect("a directory")).expect("a directory");
            fs::write(path, text).expect("a file");
        }
        class
    })
}

/// A message that may be right.
fn message(u: &mut Unstructured<'_>) -> arbitrary::Result<Vec<u8>> {
    let command = if u.ratio(1, 4)? { u.int_in_range(0..=31)? } else { *u.choose(&ANSWERED)? };
    let client: u16 = if u.ratio(1, 8)? { u.arbitrary()? } else { 5 };
    let flags: u16 =
        if u.ratio(1, 4)? { u.arbitrary()? } else { *u.choose(&[1, 5, 0x301, 0x305])? };
    let mut attributes = Vec::new();
    // An input at its end says yes for ever.
    while !u.is_empty() && u.ratio(2, 3)? {
        let value: &[u8] = match u.int_in_range(0..=3)? {
            0 => b"uverbs\0",
            1 => &[0, 0, 0, 0],
            2 => &[1, 0, 0, 0],
            _ => {
                let count = u.int_in_range(0..=12)?.min(u.len());
                u.bytes(count)?
            }
        };
        let kind: u16 = *u.choose(&[1, 1, 3, 3, 69, 75, 0x8001, 0])?;
        let length = u16::try_from(value.len() + 4).unwrap_or(0);
        attributes.extend([length.to_ne_bytes(), kind.to_ne_bytes()].concat());
        attributes.extend(value);
        attributes.resize(attributes.len().next_multiple_of(4), 0);
    }
    let length = u32::try_from(attributes.len() + 16).unwrap_or(0);
    let length = if u.ratio(1, 16)? { u.arbitrary()? } else { length };
    let mut message = length.to_ne_bytes().to_vec();
    message.extend((client << 10 | command).to_ne_bytes());
    message.extend(flags.to_ne_bytes());
    message.extend([7, 0, 0, 0, 9, 0, 0, 0]);
    message.extend(attributes);
    Ok(message)
}

/// The kinds of the messages of a datagram, all of which are whole.
fn kinds(mut datagram: &[u8]) -> Vec<u16> {
    let mut kinds = Vec::new();
    while !datagram.is_empty() {
        let length = u32::from_ne_bytes(*datagram.first_chunk().expect("a length")) as usize;
        assert!((16..=datagram.len()).contains(&length), "{length} of {}", datagram.len());
        kinds.push(u16::from_ne_bytes([datagram[4], datagram[5]]));
        datagram = &datagram[length.next_multiple_of(4).min(datagram.len())..];
    }
    kinds
}

pub fn run(u: &mut Unstructured<'_>) -> Outcome {
    let devices = Devices::below(class().path().to_owned());
    let mut datagram = Vec::new();
    while !u.is_empty() && datagram.len() < PAGE {
        match u.ratio(1, 8)? {
            true => {
                let count = u.int_in_range(0..=32)?.min(u.len());
                datagram.extend_from_slice(u.bytes(count)?);
            }
            false => datagram.extend(message(u)?),
        }
    }
    let answers = devices.answer(&datagram);
    assert!(answers.len() <= 64 && answers.iter().all(|it| it.len() <= PAGE));
    for kind in answers.iter().flat_map(|it| kinds(it)) {
        let told = kind >> 10 == 5 && ANSWERED.contains(&(kind & 0x3ff));
        assert!(told || [2, 3].contains(&kind), "an answer of kind {kind:#x}");
    }
    Ok(())
}
