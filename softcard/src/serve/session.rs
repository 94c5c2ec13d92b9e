//! Execution of one client's messages: a state machine without a socket and without the card.
//!
//! A message goes in, a [`Reaction`] comes out. Everything but the card's registers lives here. So a
//! message that arrives while the card itself waits for the client (it asked for memory) can still
//! be answered unless it needs the card; `channel.rs` handles the others.
//!
//! Writes to registers are posted, as on PCIe: the reply comes before they are executed, because
//! their effects may need the client, which may be deaf until it has its reply.

use std::os::fd::OwnedFd;
use std::rc::Rc;

use fpga_regs::coyote::pci::{Bar, MSIX_PBA_OFFSET};
use nix::errno::Errno;
use serde_json::{Map, Value, json};

use super::config_space::{self, ConfigSpace};
use super::doorbells;
use super::irqs::{self, INDICES, Irqs, Raised};
use super::maps::{MAX_MAPS, Maps, PAGE_SIZES, Span};
use super::wire::{Header, MAX_DATA, REGION_INFO_BYTES, RegionWrite, Request};
use crate::bus::{AskedMemory, Bus};

/// The protocol's major version.
const MAJOR: u16 = 0;
/// The highest minor version that is known here.
const MINOR: u16 = 1;
/// Most descriptors that a client may send with one message.
const MAX_MSG_FDS: u64 = hostmem::fdpass::MAX_FDS as u64;
/// Most bytes of a client's list of capabilities.
const MAX_VERSION_DATA: usize = 16 << 10;

/// Regions of a PCI device: six BARs, ROM, configuration space, VGA.
const REGIONS: u32 = 9;
const CONFIG_REGION: u32 = 7;

/// `DEVICE_GET_INFO`: the device can be reset, and is a PCI device.
const DEVICE_RESET_PCI: u32 = 0b11;
/// `DEVICE_GET_REGION_INFO` flags.
const REGION_READ_WRITE: u32 = 0b11;
const REGION_MMAP: u32 = 1 << 2;
const REGION_CAPS: u32 = 1 << 3;
/// The capability that tells which parts of a region can be mapped, and its version.
const SPARSE_MMAP: u32 = 1 | 1 << 16;

/// Where in BAR2 the pending bits are, one for each vector; the card keeps the table before them.
const PENDING_BITS: std::ops::Range<u64> = MSIX_PBA_OFFSET..MSIX_PBA_OFFSET + 8;

/// A reply to the client.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) payload: Vec<u8>,
    /// The doorbell pages' memory file goes with it.
    pub(crate) doorbells: bool,
}

impl Reply {
    fn of(payload: Vec<u8>) -> Self {
        Self { payload, doorbells: false }
    }
}

/// An effect on the card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    Write { bar: Bar, offset: u64, data: Vec<u8> },
    Reset,
}

/// The reaction to a message.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Reaction {
    /// Answer; nothing else is left to do.
    Reply(Reply),
    /// Answer, then do these in order.
    Post(Reply, Vec<Effect>),
    /// Do these in order, then answer.
    Finish(Vec<Effect>, Reply),
    /// A read: the values of the registers at `offset` of the BAR go behind the first [`REGION_ACCESS_BYTES`] of the
    /// answer.
    Read { bar: Bar, offset: u64, answer: Reply },
    /// Answer with an error.
    Refuse(Errno),
    /// Answer with an error and end the connection.
    End(Errno),
}

/// Bytes before the data in the answer to `REGION_READ`.
pub(crate) const REGION_ACCESS_BYTES: usize = 16;

/// The terms that a client and we agreed on.
#[derive(Clone, Copy, Debug)]
struct Negotiated {
    /// Most bytes of memory to ask the client for at a time.
    max_data: u32,
    /// The client takes descriptors.
    takes_fds: bool,
}

