//! The card back-end over a software card in this process.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use fpga_regs::coyote::pci::{self, Bar};
use fpga_regs::coyote::shell::Map;
use fpga_regs::port::WatchFilter;
use hostmem::fdpass::duplicate;
use hostmem::{DmaMemory, Tap, thread_page};
use roce::qos::Qos;
use services::{Attached, Chain, Selector};
use softcard::{
    CardConfig, CardHandle, Congestion, FaultSpec, Image, Link, Protection, Runtime, RuntimeConfig,
};

use crate::backend::{CardBackend, DoorbellGrant, GrantKind, Identity, Serve, Takes, WakeGrant};
use crate::error::Error;
use crate::limit::COMMAND_LIMIT;
use crate::lock::lock;

// Its commands may wait for several programs, one behind the other.
const _: () = assert!(COMMAND_LIMIT.as_millis() >= 2 * softcard::STANDS_FOR_PROGRAMS.as_millis());

/// The options of a software card.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SoftCard {
    /// The other end of its port.
    pub link: Link,
    /// The register map of its shell.
    pub map: Map,
    /// Its image.
    pub image: Image,
    /// The number of its vFPGAs with an engine; all where that is `None`. One with 0 holds no image.
    pub vfpgas: Option<u8>,
    /// Whether it plays an FPGA, which takes bitstreams.
    pub plays_fpga: bool,
    /// Its reaction to congestion.
    pub congestion: Congestion,
    /// How it protects what it sends and takes, if it does.
    pub protection: Option<Protection>,
}

impl SoftCard {
    /// The kind of images that its reconfiguration engine takes.
    #[must_use]
    pub const fn takes(&self) -> Takes {
        if self.plays_fpga { Takes::Bitstreams } else { Takes::SoftImages }
    }
}

/// The place of a software card, in the shape of a PCI address.
#[must_use]
pub fn location(number: usize) -> String {
    format!("soft:{number:02x}:00.0")
}

/// A software card.
#[derive(Debug)]
pub struct SoftBackend {
    pub(crate) handle: CardHandle,
    thread_page: Arc<OwnedFd>,
    given_up: OwnedFd,
    identity: Identity,
    takes: Takes,
    config: Mutex<ConfigSpace>,
}

/// The part of configuration space that bring-up uses.
#[derive(Debug, Default)]
struct ConfigSpace {
    command: u16,
    device_control: u16,
}

/// Where its PCI Express capability stands.
pub(crate) const EXPRESS: u16 = 0x70;
const COMMAND: u16 = pci::CONFIG_COMMAND;
pub(crate) const DEVICE_CONTROL: u16 = EXPRESS + pci::EXPRESS_DEVICE_CONTROL;

/// Starts the software cards, the first of which share their ports with these devices of the
/// kernel's; the runtime ends once every back-end is dropped.
///
/// # Errors
/// [`Error::Backend`] when a port, the capture or the card thread cannot be had.
pub fn start(
    cards: &[SoftCard],
    hosts: &[Arc<Tap>],
    capture: Option<PathBuf>,
    faults: Vec<FaultSpec>,
    seed: u64,
) -> Result<(Runtime, Vec<SoftBackend>), Error> {
    let mut configs = Vec::new();
    for (number, card) in cards.iter().enumerate() {
        let host = hosts.get(number).cloned();
        configs.push(CardConfig {
            link: card.link.clone(),
            map: card.map,
            image: card.image,
            vfpgas: card.vfpgas,
            plays_fpga: card.plays_fpga,
            congestion: card.congestion.clone(),
            protection: card.protection.clone(),
            host,
        });
    }
    let runtime =
        Runtime::start(RuntimeConfig { cards: configs, capture, faults, seed }).map_err(backend)?;
    let page = runtime.thread_page().try_clone_to_owned();
    let page = page.map_err(|error| Error::Backend(format!("the card thread's page: {error}")))?;
    let thread_page = Arc::new(page);
    let mut backends = Vec::new();
    for (number, card) in cards.iter().enumerate() {
        let handle = runtime
            .card(number)
            .ok_or_else(|| Error::Backend(format!("there is no software card {number}")))?;
        let identity = Identity {
            board: match card.plays_fpga {
                false => "Balboa software card".into(),
                true => "Balboa software card that plays an FPGA".into(),
            },
            location: location(number),
            link: card.link.to_string(),
            icrc_policy: Some(card.link.icrc_policy()),
            congestion: Some(card.congestion.to_string()),
            seals: card.protection.is_some(),
            interface: "balboad's own process".into(),
        };
        // As it comes out of a reset: relaxed ordering on.
        let device_control = pci::DEVICE_CONTROL_RELAXED_ORDERING;
        let config = Mutex::new(ConfigSpace { command: 0, device_control });
        let thread_page = Arc::clone(&thread_page);
        // One for each, for a descriptor is waited for once.
        let given_up = runtime.given_up().try_clone_to_owned();
        let given_up = given_up.map_err(|error| Error::Backend(format!("an eventfd: {error}")))?;
        let takes = card.takes();
        backends.push(SoftBackend { handle, thread_page, given_up, identity, takes, config });
    }
    Ok((runtime, backends))
}

