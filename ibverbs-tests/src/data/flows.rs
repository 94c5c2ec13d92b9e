//! Connections and datagrams with and without flow labels, each printed, to be found in a capture of their frames.

use std::fmt;
use std::net::Ipv6Addr;

use anyhow::Result;
use verbs_sys::current::verbs as v;

use super::link::{ACCESS, Options, Side, success};
use crate::ffi::{Ah, Destination, Library, Operation, Recv, Send, Service, TO_RTR, TO_RTS, blank};

/// Flow labels: none, one of the lower bits alone, and one whose upper bits are folded upon the lower ones.
const LABELS: [u32; 3] = [0, 0x01234, 0xfedcb];
/// Messages of a flow, and bytes of one: several packets of a connection, and one datagram.
const MESSAGES: u64 = 3;
const OF_CONNECTION: usize = 5000;
const OF_DATAGRAM: usize = 500;
/// Bytes before a datagram.
const HEADER: usize = 40;
const QKEY: u32 = 0x0123_4567;

/// Packets from one queue pair to another.
#[derive(Clone, Copy, Debug)]
struct Flow {
    own: (Ipv6Addr, u32),
    peer: (Ipv6Addr, u32),
    label: u32,
}

impl fmt::Display for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ((own, own_qpn), (peer, peer_qpn)) = (self.own, self.peer);
        write!(f, "flow {own} {own_qpn} {peer} {peer_qpn} {:#x}", self.label)
    }
}

/// Sends messages along flows of each service, with each GID and each label, both ways; tells of each flow, and
/// answers how many there were.
///
/// # Errors
/// When a message does not arrive.
pub fn all(options: &Options, tell: impl Fn(&dyn fmt::Display)) -> Result<usize> {
    let library = Library::open()?;
    // Numbers of queue pairs name the flows, so none is to be used again.
    let mut stay = Vec::new();
    let mut count = 0;
    for gid_index in [0, 1] {
        for service in [Service::Reliable, Service::Unreliable, Service::Datagram] {
            for label in LABELS {
                let options = Options { gid_index, service, ..options.clone() };
                let side = |index| Side::new(library, &options, index, OF_CONNECTION);
                let sides = [side(0)?, side(1)?];
                let ends = [end(&sides[0], gid_index)?, end(&sides[1], gid_index)?];
                for (side, peer) in [(&sides[0], ends[1]), (&sides[1], ends[0])] {
                    connect(side, (peer, gid_index, label), &options)?;
                }
                for [from, to] in [[0, 1], [1, 0]] {
                    let (sender, receiver) = (&sides[from], &sides[to]);
                    messages(library, [sender, receiver], (ends[to], gid_index, label))?;
                    tell(&Flow { own: ends[from], peer: ends[to], label });
                    count += 1;
                }
                stay.push(sides);
            }
        }
    }
    Ok(count)
}

/// A side's address and the number of its queue pair.
fn end(side: &Side, gid_index: u8) -> Result<(Ipv6Addr, u32)> {
    Ok((Ipv6Addr::from(side.context.gid(gid_index)?), side.qp.number()))
}

/// A destination of a side: the peer, the index of the own address, and the label.
type To = ((Ipv6Addr, u32), u8, u32);

fn connect(side: &Side, ((gid, qpn), gid_index, label): To, options: &Options) -> Result<()> {
    let qp = &side.qp;
    if qp.service() == Service::Datagram {
        return Ok(qp.to_datagrams(QKEY, 0)?);
    }
    qp.init(ACCESS)?;
    qp.modify(TO_RTR, |attributes| {
        attributes.qp_state = v::IBV_QPS_RTR;
        (attributes.path_mtu, attributes.dest_qp_num) = (v::IBV_MTU_1024, qpn);
        (attributes.max_dest_rd_atomic, attributes.min_rnr_timer) = (4, 12);
        attributes.ah_attr = route((gid, qpn), gid_index, label);
    })?;
    let patience = options.patience;
    Ok(qp.modify(TO_RTS, |attributes| {
        attributes.qp_state = v::IBV_QPS_RTS;
        (attributes.timeout, attributes.retry_cnt) = (patience.timeout, patience.retry_cnt);
        (attributes.rnr_retry, attributes.max_rd_atomic) = (patience.rnr_retry, 4);
    })?)
}

fn route((gid, _): (Ipv6Addr, u32), gid_index: u8, flow_label: u32) -> v::ibv_ah_attr {
    let mut route = blank().ah_attr;
    (route.is_global, route.port_num) = (1, 1);
    route.grh.dgid = v::ibv_gid { raw: gid.octets() };
    (route.grh.sgid_index, route.grh.hop_limit, route.grh.flow_label) = (gid_index, 64, flow_label);
    route
}

/// Messages that arrive.
fn messages(library: &Library, [from, to]: [&Side; 2], (peer, gid_index, label): To) -> Result<()> {
    let is_datagram = from.qp.service() == Service::Datagram;
    let length = if is_datagram { OF_DATAGRAM } else { OF_CONNECTION };
    let room = if is_datagram { HEADER + length } else { length };
    let handle = match is_datagram {
        true => Some(Ah::with(&from.pd, route(peer, gid_index, label))?),
        false => None,
    };
    for wr_id in 0..MESSAGES {
        to.qp.post_recv(&Recv { wr_id, pieces: vec![to.region.piece(0, room)] })?;
        let request = Send {
            wr_id,
            operation: Operation::Send,
            pieces: vec![from.region.piece(0, length)],
            remote: (0, 0),
            immediate: 0,
            flags: v::IBV_SEND_SIGNALED,
        };
        match &handle {
            None => from.qp.post_send(&[request]).map_err(|(failed, _)| failed)?,
            Some(handle) => {
                let to = Destination { handle, qpn: peer.1, qkey: QKEY };
                from.qp.post_datagram(&request, to)?;
            }
        }
        success(library, &from.send_cq)?;
        success(library, &to.receive_cq)?;
    }
    Ok(())
}