/// The state behind one connection.
#[derive(Debug)]
pub(crate) struct Session {
    negotiated: Option<Negotiated>,
    config: ConfigSpace,
    pub(crate) irqs: Irqs,
    maps: Maps,
    bus: Rc<Bus>,
}

impl Session {
    /// The state after a reset, for a client that has said nothing yet, of a card that says that it is a software card or
    /// does not.
    pub(crate) fn new(
        bus: Rc<Bus>,
        raised: Raised,
        client: Rc<dyn AskedMemory>,
        is_marked: bool,
    ) -> Self {
        bus.clear();
        bus.set_master(false);
        Self {
            negotiated: None,
            config: ConfigSpace::new(is_marked),
            irqs: Irqs::new(raised),
            maps: Maps::new(Rc::clone(&bus), client),
            bus,
        }
    }

    /// Most bytes to ask the client for at a time.
    pub(crate) fn max_data(&self) -> u32 {
        self.negotiated.map_or(0, |negotiated| negotiated.max_data)
    }

    /// The objects held for the client: maps, mapped files, event counters.
    pub(crate) fn holdings(&self) -> [u64; 3] {
        let [maps, files] = self.maps.held();
        [maps, files, self.irqs.held()].map(|count| count as u64)
    }

    /// Takes everything the client mapped off the bus.
    pub(crate) fn close(&mut self) {
        self.maps.clear();
        self.bus.set_master(false);
    }

    /// The reaction to a command.
    pub(crate) fn command(
        &mut self,
        header: &Header,
        payload: &[u8],
        fds: Vec<OwnedFd>,
    ) -> Reaction {
        let request = match Request::parse(header.command, payload) {
            Ok(request) => request,
            Err(errno) => return Reaction::Refuse(errno),
        };
        let takes_fds = matches!(request, Request::DmaMap { .. } | Request::DeviceSetIrqs { .. });
        if !takes_fds && !fds.is_empty() {
            return Reaction::Refuse(Errno::EINVAL);
        }
        match (self.negotiated, request) {
            (None, Request::Version { major, minor, data }) => self.version(major, minor, &data),
            (Some(_), Request::Version { .. }) | (None, _) => Reaction::Refuse(Errno::EINVAL),
            (Some(negotiated), request) => self.request(negotiated, request, payload, fds),
        }
    }

    fn request(
        &mut self,
        negotiated: Negotiated,
        request: Request,
        payload: &[u8],
        fds: Vec<OwnedFd>,
    ) -> Reaction {
        let outcome = match request {
            Request::RegionRead { offset, region, count } => {
                return self.read(region, offset, count, payload);
            }
            Request::RegionWrite(write) => {
                let echo = payload.get(..REGION_ACCESS_BYTES).unwrap_or_default().to_vec();
                return self.write(vec![write], Reply::of(echo));
            }
            Request::RegionWriteMulti(writes) => {
                let done = writes.len() as u64;
                return self.write(writes, Reply::of(done.to_le_bytes().to_vec()));
            }
            Request::DeviceReset => {
                self.reset();
                return Reaction::Finish(vec![Effect::Reset], Reply::of(Vec::new()));
            }
            Request::DmaMap { flags, offset, address, size } => {
                self.maps.map(flags, offset, Span { address, size }, fds).map(|()| Vec::new())
            }
            Request::DmaUnmap { argsz, flags, address, size } => {
                let echo = fields([argsz, flags], [address, size]);
                self.maps.unmap(flags, Span { address, size }).map(|()| echo)
            }
            Request::DeviceSetIrqs { flags, index, start, count, data } => {
                let wanted = irqs::Wanted { flags, index, start, count };
                self.irqs.set(wanted, &data, fds).map(|()| Vec::new())
            }
            Request::DeviceGetInfo => Ok(words([16, DEVICE_RESET_PCI, REGIONS, INDICES])),
            Request::DeviceGetIrqInfo { index } => match Irqs::info(index) {
                Some(irqs::Info { flags, vectors }) => Ok(words([16, flags, index, vectors])),
                None => Err(Errno::EINVAL),
            },
            Request::DeviceGetRegionInfo { argsz, index } => {
                return region_info(argsz, index, negotiated.takes_fds);
            }
            Request::Version { .. } => Err(Errno::EINVAL),
        };
        match outcome {
            Ok(payload) => Reaction::Reply(Reply::of(payload)),
            Err(errno) => Reaction::Refuse(errno),
        }
    }