fn backend(error: softcard::Error) -> Error {
    Error::Backend(error.to_string())
}

fn of_services(error: softcard::Error) -> Error {
    match error {
        softcard::Error::Services(error) => Error::Services(error),
        error => backend(error),
    }
}

fn of_queues(error: softcard::Error) -> Error {
    use softcard::Error as Soft;
    match error {
        Soft::NoQueues | Soft::MachinesQueues => Error::NoQueues(error.to_string()),
        Soft::NoHeadroom { .. } | Soft::Qos(_) => Error::Qos(error.to_string()),
        error => backend(error),
    }
}

impl SoftBackend {
    /// Spoils the reconfiguration that comes next, at its chunk of that number, from 0 on.
    #[cfg(any(test, feature = "fake"))]
    pub fn spoil_reconfiguration(&self, chunk: u32, how: softcard::Spoil) {
        self.handle.spoil_reconfiguration(chunk, how);
    }
}

impl CardBackend for SoftBackend {
    fn read32(&self, bar: Bar, offset: u64) -> u32 {
        // A 4-byte read has 32 bits at most.
        u32::try_from(self.handle.read(bar, offset, 4)).unwrap_or(u32::MAX)
    }

    fn write32(&self, bar: Bar, offset: u64, value: u32) {
        self.handle.write(bar, offset, 4, u64::from(value));
    }

    fn read64(&self, bar: Bar, offset: u64) -> u64 {
        self.handle.read(bar, offset, 8)
    }

    fn write64(&self, bar: Bar, offset: u64, value: u64) {
        self.handle.write(bar, offset, 8, value);
    }

    fn write_wide(&self, offset: u64, words: [u64; 4]) {
        let mut bytes = [0; 32];
        for (into, word) in bytes.chunks_exact_mut(8).zip(words) {
            into.copy_from_slice(&word.to_le_bytes());
        }
        self.handle.write_wide(offset, bytes);
    }

    fn read_config(&self, offset: u16) -> u16 {
        match offset {
            pci::CONFIG_VENDOR => pci::VENDOR_ID,
            pci::CONFIG_DEVICE => pci::DEVICE_ID,
            COMMAND => lock(&self.config).command,
            pci::CONFIG_CAPABILITIES => EXPRESS,
            EXPRESS => u16::from(pci::CAPABILITY_PCI_EXPRESS),
            DEVICE_CONTROL => lock(&self.config).device_control,
            _ => 0,
        }
    }

    fn write_config(&self, offset: u16, value: u16) {
        let mut config = lock(&self.config);
        match offset {
            COMMAND => config.command = value,
            DEVICE_CONTROL => config.device_control = value,
            _ => {}
        }
    }

