//! A tool's changes of a card's port, for all users of the card, and its view of the port.

use std::os::unix::net::UnixStream;

use card_driver::address::{self, is_ipv4};
use fpga_regs::engine::admin::MAX_VLAN;
use fpga_regs::port::WatchFilter;
use nix::errno::Errno;
use shim_abi::{CAPTURE_RING, MAX_CAPTURED_QPS, Request, Response};

use super::{Answer, Session, not_at_once};
use crate::cards::Card;
use crate::error::Error;
use crate::events;

/// The index of the link-local address, which stays.
const LINK_LOCAL: u8 = 0;
/// The first index that addresses of IPv4 have.
const FIRST_IPV4: u8 = 1;
/// The first index that other addresses have.
const FIRST_IPV6: u8 = 2;

/// Whether a request is a tool's, and no program's.
#[must_use]
pub fn is_tools(request: &Request) -> bool {
    changes_port(request)
        || matches!(
            request,
            Request::Capture { .. }
                | Request::EndCapture { .. }
                | Request::AttachServices { .. }
                | Request::DetachServices { .. }
                | Request::LoadService { .. }
                | Request::UnloadService { .. }
                | Request::QueryQos { .. }
                | Request::SetQos { .. }
        )
}

/// Whether a request is one for a change of a port.
#[must_use]
pub fn changes_port(request: &Request) -> bool {
    matches!(request, Request::SetLink { .. } | Request::AddGid { .. } | Request::DelGid { .. })
}