    fn version(&mut self, major: u16, minor: u16, data: &[u8]) -> Reaction {
        if major != MAJOR {
            return Reaction::End(Errno::EPROTONOSUPPORT);
        }
        let Some(proposed) = capabilities(data) else { return Reaction::Refuse(Errno::EINVAL) };
        let number = |name, default| match proposed.get(name) {
            Some(value) => value.as_u64(),
            None => Some(default),
        };
        let max_data = number("max_data_xfer_size", u64::from(MAX_DATA));
        let (Some(max_data), Some(max_fds)) = (max_data, number("max_msg_fds", 1)) else {
            return Reaction::Refuse(Errno::EINVAL);
        };
        self.negotiated = Some(Negotiated {
            max_data: u32::try_from(max_data).unwrap_or(MAX_DATA).min(MAX_DATA),
            takes_fds: max_fds > 0,
        });
        // The answer names proposed properties only, and needs no more room than the proposal.
        let mut agreed = json!({
            "max_msg_fds": MAX_MSG_FDS,
            "max_data_xfer_size": MAX_DATA,
            "max_dma_maps": MAX_MAPS,
            "pgsizes": PAGE_SIZES,
            "write_multiple": true,
        });
        if let Some(agreed) = agreed.as_object_mut() {
            agreed.retain(|name, _| proposed.contains_key(name));
        }
        let mut payload = Vec::new();
        payload.extend(MAJOR.to_le_bytes());
        payload.extend(minor.min(MINOR).to_le_bytes());
        payload.extend(json!({ "capabilities": agreed }).to_string().into_bytes());
        payload.push(0);
        Reaction::Reply(Reply::of(payload))
    }

    fn reset(&mut self) {
        self.config = ConfigSpace::new(self.config.is_marked);
        self.irqs.reset();
        self.follow_command();
    }

    /// Lets the card do on the bus as the configuration space says.
    fn follow_command(&mut self) {
        let masters = self.config.masters();
        self.bus.set_master(masters);
        self.irqs.set_enabled(masters);
    }

    fn read(&self, region: u32, offset: u64, count: u32, payload: &[u8]) -> Reaction {
        if !lies_inside(region, offset, count as usize) {
            return Reaction::Refuse(Errno::EINVAL);
        }
        let echo = payload.get(..REGION_ACCESS_BYTES).unwrap_or_default();
        let mut answer = Reply::of(echo.to_vec());
        let Some(bar) = bar(region) else {
            let bytes = self.config.read(offset as usize, count as usize).unwrap_or_default();
            answer.payload.extend(bytes);
            return Reaction::Reply(answer);
        };
        let end = REGION_ACCESS_BYTES.saturating_add(count as usize);
        if !self.config.decodes() {
            answer.payload.resize(end, 0xff);
            return Reaction::Reply(answer);
        }
        answer.payload.resize(end, 0);
        if bar == Bar::Xdma && PENDING_BITS.contains(&offset) {
            let bits = self.irqs.pending().to_le_bytes();
            let from = bits.iter().skip(offset.wrapping_sub(MSIX_PBA_OFFSET) as usize);
            let into = answer.payload.iter_mut().skip(REGION_ACCESS_BYTES);
            into.zip(from).for_each(|(into, byte)| *into = *byte);
            return Reaction::Reply(answer);
        }
        Reaction::Read { bar, offset, answer }
    }