    fn vector(&self, vector: u16) -> Option<BorrowedFd<'_>> {
        self.handle.vector(vector)
    }

    fn hold_vector(&self, vector: u16) -> bool {
        self.handle.hold_vector(vector)
    }

    fn release_vector(&self, vector: u16) -> bool {
        self.handle.release_vector(vector)
    }

    fn serve_by(&self, serve: Option<Serve>) {
        self.handle.serve_by(serve);
    }

    fn given_up(&self) -> Option<BorrowedFd<'_>> {
        Some(self.given_up.as_fd())
    }

    fn dma_map(&self, iova: u64, length: u64, memory: DmaMemory) -> Result<(), Error> {
        self.handle.dma_map(iova, length, memory).map_err(backend)
    }

    fn dma_unmap(&self, iova: u64, length: u64) -> Result<(), Error> {
        self.handle.dma_unmap(iova, length).map_err(backend)
    }

    fn dma_map_ahead(&self, iova: u64, length: u64, memory: DmaMemory) -> Result<(), Error> {
        self.handle.dma_map_ahead(iova, length, memory);
        Ok(())
    }

    fn dma_unmap_unused(&self, iova: u64, length: u64) -> Result<(), Error> {
        self.handle.dma_unmap_unused(iova, length);
        Ok(())
    }

    fn iova_ranges(&self) -> Result<Vec<(u64, u64)>, Error> {
        Ok(vec![(0, u64::MAX)])
    }

    fn grant_kind(&self) -> GrantKind {
        GrantKind::Page
    }

    fn grant_page(&self, window: u8, page: u8) -> Result<DoorbellGrant, Error> {
        let thread_page = duplicate(self.thread_page.as_fd());
        let thread_page = thread_page.map_err(Error::os("dup of a descriptor"))?;
        let granted = self.handle.grant_page(window, page).map_err(backend)?;
        let wake = WakeGrant {
            eventfd: granted.wake,
            thread_page,
            asleep: thread_page::ASLEEP_OFFSET,
            liveness: thread_page::LIVENESS_OFFSET,
            worked: thread_page::WORKED_OFFSET,
        };
        Ok(DoorbellGrant::Page { page: granted.page, wake })
    }

    fn revoke_page(&self, window: u8, page: u8) {
        self.handle.revoke_page(window, page);
    }

    fn under_way(&self, window: u8, page: u8) -> Option<u64> {
        Some(self.handle.under_way_bytes(window, page) as u64)
    }

    fn under_way_limit(&self) -> Option<u64> {
        Some(softcard::UNDER_WAY_BYTES as u64)
    }

    fn takes(&self) -> Takes {
        self.takes
    }

    fn reset(&self) -> Result<(), Error> {
        self.handle.reset().map_err(backend)
    }

    fn record(&self, filter: WatchFilter, reader: UnixStream) -> Result<(), Error> {
        self.handle.record(filter, reader).map_err(|error| match error {
            softcard::Error::Recorded => Error::Recorded,
            error => backend(error),
        })
    }

    fn end_record(&self) {
        self.handle.end_record();
    }

    fn attach_services(&self, to: Selector, services: Chain) -> Result<(), Error> {
        self.handle.attach(to, services).map_err(of_services)
    }

    fn replace_services(&self, of: Selector, services: Chain) -> Result<(), Error> {
        self.handle.replace(of, services).map_err(of_services)
    }

    fn ask_for_services(&self, qpn: u32, services: Chain) -> Result<(), Error> {
        self.handle.ask_for_services(qpn, services).map_err(of_services)
    }

    fn detach_services(&self, from: Selector, now: bool) -> Result<usize, Error> {
        self.handle.detach(from, now).map_err(of_services)
    }

    fn own_qp(&self, qpn: u32, process: u32) {
        self.handle.own(qpn, process);
    }

    fn end_process(&self, process: u32) {
        self.handle.end_process(process);
    }

    fn services(&self) -> Option<Vec<Attached>> {
        Some(self.handle.attached())
    }

    fn qos(&self) -> Result<Qos, Error> {
        self.handle.qos().map_err(of_queues)
    }

    fn set_qos(&self, qos: Qos) -> Result<(), Error> {
        self.handle.set_qos(qos).map_err(of_queues)
    }

    fn identity(&self) -> Identity {
        self.identity.clone()
    }

    fn activity(&self) -> Option<u64> {
        Some(self.handle.activity())
    }

    fn port_counters(&self) -> Vec<(&'static str, u64)> {
        self.handle.port_counters()
    }
}