impl Session<'_> {
    /// Executes a tool's request, as [`is_tools`] names them.
    pub(super) fn serve_tool(&mut self, request: Request) -> Result<Answer, Error> {
        match request {
            Request::SetLink { card, up } => self.set_link(card, up),
            Request::AddGid { card, gid, vlan } => self.add_gid(card, gid, vlan),
            Request::DelGid { card, gid, vlan } => self.del_gid(card, gid, vlan),
            Request::Capture { card, qpns, address, snap, ring } => {
                let ring = usize::try_from(ring).unwrap_or(usize::MAX);
                self.capture(card, WatchFilter { qpns, address, snap, ring })
            }
            Request::EndCapture { card } => self.end_capture(card),
            Request::AttachServices { card, to, chain, replaces } => {
                self.attach_services(card, to, chain, replaces)
            }
            Request::DetachServices { card, from, now } => self.detach_services(card, from, now),
            Request::LoadService { card, module } => self.load_service(card, &module),
            Request::UnloadService { card, name, now } => self.unload_service(card, &name, now),
            Request::QueryQos { card } => self.query_qos(card),
            Request::SetQos { card, qos } => self.set_qos(card, &qos),
            _ => Err(not_at_once()),
        }
    }

    fn set_link(&mut self, number: u32, up: bool) -> Result<Answer, Error> {
        let card = self.card(number)?;
        card.device.set_link(up && card.machine_is_up)?;
        card.taken_off = !up;
        let state = if up { "on its cable" } else { "off its cable: down" };
        log::info!(client = self.client.process.pid; "balboa{number}: the port was put {state}");
        Ok(Response::Done.into())
    }

    fn add_gid(&mut self, number: u32, gid: [u8; 16], vlan: u16) -> Result<Answer, Error> {
        let text = text(gid, vlan);
        if vlan > MAX_VLAN {
            return Err(Error::Invalid(format!(
                "VLAN {vlan}: write a number from 1 to {MAX_VLAN}"
            )));
        }
        let having = self.cards.iter().find(|card| index_of(card, gid, vlan).is_some());
        if let Some(other) = having.map(|card| card.device.name()) {
            return Err(Error::Invalid(format!("{text} is an address of {other} already")));
        }
        let card = self.changeable(number)?;
        if let Some(why) = address::refusal(gid, card.device.address.mac()) {
            return Err(Error::Invalid(why));
        }
        let (mut gids, mut vlans) = (card.device.gids.clone(), card.device.vlans.clone());
        let (kind, first) = if is_ipv4(gid) { ("IPv4", FIRST_IPV4) } else { ("IPv6", FIRST_IPV6) };
        let entries = gids.len();
        let mut free = (0u8..).zip(&mut gids).skip(first.into());
        let Some((index, entry)) = free.find(|(_, entry)| **entry == [0; 16]) else {
            return Err(Error::Full { card: number, entries, kind, first });
        };
        *entry = gid;
        if let Some(entry) = vlans.get_mut(usize::from(index)) {
            *entry = vlan;
        }
        change(card, gids, vlans)?;
        self.connections.outdate_all();
        log::info!(client = self.client.process.pid; "balboa{number}: GID {index} is {text}");
        Ok(Response::Gid { index }.into())
    }

    fn del_gid(&mut self, number: u32, gid: [u8; 16], vlan: u16) -> Result<Answer, Error> {
        let text = text(gid, vlan);
        let card = self.changeable(number)?;
        let index = index_of(card, gid, vlan).ok_or_else(|| {
            let why = format!(
                "balboa{number} has no address {text}; `balboa addr balboa{number} show` lists them"
            );
            Error::Invalid(why)
        })?;
        if index == LINK_LOCAL {
            let why = format!("{text} is the link-local address of balboa{number}, which stays");
            return Err(Error::Invalid(why));
        }
        let (mut gids, mut vlans) = (card.device.gids.clone(), card.device.vlans.clone());
        let at = usize::from(index);
        if let (Some(gid), Some(vlan)) = (gids.get_mut(at), vlans.get_mut(at)) {
            (*gid, *vlan) = ([0; 16], 0);
        }
        change(card, gids, vlans)?;
        self.connections.outdate_all();
        log::info!(client = self.client.process.pid; "balboa{number}: GID {index}, {text}, is gone");
        Ok(Response::Done.into())
    }

    /// Captures the frames at a port, for the tool that reads the other end of a socket.
    fn capture(&mut self, number: u32, filter: WatchFilter) -> Result<Answer, Error> {
        if filter.qpns.len() > MAX_CAPTURED_QPS {
            let most = MAX_CAPTURED_QPS;
            return Err(Error::Invalid(format!("a capture is filtered by {most} QPs at most")));
        }
        let ring = u32::try_from(filter.ring).unwrap_or(u32::MAX);
        if !CAPTURE_RING.contains(&ring) {
            let (least, most) = (CAPTURE_RING.start(), CAPTURE_RING.end());
            return Err(Error::Invalid(format!(
                "a capture's ring has {least} to {most} bytes, not {ring}"
            )));
        }
        let card = self.card(number)?;
        let (ours, theirs) = UnixStream::pair().map_err(|error| Error::Os {
            call: "a pair of sockets",
            errno: Errno::from_raw(error.raw_os_error().unwrap_or(0)),
        })?;
        card.device.backend.record(filter, ours)?;
        log::info!(client = self.client.process.pid; "balboa{number}: the port is captured");
        Ok(Answer { response: Response::Capture, fds: vec![theirs.into()] })
    }

    fn end_capture(&mut self, number: u32) -> Result<Answer, Error> {
        self.card(number)?.device.backend.end_record();
        Ok(Response::Done.into())
    }

    /// A card whose addresses balboad may change.
    fn changeable(&mut self, number: u32) -> Result<&mut Card, Error> {
        let card = self.card(number)?;
        if card.follows_kernel {
            return Err(Error::Unsupported(format!(
                "the addresses of balboa{number} are those of the kernel's network device balboa{number}; use `ip addr add ADDRESS/PREFIX dev balboa{number}`, or `ip addr del`"
            )));
        }
        if let Some(device) = &card.on_machine {
            return Err(Error::Unsupported(format!(
                "the addresses of balboa{number} are those of the machine's network device {device}; use `ip addr add ADDRESS/PREFIX dev {device}`, or `ip addr del`"
            )));
        }
        Ok(card)
    }
}

/// An address as people write it.
fn text(gid: [u8; 16], vlan: u16) -> String {
    match vlan {
        0 => address::text(gid),
        vlan => format!("{} vlan {vlan}", address::text(gid)),
    }
}

/// The index of an address of a card.
fn index_of(card: &Card, gid: [u8; 16], vlan: u16) -> Option<u8> {
    let mut entries = (0u8..).zip(card.device.gids.iter().zip(&card.device.vlans));
    let found = entries.find(|(_, entry)| *entry == (&gid, &vlan) && gid != [0; 16]);
    found.map(|(index, _)| index)
}

/// Gives a card another GID table, and tells its programs.
fn change(card: &mut Card, gids: Vec<[u8; 16]>, vlans: Vec<u16>) -> Result<(), Error> {
    if card.device.set_gids(gids, vlans)? {
        events::gids_changed(card);
    }
    Ok(())
}