    fn write(&mut self, writes: Vec<RegionWrite>, answer: Reply) -> Reaction {
        if !writes.iter().all(|write| lies_inside(write.region, write.offset, write.data.len())) {
            return Reaction::Refuse(Errno::EINVAL);
        }
        let mut effects = Vec::new();
        for RegionWrite { region, offset, data } in writes {
            match bar(region) {
                None => {
                    if self.config.write(offset as usize, &data) {
                        self.reset();
                        effects.push(Effect::Reset);
                    }
                    self.follow_command();
                }
                Some(_) if !self.config.decodes() => {}
                Some(bar) => effects.push(Effect::Write { bar, offset, data }),
            }
        }
        match effects.as_slice() {
            [] => Reaction::Reply(answer),
            effects_ if effects_.contains(&Effect::Reset) => Reaction::Finish(effects, answer),
            _ => Reaction::Post(answer, effects),
        }
    }
}

/// The capabilities that a client proposes; `None` for data that is none.
fn capabilities(data: &[u8]) -> Option<Map<String, Value>> {
    let data = data.strip_suffix(&[0]).unwrap_or(data);
    if data.is_empty() {
        return Some(Map::new());
    }
    if data.len() > MAX_VERSION_DATA {
        return None;
    }
    let Value::Object(mut data) = serde_json::from_slice(data).ok()? else { return None };
    match data.remove("capabilities") {
        None => Some(Map::new()),
        Some(Value::Object(capabilities)) => Some(capabilities),
        Some(_) => None,
    }
}

fn bar(region: u32) -> Option<Bar> {
    [Bar::Static, Bar::Xdma, Bar::Shell].into_iter().find(|bar| u32::from(bar.number()) == region)
}

fn region_bytes(region: u32) -> u64 {
    match bar(region) {
        Some(bar) => bar.size(),
        None if region == CONFIG_REGION => config_space::BYTES as u64,
        None => 0,
    }
}

fn lies_inside(region: u32, offset: u64, count: usize) -> bool {
    let bytes = region_bytes(region);
    bytes > 0 && offset.checked_add(count as u64).is_some_and(|end| end <= bytes)
}

fn region_info(argsz: u32, index: u32, takes_fds: bool) -> Reaction {
    if index >= REGIONS {
        return Reaction::Refuse(Errno::EINVAL);
    }
    let bytes = region_bytes(index);
    let flags = if bytes > 0 { REGION_READ_WRITE } else { 0 };
    let info = |argsz, flags, capabilities| {
        let mut info = words([argsz, flags, index, capabilities]);
        info.extend(bytes.to_le_bytes());
        info.extend(0u64.to_le_bytes());
        info
    };
    if bar(index) != Some(Bar::Shell) || !takes_fds {
        return Reaction::Reply(Reply::of(info(REGION_INFO_BYTES, flags, 0)));
    }
    let areas = doorbells::areas();
    let mut capability = words([SPARSE_MMAP, 0, areas.len() as u32, 0]);
    for area in areas {
        capability.extend(area.start.to_le_bytes());
        capability.extend(area.end.saturating_sub(area.start).to_le_bytes());
    }
    let needed = REGION_INFO_BYTES.saturating_add(capability.len() as u32);
    if argsz < needed {
        // This answer has neither the file nor the capability, and QEMU relies on it.
        return Reaction::Reply(Reply::of(info(needed, flags, 0)));
    }
    let mut payload = info(needed, flags | REGION_MMAP | REGION_CAPS, REGION_INFO_BYTES);
    payload.extend(capability);
    Reaction::Reply(Reply { payload, doorbells: true })
}

fn words<const N: usize>(words: [u32; N]) -> Vec<u8> {
    words.into_iter().flat_map(u32::to_le_bytes).collect()
}

fn fields<const N: usize, const M: usize>(first: [u32; N], then: [u64; M]) -> Vec<u8> {
    let mut bytes = words(first);
    bytes.extend(then.into_iter().flat_map(u64::to_le_bytes));
    bytes
}
